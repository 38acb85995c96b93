"""A collection in Qdrant, opened; its state is read again when it has changed."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from typing import TypeVar, Unpack

from bm25v.errors import EngineError, ImageError, InvalidOption
from bm25v.images import ImageInput
from bm25v.store.base import (
    AddOptions,
    Failure,
    GalleryInfo,
    IndexReport,
    resolve_names,
)
from bm25v.store.encoding import (
    EncodedImage,
    ImageBags,
    check_named_images,
    check_options,
    encode_images,
)
from bm25v.store.filters import Called
from bm25v.store.meta import Meta
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import point_id
from bm25v.store.qdrant.state import CollectionState, read_revision, read_state
from bm25v.store.qdrant.view import QdrantView, read_records
from bm25v.store.qdrant.writer import QdrantWriter
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.names import check_names

_SEARCHES_BEFORE_NUMBA = 50  # importing numba takes as long as these save
_NEW_IMAGES = 256  # that are encoded, then written together
_NAMING_SECONDS = 5.0  # to wait for another writer

T = TypeVar("T")


class QdrantStore:
    """A collection, opened for reading; methods that write wait until no other process does."""

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.names = QdrantNames(self)
        self.image_names: Mapping[str, Called] = {}
        self._state = read_state(calls)
        self._mutex = threading.Lock()
        self._n_searches = 0

    @property
    def location(self) -> str:
        return self.calls.where

    @property
    def meta(self) -> Meta:
        return self._state.meta

    def close(self) -> None:
        self.calls.close()

    def _refresh(self) -> CollectionState:
        """Return what is known about the collection, read again if it has changed."""
        if read_revision(self.calls) != self._state.revision:
            state = read_state(self.calls)
            if state.meta != self._state.meta:
                raise EngineError(
                    f"{self.location} was replaced by another collection: open it again"
                )
            self._state = state
        return self._state

    def read(self, function: Callable[[QdrantView], T], *, searches: int = 1) -> T:
        """Return a function's value for the newest state; many searches use compiled loops."""
        with self._mutex:
            self._n_searches += searches
        is_compiled = self._n_searches > _SEARCHES_BEFORE_NUMBA
        return function(QdrantView(self.calls, self._refresh(), is_compiled=is_compiled))

    def add(
        self,
        images: list[str] | Iterator[tuple[str, ImageInput]],
        vocabulary: Vocabulary,
        *,
        timeout: float,
        **options: Unpack[AddOptions],
    ) -> IndexReport:
        """Add images from memory, or replace those that have their ids.

        They are encoded before the collection is marked as written to, so that others wait only
        while points are written.
        """
        if isinstance(images, list):
            raise InvalidOption(
                "paths in place of images with ids: index files into a gallery, and load it with "
                "`bm25v bags load --engine`"
            )
        check_options(images, options)
        progress, n_threads = options["progress"], options["workers"] or available_cpus()
        start, report, n_done = time.perf_counter(), IndexReport(), 0
        named = check_named_images(images)
        encoded = encode_images(named, vocabulary, lambda _: None, n_threads, progress)
        with closing(encoded):
            while batch := list(islice(encoded, _NEW_IMAGES)):
                readable = []
                for path, outcome in batch:
                    if isinstance(outcome, ImageError):
                        report.failed.append(Failure(path, str(outcome)))
                    else:
                        readable.append(outcome)
                self._write_changed(readable, report, timeout)
                n_done += len(batch)
                progress("indexing", n_done, max(n_done, options["total"]))
        report.seconds = time.perf_counter() - start
        return report

    def _write_changed(
        self, images: Sequence[EncodedImage], report: IndexReport, timeout: float
    ) -> None:
        known = read_records(self.calls, [point_id(image.file.path) for image in images])
        contents = {record.path: record.content for record in known.values()}
        changed = [
            ImageBags.of(file, encoding)
            for file, encoding in images
            if encoding is not None and contents.get(file.path) != file.content
        ]
        report.unchanged += len(images) - len(changed)
        if changed:
            with QdrantWriter(self.calls, timeout=timeout) as writer:
                added, updated, _ = writer.add(changed)
            report.added += added
            report.updated += updated

    def remove(self, paths: Iterable[str], *, recursive: bool, timeout: float) -> int:
        names = list(paths)
        given = self.read(lambda view: resolve_names(view, names))
        with QdrantWriter(self.calls, timeout=timeout) as writer:
            return writer.remove(given, recursive=recursive)

    def info(self) -> GalleryInfo:
        """Return facts about the collection; how many bytes it has is known to Qdrant alone."""
        live = self._refresh().statistics
        info = self.read(lambda view: GalleryInfo.of(self.location, view))
        return replace(info, average_length=live.average_length)


class QdrantNames:
    """The names of words, which the state of a collection has."""

    def __init__(self, store: QdrantStore) -> None:
        self._store = store

    @property
    def own(self) -> Mapping[int, str]:
        return self._store._state.names

    def merge(self, vocabulary: Mapping[int, str]) -> Mapping[int, str]:
        return {**(self._store._state.other_names or {}), **vocabulary, **self.own}

    def update(self, changes: Mapping[int, str | None]) -> None:
        valid = check_names(changes, self._store.meta.n_words)
        with QdrantWriter(self._store.calls, timeout=_NAMING_SECONDS) as writer:
            names = {**writer.state.names, **valid}
            writer.describe(names={word: name for word, name in names.items() if name is not None})
        self._store._refresh()
