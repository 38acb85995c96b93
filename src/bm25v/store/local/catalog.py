"""The catalogue: which images a gallery has, and the row of each.

Its transaction is the commit of the whole gallery: a row that no live record names does not exist.
"""

import json
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import (
    GalleryDamaged,
    GalleryError,
    GalleryNotFound,
    GalleryTooNew,
    InvalidOption,
)
from bm25v.images import Metadata
from bm25v.index.bm25 import Statistics
from bm25v.store.local.catalog_schema import (
    CALIBRATION_KEYS,
    CHECKSUM_KEYS,
    COLUMNS,
    CREATE,
    FILE_NAME,
    FORMAT,
    RENUMBER,
    STATISTICS_KEYS,
)
from bm25v.store.local.records import (
    Calibration,
    ImageRecord,
    Meta,
    State,
    path_bounds,
    to_record,
    to_seconds,
)
from bm25v.store.local.storage_errors import database_errors

Rows = NDArray[np.int64]

_STATE_KEYS = ("generation", *CALIBRATION_KEYS, *CHECKSUM_KEYS)
_BELOW = "path = ? OR path > ? AND path < ?"  # with `path_bounds`

_IMMUTABLE = "ro&immutable=1"  # read without a log, for read-only media
_ROWS_AT_ONCE = 1_000  # SQLite limits the values of a query
_LARGEST = 2**31  # more than any size of a row
CHANGES_KEPT = 1_000_000  # a reader that is further behind reads the whole gallery again
_inherited: list[sqlite3.Connection] = []  # by fork: only the process that opened one may close it


class RowsRenumbered(Exception):
    """The gallery was compacted: rows of an older snapshot have other numbers now."""


class Catalog:
    """One connection to a gallery's catalogue. Threads may share it."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        require_gallery(path.parent)
        self._path = path
        self._write = write
        self._mutex = threading.RLock()
        self._connect()

    def _connect(self) -> None:
        """Connect; on read-only media, where SQLite cannot keep a log, read the file alone."""
        with database_errors(self._path):
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
        uri = f"{self._path.absolute().as_uri()}?mode={mode}"
        db = sqlite3.connect(
            uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False
        )
        try:
            db.execute("PRAGMA synchronous = FULL")
            self.meta = self._read_meta(db)
        except BaseException:
            db.close()
            raise
        self._connection, self._mode, self._stamp = db, mode, stamp
        self._process = os.getpid()
        self._close = weakref.finalize(self, _close_connection, db, self._process)

    @property
    def db(self) -> sqlite3.Connection:
        """The connection; after a fork, the new process gets its own."""
        if self._process != os.getpid() and self._close.alive:  # Linux, macOS: forked, not closed
            if self._write:
                raise InvalidOption(
                    f"{self._path.parent} is written by the parent process: open it"
                )
            self._connect()
        return self._connection

    @staticmethod
    def create(path: Path, meta: Meta) -> None:
        entries = [
            *vars(meta).items(),
            *_to_entries(Statistics.empty(meta.n_words)),
            (CHECKSUM_KEYS[0], _checksum_of_constants({"format": FORMAT, **vars(meta)})),
        ]
        with database_errors(path), closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA journal_mode = WAL")
            for statement in CREATE:
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", entries)

    def close(self) -> None:
        """Close the connection; a writer empties its log if the disk has space for it."""
        if self._write:
            self._empty_log()
        with self._mutex:  # SQLite crashes if another thread is in the middle of a query
            self._close()

    def connect_again(self) -> "Catalog":
        """Return another connection for reading, which does not wait for those who use this one."""
        return Catalog(self._path)

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
    def transaction(self, generation: int | None = None) -> Iterator[None]:
        """Make everything that is read within come from one version of the gallery.

        Raises `RowsRenumbered` if it is of another generation than the one given.
        """
        with self._mutex:
            self.execute("BEGIN")
            try:
                if generation is not None:
                    self.check_generation(generation)
                yield
            finally:
                self.rollback()

    def state(self) -> State:
        (n_rows,) = self._one("SELECT coalesce(max(row), -1) + 1 FROM images")
        facts = dict(self.execute(f"SELECT key, value FROM meta WHERE key IN {_STATE_KEYS}"))
        generation = facts.get("generation")
        if not isinstance(generation, int):
            raise GalleryDamaged(f"{self._path} lacks required entries: run bm25v verify")
        (last,) = self._one(
            "SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'changes'), 0)"
        )
        (forgotten,) = self._one("SELECT coalesce(min(number) - 1, ?) FROM changes", last)
        return State(generation, n_rows, last, forgotten, _calibration(facts))

    def full_statistics(self) -> Statistics:
        query = f"SELECT key, value FROM meta WHERE key IN {STATISTICS_KEYS}"
        match [dict(self.execute(query)).get(key) for key in STATISTICS_KEYS]:
            case [int(n), int(total_length), bytes(df)] if len(df) == 4 * self.meta.n_words:
                df_v = np.frombuffer(df, "<i4").astype(np.int64)
                if total_length >= 0 and np.all((df_v >= 0) & (df_v <= n)):
                    return Statistics(n, df_v, total_length)
        raise GalleryDamaged(f"{self._path} has no valid statistics: run bm25v verify")

    def set_full_statistics(self, statistics: Statistics) -> None:
        self._set_facts(_to_entries(statistics))

    def is_live(self, row: int) -> bool:
        return bool(self._one("SELECT live FROM images WHERE row = ?", row)[0])

    def set_calibration(self, calibration: Calibration) -> None:
        values = (*calibration, _checksum(calibration))
        self._set_facts(zip((*CALIBRATION_KEYS, CHECKSUM_KEYS[1]), values, strict=True))

    def _set_facts(self, entries: Iterable[tuple[str, Any]]) -> None:
        for entry in entries:
            self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", *entry)

    def changes_since(self, number: int) -> tuple[Rows, Rows]:
        query = "SELECT row, live FROM changes WHERE number > ? ORDER BY number"
        last = dict(self.execute(query, number))  # a row's last change decides
        removed = [row for row, live in last.items() if not live]
        return _rows(removed), _rows([row for row, live in last.items() if live])

    def n_live(self) -> int:
        n_rows = "SELECT coalesce(max(row), -1) + 1 FROM images"
        n_removed = "SELECT count(*) FROM images WHERE NOT live"
        # One statement, so that both counts are of one version.
        return int(self._one(f"SELECT ({n_rows}) - ({n_removed})")[0])

    def removed_rows(self) -> Rows:
        columns = self.execute("SELECT row FROM images WHERE NOT live ORDER BY row")
        return _rows([row for (row,) in columns])

    def paths_of(self, rows: list[int], generation: int) -> list[str]:
        """Return the paths of rows, also of removed ones; raise `RowsRenumbered` for old rows."""
        paths = dict(self._select_in("row, path", "row", rows, generation))
        if not all(isinstance(paths.get(row), bytes) for row in rows):
            raise GalleryDamaged(f"{self._path} lacks paths of images: run bm25v verify")
        return [os.fsdecode(paths[row]) for row in rows]

    def all_paths(self, generation: int) -> dict[int, str]:
        """Return the path of each row, also of removed ones; raise `RowsRenumbered` as above."""
        columns = self._select("row, path", "1", (), generation)
        return {row: os.fsdecode(path) for row, path in columns}

    def at_paths(self, paths: Iterable[str], generation: int) -> dict[str, ImageRecord]:
        """Return the images at some paths, as far as there are any."""
        keys = list(dict.fromkeys(map(os.fsencode, paths)))
        columns = self._select_in(COLUMNS, "live AND path", keys, generation)
        return {record.path: record for record in map(to_record, columns)}

    def rows_of(self, paths: Sequence[str], contents: Sequence[bytes], generation: int) -> Rows:
        """Return the rows of images at some paths, and of those with some contents."""
        keys = (*map(os.fsencode, paths), *contents)
        at_path, has_content = (", ".join("?" * len(values)) for values in (paths, contents))
        condition = f"live AND (path IN ({at_path}) OR content IN ({has_content}))"
        return _rows([row for (row,) in self._select("row", condition, keys, generation)])

    def with_rows(self, rows: list[int], generation: int) -> list[ImageRecord]:
        """Return the images of some rows, ascending; raise `RowsRenumbered` for old rows."""
        columns = self._select_in(COLUMNS, "live AND row", rows, generation)
        return sorted(map(to_record, columns))

    def _select_in(
        self, columns: str, key: str, values: Sequence[object], generation: int
    ) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(values), _ROWS_AT_ONCE):
            chunk = values[start : start + _ROWS_AT_ONCE]
            marks = ", ".join("?" * len(chunk))
            yield from self._select(columns, f"{key} IN ({marks})", chunk, generation)

    def _select(
        self, columns: str, condition: str, values: Sequence[object], generation: int
    ) -> Iterator[tuple[Any, ...]]:
        """Return columns of some images; raise `RowsRenumbered` if their rows have new numbers.

        One statement sees one version of the catalogue, so it needs no transaction.
        """
        images = f"meta LEFT JOIN images ON {condition} WHERE key = 'generation'"
        found = self.execute(f"SELECT value, row, {columns} FROM {images}", *values)
        if not found or found[0][0] != generation:
            raise RowsRenumbered
        return (row[2:] for row in found if row[1] is not None)

    def check_generation(self, generation: int) -> None:
        if self._one("SELECT value FROM meta WHERE key = 'generation'") != (generation,):
            raise RowsRenumbered

    def at_path(self, path: str) -> ImageRecord | None:
        return self._find_record("live AND path = ?", os.fsencode(path))

    def was_removed(self, path: str) -> bool:
        return self._find_record("NOT live AND path = ?", os.fsencode(path)) is not None

    def with_content(self, content: bytes) -> ImageRecord | None:
        """Return an image whose file has this hash; a removed one if there is no other."""
        return self._find_record("content = ? ORDER BY live DESC, row", content)

    def below(self, path: str) -> Iterator[ImageRecord]:
        """Yield the image at a path, or all images below it if it is a folder, page by page."""
        name, low, high = path_bounds(path)
        select = f"SELECT {COLUMNS} FROM images WHERE live AND"
        yield from map(to_record, self.execute(f"{select} path = ?", name))
        query = f"{select} path > ? AND path < ? ORDER BY path LIMIT {_ROWS_AT_ONCE}"
        while page := list(map(to_record, self.execute(query, low, high))):
            yield from page
            low = os.fsencode(page[-1].path)

    def rows_where(self, condition: str, *values: object) -> Rows:
        query = f"SELECT row FROM images WHERE live AND {condition}"
        return np.fromiter(chain.from_iterable(self.execute(query, *values)), dtype=np.int64)

    def failures(self, *, below: Iterable[str]) -> dict[str, str]:
        """Return the files below some paths that could not be indexed the last time, and why."""
        query = f"SELECT path, error FROM failures WHERE {_BELOW}"
        return {
            os.fsdecode(path): error
            for folder in below
            for path, error in self.execute(query, *path_bounds(folder))
        }

    def images(self) -> Iterator[ImageRecord]:
        return filter(attrgetter("live"), self.records())

    def images_between(self, first: int, end: int) -> Iterator[ImageRecord]:
        query = f"SELECT {COLUMNS} FROM images WHERE live AND row >= ? AND row < ?"
        return map(to_record, self.execute(f"{query} ORDER BY row", first, end))

    def records(self) -> Iterator[ImageRecord]:
        return map(to_record, self.execute(f"SELECT {COLUMNS} FROM images ORDER BY row"))

    def problems(self) -> list[str]:
        """Return what is wrong with the database, and with what `meta` says about the gallery."""
        problems = [text for (text,) in self.execute("PRAGMA integrity_check") if text != "ok"]
        facts = dict(self.execute("SELECT key, value FROM meta"))
        if _checksum_of_constants(facts) != facts.get(CHECKSUM_KEYS[0]):
            problems.append("k1, b or another fact that never changes has changed")
        calibration = [facts.get(key) for key in CALIBRATION_KEYS]
        has_calibration = facts.keys() & {*CALIBRATION_KEYS, CHECKSUM_KEYS[1]}
        if has_calibration and _checksum(calibration) != facts.get(CHECKSUM_KEYS[1]):
            problems.append("what a weak and a strong hit is has changed")
        return problems

    def begin(self) -> None:
        """Start a transaction; other connections see its changes after `commit`."""
        self.execute("BEGIN IMMEDIATE")

    def records_at(self, paths: Sequence[str]) -> dict[str, ImageRecord]:
        """Return the images at some paths, by path."""
        records = self._find_records("live AND path", list(map(os.fsencode, paths)))
        return {record.path: record for record in records}

    def records_with(self, contents: Sequence[bytes]) -> dict[bytes, ImageRecord]:
        """Return what `with_content` returns for each hash, if it is an image."""
        return {record.content: record for record in self._find_records("content", contents)}

    def _find_records(self, condition: str, values: Sequence[bytes]) -> Iterator[ImageRecord]:
        """Return the images with any of some values; of two with the same one, the best is last."""
        marks = ", ".join("?" * len(values))
        query = f"SELECT {COLUMNS} FROM images WHERE {condition} IN ({marks})"
        return map(to_record, self.execute(f"{query} ORDER BY live, row DESC", *values))

    def insert(self, record: ImageRecord) -> None:
        values = (record.row, os.fsencode(record.path), *record[2:])
        marks = ", ".join("?" * len(values))
        self.execute(f"INSERT INTO images ({COLUMNS}) VALUES ({marks})", *values)

    def move(
        self, row: int, path: str, size: int, mtime_ns: int, metadata: Metadata | None
    ) -> None:
        """Change an image's path, time stamp or metadata; restore it if it was removed."""
        restored = "INSERT INTO changes (row, live) SELECT row, 1 FROM images "
        self.execute(restored + "WHERE row = ? AND NOT live", row)
        update = "UPDATE images SET path = ?, size = ?, mtime_ns = ?, live = 1 WHERE row = ?"
        self.execute(update, os.fsencode(path), size, mtime_ns, row)
        if metadata is not None:
            update = "UPDATE images SET width = ?, height = ?, taken = ? WHERE row = ?"
            self.execute(update, *metadata[:2], to_seconds(metadata.taken), row)

    def remove(self, row: int) -> None:
        """Remove an image; its row stays in the files until the gallery is compacted."""
        self.execute("UPDATE images SET live = 0 WHERE row = ?", row)
        self.execute("INSERT INTO changes (row, live) VALUES (?, 0)", row)

    def replace_failures(self, failures: Mapping[str, str], *, below: Iterable[str]) -> None:
        """Store the files below some paths that could not be indexed, in place of earlier ones."""
        for path in below:
            self.execute(f"DELETE FROM failures WHERE {_BELOW}", *path_bounds(path))
        for path, error in failures.items():
            self.execute("INSERT OR REPLACE INTO failures VALUES (?, ?)", os.fsencode(path), error)

    def renumber(self) -> None:
        """Delete the records of removed images and number the others from 0, in their order."""
        for statement in RENUMBER:
            self.execute(statement)

    def commit(self) -> None:
        """Make the transaction durable and visible to other connections."""
        self._check_identity()
        last = "SELECT max(number) FROM changes"
        self.execute(f"DELETE FROM changes WHERE number <= ({last}) - ?", CHANGES_KEPT)
        self.execute("COMMIT")

    def shrink(self) -> None:
        """Return freed space to the disk, if there is space to work in and no reader is active."""
        with self._mutex, suppress(sqlite3.Error):
            self.db.execute("VACUUM")
        self._empty_log()

    def _empty_log(self) -> None:
        with self._mutex, suppress(sqlite3.Error):
            self.db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def rollback(self) -> None:
        with self._mutex, suppress(sqlite3.Error):
            self.db.rollback()

    def set_vocabulary(self, source: str) -> None:
        self.execute("UPDATE meta SET value = ? WHERE key = 'vocabulary'", source)

    def _read_meta(self, db: sqlite3.Connection) -> Meta:
        entries = dict(db.execute("SELECT key, value FROM meta").fetchall())
        for key in (*_STATE_KEYS, *STATISTICS_KEYS):
            entries.pop(key, 0)  # not constant: see `state`
        version = entries.pop("format", None)
        if isinstance(version, int) and version > FORMAT:
            raise GalleryTooNew(
                f"{self._path.parent} was written by a newer bm25v: upgrade bm25v to open it"
            )
        types = {name: type(value) for name, value in entries.items()}
        if types != get_type_hints(Meta) or version != FORMAT:
            raise GalleryDamaged(f"{self._path} lacks required entries: run bm25v verify")
        meta = Meta(**entries)
        sizes = {k: n for k, n in entries.items() if isinstance(n, int) and not 0 < n < _LARGEST}
        if sizes:
            raise GalleryDamaged(f"{self._path} has impossible sizes {sizes}: restore a backup")
        try:
            meta.parameters  # noqa: B018 - raises an error for invalid ones
        except InvalidOption as error:
            raise GalleryDamaged(f"{self._path}: {error}; restore it from a backup") from error
        return meta

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Run an SQL statement; return all rows of its result."""
        with database_errors(self._path), self._mutex:
            return self.db.execute(statement, values).fetchall()

    def _one(self, query: str, *values: object) -> tuple[Any, ...]:
        columns = self.execute(query, *values)
        if not columns:
            raise GalleryDamaged(f"{self._path} lacks required entries: run bm25v verify")
        return columns[0]

    def _find_record(self, condition: str, value: bytes) -> ImageRecord | None:
        columns = self.execute(f"SELECT {COLUMNS} FROM images WHERE {condition} LIMIT 1", value)
        return to_record(columns[0]) if columns else None


def require_gallery(folder: Path) -> None:
    if not (folder / FILE_NAME).is_file():
        if folder.is_dir() and any(folder.iterdir()):
            raise GalleryNotFound(
                f"{folder} is a folder of other files, not a gallery: give the folder of one, such "
                f"as gallery.bm25v; `bm25v index {folder}` creates it"
            )
        raise GalleryNotFound(
            f"no gallery at {folder}: create one with `bm25v index FOLDER -g {folder}`, or in "
            "Python with Gallery.open_or_create"
        )


def _to_entries(statistics: Statistics) -> list[tuple[str, Any]]:
    df = statistics.df_v.astype("<i4").tobytes()
    values = (statistics.n, statistics.total_length, df)
    return list(zip(STATISTICS_KEYS, values, strict=True))


def _checksum_of_constants(facts: Mapping[str, Any]) -> int:
    """Return the checksum of what never changes; where the vocabulary is may change."""
    names = sorted({"format", *get_type_hints(Meta)} - {"vocabulary"})
    return _checksum([facts.get(name) for name in names])


def _checksum(values: Sequence[Any]) -> int:
    return zlib.crc32(json.dumps(values, default=repr).encode())


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
