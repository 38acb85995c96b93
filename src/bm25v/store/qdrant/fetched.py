"""The images that Qdrant returned for one search, as rows of arrays.

Rows are in the order of their paths, so that of equal scores the lower path comes first. Cosines of
many rows are computed by Qdrant, those of few from their vectors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EngineError
from bm25v.index.second_stage import cosines
from bm25v.store.base import Candidates, Rows
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import (
    BAGS,
    DENSE,
    RECORD,
    read_bags,
    read_path,
    reading_points,
    to_dense_query,
    to_record,
)
from bm25v.store.qdrant.state import CollectionState
from bm25v.store.records import ImageRecord

_FEW = 64  # rows whose vectors are fetched: a hit is compared with several directions


class FetchedImages(Candidates):
    """Points with these fields; with scores if they were compared with a vector."""

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
