"""What is known about a whole collection: one point in a collection of its own beside it.

The statistics are exact whole numbers; every writer keeps them up to date, and `reconcile` counts
again.
"""

import base64
import time
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from bm25v.errors import EngineError, GalleryTooNew
from bm25v.index.bm25 import Statistics
from bm25v.store.meta import Meta
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import FrozenStatistics, plan_rows, point_id
from bm25v.store.records import Calibration

FORMAT = 1  # of the state and of points
SUFFIX = "_bm25v"  # of the name of the collection with the state
LARGEST_DRIFT = 0.02  # of the average length, until stored values are written again

_ID = point_id("state")


@dataclass(frozen=True)
class CollectionState:
    meta: Meta
    statistics: Statistics  # of the bags of the index
    full_statistics: Statistics
    average_length: float  # of the stored values of the first stage
    writer: str | None = None  # who is writing, and since when
    rewriting_to: float | None = None  # the average length to which stored values are changed
    calibration: Calibration | None = None
    names: Mapping[int, str] = field(default_factory=dict)  # that people gave to words
    other_names: Mapping[int, str] | None = None  # that indexing gave
    revision: int = 0  # changes with everything else

    @cached_property
    def layout(self) -> np.dtype[np.void]:
        return plan_rows(self.meta)

    @property
    def drift(self) -> float:
        """How far the average length has moved from that of the stored values, as a share."""
        if not self.statistics.total_length:
            return 0.0
        return abs(self.statistics.average_length / self.average_length - 1)

    @cached_property
    def frozen_statistics(self) -> FrozenStatistics:
        live = self.statistics
        return FrozenStatistics(live.n, live.df_v, live.total_length, self.average_length)


def read_state(calls: Calls) -> CollectionState:
    """Return the state of a collection, which must have been made by bm25v."""
    beside = calls.of(calls.collection + SUFFIX)
    if not calls.exists():
        raise EngineError(f"{calls.where} does not exist: `bm25v bags load --engine` creates it")
    records = beside.retrieve([_ID], True) if beside.exists() else []
    if not records:
        raise EngineError(
            f"{calls.where} was not made by bm25v: choose another name for the collection"
        )
    payload = records[0].payload
    if payload.get("format", 0) > FORMAT:
        raise GalleryTooNew(
            f"{calls.where} has format {payload['format']}, this bm25v reads up to {FORMAT}: "
            "upgrade bm25v"
        )
    try:
        return _parse(payload)
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise EngineError(f"{calls.where} has a damaged state: {error!r}") from error


def read_revision(calls: Calls) -> int | None:
    """Return the number of the newest state; None if there is none."""
    records = calls.of(calls.collection + SUFFIX).retrieve([_ID], ["revision"])
    return int(records[0].payload["revision"]) if records else None


def create_state(calls: Calls, state: CollectionState, replicas: int) -> None:
    beside = calls.of(calls.collection + SUFFIX)
    if not beside.exists():
        beside.create(vectors_config={}, shard_number=1, replication_factor=replicas)
    now = time.time_ns() // 10**6  # so that a collection of the same name had other revisions
    write_state(calls, replace(state, revision=now))


def write_state(calls: Calls, state: CollectionState) -> CollectionState:
    """Write a state, with the next revision, and return it."""
    state = replace(state, revision=state.revision + 1)
    point = models.PointStruct(id=_ID, vector={}, payload=_to_payload(state))
    calls.of(calls.collection + SUFFIX).upsert([point])
    return state


@contextmanager
def announce_writer(calls: Calls, writer: str) -> Iterator[list[str]]:
    """Announce a writer that is about to mark the state; yield the others that do so."""
    beside, key = calls.of(calls.collection + SUFFIX), str(uuid.uuid4())
    beside.upsert([models.PointStruct(id=key, vector={}, payload={"announced": writer})])
    try:
        others = _read_announcements(calls)
        yield [name for other, name in others.items() if other != key]
    finally:
        beside.delete([key])


def clear_announcements(calls: Calls) -> None:
    """Delete what writers left that were killed before they marked the state."""
    keys = list(_read_announcements(calls))
    if keys:
        calls.of(calls.collection + SUFFIX).delete(keys)


def _read_announcements(calls: Calls) -> dict[str, str]:
    parts = calls.of(calls.collection + SUFFIX).scroll(None, ["announced"])
    records = (record for records in parts for record in records if record.id != _ID)
    return {str(record.id): record.payload["announced"] for record in records}


def _to_payload(state: CollectionState) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "meta": vars(state.meta),
        "statistics": _pack(state.statistics),
        "full_statistics": _pack(state.full_statistics),
        "average_length": state.average_length,
        "writer": state.writer,
        "rewriting_to": state.rewriting_to,
        "calibration": None if state.calibration is None else list(state.calibration),
        "names": _pack_names(state.names),
        "other_names": None if state.other_names is None else _pack_names(state.other_names),
        "revision": state.revision,
    }


def _parse(payload: Mapping[str, Any]) -> CollectionState:
    meta, calibration = payload["meta"], payload["calibration"]
    facts = {**meta, "k1": float(meta["k1"]), "b": float(meta["b"])}
    return CollectionState(
        Meta(**facts),
        _unpack(payload["statistics"]),
        _unpack(payload["full_statistics"]),
        float(payload["average_length"]),
        writer=payload["writer"],
        rewriting_to=payload["rewriting_to"],
        calibration=None if calibration is None else Calibration(*calibration),
        names=_unpack_names(payload["names"]) or {},
        other_names=_unpack_names(payload["other_names"]),
        revision=payload["revision"],
    )


def _pack_names(names: Mapping[int, str]) -> dict[str, str]:
    return {str(word): name for word, name in names.items()}


def _unpack_names(names: Mapping[str, str] | None) -> dict[int, str] | None:
    return None if names is None else {int(word): name for word, name in names.items()}


def _pack(statistics: Statistics) -> dict[str, Any]:
    content = zlib.compress(statistics.df_v.astype("<i8").tobytes())
    df = base64.b64encode(content).decode("ascii")
    return {"n": statistics.n, "total_length": statistics.total_length, "df": df}


def _unpack(values: Mapping[str, Any]) -> Statistics:
    content = zlib.decompress(base64.b64decode(values["df"]))
    df_v: NDArray[np.int64] = np.frombuffer(content, dtype="<i8").astype(np.int64)
    return Statistics(int(values["n"]), df_v, int(values["total_length"]))
