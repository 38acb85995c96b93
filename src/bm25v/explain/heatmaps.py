"""Where words are in images: grids of patches, combined, highlighted and numbered.

A highlighted image keeps its colours where a grid is active; the rest is grey. A grid covers the
whole image, whatever its shape: backbones see images resized to a square.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.explain.explanation import Explanation, Grid, Pixels, TermMap

Floats = NDArray[np.float32]

_PINS = 3  # words that are numbered in both images
_PIN_DISTANCE = 0.12  # of a side, between two numbers
_LUMA = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
# The rest is a grey veil of low contrast, neither dark nor light: both stand out against it.
_VEIL, _VEIL_GREY = 0.7, 100
_VISIBLE = 0.08  # of the peak: below, there is no colour
_FULL = 0.55  # of the peak: above, there is nothing but colour
_LAYER_SIDE = 56  # pixels


def upsample(grid: NDArray[np.floating], *, width: int, height: int) -> Floats:
    """Return the grid at an image's size, as shares of its peak between 0 and 1.

    Patches below 0, which count against something, have 0.

    >>> share = upsample(np.array([[0.0, 0.0], [0.0, 2.5]]), width=40, height=30)
    >>> share.shape, round(float(share[28, 38]), 1), round(float(share[2, 2]), 1)
    ((30, 40), 1.0, 0.0)
    """
    peak = float(grid.max(initial=0))
    if peak <= 0:
        return np.zeros((height, width), dtype=np.float32)
    shares = Image.fromarray((np.maximum(grid, 0) / peak).astype(np.float32))
    large = shares.resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(large, dtype=np.float32), 0, 1)  # bicubic overshoots


def highlight(image_hwc: Pixels, grid: NDArray[np.floating], strength: float = 1.0) -> Pixels:
    """Return the image in its colours where the grid is active, under a grey veil elsewhere.

    `strength`, from 0 to 1, is how much of the colours is shown: less of them for a weak match.

    >>> blue = np.full((20, 20, 3), (0, 0, 255), dtype=np.uint8)
    >>> grid = np.array([[0.0, 1.0]])
    >>> highlight(blue, grid)[10, [1, 18]].tolist()
    [[75, 75, 75], [0, 0, 255]]
    >>> highlight(blue, grid, strength=0.5)[10, 18].tolist()
    [37, 37, 165]
    """
    height, width = image_hwc.shape[:2]
    opacity_hw1 = _opacity(upsample(grid, width=width, height=height), strength)[..., None]
    pixels = image_hwc.astype(np.float32)
    grey_hw1 = (pixels @ _LUMA)[..., None]
    veiled_hw1 = _VEIL * _VEIL_GREY + (1 - _VEIL) * grey_hw1
    mixed = veiled_hw1 * (1 - opacity_hw1) + pixels * opacity_hw1
    return np.clip(mixed, 0, 255).astype(np.uint8)


def make_mask(grid: NDArray[np.floating], strength: float = 1.0) -> Pixels:
    """Return how much of the colours is shown, from 0 to 255; small, as it is smooth.

    >>> mask = make_mask(np.array([[0.0, 0.0], [0.0, 2.5]]), strength=0.6)
    >>> mask.shape, int(mask[0, 0]), int(mask[-1, -1])
    ((56, 56), 0, 153)
    """
    height, width = (max(_LAYER_SIDE, 3 * cells) for cells in grid.shape)
    share_hw = upsample(grid, width=width, height=height)
    return (255 * _opacity(share_hw, strength)).round().astype(np.uint8)


def _opacity(share_hw: Floats, strength: float) -> Floats:
    """Rise smoothly from 0 at `_VISIBLE` to the strength at `_FULL`."""
    x: Floats = np.clip((share_hw - _VISIBLE) / (_FULL - _VISIBLE), 0, 1)
    return strength * x * x * (3 - 2 * x)


class Pin(NamedTuple):
    """The number of a word, and its position on an image, as shares of the sides."""

    number: int
    x: float
    y: float


class Photo(NamedTuple):
    """An image of an explanation; `grid` is where all matching words are together."""

    role: str  # "Query" or "Hit"
    path: str
    pixels: Pixels
    grid: Grid
    pins: list[Pin]


def list_photos(explanation: Explanation) -> Iterator[Photo]:
    """Yield each image of the query, then the hit if its file can be read.

    The first words are numbered, those of a text if it has no image beside it. A word is numbered
    only in the image of the query that has most of it.
    """
    in_queries, in_hit = combine_maps(explanation)
    paths, first = dict(enumerate(explanation.query_paths)), explanation.parts[:_PINS]
    for n, (pixels, grid) in enumerate(zip(explanation.query_images, in_queries, strict=True)):
        pins = place_pins([part.in_query if part.best_query == n else None for part in first])
        yield Photo("Query", paths.get(n, ""), pixels, grid, pins)
    if explanation.hit_image is not None and in_hit is not None:
        grids = [part.in_hit for part in first]
        if explanation.is_text_alone:
            grids = [t.in_hit if t.part.value > 0 else None for t in explanation.terms[:_PINS]]
        pins = place_pins(grids)
        yield Photo("Hit", explanation.hit_path, explanation.hit_image, in_hit, pins)


def combine_maps(explanation: Explanation) -> tuple[tuple[Grid, ...], Grid | None]:
    """Return where all matching words are together: in each image of the query, and in the hit.

    Each word with a positive contribution spreads it over the patches where the word is active, so
    that the hit's grid sums to the positive contributions. For a text alone, see `combine_terms`.
    """
    if explanation.is_text_alone:
        return (), None if explanation.hit_image is None else combine_terms(explanation.terms)
    positive = [part for part in explanation.parts if part.word.contribution > 0]
    in_queries = tuple(
        spread_contributions([(part.word.contribution, part.in_queries[n]) for part in positive])
        for n in range(len(explanation.query_images))
    )
    if explanation.hit_image is None:
        return in_queries, None
    grids = [(p.word.contribution, p.in_hit) for p in positive if p.in_hit is not None]
    return in_queries, spread_contributions(grids)


def combine_terms(terms: Sequence[TermMap]) -> Grid:
    """Return where the words of a text that count for a hit are; everywhere if that is not known.

    The peak of each is what it adds to the score: a small object is not brighter than a large one.
    """
    positive = [(term.part.value, term.in_hit) for term in terms if term.part.value > 0]
    known = [(value, np.maximum(grid, 0)) for value, grid in positive if grid is not None]
    if not known:
        return np.full((1, 1), bool(positive), dtype=np.float32)
    shares = [value * grid / max(float(grid.max()), 1e-12) for value, grid in known]
    return np.asarray(np.sum(shares, axis=0), dtype=np.float32)


def spread_contributions(grids: Sequence[tuple[float, Grid]]) -> Grid:
    """Return the sum of contributions, each spread over the patches where its word is active.

    >>> spread_contributions(
    ...     [(6.0, np.array([[1, 2]], np.float32)), (1.0, np.array([[0, 5]], np.float32))]
    ... )
    array([[2., 5.]], dtype=float32)
    """
    if not grids:
        return np.zeros((1, 1), dtype=np.float32)
    shares = [value * grid / max(float(grid.sum()), 1e-12) for value, grid in grids]
    return np.asarray(np.sum(shares, axis=0), dtype=np.float32)


def place_pins(grids: Sequence[Grid | None]) -> list[Pin]:
    """Return a number for each grid at its strongest patch; numbers do not cover each other.

    >>> grid = np.array([[0, 0, 0, 0], [0, 0, 3, 0]], np.float32)
    >>> [(pin.number, pin.x, pin.y) for pin in place_pins([grid, None, grid])]
    [(1, 0.625, 0.75), (3, 0.505, 0.75)]
    """
    pins: list[Pin] = []
    for number, grid in enumerate(grids, start=1):
        if grid is None or not grid.any():
            continue
        y, x = (int(position) for position in np.unravel_index(int(grid.argmax()), grid.shape))
        left, top = (x + 0.5) / grid.shape[1], (y + 0.5) / grid.shape[0]
        step = -_PIN_DISTANCE if left > 0.5 else _PIN_DISTANCE
        while any(max(abs(left - p.x), abs(top - p.y)) < 0.99 * _PIN_DISTANCE for p in pins):
            left += step
        pins.append(Pin(number, left, top))
    return pins
