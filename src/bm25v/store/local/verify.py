"""Checks a gallery: rows against their checksums, the catalogue, and the tables of names."""

from pathlib import Path

from bm25v.errors import GalleryDamaged
from bm25v.index.bm25 import Statistics
from bm25v.store.bags import are_bags
from bm25v.store.local import names
from bm25v.store.local.catalog import Catalog
from bm25v.store.local.snapshot import view_rows
from bm25v.store.local.writer import row_checksum
from bm25v.vocabulary.bag import LEVELS

_ROWS_AT_ONCE = 4_096


def find_problems(folder: Path, catalog: Catalog) -> list[str]:
    """Return what is wrong with a gallery, one line per problem; an intact one has none."""
    problems = [f"catalogue: {text}" for text in catalog.problems()]
    problems += names.find_problems(folder, catalog.meta)
    with catalog.transaction():
        state = catalog.state()
        records = list(catalog.records())
        statistics = None
        try:
            statistics = catalog.full_statistics()
        except GalleryDamaged:
            problems.append("catalogue: it has no valid statistics of full bags")
    files = view_rows(folder, catalog, state)
    if [record.row for record in records] != list(range(state.n_rows)):
        return [*problems, "catalogue: there are rows that it does not name"]
    n_words = catalog.meta.n_words
    counted = Statistics.empty(n_words)
    for start in range(0, state.n_rows, _ROWS_AT_ONCE):
        block = slice(start, start + _ROWS_AT_ONCE)
        bags, dense, full_bags = (rows[block] for rows in files)
        is_bag = are_bags(bags["words"], bags["tf"], n_words)
        is_full_bag = are_bags(full_bags["words"], full_bags["levels"], n_words)
        for i, record in enumerate(records[block]):
            if row_checksum(bags[i], dense[i], full_bags[i]) != record.checksum:
                problem = "its bytes have changed"
            elif not is_bag[i]:
                problem = "it is not a bag of this vocabulary"
            elif not is_full_bag[i]:
                problem = "it is not a full bag of this vocabulary"
            else:
                continue
            problems.append(f"row {record.row} ({record.path}): {problem}")
        if not problems:
            live = full_bags[[record.live for record in records[block]]]
            counted += Statistics.count(live["words"], LEVELS[live["levels"]], n_words)
    if not problems and statistics is not None:
        difference = counted - statistics
        if difference.n or difference.total_length or difference.df_v.any():
            problems.append("catalogue: its statistics are not those of the full bags")
    return problems
