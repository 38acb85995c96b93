"""The library logs under one logger and prints nothing; the command line shows what matters."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from bm25v.gallery import Gallery
from bm25v.index.bm25 import Bm25Parameters
from bm25v.index.searcher import Searcher
from tests.children import run_python
from tests.conftest import make_pixels
from tests.test_docs import blocks

ROOT = Path(__file__).parent.parent


def test_a_program_that_configures_no_logging_sees_nothing() -> None:
    script = """
import logging, bm25v
logging.getLogger("bm25v.training").warning("left out: torn.png")
logging.getLogger("other").warning("shown")
"""
    assert run_python(script).stderr == "shown\n"


def test_every_logger_is_named_after_its_module() -> None:
    named = {
        (path.relative_to(ROOT / "src").as_posix(), name)
        for path in ROOT.glob("src/bm25v/**/*.py")
        for name in re.findall(r"logging\.getLogger\((.*?)\)", path.read_text(encoding="utf-8"))
    }
    assert {(path, name) for path, name in named if name != "__name__"} == {
        ("bm25v/cli/__init__.py", '"bm25v"'),
        ("bm25v/cli/__init__.py", '"bm25v.backbones.downloads"'),
        ("bm25v/exchange/on_ray.py", '"ray.data"'),
        ("bm25v/privacy.py", '"PIL"'),
    }


def test_the_example_of_the_documentation_logs_to_standard_error() -> None:
    page = blocks(ROOT / "docs" / "how-to" / "python-and-notebooks.md")
    (example,) = (block for block in page if block.text.startswith("import logging"))
    done = run_python(f"import bm25v\n{example.text}")
    # On the first use, the download of the backbone is logged before.
    assert re.search(r"^INFO bm25v\.backbones\.onnx: \S", done.stderr, re.MULTILINE)
    assert done.stdout == ""


def test_the_command_line_shows_warnings_and_downloads_only() -> None:
    script = """
import logging, sys
from bm25v.cli import main
sys.argv = ["bm25v", "models", "show", "tinyvit-5m"]
main()
logging.getLogger("bm25v.backbones.downloads").info("downloading")
logging.getLogger("bm25v.training").warning("left out")
"""
    assert run_python(script).stderr == "downloading\nleft out\n"


def test_building_and_extending_an_index_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bm25v")
    rng = np.random.default_rng(0)
    words = np.sort(rng.integers(0, 64, (20_000, 4), dtype=np.uint16))
    tf = np.ones_like(words)
    searcher = Searcher(words[:10_000], tf[:10_000], n_words=64, parameters=Bm25Parameters())
    searcher.build_index()
    searcher.build_index()
    searcher.updated(words, tf).build_index()
    lines = [re.sub(r" in [^ ]*$", "", r.message) for r in caplog.records]
    assert lines == ["indexed 10000 rows from row 0 on", "indexed 20000 rows from row 0 on"]
    assert {record.name for record in caplog.records} == {"bm25v.index.searcher"}


def test_adding_and_compacting_are_logged(
    gallery: Gallery, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "bm25v")
    gallery.add({"a": make_pixels(50)})
    gallery.remove("a")
    gallery.compact()
    added, compacted = (record.message for record in caplog.records)
    assert added.startswith("1 added, 0 updated, 0 removed, 0 failed in ")
    assert re.fullmatch(rf"compacted {gallery.path}: 1 images removed, \d+ bytes", compacted)
