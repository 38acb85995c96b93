"""Writes images to a collection in Qdrant, removes them, and keeps its statistics.

A load writes the images of a gallery, or of a folder of bags, and of these only what has changed,
so that a load that was killed is repeated.

A writer marks the state first and clears the mark after it has written the new statistics; so a
mark without a running writer means that the writer was killed, and `reconcile` counts again.
"""

import os
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from operator import add
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypedDict, Unpack

from qdrant_client import models

from bm25v.errors import EngineError, GalleryLocked, InvalidOption
from bm25v.exchange.galleries import read_images, read_unchanged
from bm25v.exchange.parquet import BagFolder
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.search.calibrate import calibrate, needs_calibration
from bm25v.store.bags import RowArray
from bm25v.store.encoding import ImageBags
from bm25v.store.meta import Meta, check_same_bags
from bm25v.store.qdrant.calls import Calls, with_ids
from bm25v.store.qdrant.points import (
    BAGS,
    DENSE,
    FOLDERS,
    SPARSE,
    WORDS,
    at_or_below,
    fill_rows,
    make_points,
    point_id,
    read_bags,
    sparse_vectors,
)
from bm25v.store.qdrant.state import (
    LARGEST_DRIFT,
    CollectionState,
    create_state,
    delete_orphan,
    locked_by,
    read_state,
    release_state,
    write_state,
)

if TYPE_CHECKING:
    from bm25v.store.local.snapshot import Snapshot
    from bm25v.store.local.store import FolderStore

_KEYWORDS = ("content", FOLDERS)  # fields of the payload that have an index
_INTEGERS = ("width", "height", "taken", "seconds")
BATCH_IMAGES = 512  # of a load, written together
_PAUSE = 0.1  # seconds until a writer that waits for another one tries again


class Added(NamedTuple):
    """What happened to images that were given."""

    added: int = 0
    updated: int = 0
    unchanged: int = 0


@dataclass(frozen=True)
class Reconciled:
    """What counting again has changed."""

    n_before: int
    n_images: int
    was_marked: bool  # a writer had been killed, or was at work
    rewritten: bool  # stored values were computed again


class QdrantWriter:
    """Writes to a collection, as a context manager; one at a time."""

    def __init__(self, calls: Calls, *, timeout: float = 0.0) -> None:
        self._calls, self._timeout = calls, timeout

    def __enter__(self) -> Self:
        self.state = self._mark_state()
        self._is_certain = True  # whether the statistics are those of the points
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            if self.state.drift > LARGEST_DRIFT:
                self.state = rewrite_values(self._calls, self.state)
            self.state = release_state(self._calls, self.state)
        elif self._is_certain:
            with suppress(EngineError, GalleryLocked):  # the first error is reported
                self.state = release_state(self._calls, self.state)

    def _mark_state(self) -> CollectionState:
        """Return the state with the mark of this writer, as soon as there is no other."""
        end = time.monotonic() + self._timeout
        while True:
            try:
                state = read_state(self._calls)
                if state.writer is not None:
                    raise locked_by(self._calls, state.writer)
                return write_state(self._calls, replace(state, writer=_describe_writer()))
            except GalleryLocked:
                if time.monotonic() >= end:
                    raise
                time.sleep(_PAUSE)

    def add(self, images: Sequence[ImageBags]) -> Added:
        """Add images, or replace those at the same paths; what is there already is not written."""
        images = list({image.file.path: image for image in images}.values())
        rows = fill_rows(images, self.state.layout)
        points = make_points(images, rows, self.state)
        records = self._calls.retrieve([str(point.id) for point in points], ["checksum", BAGS])
        known = {record.id: record.payload for record in records}
        changed = [
            i
            for i, point in enumerate(points)
            if known.get(str(point.id), {}).get("checksum") != (point.payload or {})["checksum"]
        ]
        replaced = [known[str(points[i].id)] for i in changed if str(points[i].id) in known]
        self._is_certain = False
        if changed:
            self._calls.upsert([points[i] for i in changed])
        self.state = self.state.count(rows[changed])
        self._count_removed(replaced)
        n_replaced = len(replaced)
        return Added(len(changed) - n_replaced, n_replaced, len(images) - len(changed))

    def remove(self, paths: Sequence[str], *, recursive: bool = True) -> int:
        """Remove images, or all images in folders; return how many there were."""
        if not paths:
            return 0
        named = with_ids([point_id(path) for path in paths])
        if recursive:
            named = models.Filter(should=at_or_below(paths))
        n_removed = 0
        parts = list(self._calls.scroll(named, [BAGS]))
        for records in parts:
            self._is_certain = False
            self._calls.delete([record.id for record in records])
            self._count_removed([record.payload for record in records])
            n_removed += len(records)
        return n_removed

    def describe(self, **facts: Any) -> None:
        self.state = replace(self.state, **facts)

    def _count_removed(self, payloads: Sequence[dict[str, Any]]) -> None:
        if payloads:
            rows = read_bags(payloads, self.state.layout, self._calls.where)
            self.state = self.state.count(rows, removed=True)
        self._is_certain = True


class LoadOptions(TypedDict, total=False):
    """Options of a load; shards and replicas are those of a new collection."""

    shards: int | None
    replicas: int | None
    progress: Progress


def load_gallery(calls: Calls, store: "FolderStore", **options: Unpack[LoadOptions]) -> Added:
    """Write all images of a gallery to a collection, with the names of its words."""

    def load(snapshot: "Snapshot") -> Added:
        is_outdated = needs_calibration(snapshot)
        facts = {
            "calibration": calibrate(snapshot) if is_outdated else snapshot.calibration,
            "names": dict(store.names.own),
            "other_names": dict(store.names.merge_others({})) or None,
        }
        average, n_images = snapshot.statistics.average_or_one, snapshot.statistics.n
        with read_unchanged(store, snapshot):
            images = (image for part in read_images(store, snapshot) for image in part)
            return load_images(calls, store.meta, average, images, n_images, facts, **options)

    return store.read(load)


def load_folder(calls: Calls, folder: BagFolder, **options: Unpack[LoadOptions]) -> Added:
    """Write all images of a folder of bags to a collection; unreadable ones are left out."""
    average = folder.average_length() or 1.0
    images = (image for batch in folder.batches() for image in batch.images)
    return load_images(calls, folder.meta, average, images, folder.n_rows, **options)


def load_images(
    calls: Calls,
    meta: Meta,
    average_length: float,
    images: Iterable[ImageBags],
    n_images: int,
    facts: Mapping[str, Any] | None = None,
    *,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    """Write images to a collection, which is created if there is none.

    `average_length` is that of the bags of the index, `facts` what else the state is to have.
    """
    if calls.exists():
        if shards is not None or replicas is not None:
            raise InvalidOption(
                f"{calls.where} exists: shards and replicas are chosen at its creation"
            )
        known = read_state(calls).meta
        check_same_bags(known, meta, calls.where, "what is loaded")
        if known.parameters != meta.parameters:
            raise InvalidOption(
                f"{calls.where} has k1 = {known.k1}, b = {known.b}, not {meta.k1} and {meta.b}: "
                "choose another collection"
            )
    else:
        empty = Statistics.empty(meta.n_words)
        state = CollectionState(meta, empty, empty, average_length)
        create_collection(calls, state, shards=shards, replicas=replicas)
    total = Added()
    with QdrantWriter(calls) as writer:
        left = iter(images)
        while batch := list(islice(left, BATCH_IMAGES)):
            total = Added(*map(add, total, writer.add(batch)))
            progress("loading", sum(total), max(n_images, sum(total)))
        if facts is not None:
            # Some names may be given in the collection.
            names = {**writer.state.names, **facts["names"]}
            writer.describe(**{**facts, "names": names})
    return total


def create_collection(
    calls: Calls, state: CollectionState, *, shards: int | None, replicas: int | None
) -> None:
    """Create an empty collection: its state first, so that what is incomplete is recognised."""
    state = create_state(calls, replace(state, writer=_describe_writer()), replicas or 1)
    dense = models.VectorParams(
        size=state.meta.dense_dim,
        distance=models.Distance.COSINE,
        hnsw_config=models.HnswConfigDiff(m=0),  # exact search: nothing approximate is built
        on_disk=True,
    )
    calls.create(
        vectors_config={DENSE: dense},
        sparse_vectors_config={SPARSE: models.SparseVectorParams()},
        shard_number=shards,
        replication_factor=replicas,
        on_disk_payload=True,
    )
    _index_payload(calls)
    release_state(calls, state)


def reconcile(calls: Calls, progress: Progress = no_progress) -> Reconciled:
    """Count all points again, complete what a killed writer has begun, and clear its mark."""
    if delete_orphan(calls):  # a killed writer was about to create the collection
        return Reconciled(0, 0, was_marked=True, rewritten=False)
    state = read_state(calls)
    n_before, was_marked = state.statistics.n, state.writer is not None
    state = write_state(calls, replace(state, writer=_describe_writer()))
    _index_payload(calls)
    empty = Statistics.empty(state.meta.n_words)
    state = replace(state, statistics=empty, full_statistics=empty)
    for _, rows in _read_all_bags(calls, state):
        state = state.count(rows)
        progress("counting", state.statistics.n, max(state.statistics.n, n_before))
    is_rewritten = state.rewriting_to is not None or state.drift > LARGEST_DRIFT
    if is_rewritten:
        state = rewrite_values(calls, state, progress)
    release_state(calls, state)
    return Reconciled(n_before, state.statistics.n, was_marked, is_rewritten)


def rewrite_values(
    calls: Calls, state: CollectionState, progress: Progress = no_progress
) -> CollectionState:
    """Compute the values of the first stage again with the average length as it is now."""
    average = state.statistics.average_or_one
    state = write_state(calls, replace(state, rewriting_to=average))
    rewritten = replace(state, average_length=average, rewriting_to=None)
    n_done = 0
    for ids, rows in _read_all_bags(calls, state):
        vectors = sparse_vectors(rows["bag"], rewritten)
        calls.replace_vectors(
            [
                models.PointVectors(id=key, vector={SPARSE: vector})
                for key, vector in zip(ids, vectors, strict=True)
                if vector is not None
            ]
        )
        n_done += len(ids)
        progress("rewriting", n_done, state.statistics.n)
    return rewritten


def _read_all_bags(calls: Calls, state: CollectionState) -> Iterator[tuple[list[Any], RowArray]]:
    """Yield the ids and the bags of all points, in parts."""
    for records in calls.scroll(None, [BAGS]):
        payloads = [record.payload for record in records]
        yield [record.id for record in records], read_bags(payloads, state.layout, calls.where)


def _index_payload(calls: Calls) -> None:
    for field in _KEYWORDS:
        schema: Any = models.KeywordIndexParams(type=models.KeywordIndexType.KEYWORD, on_disk=True)
        calls.index_payload(field, schema)
    for field in (*_INTEGERS, WORDS):
        schema = models.IntegerIndexParams(
            type=models.IntegerIndexType.INTEGER,
            lookup=field == WORDS,
            range=field != WORDS,
            on_disk=True,
        )
        calls.index_payload(field, schema)


def _describe_writer() -> str:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {socket.gethostname()} since {now} ({uuid.uuid4().hex[:8]})"
