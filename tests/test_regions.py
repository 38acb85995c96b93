"""Boxes around one of two pictures are measured against the pair."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.errors import EvaluationError
from bm25v.evaluate.datasets.dataset import Item
from bm25v.evaluate.regions import held_out, region_recall, side_by_side
from bm25v.gallery import Gallery
from tests.conftest import picture


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
    items = []
    for label, base in (("dark", 0), ("light", 200)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for seed in range(12):
            pixels = np.asarray(picture(seed)) // 5 + np.uint8(base)
            path = tmp_path / "photos" / label / f"{seed}.png"
            Image.fromarray(pixels).save(path)
            items.append(Item(path, label))
    pairs = held_out(items, 4)
    drawn = {item.path for pair in pairs for item in pair}
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add([item.path for item in items if item.path not in drawn])
        found = region_recall(gallery, pairs, k=1)
    assert (found.pairs, found.k, found.mode) == (4, 1, "two-stage")
    assert found.box.mean == 1
    assert found.whole.mean <= 0.5, "one hit has one class"
    assert found.gain >= 2
