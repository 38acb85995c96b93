"""The catalogue of a gallery: which pictures there are and where their rows lie.

Its transaction is the commit: a row that no live picture names does not exist.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
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

FORMAT = 2
FILE_NAME = "catalog.sqlite"

_META_TABLE = "CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"
_PICTURES_TABLE = """CREATE TABLE pictures (
    row INTEGER PRIMARY KEY,    -- of the bag and of the dense vector
    path BLOB NOT NULL,         -- as the file system spells it
    content BLOB NOT NULL,      -- hash of the file
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    checksum INTEGER NOT NULL,  -- of the two rows
    live INTEGER NOT NULL       -- 0 once removed; kept for readers of older snapshots
)"""
_INDEXES = (
    "CREATE UNIQUE INDEX live_path ON pictures (path) WHERE live",
    "CREATE INDEX content ON pictures (content)",
)
# Since format 2, so that readers can follow changes without reading everything again.
_REMOVED_INDEX = "CREATE INDEX removed ON pictures (row) WHERE NOT live"
_CHANGES_TABLE = """CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    row INTEGER NOT NULL,       -- removed or put back; new rows are simply the next ones
    live INTEGER NOT NULL
)"""

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


class State(NamedTuple):
    """How far a gallery has come."""

    generation: int  # rows were numbered anew so many times
    n_rows: int  # live or not
    last_change: int | None  # to rows that were there already; None if changes are not kept


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
                tables = (_META_TABLE, _PICTURES_TABLE, _CHANGES_TABLE)
                for statement in (*tables, *_INDEXES, _REMOVED_INDEX):
                    db.execute(statement)
                items = {"format": FORMAT, "generation": 0, **vars(meta)}.items()
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

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let all that is read within come from one moment."""
        with self._mutex:
            self._change("BEGIN")
            try:
                yield
            finally:
                self.rollback()

    def state(self) -> State:
        """Return how far the gallery has come."""
        (n_rows,) = self._one("SELECT coalesce(max(row), -1) + 1 FROM pictures")
        generation = self._all("SELECT value FROM meta WHERE key = 'generation'")
        if not generation:  # written by an older bm25v, which kept no changes
            return State(0, n_rows, None)
        (last,) = self._one("SELECT coalesce(max(number), 0) FROM changes")
        return State(generation[0][0], n_rows, last)

    def changes_since(self, number: int) -> list[tuple[int, bool]]:
        """Return the rows removed or put back after a change, and whether they are live."""
        found = self._all("SELECT row, live FROM changes WHERE number > ? ORDER BY number", number)
        return [(row, bool(live)) for row, live in found]

    def n_live(self) -> int:
        """Return how many pictures there are."""
        (n_removed,) = self._one("SELECT count(*) FROM pictures WHERE NOT live")
        return self.state().n_rows - int(n_removed)

    def removed_rows(self) -> NDArray[np.int64]:
        """Return the rows of all removed pictures, ascending."""
        found = self._all("SELECT row FROM pictures WHERE NOT live ORDER BY row")
        return np.fromiter((row for (row,) in found), dtype=np.int64, count=len(found))

    def paths_of(self, rows: list[int], generation: int) -> list[str] | None:
        """Return the paths of rows, even removed ones; None if rows have new numbers by now."""
        with self.reading():
            if self.state().generation != generation:
                return None
            query = "SELECT path FROM pictures WHERE row = ?"
            return [os.fsdecode(self._one(query, row)[0]) for row in rows]

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

    def upgrade(self) -> None:
        """Bring an older format up to date, within a transaction."""
        if self.state().last_change is None:
            self._change(_CHANGES_TABLE)
            self._change(_REMOVED_INDEX)
            self._change("INSERT INTO meta VALUES ('generation', 0)")
            self._change("UPDATE meta SET value = ? WHERE key = 'format'", FORMAT)

    def begin(self) -> None:
        """Start a transaction; what follows is seen by this connection only, until `commit`."""
        self._change("BEGIN IMMEDIATE")

    def insert(self, picture: Picture) -> None:
        """Add a picture under a new row."""
        values = (picture.row, os.fsencode(picture.path), *picture[2:])
        self._change(f"INSERT INTO pictures ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values)

    def move(self, row: int, path: str, size: int, mtime_ns: int) -> None:
        """Give a picture another place or time stamp; a removed one comes back."""
        returned = "INSERT INTO changes (row, live) SELECT row, 1 FROM pictures "
        self._change(returned + "WHERE row = ? AND NOT live", row)
        update = "UPDATE pictures SET path = ?, size = ?, mtime_ns = ?, live = 1 WHERE row = ?"
        self._change(update, os.fsencode(path), size, mtime_ns, row)

    def remove(self, row: int) -> None:
        """Take a picture out."""
        self._change("UPDATE pictures SET live = 0 WHERE row = ?", row)
        self._change("INSERT INTO changes (row, live) VALUES (?, 0)", row)

    def renumber(self) -> None:
        """Forget removed pictures and number the others from 0 on, in their order."""
        self._change("ALTER TABLE pictures RENAME TO old")
        self._change(_PICTURES_TABLE)
        self._change(
            f"INSERT INTO pictures ({_COLUMNS}) "
            f"SELECT row_number() OVER (ORDER BY row) - 1, {_COLUMNS.removeprefix('row, ')} "
            "FROM old WHERE live ORDER BY row"
        )
        self._change("DROP TABLE old")
        for statement in (*_INDEXES, _REMOVED_INDEX):
            self._change(statement)
        self._change("DELETE FROM changes")
        self._change("UPDATE meta SET value = value + 1 WHERE key = 'generation'")

    def commit(self) -> None:
        """Make the transaction durable and visible to all."""
        self._change("COMMIT")

    def shrink(self) -> None:
        """Give freed space back to the disk, unless a reader is in the way."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.execute("VACUUM")

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
            found.pop("generation", 0)  # changes: see `state`
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
