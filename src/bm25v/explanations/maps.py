"""Where words are in the images of an explanation: all of them together, and numbered.

In: an `Explanation`. Out: grids, and positions as shares of an image's sides. Not this module's
job: pixels (`heatmaps`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bm25v.explanations.explanation import Explanation, Grid

PINS = 3  # words that are numbered in both images
_PIN_DISTANCE = 0.12  # of a side, between two numbers


class Pin(NamedTuple):
    """The number of a word, and where it stands on an image, as shares of its sides."""

    number: int
    x: float
    y: float


def combine_maps(explanation: Explanation) -> tuple[tuple[Grid, ...], Grid | None]:
    """Return where all matching words are together: in each image of the query, and in the hit.

    Each word with a positive contribution spreads it over the patches where the word is active, so
    that the hit's grid sums to the positive contributions.
    """
    positive = [part for part in explanation.parts if part.word.contribution > 0]
    in_queries = tuple(
        spread_contributions([(part.word.contribution, part.in_queries[n]) for part in positive])
        for n in range(len(explanation.query_images))
    )
    if explanation.hit_image is None:
        return in_queries, None
    in_hit = [(p.word.contribution, p.in_hit) for p in positive if p.in_hit is not None]
    return in_queries, spread_contributions(in_hit)


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


def pin_query(explanation: Explanation, n: int) -> list[Pin]:
    """Return the numbers of the first words in an image of the query that has most of them."""
    first = explanation.parts[:PINS]
    return place_pins([part.in_query if part.best_query == n else None for part in first])


def pin_hit(explanation: Explanation) -> list[Pin]:
    """Return the numbers of the first words in the hit."""
    return place_pins([part.in_hit for part in explanation.parts[:PINS]])
