"""Exact top-K by BM25: the same rows, scores and order as `reference`, faster."""

import copy
import itertools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.errors import WrongUse
from bm25v.index import scan
from bm25v.index.asked import Asked, Bags, Found
from bm25v.index.bm25 import WeightedWords
from bm25v.index.statistics import Statistics

if TYPE_CHECKING:
    from bm25v.index.block import Block

# Rows scanned before an index is made: by then, scanning has cost about as much as making it does.
_WORTH_AN_INDEX = 20_000_000

_TAIL_ROWS = 8_192  # newest rows that are scanned rather than indexed
_MOST_WORDS = 128  # that the index takes in a query: rounding would swamp the sums of more
_FEW = 0.05  # of the rows: so few are scanned

Rows = Sequence[int] | NDArray[np.int64]
Flags = NDArray[np.bool_]  # one for each row


class Ranked(NamedTuple):
    """Rows and their scores, best first."""

    rows: NDArray[np.int64]
    scores: NDArray[np.float64]


class Searcher:
    """Search bags by BM25, some rows left out. It never changes: `updated` makes another.

    >>> words = np.array([[1, 4], [2, 0], [4, 2]], dtype=np.uint16)
    >>> tf = np.array([[100, 300], [200, 0], [50, 100]], dtype=np.uint16)
    >>> wish = WeightedWords(np.array([4]), np.array([1.0]), np.array([1.0]))
    >>> searcher = Searcher(words, tf, n_words=8)
    >>> searcher.search(wish, k=2).rows.tolist()
    [0, 2]
    >>> searcher.updated(words, tf, removed=[0]).search(wish, k=2).rows.tolist()
    [2]
    """

    def __init__(
        self,
        words_nk: NDArray[np.unsignedinteger],
        tf_nk: NDArray[np.uint16],
        *,
        n_words: int,
        removed: Rows = (),
    ) -> None:
        self._bags: Bags = (words_nk, tf_nk)
        self._usable_n = np.ones(len(words_nk), dtype=bool)
        self._usable_n[np.asarray(removed, dtype=np.int64)] = False
        self.statistics = self._count(slice(None), n_words) - self._count(removed, n_words)
        self._scanned = 0
        self._blocks: tuple[Block, ...] = ()
        self._building = threading.Lock()

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that are searched, ascending."""
        return np.flatnonzero(self._usable_n)

    @property
    def nbytes(self) -> int:
        """What it holds in memory beside the bags."""
        own = self._usable_n.nbytes + self.statistics.df_v.nbytes
        return own + sum(block.nbytes for block in self._blocks)

    @property
    def has_index(self) -> bool:
        """Whether searches go through an index by now."""
        return bool(self._blocks)

    def updated(
        self,
        words_nk: NDArray[np.unsignedinteger],
        tf_nk: NDArray[np.uint16],
        *,
        removed: Rows = (),
        returned: Rows = (),
    ) -> "Searcher":
        """Return a searcher of the same rows and those behind them, some taken out or put back.

        It shares the index: beside the rows that changed, only the flags of all rows are copied.
        """
        other = copy.copy(self)
        n, n_words = len(self._usable_n), self.statistics.n_words
        other._bags = (words_nk, tf_nk)
        other._usable_n = np.ones(len(words_nk), dtype=bool)
        other._usable_n[:n] = self._usable_n
        gone, back = np.unique(np.asarray(removed, int)), np.unique(np.asarray(returned, int))
        gone, back = gone[other._usable_n[gone]], back[~other._usable_n[back]]
        other._usable_n[gone] = False
        other._usable_n[back] = True
        other.statistics = (
            self.statistics
            + other._count(slice(n, None), n_words)
            + other._count(back, n_words)
            - other._count(gone, n_words)
        )
        return other

    def search(self, query: WeightedWords, k: int, *, among: Rows | Flags | None = None) -> Ranked:
        """Return the k best rows that share a word with the query, ties to the lower row.

        With `among`, only those rows, or those flagged, are looked at; the statistics stay those
        of all.
        """
        if k < 1:
            raise WrongUse(f"k = {k}: ask for at least one result")
        asked = Asked.of(query, self.statistics)
        usable_n, n_usable = self._usable_n, self.statistics.n
        if among is not None:
            usable_n = self._only(among)
            n_usable = int(np.count_nonzero(usable_n))
        if self._pays_off(n_usable):
            rows, scores = self._by_index(asked, usable_n, n_usable, k)
        else:
            rows, scores = scan.scan(self._bags, np.flatnonzero(usable_n), self.statistics, asked)
        best = ranking.top(rows, scores, k)
        return Ranked(rows[best], scores[best])

    def search_many(
        self, queries: Sequence[WeightedWords], k: int, *, threads: int | None = None
    ) -> list[Ranked]:
        """Search for many things at once, on all cores; each result is that of `search`."""
        self.expect(len(queries))
        threads = threads or os.cpu_count() or 1
        size = max(1, -(-len(queries) // (4 * threads)))
        parts = [queries[start : start + size] for start in range(0, len(queries), size)]
        with ThreadPoolExecutor(threads) as pool:
            found = pool.map(lambda part: [self.search(query, k) for query in part], parts)
            return list(itertools.chain.from_iterable(found))

    def sums(self, words: NDArray[np.integer], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each row the sum of the values of those words that it has; -inf if it is out.

        Filters are made of it.
        """
        blocks = self._blocks
        end = blocks[-1].end if blocks else 0
        words_nk, tf_nk = self._bags
        newest = (words_nk[end:], tf_nk[end:])
        parts = [block.sums(words.astype(np.int64), values) for block in blocks]
        parts.append(scan.sums(newest, words, values, self.statistics.n_words))
        return np.where(self._usable_n, np.concatenate(parts), -np.inf)

    def expect(self, searches: int) -> None:
        """Make the index now if it pays off for so many searches."""
        if self._pays_off(searches * self.statistics.n):
            self._indexed()

    def build(self) -> None:
        """Make the index now, rather than once the searches add up."""
        self._scanned = _WORTH_AN_INDEX + 1
        self._indexed()

    def _count(self, rows: slice | Rows, n_words: int) -> Statistics:
        which = rows if isinstance(rows, slice) else np.asarray(rows, dtype=np.int64)
        words_nk, tf_nk = self._bags
        return Statistics.of(words_nk[which], tf_nk[which], n_words)

    def _only(self, among: Rows | Flags) -> Flags:
        if isinstance(among, np.ndarray) and among.dtype == bool:
            if among.shape != self._usable_n.shape:
                raise WrongUse(f"{len(among)} flags for {len(self._usable_n)} rows: give one each")
            return np.logical_and(self._usable_n, among)
        rows = np.asarray(among, dtype=np.int64)
        if np.any((rows < 0) | (rows >= len(self._usable_n))):
            raise WrongUse(f"rows go from 0 to {len(self._usable_n) - 1}, not beyond")
        usable_n = np.zeros_like(self._usable_n)
        usable_n[rows] = self._usable_n[rows]
        return usable_n

    def _pays_off(self, n_rows: int) -> bool:
        self._scanned += n_rows
        return self._scanned > _WORTH_AN_INDEX

    def _indexed(self) -> "tuple[Block, ...]":
        """Return blocks of all rows but the newest."""
        blocks = self._blocks
        if not blocks or len(self._usable_n) - blocks[-1].end >= _TAIL_ROWS:
            blocks = self._extended()
        return blocks

    def _extended(self) -> "tuple[Block, ...]":
        from bm25v.index.block import Block
        from bm25v.index.kernels import TILE

        with self._building:
            blocks = self._blocks
            end = blocks[-1].end if blocks else 0
            if not blocks or len(self._usable_n) - end >= _TAIL_ROWS:
                if blocks and blocks[-1].n_rows < TILE:
                    *kept, last = blocks
                    blocks, end = tuple(kept), last.first_row
                self._blocks = (*blocks, Block.build(self._bags, end, self.statistics))
            return self._blocks

    def _by_index(self, asked: Asked, usable_n: NDArray[np.bool_], n_usable: int, k: int) -> Found:
        """Return rows and scores that include the k best."""
        blocks = self._indexed()
        average = self.statistics.usual_length
        share = n_usable / max(1, len(usable_n))
        if share >= _FEW and len(asked.words) <= _MOST_WORDS:
            found = []
            newest = np.flatnonzero(usable_n[blocks[-1].end :])
            if len(newest):
                found.append(self._scored(blocks[-1].end + newest, asked))
            n_helpful = int(np.count_nonzero(asked.gains > 0))
            if n_helpful:
                settings = (usable_n, asked, average, k, share)
                found += [block.best(self._bags, *settings) for block in blocks]
            rows, scores = _joined(found)
            # Rows that only have words that count for nothing or less were not looked at.
            if n_helpful == len(asked.words) or np.count_nonzero(scores > 0) >= k:
                return rows, scores
        return self._scored(np.flatnonzero(usable_n), asked)

    def _scored(self, rows: NDArray[np.int64], asked: Asked) -> Found:
        """Return those of the rows that have a word that is asked for, and their scores."""
        from bm25v.index import scoring

        average = self.statistics.usual_length
        found: Found = scoring.scan(*self._bags, rows, average, asked.place_v, asked.gains)
        return found


def _joined(found: list[Found]) -> Found:
    if len(found) == 1:
        return found[0]
    rows, scores = zip((np.empty(0, np.int64), np.empty(0)), *found, strict=True)
    return np.concatenate(rows), np.concatenate(scores)
