"""Boxes around one of two pictures are measured against the pair."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.errors import EvaluationError
from bm25v.gallery import Gallery
from bm25v.research.datasets.dataset import Item
from bm25v.research.regions import held_out, region_recall, side_by_side
from tests import test_cli
from tests.conftest import picture
from tests.test_cli import Run

run = test_cli.run


def test_pairs_are_of_different_classes_and_each_picture_is_drawn_once() -> None:
    items = [Item(Path(f"{n}.png"), "abc"[n % 3]) for n in range(30)]
    pairs = held_out(items, 12, seed=4)
    drawn = [item.path for pair in pairs for item in pair]
    assert len(set(drawn)) == 24
    assert all(one.label != other.label for one, other in pairs)
    assert held_out(items, 12, seed=4) == pairs != held_out(items, 12, seed=5)
    with pytest.raises(
        EvaluationError, match=r"30 pictures make 1\d pairs of different classes, not 16"
    ):
        held_out(items, 16)
    with pytest.raises(EvaluationError, match="make 0 pairs"):
        held_out([Item(Path("a"), "x"), Item(Path("b"), "x")], 1)


def test_boxes_are_around_the_pictures() -> None:
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255)]
    shapes = [(30, 60), (80, 40), (50, 50)]
    flat = [np.full((*s, 3), c, dtype=np.uint8) for s, c in zip(shapes, colours, strict=True)]
    row, boxes = side_by_side(flat)
    for (x, y, width, height), colour in zip(boxes, colours, strict=True):
        left, right = round(x * row.shape[1]), round((x + width) * row.shape[1])
        assert (y, height) == (0, 1)
        assert (row[:, left:right] == colour).all()


def test_a_box_is_right_where_the_whole_is_not(tmp_path: Path) -> None:
    """Of two classes as different as can be, a box sees one, and the whole sees something else."""
    folder = two_classes(tmp_path / "photos")
    items = [Item(path, path.parent.name) for path in sorted(folder.glob("*/*.png"))]
    pairs = held_out(items, 4)
    drawn = {item.path for pair in pairs for item in pair}
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add([item.path for item in items if item.path not in drawn])
        found = region_recall(gallery, pairs, k=1)
    assert (found.pairs, found.k, found.mode) == (4, 1, "two-stage")
    assert found.box.mean == 1
    assert found.whole.mean <= 0.5, "one hit has one class"
    assert found.gain.mean == 1 / found.whole.mean >= 2
    assert 1 < found.gain.low <= found.gain.mean <= found.gain.high


def two_classes(folder: Path) -> Path:
    for label, base in (("dark", 0), ("light", 200)):
        (folder / label).mkdir(parents=True)
        for seed in range(12):
            pixels = np.asarray(picture(seed)) // 5 + np.uint8(base)
            Image.fromarray(pixels).save(folder / label / f"{seed}.png")
    return folder


def test_measuring_from_the_shell(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_classes(tmp_path / "photos")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    data = Path("../photos")
    options = ("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 4)
    found = run(*options, "--k", 1, "--json").json
    assert {name: found[name] for name in ("pairs", "k", "mode", "seed")} == {
        "pairs": 4,
        "k": 1,
        "mode": "two-stage",
        "seed": 0,
    }
    assert found["box"] == {"mean": 1, "low": 1, "high": 1}
    assert found["whole"]["mean"] <= 0.5
    assert found["gain"]["mean"] == pytest.approx(1 / found["whole"]["mean"])
    assert found == run(*options, "--k", 1, "--json").json
    shown = run(*options, "--k", 1, "--seed", 3, "--mode", "sparse")
    assert "4 pairs, sparse; the right class among the first 1 hits:" in shown.out
    assert re.search(r"a box is right \d+\.\d\d \(.* to .*\) times as often", shown.out)


def test_wrong_measurements_are_refused(tmp_path: Path, run: Run) -> None:
    data = two_classes(tmp_path / "photos")
    many = run("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 50)
    assert (many.code, many.out) == (1, "")
    assert "24 pictures make 12 pairs of different classes, not 50" in many.err
    assert run("evaluate", "regions").code == 2
    assert "Missing option '--data'" in run("evaluate", "regions").err
    assert "box around either picture" in run("evaluate", "regions", "--help").out
    (data / "dark" / "0.png").write_bytes((data / "dark" / "0.png").read_bytes()[:200])
    torn = run("evaluate", "regions", "--data", data, "--vocabulary", "toy", "--pairs", 12)
    assert (torn.code, torn.out) == (1, "")
    assert "dark/0.png: " in torn.err
    assert "take it out of the data set" in torn.err
