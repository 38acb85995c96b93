"""The names that people give to a gallery's words: a table beside the images.

In: changes. Out: all names as they are now. Names have a lock of their own, so naming does not wait
for indexing. Readers take no lock, because the file is replaced in one step.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock, Timeout

from bm25v.errors import GalleryError, GalleryLocked, WrongUse
from bm25v.files import replace_file
from bm25v.gallery.catalog import require_gallery
from bm25v.gallery.records import Meta
from bm25v.gallery.storage_errors import disk_errors
from bm25v.vocabulary import names as tables

FILE_NAME = "names.tsv"
LOCK_NAME = "names.lock"

_NO_NAMES: Mapping[int, str] = MappingProxyType({})
_LOCK_SECONDS = 10.0  # another process that names words needs milliseconds


class WordNames:
    """The names of one gallery's words."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self._folder = folder
        self._meta = meta
        self._read: tuple[tuple[int, ...], Mapping[int, str]] = ((), _NO_NAMES)
        self._merged: tuple[Mapping[int, str], Mapping[int, str]] | None = None

    def current(self) -> Mapping[int, str]:
        """Return the names as they are now; the file is read again only if it has changed."""
        path = self._folder / FILE_NAME
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._read[0]:
                self._read = (stamp, MappingProxyType(self._parse(path)))
        except FileNotFoundError:
            self._read = ((), _NO_NAMES)
        except OSError as error:
            raise GalleryError(f"cannot read {path}: {error.strerror}") from error
        return self._read[1]

    def merge(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        """Return these names and, for words without one, those of the vocabulary."""
        current, merged = self.current(), self._merged
        if merged is None or merged[0] is not current:
            names = MappingProxyType({**vocabulary_names, **current})
            self._merged = merged = (current, names)
        return merged[1]

    def update(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear names with None; if one change is wrong, none is made."""
        valid = {
            tables.check_word(word, self._meta.n_words): None
            if name is None
            else tables.check_name(name)
            for word, name in changes.items()
        }
        require_gallery(self._folder)  # the lock would create a missing folder
        with disk_errors(self._folder):
            try:
                with FileLock(self._folder / LOCK_NAME).acquire(timeout=_LOCK_SECONDS):
                    self._replace({**self.current(), **valid})
            except Timeout:
                raise GalleryLocked(
                    f"another process is naming words of {self._folder}: try again"
                ) from None

    def _replace(self, names: Mapping[int, str | None]) -> None:
        kept = {word: name for word, name in names.items() if name is not None}
        text = tables.format_names(kept, vocabulary=self._meta.vocabulary_fingerprint)
        replace_file(self._folder / FILE_NAME, text)

    def _parse(self, path: Path) -> dict[int, str]:
        meta = self._meta
        try:
            return tables.read_names(
                path, n_words=meta.n_words, vocabulary=meta.vocabulary_fingerprint
            )
        except WrongUse as error:
            raise GalleryError(
                f"{error}; correct {path}, or delete it to remove all names"
            ) from error
