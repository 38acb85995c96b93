"""Brings pictures to disk: rows first, synced, then the catalogue's transaction.

A killed process loses at most the batch under way; the next writer cuts off what it left.
"""

import os
import zlib
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bm25v.errors import GalleryLocked
from bm25v.gallery import rows as row_files
from bm25v.gallery.catalog import FILE_NAME, Catalog, ImageRecord, require
from bm25v.gallery.failures import disk_errors
from bm25v.gallery.snapshot import write_bag
from bm25v.vocabulary.bag import Bag

LOCK = "writer.lock"


class FileState(NamedTuple):
    """A file as it was when it was read."""

    path: str
    content: bytes
    size: int
    mtime_ns: int


class Writer:
    """The one writer of a gallery: a context manager that undoes what was not committed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK)

    def __enter__(self) -> "Writer":
        require(self._folder)  # before the lock makes a folder for itself
        with disk_errors(self._folder), ExitStack() as cleanup:
            self._acquire(cleanup)
            self._open(cleanup)
            self._cleanup = cleanup.pop_all()
        return self

    def _acquire(self, cleanup: ExitStack) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise GalleryLocked(
                f"another process is writing to {self._folder}: wait until it is done"
            ) from None
        cleanup.callback(self._lock.release)

    def _open(self, cleanup: ExitStack) -> None:
        self.catalog = Catalog(self._folder / FILE_NAME, write=True)
        cleanup.callback(self.catalog.close)
        meta = self.catalog.meta
        state = self.catalog.state()
        self._n_rows = state.n_rows
        self.bag_file = row_files.bag_file(self._folder, meta, state.generation)
        self.dense_file = row_files.dense_file(self._folder, meta, state.generation)
        self._bags = row_files.RowWriter(self.bag_file, self._n_rows)
        cleanup.callback(self._bags.close)
        self._dense = row_files.RowWriter(self.dense_file, self._n_rows)
        cleanup.callback(self._dense.close)
        self.tidy()
        self.catalog.begin()
        self.catalog.upgrade()
        self.n_pending = 0

    def tidy(self) -> None:
        """Delete row files that no longer count, or that an interrupted process left."""
        place = (self._folder, self.catalog.meta, self.catalog.state().generation)
        current = {row_files.bag_file(*place).path, row_files.dense_file(*place).path}
        for path in set(self._folder.glob("*.rows")) - current:
            with suppress(OSError):  # Windows keeps what a reader has open: the next writer tries
                path.unlink(missing_ok=True)

    def __exit__(self, *_: object) -> None:
        with self._cleanup:
            self.catalog.rollback()

    def put(self, file: FileState, bag: Bag, dense_e: NDArray[np.float32]) -> None:
        """Add a picture at a path that is free."""
        bag_row = np.zeros(1, dtype=self.bag_file.dtype)
        dense_row = np.zeros(1, dtype=self.dense_file.dtype)
        write_bag(bag_row[0], bag)
        dense_row["dense"] = dense_e
        self._put(file, bag_row.tobytes(), dense_row.tobytes())

    def put_copy(self, file: FileState, row: int) -> None:
        """Add a picture whose content another row has already."""
        bags, dense = self.bag_file.view(row + 1), self.dense_file.view(row + 1)
        self._put(file, bags[row].tobytes(), dense[row].tobytes())

    def _put(self, file: FileState, bag_row: bytes, dense_row: bytes) -> None:
        with disk_errors(self._folder):
            self._bags.write(self._n_rows, bag_row)
            self._dense.write(self._n_rows, dense_row)
        self.catalog.insert(ImageRecord(self._n_rows, *file, row_checksum(bag_row, dense_row)))
        self._n_rows += 1
        self.n_pending += 1

    def move(self, row: int, file: FileState) -> None:
        """Give a picture another place or time stamp; a removed one comes back."""
        self.catalog.move(row, file.path, file.size, file.mtime_ns)
        self.n_pending += 1

    def remove(self, row: int) -> None:
        """Take a picture out."""
        self.catalog.remove(row)
        self.n_pending += 1

    def commit(self) -> None:
        """Make all changes since the last commit durable and visible, or none of them."""
        if self.n_pending:
            with disk_errors(self._folder):
                self._bags.sync()
                self._dense.sync()
            self.catalog.commit()
            self.catalog.begin()
            self.n_pending = 0


def sync_folder(folder: Path) -> None:
    """Bring the names of a folder's files to the disk, where folders can be opened at all."""
    if os.name == "nt":
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def row_checksum(bag_row: bytes, dense_row: bytes) -> int:
    """Return the CRC-32 of a picture's two rows."""
    return zlib.crc32(dense_row, zlib.crc32(bag_row))
