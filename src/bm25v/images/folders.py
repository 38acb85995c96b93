"""Walks folders for picture files."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from bm25v.errors import ImageError
from bm25v.images.reasons import system_reason

SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"}
    | {".tif", ".tiff", ".avif", ".heic", ".heif", ".hif"}
)
"""The file names that `find` takes for pictures; `decode` looks at the content instead."""


def find(
    folder: str | os.PathLike[str],
    *,
    on_error: Callable[[Path, ImageError], None] | None = None,
) -> Iterator[Path]:
    """Give every picture file under a folder, sorted, without hidden files and galleries.

    Links are followed; each folder is visited once. What cannot be read below `folder` is passed
    to `on_error` and left out; `folder` itself must be readable.
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
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                children.append((path, True))
            elif path.suffix.lower() in SUFFIXES:
                if entry.is_file():
                    children.append((path, False))
                elif not path.exists():
                    report(path, ImageError("is a link that leads nowhere"))
        except OSError as error:
            report(path, ImageError(system_reason(error)))
    return children
