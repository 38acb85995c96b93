"""The names of a gallery's words and images: tables that people can edit.

People's names of words count most, then those of the vocabulary; indexing names words that have
neither. Names of images, such as “Anna's birthday”, are a table of their own:

    # bm25v image names, format 1
    content                           name
    5d41402abc4b2a76b9719d911017c592  Anna's birthday

An image is listed by the hash of its content, so it keeps its names when it is moved, and has them
again when it is restored. Names that texts cannot tell apart are the same name.

Names have a lock of their own, so naming does not wait for indexing. Readers take no lock, because
a file is replaced in one step.
"""

import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from bm25v.errors import GalleryError, InvalidOption
from bm25v.files import read_limited, replace_file
from bm25v.store.filters import Called
from bm25v.store.local.catalog import require_gallery
from bm25v.store.local.database import disk_errors, locking
from bm25v.store.meta import Meta
from bm25v.vocabulary import names as tables
from bm25v.vocabulary.phrases import SMALL_WORDS, make_key

WORDS, AUTOMATIC, IMAGES = "names.tsv", "automatic.tsv", "images.tsv"
LOCK_NAME = "names.lock"
LOCK_SECONDS = 10.0  # another process that names words or images needs milliseconds
FORMAT = 1  # of names of images

_MAX_BYTES = 16_000_000  # some 300,000 lines
_HEADER = f"# bm25v image names, format {FORMAT}"
_CONTENT = re.compile("[0-9a-f]{32}")
_NO_NAMES: Mapping[Any, Any] = MappingProxyType({})

K = TypeVar("K")
V = TypeVar("V")


class NameTable(Generic[K, V]):
    """A file of names, which is read again only if it has changed."""

    def __init__(self, path: Path, parse: Callable[[Path], dict[K, V]]) -> None:
        self.path, self._parse = path, parse
        self._read: tuple[tuple[int, ...], Mapping[K, V]] = ((), _NO_NAMES)

    def read(self) -> Mapping[K, V]:
        """Return the names; raise `GalleryError` for a file that cannot be read."""
        try:
            status = os.stat(self.path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._read[0]:
                self._read = (stamp, MappingProxyType(self._parse(self.path)))
        except FileNotFoundError:
            self._read = ((), _NO_NAMES)
        except OSError as error:
            raise GalleryError(f"cannot read {self.path}: {error.strerror}") from error
        except InvalidOption as error:
            raise GalleryError(
                f"{error}; correct {self.path}, or delete it to remove all names in it"
            ) from error
        return self._read[1]


class WordNames:
    """The names of words."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self._folder, self._meta = folder, meta
        parse = partial(
            tables.read_names, n_words=meta.n_words, vocabulary=meta.vocabulary_fingerprint
        )
        self._own = NameTable(folder / WORDS, parse)
        self._automatic = NameTable(folder / AUTOMATIC, parse)
        self._merged: tuple[tuple[Mapping[int, str], ...], Mapping[int, str]] | None = None

    @property
    def own(self) -> Mapping[int, str]:
        """The names that people gave."""
        return self._own.read()

    @property
    def has_automatic(self) -> bool:
        return self._automatic.path.is_file()

    def merge(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        parts = (self._automatic.read(), vocabulary_names, self.own)
        merged = self._merged
        if merged is None or any(map(operator.is_not, merged[0], parts)):
            automatic, others, own = parts
            names = MappingProxyType({**automatic, **others, **own})
            self._merged = merged = (parts, names)
        return merged[1]

    def merge_others(self, vocabulary_names: Mapping[int, str]) -> Mapping[int, str]:
        """Return the names that words have if people give none."""
        return {**self._automatic.read(), **vocabulary_names}

    def replace_automatic(self, names: Mapping[int, str], notes: Mapping[int, str]) -> None:
        """Write the names that indexing gives to words instead of those before."""
        require_gallery(self._folder)
        with disk_errors(self._folder):
            self._write(self._automatic, names, notes)

    def update(self, changes: Mapping[int, str | None]) -> None:
        """Name words, or clear names with None; if one change is wrong, none is made."""
        valid = tables.check_names(changes, self._meta.n_words)
        with _locked(self._folder, "naming words of"):
            names = {**self.own, **valid}
            kept = {word: name for word, name in names.items() if name is not None}
            self._write(self._own, kept)

    def _write(
        self,
        table: NameTable[int, str],
        names: Mapping[int, str],
        notes: Mapping[int, str] | None = None,
    ) -> None:
        fingerprint = self._meta.vocabulary_fingerprint
        replace_file(table.path, tables.format_names(names, vocabulary=fingerprint, notes=notes))


class ImageNames:
    """The names of images; a name has a key, which is the same for all ways of writing it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._table = NameTable(folder / IMAGES, _read_image_names)

    @property
    def by_key(self) -> Mapping[str, Called]:
        return self._table.read()

    def update(self, name: str, contents: Iterable[bytes], *, add: bool) -> Called:
        """Give a name to images, instead of those that have it, or with `add` beside them.

        Return the images that have it; a name without images is removed.
        """
        key, name = check_image_name(name)
        with _locked(self._folder, "naming images of"):
            names = dict(self.by_key)
            before = names.pop(key, Called(name, ())) if add else Called(name, ())
            called = Called(before.name, tuple({*before.contents, *contents}))
            names[key] = called
            _write_image_names(self._table.path, names)
        return called


def find_name_problems(folder: Path, meta: Meta) -> list[str]:
    """Return what is wrong with the tables, one line per problem."""
    words, images, problems = WordNames(folder, meta), ImageNames(folder), []
    for table in (words._own, words._automatic, images._table):
        try:
            table.read()
        except GalleryError as error:
            problems.append(str(error))
    return problems


def check_image_name(name: str) -> tuple[str, str]:
    """Return the key of a name and the name; raise `InvalidOption` if no text could have it.

    >>> check_image_name(" Anna's Birthday ")
    ('annas birthday', "Anna's Birthday")
    """
    name = tables.check_name(name)
    key = make_key(name)
    if SMALL_WORDS.issuperset(key.split()):
        raise InvalidOption(f"the name {name!r} has no word that a text is searched for: add one")
    return key, name


@contextmanager
def _locked(folder: Path, doing: str) -> Iterator[None]:
    require_gallery(folder)  # the lock would create a missing folder
    with disk_errors(folder), locking(folder / LOCK_NAME, doing, timeout=LOCK_SECONDS):
        yield


def _read_image_names(path: Path) -> dict[str, Called]:
    """Return the names in a file by their keys; raise `InvalidOption` if it is not a table."""
    try:
        lines = read_limited(path, _MAX_BYTES).decode().split("\n")
    except ValueError as error:
        raise InvalidOption(f"{path} is not a table of names: {error}") from None
    if lines[0].strip() != _HEADER:
        raise InvalidOption(f"{path} is not a table of image names in format {FORMAT}")
    names: dict[str, tuple[str, dict[bytes, None]]] = {}
    for number, line in enumerate(lines[2:], start=3):
        if not line.strip():
            continue
        content, _, written = line.partition("\t")
        try:
            if not _CONTENT.fullmatch(content):
                raise InvalidOption("it does not start with the hash of a file")
            name = tables.check_name(written)
        except InvalidOption as error:
            raise InvalidOption(f"{path}, line {number}: {error}") from None
        names.setdefault(make_key(name), (name, {}))[1][bytes.fromhex(content)] = None
    return {key: Called(name, tuple(sorted(contents))) for key, (name, contents) in names.items()}


def _write_image_names(path: Path, names: Mapping[str, Called]) -> None:
    """Replace the file; raise `InvalidOption` if it would be too large to be read again."""
    lines = [
        f"{content.hex()}\t{names[key].name}"
        for key in sorted(names)
        for content in sorted(names[key].contents)
    ]
    table = "".join(f"{line}\n" for line in (_HEADER, "content\tname", *lines)).encode()
    if len(table) > _MAX_BYTES:
        raise InvalidOption(
            f"{path} would have {len(table):,} bytes, at most {_MAX_BYTES:,} are read: name fewer "
            "images, or remove a name"
        )
    replace_file(path, table)
