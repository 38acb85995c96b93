"""Turns errors of the disk and of SQLite into errors of the gallery."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bm25v.errors import GalleryDamaged, GalleryError, StorageFull
from bm25v.files import DISK_FULL

_NOT_ACCESSIBLE = {  # the file may be intact
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` within the block into an error of the gallery in this folder."""
    try:
        yield
    except OSError as error:
        if error.errno in DISK_FULL:
            raise _storage_full(folder) from error
        raise GalleryError(
            f"cannot write to {folder}: {error.strerror or error}; everything committed is kept"
        ) from error


@contextmanager
def database_errors(path: Path) -> Iterator[None]:
    """Turn an error of a catalogue's database within the block into one of the gallery."""
    try:
        yield
    except sqlite3.ProgrammingError as error:
        raise GalleryError(f"{path.parent} is closed: open it again") from error
    # A damaged text in an SQLite error message raises UnicodeDecodeError.
    except (sqlite3.Error, UnicodeDecodeError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
        if code == sqlite3.SQLITE_FULL:
            raise _storage_full(path.parent) from error
        if code in _NOT_ACCESSIBLE:
            raise GalleryError(f"cannot read or write {path}: {error}") from error
        raise GalleryDamaged(f"{path} is not a readable catalogue: {error}") from error


def _storage_full(folder: Path) -> StorageFull:
    return StorageFull(
        f"the disk of {folder} is full; everything committed is kept: "
        "free some space and run the same command again"
    )
