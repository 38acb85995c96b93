"""Which rows a query allows, how much of the query each row covers, and why nothing matched.

In: required and excluded words, a minimum coverage, the rows that the catalogue selected. Out: a
flag for each row. Filters leave the statistics unchanged: scores are those of an unfiltered search.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count, display_path, word_label
from bm25v.errors import ImageError
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.file_state import has_size_and_time, hash_image, read_file_state
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.bm25 import Statistics, WeightedWords
from bm25v.index.searcher import Searcher
from bm25v.search.query import Query, ReadImage, StoredImage, list_images, make_filter
from bm25v.search.ranking import score_full_bags
from bm25v.vocabulary import Encoding

if TYPE_CHECKING:
    from bm25v.search.encode import EncodedQuery

_ROUNDING = 1e-9  # of a sum of shares

Flags = NDArray[np.bool_]  # one for each row
Names = Mapping[int, str]


@dataclass(frozen=True, eq=False)
class RowFilter:
    """Which rows a query rules out, whatever their scores."""

    must: tuple[int, ...] = ()  # words
    without: tuple[int, ...] = ()
    selected: NDArray[np.int64] | None = None  # by folder, date and size; None: all rows
    own_rows: tuple[int, ...] = ()  # of the query's own images

    def __bool__(self) -> bool:
        return bool(self.must or self.without or self.own_rows) or self.selected is not None

    def flag_rows(self, snapshot: Snapshot) -> Flags:
        """Return which rows are allowed."""
        flags = snapshot.searcher.live_n.copy()
        if self.selected is not None:
            is_selected = np.zeros_like(flags)
            is_selected[self.selected] = True
            flags &= is_selected
        flags[list(self.own_rows)] = False
        for word in (*self.must, *self.without):
            rows = np.flatnonzero(flags)
            flags[rows] = snapshot.have_word(word, rows) == (word in self.must)
        return flags


def select_rows(
    query: Query, store: GalleryStore, snapshot: Snapshot
) -> tuple[NDArray[np.int64] | None, list[str]]:
    """Return the rows with the folder, date and size that a query asks for, and notes about them.

    Without such a filter there are no rows, which means all.
    """
    wanted = make_filter(query)
    if not wanted:
        return None, []
    rows, n_unknown = store.select_images(wanted, snapshot)
    if not n_unknown:
        return rows, []
    remedy = "`bm25v index` on their folders stores them"
    return rows, [f"{count(n_unknown, 'image')} without stored date and size: {remedy}"]


def find_own_rows(query: Query, store: GalleryStore, snapshot: Snapshot) -> tuple[int, ...]:
    """Return the rows of the query's own images and of their copies, to be left out."""
    images = [image for image in list_images(query) if not isinstance(image, Encoding)]
    if query.include_query or not images:
        return ()
    paths = [os.fspath(image) for image in images if isinstance(image, str | os.PathLike)]
    contents = {_find_content(image, store) for image in images} - {None}
    catalog = store.catalog
    with catalog.transaction():
        catalog.check_generation(snapshot.state.generation)
        records = [catalog.at_path(store.resolve_path(path)) for path in paths]
        own = {record.row for record in records if record is not None}
        for content in contents:
            own.update(catalog.rows_where("content = ?", content).tolist())
    return tuple(sorted(row for row in own if row < snapshot.state.n_rows))


def flag_rows(snapshot: Snapshot, query: "EncodedQuery", min_coverage: float) -> Flags | None:
    """Return which rows a query allows; None for all.

    The second stage compares the coverage of full bags with the minimum, not this function.
    """
    min_coverage = 0 if query.uses_full_bags else min_coverage
    if not query.row_filter and min_coverage <= 0:
        return None
    flags = query.row_filter.flag_rows(snapshot)
    if min_coverage > 0:
        flags &= covers_enough(coverages(snapshot.searcher, query.positive_words), min_coverage)
    return flags


def covers_enough(coverage: NDArray[np.float64], min_coverage: float) -> Flags:
    """Return which coverages reach a minimum, whatever rounding did to their sums."""
    return coverage >= min_coverage - _ROUNDING


def coverages(searcher: Searcher, words: WeightedWords) -> NDArray[np.float64]:
    """Return the share of a query's IDF mass that each row matches; below 0 for removed rows."""
    masses = searcher.statistics.idf_masses(words)
    return searcher.sum_values(words.words, masses) / (float(masses.sum()) or 1.0)


def full_coverages(
    snapshot: Snapshot, words: WeightedWords, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the share of a query's IDF mass that the full bag of each of the rows matches."""
    assert snapshot.full_bags is not None
    masses = snapshot.full_bags.statistics.idf_masses(words)
    searcher = snapshot.searcher
    scores = score_full_bags(
        snapshot.full_bags, words, rows, searcher.parameters, compiled=searcher.has_index
    )
    return scores.shared_mass / (float(masses.sum()) or 1.0)


def explain_no_match(
    encoded: "EncodedQuery", query: Query, snapshot: Snapshot, catalog: Catalog, names: Names
) -> str:
    """Return the reason why a search has no hits."""
    searcher, words = snapshot.searcher, encoded.positive_words
    if searcher.statistics.n == 0:
        return "the gallery has no images"
    if query.offset:
        return f"there are no more hits after the first {query.offset:,}"
    rows = np.flatnonzero(encoded.row_filter.flag_rows(snapshot))
    condition = _describe_filters(encoded.row_filter, query, names)
    if not len(rows):
        if replace(encoded.row_filter, own_rows=()).flag_rows(snapshot).any():
            return f"there is no other image{condition} than those of the query"
        return _explain_filters(encoded.row_filter, condition, snapshot.word_statistics, names)
    if not len(words.words):
        return "the query has no words: the image has none, or all are muted"
    if encoded.uses_full_bags and snapshot.full_bags is not None:
        coverage_r = full_coverages(snapshot, words, rows)
    else:
        coverage_r = coverages(searcher, words)[rows]
    best = int(np.argmax(coverage_r))
    if coverage_r[best] <= 0:
        return f"0 of {count(len(words.words), 'word')} shared with any image{condition}"
    if coverage_r[best] < query.min_coverage:
        (path,) = catalog.paths_of([int(rows[best])], snapshot.state.generation)
        closest = f"the best has {coverage_r[best]:.2f}: {display_path(path)}"
        return f"no image{condition} reaches a coverage of {query.min_coverage:g} ({closest})"
    return "in every image, the words that count against it outweigh those that count for it"


def _find_content(image: ReadImage, store: GalleryStore) -> bytes | None:
    """Return the hash of an image's content, which copies of it have too."""
    if isinstance(image, bytes | np.ndarray):
        return hash_image(image)
    if isinstance(image, Encoding):
        return None
    record = store.catalog.at_path(store.resolve_path(image))
    if record is not None and isinstance(image, StoredImage):
        return record.content
    if record is not None and has_size_and_time(record.path, record.size, record.mtime_ns):
        return record.content
    with suppress(ImageError):  # whoever needs the pixels reports it
        return read_file_state(os.fspath(image)).content
    return None if record is None else record.content


def _explain_filters(
    row_filter: RowFilter, condition: str, statistics: Statistics, names: Names
) -> str:
    missing = [word for word in row_filter.must if statistics.df_v[word] == 0]
    if missing:
        return f"no image has {_list_words(missing, names)}"
    if row_filter.selected is not None:
        return f"no image{condition}"
    if not row_filter.must:
        return f"every image has {_list_words(row_filter.without, names, 'or')}"
    return f"no image {_describe_words(row_filter, names)}"


def _describe_filters(row_filter: RowFilter, query: Query, names: Names) -> str:
    """Return what images must be, have and not have, to follow "image"."""
    wanted = make_filter(query)
    words = _describe_words(row_filter, names)
    return (f" {wanted.describe()}" if wanted else "") + (f" that {words}" if words else "")


def _describe_words(row_filter: RowFilter, names: Names) -> str:
    """Return which words images must have and not have."""
    required = f"has {_list_words(row_filter.must, names)}" if row_filter.must else ""
    excluded = _list_words(row_filter.without, names, "or")
    if required and excluded:
        return f"{required} but not {excluded}"
    return required or (f"does not have {excluded}" if excluded else "")


def _list_words(words: Sequence[int], names: Names, conjunction: str = "and") -> str:
    """Return words as a list.

    >>> _list_words((3, 4, 7), {4: "striped ear"})
    'word 3, striped ear and word 7'
    """
    labels = [word_label(word, names.get(word)) for word in words]
    return f" {conjunction} ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
