"""An open gallery: its catalogue, its vocabulary, its word names and the newest snapshot."""

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bm25v.backbones import split_pair
from bm25v.backbones.text import TextTower, has_text_tower, load_text_tower
from bm25v.errors import (
    GalleryError,
    ImageNotFound,
    InvalidOption,
    UnknownVocabulary,
    VocabularyMismatch,
)
from bm25v.files import replacing_folder
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.store.local.catalog import Catalog, Rows, RowsRenumbered
from bm25v.store.local.catalog_schema import FILE_NAME
from bm25v.store.local.file_state import check_path, has_changed
from bm25v.store.local.records import ImageRecord, Meta
from bm25v.store.local.rows import RowFiles
from bm25v.store.local.selection import ImageFilter, count_in_folders, select_rows
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.storage_errors import disk_errors
from bm25v.store.local.word_names import WordNames
from bm25v.threads import locked_cached_property
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import PhraseIndex

_ATTEMPTS = 10  # compactions in a row, until a reader gives up
_SELECTIONS_KEPT = 16  # filters whose rows are remembered, as pages of one search share them

T = TypeVar("T")


@dataclass(frozen=True)
class GalleryInfo:
    """Facts about a gallery."""

    path: str
    n_images: int
    removed_rows: int  # rows on disk whose image was removed
    vocabulary: str
    vocabulary_fingerprint: str
    backbone: str
    words: int
    words_in_use: int
    average_length: float
    k1: float
    b: float
    bag_bytes_per_image: float
    full_bag_bytes_per_image: float
    dense_bytes_per_image: float
    catalog_bytes_per_image: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class GalleryStore:
    """What is on disk, opened for reading."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        vocabulary: str | os.PathLike[str] | None = None,
        dense: str | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(check_path(path)))
        self.catalog = Catalog(self.path / FILE_NAME)
        self.names = WordNames(self.path, self.catalog.meta)
        self._vocabulary_source = vocabulary  # None: where the catalogue says
        self._vocabulary: Vocabulary | None = None
        self._text_tower: TextTower | None = None
        self._snapshot: Snapshot | None = None
        self._selections: dict[tuple[tuple[int, ...], ImageFilter], Rows] = {}
        self._folders: tuple[tuple[int, ...], Mapping[str, int]] | None = None  # of a version
        self._mutex = threading.RLock()
        self._tower_mutex = threading.Lock()
        try:
            backbone = self.catalog.meta.backbone
            if dense is not None and not backbone.endswith(f"+{dense}"):
                raise InvalidOption(
                    f"{self.path} has dense vectors of {backbone}, not of {dense}: a second "
                    "backbone is chosen when a gallery is created; index the images into a new one"
                )
            if vocabulary is not None:
                self.vocabulary  # noqa: B018 - raises an error for a wrong one
        except BaseException:
            self.close()
            raise

    @staticmethod
    def create(path: Path, vocabulary: Vocabulary, parameters: Bm25Parameters) -> None:
        """Make an empty gallery: complete, or not at all."""
        check_new(path)
        meta = describe_vocabulary(vocabulary, parameters)
        with disk_errors(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                with replacing_folder(path) as folder:
                    for file in RowFiles.of(folder, meta, generation=0):
                        file.create()
                    Catalog.create(folder / FILE_NAME, meta)
            except FileExistsError as error:
                raise GalleryError(f"{path} was created by another process: open it") from error

    def close(self) -> None:
        self.catalog.close()

    @property
    def vocabulary(self) -> Vocabulary:
        with self._mutex:
            if self._vocabulary is None:
                self._vocabulary = load_vocabulary(
                    self.catalog.meta, self._vocabulary_source, location=str(self.path)
                )
            return self._vocabulary

    @property
    def word_names(self) -> Mapping[int, str]:
        return self.names.merge(self.vocabulary.word_names)

    @locked_cached_property
    def vocabulary_names(self) -> PhraseIndex:
        return PhraseIndex((name, word) for word, name in self.vocabulary.word_names.items())

    @property
    def text_tower(self) -> TextTower | None:
        """The model that turns texts into vectors, loaded on first use; None if there is none."""
        with self._tower_mutex:  # loading takes seconds, and other searches go on
            if self._text_tower is None and has_text_tower(self.vocabulary.backbone_name):
                self._text_tower = load_text_tower(self.vocabulary.backbone_name)
            return self._text_tower

    def snapshot(self) -> Snapshot:
        """Return the gallery as it is now; files are read only if something was committed."""
        with self._mutex:
            if self._snapshot is None or self._snapshot.version != self.catalog.version():
                previous = self._snapshot
                self._snapshot = self.retry(
                    lambda: Snapshot.load(self.path, self.catalog, previous)
                )
            return self._snapshot

    def read(self, function: Callable[[Snapshot], T]) -> T:
        """Return a function's value for the newest snapshot; see `retry`."""
        return self.retry(lambda: function(self.snapshot()))

    def retry(self, function: Callable[[], T]) -> T:
        """Return a function's value; call it again if the gallery was compacted meanwhile.

        Compaction renumbers rows, so a function that looks up rows of an older snapshot in the
        catalogue must start again.
        """
        for _ in range(_ATTEMPTS):
            try:
                return function()
            except RowsRenumbered:
                continue
        raise GalleryError(
            f"{self.path} was compacted {_ATTEMPTS} times while it was read: try again"
        )

    def find_image(self, path: str | os.PathLike[str], snapshot: Snapshot) -> ImageRecord:
        with self.catalog.transaction(snapshot.state.generation):
            known_path = self.resolve_path(path)
            record = self.catalog.at_path(known_path)
            was_removed = record is None and self.catalog.was_removed(known_path)
        if record is None or not snapshot.has_row(record.row):
            remedy = "it was removed; index it again" if was_removed else "index it first"
            raise ImageNotFound(f"{known_path} is not in {self.path}: {remedy}")
        return record

    def resolve_path(self, path: str | os.PathLike[str]) -> str:
        """Return an image's path or id as the catalogue has it.

        Paths in the catalogue are absolute, so a relative one that it has is an id.
        """
        given = check_path(path)
        return given if self.catalog.at_path(given) else os.path.abspath(given)

    def select_rows(self, image_filter: ImageFilter, snapshot: Snapshot) -> Rows:
        """Return the rows of a snapshot that a filter selects; the last are remembered."""
        key = (snapshot.version, image_filter)
        with self._mutex:
            if key not in self._selections:
                with self.catalog.transaction(snapshot.state.generation):
                    rows = select_rows(self.catalog, image_filter)
                if len(self._selections) >= _SELECTIONS_KEPT:
                    del self._selections[next(iter(self._selections))]  # the oldest
                self._selections[key] = rows[rows < snapshot.state.n_rows]
            return self._selections[key]

    def list_images(self, image_filter: ImageFilter) -> Iterator[ImageRecord]:
        if not image_filter:
            return self.catalog.images()
        with self.catalog.transaction():  # a compaction renumbers rows
            rows = select_rows(self.catalog, image_filter)
            return iter(self.catalog.with_rows(rows.tolist()))

    def count_folders(self, snapshot: Snapshot) -> Mapping[str, int]:
        known = self._folders  # other threads may replace it meanwhile
        if known is None or known[0] != snapshot.version:
            paths = self.catalog.all_paths(snapshot.state.generation)
            counts = count_in_folders(paths[row] for row in snapshot.rows.tolist())
            self._folders = known = (snapshot.version, counts)
        return known[1]

    def has_changed(self, path: str) -> bool:
        return has_changed(path, self.catalog.at_path(path))

    def info(self) -> GalleryInfo:
        meta = self.catalog.meta
        snapshot = self.snapshot()
        statistics = snapshot.searcher.statistics
        n = max(statistics.n, 1)
        catalog_bytes = sum(p.stat().st_size for p in self.path.glob(f"{FILE_NAME}*"))
        return GalleryInfo(
            path=str(self.path),
            n_images=statistics.n,
            removed_rows=snapshot.state.n_rows - statistics.n,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(snapshot.full_bags.statistics.df_v)),
            average_length=statistics.average_length,
            k1=meta.k1,
            b=meta.b,
            bag_bytes_per_image=snapshot.bags.nbytes / n,
            full_bag_bytes_per_image=snapshot.full_bags.rows.nbytes / n,
            dense_bytes_per_image=snapshot.dense_ne.nbytes / n,
            catalog_bytes_per_image=catalog_bytes / n,
        )


def load_vocabulary(
    meta: Meta,
    source: str | os.PathLike[str] | None,
    *,
    location: str,
    remedy: str = "--vocabulary PATH",
) -> Vocabulary:
    """Return the vocabulary that bags were made with, with the same backbone.

    `source` is where it is, if not where the facts say. Errors name the bags by their `location`,
    and say how to give another source.
    """
    source = meta.vocabulary if source is None else source
    try:
        vocabulary = Vocabulary.load(source)
    except UnknownVocabulary as error:
        raise UnknownVocabulary(
            f"{location}: {error}; if it has moved, give its new path: {remedy}"
        ) from error
    if vocabulary.fingerprint != meta.vocabulary_fingerprint:
        raise VocabularyMismatch(
            f"{location} was made with vocabulary {meta.vocabulary} "
            f"({meta.vocabulary_fingerprint}), not with {source} ({vocabulary.fingerprint}): "
            f"give that vocabulary ({remedy}), or index the images into a new gallery"
        )
    if meta.backbone != vocabulary.backbone_name:
        vocabulary = vocabulary.with_dense(split_pair(meta.backbone)[1])
    if vocabulary.features_fingerprint != meta.backbone_fingerprint:
        raise VocabularyMismatch(
            f"{location} has dense vectors of another {meta.backbone} "
            f"({meta.backbone_fingerprint}) than this bm25v has "
            f"({vocabulary.features_fingerprint}): "
            "use the bm25v that made it, or index the images into a new gallery"
        )
    return vocabulary


def describe_vocabulary(
    vocabulary: Vocabulary, parameters: Bm25Parameters = DEFAULT_PARAMETERS
) -> Meta:
    """Return the facts of a new gallery for the bags of a vocabulary."""
    return Meta(
        vocabulary=vocabulary.source,
        vocabulary_fingerprint=vocabulary.fingerprint,
        backbone=vocabulary.backbone.name,
        backbone_fingerprint=vocabulary.backbone.fingerprint,
        n_words=vocabulary.n_words,
        k_post=vocabulary.k_post,
        k_full=vocabulary.full_bag_words,
        n_patches=math.prod(vocabulary.backbone.grid),
        dense_dim=vocabulary.backbone.dense_dim,
        k1=float(parameters.k1),  # the catalogue refuses an int
        b=float(parameters.b),
    )


def check_new(path: Path) -> None:
    """Raise an error if no gallery can be created at a path, because something else is there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise GalleryError(f"{path} already exists: choose another path, or open it")
