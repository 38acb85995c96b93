"""The gallery as one reader sees it: the committed rows of one version, and a searcher over them.

A `Snapshot` stays valid while others write.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.index.searcher import Searcher
from bm25v.store.local.catalog import Catalog, RowsRenumbered
from bm25v.store.local.full_bags import FullBags
from bm25v.store.local.records import State
from bm25v.store.local.rows import RowArray, RowFiles, is_bag, read_bag
from bm25v.vocabulary.bag import Bag


@dataclass(frozen=True)
class Snapshot:
    """The rows of one version and a searcher over their bags."""

    version: tuple[int, ...]
    state: State
    bags: RowArray
    dense_ne: NDArray[np.float16]
    searcher: Searcher
    full_bags: FullBags

    @classmethod
    def load(cls, folder: Path, catalog: Catalog, previous: "Snapshot | None" = None) -> "Snapshot":
        """Read the committed version; with a previous snapshot, only what changed since.

        Raises `RowsRenumbered` if the gallery is compacted at the same time: load again.
        """
        version = catalog.version()
        with catalog.transaction():
            state = catalog.state()
            if previous is not None and not _can_follow(previous.state, state):
                previous = None
            if previous is None:
                removed, restored = catalog.removed_rows(), np.empty(0, np.int64)
            else:
                removed, restored = catalog.changes_since(previous.state.last_change)
            statistics = catalog.full_statistics()
        bags, dense, full_rows = view_rows(folder, catalog, state)
        n_words = catalog.meta.n_words
        n_known = 0 if previous is None else previous.state.n_rows
        if np.any(bags["words"][n_known:] >= n_words):
            raise GalleryDamaged(f"{folder} has words that do not exist: run bm25v verify")
        changed = np.concatenate([removed, restored])
        if np.any((changed < 0) | (changed >= len(bags))):
            raise GalleryDamaged(f"{folder} names rows that do not exist: run bm25v verify")
        arrays = bags["words"], bags["tf"]
        if previous is None:
            searcher = Searcher(
                *arrays, n_words=n_words, removed=removed, parameters=catalog.meta.parameters
            )
        else:
            searcher = previous.searcher.updated(*arrays, removed=removed, restored=restored)
        full_bags = FullBags(full_rows, statistics)
        return cls(version, state, bags, dense["dense"], searcher, full_bags)

    @property
    def rows(self) -> NDArray[np.int64]:
        return self.searcher.rows

    def has_row(self, row: int) -> bool:
        """Return whether a row is that of an image, in constant time."""
        return 0 <= row < self.state.n_rows and bool(self.searcher.live_n[row])

    def bag(self, row: int) -> Bag:
        self.check_bags([row])
        return read_bag(self.bags[row])

    def check_bags(self, rows: Iterable[int]) -> None:
        for row in rows:
            stored = self.bags[row]
            if not is_bag(stored["words"], stored["tf"], self.searcher.statistics.n_words):
                raise GalleryDamaged(f"row {row} is not a valid bag: run bm25v verify")


def view_rows(folder: Path, catalog: Catalog, state: State) -> tuple[RowArray, RowArray, RowArray]:
    files = RowFiles.of(folder, catalog.meta, state.generation)
    n = state.n_rows
    try:
        return files.bags.view(n), files.dense.view(n), files.full_bags.view(n)
    except GalleryError:
        catalog.version()  # reconnects if needed, so that the next line sees the newest state
        with catalog.transaction():  # else the parts of a state may be of two versions
            generation = catalog.state().generation
        if generation != state.generation:
            raise RowsRenumbered from None
        raise


def _can_follow(previous: State, state: State) -> bool:
    """Return whether the catalogue lists all changes between two states."""
    is_later = previous.n_rows <= state.n_rows and previous.last_change <= state.last_change
    is_listed = previous.generation == state.generation and previous.last_change >= state.forgotten
    return is_later and is_listed
