"""Append-only files of fixed-width rows after a 64-byte header: bags and dense vectors.

In: rows as bytes. Out: memory-mapped arrays. The catalogue decides which rows exist: the next
writer cuts off what lies behind the rows that it names.
"""

import os
import struct
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError, GalleryTooNew
from bm25v.gallery.records import Meta
from bm25v.vocabulary.bag import Bag

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
        """Write an empty file."""
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
            return np.memmap(file, dtype=self.dtype, mode="r", offset=HEADER_BYTES, shape=(n,))

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
        """Make all written rows durable."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def bag_file(folder: Path, meta: Meta, generation: int) -> RowFile:
    """Return the file of bags: in each row k_post words, then their term frequencies."""
    word = "<u2" if meta.n_words <= 1 << 16 else "<u4"
    dtype = np.dtype([("words", word, (meta.k_post,)), ("tf", "<u2", (meta.k_post,))])
    return RowFile(folder / _file_name("bags", generation), dtype)


def dense_file(folder: Path, meta: Meta, generation: int) -> RowFile:
    """Return the file of dense vectors."""
    dtype = np.dtype([("dense", "<f2", (meta.dense_dim,))])
    return RowFile(folder / _file_name("dense", generation), dtype)


def read_bag(row: np.void) -> Bag:
    """Return the bag of one stored row."""
    used = row["tf"] > 0
    return Bag(row["words"][used].astype(np.int32), row["tf"][used])


def write_bag(row: np.void, bag: Bag) -> None:
    """Fill one row with a bag."""
    row["words"][: len(bag.words)] = bag.words
    row["tf"][: len(bag.tf)] = bag.tf


def _file_name(kind: str, generation: int) -> str:
    """Return a file's name; renumbered rows go to new files."""
    return f"{kind}.rows" if generation == 0 else f"{kind}.{generation}.rows"
