"""A gallery as one reader sees it: the committed rows of one version, and a searcher over them.

A `Snapshot` stays valid while others write. Its candidates are rows of the gallery's files; filters
are flags, one for each row. What is looked up in the catalogue raises `RowsRenumbered` once the
gallery was compacted: the store then calls the reader again.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.index.bm25 import Statistics, WeightedWords
from bm25v.index.searcher import Ranked, Searcher, SearchRequest
from bm25v.index.second_stage import PRESENCE, cosines, score_full_bags
from bm25v.store.bags import RowArray
from bm25v.store.base import (
    Candidates,
    Coverage,
    Filter,
    Grouping,
    Rows,
    WordImages,
    find_by_name,
)
from bm25v.store.filters import ImageFilter, count_in_folders
from bm25v.store.local.catalog import Catalog, RowsRenumbered, State
from bm25v.store.local.rows import RowFiles
from bm25v.store.local.selection import select_rows
from bm25v.store.meta import Meta
from bm25v.store.records import Calibration, ImageRecord

if TYPE_CHECKING:
    from bm25v.search.encode import EncodedQuery

Flags = NDArray[np.bool_]  # one for each row

_SELECTIONS_KEPT = 16  # filters whose rows are remembered, as pages of one search share them
_FULL_BAG = 16  # scoring one takes as long as scanning so many bags of the index
_CHUNK_ROWS = 4_096  # full bags that are looked at together
_SCANNED = 20_000  # full bags in which the examples of rare words are looked for
_ENTRY = np.dtype([("word", np.int32), ("row", np.int64), ("level", np.int32)])
_ROUNDING = 1e-9  # of a sum of shares


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The rows of one version and a searcher over their bags: a `View`."""

    catalog: Catalog
    meta: Meta
    version: tuple[int, ...]
    state: State
    bags: RowArray
    full_bags: RowArray
    dense_ne: NDArray[np.float16]
    searcher: Searcher
    full_statistics: Statistics
    notes: tuple[str, ...] = ()
    mapped: tuple[RowArray, ...] = ()  # the row files, with room for more rows
    _selections: dict[ImageFilter, Rows] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, catalog: Catalog, previous: "Snapshot | None" = None) -> "Snapshot":
        """Read the committed version; with a previous snapshot, only what changed since.

        Raises `RowsRenumbered` if the gallery is compacted at the same time: load again.
        """
        version = catalog.version()
        with catalog.transaction():
            state = catalog.state()
            if previous is not None and not _can_follow(previous.state, state):
                previous = None
            if previous is None:
                removed, restored = catalog.removed_rows(), np.empty(0, np.int64)
            else:
                removed, restored = catalog.changes_since(previous.state.last_change)
            full_statistics = catalog.full_statistics()
        n_words = catalog.meta.n_words
        n_known = 0 if previous is None else previous.state.n_rows
        mapped = map_rows(folder, catalog, state, previous)
        bags, dense, full_bags = (rows[: state.n_rows] for rows in mapped)
        if np.any(bags["words"][n_known:] >= n_words):
            raise GalleryDamaged(f"{folder} has words that do not exist: run bm25v verify")
        changed = np.concatenate([removed, restored])
        if np.any((changed < 0) | (changed >= len(bags))):
            raise GalleryDamaged(f"{folder} names rows that do not exist: run bm25v verify")
        arrays = bags["words"], bags["tf"]
        if previous is None:
            searcher = Searcher(
                *arrays, n_words=n_words, removed=removed, parameters=catalog.meta.parameters
            )
        else:
            searcher = previous.searcher.updated(*arrays, removed=removed, restored=restored)
        files = (bags, full_bags, dense["dense"])
        parts = (*files, searcher, full_statistics)
        return cls(catalog, catalog.meta, version, state, *parts, mapped=mapped)

    @property
    def statistics(self) -> Statistics:
        return self.searcher.statistics

    @property
    def calibration(self) -> Calibration | None:
        return self.state.calibration

    @property
    def rows(self) -> Rows:
        """The rows of all images."""
        return self.searcher.rows

    def find(self, paths: Sequence[str]) -> dict[str, ImageRecord]:
        generation = self.state.generation
        known = find_by_name(paths, lambda names: self.catalog.at_paths(names, generation))
        return {path: record for path, record in known.items() if self._has_row(record.row)}

    def _has_row(self, row: int) -> bool:
        return 0 <= row < self.state.n_rows and bool(self.searcher.live_n[row])

    def images(self, rows: Rows, first_scores: NDArray[np.float64] | None = None) -> "FolderImages":
        return FolderImages(self, rows, first_scores)

    def fetch(self, records: Sequence[ImageRecord]) -> "FolderImages":
        return self.images(np.array([record.row for record in records], dtype=np.int64))

    def candidates(self, encoded: "EncodedQuery") -> "FolderImages":
        plan = self.plan(encoded)
        if not isinstance(plan, SearchRequest):
            self.searcher.prepare_for(_FULL_BAG, len(plan))
            return self.images(plan)
        return self.accept(self.searcher.search(plan.words, plan.k, among=plan.allowed_n))

    def plan(self, encoded: "EncodedQuery") -> SearchRequest | Rows:
        """Return the first stage of a search, or all allowed rows if it needs none."""
        flags = self._flag_candidates(encoded)
        n_allowed = self.statistics.n if flags is None else int(np.count_nonzero(flags))
        is_all = n_allowed <= encoded.n_without_index
        if is_all or encoded.is_filter or encoded.scoring.source == "all":
            return self.rows if flags is None else np.flatnonzero(flags)
        return SearchRequest(encoded.first_words, encoded.n_candidates, flags)

    def accept(self, ranked: Ranked) -> "FolderImages":
        """Return the candidates that a first stage has chosen."""
        n_hits = int(np.count_nonzero(ranked.scores > 0))  # they are the first
        return self.images(ranked.rows[:n_hits], ranked.scores[:n_hits])

    def _flag_candidates(self, encoded: "EncodedQuery") -> Flags | None:
        """Return which rows a query allows; None for all.

        The second stage compares the coverage of full bags with the minimum, not this function.
        """
        min_coverage = 0 if encoded.uses_full_bags else encoded.min_coverage
        if not encoded.filter and min_coverage <= 0:
            return None
        flags = self.flag_rows(encoded.filter)
        if min_coverage > 0:
            flags &= self._coverages(encoded.positive_words) >= min_coverage - _ROUNDING
        return flags

    def flag_rows(self, condition: Filter) -> Flags:
        """Return which rows a filter allows."""
        flags = self.searcher.live_n.copy()
        if condition.images:
            is_selected = np.zeros_like(flags)
            is_selected[self.select(condition.images)] = True
            flags &= is_selected
        if condition.own_paths or condition.own_contents:
            flags[self.find_own_rows(condition)] = False
        for group in condition.must:
            rows = np.flatnonzero(flags)
            flags[rows] = self._have_any(group, rows)
        if condition.without:
            rows = np.flatnonzero(flags)
            flags[rows] = ~self._have_any(condition.without, rows)
        return flags

    def find_own_rows(self, condition: Filter) -> Rows:
        """Return the rows of a query's own images, and of their copies."""
        keys = (condition.own_paths, condition.own_contents)
        rows = self.catalog.rows_of(*keys, self.state.generation)
        return rows[rows < self.state.n_rows]

    def select(self, images: ImageFilter) -> Rows:
        """Return the rows that a filter selects; those of the last filters are remembered.

        It takes long in a large gallery, so it has a connection of its own: others search on.
        """
        rows = self._selections.get(images)
        if rows is None:
            generation = self.state.generation
            with (
                closing(Catalog(self.catalog.path)) as catalog,
                catalog.transaction(generation),
            ):
                rows = select_rows(catalog, images)
            rows = rows[rows < self.state.n_rows]
            while len(self._selections) >= _SELECTIONS_KEPT:
                self._selections.pop(next(iter(self._selections)), None)  # the oldest
            self._selections[images] = rows
        return rows

    def _coverages(self, words: WeightedWords) -> NDArray[np.float64]:
        """Return the share of a query's IDF mass that each row matches; below 0 if removed."""
        masses = self.statistics.idf_masses(words)
        return self.searcher.sum_values(words.words, masses) / (float(masses.sum()) or 1.0)

    def best_coverage(self, encoded: "EncodedQuery") -> Coverage:
        rows, words = np.flatnonzero(self.flag_rows(encoded.filter)), encoded.covered_words
        if encoded.uses_full_bags:
            statistics = self.full_statistics
            mass = float(statistics.idf_masses(words).sum()) or 1.0
            compiled = self.searcher.has_index
            formula = (words, statistics, PRESENCE)
            shared = score_full_bags(self.full_bags, rows, *formula, compiled=compiled)
            coverage_r = shared / mass
        else:
            coverage_r = self._coverages(words)[rows]
        best = int(np.argmax(coverage_r))
        (path,) = self.images(rows).paths(rows[[best]])
        return Coverage(float(coverage_r[best]), path)

    def count(self, condition: Filter) -> int:
        return int(np.count_nonzero(self.flag_rows(condition)))

    def page(
        self, images: ImageFilter, offset: int, limit: int, *, newest_first: bool = False
    ) -> list[ImageRecord]:
        """Return a part of the images that a filter selects.

        They are in the order in which they were added, or the newest first.
        """
        flags = self.flag_rows(Filter(images))
        rows = np.flatnonzero(flags)
        if newest_first:
            rows = self._newest_first[flags[self._newest_first]]
        rows = rows[offset : offset + limit]
        records = self.images(rows).records(rows)
        return [records[row] for row in rows.tolist() if row in records]

    def count_by(self, grouping: Grouping, condition: Filter) -> Mapping[str, int]:
        if grouping == "folder" and not condition:
            return self._folders
        rows = np.flatnonzero(self.flag_rows(condition))
        if grouping == "folder":
            return count_in_folders(self.images(rows).paths(rows))
        months, counts = np.unique(self._dates_n[rows].astype("datetime64[M]"), return_counts=True)
        newest_first = zip(months[::-1].astype(str), counts[::-1].tolist(), strict=True)
        return {str(month): n for month, n in newest_first}

    @cached_property
    def _dates_n(self) -> NDArray[np.datetime64]:
        dates = self.catalog.all_dates(self.state.generation)
        seconds_n = np.array([dates.get(row, 0) for row in range(self.state.n_rows)], np.int64)
        return seconds_n.astype("datetime64[s]")

    @cached_property
    def _newest_first(self) -> Rows:
        """All rows, also of removed images, by date; of the same date, the lower row first."""
        return np.argsort(-self._dates_n.astype(np.int64), kind="stable")

    @cached_property
    def _folders(self) -> Mapping[str, int]:
        paths = self.catalog.all_paths(self.state.generation)
        return count_in_folders(paths[row] for row in self.rows.tolist())

    def find_examples(self, words: Sequence[int], n: int, at_least: int) -> WordImages:
        """Return images by BM25 over the index; rare words are looked up in full bags too.

        Of many full bags, evenly chosen ones are looked through.
        """
        ranked = {word: self._rank_in_index(word, n) for word in words}
        few = [word for word, rows in ranked.items() if len(rows) < at_least]
        sample = self.rows[:: -(-len(self.rows) // _SCANNED) or 1] if few else self.rows[:0]
        for word, rows in self.find_strongest_among(sample, few, n).items():
            both = dict.fromkeys([*ranked[word].tolist(), *rows.tolist()])
            ranked[word] = np.array(list(both), dtype=np.int64)
        return WordImages(self.images(self.rows), ranked)

    def _rank_in_index(self, word: int, n: int) -> Rows:
        query = WeightedWords(np.array([word], np.int32), np.ones(1), np.ones(1))
        rows, scores = self.searcher.search(query, n)
        return rows[scores > 0]

    def find_strongest(self, words: Sequence[int], n: int | None) -> WordImages:
        """Return for each word the rows with the highest tf in full bags, ties to the lower row."""
        return WordImages(self.images(self.rows), self.find_strongest_among(self.rows, words, n))

    def find_strongest_among(
        self, rows: Rows, words: Sequence[int], n: int | None
    ) -> dict[int, Rows]:
        """Return for each word the n of some rows with most of it."""
        strongest = np.empty(0, dtype=_ENTRY)
        needed_v = np.full(self.meta.n_words + 1, 256, dtype=np.uint16)  # level, to be among them
        needed_v[list(words)] = 1
        for start in range(0, len(rows) if words else 0, _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            stored = self.full_bags[chunk]
            words_nk, levels_nk = stored["words"], stored["levels"]
            is_strong_nk = levels_nk >= needed_v[np.minimum(words_nk, self.meta.n_words)]
            at, slots = np.divmod(np.flatnonzero(is_strong_nk), is_strong_nk.shape[1])
            new = np.empty(len(at), dtype=_ENTRY)
            new["word"], new["level"] = words_nk[at, slots], levels_nk[at, slots]
            new["row"] = chunk[at]
            strongest = np.concatenate([strongest, new])
            strongest = strongest[np.lexsort((-strongest["level"], strongest["word"]))]  # stable
            if n is not None:
                ranks = _rank_within(strongest["word"])
                last = strongest[ranks == n - 1]
                needed_v[last["word"]] = last["level"] + 1
                strongest = strongest[ranks < n]
        starts = np.searchsorted(strongest["word"], np.asarray(words, dtype=np.int32))
        ends = np.searchsorted(strongest["word"], np.asarray(words, dtype=np.int32), "right")
        bounds = zip(words, starts.tolist(), ends.tolist(), strict=True)
        return {word: strongest["row"][start:end].copy() for word, start, end in bounds}

    def _have_any(self, words: Sequence[int], rows: Rows) -> Flags:
        """Return which rows have at least one of some words in their full bags."""
        is_one_v = np.zeros(self.meta.n_words + 1, dtype=bool)
        is_one_v[list(words)] = True
        flags = np.zeros(len(rows), dtype=bool)
        for start in range(0, len(rows), _CHUNK_ROWS):
            chunk = rows[start : start + _CHUNK_ROWS]
            first, end = int(chunk[0]), int(chunk[-1]) + 1
            which = slice(first, end) if end - first == len(chunk) else chunk
            words_ck = np.minimum(self.full_bags["words"][which], self.meta.n_words)
            has_word_ck = is_one_v[words_ck]
            if is_one_v[0]:  # empty slots are 0 too
                has_word_ck &= self.full_bags["levels"][which] > 0
            flags[start : start + len(chunk)] = has_word_ck.any(axis=1)
        return flags


class FolderImages(Candidates):
    """Rows of a gallery's files."""

    def __init__(
        self, snapshot: Snapshot, rows: Rows, first_scores: NDArray[np.float64] | None = None
    ) -> None:
        self.rows, self.first_scores = rows, first_scores
        self.bags, self.full_bags = snapshot.bags, snapshot.full_bags
        self.n_words, self.is_compiled = snapshot.meta.n_words, snapshot.searcher.has_index
        self._snapshot = snapshot

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        cosines_c = cosines(self._snapshot.dense_ne, query_e, rows, compiled=self.is_compiled)
        cosines_c[np.isnan(cosines_c)] = -1.0
        return cosines_c

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        return np.asarray(self._snapshot.dense_ne[rows], np.float32)

    def paths(self, rows: Rows) -> list[str]:
        snapshot = self._snapshot
        return snapshot.catalog.paths_of(rows.tolist(), snapshot.state.generation)

    def keys(self, rows: Rows) -> list[int]:
        keys: list[int] = rows.tolist()
        return keys

    def records(self, rows: Rows) -> dict[int, ImageRecord]:
        snapshot = self._snapshot
        records = snapshot.catalog.with_rows(rows.tolist(), snapshot.state.generation)
        return {record.row: record for record in records}


def map_rows(
    folder: Path, catalog: Catalog, state: State, previous: Snapshot | None = None
) -> tuple[RowArray, ...]:
    """Return at least the rows of a state, in the order of `RowFiles`.

    Those of a previous snapshot are not mapped again: a new mapping has no pages yet.
    """
    files = RowFiles.of(folder, catalog.meta, state.generation)
    known = (None, None, None) if previous is None else previous.mapped
    try:
        return tuple(file.map(state.n_rows, rows) for file, rows in zip(files, known, strict=True))
    except GalleryError:
        catalog.version()  # reconnects if needed, so that the next line sees the newest state
        with catalog.transaction():  # else the parts of a state may be of two versions
            generation = catalog.state().generation
        if generation != state.generation:
            raise RowsRenumbered from None
        raise


def _can_follow(previous: State, state: State) -> bool:
    """Return whether the catalogue lists all changes between two states."""
    is_later = previous.n_rows <= state.n_rows and previous.last_change <= state.last_change
    is_listed = previous.generation == state.generation and previous.last_change >= state.forgotten
    return is_later and is_listed


def _rank_within(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the position of each entry among those of the same word, which are neighbours."""
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    sizes = np.diff(np.append(starts, len(words)))
    return np.arange(len(words)) - np.repeat(starts, sizes)
