"""One state of a collection in Qdrant, as one search sees it: it finds candidates.

Qdrant adds in float32 and has no order of ties, so more images are fetched than needed, scored here
as in `bm25v.index`, and accepted once no other image can reach them; otherwise more are fetched.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from bm25v.errors import ImageNotFound
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords
from bm25v.index.searcher import QueryTerms, top_positions
from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import (
    Coverage,
    Found,
    FoundByWord,
    ImagePage,
    Rows,
    SearchEngine,
)
from bm25v.search.encode import EncodedQuery
from bm25v.search.filters import RowFilter, covers_enough, find_contents, list_paths_of
from bm25v.search.query import Query, make_filter
from bm25v.search.ranking import BagScores, score_bags, score_full_bags
from bm25v.search.word_rows import query_word
from bm25v.store.local.records import Calibration
from bm25v.store.local.selection import ImageFilter
from bm25v.store.qdrant import conditions
from bm25v.store.qdrant.calls import Calls, Scored
from bm25v.store.qdrant.fetched import FetchedImages, read_records
from bm25v.store.qdrant.ordering import KnownCosines, Order
from bm25v.store.qdrant.points import DENSE, FOLDERS, SPARSE, point_id, to_dense_query
from bm25v.store.qdrant.state import CollectionState

_MORE = 16  # images fetched beyond those needed
_GROWTH = 4  # times as many are fetched if these do not decide
_ROUNDING = 2.0**-24  # relative, of one operation in float32
_MOST_COVERAGE = 1_000  # images among which the best coverage is looked for


class QdrantView:
    largest_ranking = 1_000

    def __init__(
        self, engine: SearchEngine, calls: Calls, state: CollectionState, *, is_compiled: bool
    ) -> None:
        self._engine, self._calls, self._state = engine, calls, state
        self._is_compiled = is_compiled
        self.parameters: Bm25Parameters = state.meta.parameters
        self.statistics: Statistics = state.frozen_statistics
        self.full_statistics: Statistics = state.full_statistics
        self.k_full = state.meta.k_full
        self.calibration: Calibration | None = state.calibration

    @property
    def notes(self) -> tuple[str, ...]:
        if self._state.writer is None:
            return ()
        return (
            f"{self._calls.where} is written to by {self._state.writer}, or that was killed: "
            "statistics may be out of date; if nothing writes, run `bm25v bags reconcile --engine`",
        )

    def plan_filter(
        self, query: Query, must: tuple[int, ...], without: tuple[int, ...]
    ) -> RowFilter:
        records = (self._engine.find_record(path) for path in list_paths_of(query))
        ids = [point_id(record.path) for record in records if record is not None]
        own = conditions.own_images(ids, list(find_contents(query, self._engine)))
        return RowFilter(must, without, conditions.select(make_filter(query), self._calls), own)

    def find_candidates(self, encoded: EncodedQuery) -> Found:
        allowed = conditions.to_conditions(encoded.row_filter)
        if encoded.scoring.source == "all":
            return self._find_in_order(encoded, allowed)
        if encoded.uses_full_bags and self._count(allowed) <= encoded.n_candidates:
            parts = self._calls.scroll(allowed, False)
            images = self._fetch([record.id for records in parts for record in records])
            return Found(images, images.rows)
        return self._find_by_words(encoded, allowed)

    def find_nearest(
        self,
        n: int,
        row_filter: RowFilter,
        *,
        dense_e: NDArray[np.float32] | None = None,
        terms: Sequence[ConceptTerm] = (),
    ) -> Found:
        order = Order(dense_e, terms, 1.0, 0.0, self._state.meta.dense_dim)
        images = self._fetch(self._order_all(order, n, conditions.to_conditions(row_filter)))
        scores = order.score(images, len(images))
        return Found(images, top_positions(images.rows, scores, n))

    def find_image(self, path: str) -> Found:
        record = self._engine.find_record(path)
        if record is None:
            raise ImageNotFound(f"{path} is not in {self._calls.where}: load it first")
        images = self._fetch([point_id(record.path)])
        return Found(images, images.rows)

    def count_images(self, row_filter: RowFilter) -> int:
        return self._count(conditions.to_conditions(row_filter))

    def find_best_coverage(self, encoded: EncodedQuery) -> Coverage:
        """Return the image that matches most of a query, among the best by words."""
        allowed = conditions.to_conditions(encoded.row_filter)
        words = encoded.positive_words
        positive = WeightedWords(words.words, np.abs(words.weights), words.frequencies)
        ids = self._query_words(positive, _MOST_COVERAGE, allowed).ids
        if not ids and encoded.uses_full_bags:
            with_word = conditions.with_any_word(words.words.tolist(), allowed)
            first = next(self._calls.scroll(with_word, False), [])
            ids = [record.id for record in first]
        images = self._fetch(ids)
        if not len(images):
            return Coverage(0.0, "")
        coverages = self._coverages(encoded, images)
        best = int(np.argmax(coverages))
        return Coverage(float(coverages[best]), images.paths_of(np.array([best]))[0])

    def page_images(self, image_filter: ImageFilter, offset: int, limit: int) -> ImagePage:
        """Return a part of the images that a filter selects, by the ids of their points."""
        selected = conditions.select(image_filter, self._calls)
        total = self._count(selected)
        ids = self._calls.page(selected, offset, limit) if offset < total else []
        return ImagePage(list(read_records(self._calls, ids).values()), total)

    def count_folders(self, row_filter: RowFilter) -> Mapping[str, int]:
        return self._calls.count_values(FOLDERS, conditions.to_conditions(row_filter))

    def find_with_words(self, words: Sequence[int], n: int, at_least: int) -> FoundByWord:
        """Return for each word images that have it, best first.

        Those with the word only in their full bags are a sample: ids of points have no meaning.
        """
        by_word, df_v = {}, self.full_statistics.df_v
        for word in words:
            ids = self._query_words(query_word(word), n, None).ids
            if len(ids) < min(at_least, df_v[word]):
                ids += self._calls.page(conditions.with_any_word([word], None), 0, n)
            by_word[word] = set(ids)
        images = self._fetch(sorted(set().union(*by_word.values())))
        rows = {key: row for row, key in enumerate(images.keys_of(images.rows))}
        return FoundByWord(
            images,
            {
                word: self._rank(word, images, sorted(rows[key] for key in ids if key in rows))
                for word, ids in by_word.items()
            },
        )

    def _rank(self, word: int, images: FetchedImages, rows: Sequence[int]) -> Rows:
        """Return rows by the score of a word in the index, then by its tf in full bags."""
        ordered = np.array(rows, dtype=np.int64)
        terms = QueryTerms.prepare(query_word(word), self.statistics)
        bags = images.index_bags(ordered)
        scores = score_bags(*bags, terms, self.statistics, self.parameters).bm25
        words_nk, tf_nk = images.full_bags.read_words(ordered)
        tf = np.where(words_nk == word, tf_nk, 0).max(axis=1, initial=0)
        return ordered[np.lexsort((-np.where(scores > 0, 0, tf.astype(np.int64)), -scores))]

    def _find_by_words(
        self,
        encoded: EncodedQuery,
        allowed: models.Filter | None,
    ) -> Found:
        """Return the best images by BM25 over the words of the index."""
        words, n = encoded.first_words, encoded.n_candidates
        min_coverage = 0.0 if encoded.uses_full_bags else encoded.min_coverage
        masses = (
            np.abs(self.statistics.idf_masses(words)).sum() * self.parameters.largest_saturation
        )
        largest_error = (len(words.words) + 3) * _ROUNDING * float(masses)
        limit = n + _MORE
        while True:
            ids, rough_scores = self._query_words(words, limit, allowed)
            images = self._fetch(ids, encoded.dense_e if encoded.scoring.cosine else None)
            scores = self._score_bags(words, images).bm25
            is_hit = scores > 0
            if min_coverage > 0:
                is_hit &= covers_enough(self._coverages(encoded, images), min_coverage)
            rows = np.flatnonzero(is_hit)
            rows = rows[top_positions(rows, scores[rows], n)]
            is_complete = len(ids) < limit or rough_scores[-1] < -largest_error
            best_other = rough_scores[-1] + largest_error if ids else 0.0
            if is_complete or (len(rows) == n and scores[rows[-1]] > best_other):
                return Found(images, rows, scores[rows])
            limit *= _GROWTH

    def _find_in_order(
        self,
        encoded: EncodedQuery,
        allowed: models.Filter | None,
    ) -> Found:
        """Return images that include the best of all, by cosines and concepts."""
        scoring = encoded.scoring
        dense_e = encoded.dense_e if scoring.cosine else None
        slack = scoring.words if encoded.words_order else 0.0  # the most that BM25 adds
        dim = self._state.meta.dense_dim
        order = Order(dense_e, encoded.terms, scoring.terms, slack, dim)
        n = encoded.n_candidates
        while True:
            ids = self._order_all(order, n, allowed)
            images = self._fetch(ids)
            rows = images.rows
            if encoded.min_coverage > 0:
                is_enough = covers_enough(self._coverages(encoded, images), encoded.min_coverage)
                if not encoded.uses_full_bags:  # else the second stage compares them
                    rows = np.flatnonzero(is_enough)
                if np.count_nonzero(is_enough) < encoded.n_candidates and len(images) >= n:
                    n *= _GROWTH
                    continue
            return Found(images, rows)

    def _order_all(self, order: Order, n_needed: int, allowed: models.Filter | None) -> list[str]:
        """Return the ids of images that include the n best, by the threshold algorithm.

        The best images by each direction are ordered. No other image is better than one that is in
        each direction as good as the last of these.
        """
        limit = n_needed + _MORE
        while True:
            best = [self._query_dense(vector, limit, allowed) for vector in order.directions]
            ids = list(dict.fromkeys(key for scored in best for key in scored.ids))
            if len(best) == 1:
                cosines = KnownCosines(order.directions, [best[0].scores])
            else:
                cosines = self._compare(order, ids)
            scores = order.score(cosines, len(ids))
            if any(len(scored.ids) < limit for scored in best):
                return self._keep_best(ids, scores, n_needed, order)
            last = KnownCosines(order.directions, [scored.scores[-1:] for scored in best])
            (best_other,) = order.score(last, 1).tolist()
            needed = np.partition(scores, -n_needed)[-n_needed]
            if needed > best_other + order.slack + order.largest_error:
                return self._keep_best(ids, scores, n_needed, order)
            limit *= _GROWTH

    def _compare(self, order: Order, ids: list[str]) -> KnownCosines:
        among = conditions.with_ids(ids)
        columns = []
        for vector in order.directions:
            known = dict(zip(*self._query_dense(vector, len(ids), among), strict=True))
            columns.append([known.get(key, -1.0) for key in ids])
        return KnownCosines(order.directions, columns)

    @staticmethod
    def _keep_best(
        ids: list[str], scores: NDArray[np.float64], n_needed: int, order: Order
    ) -> list[str]:
        if len(ids) <= n_needed:
            return ids
        needed = np.partition(scores, -n_needed)[-n_needed]
        kept = np.flatnonzero(scores >= needed - order.slack - order.largest_error)
        return [ids[i] for i in kept.tolist()]

    def _query_words(
        self, words: WeightedWords, limit: int, allowed: models.Filter | None
    ) -> Scored:
        if not len(words.words):
            return Scored([], [])
        values = self.statistics.idf_masses(words).tolist()
        vector = models.SparseVector(indices=words.words.tolist(), values=values)
        return self._calls.query(vector, SPARSE, limit, allowed)

    def _query_dense(
        self, vector_e: NDArray[np.float32], limit: int, allowed: models.Filter | None
    ) -> Scored:
        vector, factor = to_dense_query(vector_e, self._state.meta.dense_dim)
        ids, scores = self._calls.query(vector, DENSE, limit, allowed)
        return Scored(ids, [factor * score for score in scores])

    def _fetch(
        self, ids: Sequence[str], compare_with: NDArray[np.float32] | None = None
    ) -> FetchedImages:
        return FetchedImages.fetch(
            self._calls, self._state, ids, is_compiled=self._is_compiled, compare_with=compare_with
        )

    def _count(self, allowed: models.Filter | None) -> int:
        return self._state.statistics.n if allowed is None else self._calls.count(allowed)

    def _score_bags(self, words: WeightedWords, images: FetchedImages) -> BagScores:
        terms = QueryTerms.prepare(words, self.statistics)
        bags, formula = images.bags, (terms, self.statistics, self.parameters)
        return score_bags(bags["words"], bags["tf"], *formula, compiled=self._is_compiled)

    def _coverages(self, encoded: EncodedQuery, images: FetchedImages) -> NDArray[np.float64]:
        words = encoded.covered_words
        if encoded.uses_full_bags:
            scores = score_full_bags(images.full_bags, words, images.rows, self.parameters)
            masses = images.full_bags.statistics.idf_masses(words)
        else:
            scores, masses = self._score_bags(words, images), self.statistics.idf_masses(words)
        return scores.shared_mass / (float(masses.sum()) or 1.0)
