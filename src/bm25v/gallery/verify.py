"""An open gallery in, its problems out: every row is read and compared with its checksum."""

from pathlib import Path

import numpy as np

from bm25v.gallery.catalog import Catalog
from bm25v.gallery.records import ImageRecord
from bm25v.gallery.rows import read_bag
from bm25v.gallery.snapshot import view_rows
from bm25v.gallery.writer import row_checksum


def find_problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, one line per problem; an intact one has none."""
    problems = [f"catalogue: {text}" for text in catalog.problems()]
    with catalog.transaction():
        state = catalog.state()
        records = list(catalog.records())
    bags, dense = view_rows(folder, catalog, state)
    if [record.row for record in records] != list(range(state.n_rows)):
        return [*problems, "catalogue: there are rows that it does not name"]
    for record, bag_row, dense_row in zip(records, bags, dense, strict=True):
        problem = _check_row(record, bag_row, dense_row, catalog.meta.n_words)
        if problem:
            problems.append(f"row {record.row} ({record.path}): {problem}")
    return problems


def _check_row(
    record: ImageRecord, bag_row: np.void, dense_row: np.void, n_words: int
) -> str | None:
    if row_checksum(bag_row.tobytes(), dense_row.tobytes()) != record.checksum:
        return "its bytes have changed"
    words = read_bag(bag_row).words
    if np.any(words >= n_words) or np.any(np.diff(words) <= 0):
        return "it is not a bag of this vocabulary"
    return None
