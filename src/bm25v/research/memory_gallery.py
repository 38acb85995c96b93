"""Searches by full bags in arrays: what a gallery on disk would answer, without one.

In: the bags, full bags and dense vectors of images, and encoded queries. Out: rankings. Candidates,
scores and order come from `bm25v.search.engine`. Not this module's job: measuring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bm25v.gallery.full_bags import FullBags
from bm25v.gallery.records import State
from bm25v.gallery.rows import RowArray
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import Ranked, Searcher
from bm25v.research.bags import count_full_bags
from bm25v.sae.model import Codes
from bm25v.search.combine import combine_bags
from bm25v.search.embedded import GalleryView
from bm25v.search.encode import EncodedQuery
from bm25v.search.engine import rank_rows
from bm25v.search.filters import RowFilter
from bm25v.search.matching import HYBRID_WEIGHT, hybrid_factor
from bm25v.search.query import Mode, Query
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import Bag

_EMPTY = Encoding(  # a `Query` needs an image, but the engine reads the encoded one
    Bag(np.empty(0, np.int32), np.empty(0, np.uint16)),
    np.empty(0, np.float32),
    Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32)),
)


@dataclass(frozen=True)
class ReweightedQuery(EncodedQuery):
    """A query whose words order the candidates with other weights than they find them with."""

    found_by: WeightedWords | None = None

    @property
    def first_words(self) -> WeightedWords:
        """The words that find candidates in the index."""
        return super().first_words if self.found_by is None else self.found_by


@lru_cache
def _make_query(k: int, candidates: int) -> Query:
    return Query(images=(_EMPTY,), k=k, candidates=candidates)


def encode_bag(
    bag: Bag, dense_e: NDArray[np.float32], mode: Mode, own_rows: Sequence[int] = ()
) -> EncodedQuery:
    """Return the query of an image, as a search encodes it; `own_rows` are left out of the hits."""
    words = combine_bags([bag], by_strength=True)
    return EncodedQuery(words, mode, RowFilter(own=tuple(own_rows)), dense_e=dense_e)


class MemoryGallery:
    """Encoded images to search in modes "words" and "hybrid"."""

    def __init__(
        self, searcher: Searcher, full_rows: RowArray, dense_ne: NDArray[np.float16]
    ) -> None:
        statistics = count_full_bags(full_rows, searcher.statistics.n_words)
        self.full_bags = FullBags(full_rows, statistics)
        state = State(generation=0, n_rows=len(full_rows), last_change=None)
        snapshot = Snapshot((), state, np.empty(0), dense_ne, searcher, full_bags=self.full_bags)
        self._view = GalleryView(snapshot)

    def search(
        self, encoded: EncodedQuery, *, k: int, candidates: int, weight: float = HYBRID_WEIGHT
    ) -> Ranked:
        """Return the best k of the candidates; `weight` is that of the words in mode "hybrid"."""
        factor = 1.0
        if encoded.mode == "hybrid":
            statistics = self.full_bags.statistics
            factor = hybrid_factor(encoded, statistics, self._view.parameters, weight)
        ranked = rank_rows(encoded, _make_query(k, candidates), self._view, factor)
        return Ranked(ranked.rows, ranked.scores.astype(np.float64, copy=False))
