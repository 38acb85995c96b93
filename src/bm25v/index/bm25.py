"""BM25 as it is written (paper, equations 1 and 2): slow, plain, and right.

Every faster way must give these scores and this order. Words are summed in ascending order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.vocabulary.bag import Bag

K1 = 1.5
B = 0.75


class WeightedWords(NamedTuple):
    """What a query becomes: its words, ascending, the weight of each and its tf in the query."""

    words: NDArray[np.int32]
    weights: NDArray[np.float64]
    frequencies: NDArray[np.float64]

    @classmethod
    def from_bag(cls, bag: Bag) -> "WeightedWords":
        """Return the query of an image's bag: each word has weight 1.

        >>> query = WeightedWords.from_bag(
        ...     Bag(np.array([3, 9], np.int32), np.array([150, 20], np.uint16))
        ... )
        >>> query.words.tolist(), query.weights.tolist(), query.frequencies.tolist()
        ([3, 9], [1.0, 1.0], [1.5, 0.2])
        """
        return cls(bag.words, np.ones(len(bag.words)), bag.frequencies)


def scores(bags: Sequence[Bag], query: WeightedWords) -> list[float | None]:
    """Return each bag's score, or None where it shares no word with the query.

    >>> bags = [Bag(np.array([1, 4], np.int32), np.array([100, 300], np.uint16)),
    ...         Bag(np.array([2], np.int32), np.array([200], np.uint16))]
    >>> wish = WeightedWords(np.array([4], np.int32), np.array([1.0]), np.array([1.0]))
    >>> [score and round(score, 4) for score in scores(bags, wish)]
    [1.0664, None]
    """
    n = len(bags)
    lengths = [float(bag.tf.sum(dtype=np.int64)) / 100 for bag in bags]
    average = float(sum(int(bag.tf.sum(dtype=np.int64)) for bag in bags)) / 100 / max(n, 1)
    found: list[float | None] = [None] * n
    for word, weight in zip(query.words.tolist(), query.weights.tolist(), strict=True):
        df = sum(word in bag.words for bag in bags)
        idf = float(np.log(1 + (n - df + 0.5) / (df + 0.5)))
        for i, bag in enumerate(bags):
            for tf in bag.frequencies[bag.words == word].tolist():
                saturation = tf * (K1 + 1) / (tf + K1 * (1 - B + B * lengths[i] / average))
                found[i] = (found[i] or 0.0) + weight * idf * saturation
    return found


def search(bags: Sequence[Bag], query: WeightedWords, k: int) -> list[tuple[int, float]]:
    """Return the k best (bag number, score), best first, ties to the lower number."""
    found = [(i, score) for i, score in enumerate(scores(bags, query)) if score is not None]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))[:k]
