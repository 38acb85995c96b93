"""A connection to a gallery's SQLite file, its locks, and errors of the disk as its own errors."""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from bm25v.errors import (
    GalleryDamaged,
    GalleryError,
    GalleryLocked,
    GalleryNotFound,
    InvalidOption,
)
from bm25v.files import full_disk, reporting_full_disk

FILE_NAME = "catalog.sqlite"

_IMMUTABLE = "ro&immutable=1"  # read without a log, for read-only media
_NOT_ACCESSIBLE = {  # the file may be intact
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
}
_inherited: list[sqlite3.Connection] = []  # by fork: only the process that opened one may close it


class Database:
    """One connection, which threads may share."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        self.path = path
        self._write = write
        self._mutex = threading.RLock()
        self._connect()

    def _connect(self) -> None:
        """Connect; on read-only media, where SQLite cannot keep a log, read the file alone."""
        with database_errors(self.path):
            if self._write:
                self._open("rw")
                return
            has_log = self._log_bytes() > 0
            try:
                self._open("ro")
            except sqlite3.OperationalError:
                if has_log:
                    raise
                self._open(_IMMUTABLE)

    def _open(self, mode: str) -> None:
        stamp = self._file_stamp(mode)
        uri = f"{self.path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(
            uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA synchronous = FULL")
            self._read_constants(db)
        except BaseException:
            db.close()
            raise
        self._connection, self._mode, self._stamp = db, mode, stamp
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close_connection, db, self._process)

    def _read_constants(self, db: sqlite3.Connection) -> None:
        """Read what does not change while a connection is open."""

    @property
    def db(self) -> sqlite3.Connection:
        """The connection; after a fork, the new process gets its own."""
        if self._process != os.getpid() and self._close.alive:  # Linux, macOS: forked, not closed
            if self._write:
                raise InvalidOption(f"{self.path.parent} is written by the parent process: open it")
            self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection; a writer empties its log if the disk has space for it."""
        if self._write:
            self.empty_log()
        with self._mutex:  # SQLite crashes if another thread is in the middle of a query
            self._close()

    def version(self) -> tuple[int, ...]:
        """Return a value that changes when another connection commits."""
        with self._mutex:
            if self._check_identity() != self._stamp:
                self._close()
                self._connect()
            ((data_version,),) = self.execute("PRAGMA data_version")
            return (self._process, *self._stamp, data_version)  # two connections may have the same

    def _check_identity(self) -> tuple[int, ...]:
        """Raise an error if the gallery was deleted, or replaced by another one."""
        stamp = self._file_stamp(self._mode)
        if stamp[:2] != self._stamp[:2]:
            raise GalleryError(f"{self.path.parent} was replaced by another gallery: open it again")
        return stamp

    def _file_stamp(self, mode: str) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except OSError as error:
            raise GalleryNotFound(
                f"{self.path.parent} no longer exists: {error.strerror}"
            ) from error
        identity = (status.st_dev, status.st_ino)
        if mode != _IMMUTABLE:
            return identity
        return (*identity, status.st_size, status.st_mtime_ns, self._log_bytes())

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except OSError:
            return 0

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run an SQL statement; return all rows of its result."""
        with database_errors(self.path), self._mutex:
            return self.db.execute(statement, values).fetchall()

    def rollback(self) -> None:
        with self._mutex, suppress(sqlite3.Error):
            self.db.rollback()

    def shrink(self) -> None:
        """Return freed space to the disk, if there is space to work in and no reader is active."""
        with self._mutex, suppress(sqlite3.Error):
            self.db.execute("VACUUM")
        self.empty_log()

    def empty_log(self) -> None:
        """Move the commits of the log to the file, if the disk has space for them.

        What a killed writer left behind them in the log is gone then: it could come back later.
        """
        if self._log_bytes() > 0:
            with self._mutex, suppress(sqlite3.Error):
                self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def read_backbone(folder: Path) -> str:
    """Return the name of a gallery's backbone, or "": what `Catalog` knows, but imported faster."""
    database = Database(folder / FILE_NAME)
    query = "SELECT value FROM meta WHERE key = 'backbone' AND typeof(value) = 'text'"
    names: list[str] = [name for (name,) in database.execute(query)]
    database.close()
    return "".join(names)


def _close_connection(db: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        db.close()
    else:
        _inherited.append(db)


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
            raise full_disk(path.parent) from error
        if code in _NOT_ACCESSIBLE:
            raise GalleryError(f"cannot read or write {path}: {error}") from error
        raise GalleryDamaged(f"{path} is not a readable catalogue: {error}") from error


@contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an `OSError` within the block into an error of the gallery in this folder."""
    try:
        with reporting_full_disk(folder):
            yield
    except OSError as error:
        raise GalleryError(
            f"cannot write to {folder}: {error.strerror or error}; everything committed is kept"
        ) from error


@contextmanager
def locking(path: Path, doing: str, *, timeout: float) -> Iterator[None]:
    """Hold a lock within the block; after `timeout` seconds, raise `GalleryLocked` instead.

    `doing` is what the process does that holds it, such as "writing to".
    """
    from filelock import FileLock, SoftFileLock, Timeout  # slow to import; a reader needs no lock

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
