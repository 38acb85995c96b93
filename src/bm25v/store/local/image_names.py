"""Names that people gave to images, such as “Anna's birthday”: a TSV file of the gallery.

    # bm25v image names, format 1
    content                           name
    5d41402abc4b2a76b9719d911017c592  Anna's birthday

An image is listed by the hash of its content, so it keeps its names when it is moved, and has them
again when it is restored. Names that texts cannot tell apart are the same name. Like the names of
words, the file is replaced in one step, under the lock of names alone.
"""

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from bm25v.errors import GalleryError, InvalidOption
from bm25v.files import read_limited, replace_file
from bm25v.store.filters import Called
from bm25v.store.local.catalog import require_gallery
from bm25v.store.local.database import disk_errors
from bm25v.store.local.locks import locking
from bm25v.store.local.word_names import LOCK_NAME, LOCK_SECONDS
from bm25v.vocabulary.names import check_name
from bm25v.vocabulary.phrases import SMALL_WORDS, make_key

FILE_NAME = "images.tsv"
FORMAT = 1

_MAX_BYTES = 16_000_000  # some 300,000 lines
_HEADER = f"# bm25v image names, format {FORMAT}"
_CONTENT = re.compile("[0-9a-f]{32}")
_NO_NAMES: Mapping[str, Called] = MappingProxyType({})


class ImageNames:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: tuple[tuple[int, ...], Mapping[str, Called]] = ((), _NO_NAMES)

    @property
    def by_key(self) -> Mapping[str, Called]:
        """The names by their keys; the file is read again only if it has changed."""
        path = self._folder / FILE_NAME
        try:
            status = os.stat(path)
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._read[0]:
                self._read = (stamp, MappingProxyType(read_table(path)))
        except FileNotFoundError:
            self._read = ((), _NO_NAMES)
        except OSError as error:
            raise GalleryError(f"cannot read {path}: {error.strerror}") from error
        except InvalidOption as error:
            raise GalleryError(
                f"{error}; correct {path}, or delete it to remove all names of images"
            ) from error
        return self._read[1]

    def update(self, name: str, contents: Iterable[bytes], *, add: bool) -> Called:
        """Give a name to images, instead of those that have it, or with `add` beside them.

        Return the images that have it; a name without images is removed.
        """
        key, name = check_image_name(name)
        require_gallery(self._folder)  # the lock would create a missing folder
        lock = self._folder / LOCK_NAME
        with disk_errors(self._folder), locking(lock, "naming images of", timeout=LOCK_SECONDS):
            names = dict(self.by_key)
            before = names.pop(key, Called(name, ())) if add else Called(name, ())
            called = Called(before.name, tuple({*before.contents, *contents}))
            names[key] = called
            _write_table(self._folder / FILE_NAME, names)
        return called


def check_image_name(name: str) -> tuple[str, str]:
    """Return the key of a name and the name; raise `InvalidOption` if no text could have it.

    >>> check_image_name(" Anna's Birthday ")
    ('annas birthday', "Anna's Birthday")
    """
    name = check_name(name)
    key = make_key(name)
    if SMALL_WORDS.issuperset(key.split()):
        raise InvalidOption(f"the name {name!r} has no word that a text is searched for: add one")
    return key, name


def read_table(path: Path) -> dict[str, Called]:
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
            name = check_name(written)
        except InvalidOption as error:
            raise InvalidOption(f"{path}, line {number}: {error}") from None
        names.setdefault(make_key(name), (name, {}))[1][bytes.fromhex(content)] = None
    return {key: Called(name, tuple(sorted(contents))) for key, (name, contents) in names.items()}


def _write_table(path: Path, names: Mapping[str, Called]) -> None:
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
