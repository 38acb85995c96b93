"""The embedded engine: a gallery on this machine, as `contract` describes a collection.

In: an open gallery and its snapshots. Out: candidates by the searcher's index, and rows of the
gallery's own files. Filters are flags, one for each row.
"""

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.text import TextTower
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords
from bm25v.index.searcher import Ranked, Searcher, SearchRequest, top_positions
from bm25v.search.concepts import ConceptTerm, sum_log_probabilities
from bm25v.search.contract import (
    Coverage,
    Found,
    FoundByWord,
    ImagePage,
    Rows,
    T,
    View,
)
from bm25v.search.encode import EncodedQuery, encode_query
from bm25v.search.engine import in_threads, search_encoded
from bm25v.search.filters import RowFilter, covers_enough, find_contents, list_paths_of
from bm25v.search.query import Query, make_filter
from bm25v.search.query_images import encode_batch
from bm25v.search.ranking import cosines, score_full_bags
from bm25v.search.results import Results
from bm25v.search.word_rows import rank_rows
from bm25v.store.local.full_bags import FullBags
from bm25v.store.local.records import Calibration, ImageRecord, Meta
from bm25v.store.local.selection import ImageFilter, count_in_folders
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import GalleryInfo, GalleryStore
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag
from bm25v.vocabulary.phrases import PhraseIndex

Flags = NDArray[np.bool_]  # one for each row
# The searcher of a snapshot and first stages in; what the searcher would return for each out.
FindMany = Callable[[Searcher, Sequence[SearchRequest]], Sequence[Ranked]]


class GalleryView:
    """A snapshot to search: its images are all of its rows.

    Rows can be ranked without a store; paths and filters by what the catalogue knows need it.
    """

    notes: tuple[str, ...] = ()

    def __init__(self, snapshot: Snapshot, store: GalleryStore | None = None) -> None:
        self.snapshot, self._open_store = snapshot, store
        self._known_terms: tuple[Sequence[ConceptTerm], NDArray[np.float64]] | None = None

    @property
    def parameters(self) -> Bm25Parameters:
        return self.snapshot.searcher.parameters

    @property
    def statistics(self) -> Statistics:
        return self.snapshot.searcher.statistics

    @property
    def full_bags(self) -> FullBags:
        return self.snapshot.full_bags

    @property
    def full_statistics(self) -> Statistics:
        return self.full_bags.statistics

    @property
    def k_full(self) -> int:
        return self.full_bags.k

    @property
    def calibration(self) -> Calibration | None:
        return self.snapshot.state.calibration

    @property
    def largest_ranking(self) -> int:
        return self.statistics.n

    @property
    def is_compiled(self) -> bool:
        return self.snapshot.searcher.has_index

    def bag(self, row: int) -> Bag:
        return self.snapshot.bag(row)

    def index_bags(self, rows: Rows) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        self.snapshot.check_bags(rows.tolist())
        bags = self.snapshot.bags[rows]
        return bags["words"], bags["tf"]

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        return np.asarray(self.snapshot.dense_ne[rows], np.float32)

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        cosines_c = cosines(self.snapshot.dense_ne, query_e, rows, compiled=self.is_compiled)
        return np.nan_to_num(cosines_c, copy=False, nan=-1.0)

    def term_scores(self, terms: Sequence[ConceptTerm], rows: Rows) -> NDArray[np.float64]:
        known = self._known_terms  # other threads may set it meanwhile
        if known is not None and known[0] is terms:
            return known[1][rows]
        return sum_log_probabilities(terms, self, rows)

    def keys_of(self, rows: Rows) -> Sequence[Hashable]:
        keys: list[int] = rows.tolist()
        return keys

    def records_of(self, rows: Rows) -> dict[int, ImageRecord]:
        catalog = self._store.catalog
        with catalog.transaction(self.snapshot.state.generation):
            return {record.row: record for record in catalog.with_rows(rows.tolist())}

    def find_candidates(self, encoded: EncodedQuery) -> Found:
        plan = self.plan_candidates(encoded)
        if not isinstance(plan, SearchRequest):
            return Found(self, plan)
        return self.accept(self.snapshot.searcher.search(plan.words, plan.k, among=plan.allowed_n))

    def plan_candidates(self, encoded: EncodedQuery) -> SearchRequest | Rows:
        """Return the first stage of a search, or all allowed rows if it needs none."""
        flags = self._flag_rows(encoded)
        n_allowed = self.statistics.n if flags is None else int(np.count_nonzero(flags))
        is_all = encoded.uses_full_bags and n_allowed <= encoded.n_candidates
        if is_all or encoded.scoring.source == "all":
            return self.snapshot.rows if flags is None else np.flatnonzero(flags)
        return SearchRequest(encoded.first_words, encoded.n_candidates, flags)

    def accept(self, ranked: Ranked) -> Found:
        rows, scores = ranked
        return Found(self, rows[scores > 0], scores[scores > 0])

    def find_nearest(
        self,
        n: int,
        row_filter: RowFilter,
        *,
        dense_e: NDArray[np.float32] | None = None,
        terms: Sequence[ConceptTerm] = (),
    ) -> Found:
        rows = self.snapshot.rows
        if row_filter:
            rows = np.flatnonzero(flag_rows(row_filter, self.snapshot))
        if dense_e is not None:
            scores: NDArray[np.floating] = self.cosines(dense_e, rows)
        else:
            scores = sum_log_probabilities(terms, self, rows)
            log_probabilities_n = np.full(len(self.snapshot.dense_ne), -np.inf)
            log_probabilities_n[rows] = scores
            self._known_terms = (terms, log_probabilities_n)  # the ranking asks for them again
        return Found(self, rows[top_positions(rows, scores, n)])

    def count_images(self, row_filter: RowFilter) -> int:
        return int(np.count_nonzero(flag_rows(row_filter, self.snapshot)))

    def paths_of(self, rows: Rows) -> list[str]:
        return self._store.catalog.paths_of(rows.tolist(), self.snapshot.state.generation)

    def find_image(self, path: str) -> Found:
        row = self._store.find_image(path, self.snapshot).row
        return Found(self, np.array([row], dtype=np.int64))

    def plan_filter(
        self, query: Query, must: tuple[int, ...], without: tuple[int, ...]
    ) -> RowFilter:
        image_filter = make_filter(query)
        selected = self._store.select_rows(image_filter, self.snapshot) if image_filter else None
        return RowFilter(must, without, selected, self._find_own_rows(query))

    def find_best_coverage(self, encoded: EncodedQuery) -> Coverage:
        rows = np.flatnonzero(flag_rows(encoded.row_filter, self.snapshot))
        coverage_r = self._coverages(encoded, rows)
        best = int(np.argmax(coverage_r))
        (path,) = self.paths_of(rows[[best]])
        return Coverage(float(coverage_r[best]), path)

    def page_images(self, image_filter: ImageFilter, offset: int, limit: int) -> ImagePage:
        """Return a part of the images that a filter selects, in the order they were added in."""
        rows = self.snapshot.rows
        if image_filter:
            rows = self._store.select_rows(image_filter, self.snapshot)
        records = self.records_of(rows[offset : offset + limit])
        return ImagePage(list(records.values()), len(rows))

    def count_folders(self, row_filter: RowFilter) -> Mapping[str, int]:
        if not row_filter:
            return self._store.count_folders(self.snapshot)
        rows = np.flatnonzero(flag_rows(row_filter, self.snapshot))
        return count_in_folders(self.paths_of(rows))

    def find_with_words(self, words: Sequence[int], n: int, at_least: int) -> FoundByWord:
        return FoundByWord(self, rank_rows(self.snapshot, words, n, at_least))

    def _find_own_rows(self, query: Query) -> tuple[int, ...]:
        """Return the rows of the query's own images and of their copies, to be left out."""
        paths, contents = list_paths_of(query), find_contents(query, EmbeddedEngine(self._store))
        if not paths and not contents:
            return ()
        catalog = self._store.catalog
        with catalog.transaction(self.snapshot.state.generation):
            records = [catalog.at_path(self._store.resolve_path(path)) for path in paths]
            own = {record.row for record in records if record is not None}
            for content in contents:
                own.update(catalog.rows_where("content = ?", content).tolist())
        return tuple(sorted(row for row in own if row < self.snapshot.state.n_rows))

    def _flag_rows(self, query: EncodedQuery) -> Flags | None:
        """Return which rows a query allows; None for all.

        The second stage compares the coverage of full bags with the minimum, not this function.
        """
        min_coverage = 0 if query.uses_full_bags else query.min_coverage
        if not query.row_filter and min_coverage <= 0:
            return None
        flags = flag_rows(query.row_filter, self.snapshot)
        if min_coverage > 0:
            coverages_n = coverages(self.snapshot.searcher, query.positive_words)
            flags &= covers_enough(coverages_n, min_coverage)
        return flags

    def _coverages(self, encoded: EncodedQuery, rows: Rows) -> NDArray[np.float64]:
        words = encoded.covered_words
        if not encoded.uses_full_bags:
            return coverages(self.snapshot.searcher, words)[rows]
        masses = self.full_bags.statistics.idf_masses(words)
        scores = score_full_bags(
            self.full_bags, words, rows, self.parameters, compiled=self.is_compiled
        )
        return scores.shared_mass / (float(masses.sum()) or 1.0)

    @property
    def _store(self) -> GalleryStore:
        assert self._open_store is not None
        return self._open_store


class EmbeddedEngine:
    """An open gallery to search."""

    def __init__(self, store: GalleryStore) -> None:
        self.gallery = store

    @property
    def location(self) -> str:
        return str(self.gallery.path)

    @property
    def meta(self) -> Meta:
        return self.gallery.catalog.meta

    @property
    def vocabulary(self) -> Vocabulary:
        return self.gallery.vocabulary

    @property
    def word_names(self) -> Mapping[int, str]:
        return self.gallery.word_names

    @property
    def own_names(self) -> Mapping[int, str]:
        return self.gallery.names.current()

    @property
    def vocabulary_names(self) -> PhraseIndex:
        return self.gallery.vocabulary_names

    @property
    def text_tower(self) -> TextTower | None:
        return self.gallery.text_tower

    def find_record(self, path: str) -> ImageRecord | None:
        return self.gallery.catalog.at_path(self.gallery.resolve_path(path))

    def has_changed(self, path: str) -> bool:
        return self.gallery.has_changed(path)

    def info(self) -> GalleryInfo:
        return self.gallery.info()

    def prepare_for(self, n_searches: int) -> None:
        """Build the index now if this many searches justify it."""
        self.gallery.snapshot().searcher.prepare_for(n_searches)

    def read(self, function: Callable[[View], T]) -> T:
        return self.gallery.read(lambda snapshot: function(GalleryView(snapshot, self.gallery)))


def search_together(
    engine: EmbeddedEngine, queries: Sequence[Query], find_many: FindMany
) -> list[Results]:
    """Search with many queries; `find_many` computes their first stages, several at a time."""
    if not queries:
        return []
    start = time.perf_counter()
    encodings = in_threads(
        lambda chunk: encode_batch(chunk, engine), queries, engine.vocabulary.backbone.batch_size
    )

    def search_snapshot(snapshot: Snapshot) -> list[Results]:
        view = GalleryView(snapshot, engine.gallery)
        encoded = in_threads(
            lambda pairs: [encode_query(query, engine, view, given) for query, given in pairs],
            list(zip(queries, encodings, strict=True)),
        )
        plans = list(map(view.plan_candidates, encoded))
        encoded_at = time.perf_counter()
        requests = [plan for plan in plans if isinstance(plan, SearchRequest)]
        ranked = iter(find_many(snapshot.searcher, requests))
        found_at = time.perf_counter()
        found = [
            view.accept(next(ranked)) if isinstance(plan, SearchRequest) else Found(view, plan)
            for plan in plans
        ]
        results = in_threads(
            lambda pairs: [search_encoded(e, engine, view, f) for e, f in pairs],
            list(zip(encoded, found, strict=True)),
        )
        times = {"encode": encoded_at - start, "sparse": found_at - encoded_at}
        ms = {stage: seconds / len(queries) * 1e3 for stage, seconds in times.items()}
        return [replace(result, ms={**result.ms, **ms}) for result in results]

    return engine.gallery.read(search_snapshot)


def flag_rows(row_filter: RowFilter, snapshot: Snapshot) -> Flags:
    """Return which rows a filter allows."""
    flags = snapshot.searcher.live_n.copy()
    if row_filter.selected is not None:
        is_selected = np.zeros_like(flags)
        is_selected[row_filter.selected] = True
        flags &= is_selected
    flags[list(row_filter.own)] = False
    for word in (*row_filter.must, *row_filter.without):
        rows = np.flatnonzero(flags)
        flags[rows] = snapshot.full_bags.have_word(word, rows) == (word in row_filter.must)
    return flags


def coverages(searcher: Searcher, words: WeightedWords) -> NDArray[np.float64]:
    """Return the share of a query's IDF mass that each row matches; below 0 for removed rows."""
    masses = searcher.statistics.idf_masses(words)
    return searcher.sum_values(words.words, masses) / (float(masses.sum()) or 1.0)
