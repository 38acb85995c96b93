"""One state of a collection in Qdrant, as one search sees it, and the images that it returned.

Qdrant adds in float32 and has no order of ties, so more images are fetched than needed, scored here
as in `bm25v.index`, and accepted once no other image can reach them; otherwise more are fetched.
"""

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from bm25v.errors import EngineError
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords
from bm25v.index.searcher import top_positions
from bm25v.index.second_stage import PRESENCE, cosines, score_bags, score_full_bags
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import covers_enough
from bm25v.store.base import (
    Candidates,
    Coverage,
    Filter,
    Grouping,
    Rows,
    WordImages,
    find_by_name,
)
from bm25v.store.filters import ImageFilter
from bm25v.store.qdrant.calls import Calls, Scored, make_request
from bm25v.store.qdrant.points import (
    BAGS,
    DENSE,
    FOLDERS,
    RECORD,
    SPARSE,
    allow_images,
    point_id,
    read_bags,
    read_path,
    reading_points,
    select_images,
    to_dense_query,
    to_record,
    with_any_word,
)
from bm25v.store.qdrant.state import CollectionState
from bm25v.store.records import ImageRecord

_MORE = 16  # images fetched beyond those needed
_GROWTH = 4  # times as many are fetched if these do not decide
_COSINE_ERROR = 1e-5  # of a cosine that Qdrant computes
_HALF_ERROR = 5e-4  # of one with a half of the vectors: rounded to float16, halves differ in length
_ROUNDING = 2.0**-24  # relative, of one operation in float32
_MOST_COVERAGE = 1_000  # images among which the best coverage is looked for
_STRONGEST = 24  # images at least among which those with most of a word are looked for
_ALL_OF_WORD = 1_000  # images in place of all that have a word
_FEW = 64  # rows whose vectors are fetched: a hit is compared with several directions


class FetchedImages(Candidates):
    """Points with these fields; with scores if they were compared with a vector.

    Rows are in the order of their paths, so that of equal scores the lower path comes first.
    Cosines of many rows are computed by Qdrant, those of few from their vectors.
    """

    FIELDS = ("path", "bytes", BAGS)

    def __init__(
        self,
        calls: Calls,
        state: CollectionState,
        points: Sequence[Any],
        *,
        is_compiled: bool,
        compared_with: NDArray[np.float32] | None = None,
    ) -> None:
        with reading_points(calls.where):
            by_path = sorted((read_path(point.payload), i) for i, point in enumerate(points))
        self._paths = [path for path, _ in by_path]
        ordered = [points[i] for _, i in by_path]
        self._ids = [str(point.id) for point in ordered]
        stored = read_bags([point.payload for point in ordered], state.layout, calls.where)
        self.bags, self.full_bags = stored["bag"], stored["full"]
        self.rows = np.arange(len(points))
        self.n_words, self.is_compiled = state.meta.n_words, is_compiled
        self._calls, self._dim = calls, state.meta.dense_dim
        self._vectors: dict[int, NDArray[np.float32]] = {}
        self._compared_with = compared_with
        if compared_with is not None:
            _, factor = to_dense_query(compared_with, self._dim)
            scores = np.array([point.score for point in ordered], dtype=np.float32)
            self._known_cosines = scores * np.float32(factor)

    def find_rows(self, ids: Sequence[str]) -> Rows:
        """Return the rows of those of some ids that were not removed meanwhile."""
        rows = {key: row for row, key in enumerate(self._ids)}
        return np.array([rows[key] for key in ids if key in rows], dtype=np.int64)

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the dense vectors of some rows; Qdrant stores them with length 1."""
        missing = [row for row in dict.fromkeys(rows.tolist()) if row not in self._vectors]
        ids = [self._ids[row] for row in missing]
        points = self._calls.retrieve(ids, False, vectors=[DENSE])
        by_id = {point.id: point.vector[DENSE] for point in points}
        for row in missing:
            if self._ids[row] not in by_id:
                raise removed_meanwhile(self._paths[row])
            self._vectors[row] = np.array(by_id[self._ids[row]], dtype=np.float32)
        return np.array([self._vectors[row] for row in rows.tolist()], dtype=np.float32)

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        if query_e is self._compared_with:
            return self._known_cosines[rows]
        if not len(rows):
            return np.empty(0, np.float32)
        if len(rows) <= _FEW:
            return cosines(self.dense_vectors(rows), query_e, np.arange(len(rows)))
        ids = self.keys(rows)
        vector, factor = to_dense_query(query_e, self._dim)
        points = self._calls.compare(vector, DENSE, ids, False)
        cosine_of = {point.id: factor * point.score for point in points}
        return np.array([cosine_of.get(key, -1.0) for key in ids], dtype=np.float32)

    def paths(self, rows: Rows) -> list[str]:
        return [self._paths[row] for row in rows.tolist()]

    def keys(self, rows: Rows) -> list[str]:
        return [self._ids[row] for row in rows.tolist()]

    def records(self, rows: Rows) -> dict[int, ImageRecord]:
        ids = self.keys(rows)
        records = read_records(self._calls, ids)
        pairs = zip(rows.tolist(), ids, strict=True)
        return {row: records[key] for row, key in pairs if key in records}


def read_records(calls: Calls, ids: Sequence[str]) -> dict[str, ImageRecord]:
    """Return what is known about those of some images that exist, in the order of their ids."""
    payloads = {point.id: point.payload for point in calls.retrieve(ids, RECORD)}
    with reading_points(calls.where):
        return {key: to_record(payloads[key]) for key in ids if key in payloads}


def removed_meanwhile(path: str) -> EngineError:
    return EngineError(f"{path} was removed meanwhile: search again")


class QdrantView:
    """A state, with the calls that find images in it: a `View`."""

    def __init__(self, calls: Calls, state: CollectionState, *, is_compiled: bool) -> None:
        self._calls, self._state, self._is_compiled = calls, state, is_compiled
        self._selected: dict[ImageFilter, models.Filter | None] = {}
        self.meta = state.meta
        self.statistics: Statistics = state.frozen_statistics
        self.full_statistics = state.full_statistics
        self.calibration = state.calibration
        self.notes: tuple[str, ...] = ()
        if state.writer is not None:
            note = (
                f"{calls.where} is written to by {state.writer}, or that was killed: statistics "
                "may be out of date; if nothing writes, run `bm25v bags reconcile --engine`"
            )
            self.notes = (note,)

    def find(self, paths: Sequence[str]) -> dict[str, ImageRecord]:
        def find(names: list[str]) -> dict[str, ImageRecord]:
            records = read_records(self._calls, sorted({point_id(name) for name in names}))
            return {record.path: record for record in records.values()}

        return find_by_name(paths, find)

    def fetch(self, records: Sequence[ImageRecord]) -> FetchedImages:
        ids = [point_id(record.path) for record in records]
        images = self._fetch(list(dict.fromkeys(ids)))
        images.rows = images.find_rows(ids)
        if len(images.rows) < len(records):
            known = set(images.keys(images.rows))
            missing = next(i for i, key in enumerate(ids) if key not in known)
            raise removed_meanwhile(records[missing].path)
        return images

    def candidates(self, encoded: EncodedQuery) -> FetchedImages:
        allowed = self._allow(encoded.filter)
        if encoded.scoring.source == "all":
            return self._find_in_order(encoded, allowed)
        if encoded.is_filter:
            return self._fetch(self._find_first(encoded.offset + encoded.k, allowed))
        if encoded.uses_full_bags and self._count(allowed) <= encoded.n_without_index:
            parts = self._calls.scroll(allowed, False)
            return self._fetch([point.id for points in parts for point in points])
        return self._find_by_words(encoded, allowed)

    def best_coverage(self, encoded: EncodedQuery) -> Coverage:
        """Return the image that matches most of a query, among the best by words."""
        allowed, words = self._allow(encoded.filter), encoded.positive_words
        ids = self._query_words(words, _MOST_COVERAGE, allowed).ids
        if not ids and encoded.uses_full_bags:
            with_word = with_any_word(words.words.tolist(), allowed)
            ids = [point.id for point in next(self._calls.scroll(with_word, False), [])]
        images = self._fetch(ids)
        if not len(images.rows):
            return Coverage(0.0, "")
        coverages = self._coverages(encoded, images)
        best = int(np.argmax(coverages))
        return Coverage(float(coverages[best]), images.paths(np.array([best]))[0])

    def count(self, condition: Filter) -> int:
        return self._count(self._allow(condition))

    def page(
        self, images: ImageFilter, offset: int, limit: int, *, newest_first: bool = False
    ) -> list[ImageRecord]:
        """Return a part of the images that a filter selects, always by the ids of their points."""
        ids = self._calls.page(self._select(images), offset, limit) if limit > 0 else []
        return list(read_records(self._calls, ids).values())

    def count_by(self, grouping: Grouping, condition: Filter) -> Mapping[str, int]:
        if grouping == "month":
            return {}
        return self._calls.count_values(FOLDERS, self._allow(condition))

    def find_examples(self, words: Sequence[int], n: int, at_least: int) -> WordImages:
        """Return images by BM25 over the index; of others, those with most of a word first.

        Those with the word only in their full bags are a sample: ids of points have no meaning.
        """
        images, rows_by_word = self._find_with_words(words, n, at_least)
        for word, rows in rows_by_word.items():
            scores = self._score_bags(_query_word(word), images, rows)
            tf = _tf_in_full_bags(word, images, rows)
            rows_by_word[word] = rows[np.lexsort((-np.where(scores > 0, 0, tf), -scores))]
        return WordImages(images, rows_by_word)

    def find_strongest(self, words: Sequence[int], n: int | None) -> WordImages:
        """Return for each word the images with most of it, among the best by BM25."""
        n_each = _ALL_OF_WORD if n is None else max(n, _STRONGEST)
        images, rows_by_word = self._find_with_words(words, n_each, n_each)
        for word, rows in rows_by_word.items():
            order = np.argsort(-_tf_in_full_bags(word, images, rows), kind="stable")
            rows_by_word[word] = rows[order[:n]]
        return WordImages(images, rows_by_word)

    def _find_with_words(self, words: Sequence[int], n: int, at_least: int) -> WordImages:
        """Return for each word the n best images of the index, and others if these are few."""
        vectors = [self._weigh(_query_word(word)) for word in words]
        requests = [make_request(n, None, vector, SPARSE) for vector in vectors]
        scored = self._calls.query_batch(requests)
        by_word = {word: best.ids for word, best in zip(words, scored, strict=True)}
        df_v = self.full_statistics.df_v
        few = [word for word, ids in by_word.items() if len(ids) < min(at_least, df_v[word])]
        requests = [make_request(n, with_any_word([word])) for word in few]
        for word, others in zip(few, self._calls.query_batch(requests), strict=True):
            by_word[word] += [key for key in others.ids if key not in by_word[word]]
        images = self._fetch(sorted({key for ids in by_word.values() for key in ids}))
        return WordImages(
            images, {word: np.sort(images.find_rows(ids)) for word, ids in by_word.items()}
        )

    def _find_by_words(self, encoded: EncodedQuery, allowed: models.Filter | None) -> FetchedImages:
        """Return the best images by BM25 over the words of the index."""
        words, n = encoded.first_words, encoded.n_candidates
        min_coverage = 0.0 if encoded.uses_full_bags else encoded.min_coverage
        largest_saturation = self.meta.parameters.largest_saturation
        masses = np.abs(self.statistics.idf_masses(words)).sum() * largest_saturation
        largest_error = (len(words.words) + 3) * _ROUNDING * float(masses)
        limit = n + _MORE
        while True:
            ids, rough_scores = self._query_words(words, limit, allowed)
            images = self._fetch(ids, encoded.dense_e if encoded.scoring.cosine else None)
            scores = self._score_bags(words, images, images.rows)
            is_hit = scores > 0
            if min_coverage > 0:
                is_hit &= covers_enough(self._coverages(encoded, images), min_coverage)
            rows = np.flatnonzero(is_hit)
            rows = rows[top_positions(rows, scores[rows], n)]
            is_complete = len(ids) < limit or rough_scores[-1] < -largest_error
            best_other = rough_scores[-1] + largest_error if ids else 0.0
            if is_complete or (len(rows) == n and scores[rows[-1]] > best_other):
                images.rows, images.first_scores = rows, scores[rows]
                return images
            limit *= _GROWTH

    def _find_in_order(self, encoded: EncodedQuery, allowed: models.Filter | None) -> FetchedImages:
        """Return images that include the best of all by the cosine."""
        n = encoded.n_candidates
        while True:
            images = self._fetch(self._find_nearest(encoded, n, allowed))
            if encoded.min_coverage <= 0:
                return images
            is_enough = covers_enough(self._coverages(encoded, images), encoded.min_coverage)
            if np.count_nonzero(is_enough) >= encoded.n_candidates or len(is_enough) < n:
                if not encoded.uses_full_bags:  # else the second stage compares them
                    images.rows = np.flatnonzero(is_enough)
                return images
            n *= _GROWTH

    def _find_nearest(
        self, encoded: EncodedQuery, n: int, allowed: models.Filter | None
    ) -> list[str]:
        """Return the ids of images that include the n best by the cosine."""
        assert encoded.dense_e is not None
        vector, factor = to_dense_query(encoded.dense_e, self.meta.dense_dim)
        is_whole = len(encoded.dense_e) == self.meta.dense_dim
        error = _COSINE_ERROR if is_whole else _HALF_ERROR
        limit = n + _MORE
        while True:
            ids, scores = self._calls.query(vector, DENSE, limit, allowed)
            if len(ids) <= n:  # there are no more
                return ids
            needed = factor * scores[n - 1] - error
            if len(ids) < limit or needed > factor * scores[-1]:
                return [
                    key for key, score in zip(ids, scores, strict=True) if factor * score >= needed
                ]
            limit *= _GROWTH

    def _find_first(self, n: int, allowed: models.Filter | None) -> list[str]:
        """Return the ids of the n images with the lowest paths."""
        parts = self._calls.scroll(allowed, ["path", "bytes"])
        by_path = ((read_path(p.payload), str(p.id)) for points in parts for p in points)
        return [key for _, key in heapq.nsmallest(n, by_path)]

    def _select(self, images: ImageFilter) -> models.Filter | None:
        """Return the conditions of a filter; those of patterns take many calls."""
        if images not in self._selected:
            self._selected[images] = select_images(images, self._calls)
        return self._selected[images]

    def _allow(self, condition: Filter) -> models.Filter | None:
        return allow_images(condition, self._select(condition.images))

    def _count(self, allowed: models.Filter | None) -> int:
        return self.statistics.n if allowed is None else self._calls.count(allowed)

    def _weigh(self, words: WeightedWords) -> models.SparseVector:
        values = self.statistics.idf_masses(words).tolist()
        return models.SparseVector(indices=words.words.tolist(), values=values)

    def _query_words(
        self, words: WeightedWords, limit: int, allowed: models.Filter | None
    ) -> Scored:
        if not len(words.words):
            return Scored([], [])
        return self._calls.query(self._weigh(words), SPARSE, limit, allowed)

    def _fetch(
        self, ids: Sequence[str], compare_with: NDArray[np.float32] | None = None
    ) -> FetchedImages:
        """Fetch the images with some ids; those that were removed meanwhile are left out.

        If a vector to `compare_with` is given, the same calls return the cosines of all of them.
        """
        fields = list(FetchedImages.FIELDS)
        if compare_with is None:
            points = self._calls.retrieve(ids, fields)
        else:
            vector, _ = to_dense_query(compare_with, self.meta.dense_dim)
            points = self._calls.compare(vector, DENSE, ids, fields)
        return FetchedImages(
            self._calls,
            self._state,
            points,
            is_compiled=self._is_compiled,
            compared_with=compare_with,
        )

    def _score_bags(
        self,
        words: WeightedWords,
        images: Candidates,
        rows: Rows,
        parameters: Bm25Parameters | None = None,
    ) -> NDArray[np.float64]:
        """Return the scores of bags of the index, by the parameters of the collection or others."""
        bags = images.bags[rows]
        formula = (words, self.statistics, parameters or self.meta.parameters)
        return score_bags(bags["words"], bags["tf"], *formula)

    def _coverages(self, encoded: EncodedQuery, images: FetchedImages) -> NDArray[np.float64]:
        words, rows = encoded.covered_words, images.rows
        if encoded.uses_full_bags:
            statistics = self.full_statistics
            formula = (words, statistics, PRESENCE)
            shared = score_full_bags(images.full_bags, rows, *formula, compiled=self._is_compiled)
        else:
            statistics, shared = self.statistics, self._score_bags(words, images, rows, PRESENCE)
        return shared / (float(statistics.idf_masses(words).sum()) or 1.0)


def _query_word(word: int) -> WeightedWords:
    return WeightedWords(np.array([word], np.int32), np.ones(1), np.ones(1))


def _tf_in_full_bags(word: int, images: Candidates, rows: Rows) -> NDArray[np.int64]:
    words_nk, tf_nk = images.read_bags(rows, full=True)
    tf_n: NDArray[np.int64] = np.where(words_nk == word, tf_nk, 0).max(axis=1, initial=0)
    return tf_n.astype(np.int64)  # signed
