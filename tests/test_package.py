"""The package as a whole: what it exports, what importing it costs, how it is described."""

import ast
import functools
import inspect
import pkgutil
import re
import subprocess
import sys
import textwrap
import tomllib
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy.typing
import pandas

import bm25v
from bm25v import duplicates, errors
from bm25v.explain import explanation, words
from bm25v.images.decode import Tensor
from bm25v.search import naming
from tests.children import run_python

ROOT = Path(__file__).parent.parent
SELF = ("self", "cls")
EXPORTED = {name: getattr(bm25v, name) for name in bm25v.__all__}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield every exported function, and every method and property of an exported class."""
    for name, value in EXPORTED.items():
        if inspect.isfunction(value):
            yield name, value
            continue
        for parent in value.__mro__:
            if parent.__module__.startswith("bm25v."):
                for member, definition in vars(parent).items():
                    function = as_function(definition)
                    if not member.startswith("_") and function is not None:
                        yield f"{name}.{member}", function


def as_function(definition: object) -> Callable[..., Any] | None:
    if isinstance(definition, property):
        return definition.fget
    if isinstance(definition, functools.cached_property):
        return definition.func
    function = getattr(definition, "__func__", definition)
    return function if inspect.isfunction(function) else None


def annotated_classes(annotation: Any) -> Iterator[type]:
    """Yield the classes that an annotation is made of."""
    parts = [annotation, typing.get_origin(annotation)]
    yield from (part for part in parts if isinstance(part, type))
    for argument in typing.get_args(annotation):
        yield from annotated_classes(argument)


def resolve_annotations(value: Any) -> dict[str, Any]:
    modules = (words, duplicates, explanation, naming)
    imported_for_types = {name: kind for module in modules for name, kind in vars(module).items()}
    hints = typing.get_type_hints(value, localns={"pandas": pandas, **imported_for_types})
    return {name: hint for name, hint in hints.items() if not name.startswith("_")}


def test_exported_names_are_all_there_and_sorted() -> None:
    assert bm25v.__all__ == sorted(bm25v.__all__)
    for name in bm25v.__all__:
        assert getattr(bm25v, name).__name__ == name
    assert len(bm25v.__all__) <= 35  # what people use; the rest is in the modules


def test_dir_lists_every_exported_name_without_importing_anything() -> None:
    assert set(bm25v.__all__) <= set(dir(bm25v))
    script = "import sys, bm25v; assert 'Gallery' in dir(bm25v) and 'numpy' not in sys.modules"
    run_python(script)


def test_the_python_reference_has_every_exported_name() -> None:
    assert documented_values()


def documented_values() -> list[Any]:
    """Return what the pages of the Python reference describe."""
    pages = [page.read_text(encoding="utf-8") for page in ROOT.glob("docs/reference/python/*.md")]
    named = re.findall(r"^::: (bm25v\.[\w.]+)$", "\n".join(pages), flags=re.MULTILINE)
    assert len(named) == len(set(named))
    assert "bm25v.errors" in named
    raised = {name for name, value in EXPORTED.items() if value.__module__ == "bm25v.errors"}
    exported = {f"bm25v.{name}" for name in set(bm25v.__all__) - raised}
    assert {name for name in named if name.count(".") == 1} == exported | {"bm25v.errors"}
    return [pkgutil.resolve_name(name) for name in named]


def test_everything_public_has_a_docstring_and_annotations() -> None:
    for name, value in EXPORTED.items():
        assert value.__doc__ and value.__doc__[0] != "\n", name
        assert not value.__doc__.startswith(f"{name}("), name  # generated, if there is none
    for name, function in public_functions():
        assert function.__doc__, f"{name} has no docstring"
        signature = inspect.signature(function)
        annotations = [p.annotation for p in signature.parameters.values()]
        is_method = next(iter(signature.parameters), "") in SELF
        annotations = [signature.return_annotation, *annotations[is_method:]]
        assert inspect.Signature.empty not in annotations, f"{name} lacks an annotation"


def test_every_class_in_a_public_annotation_is_documented() -> None:
    documented = documented_values()
    annotated: list[tuple[str, Any]] = [*public_functions(), *EXPORTED.items()]
    missing = {
        f"{name}: {part.__qualname__}"
        for name, value in annotated
        for annotation in resolve_annotations(value).values()
        for part in annotated_classes(annotation)
        if part.__module__.startswith("bm25v") and part not in documented
        if part is not Tensor  # an `ImageInput`: what torch's tensors have
        if name != "Gallery.local"  # the packages above `gallery` read it
    }
    assert missing == set()


def test_the_python_reference_explains_every_alias_in_a_public_signature() -> None:
    page = (ROOT / "docs" / "reference" / "python" / "index.md").read_text(encoding="utf-8")
    classes = [(name, value) for name, value in EXPORTED.items() if isinstance(value, type)]
    named = {
        alias: owner
        for owner, value in (*public_functions(), *classes)
        for alias in aliases_in_annotations(value)
    }
    assert {"Mode", "PathInput", "Progress", "QueryImage"} <= set(named)
    assert {alias: owner for alias, owner in named.items() if f"`{alias}`" not in page} == {}


def aliases_in_annotations(value: Any) -> Iterator[str]:
    """Yield the names in a function's or a class's own annotations that stand for other types."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    parts = [*ast.walk(tree)]
    if isinstance(tree, ast.ClassDef):
        parts = [part for part in tree.body if getattr(part, "name", "")[:1] != "_"]
    annotations = [getattr(part, "annotation", getattr(part, "returns", None)) for part in parts]
    module = vars(sys.modules[value.__module__])
    for annotation in filter(None, annotations):
        for node in ast.walk(annotation):
            name = getattr(node, "id", "")
            is_general = any(hasattr(library, name) for library in (typing, numpy.typing))
            if not is_general and typing.get_origin(module.get(name)) is not None:
                yield name


def test_options_are_keyword_arguments() -> None:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    made_by_users: list[tuple[str, Any]] = [("Query", bm25v.Query), ("Recipe", bm25v.Recipe)]
    for name, function in (*made_by_users, *public_functions()):
        parameters = inspect.signature(function).parameters
        positional = [p for n, p in parameters.items() if p.kind in kinds and n not in SELF]
        assert len(positional) <= 2, f"{name} takes {len(positional)} positional arguments"
        with_default = [p.name for p in positional if p.default is not p.empty]
        assert len(with_default) <= 1, f"{name}: {with_default} should be keyword arguments"


def test_what_users_have_no_business_with_has_an_underscore() -> None:
    """An attribute without one is a field, which the reference lists, or a property."""
    unlisted = set()
    for name, value in EXPORTED.items():
        if isinstance(value, type):
            tree = ast.parse(textwrap.dedent(inspect.getsource(value)))
            stored = {
                node.attr
                for node in ast.walk(tree)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if isinstance(node.value, ast.Name) and node.value.id == "self"
            }
            fields = resolve_annotations(value)
            unlisted |= {f"{name}.{n}" for n in stored - set(fields) if not n.startswith("_")}
    assert unlisted == {"Gallery.store"}  # the packages above `gallery` read it


def test_every_error_has_one_parent() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(classes) > 20
    assert all(issubclass(value, errors.Bm25vError) for value in classes)


def test_importing_and_searching_small_galleries_load_no_torch_and_no_compiler(
    tmp_path: Path,
) -> None:
    script = """
import sys, bm25v
assert not {"numpy", "numba", "torch", "PIL", "onnxruntime"} & set(sys.modules), "at import"
import numpy as np
gallery = bm25v.Gallery.create("g", vocabulary="toy")
gallery.search(np.zeros((9, 9, 3), dtype=np.uint8))
assert not {"numba", "torch"} & set(sys.modules), "at search"
"""
    run_python(script, cwd=tmp_path)


def test_a_search_from_the_shell_imports_nothing_slow_that_it_does_not_need(tmp_path: Path) -> None:
    script = """
import numpy as np
from PIL import Image
import bm25v
gallery = bm25v.Gallery.create("g")
gallery.add({"red": np.full((64, 64, 3), (200, 30, 30), dtype=np.uint8)})
Image.new("RGB", (64, 64), (210, 20, 20)).save("query.png")
"""
    run_python(script, cwd=tmp_path)
    script = """
import sys
from bm25v.__main__ import main
sys.argv = ["bm25v", "search", *sys.argv[1:], "-g", "g"]
main()
slow = "asyncio email filelock importlib.metadata jinja2 multiprocessing numba subprocess tomllib"
print([name for name in (*slow.split(), "torch", "zipfile") if name in sys.modules])
print("onnxruntime" in sys.modules)
"""
    by_image = run_python(script, "query.png", cwd=tmp_path).stdout.splitlines()
    assert by_image[-2:] == ["[]", "True"]
    by_text = run_python(script, "--text", "red flower", cwd=tmp_path).stdout.splitlines()
    assert by_text[-2:] == ["[]", "False"]


def test_versions_agree() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    assert project["project"]["dynamic"] == ["version"]
    assert f"## {bm25v.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_searching_and_explaining_import_no_page_and_no_server(tmp_path: Path) -> None:
    script = """
import sys
import numpy as np
import bm25v
gallery = bm25v.Gallery.create("g", vocabulary="toy")
rng = np.random.default_rng(0)
images = {str(n): rng.integers(0, 256, (32, 32, 3), dtype=np.uint8) for n in range(3)}
gallery.add(images)
(hit, *_) = gallery.search(images["1"], include_query=True)
assert hit.explain(image=images["1"]).parts
print([name for name in sys.modules if name.split(".")[0] in ("jinja2", "fastapi", "starlette")])
parts = ("bm25v.render", "bm25v.server", "bm25v.duplicates", "bm25v.exchange", "bm25v.cli")
print([name for name in sys.modules if name.startswith(parts)])
"""
    assert run_python(script, cwd=tmp_path).stdout == "[]\n[]\n"


def test_a_wheel_holds_all_that_search_needs(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("bm25v-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        members = set(archive.namelist())
    assert {
        "bm25v/py.typed",
        "bm25v/vocabulary/shipped/default/sae.safetensors",
        "bm25v/vocabulary/shipped/default/vocabulary.json",
    } <= members
    patterns = ("**/*.py", "bm25v/render/templates/*.html", "bm25v/*/static/*.*")
    files = {path for pattern in patterns for path in (ROOT / "src").glob(pattern)}
    assert {path.suffix for path in files} == {".py", ".html", ".css", ".js", ".svg"}
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= members


def test_the_architecture_names_every_package_and_files_that_exist() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    table = text.split("## Packages (")[1].split("## Decisions")[0]
    for package in (path.parent for path in ROOT.glob("src/bm25v/*/__init__.py")):
        assert f"`{package.name}/`" in table
    for module in ROOT.glob("src/bm25v/[a-z]*.py"):
        assert f"`{module.name}`" in table or f"`{module.stem}`" in table
    for name in re.findall(r"`((?:\w+/)+\w+\.\w+)`", text):
        assert (ROOT / "src" / "bm25v" / name).is_file() or (ROOT / name).is_file(), name


def test_links_between_documents_lead_somewhere() -> None:
    documents = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
            linked = document.parent / target if target else document
            assert linked.is_file(), f"{document.name} links to {target}"
            if anchor:
                assert anchor in _anchors(linked), f"{document.name} links to #{anchor}"


def _anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", document.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
