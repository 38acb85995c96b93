"""Writes a file complete and synced, or not at all: a reader gets the old content or the new one.

A full disk is a `StorageFull`; other errors of the disk stay `OSError`, because callers know what
the file is for.
"""

import errno
import os
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from bm25v.errors import StorageFull

SCRATCH_SUFFIX = ".part"  # of a file that is not complete yet

_DISK_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}  # Windows: no such code


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file, or replace it; text is UTF-8."""
    with replacing_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to; it replaces `path` once the block ends without error."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}{SCRATCH_SUFFIX}")
    with reporting_full_disk(path):
        try:
            with scratch.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                scratch.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yield a folder to fill, which becomes `path` once the block ends without error.

    What was there before must be an empty folder, or nothing; else this is a `FileExistsError`.

    >>> folder = Path(tempfile.mkdtemp()) / "bags"
    >>> with replacing_folder(folder) as scratch:
    ...     replace_file(scratch / "a", "content")
    >>> [file.name for file in folder.iterdir()]
    ['a']
    """
    with (
        reporting_full_disk(path),
        tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as scratch,
    ):
        folder = Path(scratch) / "folder"
        folder.mkdir()
        yield folder
        sync_folder(folder)
        try:
            if path.exists():
                path.rmdir()
            folder.rename(path)
        except OSError as error:
            raise FileExistsError(errno.EEXIST, "is in use", str(path)) from error
        sync_folder(path.parent)


@contextmanager
def reporting_full_disk(path: Path) -> Iterator[None]:
    """Turn the error of a full disk within the block into `StorageFull`, which names `path`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, StorageFull) or not _is_disk_full(error):
            raise
        raise full_disk(path) from error


def full_disk(path: Path) -> StorageFull:
    return StorageFull(
        f"the disk of {path} is full; what was complete is kept: "
        "free some space and run the same command again"
    )


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, synced; one that exists is left as it is."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folder(folder.parent)
    with reporting_full_disk(folder):
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def is_unused(folder: Path, *leftovers: str) -> bool:
    """Return whether a folder is missing or empty, but for files of a write that failed.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "weights").write_bytes(b"")
    0
    >>> is_unused(folder / "new"), is_unused(folder), is_unused(folder, "weights")
    (True, False, True)
    """
    if not folder.exists():
        return True
    return folder.is_dir() and all(path.name in leftovers for path in folder.iterdir())


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of files, on systems that can open a folder."""
    if os.name == "nt":  # Windows: cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_limited(path: Path, limit: int) -> bytes:
    """Return a file's content; raise `ValueError` if it has more than `limit` bytes.

    A few bytes on a disk can be a file of any size.
    """
    with path.open("rb") as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"it has more than {limit:,} bytes")
    return content


def _is_disk_full(error: BaseException | None) -> bool:
    """Return whether a full disk caused an error; closing a file may raise another one after it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK_FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
