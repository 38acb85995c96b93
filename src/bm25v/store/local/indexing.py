"""Brings images into a gallery: find what changed, encode in parallel, commit in batches.

Images are files, or come from memory with an id instead of a path. A file is unchanged if its size
and modification time are; otherwise its content hash decides. Known content is never encoded again:
it is a moved file if its old path no longer exists, else a copy.
"""

import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np

from bm25v import images
from bm25v.display import duration
from bm25v.errors import ImageError, InvalidOption
from bm25v.images import ImageInput
from bm25v.progress import Progress
from bm25v.store.local.encoding import NamedImage, encode_images
from bm25v.store.local.file_state import FileState, check_path, has_size_and_time
from bm25v.store.local.records import ImageRecord
from bm25v.store.local.writer import Encoded, Writer
from bm25v.threads import available_cpus, one_blas_thread
from bm25v.vocabulary import Vocabulary

BATCH = 256  # images per commit
_BATCH_SECONDS = 10.0

_log = logging.getLogger(__name__)


class Failure(NamedTuple):
    """An image that could not be indexed, and why; `known` if that was so the last time too."""

    path: str
    error: str
    known: bool = False


@dataclass
class IndexReport:
    """What happened to the images that were given."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def n_indexed(self) -> int:
        """How many of the images are in the gallery now."""
        return self.added + self.updated + self.moved + self.unchanged

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {**asdict(self), "failed": [failure._asdict() for failure in self.failed]}


def index_files(
    writer: Writer,
    vocabulary: Vocabulary,
    paths: list[str],
    *,
    exclude: tuple[str, ...],
    remove_missing: bool,
    workers: int | None,
    progress: Progress,
) -> IndexReport:
    """Add, update and move images so that the gallery agrees with the files at these paths."""
    start = time.perf_counter()
    check_workers(workers)
    require_images(paths, exclude)
    report = IndexReport()
    changed = []
    for path in walk_files(paths, exclude, report):
        record = writer.catalog.at_path(path)
        if record is not None and _is_unchanged(record):
            report.unchanged += 1
        else:
            changed.append(path)
    if remove_missing:
        changed += _find_overwritten(writer, paths, exclude, changed)
    progress("indexing", report.unchanged, report.unchanged + len(changed))
    _add_images(
        writer, vocabulary, map(NamedImage, changed), len(changed), report, workers, progress
    )
    if remove_missing:
        _remove_missing(writer, paths, exclude, report)
    _note_failures(writer, paths, report)
    return _finish(writer, report, start)


def index_images(
    writer: Writer,
    vocabulary: Vocabulary,
    named: Iterable[tuple[str, ImageInput]],
    *,
    total: int,
    workers: int | None,
    progress: Progress,
) -> IndexReport:
    """Add images from memory, and replace those whose ids the gallery has already."""
    start = time.perf_counter()
    check_workers(workers)
    report = IndexReport()
    _add_images(writer, vocabulary, check_named_images(named), total, report, workers, progress)
    return _finish(writer, report, start)


def _finish(writer: Writer, report: IndexReport, start: float) -> IndexReport:
    writer.commit()
    report.seconds = time.perf_counter() - start
    counts = f"{report.added} added, {report.updated} updated, {report.removed} removed"
    _log.info("%s, %s failed in %s", counts, len(report.failed), duration(report.seconds))
    return report


def parse_images(images: Any) -> list[str] | Iterator[tuple[Any, Any]]:
    """Return what to add: absolute paths, or pairs of an id and an image from memory.

    >>> list(parse_images({"cat": b"bytes of a file"}))
    [('cat', b'bytes of a file')]
    """
    if isinstance(images, str | os.PathLike):
        images = [images]
    is_image = isinstance(images, bytes | np.ndarray) or hasattr(images, "read")
    if is_image or not isinstance(images, Iterable):
        raise InvalidOption(
            f"a {type(images).__name__} in place of paths: give paths, or images from memory with "
            "ids, such as add({'cat-7': image})"
        )
    items = iter(images.items() if isinstance(images, Mapping) else images)
    first = next(items, None)
    if isinstance(first, tuple):
        return _check_pairs(chain([first], items))
    paths = [] if first is None else [first, *items]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise InvalidOption(
                f"a {type(path).__name__} among paths: give images from memory with ids, such as "
                "add({'cat-7': image})"
            )
    return [os.path.abspath(check_path(path)) for path in paths]


def _check_pairs(pairs: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidOption(
                f"a {type(pair).__name__} among pairs: give (id, image) for each image"
            )
        yield pair


def check_named_images(named: Iterable[tuple[Any, Any]]) -> Iterator[NamedImage]:
    """Yield images from memory; raise `InvalidOption` for an id or an image that is none."""
    known: set[str] = set()
    for name, image in named:
        if not isinstance(name, str) or not name.strip():
            raise InvalidOption(f"{name!r} is not an id: give each image a text that identifies it")
        if os.path.isabs(name):
            raise InvalidOption(
                f"the id {name!r} is an absolute path: add files by their paths alone"
            )
        if name in known:
            raise InvalidOption(f"the id {name!r} occurs twice: give each image its own")
        known.add(name)
        try:
            yield NamedImage(name, images.read_input(image))
        except InvalidOption as error:
            raise InvalidOption(f"image {name!r}: {error}") from None


def check_workers(workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise InvalidOption(f"workers = {workers}: give at least 1")


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


def require_images(paths: Sequence[str], exclude: tuple[str, ...]) -> None:
    """Raise an error for missing paths and folders without images: a drive may not be mounted."""
    for path in paths:
        if not os.path.lexists(path):
            raise InvalidOption(f"{path} does not exist")
        if os.path.isdir(path) and not any(images.find_images(path)):
            raise InvalidOption(
                f"no images in {path}: nothing was changed; to remove on purpose what was indexed "
                f"there: `bm25v remove {path}`"
            )
    if exclude and not any(_walk(paths, exclude, IndexReport())):
        patterns = ", ".join(exclude)
        raise InvalidOption(f"no images left in {', '.join(paths)}: all match exclude {patterns}")


def walk_files(
    paths: Sequence[str], exclude: tuple[str, ...], report: IndexReport
) -> Iterator[str]:
    """Yield the image files at these paths, each once, in the order in which they are indexed."""
    known: set[str] = set()
    for path in _walk(paths, exclude, report):
        if len(paths) > 1:  # they may overlap
            if path in known:
                continue
            known.add(path)
        yield path


def list_images(paths: Sequence[str], exclude: tuple[str, ...]) -> list[str]:
    return sorted({os.path.abspath(path) for path in _walk(paths, exclude, IndexReport())})


def _find_overwritten(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], changed: list[str]
) -> list[str]:
    """Return known files that are images neither by name nor, since they changed, by content.

    Walking through folders does not find them; reading them will tell what is wrong.
    """
    known = set(changed)
    return [
        record.path
        for path in paths
        for record in writer.catalog.below(path)
        if os.path.isabs(record.path)
        and os.path.splitext(record.path)[1].lower() not in images.SUFFIXES
        and record.path not in known
        and not _is_unchanged(record)
        and not _is_missing(record.path)
        and not _is_excluded(record.path, paths, exclude)
    ]


def _is_unchanged(record: ImageRecord) -> bool:
    return has_size_and_time(record.path, record.size, record.mtime_ns)


def _walk(paths: Sequence[str], exclude: tuple[str, ...], report: IndexReport) -> Iterator[str]:
    def add_failure(path: Path, error: ImageError) -> None:
        report.failed.append(Failure(str(path), str(error)))

    for path in paths:
        if os.path.isdir(path):
            yield from map(str, images.find_images(path, exclude=exclude, on_error=add_failure))
        elif not _is_excluded(path, [path], exclude):
            yield path


def _add_images(
    writer: Writer,
    vocabulary: Vocabulary,
    named: Iterator[NamedImage],
    n_images: int,
    report: IndexReport,
    workers: int | None,
    progress: Progress,
) -> None:
    done = report.unchanged
    total = done + n_images
    last_commit = time.monotonic()
    encoded = encode_images(
        named, vocabulary, writer.catalog.with_content, workers or available_cpus(), progress
    )
    # The limit is set here and not in the generator: an abandoned generator would leave it set.
    is_complete = True  # every image that was begun
    with one_blas_thread(), closing(encoded):
        try:
            for path, outcome in encoded:
                is_complete = False
                if isinstance(outcome, ImageError):
                    report.failed.append(Failure(path, str(outcome)))
                else:
                    add_image(writer, *outcome, report)
                if writer.n_pending >= BATCH or time.monotonic() - last_commit > _BATCH_SECONDS:
                    writer.commit()
                    last_commit = time.monotonic()
                is_complete = True
                done += 1
                progress("indexing", done, max(done, total))
        except KeyboardInterrupt:
            if is_complete:
                writer.commit()
            raise


def add_image(
    writer: Writer,
    file: FileState,
    encoding: Encoded | None,
    report: IndexReport,
    *,
    follow_moves: bool = True,
) -> None:
    """Add an image, or replace the one at its path; known content needs no encoding.

    With `follow_moves`, known content whose own file is missing has moved here; else it is a copy.
    """
    at_path = writer.catalog.at_path(file.path)
    same = writer.catalog.with_content(file.content)
    if at_path is not None and at_path.content == file.content:
        writer.move(at_path.row, file)
        report.unchanged += 1
        return
    if at_path is not None:
        writer.remove(at_path.row)
        report.updated += 1
    elif follow_moves and same is not None and same.live and _is_missing(same.path):
        writer.move(same.row, file)
        report.moved += 1
        return
    else:
        report.added += 1
    if same is not None and not same.live:
        writer.move(same.row, file)
    elif same is not None:
        writer.put_copy(file, same.row)
    elif encoding is not None:
        writer.put(file, encoding)


def _remove_missing(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], report: IndexReport
) -> None:
    gone = {
        record.row
        for path in paths
        for record in writer.catalog.below(path)
        if _is_missing(record.path) or _is_excluded(record.path, paths, exclude)
    }
    if gone:
        require_images(paths, exclude)  # again: a drive may have been removed since the start
    for row in gone:
        writer.remove(row)
    report.removed += len(gone)


def _is_excluded(path: str, given: Sequence[str], exclude: tuple[str, ...]) -> bool:
    """Return whether a path is left out below each of the paths that were given and contain it."""
    if not exclude:
        return False
    relative = (
        PurePath(path).relative_to(parent) if path != parent else PurePath(PurePath(path).name)
        for parent in given
        if PurePath(path).is_relative_to(parent)
    )
    return all(images.matches_pattern(name.as_posix(), exclude) for name in relative)


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
