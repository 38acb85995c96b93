"""Searches with a region around one of two images, compared with both images."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.errors import EvaluationError
from bm25v.research.datasets import Item, load
from bm25v.research.tasks import draw_class_pairs, join_side_by_side, measure_region_recall
from tests import test_cli
from tests.conftest import make_image
from tests.test_cli import Run

run = test_cli.run


def test_pairs_have_different_classes_and_each_image_is_drawn_once() -> None:
    items = [Item(Path(f"{n}.png"), "abc"[n % 3]) for n in range(30)]
    pairs = draw_class_pairs(items, 12)
    drawn = [item.path for pair in pairs for item in pair]
    assert len(set(drawn)) == 24
    assert all(first.label != second.label for first, second in pairs)
    assert draw_class_pairs(items, 12) == pairs
    with pytest.raises(EvaluationError, match=r"30 images give only 1\d pairs .* not 16: add"):
        draw_class_pairs(items, 16)
    with pytest.raises(EvaluationError, match="give only 0 pairs"):
        draw_class_pairs([Item(Path("a"), "x"), Item(Path("b"), "x")], 1)


def test_regions_surround_the_joined_images() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    shapes = [(30, 60), (80, 40), (50, 50)]
    flat = [np.full((*s, 3), c, dtype=np.uint8) for s, c in zip(shapes, colours, strict=True)]
    row, regions = join_side_by_side(flat)
    for (x, y, width, height), colour in zip(regions, colours, strict=True):
        left, right = round(x * row.shape[1]), round((x + width) * row.shape[1])
        assert (y, height) == (0, 1)
        assert (row[:, left:right] == colour).all()


def test_a_region_finds_its_class_where_the_joined_image_does_not(tmp_path: Path) -> None:
    """The classes are very different: a region sees one of them, the joined image a mixture."""
    dataset = load("folder", two_classes(tmp_path / "photos"))
    recall = measure_region_recall(dataset, vocabulary="toy", pairs=4, k=1)
    assert (recall.pairs, recall.k, recall.mode) == (4, 1, "hybrid")
    assert recall.box.mean == 1
    assert recall.whole.mean <= 0.5, "one hit has one class"
    assert recall.gain.mean == 1 / recall.whole.mean >= 2
    assert 1 < recall.gain.low <= recall.gain.mean <= recall.gain.high


def two_classes(folder: Path) -> Path:
    for label, base in (("dark", 0), ("light", 200)):
        (folder / label).mkdir(parents=True)
        for seed in range(12):
            pixels = np.asarray(make_image(seed)) // 5 + np.uint8(base)
            Image.fromarray(pixels).save(folder / label / f"{seed}.png")
    return folder


def test_the_command_prints_json_and_text(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_classes(tmp_path / "photos")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = Path("../photos")
    options = ("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 4)
    printed = run(*options, "--json").json
    assert (printed["pairs"], printed["k"], printed["mode"]) == (4, 5, "hybrid")
    assert printed["box"] == {"mean": 1, "low": 1, "high": 1}
    assert printed["gain"]["mean"] == pytest.approx(1 / printed["whole"]["mean"])
    assert printed == run(*options, "--json").json
    shown = run(*options, "--mode", "sparse")
    assert "4 pairs, sparse; the right class among the first 5 hits:" in shown.out
    assert re.search(r"a box is right \d+\.\d\d \(.* to .*\) times as often", shown.out)


def test_the_command_refuses_impossible_measurements(tmp_path: Path, run: Run) -> None:
    data = two_classes(tmp_path / "photos")
    many = run("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 50)
    assert (many.code, many.out) == (1, "")
    assert "24 images give only 12 pairs of different classes, not 50" in many.err
    assert "add images, or lower --pairs" in many.err
    assert run("evaluate", "regions").code == 2
    assert "Missing option '--data'" in run("evaluate", "regions").err
    assert "box around either image" in run("evaluate", "regions", "--help").out
    (data / "dark" / "0.png").write_bytes((data / "dark" / "0.png").read_bytes()[:200])
    torn = run("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 12)
    assert (torn.code, torn.out) == (1, "")
    assert "dark/0.png: " in torn.err
    assert "remove it from the data set" in torn.err
