"""The names of a gallery's words: those that people give, those of the vocabulary, and others.

People's names count most, then those of the vocabulary; indexing names words that have neither.
Names have a lock of their own, so naming does not wait for indexing. Readers take no lock, because
a file is replaced in one step.
"""

import operator
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from bm25v.errors import GalleryError, InvalidOption
from bm25v.files import replace_file
from bm25v.store.local.catalog import require_gallery
from bm25v.store.local.database import disk_errors
from bm25v.store.local.locks import locking
from bm25v.store.meta import Meta
from bm25v.vocabulary import names as tables

FILE_NAME = "names.tsv"
AUTOMATIC = "automatic.tsv"
LOCK_NAME = "names.lock"

_NO_NAMES: Mapping[int, str] = MappingProxyType({})
LOCK_SECONDS = 10.0  # another process that names words or images needs milliseconds


class WordNames:
    def __init__(self, folder: Path, meta: Meta) -> None:
        self._folder = folder
        self._meta = meta
        self._read: dict[str, tuple[tuple[int, ...], Mapping[int, str]]] = {}
        self._merged: tuple[tuple[Mapping[int, str], ...], Mapping[int, str]] | None = None

    @property
    def own(self) -> Mapping[int, str]:
        """The names that people gave."""
        return self._read_table(FILE_NAME)

    @property
    def has_automatic(self) -> bool:
        return (self._folder / AUTOMATIC).is_file()

    def merge(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        parts = (self._read_table(AUTOMATIC), vocabulary_names, self.own)
        merged = self._merged
        if merged is None or any(map(operator.is_not, merged[0], parts)):
            automatic, others, own = parts
            names = MappingProxyType({**automatic, **others, **own})
            self._merged = merged = (parts, names)
        return merged[1]

    def merge_others(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        """Return the names that words have if people give none."""
        return {**self._read_table(AUTOMATIC), **vocabulary_names}

    def replace_automatic(self, names: Mapping[int, str], notes: Mapping[int, str]) -> None:
        """Write the names that indexing gives to words instead of those before."""
        require_gallery(self._folder)
        with disk_errors(self._folder):
            self._write_table(AUTOMATIC, names, notes)

    def update(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear names with None; if one change is wrong, none is made."""
        valid = tables.check_names(changes, self._meta.n_words)
        require_gallery(self._folder)  # the lock would create a missing folder
        lock = self._folder / LOCK_NAME
        with disk_errors(self._folder), locking(lock, "naming words of", timeout=LOCK_SECONDS):
            names = {**self.own, **valid}
            kept = {word: name for word, name in names.items() if name is not None}
            self._write_table(FILE_NAME, kept)

    def _write_table(
        self, file_name: str, names: Mapping[int, str], notes: Mapping[int, str] | None = None
    ) -> None:
        fingerprint = self._meta.vocabulary_fingerprint
        table = tables.format_names(names, vocabulary=fingerprint, notes=notes)
        replace_file(self._folder / file_name, table)

    def _read_table(self, file_name: str) -> Mapping[int, str]:
        """Return the names in a file, which is read again only if it has changed."""
        path, meta = self._folder / file_name, self._meta
        read = self._read.get(file_name, ((), _NO_NAMES))
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != read[0]:
                names = tables.read_names(
                    path, n_words=meta.n_words, vocabulary=meta.vocabulary_fingerprint
                )
                read = (stamp, MappingProxyType(names))
        except FileNotFoundError:
            read = ((), _NO_NAMES)
        except OSError as error:
            raise GalleryError(f"cannot read {path}: {error.strerror}") from error
        except InvalidOption as error:
            raise GalleryError(
                f"{error}; correct {path}, or delete it to remove all names"
            ) from error
        self._read[file_name] = read
        return read[1]
