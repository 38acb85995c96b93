"""Brings images into a collection in Qdrant: those of a gallery, of a folder of bags, or new ones.

Loading again writes only what has changed, so that a load that was killed is repeated. New images
are encoded before the collection is marked as written to, so that others wait only while points are
written.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice

from bm25v.errors import ImageError, InvalidOption
from bm25v.exchange.bags import ImageBags, check_same_bags
from bm25v.exchange.galleries import read_images, read_unchanged
from bm25v.exchange.parquet import BagFolder
from bm25v.images import ImageInput
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.store.local.encoding import EncodedImage, encode_images
from bm25v.store.local.indexing import Failure, IndexReport, check_named_images, check_workers
from bm25v.store.local.records import Calibration, Meta
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import GalleryStore
from bm25v.store.qdrant.address import Address
from bm25v.store.qdrant.calls import Calls, connect
from bm25v.store.qdrant.fetched import read_records
from bm25v.store.qdrant.points import point_id
from bm25v.store.qdrant.state import CollectionState, read_state
from bm25v.store.qdrant.store import QdrantEngine
from bm25v.store.qdrant.writer import Added, QdrantWriter, create_collection
from bm25v.threads import available_cpus, one_blas_thread

BATCH_IMAGES = 512
_NEW_IMAGES = 256  # that are encoded, then written together


@dataclass(frozen=True)
class LoadSource:
    """What the images of a load have in common."""

    meta: Meta
    average_length: float  # of the bags of the index
    n_images: int  # for the progress
    calibration: Calibration | None = None
    names: Mapping[int, str] | None = None  # that people gave; None keeps those of the collection
    other_names: Mapping[int, str] | None = None  # of other words; None: those of the vocabulary


def load_gallery(
    calls: Calls,
    store: GalleryStore,
    *,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    def load(snapshot: Snapshot) -> Added:
        statistics, vocabulary = snapshot.searcher.statistics, store.vocabulary
        others = dict(store.names.merge_others(vocabulary.word_names))
        source = LoadSource(
            store.catalog.meta,
            statistics.average_or_one,
            statistics.n,
            snapshot.state.calibration,
            dict(store.names.current()),
            None if others == vocabulary.word_names else others,
        )
        with read_unchanged(store, snapshot):
            images = (image for part in read_images(store, snapshot) for image in part)
            return load_images(
                calls, source, images, shards=shards, replicas=replicas, progress=progress
            )

    return store.read(load)


def load_folder(
    calls: Calls,
    folder: BagFolder,
    *,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    """Write all images of a folder of bags to a collection; unreadable ones are left out."""
    source = LoadSource(folder.meta, folder.average_length() or 1.0, folder.n_rows)
    images = (image for batch in folder.batches() for image in batch.images)
    return load_images(calls, source, images, shards=shards, replicas=replicas, progress=progress)


def load_images(
    calls: Calls,
    source: LoadSource,
    images: Iterable[ImageBags],
    *,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    """Write images to a collection, which is created if there is none."""
    if calls.exists():
        if shards is not None or replicas is not None:
            raise InvalidOption(
                f"{calls.where} exists: shards and replicas are chosen at its creation"
            )
        known, meta = read_state(calls).meta, source.meta
        check_same_bags(known, meta, calls.where, "what is loaded")
        if known.parameters != meta.parameters:
            raise InvalidOption(
                f"{calls.where} has k1 = {known.k1}, b = {known.b}, not {meta.k1} and {meta.b}: "
                "choose another collection"
            )
    else:
        empty = Statistics.empty(source.meta.n_words)
        state = CollectionState(source.meta, empty, empty, source.average_length)
        create_collection(calls, state, shards=shards, replicas=replicas)
    total = Added()
    with QdrantWriter(calls) as writer:
        left = iter(images)
        while batch := list(islice(left, BATCH_IMAGES)):
            total = total.plus(writer.add(batch))
            progress("loading", sum(total), max(source.n_images, sum(total)))
        if source.names is not None:
            names = {**writer.state.names, **source.names}  # some may be given in the collection
            others, calibration = source.other_names, source.calibration
            writer.describe(names=names, other_names=others, calibration=calibration)
    return total


def open_calls(address: Address) -> Calls:
    return Calls(connect(address), address.collection, str(address))


def add_images(
    writer: QdrantWriter,
    engine: QdrantEngine,
    named: Iterable[tuple[str, ImageInput]],
    *,
    total: int,
    workers: int | None,
    progress: Progress,
) -> IndexReport:
    """Add images, or replace those that have their ids; the same content is left as it is."""
    start, report, n_done = time.perf_counter(), IndexReport(), 0
    check_workers(workers)
    images = check_named_images(named)
    n_threads = workers or available_cpus()
    encoded = encode_images(images, engine.vocabulary, lambda _: None, n_threads, progress)
    with one_blas_thread(), closing(encoded):
        while batch := list(islice(encoded, _NEW_IMAGES)):
            images_read = []
            for path, outcome in batch:
                if isinstance(outcome, ImageError):
                    report.failed.append(Failure(path, str(outcome)))
                else:
                    images_read.append(outcome)
            _write_changed(writer, engine, images_read, report)
            n_done += len(batch)
            progress("indexing", n_done, max(n_done, total))
    report.seconds = time.perf_counter() - start
    return report


def _write_changed(
    writer: QdrantWriter, engine: QdrantEngine, images: Sequence[EncodedImage], report: IndexReport
) -> None:
    known = read_records(engine.calls, [point_id(image.file.path) for image in images])
    contents = {record.path: record.content for record in known.values()}
    changed = [
        ImageBags(file, encoding.bag, encoding.full_bag, encoding.dense_e.astype("float16"))
        for file, encoding in images
        if encoding is not None and contents.get(file.path) != file.content
    ]
    report.unchanged += len(images) - len(changed)
    if changed:
        with writer:
            added, updated, _ = writer.add(changed)
        report.added += added
        report.updated += updated
