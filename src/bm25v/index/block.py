"""The inverted index of a stretch of rows, compiled: made once, never changed.

Rows are dealt out to tiles like cards, so that each is a fair sample of all. In each tile a word
has a list of places with codes, or, if it is in many, a strip: one code for every place. A code is
the word's saturation in that row, rounded up to a few bits: good enough to rule rows out; those
that remain are scored from their bags.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.index import kernels
from bm25v.index.asked import Asked, Bags, Found
from bm25v.index.reference import K1
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
    starts_vt: NDArray[np.uint32]  # tile t of word w holds the slots [w, t] to [w + 1, t]
    strips_vt: NDArray[np.int32]  # number of its strip, or -1
    places: NDArray[np.uint16]  # place p of tile t is row first_row + p · tiles + t
    codes: NDArray[np.uint8]
    strips_sb: NDArray[np.uint8]  # two places a byte

    @classmethod
    def build(cls, bags: Bags, first_row: int, statistics: Statistics) -> "Block":
        """Invert the bags from `first_row` on; a slot with tf 0 is empty."""
        words_nk, tf_nk = (part[first_row:] for part in bags)
        n_tiles = max(1, -(-len(words_nk) // _TILE_ROWS))
        count_tv = kernels.count_words(words_nk, tf_nk, statistics.n_words, n_tiles)
        lines = -(-len(words_nk) // (n_tiles * kernels.COLUMNS))
        half = max(1, -(-lines // 2)) * kernels.COLUMNS
        is_strip_tv = count_tv > _STRIP_SHARE * 2 * half
        numbers_tv = np.cumsum(is_strip_tv, dtype=np.int32).reshape(count_tv.shape) - 1
        strips_tv = np.where(is_strip_tv, numbers_tv, -1).astype(np.int32)
        listed_tv = np.where(is_strip_tv, 0, count_tv)
        ends_tv = np.cumsum(listed_tv, dtype=np.uint32).reshape(count_tv.shape)
        starts_vt = np.empty((statistics.n_words + 1, len(count_tv)), dtype=np.uint32)
        starts_vt[:-1] = (ends_tv - listed_tv).T
        starts_vt[-1] = ends_tv[:, -1]
        n_listed, n_strips = int(listed_tv.sum()), int(is_strip_tv.sum())
        block = cls(
            first_row,
            len(words_nk),
            statistics.usual_length,
            starts_vt,
            np.ascontiguousarray(strips_tv.T),
            np.empty(n_listed, dtype=np.uint16),
            np.empty(n_listed, dtype=np.uint8),
            np.zeros((n_strips + 1, half), dtype=np.uint8),
        )
        kernels.fill_postings(words_nk, tf_nk, block.average, *block._arrays)
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
        a_tile = k / self.strips_vt.shape[1]  # of the k best; more, for chance
        sample = int((2 * a_tile + 4 * a_tile**0.5 + 4) / usable_share)
        look_up = (usable_n, self.first_row, *bags, average, asked.place_v, asked.gains)
        found: Found = kernels.best_rows(asked.words, most, *self._arrays, *look_up, k, sample)
        return found

    @property
    def _arrays(self) -> tuple[NDArray[np.generic], ...]:
        return self.starts_vt, self.strips_vt, self.places, self.codes, self.strips_sb
