"""What one reader searches: the pictures of one moment, whatever is written meanwhile."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import Bag
from bm25v.errors import GalleryDamaged
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog
from bm25v.index.searcher import Searcher

BAGS = "bags.rows"
DENSE = "dense.rows"


@dataclass(frozen=True)
class Snapshot:
    """Live rows and a searcher over their bags; searcher position i is row `rows[i]`."""

    version: tuple[int, ...]
    rows: NDArray[np.int64]
    bags: row_files.Rows
    dense_ne: NDArray[np.float16]
    searcher: Searcher

    @classmethod
    def load(cls, folder: Path, catalog: Catalog) -> "Snapshot":
        """Read the pictures that are committed now."""
        meta = catalog.meta
        version = catalog.version()
        rows = catalog.live_rows()
        n = int(rows[-1]) + 1 if len(rows) else 0
        bags = row_files.view(folder / BAGS, row_files.bag_dtype(meta.k_post, meta.n_words), n)
        dense = row_files.view(folder / DENSE, row_files.dense_dtype(meta.dense_dim), n)
        live = bags[rows]
        if np.any(live["words"] >= meta.n_words):
            raise GalleryDamaged(f"{folder / BAGS} has words that do not exist: run bm25v verify")
        searcher = Searcher(live["words"], live["tf"], n_words=meta.n_words)
        return cls(version, rows, bags, dense["dense"], searcher)

    def bag(self, row: int) -> Bag:
        """Return the bag stored in a row."""
        return read_bag(self.bags[row])


def read_bag(row: np.void) -> Bag:
    """Return the bag of one stored row."""
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def write_bag(row: np.void, bag: Bag) -> None:
    """Fill one row with a bag."""
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf
