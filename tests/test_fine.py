"""Finer maps: only when they are drawn, of the same values, and where small subjects are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.backbones.toy import ToyBackbone
from bm25v.explain import explanation as explanations
from bm25v.explain.groups import Grid
from bm25v.explain.heatmaps import combine_maps
from bm25v.explain.maps import encode_tiles, join_tiles
from bm25v.gallery import Gallery
from tests.lexicons import save_vocabulary


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each forward pass."""
    forward, counted = ToyBackbone.forward, []

    def count(self: ToyBackbone, pixels: Any) -> Any:
        counted.append(1)
        return forward(self, pixels)

    monkeypatch.setattr(ToyBackbone, "forward", count)
    return counted


def test_a_second_pass_is_made_only_when_it_is_needed_and_once(
    gallery: Gallery, photos: Path, passes: list[int]
) -> None:
    hits = gallery.search(photos / "3.png", k=3)
    passes.clear()
    explained = hits.explain()
    assert len(passes) == 3, "the hits"
    for explanation in explained.explanations:
        assert explanation.fine is explanation.fine
    assert len(passes) == 3 + 3 * 4 + 4, "tiles of each hit, and once of the query"


def test_values_stay_and_maps_are_finer(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain([photos / "3.png", photos / "5.png"], photos / "4.png")
    fine = explanation.fine
    assert fine.fine is fine
    assert fine.match == explanation.match
    assert fine.parts == explanation.parts
    assert fine.sentence == explanation.sentence
    n_maps = 0
    for group, finer in zip(explanation.groups, fine.groups, strict=True):
        assert finer._replace(in_queries=(), in_hit=None) == group._replace(
            in_queries=(), in_hit=None
        )
        for grid, sharp in zip(
            (group.in_hit, *group.in_queries), (finer.in_hit, *finer.in_queries), strict=True
        ):
            assert (grid is None) == (sharp is None)
            if grid is not None and sharp is not None:
                n_maps += 1
                assert sharp.shape == (14, 14)
                assert sharp.min() >= 0 < sharp.max()
                around = np.pad(grid, 1, mode="edge")
                near = sum(around[y : y + 7, x : x + 7] for y in range(3) for x in range(3))
                assert not sharp[np.kron(near, np.ones((2, 2))) == 0].any(), "where it was not"
    assert n_maps > 3


def test_only_the_region_of_a_query_is_lit(gallery: Gallery, photos: Path) -> None:
    region = (0, 0, 3 / 7, 1)
    explanation = gallery.explain(photos / "4.png", photos / "4.png", region=region)
    for group in explanation.fine.groups:
        for grid in group.in_queries:
            assert grid is None or grid[:, 8:].max() == 0


def square(row: int, column: int, colour: int = 0) -> Any:
    """A grey photo with a square of one colour."""
    pixels = np.full((224, 224, 3), 128, np.uint8)
    inside = np.s_[row * 32 : (row + 1) * 32, column * 32 : (column + 1) * 32]
    pixels[inside] = np.roll((255, 0, 0), colour)
    return pixels


@pytest.mark.parametrize(("row", "column"), [(0, 0), (1, 5), (3, 3), (6, 6)])
def test_the_map_of_a_small_subject_is_where_it_is(
    make_gallery: Any, row: int, column: int
) -> None:
    gallery = make_gallery("squares")
    hit = square(row, column)
    gallery.add({**{str(n): square(n, 6 - n, n % 3) for n in range(7)}, "hit": hit})
    explanation = gallery.explain(square(5, 2), "hit", image=hit)
    fine = find_map(explanation.fine)
    y, x = np.unravel_index(int(fine.argmax()), fine.shape)
    assert (int(y) // 2, int(x) // 2) == (row, column)
    inside = fine[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].sum() / fine.sum()
    assert inside > 0.5


def find_map(explanation: explanations.Explanation) -> Grid:
    _, in_hit = combine_maps(explanation)
    assert in_hit is not None
    return in_hit


def test_tiles_join_without_seams_and_where_they_are() -> None:
    joined = join_tiles(np.full(4 * 49, 2.5, np.float32), (7, 7))
    np.testing.assert_allclose(joined, 2.5, rtol=1e-6)
    y, x = np.mgrid[0:224, 0:224] / 223
    slope = np.dstack([255 * x, 255 * y, 0 * x]).astype(np.uint8)
    patches_pd = encode_tiles(ToyBackbone(), slope)
    across = join_tiles(patches_pd[:, 0].astype(np.float32), (7, 7))
    assert (np.diff(across, axis=1) >= -1e-3).all(), "it grows from the left to the right"
    for shape in ((1, 900, 3), (900, 1, 3), (1, 1, 3)):
        assert len(encode_tiles(ToyBackbone(), np.zeros(shape, np.uint8))) == 4 * 49


def test_terms_have_finer_maps_and_those_against_a_hit_too(photos: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary=save_vocabulary(tmp_path / "mine"))
    gallery.add(photos)
    signs = set()
    for hit in gallery.search(text="cat dog", k=12):
        for group in hit.explain().fine.groups:
            assert group.in_hit is not None
            assert group.in_hit.shape == (14, 14)
            assert group.in_hit.min() >= 0
            signs.add(group.value > 0)
    assert signs == {True, False}


def test_there_is_no_second_pass_if_a_file_cannot_be_read_or_patches_are_small(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "4.png").unlink()
    without_hit = gallery.explain(photos / "3.png", photos / "4.png").fine
    assert all(group.in_hit is None for group in without_hit.groups)
    assert {g.shape for group in without_hit.groups for g in group.in_queries if g is not None} == {
        (14, 14)
    }
    monkeypatch.setattr(explanations, "_FINE", 7)
    explanation = gallery.explain(photos / "3.png", photos / "5.png")
    assert explanation.fine is explanation
