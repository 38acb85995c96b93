"""The images that Qdrant returned for one search, as rows of arrays.

Rows are in the order of their paths, so that of equal scores the lower path comes first. Cosines of
many rows are computed by Qdrant, those of few from their vectors.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EngineError
from bm25v.search.concepts import ConceptTerm, sum_log_probabilities
from bm25v.search.contract import Rows
from bm25v.search.ranking import cosines
from bm25v.store.local.full_bags import FullBags
from bm25v.store.local.records import ImageRecord
from bm25v.store.local.rows import read_bag
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.conditions import with_ids
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
from bm25v.vocabulary.bag import Bag

_FEW = 64  # rows whose vectors are fetched: a hit is compared with several directions
_FETCHED_TOGETHER = 2_000  # payloads of one call
_FIELDS = ["path", "bytes", BAGS]


class FetchedImages:
    def __init__(
        self, calls: Calls, state: CollectionState, records: Sequence[Any], *, is_compiled: bool
    ) -> None:
        payloads = [record.payload for record in records]
        with reading_points(calls.where):
            paths = list(map(read_path, payloads))
        by_path = sorted(range(len(paths)), key=paths.__getitem__)
        self._records = [records[i] for i in by_path]
        self._calls, self._state, self.is_compiled = calls, state, is_compiled
        stored = read_bags([payloads[i] for i in by_path], state.layout, calls.where)
        self.bags = stored.bags  # of the index
        self.full_bags = FullBags(stored.full, state.full_statistics)
        self._vectors: dict[int, NDArray[np.float32]] = {}
        self._known: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None

    @classmethod
    def fetch(
        cls,
        calls: Calls,
        state: CollectionState,
        ids: Sequence[str],
        *,
        is_compiled: bool,
        compare_with: NDArray[np.float32] | None = None,
    ) -> "FetchedImages":
        """Fetch the images with some ids; those that were removed meanwhile are left out.

        If a vector to `compare_with` is given, the same calls return the cosines of all of them.
        """
        records: list[Any] = []
        parts = [
            ids[start : start + _FETCHED_TOGETHER]
            for start in range(0, len(ids), _FETCHED_TOGETHER)
        ]
        if compare_with is None:
            for part in parts:
                records += calls.retrieve(part, _FIELDS)
            return cls(calls, state, records, is_compiled=is_compiled)
        vector, factor = to_dense_query(compare_with, state.meta.dense_dim)
        for part in parts:
            records += calls.query_records(vector, DENSE, len(part), with_ids(part), _FIELDS)
        images = cls(calls, state, records, is_compiled=is_compiled)
        cosines_n = np.array([record.score for record in images._records], dtype=np.float32)
        images._known = (compare_with, cosines_n * np.float32(factor))
        return images

    def __len__(self) -> int:
        return len(self._records)

    @property
    def rows(self) -> Rows:
        return np.arange(len(self._records))

    def bag(self, row: int) -> Bag:
        return read_bag(self.bags[row])

    def index_bags(self, rows: Rows) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        bags = self.bags[rows]
        return bags["words"], bags["tf"]

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the dense vectors of some rows; Qdrant stores them with length 1."""
        ids = dict(zip(rows.tolist(), self.keys_of(rows), strict=True))
        missing = {row: key for row, key in ids.items() if row not in self._vectors}
        records = self._calls.retrieve(list(missing.values()), False, vectors=[DENSE])
        by_id = {record.id: record.vector[DENSE] for record in records}
        for row, key in missing.items():
            if key not in by_id:
                path = read_path(self._records[row].payload)
                raise EngineError(f"{path} was removed meanwhile: search again")
            self._vectors[row] = np.array(by_id[key], dtype=np.float32)
        return np.array([self._vectors[row] for row in rows.tolist()], dtype=np.float32)

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        if self._known is not None and self._known[0] is query_e:
            return self._known[1][rows]
        if not len(rows):
            return np.empty(0, np.float32)
        if len(rows) <= _FEW:
            return cosines(self.dense_vectors(rows), query_e, np.arange(len(rows)))
        ids = self.keys_of(rows)
        vector, factor = to_dense_query(query_e, self._state.meta.dense_dim)
        scored = self._calls.query(vector, DENSE, len(ids), with_ids(ids))
        cosine_of = {key: factor * score for key, score in zip(*scored, strict=True)}
        return np.array([cosine_of.get(key, -1.0) for key in ids], dtype=np.float32)

    def term_scores(self, terms: Sequence[ConceptTerm], rows: Rows) -> NDArray[np.float64]:
        return sum_log_probabilities(terms, self, rows)

    def paths_of(self, rows: Rows) -> list[str]:
        return [read_path(self._records[row].payload) for row in rows.tolist()]

    def keys_of(self, rows: Rows) -> list[str]:
        return [self._records[row].id for row in rows.tolist()]

    def records_of(self, rows: Rows) -> dict[int, ImageRecord]:
        ids = self.keys_of(rows)
        records = read_records(self._calls, ids)
        pairs = zip(rows.tolist(), ids, strict=True)
        return {row: records[key] for row, key in pairs if key in records}


def read_records(calls: Calls, ids: Sequence[str]) -> dict[str, ImageRecord]:
    """Return what is known about those of some images that exist, in the order of their ids."""
    records = {record.id: record.payload for record in calls.retrieve(ids, RECORD)}
    with reading_points(calls.where):
        return {key: to_record(records[key]) for key in ids if key in records}
