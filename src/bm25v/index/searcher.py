"""Exact top K by BM25: the rows, scores and order of `bm25.reference_search`, faster.

A `Searcher` first scans the bags in numpy. Once its searches have scanned many rows it builds
an inverted index (`block`), which needs numba; importing numba and building cost about as much as
those scans. Both ways return the same floats.
"""

import copy
import itertools
import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.display import duration
from bm25v.errors import InvalidOption
from bm25v.index.bm25 import (
    DEFAULT_PARAMETERS,
    Bm25Parameters,
    Statistics,
    WeightedWords,
    saturation,
)
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import dequantise

if TYPE_CHECKING:
    from bm25v.index.block import Block
    from bm25v.index.kernels import Queries

# Rows scanned before an index is built: by then scanning has cost about as much as building does.
SCANNED_ROWS_BEFORE_INDEX = 20_000_000

_UNINDEXED_ROWS = 8_192  # newest rows that are scanned rather than indexed
_CHUNK_ROWS = 65_536  # scanned at once
_ROWS_TO_SORT_BY_SCORE = 64  # fewer rows are sorted by score and row at once
_BATCH = 32  # queries that are searched together, at most
_BATCH_ROWS = 32_000  # rows that those return, at most: memory is taken for all of them

_log = logging.getLogger(__name__)

Rows = Sequence[int] | NDArray[np.int64]
Flags = NDArray[np.bool_]  # one for each row
RowScores = tuple[NDArray[np.int64], NDArray[np.float64]]


class Ranked(NamedTuple):
    """Rows and their scores, best first."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]

    @classmethod
    def best(cls, rows: NDArray[np.int64], scores: NDArray[np.float64], k: int) -> "Ranked":
        """Return the k best of some rows, ties to the lower row."""
        best = top_positions(rows, scores, k)
        return cls(rows[best], scores[best])


class SearchRequest(NamedTuple):
    """A search of a batch: its words, how many rows, and which of them are allowed."""

    words: WeightedWords
    k: int
    allowed_n: Flags | None = None  # a flag for each row; None: all


class QueryTerms(NamedTuple):
    """The words of a query that the vocabulary has, prepared for looking up words of bags."""

    words: NDArray[np.integer]
    term_v: NDArray[np.uint16]  # number of each word in the query, from 1 on; 0: not in the query
    term_weights: NDArray[np.float64]  # weight · idf by number; that of number 0 is 0

    @classmethod
    def prepare(cls, query: WeightedWords, statistics: Statistics) -> "QueryTerms":
        """Look up the IDF of a query's words; words that the vocabulary does not have are left out.

        >>> statistics = Statistics(n=2, df_v=np.array([1, 2, 0]), total_length=300)
        >>> query = WeightedWords(np.array([0, 7]), np.ones(2), np.ones(2))
        >>> terms = QueryTerms.prepare(query, statistics)
        >>> terms.words.tolist(), terms.term_v.tolist(), terms.term_weights.round(4).tolist()
        ([0], [1, 0, 0], [0.0, 0.6931])
        """
        _, words, weights = _join_queries([query], statistics.n_words)
        term_weights = np.zeros(len(words) + 1)
        term_weights[1:] = weights * statistics.idf_v[words]
        term_v = np.zeros(statistics.n_words, dtype=np.uint16)
        term_v[words] = np.arange(1, len(words) + 1, dtype=np.uint16)
        return cls(words, term_v, term_weights)


def _join_queries(queries: Sequence[WeightedWords], n_words: int) -> "Queries":
    """Return the words of all queries, without those that the vocabulary does not have."""
    words = np.concatenate([query.words for query in queries]).astype(np.int32, copy=False)
    weights = np.concatenate([query.weights for query in queries])
    starts_q = np.array([0, *itertools.accumulate(len(query.words) for query in queries)])
    is_finite = np.isfinite(weights)
    if not is_finite.all():
        raise InvalidOption(f"weight {weights[~is_finite][0]}: give finite numbers")
    is_known = words < n_words
    if not is_known.all():
        words, weights = words[is_known], weights[is_known]
        starts_q = np.append(0, np.cumsum(is_known))[starts_q]
    return starts_q, words, weights


def _check_k(k: int) -> None:
    if k < 1:
        raise InvalidOption(f"k = {k}: ask for at least one result")


class Searcher:
    """Search bags by BM25, except removed rows. A searcher never changes: `updated` makes another.

    `parameters` are k1 and b. All methods may be called from several threads.

    >>> words = np.array([[1, 4], [2, 0], [4, 2]], dtype=np.uint16)
    >>> tf = np.array([[100, 300], [200, 0], [50, 100]], dtype=np.uint16)
    >>> query = WeightedWords(np.array([4]), np.array([1.0]), np.array([1.0]))
    >>> searcher = Searcher(words, tf, n_words=8)
    >>> searcher.search(query, k=2).rows.tolist()
    [0, 2]
    >>> searcher.updated(words, tf, removed=[0]).search(query, k=2).rows.tolist()
    [2]
    """

    def __init__(
        self,
        words_nk: NDArray[np.unsignedinteger],
        tf_nk: NDArray[np.uint16],
        *,
        n_words: int,
        removed: Rows = (),
        parameters: Bm25Parameters = DEFAULT_PARAMETERS,
    ) -> None:
        self._bags = (words_nk, tf_nk)
        self._live_n = np.ones(len(words_nk), dtype=bool)
        self._live_n[np.asarray(removed, dtype=np.int64)] = False
        self.parameters = parameters
        self.statistics = self._count(slice(None), n_words) - self._count(removed, n_words)
        self._rows_scanned = 0
        self._blocks: tuple[Block, ...] = ()
        self._building = threading.Lock()

    @property
    def rows(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._live_n)

    @property
    def live_n(self) -> Flags:
        return self._live_n

    @property
    def bags(self) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        """The words and the stored tf of each row; a slot with tf 0 is empty."""
        return self._bags

    @property
    def nbytes(self) -> int:
        """Bytes in memory, without the bags."""
        statistics = self.statistics
        own = self._live_n.nbytes + statistics.df_v.nbytes + statistics.idf_v.nbytes
        return own + sum(block.nbytes for block in self._blocks)

    @property
    def has_index(self) -> bool:
        return bool(self._blocks)

    def updated(
        self,
        words_nk: NDArray[np.unsignedinteger],
        tf_nk: NDArray[np.uint16],
        *,
        removed: Rows = (),
        restored: Rows = (),
    ) -> "Searcher":
        """Return a searcher of more rows at the end, and with rows removed or restored.

        It has the same parameters and shares the index; only one flag per row is copied.
        """
        other = copy.copy(self)
        n, n_words = len(self._live_n), self.statistics.n_words
        other._bags = (words_nk, tf_nk)
        other._live_n = np.append(self._live_n, np.ones(len(words_nk) - n, dtype=bool))
        removed = np.unique(np.asarray(removed, dtype=np.int64))
        restored = np.unique(np.asarray(restored, dtype=np.int64))
        removed = removed[other._live_n[removed]]
        restored = restored[~other._live_n[restored]]
        other._live_n[removed] = False
        other._live_n[restored] = True
        other.statistics = (
            self.statistics
            + other._count(slice(n, None), n_words)
            + other._count(restored, n_words)
            - other._count(removed, n_words)
        )
        return other

    def search(self, query: WeightedWords, k: int, *, among: Flags | None = None) -> Ranked:
        """Return the k best rows that share a word with the query, ties to the lower row.

        `among` restricts the search to flagged rows; IDF and average length stay those of all.
        """
        allowed_n, n_allowed = self._live_n, self.statistics.n
        if among is not None:
            allowed_n = self._live_n & among
            n_allowed = int(np.count_nonzero(allowed_n))
        if self._needs_index_after(n_allowed):
            (ranked,) = self._search_index([query], k, allowed_n, n_allowed)
            return ranked
        _check_k(k)
        terms = QueryTerms.prepare(query, self.statistics)
        return Ranked.best(*self._scan(np.flatnonzero(allowed_n), terms), k)

    def search_many(
        self, queries: Sequence[WeightedWords], k: int, *, threads: int | None = None
    ) -> list[Ranked]:
        """Return what `search` returns for each query; the index is searched in several threads."""
        _check_k(k)
        if not self._needs_index_after(len(queries) * self.statistics.n):
            return [self.search(query, k) for query in queries]
        self._up_to_date_blocks()
        threads = threads or available_cpus()
        size = max(1, min(_BATCH, _BATCH_ROWS // k, -(-len(queries) // threads)))
        parts = [queries[start : start + size] for start in range(0, len(queries), size)]
        allowed = (k, self._live_n, self.statistics.n)
        with ThreadPoolExecutor(threads) as pool:
            results = pool.map(lambda part: self._search_index(part, *allowed), parts)
            return list(itertools.chain.from_iterable(results))

    def score_rows(self, rows: NDArray[np.int64], terms: QueryTerms) -> RowScores:
        """Return those of the given rows that share a word with a query, and their scores."""
        return (self._scan_compiled if self._blocks else self._scan)(rows, terms)

    def sum_values(
        self, words: NDArray[np.integer], values: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return for each row the sum of the values of those words that it has; -inf if removed.

        Filters and coverage are computed with it.
        """
        blocks = self._blocks
        end = blocks[-1].end if blocks else 0
        sums = [block.sum_values(words.astype(np.int64), values) for block in blocks]
        values_v = np.zeros(self.statistics.n_words)
        values_v[words] = values
        for start in range(end, len(self._live_n), _CHUNK_ROWS):
            words_ck, tf_ck = (part[start : start + _CHUNK_ROWS] for part in self._bags)
            sums.append(np.where(tf_ck > 0, values_v[words_ck], 0).sum(axis=1))
        return np.where(self._live_n, np.concatenate([np.empty(0), *sums]), -np.inf)

    def prepare_for(self, n_searches: int, n_rows: int | None = None) -> None:
        """Build the index now if this many searches, of all rows or so many, justify it."""
        if self._needs_index_after(n_searches * (self.statistics.n if n_rows is None else n_rows)):
            self._up_to_date_blocks()

    def build_index(self) -> None:
        """Build the index now, even if code has to be compiled first."""
        self._up_to_date_blocks()

    def _count(self, rows: slice | Rows, n_words: int) -> Statistics:
        which = rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        words_nk, tf_nk = self._bags
        return Statistics.count(words_nk[which], tf_nk[which], n_words)

    def _needs_index_after(self, n_rows: int) -> bool:
        """Count rows that a search is about to scan; return whether an index now pays off.

        Compiling takes longer than scanning ever will, so another process does it meanwhile.
        """
        self._rows_scanned += n_rows
        if self._blocks or self._rows_scanned <= SCANNED_ROWS_BEFORE_INDEX:
            return bool(self._blocks)
        from bm25v.compiler import compile_elsewhere
        from bm25v.index.kernels import search_block

        return not compile_elsewhere(search_block)

    def _up_to_date_blocks(self) -> "tuple[Block, ...]":
        """Return blocks of all rows except the newest."""
        blocks = self._blocks
        if not blocks or len(self._live_n) - blocks[-1].end >= _UNINDEXED_ROWS:
            blocks = self._extend_blocks()
        return blocks

    def _extend_blocks(self) -> "tuple[Block, ...]":
        from bm25v.index.block import Block
        from bm25v.index.kernels import TILE_ROWS

        with self._building:
            blocks = self._blocks
            end = blocks[-1].end if blocks else 0
            if not blocks or len(self._live_n) - end >= _UNINDEXED_ROWS:
                if blocks and blocks[-1].n_rows < TILE_ROWS:
                    *kept, last = blocks
                    blocks, end = tuple(kept), last.first_row
                start = time.perf_counter()
                new = Block.build(self._bags, end, self.statistics, self.parameters)
                seconds = duration(time.perf_counter() - start)  # with compilation on first use
                _log.info("indexed %s rows from row %s on in %s", new.n_rows, end, seconds)
                self._blocks = (*blocks, new)
            return self._blocks

    def _search_index(
        self, queries: Sequence[WeightedWords], k: int, allowed_n: Flags, n_allowed: int
    ) -> list[Ranked]:
        _check_k(k)
        blocks = self._up_to_date_blocks()
        joined = _join_queries(queries, self.statistics.n_words)
        share = n_allowed / max(1, len(allowed_n))
        parts = [
            block.search(
                self._bags, joined, self.statistics, k, allowed_n=allowed_n, allowed_share=share
            )
            for block in blocks
        ]
        indexed = blocks[-1].end
        if indexed < len(allowed_n):
            newest = indexed + np.flatnonzero(allowed_n[indexed:])
            terms = [QueryTerms.prepare(query, self.statistics) for query in queries]
            parts.append([self._scan_compiled(newest, prepared) for prepared in terms])
        if len(parts) == 1:
            return [Ranked(rows, scores) for rows, scores in parts[0]]
        ranked = []
        for of_query in zip(*parts, strict=True):
            rows, scores = (np.concatenate(part) for part in zip(*of_query, strict=True))
            ranked.append(Ranked.best(rows, scores, k))
        return ranked

    def _scan_compiled(self, rows: NDArray[np.int64], terms: QueryTerms) -> RowScores:
        from bm25v.index.block import formula_values
        from bm25v.index.kernels import scan_rows

        formula = formula_values(self.parameters, self.statistics.average_or_one)
        row_scores: RowScores = scan_rows(self._bags, rows, formula, terms[1:])
        return row_scores

    def _scan(self, rows: NDArray[np.int64], terms: QueryTerms) -> RowScores:
        words_nk, tf_nk = self._bags
        is_term_v = terms.term_v > 0
        hits, scores = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            first, end = int(chunk[0]), int(chunk[-1]) + 1
            # If no row is missing, a slice saves a copy of their bags.
            which = slice(first, end) if end - first == len(chunk) else chunk
            words_ck, tf_ck = words_nk[which], tf_nk[which]
            at, slots = np.divmod(np.flatnonzero(is_term_v[words_ck]), words_ck.shape[1])
            tf = tf_ck[at, slots]
            if not tf.all():  # a slot with tf 0 is empty
                at, slots, tf = at[tf > 0], slots[tf > 0], tf[tf > 0]
            hit_at, number = np.unique(at, return_inverse=True)
            lengths = tf_ck[hit_at].sum(axis=1, dtype=np.int64)
            norms = self.statistics.length_norms(lengths, self.parameters)
            weights = terms.term_weights[terms.term_v[words_ck[at, slots]]]
            values = weights * saturation(dequantise(tf), norms[number], self.parameters)
            summed = np.bincount(number, values, minlength=len(hit_at))  # adds in this order
            hits.append(chunk[hit_at])
            scores.append(summed.astype(np.float64))
        return np.concatenate(hits), np.concatenate(scores)


def top_positions(
    rows: NDArray[np.int64], scores: NDArray[np.floating], k: int
) -> NDArray[np.intp]:
    """Return the positions of the k best scores, best first, ties to the lower row.

    >>> top_positions(np.array([7, 8, 9]), np.array([0.5, 0.9, 0.5]), k=2).tolist()
    [1, 0]
    """
    if len(rows) <= 4 * k:  # sorting few is faster than selecting first
        return _order(rows, scores)[:k]
    kth_score = np.partition(scores, len(scores) - k)[len(scores) - k]
    positions = np.flatnonzero(scores >= kth_score)  # with all that tie with the k-th
    return positions[_order(rows[positions], scores[positions])[:k]]


def _order(rows: NDArray[np.int64], scores: NDArray[np.floating]) -> NDArray[np.intp]:
    if len(rows) >= _ROWS_TO_SORT_BY_SCORE:
        order = np.argsort(scores)[::-1]
        descending = scores[order]
        if np.count_nonzero(descending[:-1] > descending[1:]) == len(rows) - 1:
            return order  # neither a tie nor a NaN
    return np.lexsort((rows, -scores))
