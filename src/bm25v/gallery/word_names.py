"""The names of a gallery's words: tables of those that people give, of suggestions, and of others.

In: changes. Out: all names as they are now. People's names count most. Suggestions were made from
the gallery's own images on request, so they replace all others: those of the vocabulary, and those
that indexing gives to words without one. Names have a lock of their own, so naming does not wait
for indexing. Readers take no lock, because a file is replaced in one step.
"""

import operator
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
SUGGESTED = "suggested.tsv"
AUTOMATIC = "automatic.tsv"
LOCK_NAME = "names.lock"

_NO_NAMES: Mapping[int, str] = MappingProxyType({})
_LOCK_SECONDS = 10.0  # another process that names words needs milliseconds


class WordNames:
    """The names of one gallery's words."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self._folder = folder
        self._meta = meta
        self._read: dict[str, tuple[tuple[int, ...], Mapping[int, str]]] = {}
        self._merged: tuple[tuple[Mapping[int, str], ...], Mapping[int, str]] | None = None

    def current(self) -> Mapping[int, str]:
        """Return the names that people gave."""
        return self._read_table(FILE_NAME)

    def suggested(self) -> Mapping[int, str]:
        """Return the suggested names; none if nothing was suggested."""
        return self._read_table(SUGGESTED)

    @property
    def has_automatic(self) -> bool:
        """Whether indexing has named words."""
        return (self._folder / AUTOMATIC).is_file()

    def merge(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        """Return people's names and, for other words, suggestions.

        Without suggestions these are the vocabulary's names, and else automatic ones.
        """
        parts = (self._read_table(AUTOMATIC), vocabulary_names, self.suggested(), self.current())
        merged = self._merged
        if merged is None or any(map(operator.is_not, merged[0], parts)):
            others = self.merge_others(vocabulary_names)
            names = MappingProxyType({**others, **self.current()})
            self._merged = merged = (parts, names)
        return merged[1]

    def merge_others(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        """Return the names that words have if people give none."""
        return self.suggested() or {**self._read_table(AUTOMATIC), **vocabulary_names}

    def replace_suggestions(self, names: Mapping[int, str], notes: Mapping[int, str]) -> None:
        """Write suggested names instead of those before; notes say why."""
        self._write_table(SUGGESTED, names, notes)

    def replace_automatic(self, names: Mapping[int, str], notes: Mapping[int, str]) -> None:
        """Write the names that indexing gives to words instead of those before."""
        self._write_table(AUTOMATIC, names, notes)

    def _write_table(
        self, file_name: str, names: Mapping[int, str], notes: Mapping[int, str]
    ) -> None:
        fingerprint = self._meta.vocabulary_fingerprint
        table = tables.format_names(names, vocabulary=fingerprint, notes=notes)
        require_gallery(self._folder)
        with disk_errors(self._folder):
            replace_file(self._folder / file_name, table)

    def _read_table(self, file_name: str) -> Mapping[int, str]:
        """Return the names in a file, which is read again only if it has changed."""
        path = self._folder / file_name
        read = self._read.get(file_name, ((), _NO_NAMES))
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != read[0]:
                read = (stamp, MappingProxyType(self._parse(path)))
        except FileNotFoundError:
            read = ((), _NO_NAMES)
        except OSError as error:
            raise GalleryError(f"cannot read {path}: {error.strerror}") from error
        self._read[file_name] = read
        return read[1]

    def update(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear names with None; if one change is wrong, none is made."""
        valid = tables.check_names(changes, self._meta.n_words)
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
