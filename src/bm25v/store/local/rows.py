"""Append-only files of fixed-width rows after a 64-byte header: bags, full bags, dense vectors.

The catalogue decides which rows exist: the next writer cuts off what lies behind those it names.
"""

import os
import struct
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError, GalleryTooNew
from bm25v.store.local.records import Meta
from bm25v.vocabulary.bag import Bag, FullBag, patch_bytes, word_bytes

FORMAT = 1
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sII")  # magic, format, bytes per row
_MAGIC = b"BM25VROW"

RowArray = NDArray[Any]


class RowFile(NamedTuple):
    """A file of rows of one layout."""

    path: Path
    dtype: np.dtype[np.void]

    def create(self) -> None:
        header = _HEADER.pack(_MAGIC, FORMAT, self.dtype.itemsize)
        with self.path.open("wb") as file:
            file.write(header.ljust(HEADER_BYTES, b"\0"))
            file.flush()
            os.fsync(file.fileno())

    def view(self, n: int) -> RowArray:
        """Return the first n rows, memory-mapped and read-only."""
        with self.open(n, "rb") as file:
            if n == 0:
                return np.empty(0, dtype=self.dtype)
            rows = np.memmap(file, dtype=self.dtype, mode="r", offset=HEADER_BYTES, shape=(n,))
            return np.asarray(rows)  # a plain view: reading fields of a memmap is slow

    def open(self, n: int, mode: str) -> FileIO:
        """Open the file, which must have at least n rows."""
        try:
            file = FileIO(self.path, mode)
        except FileNotFoundError as error:
            raise GalleryDamaged(f"{self.path} is missing") from error
        except OSError as error:
            raise GalleryError(f"cannot open {self.path}: {error.strerror}") from error
        try:
            self._check(file, n)
        except BaseException:
            file.close()
            raise
        return file

    def _check(self, file: FileIO, n: int) -> None:
        path, row_bytes = self.path, self.dtype.itemsize
        try:
            magic, version, stored_row_bytes = _HEADER.unpack(file.read(_HEADER.size))
            size = os.fstat(file.fileno()).st_size
        except (OSError, struct.error) as error:
            raise GalleryDamaged(f"cannot read {path}: {error}") from error
        if magic != _MAGIC or stored_row_bytes != row_bytes:
            raise GalleryDamaged(f"{path} is not a row file with {row_bytes} bytes per row")
        if version > FORMAT:
            raise GalleryTooNew(
                f"{path} has row format {version}, this bm25v reads up to {FORMAT}: upgrade bm25v"
            )
        rows = (size - HEADER_BYTES) // row_bytes
        if rows < n:
            raise GalleryDamaged(
                f"{path} has {rows:,} rows, the catalogue names {n:,}: "
                "index the images into a new gallery, or restore the file from a backup"
            )


class RowWriter:
    """Writes rows after the n committed ones; whatever lies behind those is cut off first."""

    def __init__(self, file: RowFile, n: int) -> None:
        self._row_bytes = file.dtype.itemsize
        self._file = file.open(n, "r+b")
        self._file.truncate(HEADER_BYTES + n * self._row_bytes)

    def write(self, row: int, content: bytes) -> None:
        """Write one or several rows, from a given row on; durable after `sync`."""
        self._file.seek(HEADER_BYTES + row * self._row_bytes)
        while content:
            content = content[self._file.write(content) :]

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class RowFiles(NamedTuple):
    """The files of a gallery; each has a row for each image."""

    bags: RowFile  # in each row k_post words, then their term frequencies
    dense: RowFile
    full_bags: RowFile  # k_full words, the levels of their tf, their patches

    @classmethod
    def of(cls, folder: Path, meta: Meta, generation: int) -> "RowFiles":
        """Return the files of one generation of a gallery: renumbered rows go to new files."""
        suffix = ".rows" if generation == 0 else f".{generation}.rows"
        dense = np.dtype([("dense", "<f2", (meta.dense_dim,))])
        full = full_bag_layout(meta.k_full, meta.n_words, meta.n_patches)
        return cls(
            RowFile(folder / f"bags{suffix}", bag_layout(meta.k_post, meta.n_words)),
            RowFile(folder / f"dense{suffix}", dense),
            RowFile(folder / f"full{suffix}", full),
        )


def bag_layout(k: int, n_words: int) -> np.dtype[np.void]:
    return np.dtype([("words", f"<u{word_bytes(n_words)}", (k,)), ("tf", "<u2", (k,))])


def full_bag_layout(k: int, n_words: int, n_patches: int) -> np.dtype[np.void]:
    types = {
        "words": f"<u{word_bytes(n_words)}",
        "levels": "u1",
        "patches": f"<u{patch_bytes(n_patches)}",
    }
    return np.dtype([(name, kind, (k,)) for name, kind in types.items()])


def read_bag(row: np.void) -> Bag:
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def is_bag(
    words_k: NDArray[np.unsignedinteger], tf_k: NDArray[np.unsignedinteger], n_words: int
) -> bool:
    """Return whether the words of a stored bag exist and ascend; a slot with tf 0 is empty.

    >>> tf = np.array([5, 7, 0], dtype=np.uint16)
    >>> [is_bag(np.array(words), tf, n_words=8) for words in ([1, 3, 0], [3, 1, 0], [1, 8, 0])]
    [True, False, False]
    """
    words = words_k[tf_k > 0]
    return bool((words[1:] > words[:-1]).all() and (words < n_words).all())


def write_bag(row: np.void, bag: Bag) -> None:
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf


def read_full_bag(row: np.void) -> FullBag:
    used = row["levels"] > 0
    words, patches = row["words"][used].astype(np.int32), row["patches"][used].astype(np.uint16)
    return FullBag(words, row["levels"][used], patches)


def write_full_bag(row: np.void, full_bag: FullBag) -> None:
    """Fill one row with a full bag, or with as many of its strongest words as the row has."""
    k = len(row["words"])
    kept = np.sort(np.argsort(-full_bag.levels.astype(np.int64), kind="stable")[:k])
    for name in FullBag._fields:
        row[name][: len(kept)] = getattr(full_bag, name)[kept]
