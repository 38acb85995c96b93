"""Checks a gallery from top to bottom and names what is wrong."""

from pathlib import Path

import numpy as np

from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.snapshot import BAGS, DENSE, read_bag
from bm25v.gallery.writer import row_checksum


def problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, a line each; none is a good answer."""
    found = [f"catalogue: {text}" for text in catalog.problems()]
    meta = catalog.meta
    pictures = list(catalog.pictures())
    n = pictures[-1].row + 1 if pictures else 0
    bags = row_files.view(folder / BAGS, row_files.bag_dtype(meta.k_post, meta.n_words), n)
    dense = row_files.view(folder / DENSE, row_files.dense_dtype(meta.dense_dim), n)
    for picture in pictures:
        bag_row, dense_row = bags[picture.row], dense[picture.row]
        if row_checksum(bag_row.tobytes(), dense_row.tobytes()) != picture.checksum:
            found.append(f"row {picture.row} ({picture.path}): its bytes have changed")
            continue
        words = read_bag(bag_row).words
        if np.any(words >= meta.n_words) or np.any(np.diff(words) <= 0):
            found.append(f"row {picture.row} ({picture.path}): not a bag of this vocabulary")
    return found
