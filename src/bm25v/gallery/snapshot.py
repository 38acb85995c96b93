"""What one reader searches: the pictures of one moment, whatever is written meanwhile."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import Bag
from bm25v.errors import GalleryDamaged
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog, State
from bm25v.index.searcher import Searcher


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
            if before is None or not _follows(before.state, state):
                before, changes = None, []
                removed = catalog.removed_rows()
            else:
                changes = catalog.changes_since(before.state.last_change or 0)
        try:
            place = (folder, catalog.meta, state.generation)
            bags = row_files.bag_file(*place).view(state.n_rows)
            dense = row_files.dense_file(*place).view(state.n_rows)
        except GalleryDamaged:
            if catalog.state().generation == state.generation:
                raise
            return cls.load(folder, catalog)  # compacted meanwhile: those files are gone
        n_known = 0 if before is None else before.state.n_rows
        if np.any(bags["words"][n_known:] >= catalog.meta.n_words):
            raise GalleryDamaged(f"{folder} has words that do not exist: run bm25v verify")
        if before is None:
            n_words = catalog.meta.n_words
            searcher = Searcher(bags["words"], bags["tf"], n_words=n_words, removed=removed)
        else:
            live = dict(changes)  # the last change of a row counts
            searcher = before.searcher.updated(
                bags["words"],
                bags["tf"],
                removed=[row for row, is_live in live.items() if not is_live],
                returned=[row for row, is_live in live.items() if is_live],
            )
        return cls(version, state, bags, dense["dense"], searcher)

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows of all pictures, ascending."""
        return self.searcher.rows

    def bag(self, row: int) -> Bag:
        """Return the bag stored in a row."""
        return read_bag(self.bags[row])


def _follows(before: State, now: State) -> bool:
    """Say whether the changes between two states are known."""
    is_kept = before.last_change is not None and now.last_change is not None
    return is_kept and before.generation == now.generation


def read_bag(row: np.void) -> Bag:
    """Return the bag of one stored row."""
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def write_bag(row: np.void, bag: Bag) -> None:
    """Fill one row with a bag."""
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf
