"""What one reader searches: the pictures of one moment, whatever is written meanwhile."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog, State
from bm25v.index.searcher import Searcher
from bm25v.vocabulary.bag import Bag


@dataclass(frozen=True)
class Snapshot:
    """The rows of one moment and a searcher over their bags."""

    version: tuple[int, ...]
    state: State
    bags: row_files.Rows
    dense_ne: NDArray[np.float16]
    searcher: Searcher

    @classmethod
    def load(cls, folder: Path, catalog: Catalog, before: "Snapshot | None" = None) -> "Snapshot":
        """Read what is committed now; with an earlier snapshot, only what has changed since."""
        version = catalog.version()
        with catalog.reading():
            state = catalog.state()
            if before is not None and not _follows(before.state, state):
                before = None
            if before is None:
                removed, returned = catalog.removed_rows(), np.empty(0, np.int64)
            else:
                removed, returned = catalog.changes_since(before.state.last_change or 0)
        views = row_views(folder, catalog, state)
        if views is None:
            return cls.load(folder, catalog)
        bags, dense = views
        n_words = catalog.meta.n_words
        if np.any(bags["words"][0 if before is None else before.state.n_rows :] >= n_words):
            raise GalleryDamaged(f"{folder} has words that do not exist: run bm25v verify")
        changed = np.concatenate([removed, returned])
        if np.any((changed < 0) | (changed >= len(bags))):
            raise GalleryDamaged(f"{folder} names rows that do not exist: run bm25v verify")
        arrays = bags["words"], bags["tf"]
        if before is None:
            searcher = Searcher(*arrays, n_words=n_words, removed=removed)
        else:
            searcher = before.searcher.updated(*arrays, removed=removed, returned=returned)
        return cls(version, state, bags, dense["dense"], searcher)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all pictures, ascending."""
        return self.searcher.rows

    def bag(self, row: int) -> Bag:
        """Return the bag stored in a row."""
        bag = read_bag(self.bags[row])
        if np.any(np.diff(bag.words) <= 0):
            raise GalleryDamaged(f"row {row} is no bag: run bm25v verify")
        return bag


def row_views(
    folder: Path, catalog: Catalog, state: State
) -> tuple[row_files.Rows, row_files.Rows] | None:
    """Return the bags and dense vectors of a state, or None if they were compacted meanwhile."""
    place = (folder, catalog.meta, state.generation)
    try:
        files = (row_files.bag_file(*place), row_files.dense_file(*place))
        return files[0].view(state.n_rows), files[1].view(state.n_rows)
    except GalleryError:
        catalog.version()  # be up to date
        if catalog.state().generation == state.generation:
            raise
        return None


def _follows(before: State, now: State) -> bool:
    """Say whether the changes between two states are known."""
    if before.last_change is None or now.last_change is None:
        return False
    is_later = before.n_rows <= now.n_rows and before.last_change <= now.last_change
    is_known = before.generation == now.generation and before.last_change >= now.forgotten
    return is_later and is_known


def read_bag(row: np.void) -> Bag:
    """Return the bag of one stored row."""
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def write_bag(row: np.void, bag: Bag) -> None:
    """Fill one row with a bag."""
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf
