"""What a search takes in bytes and operations: the paper's table, from what was counted.

In: document frequencies and the bags of queries. Out: for each system bytes a picture, compression
and operations a query, at this size of the gallery or at any other. Not this room's job: seconds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import Bag
from bm25v.errors import EvaluationError

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


def usage(df_v: NDArray[np.integer], pictures: int, queries: Sequence[Bag]) -> Usage:
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
