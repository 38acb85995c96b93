"""Code that depends on the operating system is marked; what can be simulated on Linux is tested."""

import ast
import faulthandler
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bm25v.errors import GalleryError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.store.local.rows import RowFile, RowWriter
from bm25v.store.local.writer import Writer
from bm25v.threads import available_cpus
from tests.children import Report, finish, needs_fork, start
from tests.conftest import make_image

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

ROOT = Path(__file__).parent.parent
SOURCES = sorted(ROOT.glob("src/bm25v/**/*.py"))
MARK = re.compile(r"# (Linux|macOS|Windows)(, (Linux|macOS|Windows))*: ")

DIFFERENT = {  # attributes of the standard library that only some systems have, or that tell which
    "os": r"name|fork\w*|sched_\w+|get[eu]?[ug]id|O_(?!RDONLY|WRONLY|RDWR|CREAT|APPEND)\w+"
    "|register_at_fork|statvfs|mkfifo|kill|startfile|uname",
    "sys": "platform|getwindowsversion",
    "platform": "system|uname|win32_ver|mac_ver",
    "signal": r"SIG(?!INT\b|TERM\b)[A-Z]+|alarm|pthread_\w+",
    "errno": r"EDQUOT|WSA\w+",
    "multiprocessing": "get_context|set_start_method",
}
MODULES = {"fcntl", "grp", "msvcrt", "posix", "pwd", "resource", "termios", "winreg"}
SYSTEM_FOLDERS = ("/proc", "/sys", "/dev", "/etc", "/tmp")


def different_nodes(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield what may behave differently on another operating system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if re.fullmatch(DIFFERENT.get(node.value.id, "(?!)"), node.attr):
                yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            asks = node.func.id in ("getattr", "hasattr") and isinstance(node.args[0], ast.Name)
            if asks and getattr(node.args[0], "id", "") in DIFFERENT:
                yield node
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith(SYSTEM_FOLDERS):
                yield node
        elif isinstance(node, ast.Import) and {alias.name for alias in node.names} & MODULES:
            yield node


def test_code_that_depends_on_the_system_is_marked() -> None:
    marked = set()
    for path in SOURCES:
        name, text = path.relative_to(ROOT / "src" / "bm25v").as_posix(), path.read_text("utf-8")
        lines = text.splitlines()
        for node in different_nodes(ast.parse(text)):
            nearby = lines[node.lineno - 2 : node.lineno + 1]
            assert MARK.search("\n".join(nearby)), (
                f"{name}, line {node.lineno}: {nearby[1].strip()}"
            )
        marked |= {name for line in lines if MARK.search(line)}
    assert len(marked) > 3


def test_unmarked_code_for_one_system_would_be_noticed() -> None:
    for code in (
        "if os.name == 'nt': pass",
        "sys.platform.startswith('win')",
        "hasattr(os, 'fork')",
        "getattr(signal, 'SIGBUS', None)",
        "open('/proc/self/status')",
        "import fcntl",
    ):
        assert len([*different_nodes(ast.parse(code))]) >= 1, code
    assert [*different_nodes(ast.parse("os.path.join(os.sep, 'a'); signal.SIGINT"))] == []


def test_text_files_are_read_and_written_with_an_encoding() -> None:
    """Else it depends on the system: UTF-8 on Linux and macOS, an older one on Windows."""
    for path in SOURCES:
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and is_text_file(call):
                names = {keyword.arg for keyword in call.keywords}
                assert "encoding" in names, f"{path.name}, line {call.lineno}"


def is_text_file(call: ast.Call) -> bool:
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    modes = [a.value for a in call.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    is_open = name == "open" and any(re.fullmatch("[rwxa+t]+", mode) for mode in modes)
    has_encoding = name == "read_text" and bool(call.args)  # the first argument is one
    return is_open or (name in ("read_text", "write_text") and not has_encoding)


def test_without_affinities_every_cpu_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr("bm25v.threads.CGROUP_LIMIT", Path("missing"))
    assert available_cpus() == os.cpu_count()


def test_row_files_that_the_system_keeps_are_deleted_by_the_next_writer(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "the file is in use", str(path))

    gallery.remove(photos / "3.png")
    with monkeypatch.context() as windows:
        windows.setattr(Path, "unlink", refuse)
        gallery.compact()
    kept = {path.name for path in gallery.path.glob("*.rows")}
    new = {"bags.1.rows", "full.1.rows", "dense.1.rows"}
    assert kept == {"bags.rows", "full.rows", "dense.rows"} | new
    assert len(gallery.search(photos / "4.png", k=20)) == 10
    gallery.remove(photos / "4.png")
    assert {path.name for path in gallery.path.glob("*.rows")} == new
    assert gallery.problems() == []


def test_names_outside_the_encoding_of_a_pipe_are_printed_as_question_marks(
    photos: Path, tmp_path: Path
) -> None:
    make_image(0).save(photos / "猫.png")
    for arguments, expected in {
        ("index", "photos", "--vocabulary", "toy"): "13 added",
        ("search", "photos/0.png", "-k", "2", "--include-query"): "photos/?.png",
        ("models", "show", "toy"): "56 × 56 pixels ? 7 × 7 patches",
    }.items():
        done = subprocess.run(
            [sys.executable, "-m", "bm25v", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONIOENCODING": "cp1252"},
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode("cp1252")
        assert expected in done.stdout.decode("cp1252")


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="Windows refuses to shorten such a file")
@needs_fork
def test_a_row_file_that_another_program_shortens_ends_the_process(tmp_path: Path) -> None:
    """No writer of bm25v does this: it only cuts off rows that no reader has mapped."""
    file = RowFile(tmp_path / "x.rows", np.dtype([("x", "u1", (65_536,))]))
    file.create()
    writer = RowWriter(file, 0)
    writer.write(0, bytes(2 * 65_536))
    writer.close()

    def read(report: Report) -> None:
        faulthandler.disable()
        rows = file.view(2)
        report()
        os.truncate(file.path, 64)
        rows[1].tobytes()

    assert finish(*start(read)) == (-signal.SIGBUS, 1)


@needs_fork
def test_after_a_fork_both_processes_read_and_write(gallery: Gallery, photos: Path) -> None:
    make_image(20).save(photos / "parent.png")
    assert len(gallery.search(photos / "0.png", k=20)) == 11
    read_end, write_end = os.pipe()

    def work(report: Report) -> None:
        os.read(read_end, 1)
        assert photos / "parent.png" in gallery
        make_image(21).save(photos / "child.png")
        assert gallery.add(photos).added == 1
        assert len(gallery) == 14
        report()

    child = start(work)
    assert gallery.add(photos).added == 1
    os.write(write_end, b".")
    assert finish(*child) == (0, 1)
    assert photos / "child.png" in gallery
    assert gallery.problems() == []


@needs_fork
def test_a_forked_process_neither_uses_nor_closes_the_connection_of_its_parent(
    gallery: Gallery,
) -> None:
    catalog = gallery.local.catalog
    inherited = catalog.db

    def read(report: Report) -> None:
        used = threading.Event()
        inherited.set_trace_callback(lambda statement: used.set())
        assert len(gallery) == 12
        gallery.close()
        assert not used.is_set()
        inherited.execute("SELECT 1")  # still open
        report()

    assert finish(*start(read)) == (0, 1)
    assert len(gallery) == 12
    assert catalog.db is inherited


@needs_fork
def test_after_a_fork_a_closed_gallery_is_closed_and_a_writer_belongs_to_its_parent(
    gallery: Gallery, photos: Path
) -> None:
    with Writer(gallery.path) as writer:

        def write(report: Report) -> None:
            with pytest.raises(InvalidOption, match=r"is written by the parent process"):
                writer.remove(0)
            report()

        assert finish(*start(write)) == (0, 1)
        writer.remove(0)
        writer.commit()
    gallery.close()

    def read(report: Report) -> None:
        with pytest.raises(GalleryError, match="is closed"):
            len(gallery)
        report()

    assert finish(*start(read)) == (0, 1)


@needs_fork
def test_children_of_multiprocessing_search_after_a_fork(gallery: Gallery, photos: Path) -> None:
    """ONNX Runtime has a thread that the child lacks; it must not be needed for a search."""
    script = """
import multiprocessing, sys
import bm25v
gallery, photo = bm25v.Gallery.open_or_create("g"), sys.argv[1]
gallery.add(photo)
def best(path): return gallery.search(path, include_query=True)[0].path
assert best(photo) == photo
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(best, [photo] * 4) == [photo] * 4
assert best(photo) == photo
"""
    arguments = [sys.executable, "-W", "ignore", "-c", script, str(photos / "1.png")]
    subprocess.run(arguments, cwd=photos.parent, check=True, timeout=120)
