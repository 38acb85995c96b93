"""The catalogue: which images a gallery has, and the row of each.

In: changes, within a transaction. Out: records of images, the state of the gallery. The
transaction is the commit of the whole gallery: a row that no live record names does not exist. Not
this module's job: the rows themselves.
"""

import logging
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import (
    GalleryDamaged,
    GalleryError,
    GalleryNotFound,
    GalleryTooNew,
    WrongUse,
)
from bm25v.gallery.catalog_schema import (
    CALIBRATION_KEYS,
    COLUMNS,
    CREATE,
    FILE_NAME,
    FORMAT,
    FULL_KEYS,
    METADATA_FORMAT,
    OLD_COLUMNS,
    OLD_PARAMETERS,
    RENUMBER,
    SECOND_FORMAT,
    SECOND_KEYS,
    STATISTICS_KEYS,
    UPGRADES,
)
from bm25v.gallery.records import (
    Calibration,
    FullBagState,
    ImageRecord,
    Meta,
    State,
    path_bounds,
    to_record,
    to_seconds,
)
from bm25v.gallery.storage_errors import DATABASE_ERRORS, database_error
from bm25v.images import Metadata
from bm25v.index.bm25 import Statistics
from bm25v.vocabulary.bag import FULL_WORDS

Rows = NDArray[np.int64]

_log = logging.getLogger(__name__)

_STATE_KEYS = ("generation", *FULL_KEYS, *CALIBRATION_KEYS)
_BELOW = "path = ? OR path > ? AND path < ?"  # with `path_bounds`

_IMMUTABLE = "ro&immutable=1"  # read without a log, for read-only media
_CHANGES_KEPT = 1_000_000  # a reader that is further behind reads the whole gallery again
_inherited: list[sqlite3.Connection] = []  # by fork: only the process that opened one may close it


class RowsRenumbered(Exception):
    """The gallery was compacted: rows of an older snapshot have other numbers now."""


class Catalog:
    """One connection to a gallery's catalogue. Threads may share it."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        require_gallery(path.parent)
        self._path = path
        self._write = write
        self._format: int
        self._mutex = threading.RLock()
        self._connect()

    def _connect(self) -> None:
        try:
            self._open()
        except DATABASE_ERRORS as error:
            raise database_error(self._path, error) from error

    def _open(self) -> None:
        """Connect; on read-only media, where SQLite cannot keep a log, read the file alone."""
        modes = ["rw"] if self._write else ["ro"]
        if not self._write and self._log_bytes() == 0:
            modes.append(_IMMUTABLE)
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
        self._connection, self._mode, self._stamp = db, mode, stamp
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close_connection, db, self._process)

    @property
    def _db(self) -> sqlite3.Connection:
        """The connection; after a fork, the new process gets its own."""
        if self._process != os.getpid() and self._close.alive:  # Linux, macOS: forked, not closed
            if self._write:
                raise WrongUse(f"{self._path.parent} is written by the parent process: open it")
            self._connect()
        return self._connection

    @staticmethod
    def create(path: Path, meta: Meta, full_bags: FullBagState | None) -> None:
        """Write an empty catalogue."""
        entries = list(vars(meta).items())
        if full_bags is not None:
            entries += _full_bag_entries(full_bags, Statistics.empty(meta.n_words))
        try:
            with closing(sqlite3.connect(path)) as db, db:
                db.execute("PRAGMA journal_mode = WAL")
                for statement in CREATE:
                    db.execute(statement)
                db.executemany("INSERT INTO meta VALUES (?, ?)", entries)
        except DATABASE_ERRORS as error:
            raise database_error(path, error) from error

    def close(self) -> None:
        """Close the connection; a writer empties its log if the disk has space for it."""
        if self._write:
            self._empty_log()
        with self._mutex:  # SQLite crashes if another thread is in the middle of a query
            self._close()

    def version(self) -> tuple[int, ...]:
        """Return a value that changes when another connection commits."""
        with self._mutex:
            if self._check_identity() != self._stamp:
                self._close()
                self._connect()
            data_version = self._one("PRAGMA data_version")  # may be equal on two connections
            return (self._process, *self._stamp, *data_version)

    def _check_identity(self) -> tuple[int, ...]:
        """Raise an error if the gallery was deleted, or replaced by another one."""
        stamp = self._file_stamp(self._mode)
        if stamp[:2] != self._stamp[:2]:
            raise GalleryError(
                f"{self._path.parent} was replaced by another gallery: open it again"
            )
        return stamp

    def _file_stamp(self, mode: str) -> tuple[int, ...]:
        try:
            status = self._path.stat()
        except OSError as error:
            raise GalleryNotFound(
                f"{self._path.parent} no longer exists: {error.strerror}"
            ) from error
        identity = (status.st_dev, status.st_ino)
        if mode != _IMMUTABLE:
            return identity
        return (*identity, status.st_size, status.st_mtime_ns, self._log_bytes())

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except OSError:
            return 0

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make everything that is read within come from one version of the gallery."""
        with self._mutex:
            self._change("BEGIN")
            try:
                yield
            finally:
                self.rollback()

    def state(self) -> State:
        """Return which version of the gallery this is."""
        (n_rows,) = self._one("SELECT coalesce(max(row), -1) + 1 FROM pictures")
        facts = dict(self._all(f"SELECT key, value FROM meta WHERE key IN {_STATE_KEYS}"))
        if "generation" not in facts:  # format 1 keeps no changes
            return State(0, n_rows, None)
        (last,) = self._one(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'changes'), 0)"
        )
        (forgotten,) = self._one("SELECT coalesce(min(number) - 1, ?) FROM changes", last)
        changes = (facts["generation"], n_rows, last, forgotten)
        return State(*changes, _full_bag_state(facts, n_rows), _calibration(facts))

    def full_statistics(self) -> Statistics:
        """Return the statistics of the full bags of live rows."""
        query = f"SELECT key, value FROM meta WHERE key IN {STATISTICS_KEYS}"
        match [dict(self._all(query)).get(key) for key in STATISTICS_KEYS]:
            case [int(n), int(total_length), bytes(df)] if len(df) == 4 * self.meta.n_words:
                df_v = np.frombuffer(df, "<i4").astype(np.int64)
                if total_length >= 0 and np.all((df_v >= 0) & (df_v <= n)):
                    return Statistics(n, df_v, total_length)
        raise GalleryDamaged(f"{self._path} has no valid statistics: run bm25v verify")

    def set_full_bags(self, state: FullBagState, statistics: Statistics) -> None:
        """Store which rows have full bags, and the statistics of those."""
        for entry in _full_bag_entries(state, statistics):
            self._change("INSERT OR REPLACE INTO meta VALUES (?, ?)", *entry)

    def is_live(self, row: int) -> bool:
        """Return whether a row is that of an image, not of a removed one."""
        return bool(self._one("SELECT live FROM pictures WHERE row = ?", row)[0])

    def set_calibration(self, calibration: Calibration) -> None:
        """Store what the gallery's own images reach when they search for each other."""
        for entry in zip(CALIBRATION_KEYS, calibration, strict=True):
            self._change("INSERT OR REPLACE INTO meta VALUES (?, ?)", *entry)

    def set_checksum(self, row: int, checksum: int) -> None:
        """Store the checksum of a row's bytes."""
        self._change("UPDATE pictures SET checksum = ? WHERE row = ?", checksum, row)

    def changes_since(self, number: int) -> tuple[Rows, Rows]:
        """Return the rows that were removed, and those restored, after a change."""
        query = "SELECT row, live FROM changes WHERE number > ? ORDER BY number"
        last = dict(self._all(query, number))  # a row's last change decides
        removed = [row for row, live in last.items() if not live]
        return _rows(removed), _rows([row for row, live in last.items() if live])

    def n_live(self) -> int:
        """Return the number of images."""
        n_rows = "SELECT coalesce(max(row), -1) + 1 FROM pictures"
        n_removed = "SELECT count(*) FROM pictures WHERE NOT live"
        # One statement, so that both counts are of one version.
        return int(self._one(f"SELECT ({n_rows}) - ({n_removed})")[0])

    def removed_rows(self) -> Rows:
        """Return the rows of all removed images, ascending."""
        columns = self._all("SELECT row FROM pictures WHERE NOT live ORDER BY row")
        return _rows([row for (row,) in columns])

    def paths_of(self, rows: list[int], generation: int) -> list[str]:
        """Return the paths of rows, also of removed ones; raise `RowsRenumbered` for old rows."""
        with self.transaction():
            self.check_generation(generation)
            query = f"SELECT {OLD_COLUMNS} FROM pictures WHERE row = ?"
            return [to_record(self._one(query, row)).path for row in rows]

    def all_paths(self, generation: int) -> dict[int, str]:
        """Return the path of each row, also of removed ones; raise `RowsRenumbered` as above."""
        with self.transaction():
            self.check_generation(generation)
            columns = self._all("SELECT row, path FROM pictures ORDER BY row")
        return {row: os.fsdecode(path) for row, path in columns}

    def copies_of(self, row: int, generation: int) -> list[int]:
        """Return the rows of all images with the content of a row, with itself."""
        with self.transaction():
            self.check_generation(generation)
            same = "content = (SELECT content FROM pictures WHERE row = ?)"
            return list(map(int, self.rows_where(same, row)))

    def check_generation(self, generation: int) -> None:
        """Raise `RowsRenumbered` if rows were renumbered since."""
        known = self._all("SELECT value FROM meta WHERE key = 'generation'")
        if (known or [(0,)]) != [(generation,)]:  # format 1 has none
            raise RowsRenumbered

    def at_path(self, path: str) -> ImageRecord | None:
        """Return the image at a path."""
        return self._find_record("live AND path = ?", os.fsencode(path))

    def was_removed(self, path: str) -> bool:
        """Return whether an image at a path was removed and its row still exists."""
        return self._find_record("NOT live AND path = ?", os.fsencode(path)) is not None

    def with_content(self, content: bytes) -> ImageRecord | None:
        """Return an image whose file has this hash; a removed one if there is no other."""
        return self._find_record("content = ? ORDER BY live DESC", content)

    def below(self, path: str) -> Iterator[ImageRecord]:
        """Return the image at a path, or all images below it if it is a folder."""
        select = f"SELECT {self._columns()} FROM pictures WHERE live AND"
        # With OR instead of UNION, SQLite would scan the whole table.
        query = f"{select} path = ? UNION ALL {select} path > ? AND path < ? ORDER BY path"
        return map(to_record, self._all(query, *path_bounds(path)))

    def rows_where(self, condition: str, *values: object) -> Rows:
        """Return the rows of those images for which an SQL condition is true."""
        query = f"SELECT row FROM pictures WHERE live AND {condition}"
        return np.fromiter(chain.from_iterable(self._all(query, *values)), dtype=np.int64)

    def paths_where(self, condition: str, *values: object) -> list[tuple[int, str]]:
        """Return the row and the path of those images for which an SQL condition is true."""
        query = f"SELECT row, path FROM pictures WHERE live AND {condition}"
        return [(row, os.fsdecode(path)) for row, path in self._all(query, *values)]

    def with_rows(self, rows: list[int]) -> Iterator[ImageRecord]:
        """Return the images of some rows."""
        query = f"SELECT {self._columns()} FROM pictures WHERE live AND row = ?"
        return (to_record(found[0]) for row in rows if (found := self._all(query, row)))

    def failures(self, *, below: Iterable[str]) -> dict[str, str]:
        """Return the files below some paths that could not be indexed the last time, and why."""
        query = f"SELECT path, error FROM failures WHERE {_BELOW}"
        found = [pair for path in below for pair in self._all(query, *path_bounds(path))]
        return {os.fsdecode(path): error for path, error in found}

    def has_metadata(self) -> bool:
        """Return whether the format has columns for dates and sizes; a writer may add them."""
        if self._format < METADATA_FORMAT:
            (self._format,) = self._one("SELECT value FROM meta WHERE key = 'format'")
        return bool(self._format >= METADATA_FORMAT)

    def _columns(self) -> str:
        return COLUMNS if self.has_metadata() else OLD_COLUMNS

    def images(self) -> Iterator[ImageRecord]:
        """Return all images, by row."""
        return filter(attrgetter("live"), self.records())

    def images_between(self, first: int, end: int) -> Iterator[ImageRecord]:
        """Return the images of a range of rows, by row."""
        query = f"SELECT {self._columns()} FROM pictures WHERE live AND row >= ? AND row < ?"
        return map(to_record, self._all(f"{query} ORDER BY row", first, end))

    def records(self) -> Iterator[ImageRecord]:
        """Return all images and the removed ones, by row."""
        return map(to_record, self._all(f"SELECT {self._columns()} FROM pictures ORDER BY row"))

    def problems(self) -> list[str]:
        """Return the problems that SQLite's integrity check reports."""
        return [text for (text,) in self._all("PRAGMA integrity_check") if text != "ok"]

    def upgrade(self) -> None:
        """Upgrade an older format, within a transaction."""
        (version,) = self._one("SELECT value FROM meta WHERE key = 'format'")
        if version < FORMAT:
            _log.info("upgrading %s from format %s to %s", self._path.parent, version, FORMAT)
        for older in range(version, FORMAT):
            for statement in UPGRADES[older]:
                self._change(statement)
        self._change("UPDATE meta SET value = ? WHERE key = 'format'", FORMAT)

    def begin(self) -> None:
        """Start a transaction; other connections see its changes after `commit`."""
        self._change("BEGIN IMMEDIATE")

    def insert(self, record: ImageRecord) -> None:
        """Add an image with a new row."""
        values = (record.row, os.fsencode(record.path), *record[2:])
        marks = ", ".join("?" * len(values))
        self._change(f"INSERT INTO pictures ({COLUMNS}) VALUES ({marks})", *values)

    def move(
        self, row: int, path: str, size: int, mtime_ns: int, metadata: Metadata | None
    ) -> None:
        """Change an image's path, time stamp or metadata; restore it if it was removed."""
        restored = "INSERT INTO changes (row, live) SELECT row, 1 FROM pictures "
        self._change(restored + "WHERE row = ? AND NOT live", row)
        update = "UPDATE pictures SET path = ?, size = ?, mtime_ns = ?, live = 1 WHERE row = ?"
        self._change(update, os.fsencode(path), size, mtime_ns, row)
        if metadata is not None:
            update = "UPDATE pictures SET width = ?, height = ?, taken = ? WHERE row = ?"
            self._change(update, *metadata[:2], to_seconds(metadata.taken), row)

    def remove(self, row: int) -> None:
        """Remove an image; its row stays in the files until the gallery is compacted."""
        self._change("UPDATE pictures SET live = 0 WHERE row = ?", row)
        self._change("INSERT INTO changes (row, live) VALUES (?, 0)", row)

    def replace_failures(self, failures: Mapping[str, str], *, below: Iterable[str]) -> None:
        """Store the files below some paths that could not be indexed, in place of earlier ones."""
        for path in below:
            self._change(f"DELETE FROM failures WHERE {_BELOW}", *path_bounds(path))
        for path, error in failures.items():
            self._change("INSERT OR REPLACE INTO failures VALUES (?, ?)", os.fsencode(path), error)

    def renumber(self) -> None:
        """Delete the records of removed images and number the others from 0, in their order."""
        for statement in RENUMBER:
            self._change(statement)

    def commit(self) -> None:
        """Make the transaction durable and visible to other connections."""
        self._check_identity()
        last = "SELECT max(number) FROM changes"
        self._change(f"DELETE FROM changes WHERE number <= ({last}) - ?", _CHANGES_KEPT)
        self._change("COMMIT")

    def shrink(self) -> None:
        """Return freed space to the disk, if there is space to work in and no reader is active."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.execute("VACUUM")
        self._empty_log()

    def _empty_log(self) -> None:
        with self._mutex, suppress(sqlite3.Error):
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        """Undo the transaction, if one is open."""
        with self._mutex, suppress(sqlite3.Error):
            self._db.rollback()

    def set_vocabulary(self, source: str) -> None:
        """Store the vocabulary's new name or path."""
        self._change("UPDATE meta SET value = ? WHERE key = 'vocabulary'", source)

    def _read_meta(self, db: sqlite3.Connection) -> Meta:
        entries = dict(db.execute("SELECT key, value FROM meta").fetchall())
        for key in (*_STATE_KEYS, *STATISTICS_KEYS):
            entries.pop(key, 0)  # not constant: see `state`
        version = entries.pop("format", None)
        self._format = version
        if isinstance(version, int) and version > FORMAT:
            raise GalleryTooNew(
                f"{self._path.parent} was written by a newer bm25v: upgrade bm25v to open it"
            )
        if version in (1, 2):
            entries |= {"k1": OLD_PARAMETERS.k1, "b": OLD_PARAMETERS.b}
        if isinstance(version, int) and version < SECOND_FORMAT:
            entries |= dict.fromkeys(SECOND_KEYS, "")
        types = {name: type(value) for name, value in entries.items()}
        if types != Meta.__annotations__ or version is None:
            raise GalleryDamaged(f"{self._path} lacks required entries: run bm25v verify")
        meta = Meta(**entries)
        try:
            meta.parameters  # noqa: B018 - raises an error for invalid ones
        except WrongUse as error:
            raise GalleryDamaged(f"{self._path}: {error}; restore it from a backup") from error
        return meta

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
        columns = self._all(query, *values)
        if not columns:
            raise GalleryDamaged(f"{self._path} lacks required entries: run bm25v verify")
        return columns[0]

    def _find_record(self, condition: str, value: bytes) -> ImageRecord | None:
        query = f"SELECT {self._columns()} FROM pictures WHERE {condition} LIMIT 1"
        columns = self._all(query, value)
        return to_record(columns[0]) if columns else None


def require_gallery(folder: Path) -> None:
    """Raise an error if a folder is not a gallery."""
    if not (folder / FILE_NAME).is_file():
        raise GalleryNotFound(
            f"no gallery at {folder}: create one with `bm25v index FOLDER -g {folder}`, or in "
            "Python with Gallery.open_or_create"
        )


def _full_bag_entries(state: FullBagState, statistics: Statistics) -> list[tuple[str, Any]]:
    df = statistics.df_v.astype("<i4").tobytes()
    values = (*state, statistics.n, statistics.total_length, df)
    return list(zip((*FULL_KEYS, *STATISTICS_KEYS), values, strict=True))


def _full_bag_state(facts: Mapping[str, Any], n_rows: int) -> FullBagState | None:
    match [facts.get(key) for key in FULL_KEYS]:
        case [None, None, None]:
            return None
        case [int(k), int(n_patches), int(n)] if 0 < k <= FULL_WORDS and 0 <= n <= n_rows:
            return FullBagState(k, n_patches, n)
    raise GalleryDamaged("the catalogue has no valid number of full bags: run bm25v verify")


def _calibration(facts: Mapping[str, Any]) -> Calibration | None:
    match [facts.get(key) for key in CALIBRATION_KEYS]:
        case [float(weak_below), float(strong_from), int(n_images), int(last_change)]:
            return Calibration(weak_below, strong_from, n_images, last_change)
    return None  # it is a help, not content


def _rows(rows: list[Any]) -> Rows:
    if not all(isinstance(row, int) for row in rows):
        raise GalleryDamaged("the catalogue has rows that are not numbers: run bm25v verify")
    return np.array(rows, dtype=np.int64)


def _close_connection(db: sqlite3.Connection, process: int) -> None:
    if process == os.getpid():
        db.close()
    else:
        _inherited.append(db)


def _connection(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
