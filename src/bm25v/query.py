"""A person's wish in, weighted words out.

Today a wish is a picture: its words count once each, however strong (the paper's presence).
Not this room's job: statistics, scores.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import Bag


class Query(NamedTuple):
    """Words, ascending and each once, how much each counts, and how strong it is in the query."""

    words: NDArray[np.int32]
    weights: NDArray[np.float64]
    frequencies: NDArray[np.float64]


def from_bag(bag: Bag) -> Query:
    """Return the query that a picture's bag stands for.

    >>> query = from_bag(Bag(np.array([3, 9], np.int32), np.array([150, 20], np.uint16)))
    >>> query.words.tolist(), query.weights.tolist(), query.frequencies.tolist()
    ([3, 9], [1.0, 1.0], [1.5, 0.2])
    """
    return Query(bag.words, np.ones(len(bag.words)), bag.frequencies)
