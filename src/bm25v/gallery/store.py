"""An open gallery: its catalogue, its vocabulary, its word names and the newest snapshot.

In: a folder. Out: everything that a search, an explanation or a writer needs to read. Not this
module's job: searching (`search`) and the class that people use (`api.Gallery`).
"""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bm25v.backbones.text import TextTower, has_text_tower, load_text_tower
from bm25v.errors import (
    GalleryError,
    UnknownVocabulary,
    VocabularyMismatch,
    WrongUse,
)
from bm25v.files import replacing_folder
from bm25v.gallery.catalog import Catalog, RowsRenumbered
from bm25v.gallery.catalog_schema import FILE_NAME
from bm25v.gallery.file_state import check_path, has_changed
from bm25v.gallery.full_bags import plan_full_bags
from bm25v.gallery.records import FullBagState, ImageRecord, Meta, State
from bm25v.gallery.rows import RowFiles
from bm25v.gallery.selection import (
    ImageFilter,
    Selection,
    count_in_folders,
    select_images,
)
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.storage_errors import disk_errors
from bm25v.gallery.word_names import WordNames
from bm25v.index.bm25 import Bm25Parameters
from bm25v.threads import locked_cached_property
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import PhraseIndex
from bm25v.vocabulary.vocabulary import find_shipped

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
    second_backbone: str | None  # whose dense vectors follow those of the backbone
    words: int
    words_in_use: int
    average_length: float
    k1: float
    b: float
    has_full_bags: bool
    bag_bytes_per_image: float
    full_bag_bytes_per_image: float
    dense_bytes_per_image: float
    catalog_bytes_per_image: float

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values; the keys say "picture", as in all JSON."""
        facts = asdict(self)
        return {
            key.replace("n_images", "pictures").replace("per_image", "per_picture"): value
            for key, value in facts.items()
        }


class GalleryStore:
    """What is on disk, opened for reading."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        vocabulary: str | os.PathLike[str] | None = None,
        second_backbone: str | None = None,
    ) -> None:
        self.path = Path(os.path.abspath(check_path(path)))
        self.catalog = Catalog(self.path / FILE_NAME)
        self.names = WordNames(self.path, self.catalog.meta)
        self._vocabulary_source = self.catalog.meta.vocabulary if vocabulary is None else vocabulary
        self._vocabulary: Vocabulary | None = None
        self._text_tower: TextTower | None = None
        self._snapshot: Snapshot | None = None
        self._selections: dict[tuple[tuple[int, ...], ImageFilter], Selection] = {}
        self._folders: tuple[tuple[int, ...], Mapping[str, int]] | None = None  # of a version
        self._mutex = threading.RLock()
        self._tower_mutex = threading.Lock()
        try:
            if second_backbone is not None:
                self._check_second_backbone(second_backbone)
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
            _create_folder(path, meta, plan_full_bags(vocabulary))

    def close(self) -> None:
        """Release the files; the gallery cannot be used afterwards."""
        self.catalog.close()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary that its bags were made with, loaded on first use."""
        with self._mutex:
            if self._vocabulary is None:
                self._vocabulary = self._load_vocabulary()
            return self._vocabulary

    @property
    def word_names(self) -> Mapping[int, str]:
        """The names of words: those given in this gallery, else those of the vocabulary."""
        return self.names.merge(self.vocabulary.word_names)

    @locked_cached_property
    def vocabulary_names(self) -> PhraseIndex:
        """The names that the vocabulary gives to words, to be found in texts."""
        return PhraseIndex((name, word) for word, name in self.vocabulary.word_names.items())

    @property
    def text_tower(self) -> TextTower | None:
        """The model that turns texts into vectors, loaded on first use; None if there is none."""
        with self._tower_mutex:  # loading takes seconds, and other searches go on
            if self._text_tower is None and has_text_tower(self.vocabulary.backbone_name):
                self._text_tower = load_text_tower(self.vocabulary.backbone.name)
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
        """Return the record of an image of a snapshot, by its path or id."""
        with self.catalog.transaction():
            self.catalog.check_generation(snapshot.state.generation)
            known_path = self.resolve_path(path)
            record = self.catalog.at_path(known_path)
            was_removed = record is None and self.catalog.was_removed(known_path)
        if record is None or record.row not in snapshot.rows:
            remedy = "it was removed; index it again" if was_removed else "index it first"
            raise WrongUse(f"{known_path} is not in {self.path}: {remedy}")
        return record

    def resolve_path(self, path: str | os.PathLike[str]) -> str:
        """Return an image's path or id as the catalogue has it.

        Paths in the catalogue are absolute, so a relative one that it has is an id.
        """
        given = check_path(path)
        return given if self.catalog.at_path(given) else os.path.abspath(given)

    def select_images(self, wanted: ImageFilter, snapshot: Snapshot) -> Selection:
        """Return the images of a snapshot that a filter selects; the last are remembered."""
        key = (snapshot.version, wanted)
        with self._mutex:
            if key not in self._selections:
                with self.catalog.transaction():
                    self.catalog.check_generation(snapshot.state.generation)
                    rows, n_unknown = select_images(self.catalog, wanted)
                if len(self._selections) >= _SELECTIONS_KEPT:
                    del self._selections[next(iter(self._selections))]  # the oldest
                rows = rows[rows < snapshot.state.n_rows]
                self._selections[key] = Selection(rows, n_unknown)
            return self._selections[key]

    def list_images(self, wanted: ImageFilter) -> Iterator[ImageRecord]:
        """Return the images that a filter selects, by row."""
        if not wanted:
            return self.catalog.images()
        return self.catalog.with_rows(select_images(self.catalog, wanted).rows.tolist())

    def count_folders(self, snapshot: Snapshot) -> Mapping[str, int]:
        """Return how many images of a snapshot are in each folder and below it."""
        known = self._folders  # other threads may replace it meanwhile
        if known is None or known[0] != snapshot.version:
            paths = self.catalog.all_paths(snapshot.state.generation)
            counts = count_in_folders(paths[row] for row in snapshot.rows.tolist())
            self._folders = known = (snapshot.version, counts)
        return known[1]

    def has_changed(self, path: str) -> bool:
        """Return whether an image's file has other content than when it was indexed."""
        return has_changed(path, self.catalog.at_path(path))

    def info(self) -> GalleryInfo:
        """Return facts about the gallery."""
        meta = self.catalog.meta
        snapshot = self.snapshot()
        statistics, full_bags = snapshot.searcher.statistics, snapshot.full_bags
        n = max(statistics.n, 1)
        catalog_bytes = sum(p.stat().st_size for p in self.path.glob(f"{FILE_NAME}*"))
        return GalleryInfo(
            path=str(self.path),
            n_images=statistics.n,
            removed_rows=snapshot.state.n_rows - statistics.n,
            vocabulary=meta.vocabulary,
            vocabulary_fingerprint=meta.vocabulary_fingerprint,
            backbone=meta.backbone,
            second_backbone=meta.second_backbone or None,
            words=meta.n_words,
            words_in_use=int(np.count_nonzero(snapshot.word_statistics.df_v)),
            average_length=statistics.average_length,
            k1=meta.k1,
            b=meta.b,
            has_full_bags=snapshot.full_bags is not None,
            bag_bytes_per_image=snapshot.bags.nbytes / n,
            full_bag_bytes_per_image=0.0 if full_bags is None else full_bags.rows.nbytes / n,
            dense_bytes_per_image=snapshot.dense_ne.nbytes / n,
            catalog_bytes_per_image=catalog_bytes / n,
        )

    def _load_vocabulary(self) -> Vocabulary:
        try:
            vocabulary = Vocabulary.load(self._vocabulary_source)
        except UnknownVocabulary as error:
            raise UnknownVocabulary(
                f"{self.path}: {error}; if it has moved: bm25v index FOLDER --vocabulary NEW_PATH"
            ) from error
        expected = self.catalog.meta.vocabulary_fingerprint
        is_own = self._vocabulary_source == self.catalog.meta.vocabulary
        if vocabulary.fingerprint != expected and is_own:
            vocabulary = find_shipped(expected) or vocabulary  # maybe that of an older version
        if vocabulary.fingerprint != expected:
            raise VocabularyMismatch(
                f"{self.path} was made with vocabulary {self.catalog.meta.vocabulary} "
                f"({expected}), not with {self._vocabulary_source} ({vocabulary.fingerprint}): "
                "give that vocabulary, or index the images into a new gallery"
            )
        return self._add_second_backbone(vocabulary)

    def _check_second_backbone(self, name: str) -> None:
        meta = self.catalog.meta
        if name != meta.second_backbone:
            own = " and ".join(filter(None, (meta.backbone, meta.second_backbone)))
            raise WrongUse(
                f"{self.path} has dense vectors of {own}, not of {name}: a second backbone is "
                "chosen when a gallery is created; index the images into a new one"
            )

    def _add_second_backbone(self, vocabulary: Vocabulary) -> Vocabulary:
        meta = self.catalog.meta
        paired = vocabulary.with_dense(meta.second_backbone or None)
        if (paired.second_fingerprint or "") != meta.second_fingerprint:
            raise VocabularyMismatch(
                f"{self.path} has dense vectors of another {meta.second_backbone} "
                f"({meta.second_fingerprint}) than this bm25v has ({paired.second_fingerprint}): "
                "use the bm25v that made it, or index the images into a new gallery"
            )
        return paired


def describe_vocabulary(vocabulary: Vocabulary, parameters: Bm25Parameters) -> Meta:
    """Return the facts of a new gallery for the bags of a vocabulary."""
    return Meta(
        vocabulary=vocabulary.source,
        vocabulary_fingerprint=vocabulary.fingerprint,
        backbone=vocabulary.backbone_name,
        n_words=vocabulary.n_words,
        k_post=vocabulary.k_post,
        dense_dim=vocabulary.backbone.dense_dim,
        k1=float(parameters.k1),  # the catalogue refuses an int
        b=float(parameters.b),
        second_backbone=vocabulary.second_backbone or "",
        second_fingerprint=vocabulary.second_fingerprint or "",
    )


def check_new(path: Path) -> None:
    """Raise an error if no gallery can be created at a path, because something else is there."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise GalleryError(f"{path} already exists: choose another path, or open it")


def _create_folder(path: Path, meta: Meta, full_bags: FullBagState | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with replacing_folder(path) as folder:
            for file in RowFiles.of(folder, meta, State(0, 0, 0, full_bags=full_bags)):
                if file is not None:
                    file.create()
            Catalog.create(folder / FILE_NAME, meta, full_bags)
    except FileExistsError as error:
        raise GalleryError(f"{path} was created by another process: open it") from error
