"""The one writer of a gallery: rows first, synced, then the catalogue's transaction.

In: bags, dense vectors and files. Out: a committed gallery. A process that is killed loses at most
the batch that it has not committed; the next writer cuts off what it left. Not this module's job:
deciding which files to add (`indexing`).
"""

import logging
import zlib
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bm25v.errors import GalleryLocked
from bm25v.files import sync_folder
from bm25v.gallery.catalog import Catalog, require_gallery
from bm25v.gallery.catalog_schema import FILE_NAME
from bm25v.gallery.file_state import FileState
from bm25v.gallery.rows import RowFile, RowWriter, bag_file, dense_file, write_bag
from bm25v.gallery.storage_errors import disk_errors
from bm25v.progress import Progress, no_progress
from bm25v.vocabulary.bag import Bag

LOCK_NAME = "writer.lock"

_log = logging.getLogger(__name__)

_COPY_ROWS = 16_384  # rows copied at once


class Writer:
    """Writes to a gallery, as a context manager; what was not committed at its end is undone."""

    def __init__(self, folder: Path, *, timeout: float = 0.0) -> None:
        self._folder = folder
        self._lock = FileLock(folder / LOCK_NAME)
        self._timeout = timeout

    def __enter__(self) -> "Writer":
        require_gallery(self._folder)  # the lock would create a missing folder
        with disk_errors(self._folder), ExitStack() as cleanup:
            self._acquire(cleanup)
            self._open(cleanup)
            self._cleanup = cleanup.pop_all()
        return self

    def _acquire(self, cleanup: ExitStack) -> None:
        try:
            self._lock.acquire(timeout=self._timeout)
        except Timeout:
            raise GalleryLocked(
                f"another process is writing to {self._folder}: try again when it has finished"
            ) from None
        cleanup.callback(self._lock.release)

    def _open(self, cleanup: ExitStack) -> None:
        self.catalog = Catalog(self._folder / FILE_NAME, write=True)
        cleanup.callback(self.catalog.close)
        state = self.catalog.state()
        location = (self._folder, self.catalog.meta, state.generation)
        self._n_rows = state.n_rows
        self.bag_file, self.dense_file = bag_file(*location), dense_file(*location)
        self._bags = RowWriter(self.bag_file, self._n_rows)
        cleanup.callback(self._bags.close)
        self._dense = RowWriter(self.dense_file, self._n_rows)
        cleanup.callback(self._dense.close)
        self._delete_old_row_files()
        self.catalog.begin()
        self.catalog.upgrade()
        self.n_pending = 0

    def __exit__(self, *_: object) -> None:
        with self._cleanup:
            self.catalog.rollback()

    def put(self, file: FileState, bag: Bag, dense_e: NDArray[np.float32]) -> None:
        """Add an image at a path that has none."""
        bag_row = np.zeros(1, dtype=self.bag_file.dtype)
        dense_row = np.zeros(1, dtype=self.dense_file.dtype)
        write_bag(bag_row[0], bag)
        dense_row["dense"] = dense_e
        self._put(file, bag_row.tobytes(), dense_row.tobytes())

    def put_copy(self, file: FileState, row: int) -> None:
        """Add an image with the content of another row."""
        bags, dense = self.bag_file.view(row + 1), self.dense_file.view(row + 1)
        self._put(file, bags[row].tobytes(), dense[row].tobytes())

    def _put(self, file: FileState, bag_row: bytes, dense_row: bytes) -> None:
        with disk_errors(self._folder):
            self._bags.write(self._n_rows, bag_row)
            self._dense.write(self._n_rows, dense_row)
        self.catalog.insert(file.to_record(self._n_rows, row_checksum(bag_row, dense_row)))
        self._n_rows += 1
        self.n_pending += 1

    def move(self, row: int, file: FileState) -> None:
        """Change an image's path, time stamp or metadata; restore it if it was removed."""
        self.catalog.move(row, file.path, file.size, file.mtime_ns, file.metadata)
        self.n_pending += 1

    def remove(self, row: int) -> None:
        """Remove an image."""
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

    def compact(self, progress: Progress = no_progress) -> int:
        """Copy the rows of live images to new files; return how many bytes that frees.

        The catalogue's transaction is the commit here too: before it the new files do not count,
        after it the old ones do not. The next writer deletes the files that do not count.
        """
        state = self.catalog.state()
        removed = self.catalog.removed_rows()
        if len(removed) == 0:
            return 0
        live = np.setdiff1d(np.arange(state.n_rows), removed)
        location = (self._folder, self.catalog.meta, state.generation + 1)
        copies = [
            (self.bag_file, bag_file(*location), "compacting bags"),
            (self.dense_file, dense_file(*location), "compacting dense vectors"),
        ]
        with ExitStack() as undo:
            for old, new, stage in copies:
                undo.callback(new.path.unlink, missing_ok=True)
                self._copy_rows(old, new, live, stage, progress)
            with disk_errors(self._folder):
                sync_folder(self._folder)
            self.catalog.renumber()
            undo.pop_all()
        self.catalog.commit()  # may count after a crash even if it fails: both files must stay
        self.catalog.shrink()
        self._delete_old_row_files()
        freed = len(removed) * sum(old.dtype.itemsize for old, _, _ in copies)
        _log.info("compacted %s: %s images removed, %s bytes", self._folder, len(removed), freed)
        return freed

    def _copy_rows(
        self, old: RowFile, new: RowFile, rows: NDArray[np.int64], stage: str, progress: Progress
    ) -> None:
        old_rows = old.view(int(rows[-1]) + 1 if len(rows) else 0)
        with disk_errors(self._folder):
            new.create()
        with closing(RowWriter(new, 0)) as writer:
            for start in range(0, len(rows), _COPY_ROWS):
                block = rows[start : start + _COPY_ROWS]
                with disk_errors(self._folder):
                    writer.write(start, old_rows[block].tobytes())
                progress(stage, start + len(block), len(rows))
            with disk_errors(self._folder):
                writer.sync()

    def _delete_old_row_files(self) -> None:
        """Delete row files that no longer count, or that an interrupted process left."""
        location = (self._folder, self.catalog.meta, self.catalog.state().generation)
        current = {bag_file(*location).path, dense_file(*location).path}
        for path in set(self._folder.glob("*.rows")) - current:
            with suppress(OSError):  # Windows: keeps files that a reader has open
                path.unlink(missing_ok=True)


def row_checksum(bag_row: bytes, dense_row: bytes) -> int:
    """Return the CRC-32 of an image's two rows."""
    return zlib.crc32(dense_row, zlib.crc32(bag_row))
