"""Keeps the statistics of full bags: counting all rows would read a kilobyte for each image."""

import numpy as np

from bm25v.errors import GalleryDamaged
from bm25v.index.bm25 import Statistics
from bm25v.store.local.rows import read_full_bag
from bm25v.vocabulary.bag import LEVELS


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
