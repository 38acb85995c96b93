"""Checks a gallery from top to bottom and names what is wrong."""

from pathlib import Path

import numpy as np

from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.snapshot import read_bag
from bm25v.gallery.writer import row_checksum


def problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, a line each; none is a good answer."""
    found = [f"catalogue: {text}" for text in catalog.problems()]
    meta = catalog.meta
    with catalog.reading():
        state = catalog.state()
        pictures = list(catalog.pictures())
    place = (folder, meta, state.generation)
    bags = row_files.bag_file(*place).view(state.n_rows)
    dense = row_files.dense_file(*place).view(state.n_rows)
    for picture in pictures:
        bag_row, dense_row = bags[picture.row], dense[picture.row]
        if row_checksum(bag_row.tobytes(), dense_row.tobytes()) != picture.checksum:
            found.append(f"row {picture.row} ({picture.path}): its bytes have changed")
            continue
        words = read_bag(bag_row).words
        if np.any(words >= meta.n_words) or np.any(np.diff(words) <= 0):
            found.append(f"row {picture.row} ({picture.path}): not a bag of this vocabulary")
    return found
