"""The few calls to Qdrant that are used, each tried again if it failed for a passing reason.

All calls can be repeated without harm: points are written under ids that depend only on the image.
"""

import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import grpc
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from bm25v.errors import EngineError, InvalidOption
from bm25v.store.qdrant import API_KEY, MEMORY, Address

ATTEMPTS = 5
FIRST_PAUSE = 0.2  # seconds before the second attempt, doubled each time

_POINTS_TOGETHER = 2_000  # that one call returns by their ids
_SCROLLED_TOGETHER = 1_000
_QUERIES_TOGETHER = 500
_VALUES = 100_000  # that are counted at most
_SECONDS = 60  # until a call is given up
_RECONNECT_MS = 1_000  # at most, between attempts: gRPC would wait for up to two minutes
_LOCAL = ("localhost", "127.0.0.1", "::1")
_PASSING = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,  # also a shard without a live replica
)
_EXACT = models.SearchParams(exact=True)  # else limits from 128 on are undersampled per shard

_log = logging.getLogger(__name__)


class Scored(NamedTuple):
    """The ids and scores of points, best first."""

    ids: list[str]
    scores: list[float]


def connect(address: Address) -> Any:
    """Return a client that connects at the first call, by gRPC, to this server alone."""
    if address.host == MEMORY:
        return _memory
    return QdrantClient(
        host=address.host,
        grpc_port=address.port,
        prefer_grpc=True,
        https=address.tls,
        api_key=read_api_key(address),
        timeout=_SECONDS,
        grpc_options={
            "grpc.enable_http_proxy": int(address.host not in _LOCAL),
            "grpc.max_reconnect_backoff_ms": _RECONNECT_MS,
        },
        check_compatibility=False,  # it would ask another port, and print
    )


def read_api_key(address: Address) -> str | None:
    """Return the key of the server; it is not sent unencrypted to another machine."""
    key = os.environ.get(API_KEY) or None
    if key is not None and not address.tls and address.host not in _LOCAL:
        raise InvalidOption(f"{API_KEY} is set, and {address} is not encrypted: give qdrants://")
    return key


class _MemoryClient:
    """The client's own engine, which stores of this process share: it answers one at a time."""

    def __init__(self) -> None:
        self._client: QdrantClient | None = None
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(**values: Any) -> Any:
            with self._lock:
                if self._client is None:
                    no_effect = "Payload indexes have no effect|Local mode performs exact"
                    warnings.filterwarnings("ignore", no_effect)
                    self._client = QdrantClient(MEMORY)
                return getattr(self._client, name)(**values)

        return call

    def close(self) -> None:
        """Keep the collections: others may use them."""


_memory = _MemoryClient()


def make_request(
    limit: int, conditions: models.Filter | None, vector: Any = None, using: str | None = None
) -> models.QueryRequest:
    """Return a query of a batch: for the best points, or without a vector for the first by id."""
    return models.QueryRequest.model_construct(
        query=vector,
        using=using,
        limit=limit,
        filter=conditions,
        params=_EXACT,
        with_payload=False,
    )


def with_ids(ids: Sequence[str]) -> models.Filter:
    condition = models.HasIdCondition.model_construct(has_id=list(ids))  # they are many: unchecked
    return models.Filter.model_construct(must=[condition])


class Calls:
    """Calls about one collection of a server."""

    def __init__(self, client: Any, collection: str, where: str) -> None:
        self._client, self.collection, self.where = client, collection, where

    def close(self) -> None:
        self._client.close()

    def of(self, collection: str) -> "Calls":
        """Return the calls about another collection of the same server."""
        return Calls(self._client, collection, self.where)

    def exists(self) -> bool:
        return bool(self._call(self._client.collection_exists))

    def create(self, **options: Any) -> None:
        try:
            self._call(self._client.create_collection, **options)
        except (EngineError, ValueError):  # the engine in this process raises the latter
            # Another process, or an attempt whose answer was lost, may have created it.
            if not self.exists():
                raise

    def index_payload(self, field: str, schema: Any) -> None:
        """Let filters by a field of the payload use an index."""
        self._call(
            self._client.create_payload_index, field_name=field, field_schema=schema, wait=True
        )

    def upsert(self, points: Sequence[models.PointStruct]) -> None:
        self._call(self._client.upsert, points=list(points), wait=True)

    def upsert_if(self, point: models.PointStruct, condition: models.Filter) -> None:
        """Write a point if there is none, or if that meets a condition, as one step.

        Replicas take these steps in the same order, which the node with the highest id decides.
        """
        self._call(
            self._client.upsert,
            points=[point],
            wait=True,
            ordering=models.WriteOrdering.STRONG,
            update_filter=condition,
        )

    def replace_vectors(self, points: Sequence[models.PointVectors]) -> None:
        self._call(self._client.update_vectors, points=list(points), wait=True)

    def delete(self, ids: Sequence[str]) -> None:
        selector = models.PointIdsList(points=list(ids))
        self._call(self._client.delete, points_selector=selector, wait=True)

    def retrieve(
        self, ids: Sequence[str], fields: list[str] | bool, *, vectors: list[str] | bool = False
    ) -> list[Any]:
        """Return those of some points that exist, in any order, with some fields of the payload."""
        options = {"with_payload": fields, "with_vectors": vectors}
        parts = (
            self._call(self._client.retrieve, ids=list(ids[n : n + _POINTS_TOGETHER]), **options)
            for n in range(0, len(ids), _POINTS_TOGETHER)
        )
        return list(chain.from_iterable(parts))

    def query(
        self, vector: Any, using: str, limit: int, conditions: models.Filter | None
    ) -> Scored:
        """Return the best points, exactly."""
        points = self._query(query=vector, using=using, limit=limit, query_filter=conditions)
        return _to_scored(points)

    def query_batch(self, requests: Sequence[models.QueryRequest]) -> list[Scored]:
        """Return the best points of each of several queries, exactly, by few calls."""
        scored: list[Scored] = []
        for start in range(0, len(requests), _QUERIES_TOGETHER):
            part = list(requests[start : start + _QUERIES_TOGETHER])
            responses = self._call(self._client.query_batch_points, requests=part)
            scored += [_to_scored(response.points) for response in responses]
        return scored

    def compare(
        self, vector: Any, using: str, ids: Sequence[str], fields: list[str] | bool
    ) -> list[Any]:
        """Return those of some points that exist, with scores and some fields of the payload."""
        options = {"query": vector, "using": using, "with_payload": fields}
        parts = (ids[n : n + _POINTS_TOGETHER] for n in range(0, len(ids), _POINTS_TOGETHER))
        points = (
            self._query(limit=len(part), query_filter=with_ids(part), **options) for part in parts
        )
        return list(chain.from_iterable(points))

    def page(self, conditions: models.Filter | None, offset: int, limit: int) -> list[str]:
        """Return the ids of a part of the points that meet some conditions, by id."""
        points = self._query(limit=limit, offset=offset, query_filter=conditions)
        return [str(point.id) for point in points]

    def _query(self, *, with_payload: list[str] | bool = False, **options: Any) -> list[Any]:
        response = self._call(
            self._client.query_points, search_params=_EXACT, with_payload=with_payload, **options
        )
        points: list[Any] = response.points
        return points

    def count_values(self, field: str, conditions: models.Filter | None) -> dict[str, int]:
        response = self._call(
            self._client.facet, key=field, facet_filter=conditions, limit=_VALUES, exact=True
        )
        return {str(hit.value): int(hit.count) for hit in response.hits}

    def count(self, conditions: models.Filter | None) -> int:
        count = self._call(self._client.count, count_filter=conditions, exact=True)
        return int(count.count)

    def scroll(
        self, conditions: models.Filter | None, fields: list[str] | bool
    ) -> Iterator[list[Any]]:
        """Yield all points that meet some conditions, by id, in parts."""
        offset = None
        while True:
            records, offset = self._call(
                self._client.scroll,
                scroll_filter=conditions,
                limit=_SCROLLED_TOGETHER,
                offset=offset,
                with_payload=fields,
                with_vectors=False,
            )
            if records:
                yield records
            if offset is None:
                return

    def _call(self, function: Callable[..., Any], **values: Any) -> Any:
        attempt = 0
        while True:
            attempt += 1
            try:
                return function(collection_name=self.collection, **values)
            except Exception as error:
                reason, is_passing = _read_error(error)
                if reason is None:
                    raise
                if not is_passing:
                    raise EngineError(f"{self.where}: {reason}") from error
                if attempt == ATTEMPTS:
                    raise EngineError(
                        f"{self.where} failed {ATTEMPTS} times: {reason}; is the server running at "
                        "this port, that of gRPC, and are all its shards?"
                    ) from error
                _log.info("%s: %s; trying again", self.where, reason)
                time.sleep(FIRST_PAUSE * 2 ** (attempt - 1))


def _to_scored(points: Sequence[Any]) -> Scored:
    return Scored([str(point.id) for point in points], [point.score for point in points])


def _read_error(error: Exception) -> tuple[str | None, bool]:
    """Return what an error says in one line, and whether it may pass; None for other errors."""
    if isinstance(error, grpc.RpcError):
        details = getattr(error, "details", lambda: None)() or str(error)
        code = getattr(error, "code", lambda: None)()
        return _first_line(details), code in _PASSING
    if isinstance(error, UnexpectedResponse):
        status = error.status_code or 500
        return _first_line(f"{status} {error.reason_phrase}"), status >= 500 or status == 429
    if isinstance(error, ResponseHandlingException | ConnectionError | TimeoutError):
        return _first_line(str(error)), True
    return None, False


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no reason given"
