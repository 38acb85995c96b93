"""Ranks by words: through the product's own index where the settings allow, else by a product of
sparse matrices, which can do any of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.errors import MissingExtra
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import Ranked, Searcher
from bm25v.index.statistics import Statistics
from bm25v.research.settings import Scoring, Settings, Transform, Weighting
from bm25v.research.words import Bags
from bm25v.vocabulary.bag import quantise

_WORTH_AN_INDEX = 1_000_000  # pairs: `Searcher` would scan longer, as it also serves short runs
_BLOCK_SCORES = 4_000_000  # made at once: 48 MB as a sparse matrix

Floats = NDArray[np.float64]
Impacts = tuple[Any, Any]  # sparse matrices of queries and of pictures, whose product is the scores

TRANSFORMS: dict[Transform, Callable[[Floats], Floats]] = {
    "none": lambda tf: tf,
    "sqrt": np.sqrt,
    "log1p": np.log1p,
}


class Words:
    """A gallery's words and queries' words, ready to be scored against each other.

    >>> bags = Bags(np.array([[1, 4], [2, 0], [4, 5]]), np.array([[1.0, 3.0], [2.0, 0], [0.5, 1]]))
    >>> words = Words(bags, bags.take(np.array([0])), n_words=8, settings=Settings())
    >>> words.search(k=2)[0].rows.tolist()
    [0, 2]
    """

    def __init__(self, gallery: Bags, queries: Bags, *, n_words: int, settings: Settings) -> None:
        self._settings = settings
        self.gallery, self._queries = gallery, queries
        transform = TRANSFORMS[settings.tf]
        self._tf_nk, self._tf_qk = transform(gallery.tf_nk), transform(queries.tf_nk)
        n = len(gallery.tf_nk)
        used_nk = gallery.tf_nk > 0
        df_v = np.bincount(gallery.words_nk[used_nk], minlength=n_words)
        self.df_v = df_v  # in how many pictures of the gallery each word is
        self._idf_v = Statistics(n, df_v, 0).idf(np.arange(n_words))
        self._usual_length = float(self._tf_nk.sum() / max(n, 1)) or 1.0
        self._weights_qk = self._query_weights(df_v > settings.stop * n)

    @property
    def words_a_picture(self) -> float:
        """How many words a picture of the gallery has, in the mean."""
        return float(self.df_v.sum() / max(len(self._tf_nk), 1))

    @property
    def postings_a_query(self) -> float:
        """How many entries of the index a query reads, in the mean."""
        touched_qk = np.where(self._weights_qk > 0, self.df_v[self._queries.words_nk], 0)
        return float(touched_qk.sum() / max(len(touched_qk), 1))

    @property
    def most_q(self) -> Floats:
        """The most BM25 that each query could score: every word, as often as can be."""
        idf_qk = self._idf_v[self._queries.words_nk]
        return np.asarray((self._weights_qk * idf_qk).sum(axis=1) * (self._settings.k1 + 1))

    def queries(self) -> list[WeightedWords]:
        """Return what is asked for: words and how much each counts."""
        found = []
        for row, weights_k in enumerate(self._weights_qk):
            asked_k = weights_k > 0
            words = self._queries.words_nk[row, asked_k].astype(np.int32)
            found.append(
                WeightedWords(words, weights_k[asked_k], self._queries.tf_nk[row, asked_k])
            )
        return found

    def scored_by(self, scoring: Scoring) -> "Words":
        """Return the same words, to be scored in another way."""
        settings = replace(self._settings, scoring=scoring)
        return Words(self.gallery, self._queries, n_words=len(self.df_v), settings=settings)

    def search(self, k: int) -> list[Ranked]:
        """Return for each query the k best rows that share a word with it, ties to the lower."""
        if self._settings.suits_the_engine:
            return self._by_engine(k)
        return list(by_product(*self._impacts(), k))

    def _by_engine(self, k: int) -> list[Ranked]:
        words_nk, tf_nk = self.gallery.words_nk, quantise(self.gallery.tf_nk)
        is_small = len(self.df_v) <= 2**16  # as in galleries
        unsigned_nk = words_nk.astype(np.uint16) if is_small else words_nk.astype(np.uint32)
        searcher = Searcher(unsigned_nk, tf_nk, n_words=len(self.df_v))
        queries = self.queries()
        if len(queries) * len(words_nk) > _WORTH_AN_INDEX:
            searcher.build()
        return searcher.search_many(queries, k)

    def _query_weights(self, is_stop_v: NDArray[np.bool_]) -> Floats:
        """Return what each slot of a query counts; 0: it is empty, or a stop word."""
        tf_qk = self._tf_qk
        weighings: dict[Weighting, Callable[[], Floats]] = {
            "presence": lambda: np.ones_like(tf_qk),
            "tf": lambda: tf_qk,
            "sqrt-tf": lambda: np.sqrt(tf_qk),
            "saturated": lambda: self._saturated(tf_qk),
        }
        asked_qk = (self._queries.tf_nk > 0) & ~is_stop_v[self._queries.words_nk]
        return np.where(asked_qk, weighings[self._settings.query](), 0.0)

    def _saturated(self, tf_nk: Floats) -> Floats:
        """Return tf (k1 + 1) / (tf + k1 (1 - b + b |d| / average)) (paper, equation 1)."""
        k1, b = self._settings.k1, self._settings.b
        norms_n = k1 * (1 - b + b * tf_nk.sum(axis=1, keepdims=True) / self._usual_length)
        with np.errstate(invalid="ignore"):  # 0 / 0 where k1 is 0 and a slot empty
            return np.asarray(np.nan_to_num(tf_nk * (k1 + 1) / (tf_nk + norms_n)))

    def _impacts(self) -> Impacts:
        """Return what each word of a query and of a picture is worth, by the kind of scoring."""
        queries, gallery = self._queries.words_nk, self.gallery.words_nk
        asked_qk, used_nk = (self._weights_qk > 0).astype(float), (self._tf_nk > 0).astype(float)
        tf_qk, tf_nk = self._tf_qk * asked_qk, self._tf_nk
        idf_qk, idf_nk = self._idf_v[queries], self._idf_v[gallery]
        kinds: dict[str, Callable[[], tuple[Floats, Floats]]] = {
            "bm25": lambda: (self._weights_qk * idf_qk, self._saturated(tf_nk)),
            "tfidf": lambda: (_unit(tf_qk * idf_qk), _unit(tf_nk * idf_nk)),
            "cosine": lambda: (_unit(tf_qk), _unit(tf_nk)),
            "dot": lambda: (tf_qk, tf_nk),
            "idf": lambda: (asked_qk * idf_qk, used_nk),
            "binary": lambda: (asked_qk, used_nk),
        }
        query_side, gallery_side = kinds[self._settings.scoring]()
        n_words = len(self.df_v)
        return matrix(queries, query_side, n_words), matrix(gallery, gallery_side, n_words)


def by_product(queries: Any, gallery: Any, k: int) -> Iterator[Ranked]:
    """Give for each row of one sparse matrix the k best of another by dot product."""
    columns = gallery.T.tocsr()
    rows = max(1, _BLOCK_SCORES // max(1, gallery.shape[0]))
    for start in range(0, queries.shape[0], rows):
        scores = queries[start : start + rows] @ columns
        for first, end in zip(scores.indptr[:-1], scores.indptr[1:], strict=True):
            found, values = scores.indices[first:end].astype(np.int64), scores.data[first:end]
            best = ranking.top(found, values, k)
            yield Ranked(found[best], values[best])


def matrix(words_nk: NDArray[np.int64], values_nk: Floats, n_words: int) -> Any:
    """Return a sparse matrix, a row a picture, of the slots that are not 0."""
    rows, slots = np.nonzero(values_nk)
    content = (values_nk[rows, slots], (rows, words_nk[rows, slots]))
    return scipy_sparse().csr_array(content, shape=(len(words_nk), n_words))


def scipy_sparse() -> Any:
    """Import scipy's sparse matrices, or say how to get them."""
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        raise MissingExtra("scoring by sparse matrices", "research") from error


def _unit(values_nk: Floats) -> Floats:
    lengths_n = np.linalg.norm(values_nk, axis=1, keepdims=True)
    return np.asarray(values_nk / np.maximum(lengths_n, 1e-12))
