"""Checks a gallery from top to bottom and names what is wrong."""

from pathlib import Path

import numpy as np

from bm25v.gallery.catalog import Catalog, ImageRecord
from bm25v.gallery.snapshot import read_bag, row_views
from bm25v.gallery.writer import row_checksum


def problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, a line each; none is a good answer."""
    found = [f"catalogue: {text}" for text in catalog.problems()]
    with catalog.reading():
        state = catalog.state()
        entries = list(catalog.entries())
    views = row_views(folder, catalog, state)
    if views is None:
        return problems(folder, catalog)
    bags, dense = views
    if [entry.row for entry in entries] != list(range(state.n_rows)):
        return [*found, "catalogue: there are rows that it does not name"]
    for entry, bag_row, dense_row in zip(entries, bags, dense, strict=True):
        problem = _problem(entry, bag_row, dense_row, catalog.meta.n_words)
        if problem:
            found.append(f"row {entry.row} ({entry.path}): {problem}")
    return found


def _problem(entry: ImageRecord, bag_row: np.void, dense_row: np.void, n_words: int) -> str | None:
    if row_checksum(bag_row.tobytes(), dense_row.tobytes()) != entry.checksum:
        return "its bytes have changed"
    words = read_bag(bag_row).words
    if np.any(words >= n_words) or np.any(np.diff(words) <= 0):
        return "not a bag of this vocabulary"
    return None
