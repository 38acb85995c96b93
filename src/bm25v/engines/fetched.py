"""The images that Qdrant returned for one search, as rows of arrays.

In: payloads of points. Out: `Images` of `bm25v.search.contract`: rows in the order of their paths,
so that of equal scores the lower path comes first, with bags as in a gallery's files. Cosines of
many rows are computed by Qdrant, those of few from their vectors. Not this module's job: which
images these are.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.engines.calls import Calls
from bm25v.engines.conditions import with_ids
from bm25v.engines.points import (
    BAGS,
    DENSE,
    OWN,
    RECORD,
    read_bags,
    read_paths,
    reading_points,
    to_record,
)
from bm25v.engines.state import CollectionState
from bm25v.errors import EngineError
from bm25v.gallery.full_bags import FullBags
from bm25v.gallery.records import ImageRecord
from bm25v.gallery.rows import read_bag
from bm25v.search.concepts import ConceptTerm, sum_log_probabilities
from bm25v.search.contract import Rows
from bm25v.search.ranking import cosines
from bm25v.vocabulary.bag import Bag

_FEW = 64  # rows whose vectors are fetched: a hit is compared with several directions
_FETCHED_TOGETHER = 2_000  # payloads of one call
_FIELDS = ("path", "bytes", BAGS)


class FetchedImages:
    """Images of a collection, fetched for one search."""

    def __init__(
        self,
        calls: Calls,
        state: CollectionState,
        records: Sequence[Any],
        *,
        is_compiled: bool,
    ) -> None:
        payloads = [record.payload for record in records]
        with reading_points(calls.where):
            paths = read_paths(payloads)
        by_path = sorted(range(len(paths)), key=paths.__getitem__)
        self._records = [records[i] for i in by_path]
        self._calls, self._state, self.is_compiled = calls, state, is_compiled
        stored = read_bags([payloads[i] for i in by_path], state.layout, calls.where)
        self.bags = stored.bags  # of the index
        self.full_bags = None
        if stored.full is not None:
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

        def fetch_part(part: Sequence[str]) -> list[Any]:
            if compare_with is None:
                return calls.retrieve(part, _FIELDS)
            using = DENSE if len(compare_with) == state.meta.dense_dim else OWN
            vector = compare_with.tolist()
            return calls.query_records(vector, using, len(part), with_ids(part), _FIELDS)

        starts = range(0, len(ids), _FETCHED_TOGETHER)
        parts = (fetch_part(ids[start : start + _FETCHED_TOGETHER]) for start in starts)
        images = cls(calls, state, list(chain.from_iterable(parts)), is_compiled=is_compiled)
        if compare_with is not None:
            cosines_n = np.array([record.score for record in images._records], dtype=np.float32)
            images._known = (compare_with, cosines_n)
        return images

    def __len__(self) -> int:
        return len(self._records)

    @property
    def rows(self) -> Rows:
        """All rows."""
        return np.arange(len(self._records))

    def bag(self, row: int) -> Bag:
        """Return the bag that the index has of a row."""
        return read_bag(self.bags[row])

    def index_bags(self, rows: Rows) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
        """Return the words and stored tf of the bags of some rows."""
        bags = self.bags[rows]
        return bags["words"], bags["tf"]

    def dense_vectors(self, rows: Rows) -> NDArray[np.float32]:
        """Return the dense vectors of some rows; Qdrant stores them with length 1."""
        return self._fetch_vectors(rows.tolist())

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Return the cosine of a vector and each of some rows."""
        if self._known is not None and self._known[0] is query_e:
            return self._known[1][rows]
        if not len(rows):
            return np.empty(0, np.float32)
        if len(rows) <= _FEW:
            return cosines(self._fetch_vectors(rows.tolist()), query_e, np.arange(len(rows)))
        ids = self.keys_of(rows)
        using = DENSE if len(query_e) == self._state.meta.dense_dim else OWN
        scored = self._calls.query(query_e.tolist(), using, len(ids), with_ids(ids))
        scores = dict(zip(*scored, strict=True))
        return np.array([scores.get(key, -1.0) for key in ids], dtype=np.float32)

    def term_scores(self, terms: Sequence[ConceptTerm], rows: Rows) -> NDArray[np.float64]:
        """Return the logarithm of the probability of all terms in each of some rows."""
        return sum_log_probabilities(terms, self, rows)

    def paths_of(self, rows: Rows) -> list[str]:
        """Return the paths or ids of some rows."""
        return read_paths([self._records[row].payload for row in rows.tolist()])

    def keys_of(self, rows: Rows) -> list[str]:
        """Return the ids of the points of some rows."""
        return [self._records[row].id for row in rows.tolist()]

    def records_of(self, rows: Rows) -> dict[int, ImageRecord]:
        """Return what is known about the images in some rows; without those removed meanwhile."""
        ids = self.keys_of(rows)
        records = read_records(self._calls, ids)
        pairs = zip(rows.tolist(), ids, strict=True)
        return {row: records[key] for row, key in pairs if key in records}

    def _fetch_vectors(self, rows: Sequence[int]) -> NDArray[np.float32]:
        missing = {row: self._records[row].id for row in rows if row not in self._vectors}
        records = self._calls.retrieve(list(missing.values()), False, vectors=[DENSE])
        by_id = {record.id: record.vector[DENSE] for record in records}
        for row, key in missing.items():
            if key not in by_id:
                (path,) = self.paths_of(np.array([row]))
                raise EngineError(f"{path} was removed meanwhile: search again")
            self._vectors[row] = np.array(by_id[key], dtype=np.float32)
        return np.array([self._vectors[row] for row in rows], dtype=np.float32)


def read_records(calls: Calls, ids: Sequence[str]) -> dict[str, ImageRecord]:
    """Return what is known about those of some images that exist, in the order of their ids."""
    records = {record.id: record.payload for record in calls.retrieve(ids, RECORD)}
    with reading_points(calls.where):
        return {key: to_record(records[key]) for key in ids if key in records}
