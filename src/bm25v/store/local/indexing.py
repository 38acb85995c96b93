"""Brings images into a gallery: find what changed, encode in parallel, commit in batches.

Images are files, or come from memory with an id instead of a path. A file is unchanged if its size
and modification time are; otherwise its content hash decides. Known content is never encoded again:
it is a moved file if its old path no longer exists, else a copy.
"""

import logging
import os
import signal
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import filterfalse, islice
from types import FrameType

import numpy as np

from bm25v import images
from bm25v.display import duration
from bm25v.errors import ImageError
from bm25v.images import ImageInput
from bm25v.progress import Progress
from bm25v.store.base import Failure, IndexReport
from bm25v.store.encoding import (
    NamedImage,
    Outcome,
    Pending,
    check_named_images,
    encode_images,
    list_finished,
)
from bm25v.store.files import (
    FileState,
    has_size_and_time,
    is_excluded,
    require_images,
    walk_files,
)
from bm25v.store.local.writer import Writer
from bm25v.store.records import ImageRecord
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary

BATCH = 256  # images per commit
_LOOKUPS = 1_000  # paths that are looked up at once
_BATCH_SECONDS = 10.0

_log = logging.getLogger(__name__)


def index_images(
    writer: Writer,
    vocabulary: Vocabulary,
    given: list[str] | Iterator[tuple[str, ImageInput]],
    *,
    total: int,
    exclude: tuple[str, ...],
    remove_missing: bool,
    workers: int | None,
    progress: Progress,
) -> IndexReport:
    """Add, update and move images so that the gallery agrees with the files at some paths.

    Images from memory are added, or replace those whose ids the gallery has already.
    """
    start, report = time.perf_counter(), IndexReport()
    if isinstance(given, list):
        changed = _find_changed(writer, given, exclude, remove_missing, report)
        total = report.unchanged + len(changed)
        progress("indexing", report.unchanged, total)
        named: Iterator[NamedImage] = map(NamedImage, changed)
    else:
        named = check_named_images(given)
    n_threads = workers or available_cpus()
    is_files = isinstance(given, list)
    _add_images(writer, vocabulary, named, total, report, n_threads, progress, is_files=is_files)
    if isinstance(given, list):
        if remove_missing:
            _remove_missing(writer, given, exclude, report)
        _note_failures(writer, given, report)
    writer.commit()
    report.seconds = time.perf_counter() - start
    counts = f"{report.added} added, {report.updated} updated, {report.removed} removed"
    _log.info("%s, %s failed in %s", counts, len(report.failed), duration(report.seconds))
    return report


def _find_changed(
    writer: Writer,
    paths: list[str],
    exclude: tuple[str, ...],
    remove_missing: bool,
    report: IndexReport,
) -> list[str]:
    """Return the files that are new or may have changed; count the others in the report."""
    require_images(paths, exclude)
    changed = []
    walk = walk_files(paths, exclude, report)
    while chunk := list(islice(walk, _LOOKUPS)):
        known = writer.catalog.at_paths(chunk)
        changed += [path for path in chunk if path not in known or not _is_unchanged(known[path])]
        report.unchanged += len(chunk)
    report.unchanged -= len(changed)
    if remove_missing:
        changed += _find_overwritten(writer, paths, exclude, changed)
    return changed


def _note_failures(writer: Writer, paths: Sequence[str], report: IndexReport) -> None:
    """Mark the failures of the last run, and store all of this run for the next one."""
    known = writer.catalog.failures(below=paths)
    failures = {failure.path: failure.error for failure in report.failed}
    report.failed = [
        failure._replace(known=known.get(failure.path) == failure.error)
        for failure in report.failed
    ]
    if failures != known:
        writer.catalog.replace_failures(failures, below=paths)
        writer.n_pending += 1


def _find_overwritten(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], changed: list[str]
) -> list[str]:
    """Return known files that are images neither by name nor, since they changed, by content.

    Walking through folders does not find them; reading them will tell what is wrong.
    """
    known = set(filterfalse(_has_suffix, changed))
    return [
        record.path
        for path in paths
        for record in writer.catalog.below(path)
        if os.path.isabs(record.path)
        and not _has_suffix(record.path)
        and record.path not in known
        and not _is_unchanged(record)
        and not _is_missing(record.path)
        and not is_excluded(record.path, paths, exclude)
    ]


def _has_suffix(path: str) -> bool:
    return os.path.splitext(path)[1].lower() in images.SUFFIXES


def _is_unchanged(record: ImageRecord) -> bool:
    return has_size_and_time(record.path, record.size, record.mtime_ns)


def _add_images(
    writer: Writer,
    vocabulary: Vocabulary,
    named: Iterator[NamedImage],
    total: int,
    report: IndexReport,
    n_threads: int,
    progress: Progress,
    *,
    is_files: bool,
) -> None:
    done, last_commit = report.unchanged, time.monotonic()
    batch: list[tuple[FileState, Sequence[np.void] | None]] = []
    in_batch: dict[bytes, ImageRecord] = {}  # by content

    def find_known(content: bytes) -> ImageRecord | None:
        return in_batch.get(content) or writer.catalog.with_content(content)

    def collect(path: str, outcome: Outcome) -> None:
        if isinstance(outcome, ImageError):
            report.failed.append(Failure(path, str(outcome)))
        else:
            file, encoding = outcome
            batch.append((file, None if encoding is None else writer.to_rows(encoding)))
            in_batch[file.content] = file.to_record(row=-1, checksum=0)

    def commit() -> None:
        nonlocal last_commit
        last_commit = time.monotonic()
        with _uninterrupted():
            add_batch(writer, batch, report, follow_moves=is_files)
            batch.clear()
            in_batch.clear()
            writer.commit()

    pending: Pending = deque()
    encoded = encode_images(named, vocabulary, find_known, n_threads, progress, pending)
    with closing(encoded):
        try:
            for path, outcome in encoded:
                collect(path, outcome)
                if len(batch) >= BATCH or time.monotonic() - last_commit > _BATCH_SECONDS:
                    commit()
                done += 1
                progress("indexing", done, max(done, total))
        except KeyboardInterrupt:
            with _uninterrupted():
                for path, outcome in list_finished(pending):
                    collect(path, outcome)
                commit()
            raise
        commit()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let Ctrl-C take effect at the end of the block, so that no image is added by half."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
    if received:
        handler(*received[0])


def add_batch(
    writer: Writer,
    batch: Sequence[tuple[FileState, Sequence[np.void] | None]],
    report: IndexReport,
    *,
    follow_moves: bool,
) -> None:
    """Add images with their rows, or replace those at their paths; known content needs no rows.

    With `follow_moves`, known content whose own file is missing has moved here; else it is a copy.
    """
    catalog = writer.catalog
    by_path = catalog.at_paths([file.path for file, _ in batch])
    by_content = catalog.with_contents([file.content for file, _ in batch])
    changed: set[str | bytes] = set()  # paths and contents that are to be looked up again
    for file, rows in batch:
        path, content = file.path, file.content
        at_path = catalog.at_path(path) if path in changed else by_path.get(path)
        same = catalog.with_content(content) if content in changed else by_content.get(content)
        changed |= {path, content}
        if at_path is not None:
            changed.add(at_path.content)
        if same is not None:
            changed.add(same.path)
        if at_path is not None and at_path.content == content:
            writer.move(at_path.row, file)
            report.unchanged += 1
            continue
        if at_path is not None:
            writer.remove(at_path.row)
            report.updated += 1
        elif follow_moves and same is not None and same.live and _is_missing(same.path):
            writer.move(same.row, file)
            report.moved += 1
            continue
        else:
            report.added += 1
        if same is not None and not same.live:
            writer.move(same.row, file)
        elif same is not None:
            writer.put_copy(file, same.row)
        elif rows is not None:
            writer.put_rows(file, rows)


def _remove_missing(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], report: IndexReport
) -> None:
    gone = {
        record.row
        for path in paths
        for record in writer.catalog.below(path)
        if _is_missing(record.path) or is_excluded(record.path, paths, exclude)
    }
    if gone:
        require_images(paths, exclude)  # again: a drive may have been removed since the start
    for row in gone:
        writer.remove(row)
    report.removed += len(gone)


def _is_missing(path: str) -> bool:
    """Return whether a file no longer exists; an image from memory never had one."""
    if not os.path.isabs(path):
        return False
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)  # a folder may have taken its place
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
