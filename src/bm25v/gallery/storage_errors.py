"""Errors of the disk and of SQLite in, the gallery's own errors out."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bm25v.errors import Bm25vError, GalleryDamaged, GalleryError, StorageFull, WrongUse
from bm25v.files import DISK_FULL

# A damaged text in an SQLite error message raises UnicodeDecodeError.
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)

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


def database_error(path: Path, error: Exception) -> Bm25vError:
    """Return the gallery's error for an error of its catalogue's database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code
    if isinstance(error, sqlite3.ProgrammingError):
        return WrongUse(f"{path.parent} is closed: open it again")
    if code == sqlite3.SQLITE_FULL:
        return _storage_full(path.parent)
    if code in _NOT_ACCESSIBLE:
        return GalleryError(f"cannot read or write {path}: {error}")
    return GalleryDamaged(f"{path} is not a readable catalogue: {error}")


def _storage_full(folder: Path) -> StorageFull:
    return StorageFull(
        f"the disk of {folder} is full; everything committed is kept: "
        "free some space and run the same command again"
    )
