"""BM25: the formula (paper, equations 1 and 2), its parameters, statistics and contributions.

`reference_scores` and `reference_search` are the formula as it is written, slow and plain. Every
faster path must return their scores, to the last bit, and their order. For this, all paths add up
the words of a bag in ascending order in float64.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import InvalidOption
from bm25v.vocabulary.bag import SCALE, Bag, dequantise

_LARGEST_K1 = 1e6  # the saturation is linear in tf long before; far larger values overflow
_CHUNK_ROWS = 16_384  # counted at once: they fit into the cache


@dataclass(frozen=True)
class Bm25Parameters:
    """k1: how slowly a word's contribution saturates; b: how much the length of a bag counts.

    >>> Bm25Parameters()
    Bm25Parameters(k1=1.5, b=0.75)
    >>> Bm25Parameters(b=2)
    Traceback (most recent call last):
    bm25v.errors.InvalidOption: b = 2: give a number from 0 to 1
    """

    k1: float = 1.5
    b: float = 0.75

    def __post_init__(self) -> None:
        for name, value, largest in (("k1", self.k1, _LARGEST_K1), ("b", self.b, 1)):
            if not (math.isfinite(value) and 0 <= value <= largest):
                raise InvalidOption(f"{name} = {value}: give a number from 0 to {largest:,.0f}")

    @property
    def largest_saturation(self) -> float:
        """k1 + 1: what the saturation of a word approaches as its tf grows."""
        return self.k1 + 1


DEFAULT_PARAMETERS = Bm25Parameters()


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

    def strongest(self, n: int) -> "WeightedWords":
        """Return the n words whose weights are farthest from 0; of equals, the lower words."""
        return self.select(np.sort(np.argsort(-np.abs(self.weights), kind="stable")[:n]))

    def scaled(self, factor: float) -> "WeightedWords":
        return self._replace(weights=factor * self.weights)

    def select(self, positions: NDArray[np.intp]) -> "WeightedWords":
        words, weights, frequencies = self
        return WeightedWords(words[positions], weights[positions], frequencies[positions])


def reference_scores(
    bags: Sequence[Bag], query: WeightedWords, parameters: Bm25Parameters = DEFAULT_PARAMETERS
) -> list[float | None]:
    """Return each bag's score, or None where it shares no word with the query.

    >>> bags = [Bag(np.array([1, 4], np.int32), np.array([100, 300], np.uint16)),
    ...         Bag(np.array([2], np.int32), np.array([200], np.uint16))]
    >>> query = WeightedWords(np.array([4], np.int32), np.array([1.0]), np.array([1.0]))
    >>> [score and round(score, 4) for score in reference_scores(bags, query)]
    [1.0664, None]
    """
    k1, b, n = parameters.k1, parameters.b, len(bags)
    lengths = [float(bag.tf.sum(dtype=np.int64)) / 100 for bag in bags]
    average = float(sum(int(bag.tf.sum(dtype=np.int64)) for bag in bags)) / 100 / max(n, 1)
    scores: list[float | None] = [None] * n
    for word, weight in zip(query.words.tolist(), query.weights.tolist(), strict=True):
        df = sum(word in bag.words for bag in bags)
        idf = float(np.log(1 + (n - df + 0.5) / (df + 0.5)))
        for i, bag in enumerate(bags):
            for tf in bag.frequencies[bag.words == word].tolist():
                saturation = tf * (k1 + 1) / (tf + k1 * (1 - b + b * lengths[i] / average))
                scores[i] = (scores[i] or 0.0) + weight * idf * saturation
    return scores


def reference_search(
    bags: Sequence[Bag],
    query: WeightedWords,
    k: int,
    parameters: Bm25Parameters = DEFAULT_PARAMETERS,
) -> list[tuple[int, float]]:
    """Return the k best (position in `bags`, score), best first, ties to the lower position."""
    scores = enumerate(reference_scores(bags, query, parameters))
    hits = [(i, score) for i, score in scores if score is not None]
    return sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:k]


@dataclass(frozen=True)
class Statistics:
    """What BM25 needs to know about a set of bags: N, document frequencies and total length."""

    n: int
    df_v: NDArray[np.int64]
    total_length: int  # sum of the stored tf, a whole number, so that updates do not round

    @classmethod
    def empty(cls, n_words: int) -> "Statistics":
        return cls(0, np.zeros(n_words, dtype=np.int64), 0)

    @classmethod
    def count(
        cls, words_nk: NDArray[np.unsignedinteger], tf_nk: NDArray[np.uint16], n_words: int
    ) -> "Statistics":
        """Count bags of fixed width; a slot with tf 0 is empty."""
        df_v = np.zeros(n_words, dtype=np.int64)
        total_length = 0
        for start in range(0, len(words_nk), _CHUNK_ROWS):
            chunk = slice(start, start + _CHUNK_ROWS)
            words, tf = words_nk[chunk].ravel(), tf_nk[chunk].ravel()
            df_v += np.bincount(words if tf.all() else words[tf > 0], minlength=n_words)
            total_length += int(tf.sum(dtype=np.int64))
        return cls(len(words_nk), df_v, total_length)

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.n + other.n, self.df_v + other.df_v, self.total_length + other.total_length
        )

    def __sub__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.n - other.n, self.df_v - other.df_v, self.total_length - other.total_length
        )

    @property
    def n_words(self) -> int:
        return len(self.df_v)

    @property
    def average_length(self) -> float:
        """The mean |d|; 0 if no bag has a word."""
        return self.total_length / SCALE / max(self.n, 1)

    @property
    def average_or_one(self) -> float:
        """The mean |d|, or 1 where it is 0: a divisor that is never 0."""
        return self.average_length or 1.0

    @cached_property
    def idf_v(self) -> NDArray[np.float64]:
        """ln(1 + (N - df + 0.5) / (df + 0.5)) of each word of the vocabulary (equation 2)."""
        df_v = self.df_v
        return np.asarray(np.log(1 + (self.n - df_v + 0.5) / (df_v + 0.5)), dtype=np.float64)

    def idf(self, words: NDArray[np.integer]) -> NDArray[np.float64]:
        return np.asarray(self.idf_v[words], dtype=np.float64)

    def idf_masses(self, words: "WeightedWords") -> NDArray[np.float64]:
        """Return weight · idf of each word; their sum is the query's IDF mass."""
        return words.weights * self.idf(words.words)

    def length_norms(
        self, lengths: NDArray[np.integer], parameters: Bm25Parameters = DEFAULT_PARAMETERS
    ) -> NDArray[np.float64]:
        """Return k1 (1 - b + b |d| / average) for sums of stored tf."""
        k1, b = parameters.k1, parameters.b
        return k1 * (1 - b + b * (lengths / SCALE) / self.average_or_one)


def saturation(
    frequencies: NDArray[np.float64],
    norms: NDArray[np.float64],
    parameters: Bm25Parameters = DEFAULT_PARAMETERS,
) -> NDArray[np.float64]:
    """Return tf (k1 + 1) / (tf + norm): the factor of a word's IDF in the score (equation 1)."""
    return frequencies * (parameters.k1 + 1) / (frequencies + norms)


class Contributions(NamedTuple):
    """What the words that bags share with a query add to their scores, as columns.

    The shared words of one bag after the other, ascending: value = weight · idf · saturation.
    """

    bags: NDArray[np.intp]  # which bag
    positions: NDArray[np.intp]  # which word of the query
    frequencies: NDArray[np.float64]  # tf in the bag
    saturations: NDArray[np.float64]
    values: NDArray[np.float64]

    def select(self, part: slice) -> "Contributions":
        """Return a copy of some of them, such as those of one bag; the others need not be kept."""
        bags, positions, *others = self
        frequencies, saturations, values = (column[part].copy() for column in others)
        copies = (bags[part].copy(), positions[part].copy())
        return Contributions(*copies, frequencies, saturations, values)

    def sum_by_bag(self, amounts: NDArray[np.float64], n_bags: int) -> NDArray[np.float64]:
        """Return the sum of amounts, one for each shared word, for each bag.

        They are added in their order, so that the sums of `values` are scores, to the last bit.
        """
        sums = np.bincount(self.bags, amounts, minlength=n_bags)
        return np.asarray(sums, dtype=np.float64)


def contributions(
    query: WeightedWords,
    words_nk: NDArray[np.integer],
    tf_nk: NDArray[np.uint16],
    statistics: Statistics,
    parameters: Bm25Parameters = DEFAULT_PARAMETERS,
) -> Contributions:
    """Return what each shared word adds to the scores of bags; a slot with tf 0 is empty.

    >>> statistics = Statistics(n=2, df_v=np.array([1, 2, 1]), total_length=600)
    >>> query = WeightedWords(np.array([1, 2]), np.ones(2), np.ones(2))
    >>> words, tf = np.array([[0, 1], [1, 2]]), np.array([[100, 200], [100, 200]], np.uint16)
    >>> shared = contributions(query, words, tf, statistics)
    >>> shared.bags.tolist(), query.words[shared.positions].tolist()
    ([0, 1, 1], [1, 1, 2])
    >>> shared.sum_by_bag(shared.values, 2).round(3).tolist()
    [0.26, 1.173]
    """
    position_v = np.full(statistics.n_words, -1, dtype=np.intp)
    n_known = int(np.searchsorted(query.words, statistics.n_words))  # others are in no bag
    position_v[query.words[:n_known]] = np.arange(n_known)
    bags, slots = np.nonzero((position_v[words_nk] >= 0) & (tf_nk > 0))
    words = words_nk[bags, slots]
    positions = position_v[words]
    frequencies = dequantise(tf_nk[bags, slots])
    norms = statistics.length_norms(tf_nk.sum(axis=1, dtype=np.int64), parameters)
    saturations = saturation(frequencies, norms[bags], parameters)
    values = query.weights[positions] * statistics.idf(words) * saturations
    return Contributions(bags, positions, frequencies, saturations, values)
