"""What errors of the disk and of the database mean for a gallery."""

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bm25v.errors import Bm25vError, GalleryDamaged, GalleryError, StorageFull, WrongUse

DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter for damage quoted in a message

_FULL = {errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)}
_OUTSIDE = {  # the files may be whole, but cannot be reached
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn errors of the disk that a gallery lies on into the gallery's own."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _storage_full(folder) from error
        raise GalleryError(
            f"{folder} cannot be written: {error.strerror or error}; "
            "all that was committed before is kept"
        ) from error


def database_error(path: Path, error: Exception) -> Bm25vError:
    """Return what an error of the catalogue's database means."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # without the finer points
    if isinstance(error, sqlite3.ProgrammingError):
        return WrongUse(f"{path.parent} is closed: open it again")
    if code == sqlite3.SQLITE_FULL:
        return _storage_full(path.parent)
    if code in _OUTSIDE:
        return GalleryError(f"{path} cannot be read or written: {error}")
    return GalleryDamaged(f"{path} cannot be read as a catalogue: {error}")


def _storage_full(folder: Path) -> StorageFull:
    return StorageFull(
        f"the disk of {folder} is full; all that was committed before is kept: "
        "free some space and run the same command again"
    )
