"""Qdrant's own storage and search in this process, with the calls of its client that bm25v uses.

Each collection has several shards of qdrant-edge, Qdrant's engine as a library; points are divided
among them by their ids and results are merged by score, as a cluster does.
"""

import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import merge
from itertools import islice
from types import SimpleNamespace
from typing import Any

import qdrant_edge as edge
from qdrant_client import models

_UNDERSAMPLED_FROM = 128  # points of one call
_DISTANCES = {models.Distance.COSINE: edge.Distance.Cosine, models.Distance.DOT: edge.Distance.Dot}


class EdgeClient:
    def __init__(self, *, shards: int = 4, folder: str | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="bm25v-edge-", dir=folder)
        self._n_shards = shards
        self._collections: dict[str, list[edge.EdgeShard]] = {}

    def close(self) -> None:
        for shards in self._collections.values():
            for shard in shards:
                shard.close()
        self._collections.clear()
        self._folder.cleanup()

    def optimize(self) -> None:
        """Build what a server builds in the background."""
        for shards in self._collections.values():
            for shard in shards:
                shard.optimize()

    def collection_exists(self, collection_name: str) -> bool:
        return collection_name in self._collections

    def create_collection(
        self,
        collection_name: str,
        vectors_config: dict[str, models.VectorParams],
        sparse_vectors_config: dict[str, models.SparseVectorParams] | None = None,
        shard_number: int | None = None,
        **_: Any,
    ) -> None:
        """Create the shards of a collection; without vectors, a sparse one that nothing uses."""
        if collection_name in self._collections:
            raise ValueError(f"Collection {collection_name} already exists")
        plain = edge.HnswIndexConfig(
            m=0, ef_construct=16, full_scan_threshold=10_000, max_indexing_threads=1
        )
        config = edge.EdgeConfig(
            vectors={
                name: edge.EdgeVectorParams(
                    size=vector.size, distance=_DISTANCES[vector.distance], hnsw_config=plain
                )
                for name, vector in vectors_config.items()
            },
            sparse_vectors={
                name: edge.EdgeSparseVectorParams() for name in sparse_vectors_config or ("none",)
            },
        )
        shards = []
        for number in range(shard_number or self._n_shards):
            path = f"{self._folder.name}/{collection_name}-{number}"
            shards.append(edge.EdgeShard.create(path, config))
        self._collections[collection_name] = shards

    def delete_collection(self, collection_name: str) -> None:
        for number, shard in enumerate(self._collections.pop(collection_name)):
            shard.close()
            shutil.rmtree(f"{self._folder.name}/{collection_name}-{number}")

    def create_payload_index(
        self, collection_name: str, field_name: str, field_schema: Any, wait: bool
    ) -> None:
        is_integer = isinstance(field_schema, models.IntegerIndexParams)
        kind = edge.PayloadSchemaType.Integer if is_integer else edge.PayloadSchemaType.Keyword
        for shard in self._collections[collection_name]:
            shard.update(edge.UpdateOperation.create_field_index(field_name, kind))

    def upsert(
        self,
        collection_name: str,
        points: Sequence[models.PointStruct],
        wait: bool,
        ordering: models.WriteOrdering | None = None,
        update_filter: models.Filter | None = None,
    ) -> None:
        condition = _to_filter(update_filter)
        for shard, part in self._divide(collection_name, points):
            converted = [edge.Point(p.id, _to_vectors(p.vector), p.payload) for p in part]
            shard.update(edge.UpdateOperation.upsert_points(converted, condition))

    def update_vectors(
        self, collection_name: str, points: Sequence[models.PointVectors], wait: bool
    ) -> None:
        for shard, part in self._divide(collection_name, points):
            converted = [edge.PointVectors(p.id, _to_vectors(p.vector)) for p in part]
            shard.update(edge.UpdateOperation.update_vectors(converted))

    def delete(
        self, collection_name: str, points_selector: models.PointIdsList, wait: bool
    ) -> None:
        for shard, ids in self._divide(collection_name, points_selector.points):
            shard.update(edge.UpdateOperation.delete_points(ids))

    def retrieve(
        self, collection_name: str, ids: Sequence[Any], with_payload: Any, with_vectors: Any
    ) -> list[Any]:
        return [
            _to_record(record)
            for shard, part in self._divide(collection_name, ids)
            for record in shard.retrieve(part, with_payload, with_vectors)
        ]

    def query_points(
        self,
        collection_name: str,
        limit: int,
        query_filter: models.Filter | None,
        with_payload: bool,
        query: Any = None,
        using: str | None = None,
        offset: int = 0,
        search_params: models.SearchParams | None = None,
    ) -> Any:
        """Return the best points of all shards; without a query the first ones by id."""
        is_exact = search_params is not None and bool(search_params.exact)
        shards, n = self._collections[collection_name], offset + limit
        if not is_exact and n >= _UNDERSAMPLED_FROM:  # a cluster asks for few more than these
            n //= len(shards)
        request = edge.QueryRequest(
            limit=n,
            query=None if query is None else edge.Query.Nearest(_to_vector(query), using=using),
            filter=_to_filter(query_filter),
            params=edge.SearchParams(exact=is_exact),
            with_payload=with_payload,
        )
        lists = [shard.query(request) for shard in shards]
        in_order = merge(*lists, key=lambda point: str(point.id) if query is None else -point.score)
        best = islice(in_order, offset, offset + limit)
        points = [
            SimpleNamespace(id=str(point.id), score=point.score, payload=point.payload)
            for point in best
        ]
        return SimpleNamespace(points=points)

    def query_batch_points(
        self, collection_name: str, requests: Sequence[models.QueryRequest]
    ) -> list[Any]:
        return [
            self.query_points(
                collection_name,
                limit=request.limit or 10,
                query_filter=request.filter,
                with_payload=bool(request.with_payload),
                query=request.query,
                using=request.using,
                offset=request.offset or 0,
                search_params=request.params,
            )
            for request in requests
        ]

    def facet(
        self,
        collection_name: str,
        key: str,
        facet_filter: models.Filter | None,
        limit: int,
        exact: bool,
    ) -> Any:
        request = edge.FacetRequest(key, limit=limit, exact=exact, filter=_to_filter(facet_filter))
        counts: Counter[Any] = Counter()
        for shard in self._collections[collection_name]:
            counts.update({hit.value: hit.count for hit in shard.facet(request).hits})
        hits = [SimpleNamespace(value=value, count=n) for value, n in counts.most_common(limit)]
        return SimpleNamespace(hits=hits)

    def count(self, collection_name: str, count_filter: models.Filter | None, exact: bool) -> Any:
        request = edge.CountRequest(filter=_to_filter(count_filter), exact=exact)
        shards = self._collections[collection_name]
        return SimpleNamespace(count=sum(shard.count(request) for shard in shards))

    def scroll(
        self,
        collection_name: str,
        scroll_filter: models.Filter | None,
        limit: int,
        offset: Any,
        with_payload: Any,
        with_vectors: bool,
    ) -> tuple[list[Any], Any]:
        """Return the next points by id; the offset is the id of the first one after them."""
        request = edge.ScrollRequest(
            offset=offset,
            limit=limit + 1,
            filter=_to_filter(scroll_filter),
            with_payload=with_payload,
            with_vector=with_vectors,
        )
        lists = [shard.scroll(request)[0] for shard in self._collections[collection_name]]
        records = [_to_record(record) for part in lists for record in part]
        records.sort(key=lambda record: record.id)
        return records[:limit], records[limit].id if len(records) > limit else None

    def _divide(self, collection: str, items: Iterable[Any]) -> list[tuple[Any, list[Any]]]:
        shards = self._collections[collection]
        parts: list[list[Any]] = [[] for _ in shards]
        for item in items:
            key = str(item if isinstance(item, str) else item.id)
            parts[zlib.crc32(key.encode()) % len(shards)].append(item)
        return [(shard, part) for shard, part in zip(shards, parts, strict=True) if part]


def _to_record(record: Any) -> Any:
    """Return a point as the client of a server has it: with values of Python."""
    return SimpleNamespace(id=str(record.id), payload=record.payload, vector=record.vector)


def _to_vector(vector: Any) -> Any:
    if isinstance(vector, models.SparseVector):
        return edge.SparseVector(vector.indices, vector.values)
    return vector


def _to_vectors(vectors: Any) -> Any:
    return {name: _to_vector(vector) for name, vector in vectors.items()}


def _to_filter(conditions: models.Filter | None) -> Any:
    if conditions is None:
        return None
    groups: tuple[Any, ...] = (conditions.must, conditions.should, conditions.must_not)
    must, should, must_not = (group and [_to_condition(c) for c in group] for group in groups)
    return edge.Filter(must=must, should=should, must_not=must_not)


def _to_condition(condition: Any) -> Any:
    if isinstance(condition, models.Filter):
        return _to_filter(condition)
    if isinstance(condition, models.HasIdCondition):
        return edge.HasIdCondition(set(condition.has_id))
    if isinstance(condition, models.IsEmptyCondition):
        return edge.IsEmptyCondition(condition.is_empty.key)
    if condition.match is not None:
        return edge.FieldCondition(condition.key, match=edge.MatchAny(condition.match.any))
    bounds = condition.range.model_dump(exclude_none=True)
    return edge.FieldCondition(condition.key, range=edge.RangeFloat(**bounds))
