"""The names that people give to words, in a table of their own beside the pictures.

A lock of their own as well: naming does not wait for indexing. A reader takes no lock, as the
table is replaced at once.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from filelock import FileLock, Timeout

from bm25v.errors import GalleryError, GalleryLocked, WrongUse
from bm25v.gallery.catalog import Meta, require
from bm25v.gallery.failures import disk_errors
from bm25v.gallery.writer import sync_folder
from bm25v.vocabulary import names as tables

FILE_NAME = "names.tsv"
LOCK = "names.lock"

_NONE: Mapping[int, str] = MappingProxyType({})
_PATIENCE = 10.0  # seconds; another one who names words needs milliseconds


class Names:
    """What the words of one gallery are called by its people."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self._folder = folder
        self._meta = meta
        self._read: tuple[tuple[int, ...], Mapping[int, str]] = ((), _NONE)
        self._merged: tuple[Mapping[int, str], Mapping[int, str]] | None = None

    def current(self) -> Mapping[int, str]:
        """Return the names as they are now; read anew only if they have changed."""
        path = self._folder / FILE_NAME
        try:
            found = os.stat(path)
            stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp != self._read[0]:
                self._read = (stamp, MappingProxyType(self._parsed(path)))
        except FileNotFoundError:
            self._read = ((), _NONE)
        except OSError as error:
            raise GalleryError(f"{path} cannot be read: {error.strerror}") from error
        return self._read[1]

    def above(self, others: Mapping[int, str]) -> Mapping[int, str]:
        """Return these names and, for words without one, those that the vocabulary has."""
        current, merged = self.current(), self._merged
        if merged is None or merged[0] is not current:
            self._merged = merged = (current, MappingProxyType({**others, **current}))
        return merged[1]

    def change(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear their names with None: all of these or, if one is wrong, none."""
        wanted = {
            tables.check_word(word, self._meta.n_words): None
            if name is None
            else tables.check_name(name)
            for word, name in changes.items()
        }
        require(self._folder)  # before the lock makes a folder for itself
        with disk_errors(self._folder):
            try:
                with FileLock(self._folder / LOCK).acquire(timeout=_PATIENCE):
                    self._replace({**self.current(), **wanted})
            except Timeout:
                raise GalleryLocked(
                    f"another process is naming words of {self._folder}: try again"
                ) from None

    def _replace(self, names: Mapping[int, str | None]) -> None:
        kept = {word: name for word, name in names.items() if name is not None}
        text = tables.format_names(kept, vocabulary=self._meta.vocabulary_fingerprint)
        tables.write(self._folder / FILE_NAME, text)
        sync_folder(self._folder)

    def _parsed(self, path: Path) -> dict[int, str]:
        meta = self._meta
        try:
            return tables.read_names(
                path, n_words=meta.n_words, vocabulary=meta.vocabulary_fingerprint
            )
        except WrongUse as error:
            raise GalleryError(f"{error}; mend {path}, or delete it to forget the names") from error
