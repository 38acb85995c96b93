"""Locks of a gallery: one process at a time writes, or names words and images."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from bm25v.errors import GalleryLocked


@contextmanager
def locking(path: Path, doing: str, *, timeout: float) -> Iterator[None]:
    """Hold a lock within the block; after `timeout` seconds, raise `GalleryLocked` instead.

    `doing` is what the process does that holds it, such as "writing to".
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except Timeout:
        if isinstance(lock, SoftFileLock):  # what filelock makes of itself without flock
            raise GalleryLocked(
                f"the file system of {path.parent} has no file locks (flock): if no other process "
                f"is {doing} it, delete {path}, or keep it on another disk"
            ) from None
        raise GalleryLocked(
            f"another process is {doing} {path.parent}: try again when it has finished"
        ) from None
    try:
        yield
    finally:
        lock.release()
