"""The gallery as one reader sees it: the committed rows of one version, and a searcher over them.

In: the catalogue and the row files. Out: a `Snapshot`, which stays valid while others write.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.gallery.catalog import Catalog, RowsRenumbered
from bm25v.gallery.records import State
from bm25v.gallery.rows import RowArray, bag_file, dense_file, read_bag
from bm25v.index.searcher import Searcher
from bm25v.vocabulary.bag import Bag


@dataclass(frozen=True)
class Snapshot:
    """The rows of one version and a searcher over their bags."""

    version: tuple[int, ...]
    state: State
    bags: RowArray
    dense_ne: NDArray[np.float16]
    searcher: Searcher

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
                removed, restored = catalog.changes_since(previous.state.last_change or 0)
        bags, dense = view_rows(folder, catalog, state)
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
        return cls(version, state, bags, dense["dense"], searcher)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all images, ascending."""
        return self.searcher.rows

    def bag(self, row: int) -> Bag:
        """Return the bag stored in a row."""
        bag = read_bag(self.bags[row])
        if np.any(np.diff(bag.words) <= 0):
            raise GalleryDamaged(f"row {row} is not a valid bag: run bm25v verify")
        return bag


def view_rows(folder: Path, catalog: Catalog, state: State) -> tuple[RowArray, RowArray]:
    """Return the bags and dense vectors of a state."""
    location = (folder, catalog.meta, state.generation)
    try:
        bags = bag_file(*location).view(state.n_rows)
        return bags, dense_file(*location).view(state.n_rows)
    except GalleryError:
        catalog.version()  # reconnects if needed, so that the next line sees the newest state
        if catalog.state().generation != state.generation:
            raise RowsRenumbered from None
        raise


def _can_follow(previous: State, state: State) -> bool:
    """Return whether the catalogue lists all changes between two states."""
    if previous.last_change is None or state.last_change is None:
        return False
    is_later = previous.n_rows <= state.n_rows and previous.last_change <= state.last_change
    is_listed = previous.generation == state.generation and previous.last_change >= state.forgotten
    return is_later and is_listed
