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
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import GalleryDamaged, GalleryError, GalleryNotFound, GalleryTooNew
from bm25v.gallery import schema
from bm25v.gallery.failures import DATABASE_ERRORS, database_error

FILE_NAME = "catalog.sqlite"

_FROZEN = "ro&immutable=1"
_SEPARATOR = os.fsencode(os.sep)

Rows = NDArray[np.int64]

_KEPT_CHANGES = 1_000_000  # a reader that lags behind more than that reads everything again


@dataclass(frozen=True)
class Meta:
    """What never changes in a gallery's life."""

    vocabulary: str  # the name or path it was made with
    vocabulary_fingerprint: str
    backbone: str
    n_words: int
    k_post: int
    dense_dim: int


class ImageRecord(NamedTuple):
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
    forgotten: int = 0  # changes up to this one are not kept


class Catalog:
    """One connection to a gallery's catalogue; may be shared between threads."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        require(path.parent)
        self._path = path
        self._write = write
        self._mutex = threading.RLock()
        self._connect()

    def _connect(self) -> None:
        try:
            self._open()
        except DATABASE_ERRORS as error:
            raise database_error(self._path, error) from error

    def _open(self) -> None:
        """Connect; on a medium where no log can be kept, read the one file as it lies there."""
        modes = ["rw"] if self._write else ["ro"]
        if not self._write and self._log_bytes() == 0:
            modes.append(_FROZEN)
        for mode in modes:
            stamp = self._file_stamp(mode)
            db = _connection(self._path, mode)
            try:
                db.execute("PRAGMA synchronous = FULL")
                self.meta = self._read_meta(db)
                break
            except BaseException as error:
                db.close()
                if not isinstance(error, sqlite3.OperationalError) or mode == modes[-1]:
                    raise
        self._db, self._mode, self._stamp = db, mode, stamp
        self._close = weakref.finalize(self, db.close)

    @staticmethod
    def create(path: Path, meta: Meta) -> None:
        """Write an empty catalogue."""
        try:
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("PRAGMA journal_mode = WAL")
                for statement in schema.CREATE:
                    db.execute(statement)
                db.executemany("INSERT INTO meta VALUES (?, ?)", list(vars(meta).items()))
        except DATABASE_ERRORS as error:
            raise database_error(path, error) from error

    def close(self) -> None:
        """Close the connection; a writer tidies its log away if there is room to."""
        if self._write:
            self._empty_log()
        self._close()

    def version(self) -> tuple[int, ...]:
        """Return what changes whenever another connection has committed."""
        with self._mutex:
            if self._require_place() != self._stamp:
                self._close()
                self._connect()
            return (*self._stamp, *self._one("PRAGMA data_version"))

    def _require_place(self) -> tuple[int, ...]:
        """Refuse to go on if the gallery was deleted, or replaced by another."""
        stamp = self._file_stamp(self._mode)
        if stamp[:2] != self._stamp[:2]:
            raise GalleryError(f"{self._path.parent} was made anew meanwhile: open it again")
        return stamp

    def _file_stamp(self, mode: str) -> tuple[int, ...]:
        try:
            found = self._path.stat()
        except OSError as error:
            raise GalleryNotFound(f"{self._path.parent} is gone: {error.strerror}") from error
        identity = (found.st_dev, found.st_ino)
        if mode != _FROZEN:
            return identity
        return (*identity, found.st_size, found.st_mtime_ns, self._log_bytes())

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except OSError:
            return 0

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
        (last,) = self._one(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'changes'), 0)"
        )
        (forgotten,) = self._one("SELECT coalesce(min(number) - 1, ?) FROM changes", last)
        return State(generation[0][0], n_rows, last, forgotten)

    def changes_since(self, number: int) -> tuple[Rows, Rows]:
        """Return the rows that were removed, and those put back, after a change."""
        query = "SELECT row, live FROM changes WHERE number > ? ORDER BY number"
        last = dict(self._all(query, number))  # the last change of a row counts
        removed = [row for row, live in last.items() if not live]
        return _rows(removed), _rows([row for row, live in last.items() if live])

    def n_live(self) -> int:
        """Return how many pictures there are."""
        n_rows = "SELECT coalesce(max(row), -1) + 1 FROM pictures"
        n_removed = "SELECT count(*) FROM pictures WHERE NOT live"
        return int(self._one(f"SELECT ({n_rows}) - ({n_removed})")[0])  # both of one moment

    def removed_rows(self) -> Rows:
        """Return the rows of all removed pictures, ascending."""
        found = self._all("SELECT row FROM pictures WHERE NOT live ORDER BY row")
        return _rows([row for (row,) in found])

    def paths_of(self, rows: list[int], generation: int) -> list[str] | None:
        """Return the paths of rows, even removed ones; None if rows have new numbers by now."""
        with self.reading():
            if self.state().generation != generation:
                return None
            query = f"SELECT {schema.COLUMNS} FROM pictures WHERE row = ?"
            return [_picture(self._one(query, row)).path for row in rows]

    def all_paths(self, generation: int) -> dict[int, str] | None:
        """Return the path of each row, even removed ones; None if rows have new numbers by now."""
        with self.reading():
            if self.state().generation != generation:
                return None
            found = self._all("SELECT row, path FROM pictures ORDER BY row")
        return {row: os.fsdecode(path) for row, path in found}

    def at_path(self, path: str) -> ImageRecord | None:
        """Return the picture at a path."""
        return self._picture("live AND path = ?", os.fsencode(path))

    def was_removed(self, path: str) -> bool:
        """Say whether there was a picture at a path that is still remembered."""
        return self._picture("NOT live AND path = ?", os.fsencode(path)) is not None

    def with_content(self, content: bytes) -> ImageRecord | None:
        """Return a picture whose file has that hash; a removed one if there is no other."""
        return self._picture("content = ? ORDER BY live DESC", content)

    def below(self, path: str) -> Iterator[ImageRecord]:
        """Return the picture at a path, and all pictures in it if it is a folder."""
        name, separator = os.fsencode(path).rstrip(_SEPARATOR), _SEPARATOR
        low, high = name + separator, name + bytes([separator[0] + 1])
        one = f"SELECT {schema.COLUMNS} FROM pictures WHERE live AND"
        # Joined by OR, the two would be a walk through all pictures.
        query = f"{one} path = ? UNION ALL {one} path > ? AND path < ? ORDER BY path"
        return map(_picture, self._all(query, name, low, high))

    def pictures(self) -> Iterator[ImageRecord]:
        """Return all pictures, by row."""
        return filter(attrgetter("live"), self.entries())

    def entries(self) -> Iterator[ImageRecord]:
        """Return all pictures and those that were removed, by row."""
        return map(_picture, self._all(f"SELECT {schema.COLUMNS} FROM pictures ORDER BY row"))

    def problems(self) -> list[str]:
        """Return what the database finds wrong with itself."""
        return [text for (text,) in self._all("PRAGMA integrity_check") if text != "ok"]

    def upgrade(self) -> None:
        """Bring an older format up to date, within a transaction."""
        if self.state().last_change is None:
            for statement in schema.UPGRADE:
                self._change(statement)

    def begin(self) -> None:
        """Start a transaction; what follows is seen by this connection only, until `commit`."""
        self._change("BEGIN IMMEDIATE")

    def insert(self, picture: ImageRecord) -> None:
        """Add a picture under a new row."""
        values = (picture.row, os.fsencode(picture.path), *picture[2:])
        self._change(
            f"INSERT INTO pictures ({schema.COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?)", *values
        )

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
        for statement in schema.RENUMBER:
            self._change(statement)

    def commit(self) -> None:
        """Make the transaction durable and visible to all."""
        self._require_place()
        last = "SELECT max(number) FROM changes"
        self._change(f"DELETE FROM changes WHERE number <= ({last}) - ?", _KEPT_CHANGES)
        self._change("COMMIT")

    def shrink(self) -> None:
        """Give freed space back to the disk, if there is room to and no reader is in the way."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.execute("VACUUM")
        self._empty_log()

    def _empty_log(self) -> None:
        with self._mutex, suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        """Undo the transaction, if there is one."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.rollback()

    def set_vocabulary(self, source: str) -> None:
        """Remember where the vocabulary is now."""
        self._change("UPDATE meta SET value = ? WHERE key = 'vocabulary'", source)

    def _read_meta(self, db: sqlite3.Connection) -> Meta:
        found = dict(db.execute("SELECT key, value FROM meta").fetchall())
        found.pop("generation", 0)  # changes: see `state`
        version = found.pop("format", None)
        if isinstance(version, int) and version > schema.FORMAT:
            raise GalleryTooNew(
                f"{self._path.parent} was written by a newer bm25v: upgrade bm25v to open it"
            )
        kinds = Meta.__annotations__
        if {name: type(value) for name, value in found.items()} != kinds or version is None:
            raise GalleryDamaged(f"{self._path} lacks facts of the gallery: run bm25v verify")
        return Meta(**found)

    def _change(self, statement: str, *values: object) -> None:
        try:
            with self._mutex:
                self._db.execute(statement, values)
        except DATABASE_ERRORS as error:
            raise database_error(self._path, error) from error

    def _all(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        try:
            with self._mutex:
                return self._db.execute(query, values).fetchall()
        except DATABASE_ERRORS as error:
            raise database_error(self._path, error) from error

    def _one(self, query: str, *values: object) -> tuple[Any, ...]:
        found = self._all(query, *values)
        if not found:
            raise GalleryDamaged(f"{self._path} lacks entries: run bm25v verify")
        return found[0]

    def _picture(self, condition: str, value: bytes) -> ImageRecord | None:
        found = self._all(f"SELECT {schema.COLUMNS} FROM pictures WHERE {condition} LIMIT 1", value)
        return _picture(found[0]) if found else None


def require(folder: Path) -> None:
    """Refuse a folder that is no gallery."""
    if not (folder / FILE_NAME).is_file():
        raise GalleryNotFound(f"no gallery at {folder}; make one: bm25v index FOLDER -g {folder}")


def _picture(found: tuple[Any, ...]) -> ImageRecord:
    row, path, content, size, mtime_ns, checksum, live = found
    if not isinstance(path, bytes):
        raise GalleryDamaged(f"row {row} has no path in the catalogue: run bm25v verify")
    return ImageRecord(row, os.fsdecode(path), content, size, mtime_ns, checksum, bool(live))


def _rows(found: list[Any]) -> Rows:
    if not all(isinstance(row, int) for row in found):
        raise GalleryDamaged("the catalogue names rows that are no numbers: run bm25v verify")
    return np.array(found, dtype=np.int64)


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
