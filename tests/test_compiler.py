"""Compiled code depends on its own file alone.

numba's cache recompiles a function when its file changes, and not when other files do. A constant
or function of another file would be compiled in, and stay as it was after that file has changed.
"""

import ast
import os
from pathlib import Path

import pytest

import bm25v
from tests.children import run_python

_SOURCES = Path(bm25v.__file__).parent
_COMPILED = [
    path
    for path in sorted(_SOURCES.rglob("*.py"))
    if "from bm25v.compiler import jit" in path.read_text("utf-8")
]


def foreign_names(source: str) -> dict[str, set[str]]:
    """Return for each compiled function the names in its body that other modules of ours define.

    >>> foreign_names("from bm25v.a import K\\n@jit\\ndef f(x: K):\\n    return x * K + y")
    {'f': {'K'}}
    """
    tree = ast.parse(source)
    imported = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and (node.level or _is_ours(node.module or "")))
        or (isinstance(node, ast.Import) and any(_is_ours(alias.name) for alias in node.names))
        for alias in node.names
    }
    return {
        node.name: imported
        & {name.id for part in node.body for name in ast.walk(part) if isinstance(name, ast.Name)}
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and "jit" in map(ast.unparse, node.decorator_list)
    }


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == "bm25v"


def test_the_files_with_compiled_code_are_known() -> None:
    """If this list is empty or lacks a file, the test below checks too little."""
    names = {path.relative_to(_SOURCES).as_posix() for path in _COMPILED}
    assert {"index/kernels.py", "index/second_stage_kernels.py"} <= names


@pytest.mark.parametrize("path", _COMPILED, ids=lambda path: path.name)
def test_compiled_functions_use_nothing_of_other_files(path: Path) -> None:
    by_function = foreign_names(path.read_text("utf-8"))
    assert by_function, "no function is decorated with @jit"
    assert {name: names for name, names in by_function.items() if names} == {}


@pytest.mark.parametrize("name", ["kernels.py", "second_stage_kernels.py"])
def test_modules_of_kernels_import_only_the_decorator_from_us(name: str) -> None:
    (path,) = (path for path in _COMPILED if path.name == name)
    imports = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or "")
    ]
    assert [ast.unparse(node) for node in imports] == ["from bm25v.compiler import jit"]


def test_no_search_waits_while_another_process_compiles(tmp_path: Path) -> None:
    """Also the first search by compiled code takes less than three seconds."""
    script = f"""
import os, time
os.environ["NUMBA_CACHE_DIR"] = {os.fspath(tmp_path / "numba")!r}
import numpy as np
import bm25v
from bm25v.index import searcher
gallery = bm25v.Gallery.create("g", vocabulary="toy")
rng = np.random.default_rng(0)
gallery.add({{str(i): rng.integers(0, 256, (64, 64, 3), np.uint8) for i in range(4)}})
assert not gallery.local.snapshot().searcher.has_index
searcher.SCANNED_ROWS_BEFORE_INDEX = 0
seconds, paths = [], []
while not gallery.local.snapshot().searcher.has_index:
    start = time.perf_counter()
    paths.append([hit.path for hit in gallery.search("0")])
    seconds.append(time.perf_counter() - start)
    time.sleep(0.05)
assert len(seconds) > 2 and max(seconds) < 3, max(seconds)
assert len(paths[0]) > 0 and paths == [paths[0]] * len(paths)
"""
    run_python(script, cwd=tmp_path)
