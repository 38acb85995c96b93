"""The full bags of a gallery: reading them, and counting them for BM25.

Counting all rows would read a kilobyte for each image, so each commit stores the counts.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged
from bm25v.index.bm25 import Statistics
from bm25v.store.local.rows import RowArray, is_bag, read_full_bag
from bm25v.vocabulary.bag import LEVELS, Bag, FullBag

_CHUNK_ROWS = 16_384  # looked at once


@dataclass(frozen=True)
class FullBags:
    """The full bags of one version of the gallery, and the statistics of those of its images."""

    rows: RowArray
    statistics: Statistics

    @property
    def k(self) -> int:
        return int(self.rows.dtype["words"].shape[0])

    def full_bag(self, row: int) -> FullBag:
        self.check([row])
        return read_full_bag(self.rows[row])

    def bag(self, row: int) -> Bag:
        return self.full_bag(row).bag

    def check(self, rows: Iterable[int]) -> None:
        for row in rows:
            stored = self.rows[row]
            if not is_bag(stored["words"], stored["levels"], self.statistics.n_words):
                raise GalleryDamaged(f"row {row} is not a valid full bag: run bm25v verify")

    def read_words(self, rows: NDArray[np.int64]) -> tuple[RowArray, RowArray]:
        """Return the words of some rows and their stored tf; the tf of an empty slot is 0."""
        full_rows = self.rows[rows]
        return full_rows["words"], LEVELS[full_rows["levels"]]

    def have_word(self, word: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        flags = np.zeros(len(rows), dtype=bool)
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            first, end = int(chunk[0]), int(chunk[-1]) + 1
            which = slice(first, end) if end - first == len(chunk) else chunk
            has_word_ck = self.rows["words"][which] == word
            if word == 0:  # empty slots are 0 too
                has_word_ck &= self.rows["levels"][which] > 0
            flags[start : start + len(chunk)] = has_word_ck.any(axis=1)
        return flags


class FullBagCounter:
    """Keeps the statistics of full bags up to date while rows are added and removed."""

    def __init__(self, statistics: Statistics) -> None:
        self._n, self._df_v = statistics.n, statistics.df_v.copy()
        self._total_length = statistics.total_length

    def count(self, row: np.void, *, times: int) -> None:
        """Add a row's full bag to the counts, or with `times` = -1 take it off."""
        full_bag = read_full_bag(row)
        if np.any(full_bag.words >= len(self._df_v)):
            raise GalleryDamaged("a full bag has words that do not exist: run bm25v verify")
        self._n += times
        self._df_v[full_bag.words] += times
        self._total_length += times * int(LEVELS[full_bag.levels].sum(dtype=np.int64))

    def statistics(self) -> Statistics:
        return Statistics(self._n, self._df_v, self._total_length)

    def agrees_with(self, statistics: Statistics) -> bool:
        has_same_length = (self._n, self._total_length) == (statistics.n, statistics.total_length)
        return has_same_length and np.array_equal(self._df_v, statistics.df_v)
