"""The inverted index of a stretch of rows, compiled: made once, never changed.

Rows are dealt out to tiles like cards, so that each is a fair sample of all. In each tile a word
has a list of places with codes, or, if it is in many, a strip: one code for every place. A code is
the word's saturation in that row, rounded up to a few bits: good enough to rule rows out; those
that remain are scored from their bags.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.index import inverting, kernels, summing
from bm25v.index.asked import Asked, Bags, Found
from bm25v.index.bm25 import K1
from bm25v.index.statistics import Statistics

# A strip costs as much as a list of this share of the tile's rows.
_STRIP_SHARE = 1 / 24
_TILE_ROWS = kernels.TILE  # at most


@dataclass(frozen=True)
class Block:
    """Lists and strips of the rows from `first_row` on."""

    first_row: int
    n_rows: int
    average: float  # the length that the codes were made with
    starts: NDArray[np.uint32]  # of what each word has in each tile, and the end
    strips_vt: NDArray[np.int32]  # number of its strip, or -1
    places: NDArray[np.uint16]  # place p of tile t is row first_row + p · tiles + t
    codes: NDArray[np.uint8]
    strips_sb: NDArray[np.uint8]  # two places a byte

    @classmethod
    def build(cls, bags: Bags, first_row: int, statistics: Statistics) -> "Block":
        """Invert the bags from `first_row` on; a slot with tf 0 is empty."""
        words_nk, tf_nk = (part[first_row:] for part in bags)
        n_tiles = max(1, -(-len(words_nk) // _TILE_ROWS))
        count_tv = inverting.count_words(words_nk, tf_nk, statistics.n_words, n_tiles)
        lines = -(-len(words_nk) // (n_tiles * kernels.COLUMNS))
        half = max(1, -(-lines // 2)) * kernels.COLUMNS
        # A word's slots of all tiles lie side by side: a search reads memory forwards.
        count_vt = np.ascontiguousarray(count_tv.T)
        is_strip_vt = count_vt > _STRIP_SHARE * 2 * half
        numbers_vt = np.cumsum(is_strip_vt, dtype=np.int32).reshape(count_vt.shape) - 1
        listed_vt = np.where(is_strip_vt, 0, count_vt)
        starts = np.zeros(listed_vt.size + 1, dtype=np.uint32)
        np.cumsum(listed_vt, out=starts[1:])
        n_listed, n_strips = int(starts[-1]), int(is_strip_vt.sum())
        block = cls(
            first_row,
            len(words_nk),
            statistics.usual_length,
            starts,
            np.where(is_strip_vt, numbers_vt, np.int32(-1)),
            np.empty(n_listed, dtype=np.uint16),
            np.empty(n_listed, dtype=np.uint8),
            np.zeros((n_strips + 1, half), dtype=np.uint8),
        )
        inverting.fill_postings(words_nk, tf_nk, block.average, *block._arrays)
        return block

    @property
    def end(self) -> int:
        """The first row behind it."""
        return self.first_row + self.n_rows

    @property
    def nbytes(self) -> int:
        """What it holds in memory."""
        return sum(array.nbytes for array in self._arrays)

    def best(
        self,
        bags: Bags,
        usable_n: NDArray[np.bool_],
        asked: Asked,
        average: float,
        k: int,
        usable_share: float,
    ) -> Found:
        """Return rows and scores that include the k best of those that score above 0."""
        # Where pictures have become longer since, this block's look shorter and score higher.
        most = (K1 + 1) * max(1.0, average / self.average)
        look_up = (usable_n, self.first_row, *bags, average, asked.place_v, asked.gains)
        found: Found = kernels.best_rows(
            asked.words, most, *self._arrays, *look_up, k, usable_share
        )
        return found

    def sums(self, words: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return for each of its rows the sum of the values of those words that it has."""
        lists = (self.starts, self.strips_vt, self.places, self.strips_sb)
        found: NDArray[np.float64] = summing.sums(words, values, *lists, self.n_rows)
        return found

    @property
    def _arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.starts, self.strips_vt, self.places, self.codes, self.strips_sb
