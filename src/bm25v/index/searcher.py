"""Exact top-K by BM25: the same rows, scores and order as `reference`, faster."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.errors import WrongUse
from bm25v.index.accumulate import accumulate
from bm25v.index.postings import Postings
from bm25v.index.statistics import Statistics
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
        is_large = len(self._postings) > _COMPILED_ABOVE
        self._accumulate = _accumulator(is_large if compiled is None else compiled)

    def search(self, query: Query, k: int) -> Ranked:
        """Return the k best rows that share a word with the query, ties to the lower row."""
        if k < 1:
            raise WrongUse(f"k = {k}: ask for at least one result")
        postings = self._postings
        known = query.words < postings.n_words
        words = query.words[known]
        slots = np.column_stack([postings.offsets[words], postings.offsets[words + 1]])
        gains = query.weights[known] * self.statistics.idf(words)
        scores = np.zeros(len(self._norms))
        touched = np.zeros(len(self._norms), dtype=bool)
        self._accumulate(slots, gains, postings.rows, postings.tf, self._norms, scores, touched)
        rows = np.flatnonzero(touched)
        best = rows[ranking.top(rows, scores[rows], k)]
        return Ranked(best, scores[best])


def _accumulator(compiled: bool) -> Callable[..., None]:
    if not compiled:
        return accumulate
    from bm25v.index import kernels

    loop: Callable[..., None] = kernels.accumulate
    return loop
