"""Images in the terminal, as coloured text."""

import re
from pathlib import Path

import numpy as np
import pytest

from bm25v.cli.show import draw_half_blocks
from tests import test_cli
from tests.conftest import make_pixels
from tests.terminal import needs_terminal, show
from tests.test_cli import Run

run, indexed = test_cli.run, test_cli.indexed


def test_half_blocks_stay_within_their_lines() -> None:
    tall = np.zeros((90, 20, 3), np.uint8)
    lines = draw_half_blocks(tall, columns=18, max_lines=9).plain.splitlines()
    assert (len(lines), {len(line) for line in lines}) == (9, {4})


def test_half_blocks_have_the_colours_of_the_image() -> None:
    shown = draw_half_blocks(make_pixels(3), columns=10, max_lines=5)
    colours = [span.style.color.get_truecolor() for span in shown.spans]  # type: ignore[union-attr]
    assert len(colours) == 10 * 5
    means = np.mean([(c.red, c.green, c.blue) for c in colours], axis=0)
    upper_rows = np.concatenate([make_pixels(3)[y : y + 6] for y in range(0, 64, 13)])
    assert np.abs(means - upper_rows.mean(axis=(0, 1))).max() < 20


def test_without_a_terminal_search_prints_the_table_and_says_so(indexed: Run, photos: Path) -> None:
    plain = indexed("search", photos / "3.png", "-k", 2)
    shown = indexed("search", photos / "3.png", "-k", 2, "--show")
    assert shown.err == "note: this terminal has no colours to show images with: use -o\n"
    assert shown.out.splitlines()[:3] == plain.out.splitlines()[:3]


def test_thumbnails_have_captions_and_a_missing_file_a_reason(
    indexed: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    hits = indexed("search", photos / "3.png", "-k", 6, "--json").json["hits"]
    Path(hits[4]["path"]).unlink()
    outcome = indexed("search", photos / "3.png", "-k", 6, "--show")
    assert outcome.code == 0
    assert len(hits) == 6
    for hit in hits:
        assert f"photos/{Path(hit['path']).name}" in outcome.out
    assert "does not exist" in outcome.out


@needs_terminal
def test_half_blocks_fit_eighty_columns(indexed: Run, photos: Path, tmp_path: Path) -> None:
    query = ("search", "photos/3.png", "-k", 5, "--show")
    shown = show(*query, folder=tmp_path, columns=80, COLORTERM="truecolor")
    assert shown.code == 0
    lines = shown.text.splitlines()
    assert max(map(len, lines)) <= 80
    assert sum("▀" in line for line in lines) == 2 * 12
    assert re.search(r"1 \d\.\d+ +2 \d\.\d+ +3 \d\.\d+ *\n", shown.text)
