"""The one writer of a gallery: rows first, synced, then the catalogue's transaction.

A process that is killed loses at most the batch that it has not committed; the next writer writes
over what it left.
"""

import glob
import logging
import os
import shutil
import time
import zlib
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import numpy as np

from bm25v.errors import GalleryDamaged
from bm25v.files import SCRATCH_SUFFIX, sync_folder
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.store.bags import read_full_bag, write_bag, write_full_bag
from bm25v.store.base import Rows
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.local.catalog import FILE_NAME, Catalog, require_gallery
from bm25v.store.local.database import disk_errors, locking
from bm25v.store.local.rows import RowFile, RowFiles, RowWriter
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import LEVELS

LOCK_NAME = "writer.lock"

_log = logging.getLogger(__name__)

_LEFTOVER_SECONDS = 3_600  # what is being written is younger
_COPY_ROWS = 16_384  # rows copied at once
_STAGES = ("bags", "dense vectors", "full bags")  # of a compaction, in the order of `RowFiles`


class Writer:
    """Writes to a gallery, as a context manager; what was not committed at its end is undone."""

    def __init__(self, folder: Path, *, timeout: float = 0.0) -> None:
        self._folder = folder
        self._timeout = timeout

    def __enter__(self) -> "Writer":
        require_gallery(self._folder)  # the lock would create a missing folder
        with disk_errors(self._folder), ExitStack() as cleanup:
            path = self._folder / LOCK_NAME
            cleanup.enter_context(locking(path, "writing to", timeout=self._timeout))
            self._open(cleanup)
            self._cleanup = cleanup.pop_all()
        return self

    def _open(self, cleanup: ExitStack) -> None:
        self.catalog = Catalog(self._folder / FILE_NAME, write=True)
        cleanup.callback(self.catalog.close)
        self.catalog.empty_log()
        self.catalog.begin()
        state = self.catalog.state()
        self._n_rows = state.n_rows
        self.files = RowFiles.of(self._folder, self.catalog.meta, state.generation)
        self._rows = [
            cleanup.enter_context(closing(RowWriter(file, state.n_rows))) for file in self.files
        ]
        self._full_statistics = self.catalog.full_statistics()
        self._delete_all_but(self.files)
        self._delete_leftovers()
        self.n_pending = 0

    def __exit__(self, *_: object) -> None:
        with self._cleanup:
            self.catalog.rollback()

    def put(self, file: FileState, encoding: Encoding | ImageBags) -> None:
        """Add an image at a path that has none."""
        self.put_rows(file, self.to_rows(encoding))

    def put_copy(self, file: FileState, row: int) -> None:
        self.put_rows(file, [rows.view(row + 1)[row] for rows in self.files])

    def to_rows(self, encoding: Encoding | ImageBags) -> list[np.void]:
        """Return what is stored of an image: its rows, in the order of `RowFiles`."""
        bag_row, dense_row, full_row = (np.zeros(1, dtype=file.dtype)[0] for file in self.files)
        write_bag(bag_row, encoding.bag)
        dense_row["dense"] = encoding.dense_e
        write_full_bag(full_row, encoding.full_bag)
        return [bag_row, dense_row, full_row]

    def put_rows(self, file: FileState, rows: Sequence[np.void]) -> None:
        with disk_errors(self._folder):
            for writer, row in zip(self._rows, rows, strict=True):
                writer.write(self._n_rows, row.tobytes())
        self.catalog.insert(file.to_record(self._n_rows, row_checksum(*rows)))
        self._count_full_bag(rows[-1], times=1)
        self._n_rows += 1
        self.n_pending += 1

    def move(self, row: int, file: FileState) -> None:
        if not self.catalog.is_live(row):
            self._count_full_bag(self._read_full_row(row), times=1)
        self.catalog.move(row, file)
        self.n_pending += 1

    def remove(self, row: int) -> None:
        if self.catalog.is_live(row):
            self._count_full_bag(self._read_full_row(row), times=-1)
        self.catalog.remove(row)
        self.n_pending += 1

    def _read_full_row(self, row: int) -> np.void:
        stored: np.void = self.files.full_bags.view(row + 1)[row]
        return stored

    def _count_full_bag(self, row: np.void, *, times: int) -> None:
        """Add a row's full bag to the statistics, or with `times` = -1 take it off.

        Counting all rows would read a kilobyte for each image.
        """
        words, levels, _ = read_full_bag(row)
        known = self._full_statistics
        if np.any(words >= known.n_words):
            raise GalleryDamaged("a full bag has words that do not exist: run bm25v verify")
        known.df_v[words] += times
        length = known.total_length + times * int(LEVELS[levels].sum(dtype=np.int64))
        self._full_statistics = Statistics(known.n + times, known.df_v, length)

    def commit(self) -> None:
        """Make all changes since the last commit durable and visible, or none of them."""
        if self.n_pending:
            with disk_errors(self._folder):
                for writer in self._rows:
                    writer.sync()
            self.catalog.set_full_statistics(self._full_statistics)
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
        new_files = RowFiles.of(self._folder, self.catalog.meta, state.generation + 1)
        with ExitStack() as undo:
            for old, new, rows in zip(self.files, new_files, _STAGES, strict=True):
                undo.callback(new.path.unlink, missing_ok=True)
                self._copy_rows(old, new, live, f"compacting {rows}", progress)
            with disk_errors(self._folder):
                sync_folder(self._folder)
            self.catalog.renumber()
            self.catalog.set_full_statistics(self._full_statistics)
            undo.pop_all()
        self.catalog.commit()  # may count after a crash even if it fails: all files must stay
        self.catalog.shrink()
        self._delete_all_but(new_files)
        freed = len(removed) * sum(file.dtype.itemsize for file in self.files)
        _log.info("compacted %s: %s images removed, %s bytes", self._folder, len(removed), freed)
        return freed

    def _copy_rows(
        self, old: RowFile, new: RowFile, rows: Rows, stage: str, progress: Progress
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

    def _delete_all_but(self, current: RowFiles) -> None:
        """Delete row files that no longer count, or that an interrupted process left."""
        for path in set(self._folder.glob("*.rows")) - {file.path for file in current}:
            with suppress(OSError):  # Windows: keeps files that a reader has open
                path.unlink(missing_ok=True)

    def _delete_leftovers(self) -> None:
        """Delete what killed processes left: incomplete files, and a gallery that got no name."""
        folder = self._folder
        galleries = folder.parent.glob(f".{glob.escape(folder.name)}.????????")
        with suppress(OSError):  # it is only untidy
            for path in [*folder.glob(f".*{SCRATCH_SUFFIX}"), *galleries]:
                if time.time() - path.stat().st_mtime < _LEFTOVER_SECONDS:
                    continue  # of a process that is writing
                if path.is_file():
                    path.unlink()
                elif os.listdir(path) in ([], ["folder"]):  # as `replacing_folder` makes it
                    shutil.rmtree(path)


def row_checksum(*rows: np.void) -> int:
    """Return the CRC-32 of an image's rows: its bag, its dense vector, then its full bag."""
    checksum = 0
    for row in rows:
        checksum = zlib.crc32(row.tobytes(), checksum)
    return checksum
