"""Turns a gallery into a folder of bags, and a folder of bags into a gallery or a part of one."""

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bm25v.errors import InvalidOption
from bm25v.exchange.parquet import BagFolder, format_part, part_name, require_pyarrow
from bm25v.files import is_unused, make_folder, replace_file, replacing_folder
from bm25v.progress import Progress
from bm25v.store.base import Failure, IndexReport
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.local.catalog import RowsRenumbered
from bm25v.store.local.indexing import add_batch
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import FolderStore
from bm25v.store.local.writer import Writer
from bm25v.store.meta import check_same_bags, describe_vocabulary, load_vocabulary
from bm25v.store.records import ImageRecord

PART_ROWS = 16_384  # images of an exported file
_COMMIT_IMAGES = 16_384  # of a load: nothing has to be computed again after a kill


def export_bags(store: FolderStore, folder: Path, progress: Progress) -> int:
    """Write all images of a gallery to a new folder, complete or not at all; return how many."""
    require_pyarrow()
    if not is_unused(folder):
        raise InvalidOption(f"{folder} is not empty: choose a new folder")
    make_folder(folder.parent)

    def export(snapshot: Snapshot) -> int:
        n_done = 0
        with read_unchanged(store, snapshot), replacing_folder(folder) as scratch:
            for number, rows in enumerate(read_images(store, snapshot)):
                replace_file(scratch / part_name(number), format_part(rows, store.catalog.meta))
                n_done += len(rows)
                progress("exporting", n_done, snapshot.searcher.statistics.n)
        return n_done

    return store.read(export)


@contextmanager
def read_unchanged(store: FolderStore, snapshot: Snapshot) -> Iterator[None]:
    """Make the catalogue that of a snapshot; raise `RowsRenumbered` if it has changed since."""
    with store.catalog.transaction():
        if store.catalog.state() != snapshot.state:
            raise RowsRenumbered
        yield


def read_images(store: FolderStore, snapshot: Snapshot) -> Iterator[list[ImageBags]]:
    """Yield the images of a snapshot by row; an empty gallery is one empty list."""
    for first in range(0, max(snapshot.state.n_rows, 1), PART_ROWS):
        records = store.catalog.images(first, first + PART_ROWS)
        yield [_read_image(record, snapshot) for record in records]


def _read_image(record: ImageRecord, snapshot: Snapshot) -> ImageBags:
    _, path, content, size, mtime_ns, *_ = record
    images = snapshot.fetch([record])
    return ImageBags(
        FileState(path, content, size, mtime_ns, record.metadata),
        images.read_bag(record.row, full=False),
        images.read_full_bag(record.row),
        snapshot.dense_ne[record.row],
    )


def create_gallery(
    path: Path, folder: BagFolder, vocabulary: str | os.PathLike[str] | None
) -> None:
    """Make an empty gallery for the bags of a folder, with the same vocabulary, k1 and b.

    Give the vocabulary if it is not where the folder says.
    """
    meta = folder.meta
    loaded = load_vocabulary(meta, vocabulary, location=str(folder.folder))
    own = describe_vocabulary(loaded, meta.parameters)
    check_same_bags(meta, own, str(folder.folder), f"vocabulary {loaded.source}")
    FolderStore.create(path, loaded, meta.parameters)


def load_bags(
    store: FolderStore, folder: BagFolder, *, timeout: float, progress: Progress
) -> IndexReport:
    """Add the images of a folder to a gallery; those that it has already stay as they are."""
    start = time.perf_counter()
    check_same_bags(folder.meta, store.meta, str(folder.folder), store.location)
    report = IndexReport()
    done = 0
    with Writer(store.path, timeout=timeout) as writer:
        for batch in folder.batches():
            known = writer.catalog.at_paths(image.file.path for image in batch.images)
            new = [image for image in batch.images if not _is_stored(image.file, known)]
            report.unchanged += len(batch.images) - len(new)
            rows = [(image.file, writer.to_rows(image)) for image in new]
            add_batch(writer, rows, report, follow_moves=False)
            if writer.n_pending >= _COMMIT_IMAGES:
                writer.commit()
            report.failed += [Failure(failed.path, failed.error) for failed in batch.failed]
            done += len(batch.images) + len(batch.failed)
            progress("loading", done, folder.n_rows)
        writer.commit()
    report.seconds = time.perf_counter() - start
    return report


def _is_stored(file: FileState, known: Mapping[str, ImageRecord]) -> bool:
    record = known.get(file.path)
    return record is not None and file.to_record(record.row, record.checksum) == record
