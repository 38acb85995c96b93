"""The package as a whole: what it exports, what importing it costs, who imports whom."""

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
