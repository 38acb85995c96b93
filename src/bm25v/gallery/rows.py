"""Append-only files of fixed-width rows behind a 64-byte header: bags and dense vectors."""

import os
import struct
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError, GalleryTooNew
from bm25v.gallery.catalog import Meta

FORMAT = 1
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sII")  # magic, format, bytes a row
_MAGIC = b"BM25VROW"

Rows = NDArray[Any]


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

    def view(self, n: int) -> Rows:
        """Return the first n rows, memory-mapped and read-only."""
        with self.open(n, "rb") as file:
            if n == 0:
                return np.empty(0, dtype=self.dtype)
            return np.memmap(file, dtype=self.dtype, mode="r", offset=HEADER_BYTES, shape=(n,))

    def open(self, n: int, mode: str) -> FileIO:
        """Open the file, which must hold n rows at least."""
        try:
            file = FileIO(self.path, mode)
        except FileNotFoundError as error:
            raise GalleryDamaged(f"{self.path} is missing") from error
        except OSError as error:
            raise GalleryError(f"{self.path} cannot be opened: {error.strerror}") from error
        try:
            _check(self, file, n)
        except BaseException:
            file.close()
            raise
        return file


def bag_file(folder: Path, meta: Meta, generation: int) -> RowFile:
    """Return the file of bags: in each row k_post words, then their term frequencies."""
    word = "<u2" if meta.n_words <= 1 << 16 else "<u4"
    dtype = np.dtype([("words", word, (meta.k_post,)), ("tf", "<u2", (meta.k_post,))])
    return RowFile(folder / _name("bags", generation), dtype)


def dense_file(folder: Path, meta: Meta, generation: int) -> RowFile:
    """Return the file of dense vectors."""
    dtype = np.dtype([("dense", "<f2", (meta.dense_dim,))])
    return RowFile(folder / _name("dense", generation), dtype)


def _name(kind: str, generation: int) -> str:
    """Return a file's name; whenever rows get new numbers they move to new files."""
    return f"{kind}.rows" if generation == 0 else f"{kind}.{generation}.rows"


class RowWriter:
    """Write rows behind the n committed ones; what lies beyond those is cut off first."""

    def __init__(self, file: RowFile, n: int) -> None:
        self._row_bytes = file.dtype.itemsize
        self._file = file.open(n, "r+b")
        self._file.truncate(HEADER_BYTES + n * self._row_bytes)

    def write(self, row: int, content: bytes) -> None:
        """Put one row, or several, at its place; durable after `sync`."""
        self._file.seek(HEADER_BYTES + row * self._row_bytes)
        while content:
            content = content[self._file.write(content) :]

    def sync(self) -> None:
        """Bring all written rows to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _check(file: RowFile, opened: FileIO, n: int) -> None:
    path, row_bytes = file.path, file.dtype.itemsize
    try:
        magic, version, found_bytes = _HEADER.unpack(opened.read(_HEADER.size))
        size = os.fstat(opened.fileno()).st_size
    except (OSError, struct.error) as error:
        raise GalleryDamaged(f"{path} cannot be read: {error}") from error
    if magic != _MAGIC or found_bytes != row_bytes:
        raise GalleryDamaged(f"{path} is not a row file of {row_bytes} bytes a row")
    if version > FORMAT:
        raise GalleryTooNew(
            f"{path} has row format {version}, this bm25v reads up to {FORMAT}: upgrade bm25v"
        )
    rows = (size - HEADER_BYTES) // row_bytes
    if rows < n:
        raise GalleryDamaged(
            f"{path} holds {rows:,} rows of the {n:,} that the catalogue names; "
            "index the pictures into a new gallery, or restore the file from a copy"
        )
