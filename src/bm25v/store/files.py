"""Image files: which there are at some paths, and what tells whether one has changed."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.errors import ImageError, InvalidOption
from bm25v.images import Metadata, Source
from bm25v.images.streams import Stream, system_reason
from bm25v.store.base import Failure, IndexReport
from bm25v.store.records import ImageRecord, to_seconds

_MAX_BYTES = 40_000_000  # of a file that is read at once
_CHANGED = "the file changed while it was read: run the command again"


class FileState(NamedTuple):
    """A file, or an image from memory, at the moment it was read."""

    path: str
    content: bytes  # hash of the file
    size: int
    mtime_ns: int
    metadata: Metadata | None = None  # None keeps what is stored

    def to_record(self, row: int, checksum: int) -> ImageRecord:
        width, height, taken = self.metadata or (None, None, None)
        facts = (checksum, True, width, height, to_seconds(taken))
        return ImageRecord(row, self.path, self.content, self.size, self.mtime_ns, *facts)


def check_path(path: Any) -> str:
    """Return a path as text; an empty one is refused, as it would mean the current folder.

    >>> from pathlib import Path
    >>> check_path(Path("photos") / "cat.jpg")
    'photos/cat.jpg'
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidOption(f"{path!r} is not a path: give a text or a pathlib.Path")
    text = os.fspath(path)
    if not isinstance(text, str) or not text:
        raise InvalidOption(f"{text!r} is not a path: for the current folder, give '.'")
    return text


def read_file(path: str) -> tuple[FileState, Source]:
    """Return the state of a file and what to decode: the bytes that were hashed.

    A file of more than `_MAX_BYTES` is not held in memory: what to decode is its path, and
    `check_unchanged` tells afterwards whether it is still the same.
    """
    try:
        with images.open_stream(path) as stream:
            status = os.fstat(stream.fileno())
            head = stream.read(images.HEAD_SIZE)
            images.detect_format(head)  # raises before a large file that is not an image is read
            stream.seek(0)
            source: Source = path
            if status.st_size > _MAX_BYTES:
                content = hash_file(stream)
            else:
                source = stream.read(status.st_size)
                content = hash_image(source)
            if size_and_time(os.fstat(stream.fileno())) != size_and_time(status):
                raise ImageError(_CHANGED)
    except OSError as error:  # of a disk that fails
        raise ImageError(system_reason(error)) from error
    return FileState(path, content, *size_and_time(status)), source


def check_unchanged(file: FileState) -> None:
    if not has_size_and_time(file.path, file.size, file.mtime_ns):
        raise ImageError(_CHANGED)


def read_file_state(path: str) -> FileState:
    return read_file(path)[0]


def has_changed(path: str, record: ImageRecord | None) -> bool:
    """Return whether a file has other content than when it was indexed.

    As in indexing, the same size and time mean the same content. A file that cannot be read raises
    `ImageError`.
    """
    if not os.path.isabs(path):
        raise ImageError("was added from memory: there is no file to read")
    if record is None or has_size_and_time(path, record.size, record.mtime_ns):
        return False
    return read_file_state(path).content != record.content


def hash_file(file: Stream) -> bytes:
    return hashlib.file_digest(file, new_hash).digest()


def hash_image(image: bytes | NDArray[np.uint8]) -> bytes:
    """Return the content hash of an image from memory: that of its file, or of its pixels."""
    if isinstance(image, bytes):
        return new_hash(image).digest()
    digest = new_hash(f"pixels {image.shape}".encode())
    digest.update(np.ascontiguousarray(image).data)
    return digest.digest()


def new_hash(content: bytes = b"") -> "hashlib.blake2b":
    return hashlib.blake2b(content, digest_size=16)


def has_size_and_time(path: str, size: int, mtime_ns: int) -> bool:
    try:
        return size_and_time(os.stat(path)) == (size, mtime_ns)
    except OSError:
        return False


def size_and_time(status: os.stat_result) -> tuple[int, int]:
    """Return a file's size, and its time as the catalogue can store it: up to the year 2262."""
    return status.st_size, max(-(2**63), min(status.st_mtime_ns, 2**63 - 1))


def require_images(paths: Sequence[str], exclude: tuple[str, ...]) -> None:
    """Raise an error for missing paths and folders without images: a drive may not be mounted."""
    for path in paths:
        if not os.path.lexists(path):
            raise InvalidOption(f"{path} does not exist")
        report = IndexReport()
        if os.path.isdir(path) and not any(_walk([path], (), report)):
            notes = "".join(f" ({note})" for note in report.notes)
            raise InvalidOption(
                f"no images in {path}{notes}: nothing was changed; to remove on purpose what was "
                f"indexed there: `bm25v remove {path}`"
            )
    if exclude and not any(_walk(paths, exclude, IndexReport())):
        patterns = ", ".join(exclude)
        raise InvalidOption(f"no images left in {', '.join(paths)}: all match exclude {patterns}")


def walk_files(
    paths: Sequence[str], exclude: tuple[str, ...], report: IndexReport
) -> Iterator[str]:
    """Return the image files at these paths, each once, in the order in which they are indexed."""
    files = _walk(paths, exclude, report)
    return iter(dict.fromkeys(files)) if len(paths) > 1 else files  # several may overlap


def list_images(paths: Sequence[str], exclude: tuple[str, ...]) -> list[str]:
    return sorted({os.path.abspath(path) for path in _walk(paths, exclude, IndexReport())})


def _walk(paths: Sequence[str], exclude: tuple[str, ...], report: IndexReport) -> Iterator[str]:
    def add_failure(path: Path, error: ImageError) -> None:
        report.failed.append(Failure(str(path), str(error)))

    skipped: set[Path] = set()  # folders that are given may overlap

    def add_skipped(path: Path, reason: str) -> None:
        if path not in skipped:
            skipped.add(path)
            report.skipped[reason] = report.skipped.get(reason, 0) + 1

    for path in paths:
        if os.path.isdir(path):
            found = images.find_images(
                path, exclude=exclude, on_error=add_failure, on_skip=add_skipped
            )
            yield from map(str, found)
        elif not is_excluded(path, [path], exclude):
            yield path


def is_excluded(path: str, given: Sequence[str], exclude: tuple[str, ...]) -> bool:
    """Return whether a path is left out below each of the paths that were given and contain it."""
    if not exclude:
        return False
    relative = (
        PurePath(path).relative_to(parent) if path != parent else PurePath(PurePath(path).name)
        for parent in given
        if PurePath(path).is_relative_to(parent)
    )
    return all(images.matches_pattern(name.as_posix(), exclude) for name in relative)
