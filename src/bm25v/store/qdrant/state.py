"""What is known about a whole collection: one point in a collection of its own beside it.

The statistics are exact whole numbers; every writer keeps them up to date, and `reconcile` counts
again. A state replaces only the one that it was made from, which Qdrant checks as it writes; so of
several processes that mark the same state, one becomes the writer.
"""

import base64
import secrets
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import add, sub
from typing import Any

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from bm25v.errors import EngineError, GalleryLocked, GalleryTooNew
from bm25v.index.bm25 import Statistics
from bm25v.store.bags import RowArray, bag_layout, full_bag_layout
from bm25v.store.meta import Meta, parse_meta
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import point_id
from bm25v.store.records import Calibration
from bm25v.vocabulary.bag import LEVELS

FORMAT = 1  # of the state and of points
SUFFIX = "_bm25v"  # of the name of the collection with the state
LARGEST_DRIFT = 0.02  # of the average length, until stored values are written again

_ID = point_id("state")


@dataclass(frozen=True)
class FrozenStatistics(Statistics):
    """Statistics with live document frequencies and the average length of the stored values."""

    frozen_average: float = 1.0  # that stored values were computed with

    @property
    def average_length(self) -> float:
        return self.frozen_average


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
    revision: int = 0  # a random number, another one for every state; 0 before the first

    @cached_property
    def layout(self) -> np.dtype[np.void]:
        """The layout of both bags of an image, which are rows of a gallery's files."""
        meta = self.meta
        bag = bag_layout(meta.k_post, meta.n_words)
        full = full_bag_layout(meta.k_full, meta.n_words, meta.n_patches)
        unused = -(bag.itemsize + full.itemsize) % 3  # so that base64 has no padding
        return np.dtype([("bag", bag), ("full", full), ("unused", np.dtype((np.void, unused)))])

    @property
    def drift(self) -> float:
        """How far the average length has moved from that of the stored values, as a share."""
        if not self.statistics.total_length:
            return 0.0
        return abs(self.statistics.average_length / self.average_length - 1)

    def count(self, rows: RowArray, *, removed: bool = False) -> "CollectionState":
        """Return the state after the images with some bags were added or removed."""
        bags, full, change = rows["bag"], rows["full"], sub if removed else add
        own = Statistics.count(bags["words"], bags["tf"], self.meta.n_words)
        more = Statistics.count(full["words"], LEVELS[full["levels"]], self.meta.n_words)
        return replace(
            self,
            statistics=change(self.statistics, own),
            full_statistics=change(self.full_statistics, more),
        )

    @cached_property
    def frozen_statistics(self) -> FrozenStatistics:
        live = self.statistics
        return FrozenStatistics(live.n, live.df_v, live.total_length, self.average_length)


def read_state(calls: Calls) -> CollectionState:
    """Return the state of a collection, which must have been made by bm25v."""
    if not calls.exists():
        raise EngineError(f"{calls.where} does not exist: `bm25v bags load --engine` creates it")
    payload = _retrieve(calls, True) if _beside(calls).exists() else {}
    if not payload:
        raise EngineError(
            f"{calls.where} was not made by bm25v: choose another name for the collection"
        )
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
    return _retrieve(calls, ["revision"]).get("revision")


def create_state(calls: Calls, state: CollectionState, replicas: int) -> CollectionState:
    """Write the first state of a collection; raise `GalleryLocked` if there is one already."""
    beside = _beside(calls)
    beside.create(vectors_config={}, shard_number=1, replication_factor=replicas)
    beside.index_payload(
        "revision",
        models.IntegerIndexParams(type=models.IntegerIndexType.INTEGER, lookup=True, range=False),
    )
    created = write_state(calls, state)
    with suppress(GalleryLocked):
        write_state(calls, state)
        raise EngineError(f"{calls.where} ignores conditions of writes: it needs Qdrant 1.16")
    return created


def write_state(calls: Calls, state: CollectionState) -> CollectionState:
    """Write a state with a new revision, and return it.

    If the stored state is no longer that of its revision, nothing is written: another process is or
    was writing, and `GalleryLocked` is raised.
    """
    state = _replace_stored(calls, state)
    stored = _retrieve(calls, ["revision", "writer"])
    if stored.get("revision") != state.revision:
        raise locked_by(calls, stored.get("writer"))
    return state


def release_state(calls: Calls, state: CollectionState) -> CollectionState:
    """Write a state, then clear its mark.

    These are two steps because another process may change the state as soon as it has no mark, and
    then nobody could tell whether this one was written.
    """
    return _replace_stored(calls, replace(write_state(calls, state), writer=None))


def delete_orphan(calls: Calls) -> bool:
    """Delete a state whose collection does not exist; return whether there may have been one."""
    is_orphan = not calls.exists() and _beside(calls).exists()
    if is_orphan:
        _beside(calls).delete([_ID])
    return is_orphan


def locked_by(calls: Calls, writer: str | None) -> GalleryLocked:
    return GalleryLocked(
        f"{calls.where} is written to by {writer or 'another process'}; if that was killed, run "
        "`bm25v bags reconcile --engine` first"
    )


def _beside(calls: Calls) -> Calls:
    return calls.of(calls.collection + SUFFIX)


def _retrieve(calls: Calls, fields: list[str] | bool) -> dict[str, Any]:
    records = _beside(calls).retrieve([_ID], fields)
    return records[0].payload if records else {}


def _replace_stored(calls: Calls, state: CollectionState) -> CollectionState:
    replaced = models.FieldCondition(key="revision", match=models.MatchAny(any=[state.revision]))
    state = replace(state, revision=secrets.randbits(63))
    point = models.PointStruct(id=_ID, vector={}, payload=_to_payload(state))
    _beside(calls).upsert_if(point, models.Filter(must=[replaced]))
    return state


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
    calibration = payload["calibration"]
    return CollectionState(
        parse_meta(payload["meta"]),
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
