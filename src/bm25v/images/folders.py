"""Walks folders for picture files."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bm25v.errors import ImageError
from bm25v.images import kinds
from bm25v.images.files import open_unblocked
from bm25v.images.reasons import system_reason

SUFFIXES: frozenset[str] = frozenset(
    {".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp"}
    | {".tif", ".tiff", ".avif", ".avifs", ".heic", ".heif", ".hif", ".mpo"}
    | {".jp2", ".j2k", ".pbm", ".pgm", ".ppm", ".pnm"}
)
"""File names that `find` takes for pictures unseen; of all others it looks at the first bytes."""


_LITTER = ("._", "thumbs.db")  # what macOS and Windows leave beside pictures


def find(
    folder: str | os.PathLike[str],
    *,
    on_error: Callable[[Path, ImageError], None] | None = None,
) -> Iterator[Path]:
    """Give every picture file under a folder, sorted, without hidden folders and galleries.

    A file is a picture by name or by content, be it of a kind that cannot be read. Links are
    followed, after all else, and each folder is visited once. What cannot be read below `folder`
    is passed to `on_error` and left out; `folder` itself must be readable.
    """
    report = on_error or (lambda path, error: None)
    root = Path(folder)
    visited: set[tuple[int, int]] = set()
    waiting, links = [root], deque[Path]()
    while waiting or links:
        path = waiting.pop() if waiting else links.popleft()
        try:
            status = path.stat()
            if (status.st_dev, status.st_ino) in visited:
                continue
            visited.add((status.st_dev, status.st_ino))
            inside = _Folder.read(path, report)
        except (OSError, ValueError) as error:
            if path is root:
                raise ImageError(f"{folder}: {system_reason(error)}") from error
            report(path, ImageError(system_reason(error)))
            continue
        yield from inside.pictures
        waiting += reversed(inside.folders)
        links += inside.links


class _Folder(NamedTuple):
    """What is directly in a folder, each sorted by name."""

    pictures: list[Path]
    folders: list[Path]
    links: list[Path]  # to folders

    @classmethod
    def read(cls, folder: Path, report: Callable[[Path, ImageError], None]) -> "_Folder":
        with os.scandir(folder) as entries:
            listing = sorted(entries, key=lambda entry: entry.name)
        found = cls([], [], [])
        if {"catalog.sqlite", "bags.rows"} <= {entry.name for entry in listing}:
            return found  # a gallery
        for entry in listing:
            path = folder / entry.name
            try:
                if entry.is_dir():
                    if not entry.name.startswith("."):
                        (found.links if entry.is_symlink() else found.folders).append(path)
                elif entry.is_file():
                    if _is_picture(path):
                        found.pictures.append(path)
                elif path.suffix.lower() in SUFFIXES and not path.exists():
                    report(path, ImageError("is a link that leads nowhere"))
            except OSError as error:
                report(path, ImageError(system_reason(error)))
        return found


def _is_picture(path: Path) -> bool:
    if path.name.lower().startswith(_LITTER):
        return False
    if path.suffix.lower() in SUFFIXES:
        return True
    try:
        with open(path, "rb", opener=open_unblocked) as file:
            return kinds.is_picture(file.read(kinds.HEAD))
    except OSError:
        return False
