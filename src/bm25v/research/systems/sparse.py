"""Ranks by visual words: with `bm25v.index` if the settings allow it, else with a product of sparse
matrices, which supports all settings.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra
from bm25v.index.bm25 import Statistics, WeightedWords
from bm25v.index.searcher import Ranked, Searcher, top_positions
from bm25v.research.bags import BagTable
from bm25v.research.settings import RankingSettings, Scoring, Transform, Weighting
from bm25v.vocabulary.bag import quantise, word_bytes

INDEX_FROM = 1_000_000  # pairs of query and image; left alone, `Searcher` would scan for longer
BLOCK_SCORES = 4_000_000  # scores per product: 48 MB as a sparse matrix

Floats = NDArray[np.float64]

_TRANSFORMS: dict[Transform, Callable[[Floats], Floats]] = {
    "none": lambda tf: tf,
    "sqrt": np.sqrt,
    "log1p": np.log1p,
}


class WordRanker:
    """The bags of a gallery and of queries, with statistics, ready to be scored.

    >>> bags = BagTable(
    ...     np.array([[1, 4], [2, 0], [4, 5]]), np.array([[1.0, 3.0], [2.0, 0], [0.5, 1]])
    ... )
    >>> ranker = WordRanker(
    ...     bags, bags.take(np.array([0])), n_words=8, settings=RankingSettings()
    ... )
    >>> ranker.search(k=2)[0].rows.tolist()
    [0, 2]
    """

    def __init__(
        self, gallery: BagTable, queries: BagTable, *, n_words: int, settings: RankingSettings
    ) -> None:
        self._settings = settings
        self.gallery, self._queries = gallery, queries
        transform = _TRANSFORMS[settings.tf]
        self._tf_nk, self._tf_qk = transform(gallery.tf_nk), transform(queries.tf_nk)
        n = len(gallery.tf_nk)
        df_v = np.bincount(gallery.words_nk[gallery.tf_nk > 0], minlength=n_words)
        self.df_v = df_v  # document frequencies in the gallery
        self._idf_v = Statistics(n, df_v, 0).idf(np.arange(n_words))
        self._average_length = float(self._tf_nk.sum() / max(n, 1)) or 1.0
        self._weights_qk = self._query_weights(df_v > settings.stop * n)

    @property
    def words_per_image(self) -> float:
        return float(self.df_v.sum() / max(len(self._tf_nk), 1))

    @property
    def postings_per_query(self) -> float:
        postings_qk = np.where(self._weights_qk > 0, self.df_v[self._queries.words_nk], 0)
        return float(postings_qk.sum() / max(len(postings_qk), 1))

    def queries(self) -> list[WeightedWords]:
        queries = []
        for row, weights_k in enumerate(self._weights_qk):
            used_k = weights_k > 0
            words = self._queries.words_nk[row, used_k].astype(np.int32)
            queries.append(
                WeightedWords(words, weights_k[used_k], self._queries.tf_nk[row, used_k])
            )
        return queries

    def with_scoring(self, scoring: Scoring) -> "WordRanker":
        settings = replace(self._settings, scoring=scoring)
        return WordRanker(self.gallery, self._queries, n_words=len(self.df_v), settings=settings)

    def search(self, k: int) -> list[Ranked]:
        """Return the k best rows of each query that share a word with it; ties: lower row first."""
        if self._settings.fits_index:
            return self.prepare_searcher().search_many(self.queries(), k)
        return list(rank_by_product(*self._matrices(), k))

    def prepare_searcher(self) -> Searcher:
        """Return the index of the gallery's bags, built if all queries together justify it."""
        if len(self._weights_qk) * len(self._tf_nk) > INDEX_FROM:
            self._searcher.build_index()
        return self._searcher

    @cached_property
    def _searcher(self) -> Searcher:
        words_nk, tf_nk = self.gallery.words_nk, quantise(self.gallery.tf_nk)
        return Searcher(
            words_nk.astype(f"u{word_bytes(len(self.df_v))}"),  # as in galleries
            tf_nk,
            n_words=len(self.df_v),
            parameters=self._settings.parameters,
        )

    def _query_weights(self, is_stop_v: NDArray[np.bool_]) -> Floats:
        """Return the weight of each query slot; 0 if it is empty or has a stop word."""
        tf_qk = self._tf_qk
        weightings: dict[Weighting, Callable[[], Floats]] = {
            "presence": lambda: np.ones_like(tf_qk),
            "tf": lambda: tf_qk,
            "sqrt-tf": lambda: np.sqrt(tf_qk),
            "saturated": lambda: self._saturation(tf_qk),
        }
        used_qk = (self._queries.tf_nk > 0) & ~is_stop_v[self._queries.words_nk]
        return np.where(used_qk, weightings[self._settings.index_weighting](), 0.0)

    def _saturation(self, tf_nk: Floats) -> Floats:
        """Return tf (k1 + 1) / (tf + k1 (1 - b + b |d| / average)) (paper, equation 1)."""
        k1, b = self._settings.k1, self._settings.b
        norms_n = k1 * (1 - b + b * tf_nk.sum(axis=1, keepdims=True) / self._average_length)
        with np.errstate(invalid="ignore"):  # 0 / 0 where k1 is 0 and a slot empty
            return np.asarray(np.nan_to_num(tf_nk * (k1 + 1) / (tf_nk + norms_n)))

    def _matrices(self) -> tuple[Any, Any]:
        """Return sparse matrices of queries and images whose product is the scores."""
        query_words, image_words = self._queries.words_nk, self.gallery.words_nk
        used_qk, used_nk = (self._weights_qk > 0).astype(float), (self._tf_nk > 0).astype(float)
        tf_qk, tf_nk = self._tf_qk * used_qk, self._tf_nk
        idf_qk, idf_nk = self._idf_v[query_words], self._idf_v[image_words]
        scorings: dict[Scoring, Callable[[], tuple[Floats, Floats]]] = {
            "bm25": lambda: (self._weights_qk * idf_qk, self._saturation(tf_nk)),
            "tfidf": lambda: (unit_rows(tf_qk * idf_qk), unit_rows(tf_nk * idf_nk)),
            "cosine": lambda: (unit_rows(tf_qk), unit_rows(tf_nk)),
            "dot": lambda: (tf_qk, tf_nk),
            "idf": lambda: (used_qk * idf_qk, used_nk),
            "binary": lambda: (used_qk, used_nk),
        }
        values_qk, values_nk = scorings[self._settings.scoring]()
        n_words = len(self.df_v)
        return (
            sparse_matrix(query_words, values_qk, n_words),
            sparse_matrix(image_words, values_nk, n_words),
        )


def rank_by_product(queries: Any, gallery: Any, k: int) -> Iterator[Ranked]:
    """Yield for each row of the query matrix the k best rows of the gallery by dot product."""
    columns = gallery.T.tocsr()
    block = max(1, BLOCK_SCORES // max(1, gallery.shape[0]))
    for start in range(0, queries.shape[0], block):
        product = queries[start : start + block] @ columns
        for first, end in zip(product.indptr[:-1], product.indptr[1:], strict=True):
            rows, scores = product.indices[first:end].astype(np.int64), product.data[first:end]
            best = top_positions(rows, scores, k)
            yield Ranked(rows[best], scores[best])


def sparse_matrix(words_nk: NDArray[np.int64], values_nk: Floats, n_words: int) -> Any:
    """Return a scipy matrix, images × words, of the slots that are not 0."""
    rows, slots = np.nonzero(values_nk)
    content = (values_nk[rows, slots], (rows, words_nk[rows, slots]))
    return import_scipy_sparse().csr_array(content, shape=(len(words_nk), n_words))


def unit_rows(values_nk: Floats) -> Floats:
    lengths_n = np.linalg.norm(values_nk, axis=1, keepdims=True)
    return np.asarray(values_nk / np.maximum(lengths_n, 1e-12))


def import_scipy_sparse() -> Any:
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        raise MissingExtra("scoring by sparse matrices", "research") from error
