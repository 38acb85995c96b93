"""Qdrant's protocol over gRPC, answered by shards of Qdrant's engine in this process.

A client of qdrant-client talks to it as to a server, so that messages, ids and errors are those of
the wire. Only the calls that bm25v makes are answered.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from qdrant_client import grpc as q
from qdrant_client import models
from qdrant_client.conversions.conversion import GrpcToRest, RestToGrpc, json_to_value
from qdrant_client.grpc import collections_service_pb2_grpc as collections
from qdrant_client.grpc import points_service_pb2_grpc as points

from tests.edge_client import EdgeClient


@contextmanager
def serve_edge(client: EdgeClient, port: int = 0) -> Iterator[int]:
    """Serve shards at a port of this machine, by default a free one."""
    server = grpc.server(
        ThreadPoolExecutor(4),
        interceptors=[_MissingCollections(client)],
        options=[("grpc.max_receive_message_length", -1)],
    )
    lock = threading.Lock()
    add_services: Any = (points, collections)  # they have no types
    add_services[0].add_PointsServicer_to_server(_Points(client, lock), server)
    add_services[1].add_CollectionsServicer_to_server(_Collections(client, lock), server)
    port = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield port
    finally:
        server.stop(None).wait()


class _MissingCollections(grpc.ServerInterceptor):  # type: ignore[misc]
    """Answers calls about a collection that does not exist as a server does."""

    def __init__(self, client: EdgeClient) -> None:
        self._client = client

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        handler = continuation(details)
        if details.method.startswith("/qdrant.Collections/"):
            return handler

        def answer(request: Any, context: Any) -> Any:
            name = request.collection_name
            if not self._client.collection_exists(name):
                reason = f"Not found: Collection `{name}` doesn't exist!"
                context.abort(grpc.StatusCode.NOT_FOUND, reason)
            return handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


class _Service:
    def __init__(self, client: EdgeClient, lock: threading.Lock) -> None:
        self._client, self._lock = client, lock

    def _call(self, function: Callable[..., Any], request: Any, **values: Any) -> Any:
        with self._lock:
            return function(collection_name=request.collection_name, **values)


class _Collections(_Service, collections.CollectionsServicer):
    def CollectionExists(self, request: Any, context: Any) -> Any:  # noqa: N802
        exists = self._call(self._client.collection_exists, request)
        return q.CollectionExistsResponse(result=q.CollectionExists(exists=exists))

    def Create(self, request: Any, context: Any) -> Any:  # noqa: N802
        vectors: Any = GrpcToRest.convert_vectors_config(request.vectors_config)
        sparse = GrpcToRest.convert_sparse_vector_config(request.sparse_vectors_config)
        self._call(
            self._client.create_collection,
            request,
            vectors_config=vectors,
            sparse_vectors_config=sparse or None,
            shard_number=request.shard_number or None,
        )
        return q.CollectionOperationResponse(result=True)


class _Points(_Service, points.PointsServicer):
    def Upsert(self, request: Any, context: Any) -> Any:  # noqa: N802
        written = [GrpcToRest.convert_point_struct(point) for point in request.points]
        condition = _filter(request, "update_filter")
        self._call(self._client.upsert, request, points=written, wait=True, update_filter=condition)
        return _done()

    def UpdateVectors(self, request: Any, context: Any) -> Any:  # noqa: N802
        written = [GrpcToRest.convert_point_vectors(point) for point in request.points]
        self._call(self._client.update_vectors, request, points=written, wait=True)
        return _done()

    def Delete(self, request: Any, context: Any) -> Any:  # noqa: N802
        selector: Any = GrpcToRest.convert_points_selector(request.points)
        self._call(self._client.delete, request, points_selector=selector, wait=True)
        return _done()

    def CreateFieldIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        schema = GrpcToRest.convert_payload_schema_params(request.field_index_params)
        names = {"field_name": request.field_name, "field_schema": schema}
        self._call(self._client.create_payload_index, request, **names, wait=True)
        return _done()

    def Get(self, request: Any, context: Any) -> Any:  # noqa: N802
        records = self._call(
            self._client.retrieve,
            request,
            ids=[GrpcToRest.convert_point_id(one) for one in request.ids],
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
            with_vectors=GrpcToRest.convert_with_vectors_selector(request.with_vectors),
        )
        return q.GetResponse(result=[_to_message(record) for record in records])

    def Query(self, request: Any, context: Any) -> Any:  # noqa: N802
        return q.QueryResponse(result=self._answer(request))

    def QueryBatch(self, request: Any, context: Any) -> Any:  # noqa: N802
        results = [q.BatchResult(result=self._answer(one)) for one in request.query_points]
        return q.QueryBatchResponse(result=results)

    def _answer(self, request: Any) -> list[Any]:
        response = self._call(
            self._client.query_points,
            request,
            query=_nearest(request),
            using=request.using or None,
            limit=request.limit,
            offset=request.offset,
            query_filter=_filter(request, "filter"),
            search_params=GrpcToRest.convert_search_params(request.params),
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
        )
        scored = []
        for point in response.points:
            key = RestToGrpc.convert_extended_point_id(point.id)
            message = q.ScoredPoint(id=key, score=point.score)
            _fill_payload(message, point.payload)
            scored.append(message)
        return scored

    def Facet(self, request: Any, context: Any) -> Any:  # noqa: N802
        counted = self._call(
            self._client.facet,
            request,
            key=request.key,
            facet_filter=_filter(request, "filter"),
            limit=request.limit,
            exact=request.exact,
        )
        hits = [
            q.FacetHit(value=q.FacetValue(string_value=hit.value), count=hit.count)
            for hit in counted.hits
        ]
        return q.FacetResponse(hits=hits)

    def Count(self, request: Any, context: Any) -> Any:  # noqa: N802
        counted = self._call(
            self._client.count, request, count_filter=_filter(request, "filter"), exact=True
        )
        return q.CountResponse(result=q.CountResult(count=counted.count))

    def Scroll(self, request: Any, context: Any) -> Any:  # noqa: N802
        offset = GrpcToRest.convert_point_id(request.offset) if request.HasField("offset") else None
        records, following = self._call(
            self._client.scroll,
            request,
            scroll_filter=_filter(request, "filter"),
            limit=request.limit,
            offset=offset,
            with_payload=GrpcToRest.convert_with_payload_interface(request.with_payload),
            with_vectors=False,
        )
        response = q.ScrollResponse(result=[_to_message(record) for record in records])
        if following is not None:
            response.next_page_offset.CopyFrom(RestToGrpc.convert_extended_point_id(following))
        return response


def _filter(request: Any, name: str) -> models.Filter | None:
    is_given = request.HasField(name)
    return GrpcToRest.convert_filter(getattr(request, name)) if is_given else None


def _nearest(request: Any) -> Any:
    if not request.HasField("query"):
        return None
    query = GrpcToRest.convert_query(request.query)
    return query.nearest if isinstance(query, models.NearestQuery) else query


def _done() -> Any:
    return q.PointsOperationResponse(result=q.UpdateResult(status=q.UpdateStatus.Completed))


def _fill_payload(message: Any, payload: Any) -> None:
    for key, value in (payload or {}).items():
        message.payload[key].CopyFrom(json_to_value(value))


def _to_message(record: Any) -> Any:
    message = q.RetrievedPoint(id=RestToGrpc.convert_extended_point_id(record.id))
    _fill_payload(message, record.payload)
    for name, vector in (record.vector or {}).items():
        message.vectors.vectors.vectors[name].dense.data.extend(vector)
    return message
