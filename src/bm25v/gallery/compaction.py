"""Gives back the space of removed pictures: live rows move to new files, under new numbers.

The catalogue's transaction is the commit here too. Before it the new files do not count, after it
the old ones do not; whichever files do not count, the next writer deletes.
"""

from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.gallery.failures import disk_errors
from bm25v.gallery.rows import RowFile, RowWriter, bag_file, dense_file
from bm25v.gallery.writer import Writer, sync_folder

_BLOCK_ROWS = 16_384

Progress = Callable[[int, int], None]  # rows moved, rows in all


def compact(folder: Path, writer: Writer, progress: Progress = lambda done, total: None) -> int:
    """Move the live rows together and return how many bytes that gave back."""
    catalog = writer.catalog
    state = catalog.state()
    removed = catalog.removed_rows()
    if len(removed) == 0:
        return 0
    live = np.setdiff1d(np.arange(state.n_rows), removed)
    place = (folder, catalog.meta, state.generation + 1)
    moves = [(writer.bag_file, bag_file(*place)), (writer.dense_file, dense_file(*place))]
    with ExitStack() as undo:
        for number, (old, new) in enumerate(moves):
            undo.callback(new.path.unlink, missing_ok=True)
            _copy(old, new, live, partial(_tell, progress, number * len(live), 2 * len(live)))
        with disk_errors(folder):
            sync_folder(folder)
        catalog.renumber()
        undo.pop_all()
    catalog.commit()  # even if this fails it may count, after a crash: so both files stay
    catalog.shrink()
    writer.tidy()
    return len(removed) * sum(old.dtype.itemsize for old, _ in moves)


def _tell(progress: Progress, before: int, total: int, done: int) -> None:
    progress(before + done, total)


def _copy(
    old: RowFile, new: RowFile, rows: NDArray[np.int64], progress: Callable[[int], None]
) -> None:
    folder = new.path.parent
    found = old.view(int(rows[-1]) + 1 if len(rows) else 0)
    with disk_errors(folder):
        new.create()
    with closing(RowWriter(new, 0)) as writer:
        for start in range(0, len(rows), _BLOCK_ROWS):
            block = rows[start : start + _BLOCK_ROWS]
            with disk_errors(folder):
                writer.write(start, found[block].tobytes())
            progress(start + len(block))
        with disk_errors(folder):
            writer.sync()
