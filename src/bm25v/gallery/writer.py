"""The one writer of a gallery: rows first, synced, then the catalogue's transaction.

In: encodings of images and the state of their files. Out: a committed gallery. A process that is
killed loses at most the batch that it has not committed; the next writer cuts off what it left. Not
this module's job: deciding which files to add (`indexing`).
"""

import logging
import zlib
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Protocol

import numpy as np
from filelock import FileLock, Timeout
from numpy.typing import NDArray

from bm25v.errors import GalleryLocked
from bm25v.files import sync_folder
from bm25v.gallery.catalog import Catalog, require_gallery
from bm25v.gallery.catalog_schema import FILE_NAME
from bm25v.gallery.file_state import FileState
from bm25v.gallery.full_bags import FullBagCounter
from bm25v.gallery.records import FullBagState
from bm25v.gallery.rows import (
    RowArray,
    RowFile,
    RowFiles,
    RowWriter,
    write_bag,
    write_full_bag,
)
from bm25v.gallery.storage_errors import disk_errors
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.vocabulary.bag import Bag, FullBag, expand_bag

LOCK_NAME = "writer.lock"

_log = logging.getLogger(__name__)

_COPY_ROWS = 16_384  # rows copied at once


class Encoded(Protocol):
    """What is stored of an image: an `Encoding`, or what was stored of one before."""

    @property
    def bag(self) -> Bag:
        """The bag of the index."""

    @property
    def full_bag(self) -> FullBag | None:
        """The full bag; None if the vocabulary has none."""

    @property
    def dense_e(self) -> NDArray[np.floating]:
        """The dense vector."""


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
        self._n_rows = state.n_rows
        self.files = RowFiles.of(self._folder, self.catalog.meta, state)
        self._rows = cleanup.enter_context(ExitStack())
        self._bags = self._open_rows(self.files.bags, state.n_rows)
        self._dense = self._open_rows(self.files.dense, state.n_rows)
        self.full_bags = state.full_bags
        if state.full_bags is not None:
            self._open_full_bags(state.full_bags)
        self._delete_old_row_files()
        self.catalog.begin()
        self.catalog.upgrade()
        self.n_pending = 0

    def _open_rows(self, file: RowFile, n: int) -> RowWriter:
        return self._rows.enter_context(closing(RowWriter(file, n)))

    def _open_full_bags(self, state: FullBagState) -> None:
        assert self.files.full_bags is not None
        self._full_bags = self._open_rows(self.files.full_bags, state.n_rows)
        self._counter = FullBagCounter(self.catalog.full_statistics())

    def __exit__(self, *_: object) -> None:
        with self._cleanup:
            self.catalog.rollback()

    @property
    def has_full_bags(self) -> bool:
        """Whether all rows have full bags; else new ones get none until `put_full_bag`."""
        return self.full_bags is not None and self.full_bags.n_rows == self._n_rows

    def put(self, file: FileState, encoding: Encoded) -> None:
        """Add an image at a path that has none."""
        bag_row = np.zeros(1, dtype=self.files.bags.dtype)
        dense_row = np.zeros(1, dtype=self.files.dense.dtype)
        write_bag(bag_row[0], encoding.bag)
        dense_row["dense"] = encoding.dense_e
        full_row = None
        if self.has_full_bags:
            full_row = self._make_full_row(encoding.full_bag or expand_bag(encoding.bag))
        self._put(file, bag_row, dense_row, full_row)

    def put_copy(self, file: FileState, row: int) -> None:
        """Add an image with the content of another row."""
        copied = slice(row, row + 1)
        bag_row = self.files.bags.view(row + 1)[copied]
        dense_row = self.files.dense.view(row + 1)[copied]
        full_row = None
        if self.has_full_bags and self.files.full_bags is not None:
            full_row = self.files.full_bags.view(row + 1)[copied]
        self._put(file, bag_row, dense_row, full_row)

    def _put(
        self, file: FileState, bag_row: RowArray, dense_row: RowArray, full_row: RowArray | None
    ) -> None:
        with disk_errors(self._folder):
            self._bags.write(self._n_rows, bag_row.tobytes())
            self._dense.write(self._n_rows, dense_row.tobytes())
        checksum = row_checksum(bag_row.tobytes(), dense_row.tobytes())
        self.catalog.insert(file.to_record(self._n_rows, checksum))
        self._n_rows += 1
        self.n_pending += 1
        if full_row is not None:
            self._put_full_row(full_row, checksum)

    def start_full_bags(self, state: FullBagState) -> None:
        """Make a file for full bags in a gallery that has none; `put_full_bag` fills it."""
        meta = self.catalog.meta
        self.files = RowFiles.of(self._folder, meta, self.catalog.state()._replace(full_bags=state))
        assert self.files.full_bags is not None
        with disk_errors(self._folder):
            self.files.full_bags.create()
            sync_folder(self._folder)
        self.catalog.set_full_bags(state, Statistics.empty(meta.n_words))
        self._open_full_bags(state)
        self.full_bags = state
        self.n_pending += 1

    def put_full_bag(self, full_bag: FullBag, checksum: int) -> None:
        """Add the full bag of the first row that has none; `checksum` is that of its other rows."""
        self._put_full_row(self._make_full_row(full_bag), checksum)
        self.n_pending += 1

    def _make_full_row(self, full_bag: FullBag) -> RowArray:
        assert self.files.full_bags is not None
        row = np.zeros(1, dtype=self.files.full_bags.dtype)
        write_full_bag(row[0], full_bag)
        return row

    def _put_full_row(self, full_row: RowArray, checksum: int) -> None:
        assert self.full_bags is not None
        row = self.full_bags.n_rows
        with disk_errors(self._folder):
            self._full_bags.write(row, full_row.tobytes())
        self.catalog.set_checksum(row, row_checksum(full_row.tobytes(), start=checksum))
        if self.catalog.is_live(row):
            self._counter.count(full_row[0], times=1)
        self.full_bags = self.full_bags._replace(n_rows=row + 1)

    def move(self, row: int, file: FileState) -> None:
        """Change an image's path, time stamp or metadata; restore it if it was removed."""
        if not self.catalog.is_live(row):
            self._count_full_bag(row, times=1)
        self.catalog.move(row, file.path, file.size, file.mtime_ns, file.metadata)
        self.n_pending += 1

    def remove(self, row: int) -> None:
        """Remove an image."""
        if self.catalog.is_live(row):
            self._count_full_bag(row, times=-1)
        self.catalog.remove(row)
        self.n_pending += 1

    def _count_full_bag(self, row: int, *, times: int) -> None:
        if self.full_bags is not None and row < self.full_bags.n_rows:
            assert self.files.full_bags is not None
            self._counter.count(self.files.full_bags.view(row + 1)[row], times=times)

    def commit(self) -> None:
        """Make all changes since the last commit durable and visible, or none of them."""
        if self.n_pending:
            with disk_errors(self._folder):
                self._bags.sync()
                self._dense.sync()
                if self.full_bags is not None:
                    self._full_bags.sync()
            if self.full_bags is not None:
                self.catalog.set_full_bags(self.full_bags, self._counter.statistics())
            self.catalog.commit()
            self.catalog.begin()
            self.n_pending = 0

    def compact(self, progress: Progress = no_progress) -> int:
        """Copy the rows of live images to new files; return how many bytes that frees.

        The catalogue's transaction is the commit here too: before it the new files do not count,
        after it the old ones do not. The next writer deletes the files that do not count.
        """
        state = self.catalog.state()._replace(full_bags=self.full_bags)
        removed = self.catalog.removed_rows()
        if len(removed) == 0:
            return 0
        live = np.setdiff1d(np.arange(state.n_rows), removed)
        new_state = state._replace(generation=state.generation + 1)
        new_files = RowFiles.of(self._folder, self.catalog.meta, new_state)
        copies = [
            (self.files.bags, new_files.bags, state.n_rows, "compacting bags"),
            (self.files.dense, new_files.dense, state.n_rows, "compacting dense vectors"),
        ]
        full_bags = None
        if self.files.full_bags is not None and new_files.full_bags is not None:
            assert state.full_bags is not None
            n_full = state.full_bags.n_rows
            full = (self.files.full_bags, new_files.full_bags, n_full, "compacting full bags")
            copies.append(full)
            full_bags = state.full_bags._replace(n_rows=int(np.count_nonzero(live < n_full)))
        freed = 0
        with ExitStack() as undo:
            for old, new, n_rows, stage in copies:
                undo.callback(new.path.unlink, missing_ok=True)
                rows = live[live < n_rows]
                self._copy_rows(old, new, rows, stage, progress)
                freed += (n_rows - len(rows)) * old.dtype.itemsize
            with disk_errors(self._folder):
                sync_folder(self._folder)
            self.catalog.renumber()
            if full_bags is not None:
                self.catalog.set_full_bags(full_bags, self._counter.statistics())
            undo.pop_all()
        self.catalog.commit()  # may count after a crash even if it fails: all files must stay
        self.catalog.shrink()
        self._delete_old_row_files()
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
        current = RowFiles.of(self._folder, self.catalog.meta, self.catalog.state()).paths
        for path in set(self._folder.glob("*.rows")) - current:
            with suppress(OSError):  # Windows: keeps files that a reader has open
                path.unlink(missing_ok=True)


def row_checksum(*rows: bytes, start: int = 0) -> int:
    """Return the CRC-32 of an image's rows: its bag, its dense vector, then its full bag.

    `start` is that of the rows before.
    """
    for row in rows:
        start = zlib.crc32(row, start)
    return start
