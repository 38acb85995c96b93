"""Ranks by full bags, as searches in modes "words" and "hybrid" do.

In: the bags of a gallery and of queries, and dense vectors. Out: rankings, by `MemoryGallery`.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.gallery.rows import RowArray
from bm25v.index.bm25 import WeightedWords, saturation
from bm25v.index.searcher import Ranked, Searcher
from bm25v.research.memory_gallery import MemoryGallery, ReweightedQuery, encode_bag
from bm25v.research.settings import RankingSettings
from bm25v.research.systems.vectors import Vectors
from bm25v.search.encode import EncodedQuery
from bm25v.search.query import Mode
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import Bag


class FullBagRanker:
    """A gallery and queries, ready to be ranked by full bags."""

    def __init__(
        self,
        searcher: Searcher,
        full_rows: RowArray,
        query_rows: RowArray,
        queries: Sequence[Bag],
        vectors: Vectors,
        settings: RankingSettings,
    ) -> None:
        dense_ne, self._dense_qe = vectors
        self._gallery = MemoryGallery(searcher, full_rows, dense_ne)
        self.queries, self._settings = queries, settings
        self._parameters = searcher.parameters
        self.rows, self.query_rows = full_rows, query_rows  # as galleries store them

    @property
    def words_per_image(self) -> float:
        """The mean number of words of a full bag."""
        statistics = self._gallery.full_bags.statistics
        return float(statistics.df_v.sum() / max(statistics.n, 1))

    def search(
        self, mode: Mode, k: int, candidates: int, own_row_q: NDArray[np.int64]
    ) -> list[Ranked]:
        """Return the k best of each query's candidates besides the query itself."""

        def rank(number: int) -> Ranked:
            own_rows = own_row_q[number : number + 1]
            encoded = self._encode(number, mode, own_rows[own_rows >= 0].tolist())
            return self._gallery.search(
                encoded, k=k, candidates=candidates, weight=self._settings.weight
            )

        with ThreadPoolExecutor(available_cpus()) as pool:
            return list(pool.map(rank, range(len(self.queries))))

    def _encode(self, number: int, mode: Mode, own_rows: list[int]) -> EncodedQuery:
        encoded = encode_bag(self.queries[number], self._dense_qe[number], mode, own_rows)
        if self._settings.full_weighting == "sqrt-tf":
            return encoded
        fields: dict[str, Any] = vars(encoded)
        return ReweightedQuery(
            **{**fields, "words": self._weigh(encoded.words)}, found_by=encoded.first_words
        )

    def _weigh(self, words: WeightedWords) -> WeightedWords:
        """Return a query's words with the weights of the settings."""
        frequencies = words.frequencies
        if self._settings.full_weighting == "presence":
            return words._replace(weights=np.ones(len(frequencies)))
        if self._settings.full_weighting == "tf":
            return words._replace(weights=frequencies)
        k1, b = self._parameters.k1, self._parameters.b
        average = self._gallery.full_bags.statistics.average_or_one
        norms = np.full(len(frequencies), k1 * (1 - b + b * frequencies.sum() / average))
        return words._replace(weights=saturation(frequencies, norms, self._parameters))
