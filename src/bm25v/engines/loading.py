"""A gallery or a folder of bags goes into a collection in Qdrant.

In: images with their bags. Out: a collection, which is created if there is none. Loading again
writes only what has changed, so that a load that was killed is repeated. Not this module's job: how
points are written (`writer`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from bm25v.backbones.paired import PairedBackbone
from bm25v.engines.address import Address
from bm25v.engines.calls import Calls, connect
from bm25v.engines.state import CollectionState, read_state
from bm25v.engines.writer import Added, QdrantWriter, create_collection
from bm25v.errors import WrongUse
from bm25v.exchange.bags import BagSettings, ImageBags
from bm25v.exchange.galleries import (
    check_full_bags,
    load_vocabulary,
    read_images,
    read_unchanged,
)
from bm25v.exchange.parquet import BagFolder
from bm25v.gallery.records import Calibration
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.vocabulary import Vocabulary

BATCH_IMAGES = 512


@dataclass(frozen=True)
class Origin:
    """What the images of a load have in common."""

    settings: BagSettings
    own_dim: int  # of the dense vectors of the vocabulary's own backbone
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
    """Write all images of a gallery to a collection."""

    def load(snapshot: Snapshot) -> Added:
        check_full_bags(store, snapshot)
        statistics, vocabulary = snapshot.searcher.statistics, store.vocabulary
        others = dict(store.names.merge_others(vocabulary.word_names))
        origin = Origin(
            BagSettings(store.catalog.meta, snapshot.state.full_bags),
            _own_dim(vocabulary),
            statistics.average_or_one,
            statistics.n,
            snapshot.state.calibration,
            dict(store.names.current()),
            None if others == vocabulary.word_names else others,
        )
        with read_unchanged(store, snapshot):
            images = (image for part in read_images(store, snapshot) for image in part)
            options = {"shards": shards, "replicas": replicas}
            return load_images(calls, origin, images, **options, progress=progress)

    return store.read(load)


def load_folder(
    calls: Calls,
    folder: BagFolder,
    *,
    vocabulary: str | None = None,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    """Write all images of a folder of bags to a collection; unreadable ones are left out.

    The vocabulary is needed only for dense vectors of two backbones, if it is not where the folder
    says.
    """
    settings, meta = folder.settings, folder.settings.meta
    own_dim = meta.dense_dim
    if meta.second_backbone:
        own_dim = _own_dim(load_vocabulary(meta, vocabulary).with_dense(meta.second_backbone))
    origin = Origin(settings, own_dim, folder.average_length() or 1.0, folder.n_rows)
    images = (image for batch in folder.batches() for image in batch.images)
    options = {"shards": shards, "replicas": replicas}
    return load_images(calls, origin, images, **options, progress=progress)


def load_images(
    calls: Calls,
    origin: Origin,
    images: Iterable[ImageBags],
    *,
    shards: int | None = None,
    replicas: int | None = None,
    progress: Progress = no_progress,
) -> Added:
    """Write images to a collection, which is created if there is none."""
    if calls.exists():
        if shards is not None or replicas is not None:
            raise WrongUse(f"{calls.where} exists: shards and replicas are chosen at its creation")
        _check_equal(read_state(calls), origin, calls.where)
    else:
        create_collection(calls, _first_state(origin), shards=shards, replicas=replicas)
    total = Added()
    with QdrantWriter(calls) as writer:
        for batch in _in_batches(images):
            total = total.plus(writer.add(batch))
            progress("loading", sum(total), max(origin.n_images, sum(total)))
        if origin.names is not None:
            names = {**writer.state.names, **origin.names}  # some may be given in the collection
            others, calibration = origin.other_names, origin.calibration
            writer.describe(names=names, other_names=others, calibration=calibration)
    return total


def open_calls(address: Address) -> Calls:
    """Return the calls about the collection at an address."""
    return Calls(connect(address), address.collection, str(address))


def _own_dim(vocabulary: Vocabulary) -> int:
    backbone = vocabulary.backbone
    return backbone.first.dense_dim if isinstance(backbone, PairedBackbone) else backbone.dense_dim


def _in_batches(images: Iterable[ImageBags]) -> Iterator[list[ImageBags]]:
    left = iter(images)
    while batch := list(islice(left, BATCH_IMAGES)):
        yield batch


def _first_state(origin: Origin) -> CollectionState:
    empty = Statistics.empty(origin.settings.meta.n_words)
    meta, full_bags = origin.settings.meta, origin.settings.full_bags
    return CollectionState(meta, full_bags, origin.own_dim, empty, empty, origin.average_length)


def _check_equal(state: CollectionState, origin: Origin, where: str) -> None:
    """Raise an error unless images of both can be in one collection."""
    settings = BagSettings(state.meta, state.full_bags)
    settings.check_equal(origin.settings, where, "what is loaded")
    own, other = state.meta, origin.settings.meta
    if own.parameters != other.parameters:
        raise WrongUse(
            f"{where} has k1 = {own.k1}, b = {own.b}, not {other.k1} and {other.b}: choose another "
            "collection"
        )
