"""The package as a whole: what it exports, what importing it costs, how it is described."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import bm25v
from bm25v import errors

ROOT = Path(__file__).parent.parent


def test_exported_names_are_all_there_and_sorted() -> None:
    assert bm25v.__all__ == sorted(bm25v.__all__)
    for name in bm25v.__all__:
        assert getattr(bm25v, name).__name__ == name
    raised = {n for n, v in vars(errors).items() if isinstance(v, type)}
    assert raised <= set(bm25v.__all__)


def test_the_tree_of_errors_names_every_error() -> None:
    assert errors.__doc__ is not None
    for name, value in vars(errors).items():
        if isinstance(value, type):
            assert name in errors.__doc__
            assert issubclass(value, errors.Bm25vError)


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
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=True)


def test_versions_agree() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    assert project["project"]["dynamic"] == ["version"]
    assert f"## {bm25v.__version__}" in (ROOT / "CHANGELOG.md").read_text()


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
    patterns = ("**/*.py", "bm25v/pages/templates/*.html", "bm25v/pages/static/*.*")
    files = {path for pattern in patterns for path in (ROOT / "src").glob(pattern)}
    assert {path.suffix for path in files} == {".py", ".html", ".css", ".js"}
    assert {path.relative_to(ROOT / "src").as_posix() for path in files} <= members


def test_the_architecture_names_every_module_and_no_other() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    tree = text.split("## Packages (")[1].split("## Packages in detail")[0]
    modules = {path for path in ROOT.glob("src/bm25v/**/*.py") if path.stem[0] != "_"}
    named = set(re.findall(r"\b[a-z][a-z0-9_]*\.py\b", tree))
    assert named <= {path.name for path in modules}
    grouped = ("cli", "formats", "systems", "datasets", "bench")  # described by their package
    missing = {
        path.name for path in modules if path.parent.name not in grouped and path.name not in named
    }
    assert {name for name in missing if not name.endswith("_page.py")} == set()
    for package in (path.parent for path in ROOT.glob("src/bm25v/*/__init__.py")):
        assert f"\n{package.name}/" in tree


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
