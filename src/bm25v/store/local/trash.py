"""Moves the files of images into a folder beside the gallery, from where people can take them back.

No file is deleted. `log.jsonl` in that folder has a line for each file: its name there, the path
where it was, and when it was moved.
"""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from bm25v.errors import ImageError, ImageNotFound
from bm25v.images.streams import system_reason
from bm25v.store.files import read_file_state
from bm25v.store.local.writer import Writer
from bm25v.store.records import ImageRecord

FOLDER_NAME = ".bm25v-trash"  # indexing skips hidden folders
LOG_NAME = "log.jsonl"


class TrashedImage(NamedTuple):
    """An image whose file is in the trash."""

    path: str  # where it was
    file: str  # where it is


def move_to_trash(
    gallery: Path, paths: Sequence[str], *, timeout: float = 0.0
) -> list[TrashedImage]:
    """Move the files of some images into the trash, and remove the images from the gallery.

    Raises `ImageError` before anything is moved if a file is missing, has other content than when
    it was indexed, or is a symbolic link.
    """
    trash = gallery.parent / FOLDER_NAME
    with Writer(gallery, timeout=timeout) as writer:
        known = writer.catalog.at_paths(paths)
        for path in paths:
            if path not in known:
                raise ImageNotFound(f"{path} is not in the gallery; nothing was moved")
            _check_file(known[path])
        moved = []
        for path, record in known.items():
            try:
                moved.append(TrashedImage(path, _move(record, trash)))
            except (OSError, ImageError) as error:
                reason = system_reason(error) if isinstance(error, OSError) else error
                raise ImageError(
                    f"{path} cannot be moved to {trash}: {reason}; moved before it: {len(moved)}"
                ) from error
            writer.remove(record.row)
            writer.commit()
    return moved


def _check_file(record: ImageRecord) -> None:
    path, reason = record.path, ""
    if not os.path.isabs(path):
        reason = "was added from memory, so there is no file"
    elif os.path.islink(path):
        reason = "is a symbolic link"
    else:
        try:
            if read_file_state(path).content != record.content:
                reason = "has changed since it was indexed: index it again"
        except ImageError as error:
            reason = f"cannot be read: {error}"
    if reason:
        raise ImageError(f"{path} {reason}; nothing was moved")


def _move(record: ImageRecord, trash: Path) -> str:
    """Move a file, and return its new path, which no other file has.

    The log is written first, so that it names the origin of every file in the trash.
    """
    trash.mkdir(mode=0o700, exist_ok=True)
    with (trash / LOG_NAME).open("ab") as log:
        target = _reserve_name(trash, os.path.basename(record.path))
        entry = {"file": target.name, "from": record.path, "moved": datetime.now().isoformat()}
        log.write(json.dumps(entry).encode() + b"\n")
        log.flush()
        os.fsync(log.fileno())
    try:
        _replace(record, target)
    except BaseException:
        if os.path.lexists(record.path):  # else the target may be the only copy
            target.unlink()
        raise
    return str(target)


def _reserve_name(folder: Path, name: str) -> Path:
    """Make an empty file, with a number in its name if there is one of that name already."""
    path, number = folder / name, 1
    while True:
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            number += 1
            stem, suffix = os.path.splitext(name)
            path = folder / f"{stem}-{number}{suffix}"
        else:
            return path


def _replace(record: ImageRecord, target: Path) -> None:
    """Put a file in the place of another one; from another disk, once its copy is complete."""
    try:
        os.replace(record.path, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.copy2(record.path, target)
        with target.open("rb") as copy:
            os.fsync(copy.fileno())
        if read_file_state(str(target)).content != record.content:
            raise ImageError("its copy has other content") from error
        os.unlink(record.path)
