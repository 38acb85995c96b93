"""Walks folders for picture files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bm25v.errors import ImageError
from bm25v.images import kinds
from bm25v.images.reasons import system_reason

SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"}
    | {".tif", ".tiff", ".avif", ".avifs", ".heic", ".heif", ".hif", ".mpo"}
    | {".jp2", ".j2k", ".pbm", ".pgm", ".ppm", ".pnm"}
)
"""File names that `find` takes for pictures unseen; of all others it looks at the first bytes."""


def find(
    folder: str | os.PathLike[str],
    *,
    on_error: Callable[[Path, ImageError], None] | None = None,
) -> Iterator[Path]:
    """Give every picture file under a folder, sorted, without hidden folders and galleries.

    A file is a picture by name or by content, be it of a kind that cannot be read. Links are
    followed; each folder is visited once. What cannot be read below `folder` is passed to
    `on_error` and left out; `folder` itself must be readable.
    """
    report = on_error or (lambda path, error: None)
    root = Path(folder)
    visited: set[tuple[int, int]] = set()
    waiting = [(root, True)]
    while waiting:
        path, is_folder = waiting.pop()
        if not is_folder:
            yield path
            continue
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) not in visited:
                visited.add((status.st_dev, status.st_ino))
                waiting += reversed(_children(path, report))
        except (OSError, ValueError) as error:
            if path is root:
                raise ImageError(system_reason(error)) from error
            report(path, ImageError(system_reason(error)))


def _children(folder: Path, report: Callable[[Path, ImageError], None]) -> list[tuple[Path, bool]]:
    """Return the picture files (False) and folders (True) of a folder, sorted by name."""
    with os.scandir(folder) as entries:
        listing = sorted(entries, key=lambda entry: entry.name)
    if any(entry.name == "catalog.sqlite" for entry in listing):
        return []
    children = []
    for entry in listing:
        path = folder / entry.name
        try:
            if entry.is_dir():
                if not entry.name.startswith("."):
                    children.append((path, True))
            elif entry.name.startswith("._"):  # what macOS leaves beside a file on other disks
                continue
            elif entry.is_file():
                if path.suffix.lower() in SUFFIXES or _looks_like_picture(path):
                    children.append((path, False))
            elif path.suffix.lower() in SUFFIXES and not path.exists():
                report(path, ImageError("is a link that leads nowhere"))
        except OSError as error:
            report(path, ImageError(system_reason(error)))
    return children


def _looks_like_picture(path: Path) -> bool:
    try:
        with open(path, "rb", opener=open_unblocked) as file:
            return kinds.is_picture(file.read(kinds.HEAD))
    except OSError:
        return False


def open_unblocked(path: str, flags: int) -> int:
    """Open like `os.open`, but do not wait for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
