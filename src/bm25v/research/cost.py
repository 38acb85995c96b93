"""What a search takes in bytes and operations: the paper's table, from what was counted.

In: document frequencies and the bags of queries. Out: for each system bytes a picture, compression
and operations a query, at this size of the gallery or at any other. Not this room's job: seconds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError
from bm25v.index.bm25 import WeightedWords
from bm25v.vocabulary.bag import Bag

# The paper's settings of the systems it compares with.
HNSW_DEGREE, HNSW_EF = 32, 100
PQ_PARTS, PQ_BYTES, IVF_LISTS, IVF_PROBES = 48, 1, 100, 1
CANDIDATES = 200
ENTRY_BYTES = 6  # a word's number in 4 bytes and its frequency in 2
POSTING_OPERATIONS = 5
"""C, which the paper does not state; its (0.4-2.4) N with 3,240 to 527 active words implies 5."""


@dataclass(frozen=True)
class Usage:
    """How words are used by a gallery and by the queries put to it; means where not whole."""

    pictures: int
    vocabulary: int  # words there are (D_s)
    active: float  # words in any picture (V_active)
    picture_words: float  # of one picture (L0)
    query_words: float
    postings: float  # that one query reads

    @property
    def expected_postings(self) -> float:
        """What a query would read if all active words were equally frequent.

        Queries have frequent words more often than rare ones, so they read more in fact.
        """
        return self.query_words * self.picture_words * self.pictures / self.active

    def at(self, pictures: int) -> "Usage":
        """Project to another size of the gallery: each word keeps its share of the pictures."""
        return replace(
            self,
            pictures=pictures,
            active=float(active_words(pictures, self.picture_words, self.vocabulary)),
            postings=self.postings * pictures / self.pictures,
        )


class Cost(NamedTuple):
    """A line of the table."""

    system: str
    bytes_a_picture: float
    compression: float  # against dense vectors
    operations: float  # a query, by the paper's formula
    counted: float | None  # the same from the postings that queries read, where there are any


class Growth(NamedTuple):
    """How many words are in any picture, while the gallery grows."""

    vocabulary: int
    sizes: list[int]
    measured: list[float]
    expected: list[float]  # if pictures drew words evenly


def usage(
    df_v: NDArray[np.integer], pictures: int, queries: Sequence[Bag | WeightedWords]
) -> Usage:
    """Count how a gallery and its queries use words."""
    active = int((df_v > 0).sum())
    if not active or not queries:
        raise EvaluationError(
            f"{active} words in the gallery and {len(queries)} queries: there is nothing to count"
        )
    return Usage(
        pictures=pictures,
        vocabulary=len(df_v),
        active=active,
        picture_words=float(df_v.sum() / pictures),
        query_words=float(np.mean([len(bag.words) for bag in queries])),
        postings=float(np.mean([df_v[bag.words].sum() for bag in queries])),
    )


def own_usage(df_v: NDArray[np.integer], pictures: int) -> Usage:
    """Count as `usage` does with every picture of the gallery as a query.

    A word is then in as many queries as pictures, so document frequencies say it all.

    >>> found = own_usage(np.array([3, 1, 0]), pictures=3)
    >>> found.postings, found.active, round(found.query_words, 2)  # (3·3 + 1·1) / 3
    (3.3333333333333335, 2, 1.33)
    """
    df = df_v.astype(np.float64)
    active = int((df_v > 0).sum())
    if not active:
        raise EvaluationError(f"{pictures:,} pictures without a word: there is nothing to count")
    words = float(df.sum() / pictures)
    return Usage(pictures, len(df_v), active, words, words, float((df * df).sum() / pictures))


def table(usage: Usage, *, dim: int, entry_bytes: int = ENTRY_BYTES) -> list[Cost]:
    """Return the paper's table for dense vectors of float32; bm25v's own entries take 4 bytes."""
    dense = 4.0 * dim
    sparse = entry_bytes * usage.picture_words
    expected = POSTING_OPERATIONS * usage.expected_postings
    counted = POSTING_OPERATIONS * usage.postings
    rerank = CANDIDATES * dim
    probed = IVF_PROBES / IVF_LISTS * PQ_PARTS * usage.pictures

    def cost(system: str, size: float, operations: float, counted: float | None = None) -> Cost:
        return Cost(system, size, dense / size, operations, counted)

    return [
        cost("Dense", dense, 2.0 * dim * usage.pictures),
        cost("HNSW", 4.0 * (dim + 2 * HNSW_DEGREE), 2.0 * dim * HNSW_EF),
        cost("IVF+PQ", PQ_PARTS * PQ_BYTES, probed),
        cost("BM25-V", sparse, expected, counted),
        cost("Two-stage", dense + sparse, expected + rerank, counted + rerank),
    ]


def active_words(
    pictures: float | NDArray[np.integer], picture_words: float, vocabulary: int
) -> NDArray[np.float64]:
    """Return how many words are in any picture, if pictures drew words evenly (equation 11).

    Words follow a power law, so real galleries have fewer.

    >>> active_words(np.array([0, 1, 5_994, 10**8]), 16, 18_432).round().tolist()
    [0.0, 16.0, 18331.0, 18432.0]
    """
    unseen = np.asarray(pictures) * np.log1p(-picture_words / vocabulary)
    return np.asarray(-vocabulary * np.expm1(unseen), dtype=np.float64)


def measured_words(
    df_v: NDArray[np.integer], pictures: int, sizes: Sequence[int]
) -> NDArray[np.float64]:
    """Return how many words are in any of the first so many pictures, in a random order.

    It is the mean over all orders: a word is missing from n of N pictures in C(N - df, n) of the
    C(N, n) ways to choose them.

    >>> measured_words(np.array([2, 1, 0]), pictures=2, sizes=[0, 1, 2]).round(9).tolist()
    [0.0, 1.5, 2.0]
    """
    frequencies, words = np.unique(df_v[df_v > 0], return_counts=True)
    found = []
    for size in sizes:
        if not 0 <= size <= pictures:
            raise EvaluationError(f"{size:,} pictures cannot be drawn out of {pictures:,}")
        missing = [_share_without(int(df), pictures, size) for df in frequencies]
        found.append(float(words @ (1 - np.array(missing))))
    return np.array(found)


def _share_without(df: int, pictures: int, size: int) -> float:
    """Return C(N - df, n) / C(N, n)."""
    left = pictures - df
    if size > left:
        return 0.0
    logarithm = math.lgamma(left + 1) - math.lgamma(left - size + 1)
    return math.exp(logarithm + math.lgamma(pictures - size + 1) - math.lgamma(pictures + 1))


def growth(df_v: NDArray[np.integer], pictures: int) -> Growth:
    """Compare how many words are in use with how many the paper's equation 11 expects."""
    sizes = ladder(pictures)
    picture_words = float(df_v.sum() / pictures)
    return Growth(
        len(df_v),
        sizes,
        measured_words(df_v, pictures, sizes).tolist(),
        active_words(np.array(sizes), picture_words, len(df_v)).tolist(),
    )


def ladder(pictures: int) -> list[int]:
    """Return sizes to look at: 1, 2, 5, 10 … and all.

    >>> ladder(30)
    [1, 2, 5, 10, 20, 30]
    """
    steps = (digit * 10**power for power in range(len(str(pictures))) for digit in (1, 2, 5))
    return [step for step in steps if step < pictures] + [pictures]
