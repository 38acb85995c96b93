"""Brings the images of a gallery, or of a folder of bags, into a collection in Qdrant.

Loading again writes only what has changed, so that a load that was killed is repeated.
"""

import operator
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, TypedDict, Unpack

from bm25v.errors import InvalidOption
from bm25v.exchange.galleries import read_images, read_unchanged
from bm25v.exchange.parquet import BagFolder
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.search.calibrate import calibrate, needs_calibration
from bm25v.store.encoding import ImageBags
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import FolderStore
from bm25v.store.meta import Meta, check_same_bags
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.state import CollectionState, read_state
from bm25v.store.qdrant.writer import Added, QdrantWriter, create_collection

BATCH_IMAGES = 512


class LoadOptions(TypedDict, total=False):
    """Options of a load; shards and replicas are those of a new collection."""

    shards: int | None
    replicas: int | None
    progress: Progress


def load_gallery(calls: Calls, store: FolderStore, **options: Unpack[LoadOptions]) -> Added:
    """Write all images of a gallery to a collection, with the names of its words."""

    def load(snapshot: Snapshot) -> Added:
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
            total = Added(*map(operator.add, total, writer.add(batch)))
            progress("loading", sum(total), max(n_images, sum(total)))
        if facts is not None:
            # Some names may be given in the collection.
            names = {**writer.state.names, **facts["names"]}
            writer.describe(**{**facts, "names": names})
    return total
