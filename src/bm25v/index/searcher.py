"""Exact top-K by BM25: the same rows, scores and order as `reference`, faster."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import SCALE, dequantise
from bm25v.errors import WrongUse
from bm25v.index.postings import Postings
from bm25v.index.reference import K1
from bm25v.index.statistics import Statistics, saturation
from bm25v.query import Query

# Loading the compiler costs half a second; numpy is done sooner below about this many postings.
_COMPILED_ABOVE = 4_000_000


class Ranked(NamedTuple):
    """Rows and their scores, best first."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


class Searcher:
    """Search a fixed set of bags.

    >>> words = np.array([[1, 4], [2, 0], [4, 2]], dtype=np.uint16)
    >>> tf = np.array([[100, 300], [200, 0], [50, 100]], dtype=np.uint16)
    >>> wish = Query(np.array([4]), np.array([1.0]), np.array([1.0]))
    >>> Searcher(words, tf, n_words=8).search(wish, k=2).rows.tolist()
    [0, 2]
    """

    def __init__(
        self,
        words_nk: NDArray[np.unsignedinteger],
        tf_nk: NDArray[np.uint16],
        *,
        n_words: int,
        compiled: bool | None = None,
    ) -> None:
        self.statistics = Statistics.of(words_nk, tf_nk, n_words)
        self._postings = Postings.build(words_nk, tf_nk, n_words)
        self._norms = self.statistics.length_norms(tf_nk.sum(axis=1, dtype=np.int64))
        self._compiled = len(self._postings) > _COMPILED_ABOVE if compiled is None else compiled

    def search(self, query: Query, k: int) -> Ranked:
        """Return the k best rows that share a word with the query, ties to the lower row."""
        if k < 1:
            raise WrongUse(f"k = {k}: ask for at least one result")
        known = query.words < len(self._postings.offsets) - 1
        words = query.words[known]
        gains = query.weights[known] * self.statistics.idf(words)
        scores = np.zeros(len(self._norms))
        touched = np.zeros(len(self._norms), dtype=bool)
        add = self._add_compiled if self._compiled else self._add
        add(words, gains, scores, touched)
        return _top(scores, np.flatnonzero(touched), k)

    def _add(
        self,
        words: NDArray[np.int32],
        gains: NDArray[np.float64],
        scores: NDArray[np.float64],
        touched: NDArray[np.bool_],
    ) -> None:
        for word, gain in zip(words.tolist(), gains.tolist(), strict=True):
            slots = self._postings.slots(word)
            rows = self._postings.rows[slots]
            frequencies = dequantise(self._postings.tf[slots])
            scores[rows] += gain * saturation(frequencies, self._norms[rows])
            touched[rows] = True

    def _add_compiled(
        self,
        words: NDArray[np.int32],
        gains: NDArray[np.float64],
        scores: NDArray[np.float64],
        touched: NDArray[np.bool_],
    ) -> None:
        from bm25v.index.kernels import accumulate

        p = self._postings
        slots = np.column_stack([p.offsets[words], p.offsets[words + 1]])
        accumulate(slots, gains, p.rows, p.tf, self._norms, SCALE, K1, scores, touched)


def _top(scores: NDArray[np.float64], rows: NDArray[np.int64], k: int) -> Ranked:
    found = scores[rows]
    if len(rows) > k:
        threshold = np.partition(found, len(found) - k)[len(found) - k]
        keep = found >= threshold  # all ties with the last one: the lower rows win below
        rows, found = rows[keep], found[keep]
    order = np.lexsort((rows, -found))[:k]
    return Ranked(rows[order], found[order])
