"""Files in, rows out: find what changed, encode in parallel, commit in batches.

A file is unchanged if its size and modification time are; otherwise its content hash decides.
Known content is never encoded again: it is a moved file if its old path no longer exists, else a
copy. Not this module's job: the order of writes on disk (`writer`).
"""

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from threadpoolctl import threadpool_limits

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, WrongUse
from bm25v.gallery.writer import FileState, Writer
from bm25v.progress import Progress, show_downloads
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding, Vocabulary

BATCH = 256  # images per commit
_BATCH_SECONDS = 10.0


class Failure(NamedTuple):
    """A file that could not be indexed, and why."""

    path: str
    error: str


@dataclass
class IndexReport:
    """What happened to the files that were given."""

    added: int = 0
    updated: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: list[Failure] = field(default_factory=list)
    seconds: float = 0.0

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
    if workers is not None and workers < 1:
        raise WrongUse(f"workers = {workers}: give at least 1")
    require_images(paths, exclude)
    report = IndexReport()
    changed = _find_changed_files(writer, paths, exclude, report)
    progress("indexing", report.unchanged, report.unchanged + len(changed))
    _add_files(writer, vocabulary, changed, report, workers or available_cpus(), progress)
    if remove_missing:
        _remove_missing(writer, paths, exclude, report)
    writer.commit()
    report.seconds = time.perf_counter() - start
    return report


def require_images(paths: Sequence[str], exclude: tuple[str, ...]) -> None:
    """Raise an error for missing paths and folders without images: a drive may not be mounted."""
    for path in paths:
        if not os.path.lexists(path):
            raise WrongUse(f"{path} does not exist")
        if os.path.isdir(path) and not any(images.find_images(path)):
            raise WrongUse(f"no images in {path}")
    if exclude and not any(_walk(paths, exclude, IndexReport())):
        patterns = ", ".join(exclude)
        raise WrongUse(f"no images left in {', '.join(paths)}: all match exclude {patterns}")


def read_file_state(path: str) -> FileState:
    """Return a file's content hash, size and modification time."""
    with images.open_stream(path) as file:
        head = file.read(images.HEAD_SIZE)
        images.detect_format(head)  # raises before a large file that is not an image is read
        file.seek(0)
        content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        status = os.fstat(file.fileno())
    return FileState(path, content, status.st_size, status.st_mtime_ns)


def has_size_and_time(path: str, size: int, mtime_ns: int) -> bool:
    """Return whether a file still has this size and modification time."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return status.st_size == size and status.st_mtime_ns == mtime_ns


def _find_changed_files(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], report: IndexReport
) -> list[str]:
    changed = []
    seen: set[str] = set()
    for path in _walk(paths, exclude, report):
        if len(paths) > 1:  # they may overlap
            if path in seen:
                continue
            seen.add(path)
        record = writer.catalog.at_path(path)
        if record is not None and has_size_and_time(path, record.size, record.mtime_ns):
            report.unchanged += 1
        else:
            changed.append(path)
    return changed


def _walk(paths: Sequence[str], exclude: tuple[str, ...], report: IndexReport) -> Iterator[str]:
    def add_failure(path: Path, error: ImageError) -> None:
        report.failed.append(Failure(str(path), str(error)))

    for path in paths:
        if os.path.isdir(path):
            found = images.find_images(path, exclude=exclude, on_error=add_failure)
            yield from map(str, found)
        elif not _is_excluded(path, [path], exclude):
            yield path


def _add_files(
    writer: Writer,
    vocabulary: Vocabulary,
    paths: list[str],
    report: IndexReport,
    workers: int,
    progress: Progress,
) -> None:
    if paths:
        with show_downloads(progress):
            vocabulary.backbone.load_weights()  # once, before all workers need it
    done = report.unchanged
    total = done + len(paths)
    last_commit = time.monotonic()

    def is_known(content: bytes) -> bool:
        return writer.catalog.with_content(content) is not None

    encoded = encode_files(paths, vocabulary, is_known, workers)
    # Images are encoded in parallel, so each matrix product gets one thread. The limit is set here
    # and not in the generator: an abandoned generator would leave the caller's BLAS limited.
    with threadpool_limits(1, user_api="blas"), closing(encoded):
        for path, outcome in encoded:
            if isinstance(outcome, ImageError):
                report.failed.append(Failure(path, str(outcome)))
            else:
                _add_file(writer, outcome, report)
            if writer.n_pending >= BATCH or time.monotonic() - last_commit > _BATCH_SECONDS:
                writer.commit()
                last_commit = time.monotonic()
            done += 1
            progress("indexing", done, total)


def _add_file(writer: Writer, read: "ReadFile", report: IndexReport) -> None:
    file = read.file
    at_path = writer.catalog.at_path(file.path)
    same = writer.catalog.with_content(file.content)
    if at_path is not None and at_path.content == file.content:
        writer.move(at_path.row, file)
        report.unchanged += 1
        return
    if at_path is None and same is not None and same.live and _is_missing(same.path):
        writer.move(same.row, file)
        report.moved += 1
        return
    if at_path is not None:
        writer.remove(at_path.row)
    if same is not None and not same.live:
        writer.move(same.row, file)
    elif same is not None:
        writer.put_copy(file, same.row)
    elif read.encoding is not None:
        writer.put(file, read.encoding.bag, read.encoding.dense_e)
    if at_path is None:
        report.added += 1
    else:
        report.updated += 1


def _remove_missing(
    writer: Writer, paths: list[str], exclude: tuple[str, ...], report: IndexReport
) -> None:
    for path in paths:
        for record in writer.catalog.below(path):
            if _is_missing(record.path) or _is_excluded(record.path, paths, exclude):
                writer.remove(record.row)
                report.removed += 1


def _is_excluded(path: str, given: Sequence[str], exclude: tuple[str, ...]) -> bool:
    """Return whether a path is left out below each of the paths that were given and contain it."""
    if not exclude:
        return False
    relative = (
        PurePath(path).relative_to(parent) if path != parent else PurePath(PurePath(path).name)
        for parent in given
        if PurePath(path).is_relative_to(parent)
    )
    return all(images.is_excluded(name.as_posix(), exclude) for name in relative)


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


class ReadFile(NamedTuple):
    """A file that was read; it has no encoding if its content is known."""

    file: FileState
    encoding: Encoding | None


class _PreparedFile(NamedTuple):
    """A file with new content, ready for the backbone."""

    file: FileState
    pixels: Floats


Outcome = ReadFile | ImageError


def encode_files(
    paths: list[str], vocabulary: Vocabulary, is_known: Callable[[bytes], bool], workers: int
) -> Generator[tuple[str, Outcome]]:
    """Read and encode files in parallel; yield each path with its outcome, in order.

    `is_known` decides by the content hash whether a file needs no encoding.
    """
    if not paths:
        return  # without loading the backbone
    size = vocabulary.backbone.batch_size
    chunks = (paths[start : start + size] for start in range(0, len(paths), size))
    pending: deque[tuple[list[str], Future[list[Outcome]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for chunk in chunks:
            pending.append((chunk, pool.submit(_encode_chunk, chunk, vocabulary, is_known)))
            if len(pending) > 2 * workers:
                yield from _wait_for(*pending.popleft())
        while pending:
            yield from _wait_for(*pending.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _wait_for(chunk: list[str], future: Future[list[Outcome]]) -> Iterator[tuple[str, Outcome]]:
    return zip(chunk, future.result(), strict=True)


def _encode_chunk(
    paths: list[str], vocabulary: Vocabulary, is_known: Callable[[bytes], bool]
) -> list[Outcome]:
    files = [_prepare_file(path, vocabulary, is_known) for path in paths]
    pixels = [file.pixels for file in files if isinstance(file, _PreparedFile)]
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [
        ReadFile(file.file, next(encodings)) if isinstance(file, _PreparedFile) else file
        for file in files
    ]


def _prepare_file(
    path: str, vocabulary: Vocabulary, is_known: Callable[[bytes], bool]
) -> _PreparedFile | Outcome:
    try:
        file = read_file_state(path)
        if is_known(file.content):
            return ReadFile(file, None)
        pixels = vocabulary.prepare(path)
        if not has_size_and_time(path, file.size, file.mtime_ns):
            raise ImageError("the file changed while it was read: run the command again")
        return _PreparedFile(file, pixels)
    except ImageError as error:
        return error
