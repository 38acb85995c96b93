"""The catalogue of a gallery: which pictures there are and where their rows lie.

Its transaction is the commit: a row that no live picture names does not exist.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import (
    Bm25vError,
    GalleryDamaged,
    GalleryError,
    GalleryNotFound,
    GalleryTooNew,
    StorageFull,
    WrongUse,
)

FORMAT = 1
FILE_NAME = "catalog.sqlite"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE pictures (
    row INTEGER PRIMARY KEY,    -- of the bag and of the dense vector
    path BLOB NOT NULL,         -- as the file system spells it
    content BLOB NOT NULL,      -- hash of the file
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    checksum INTEGER NOT NULL,  -- of the two rows
    live INTEGER NOT NULL       -- 0 once removed; kept for readers of older snapshots
);
CREATE UNIQUE INDEX live_path ON pictures (path) WHERE live;
CREATE INDEX content ON pictures (content);
"""

_COLUMNS = "row, path, content, size, mtime_ns, checksum, live"
_SEPARATOR = os.fsencode(os.sep)


@dataclass(frozen=True)
class Meta:
    """What never changes in a gallery's life."""

    vocabulary: str  # the name or path it was made with
    vocabulary_fingerprint: str
    backbone: str
    n_words: int
    k_post: int
    dense_dim: int


class Picture(NamedTuple):
    """One picture's entry."""

    row: int
    path: str
    content: bytes
    size: int
    mtime_ns: int
    checksum: int
    live: bool = True


class Catalog:
    """One connection to a gallery's catalogue; may be shared between threads."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        if not path.is_file():
            raise GalleryNotFound(
                f"no gallery at {path.parent}; make one: bm25v index FOLDER -g {path.parent}"
            )
        self._path = path
        self._write = write
        self._mutex = threading.RLock()
        try:
            self._connect()
        except sqlite3.Error as error:
            raise _failure(path, error) from error

    def _connect(self) -> None:
        """Connect; on a medium where no log can be kept, read the one file as it lies there."""
        modes = ["rw"] if self._write else ["ro", "ro&immutable=1"]
        for mode in modes:
            db = _connection(self._path, mode)
            try:
                db.execute("PRAGMA synchronous = FULL")
                self.meta = self._read_meta(db)
                break
            except BaseException as error:
                db.close()
                if not isinstance(error, sqlite3.OperationalError) or mode == modes[-1]:
                    raise
        self._db = db
        self._close = weakref.finalize(self, db.close)
        self._is_frozen = mode == "ro&immutable=1"
        self._stamp = self._file_stamp()

    @staticmethod
    def create(path: Path, meta: Meta) -> None:
        """Write an empty catalogue."""
        try:
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("PRAGMA journal_mode = WAL")
                db.executescript(_SCHEMA)
                items = {"format": FORMAT, **vars(meta)}.items()
                db.executemany("INSERT INTO meta VALUES (?, ?)", list(items))
        except sqlite3.Error as error:
            raise _failure(path, error) from error

    def close(self) -> None:
        """Close the connection; a writer tidies its log away if there is room to."""
        if self._write:
            with suppress(sqlite3.Error):
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._close()

    def version(self) -> tuple[int, ...]:
        """Return what changes whenever another connection has committed."""
        if self._is_frozen and self._file_stamp() != self._stamp:
            self._close()
            self._connect()
        return (*self._stamp, *self._one("PRAGMA data_version"))

    def _file_stamp(self) -> tuple[int, ...]:
        found = self._path.stat()
        return (found.st_ino, found.st_size, found.st_mtime_ns) if self._is_frozen else ()

    def n_rows(self) -> int:
        """Return how many rows have been committed, live or not."""
        return int(self._one("SELECT coalesce(max(row), -1) + 1 FROM pictures")[0])

    def n_live(self) -> int:
        """Return how many pictures there are."""
        return int(self._one("SELECT count(*) FROM pictures WHERE live")[0])

    def live_rows(self) -> NDArray[np.int64]:
        """Return the rows of all pictures, ascending."""
        found = self._all("SELECT row FROM pictures WHERE live ORDER BY row")
        return np.fromiter((row for (row,) in found), dtype=np.int64, count=len(found))

    def path_of(self, row: int) -> str:
        """Return the path of a row, even one removed since."""
        return os.fsdecode(self._one("SELECT path FROM pictures WHERE row = ?", row)[0])

    def at_path(self, path: str) -> Picture | None:
        """Return the picture at a path."""
        return self._picture("live AND path = ?", os.fsencode(path))

    def with_content(self, content: bytes) -> Picture | None:
        """Return a picture whose file has that hash; a removed one if there is no other."""
        return self._picture("content = ? ORDER BY live DESC", content)

    def below(self, path: str) -> Iterator[Picture]:
        """Return the picture at a path, and all pictures in it if it is a folder."""
        name, separator = os.fsencode(path).rstrip(_SEPARATOR), _SEPARATOR
        low, high = name + separator, name + bytes([separator[0] + 1])
        where = "live AND (path = ? OR (path > ? AND path < ?)) ORDER BY path"
        return map(
            _picture, self._all(f"SELECT {_COLUMNS} FROM pictures WHERE {where}", name, low, high)
        )

    def pictures(self) -> Iterator[Picture]:
        """Return all pictures, by row."""
        return map(_picture, self._all(f"SELECT {_COLUMNS} FROM pictures WHERE live ORDER BY row"))

    def problems(self) -> list[str]:
        """Return what the database finds wrong with itself."""
        return [text for (text,) in self._all("PRAGMA integrity_check") if text != "ok"]

    def begin(self) -> None:
        """Start a transaction; what follows is seen by this connection only, until `commit`."""
        self._change("BEGIN IMMEDIATE")

    def insert(self, picture: Picture) -> None:
        """Add a picture under a new row."""
        values = (picture.row, os.fsencode(picture.path), *picture[2:])
        self._change(f"INSERT INTO pictures ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def move(self, row: int, path: str, size: int, mtime_ns: int) -> None:
        """Give a picture another place or time stamp; a removed one comes back."""
        update = "UPDATE pictures SET path = ?, size = ?, mtime_ns = ?, live = 1 WHERE row = ?"
        self._change(update, os.fsencode(path), size, mtime_ns, row)

    def remove(self, row: int) -> None:
        """Take a picture out."""
        self._change("UPDATE pictures SET live = 0 WHERE row = ?", row)

    def commit(self) -> None:
        """Make the transaction durable and visible to all."""
        self._change("COMMIT")

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.rollback()

    def set_vocabulary(self, source: str) -> None:
        """Remember where the vocabulary is now."""
        self._change("UPDATE meta SET value = ? WHERE key = 'vocabulary'", source)

    def _read_meta(self, db: sqlite3.Connection) -> Meta:
        try:
            found = dict(db.execute("SELECT key, value FROM meta").fetchall())
            if found.pop("format", 0) > FORMAT:
                raise GalleryTooNew(
                    f"{self._path.parent} was written by a newer bm25v: upgrade bm25v to open it"
                )
            return Meta(**found)
        except TypeError as error:
            raise GalleryDamaged(f"{self._path} lacks facts of the gallery: {error}") from error

    def _change(self, statement: str, *values: object) -> None:
        try:
            with self._mutex:
                self._db.execute(statement, values)
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._mutex:
                return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise _failure(self._path, error) from error

    def _one(self, query: str, *values: object) -> tuple[Any, ...]:
        return self._all(query, *values)[0]

    def _picture(self, condition: str, value: bytes) -> Picture | None:
        found = self._all(f"SELECT {_COLUMNS} FROM pictures WHERE {condition} LIMIT 1", value)
        return _picture(found[0]) if found else None


def _picture(found: tuple[Any, ...]) -> Picture:
    row, path, content, size, mtime_ns, checksum, live = found
    return Picture(row, os.fsdecode(path), content, size, mtime_ns, checksum, bool(live))


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)


def _failure(path: Path, error: sqlite3.Error) -> Bm25vError:
    """Say what a database error means for the gallery."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, sqlite3.ProgrammingError):
        return WrongUse(f"{path.parent} is closed: open it again")
    if code == sqlite3.SQLITE_FULL:
        return storage_full(path.parent)
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_BUSY):
        return GalleryError(f"{path} cannot be opened or written: {error}")
    return GalleryDamaged(f"{path} cannot be read as a catalogue: {error}")


def storage_full(folder: Path) -> StorageFull:
    """Return the error of a full disk."""
    return StorageFull(
        f"the disk of {folder} is full; all that was committed before is kept: "
        "free some space and run the same command again"
    )
