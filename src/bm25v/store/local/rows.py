"""Append-only files of fixed-width rows after a 64-byte header: bags, full bags, dense vectors.

The catalogue decides which rows exist: the next writer writes over what lies behind those it names.
A large file has room for some more rows, so that a reader need not map it again for each.
"""

import os
import struct
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bm25v.errors import GalleryDamaged, GalleryError, GalleryTooNew
from bm25v.store.bags import RowArray, bag_layout, full_bag_layout
from bm25v.store.meta import Meta

FORMAT = 1
HEADER_BYTES = 64

_HEADER = struct.Struct("<8sII")  # magic, format, bytes per row
_MAGIC = b"BM25VROW"


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
        return self.map(n)[:n]

    def map(self, n: int, known: RowArray | None = None) -> RowArray:
        """Return the first n rows, memory-mapped and read-only, and the room behind them.

        A known mapping of so many rows is returned as it is.
        """
        with self.open(n, "rb") as file:
            if known is not None and len(known) >= n:
                return known
            stored = (os.fstat(file.fileno()).st_size - HEADER_BYTES) // self.dtype.itemsize
            n = min(stored, with_room(n))
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


def with_room(n: int) -> int:
    """Return for how many rows a file of n rows has room: at most a thousandth more.

    It never gets less as n grows, so a writer cuts off nothing that a reader has mapped.

    >>> with_room(3), with_room(2_047), with_room(1_000_000), with_room(1_000_001)
    (3, 2047, 1000448, 1000448)
    """
    step = 1 << max(0, n.bit_length() - 11)
    return -(-n // step) * step


class RowWriter:
    """Writes rows after the n committed ones; what lies behind those does not count."""

    def __init__(self, file: RowFile, n: int) -> None:
        self._row_bytes = file.dtype.itemsize
        self._is_synced = True
        self._file = file.open(n, "r+b")
        self._make_room(n)

    def write(self, row: int, content: bytes) -> None:
        """Write one or several rows, from a given row on; durable after `sync`."""
        self._is_synced = False
        n = row + len(content) // self._row_bytes
        if n > self._room:
            self._make_room(n)
        self._file.seek(HEADER_BYTES + row * self._row_bytes)
        while content:
            content = content[self._file.write(content) :]

    def _make_room(self, n: int) -> None:
        self._room = with_room(n)
        self._file.truncate(HEADER_BYTES + self._room * self._row_bytes)

    def sync(self) -> None:
        if not self._is_synced:
            os.fsync(self._file.fileno())
            self._is_synced = True

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
