"""Checks a gallery: rows against their checksums, the catalogue, and the tables of names."""

from pathlib import Path

import numpy as np

from bm25v.errors import GalleryDamaged, InvalidOption
from bm25v.index.bm25 import Statistics
from bm25v.store.local.catalog import Catalog
from bm25v.store.local.full_bags import FullBagCounter
from bm25v.store.local.records import ImageRecord, Meta
from bm25v.store.local.rows import is_bag
from bm25v.store.local.snapshot import view_rows
from bm25v.store.local.word_names import AUTOMATIC
from bm25v.store.local.word_names import FILE_NAME as NAMES
from bm25v.store.local.writer import row_checksum
from bm25v.vocabulary.names import read_names


def find_problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, one line per problem; an intact one has none."""
    problems = [f"catalogue: {text}" for text in catalog.problems()]
    problems += _check_names(folder, catalog.meta)
    with catalog.transaction():
        state = catalog.state()
        records = list(catalog.records())
        statistics = None
        try:
            statistics = catalog.full_statistics()
        except GalleryDamaged:
            problems.append("catalogue: it has no valid statistics of full bags")
    bags, dense, full_bags = view_rows(folder, catalog, state)
    if [record.row for record in records] != list(range(state.n_rows)):
        return [*problems, "catalogue: there are rows that it does not name"]
    n_words = catalog.meta.n_words
    counter = FullBagCounter(Statistics.empty(n_words))
    for record in records:
        row = record.row
        problem = _check_row(record, bags[row], dense[row], full_bags[row], n_words)
        if problem:
            problems.append(f"row {row} ({record.path}): {problem}")
        elif record.live:
            counter.count(full_bags[row], times=1)
    if not problems and statistics is not None and not counter.agrees_with(statistics):
        problems.append("catalogue: its statistics are not those of the full bags")
    return problems


def _check_names(folder: Path, meta: Meta) -> list[str]:
    problems = []
    for path in (folder / NAMES, folder / AUTOMATIC):
        try:
            read_names(path, n_words=meta.n_words, vocabulary=meta.vocabulary_fingerprint)
        except FileNotFoundError:
            continue
        except InvalidOption as error:
            problems.append(str(error))
        except OSError as error:
            problems.append(f"{path}: {error.strerror}")
    return problems


def _check_row(
    record: ImageRecord,
    bag_row: np.void,
    dense_row: np.void,
    full_row: np.void,
    n_words: int,
) -> str | None:
    if row_checksum(bag_row, dense_row, full_row) != record.checksum:
        return "its bytes have changed"
    if not is_bag(bag_row["words"], bag_row["tf"], n_words):
        return "it is not a bag of this vocabulary"
    if not is_bag(full_row["words"], full_row["levels"], n_words):
        return "it is not a full bag of this vocabulary"
    return None
