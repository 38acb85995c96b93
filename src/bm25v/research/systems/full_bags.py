"""Ranks by full bags in arrays, as searches in modes "words" and "hybrid" do in a gallery."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import WeightedWords, saturation
from bm25v.index.searcher import Ranked, Searcher
from bm25v.research.bags import count_full_bags
from bm25v.research.settings import RankingSettings
from bm25v.research.systems.sparse import weigh_words
from bm25v.search.combine import combine_bags
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import rank, words_factor
from bm25v.search.scoring import Mode
from bm25v.store.bags import RowArray
from bm25v.store.base import Filter, Rows
from bm25v.store.local.catalog import State
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.meta import Meta
from bm25v.training.patches import worker_pool
from bm25v.vocabulary.bag import Bag


@dataclass(frozen=True)
class ReweightedQuery(EncodedQuery):
    """A query whose words order the candidates with other weights than they find them with."""

    candidate_words: WeightedWords | None = None

    @property
    def first_words(self) -> WeightedWords:
        return super().first_words if self.candidate_words is None else self.candidate_words


def encode_bag(
    bag: Bag, dense_e: NDArray[np.float32], mode: Mode, own_rows: Sequence[int] = ()
) -> EncodedQuery:
    """Return the query of an image, as a search encodes it; `own_rows` are left out of the hits."""
    words = combine_bags([bag], by_strength=True)
    return EncodedQuery(words, mode, Filter(own_paths=tuple(map(str, own_rows))), dense_e=dense_e)


class MemoryView(Snapshot):
    """Encoded images to search in modes "words" and "hybrid"; the path of one is its row."""

    @classmethod
    def of(
        cls, searcher: Searcher, full_rows: RowArray, dense_ne: NDArray[np.float16]
    ) -> "MemoryView":
        n_words, parameters = searcher.statistics.n_words, searcher.parameters
        k_full = full_rows.dtype["words"].shape[0]
        meta = Meta("", "", "", "", n_words, 0, k_full, 0, 0, parameters.k1, parameters.b)
        state = State(generation=0, n_rows=len(full_rows), last_change=0)
        files = (np.empty(0), full_rows, dense_ne)
        statistics = count_full_bags(full_rows, n_words)
        no_catalog: Any = None
        return cls(no_catalog, meta, (), state, *files, searcher, statistics)

    def find_own_rows(self, condition: Filter) -> Rows:
        return np.array(list(map(int, condition.own_paths)), dtype=np.int64)

    def weigh(self, encoded: EncodedQuery, weight: float | None = None) -> EncodedQuery:
        """Return a query with its factor of BM25; `weight` is that of words in mode "hybrid"."""
        factor = words_factor(encoded, self.full_statistics, self.meta.parameters)
        if weight is not None and encoded.scoring.is_sum:
            factor *= weight / encoded.scoring.words
        return replace(encoded, factor=factor)

    def search(self, encoded: EncodedQuery, *, k: int, candidates: int) -> Ranked:
        """Return the best k of the candidates."""
        encoded = replace(encoded, k=k, candidates=candidates)
        ranked = rank(encoded, self.candidates(encoded), self)
        return Ranked(ranked.rows, ranked.scores.astype(np.float64, copy=False))


@dataclass(frozen=True)
class FullBagRanker:
    gallery: MemoryView
    queries: Sequence[Bag]
    query_rows: RowArray  # the queries' full bags, as galleries store them
    dense_qe: NDArray[np.float32]
    settings: RankingSettings

    @property
    def rows(self) -> RowArray:
        return self.gallery.full_bags

    @property
    def words_per_image(self) -> float:
        statistics = self.gallery.full_statistics
        return float(statistics.df_v.sum() / max(statistics.n, 1))

    def search(
        self, mode: Mode, k: int, candidates: int, own_row_q: NDArray[np.int64]
    ) -> list[Ranked]:
        """Return the k best of each query's candidates besides the query itself."""

        def rank(number: int) -> Ranked:
            own_rows = own_row_q[number : number + 1]
            encoded = self._encode(number, mode, own_rows[own_rows >= 0].tolist())
            weighed = self.gallery.weigh(encoded, self.settings.weight)
            return self.gallery.search(weighed, k=k, candidates=candidates)

        with worker_pool() as pool:
            return list(pool.map(rank, range(len(self.queries))))

    def _encode(self, number: int, mode: Mode, own_rows: list[int]) -> EncodedQuery:
        encoded = encode_bag(self.queries[number], self.dense_qe[number], mode, own_rows)
        if self.settings.full_weighting == "sqrt-tf":
            return encoded
        fields: dict[str, Any] = vars(encoded)
        return ReweightedQuery(
            **{**fields, "words": self._weigh(encoded.words)}, candidate_words=encoded.first_words
        )

    def _weigh(self, words: WeightedWords) -> WeightedWords:
        k1, b = self.settings.parameters.k1, self.settings.parameters.b
        average = self.gallery.full_statistics.average_or_one

        def saturate(tf: NDArray[np.float64]) -> NDArray[np.float64]:
            norms = np.full(len(tf), k1 * (1 - b + b * tf.sum() / average))
            return saturation(tf, norms, self.settings.parameters)

        weights = weigh_words(words.frequencies, self.settings.full_weighting, saturate)
        return words._replace(weights=weights)
