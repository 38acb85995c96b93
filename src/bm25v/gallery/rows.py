"""Append-only files of fixed-width rows behind a 64-byte header."""

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryTooNew

FORMAT = 1
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sII")  # magic, format, bytes a row
_MAGIC = b"BM25VROW"

Rows = NDArray[Any]


def bag_dtype(k_post: int, n_words: int) -> np.dtype[np.void]:
    """Return the layout of a bag's row: k_post words, then their term frequencies."""
    word = "<u2" if n_words <= 1 << 16 else "<u4"
    return np.dtype([("words", word, (k_post,)), ("tf", "<u2", (k_post,))])


def dense_dtype(dim: int) -> np.dtype[np.void]:
    """Return the layout of a dense vector's row."""
    return np.dtype([("dense", "<f2", (dim,))])


def create(path: Path, dtype: np.dtype[np.void]) -> None:
    """Write an empty row file."""
    header = _HEADER.pack(_MAGIC, FORMAT, dtype.itemsize)
    with path.open("wb") as file:
        file.write(header.ljust(HEADER_BYTES, b"\0"))
        file.flush()
        os.fsync(file.fileno())


def view(path: Path, dtype: np.dtype[np.void], n: int) -> Rows:
    """Return the first n rows, memory-mapped and read-only."""
    _check(path, dtype, n)
    if n == 0:
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r", offset=HEADER_BYTES, shape=(n,))


class RowWriter:
    """Write rows behind the n committed ones; what lies beyond those is cut off first."""

    def __init__(self, path: Path, dtype: np.dtype[np.void], n: int) -> None:
        _check(path, dtype, n)
        self._row_bytes = dtype.itemsize
        self._file = path.open("r+b", buffering=0)
        self._file.truncate(HEADER_BYTES + n * self._row_bytes)

    def write(self, row: int, content: bytes) -> None:
        """Put one row at its place; durable after `sync`."""
        self._file.seek(HEADER_BYTES + row * self._row_bytes)
        while content:
            content = content[self._file.write(content) :]

    def sync(self) -> None:
        """Bring all written rows to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _check(path: Path, dtype: np.dtype[np.void], n: int) -> None:
    try:
        with path.open("rb") as file:
            magic, version, row_bytes = _HEADER.unpack(file.read(_HEADER.size))
            size = os.fstat(file.fileno()).st_size
    except (OSError, struct.error) as error:
        raise GalleryDamaged(f"{path} cannot be read: {error}") from error
    if magic != _MAGIC or row_bytes != dtype.itemsize:
        raise GalleryDamaged(f"{path} is not a row file of {dtype.itemsize} bytes a row")
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
