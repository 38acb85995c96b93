"""The catalogue: which images a gallery has, and the row of each.

Its transaction is the commit of the whole gallery: a row that no live record names does not exist.
"""

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import numpy as np

from bm25v.errors import GalleryDamaged, GalleryNotFound, GalleryTooNew
from bm25v.index.bm25 import Statistics
from bm25v.schema import SchemaError, check_values, whole
from bm25v.store.base import Rows
from bm25v.store.files import FileState
from bm25v.store.local.database import FILE_NAME as FILE_NAME  # exported
from bm25v.store.local.database import Database, database_errors
from bm25v.store.meta import Meta, parse_meta
from bm25v.store.records import Calibration, ImageRecord, file_date, to_seconds

FORMAT = 1  # a change of the tables is a new one, with a golden gallery of its own

_STATISTICS_KEYS = ("full_images", "full_length", "full_df")  # in `meta`, of full bags
_CALIBRATION_KEYS = ("hit_weak", "hit_strong", "hit_images", "hit_change")  # in `meta`
_CHECKSUM_KEYS = ("checksum", "hit_checksum")  # in `meta`: of what is constant, of the calibration
_COLUMNS = "row, path, content, size, mtime_ns, checksum, live, width, height, taken"

_STATE_KEYS = ("generation", *_CALIBRATION_KEYS, *_CHECKSUM_KEYS)
_BELOW = "path = ? OR path > ? AND path < ?"  # with `path_bounds`
_SEPARATOR = os.fsencode(os.sep)
_ROWS_AT_ONCE = 1_000  # SQLite limits the values of a query
CHANGES_KEPT = 1_000_000  # a reader that is further behind reads the whole gallery again

_CREATE_IMAGES = """CREATE TABLE images (
    row INTEGER PRIMARY KEY,    -- of the bag, the dense vector and the full bag
    path BLOB NOT NULL,         -- bytes, because file names need not be text
    content BLOB NOT NULL,      -- hash of the file
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    checksum INTEGER NOT NULL,  -- of the three rows
    live INTEGER NOT NULL,      -- 0 after removal; kept for readers of older snapshots
    width INTEGER,              -- in pixels; NULL if it is not known
    height INTEGER,
    taken INTEGER               -- EXIF date, in seconds of the camera's clock; NULL if none
)"""
# An index that has the column `live` answers a query by itself, without a look at the table.
# Filters by date and size read the index `metadata` alone.
_CREATE_INDEXES = (
    "CREATE UNIQUE INDEX live_path ON images (path, live) WHERE live",
    "CREATE INDEX content ON images (content)",
    "CREATE INDEX removed ON images (row) WHERE NOT live",
    "CREATE INDEX metadata ON images (taken, mtime_ns, width, height, live) WHERE live",
)
_CREATE = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID",
    _CREATE_IMAGES,
    # Readers follow changes without reading everything again.
    """CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    row INTEGER NOT NULL,       -- removed or restored; a new row needs no entry
    live INTEGER NOT NULL
)""",
    """CREATE TABLE failures (
    path BLOB PRIMARY KEY,      -- of a file that could not be indexed
    error TEXT NOT NULL
) WITHOUT ROWID""",
    *_CREATE_INDEXES,
    f"INSERT INTO meta VALUES ('format', {FORMAT}), ('generation', 0)",
)
_RENUMBER = (
    "ALTER TABLE images RENAME TO old",
    _CREATE_IMAGES,
    f"INSERT INTO images ({_COLUMNS}) "
    f"SELECT row_number() OVER (ORDER BY row) - 1, {_COLUMNS.removeprefix('row, ')} "
    "FROM old WHERE live ORDER BY row",
    "DROP TABLE old",
    *_CREATE_INDEXES,
    "DELETE FROM changes",
    "UPDATE meta SET value = value + 1 WHERE key = 'generation'",
)


class RowsRenumbered(Exception):
    """The gallery was compacted: rows of an older snapshot have other numbers now."""


class State(NamedTuple):
    """Which version of the gallery a transaction sees."""

    generation: int  # how many times rows were renumbered
    n_rows: int  # with those of removed images
    last_change: int  # the newest entry of `changes`
    forgotten: int = 0  # changes up to this one are no longer listed
    calibration: Calibration | None = None


class Catalog(Database):
    """One connection to a gallery's catalogue.

    What takes a `generation` raises `RowsRenumbered` if the gallery has another one.
    """

    meta: Meta

    def __init__(self, path: Path, *, write: bool = False) -> None:
        require_gallery(path.parent)
        super().__init__(path, write=write)

    @staticmethod
    def create(path: Path, meta: Meta) -> None:
        entries = [
            *vars(meta).items(),
            *_to_entries(Statistics.empty(meta.n_words)),
            (_CHECKSUM_KEYS[0], _checksum_of_constants({"format": FORMAT, **vars(meta)})),
        ]
        with database_errors(path), closing(sqlite3.connect(path)) as db, db:
            db.execute("PRAGMA journal_mode = WAL")
            for statement in _CREATE:
                db.execute(statement)
            db.executemany("INSERT INTO meta VALUES (?, ?)", entries)

    def _read_constants(self, db: sqlite3.Connection) -> None:
        query = f"SELECT key, value FROM meta WHERE key NOT IN {_STATISTICS_KEYS}"
        entries = dict(db.execute(query).fetchall())
        version = entries.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise GalleryTooNew(
                f"{self.path.parent} was written by a newer bm25v: upgrade bm25v to open it"
            )
        try:
            check_values(entries, {"format": whole(FORMAT, FORMAT)})
            self.meta = parse_meta(entries)
        except SchemaError as error:
            raise GalleryDamaged(f"{self.path}: {error}; restore it from a backup") from error

    @contextmanager
    def transaction(self, generation: int | None = None) -> Iterator[None]:
        """Make everything that is read within come from one version of the gallery."""
        with self._mutex:
            self.execute("BEGIN")
            try:
                query = "SELECT value FROM meta WHERE key = 'generation'"
                if generation is not None and self.execute(query) != [(generation,)]:
                    raise RowsRenumbered
                yield
            finally:
                self.rollback()

    def state(self) -> State:
        ((n_rows,),) = self.execute("SELECT coalesce(max(row), -1) + 1 FROM images")
        facts = dict(self.execute(f"SELECT key, value FROM meta WHERE key IN {_STATE_KEYS}"))
        generation = facts.get("generation")
        if not isinstance(generation, int):
            raise GalleryDamaged(f"{self.path} lacks required entries: run bm25v verify")
        newest = "SELECT seq FROM sqlite_sequence WHERE name = 'changes'"
        ((last,),) = self.execute(f"SELECT coalesce(({newest}), 0)")
        ((forgotten,),) = self.execute("SELECT coalesce(min(number) - 1, ?) FROM changes", last)
        return State(generation, n_rows, last, forgotten, _to_calibration(facts))

    def full_statistics(self) -> Statistics:
        query = f"SELECT key, value FROM meta WHERE key IN {_STATISTICS_KEYS}"
        match [dict(self.execute(query)).get(key) for key in _STATISTICS_KEYS]:
            case [int(n), int(total_length), bytes(df)] if len(df) == 4 * self.meta.n_words:
                df_v = np.frombuffer(df, "<i4").astype(np.int64)
                if total_length >= 0 and df_v.min() >= 0 and df_v.max() <= n:
                    return Statistics(n, df_v, total_length)
        raise GalleryDamaged(f"{self.path} has no valid statistics: run bm25v verify")

    def changes_since(self, number: int) -> tuple[Rows, Rows]:
        """Return the rows that were removed since a change, and those that were restored."""
        query = "SELECT row, live FROM changes WHERE number > ? ORDER BY number"
        last = dict(self.execute(query, number))  # a row's last change decides
        removed = [row for row, live in last.items() if not live]
        return _to_rows(removed), _to_rows([row for row, live in last.items() if live])

    def removed_rows(self) -> Rows:
        columns = self.execute("SELECT row FROM images WHERE NOT live ORDER BY row")
        return _to_rows([row for (row,) in columns])

    def is_live(self, row: int) -> bool:
        return bool(self.execute("SELECT row FROM images WHERE live AND row = ?", row))

    def rows_where(self, condition: str, *values: object) -> Rows:
        query = f"SELECT row FROM images WHERE live AND {condition}"
        return np.fromiter(chain.from_iterable(self.execute(query, *values)), dtype=np.int64)

    def rows_with(self, contents: Sequence[bytes]) -> Rows:
        return _to_rows([row for (row,) in self._select_in("row", "live AND content", contents)])

    def rows_of(self, paths: Sequence[str], contents: Sequence[bytes], generation: int) -> Rows:
        """Return the rows of images at some paths, and of those with some contents."""
        keys = (*map(os.fsencode, paths), *contents)
        columns = {"live AND path": paths, "content": contents}
        # With an empty list, SQLite would read the whole table.
        condition = " OR ".join(
            f"{column} IN ({', '.join('?' * len(values))})"
            for column, values in columns.items()
            if values
        )
        return _to_rows([row for (row,) in self._select("row", condition, keys, generation)])

    def paths_of(self, rows: list[int], generation: int) -> list[str]:
        """Return the paths of rows, also of removed ones."""
        paths = dict(self._select_in("row, path", "row", rows, generation))
        if not all(isinstance(paths.get(row), bytes) for row in rows):
            raise GalleryDamaged(f"{self.path} lacks paths of images: run bm25v verify")
        return [os.fsdecode(paths[row]) for row in rows]

    def all_paths(self, generation: int) -> dict[int, str]:
        """Return the path of each row, also of removed ones."""
        columns = self._select("row, path", "1", (), generation)
        return {row: os.fsdecode(path) for row, path in columns}

    def all_dates(self, generation: int) -> dict[int, int]:
        """Return the date of each row, also of removed ones, in seconds of a local clock."""
        columns = self._select("row, taken, mtime_ns", "1", (), generation)
        return {
            row: int(to_seconds(file_date(mtime_ns)) or 0) if taken is None else taken
            for row, taken, mtime_ns in columns
        }

    def contents_of(self, rows: list[int], generation: int) -> dict[int, bytes]:
        """Return the hash of the file of each row, also of removed ones."""
        return dict(self._select_in("row, content", "row", rows, generation))

    def with_rows(self, rows: list[int], generation: int) -> list[ImageRecord]:
        """Return the images of some rows, ascending."""
        columns = self._select_in(_COLUMNS, "live AND row", rows, generation)
        return sorted(map(_to_record, columns))

    def at_paths(
        self, paths: Iterable[str], generation: int | None = None
    ) -> dict[str, ImageRecord]:
        """Return the images at some paths, as far as there are any."""
        keys = list(dict.fromkeys(map(os.fsencode, paths)))
        columns = self._select_in(_COLUMNS, "live AND path", keys, generation)
        return {record.path: record for record in map(_to_record, columns)}

    def at_path(self, path: str) -> ImageRecord | None:
        return next(self._records("live AND path = ?", os.fsencode(path)), None)

    def with_content(self, content: bytes) -> ImageRecord | None:
        """Return the first image whose file has this hash; a removed one if there is no other."""
        return next(self._records("content = ? ORDER BY live DESC, row LIMIT 1", content), None)

    def with_contents(self, contents: Sequence[bytes]) -> dict[bytes, ImageRecord]:
        """Return what `with_content` returns, for each hash that is known."""
        records = map(_to_record, self._select_in(_COLUMNS, "content", contents))
        best_last = sorted(records, key=lambda record: (record.live, -record.row))
        return {record.content: record for record in best_last}

    def below(self, path: str) -> Iterator[ImageRecord]:
        """Yield the image at a path, or all images below it if it is a folder, page by page."""
        name, low, high = path_bounds(path)
        yield from self._records("live AND path = ?", name)
        next_page = f"live AND path > ? AND path < ? ORDER BY path LIMIT {_ROWS_AT_ONCE}"
        while page := list(self._records(next_page, low, high)):
            yield from page
            low = os.fsencode(page[-1].path)

    def images(self, first: int = 0, end: int = 2**63 - 1) -> Iterator[ImageRecord]:
        """Return the images of all rows, or of those from a first one up to an end."""
        return self._records("live AND row >= ? AND row < ? ORDER BY row", first, end)

    def records(self) -> Iterator[ImageRecord]:
        """Return the images of all rows, also removed ones."""
        return self._records("1 ORDER BY row")

    def _records(self, condition: str, *values: object) -> Iterator[ImageRecord]:
        return map(_to_record, self._select(_COLUMNS, condition, values))

    def _select_in(
        self, columns: str, key: str, values: Sequence[object], generation: int | None = None
    ) -> Iterator[tuple[Any, ...]]:
        for start in range(0, len(values), _ROWS_AT_ONCE):
            chunk = values[start : start + _ROWS_AT_ONCE]
            marks = ", ".join("?" * len(chunk))
            yield from self._select(columns, f"{key} IN ({marks})", chunk, generation)

    def _select(
        self,
        columns: str,
        condition: str,
        values: Sequence[object],
        generation: int | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return columns of some images.

        One statement sees one version of the catalogue, so it needs no transaction.
        """
        if generation is None:
            return self.execute(f"SELECT {columns} FROM images WHERE {condition}", *values)
        images = f"meta LEFT JOIN images ON {condition} WHERE key = 'generation'"
        selected = self.execute(f"SELECT value, row, {columns} FROM {images}", *values)
        if not selected or selected[0][0] != generation:
            raise RowsRenumbered
        return [row[2:] for row in selected if row[1] is not None]

    def failures(self, *, below: Iterable[str]) -> dict[str, str]:
        """Return the files below some paths that could not be indexed the last time, and why."""
        query = f"SELECT path, error FROM failures WHERE {_BELOW}"
        return {
            os.fsdecode(path): error
            for folder in below
            for path, error in self.execute(query, *path_bounds(folder))
        }

    def problems(self) -> list[str]:
        """Return what is wrong with the database, and with what `meta` says about the gallery."""
        problems = [text for (text,) in self.execute("PRAGMA integrity_check") if text != "ok"]
        facts = dict(self.execute("SELECT key, value FROM meta"))
        if _checksum_of_constants(facts) != facts.get(_CHECKSUM_KEYS[0]):
            problems.append("k1, b or another fact that never changes has changed")
        calibration = [facts.get(key) for key in _CALIBRATION_KEYS]
        has_calibration = facts.keys() & {*_CALIBRATION_KEYS, _CHECKSUM_KEYS[1]}
        if has_calibration and _checksum(calibration) != facts.get(_CHECKSUM_KEYS[1]):
            problems.append("what a weak and a strong hit is has changed")
        return problems

    def insert(self, record: ImageRecord) -> None:
        values = (record.row, os.fsencode(record.path), *record[2:])
        marks = ", ".join("?" * len(values))
        self.execute(f"INSERT INTO images ({_COLUMNS}) VALUES ({marks})", *values)

    def move(self, row: int, file: FileState) -> None:
        """Change an image's path, time stamp or metadata; restore it if it was removed."""
        restored = "INSERT INTO changes (row, live) SELECT row, 1 FROM images "
        self.execute(restored + "WHERE row = ? AND NOT live", row)
        update = "UPDATE images SET path = ?, size = ?, mtime_ns = ?, live = 1 WHERE row = ?"
        self.execute(update, os.fsencode(file.path), file.size, file.mtime_ns, row)
        if file.metadata is not None:
            update = "UPDATE images SET width = ?, height = ?, taken = ? WHERE row = ?"
            self.execute(update, *file.to_record(row, 0)[-3:], row)

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

    def set_vocabulary(self, source: str) -> None:
        self._set_facts([("vocabulary", source)])

    def set_calibration(self, calibration: Calibration) -> None:
        values = (*calibration, _checksum(calibration))
        self._set_facts(zip((*_CALIBRATION_KEYS, _CHECKSUM_KEYS[1]), values, strict=True))

    def set_full_statistics(self, statistics: Statistics) -> None:
        self._set_facts(_to_entries(statistics))

    def _set_facts(self, entries: Iterable[tuple[str, Any]]) -> None:
        for entry in entries:
            self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", *entry)

    def renumber(self) -> None:
        """Delete the records of removed images and number the others from 0, in their order."""
        for statement in _RENUMBER:
            self.execute(statement)

    def begin(self) -> None:
        """Start a transaction; other connections see its changes after `commit`."""
        self.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """Make the transaction durable and visible to other connections."""
        self._check_identity()
        last = "SELECT max(number) FROM changes"
        self.execute(f"DELETE FROM changes WHERE number <= ({last}) - ?", CHANGES_KEPT)
        self.execute("COMMIT")


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


def path_bounds(path: str) -> tuple[bytes, bytes, bytes]:
    """Return a path as it is stored, and the bounds between which everything in the folder is."""
    name = os.fsencode(path).rstrip(_SEPARATOR)
    return name, name + _SEPARATOR, name + bytes([_SEPARATOR[0] + 1])


def _to_entries(statistics: Statistics) -> list[tuple[str, Any]]:
    df = statistics.df_v.astype("<i4").tobytes()
    values = (statistics.n, statistics.total_length, df)
    return list(zip(_STATISTICS_KEYS, values, strict=True))


def _checksum_of_constants(facts: Mapping[str, Any]) -> int:
    """Return the checksum of what never changes; where the vocabulary is may change."""
    names = sorted({"format", *get_type_hints(Meta)} - {"vocabulary"})
    return _checksum([facts.get(name) for name in names])


def _checksum(values: Sequence[Any]) -> int:
    return zlib.crc32(json.dumps(values, default=repr).encode())


def _to_calibration(facts: Mapping[str, Any]) -> Calibration | None:
    match [facts.get(key) for key in _CALIBRATION_KEYS]:
        case [float(weak_below), float(strong_from), int(n_images), int(last_change)]:
            return Calibration(weak_below, strong_from, n_images, last_change)
    return None  # it is a help, not content


def _to_rows(rows: list[Any]) -> Rows:
    if not all(isinstance(row, int) for row in rows):
        raise GalleryDamaged("the catalogue has rows that are not numbers: run bm25v verify")
    return np.array(rows, dtype=np.int64)


def _to_record(columns: tuple[Any, ...]) -> ImageRecord:
    row, path, content, size, mtime_ns, checksum, live, *metadata = columns
    if not isinstance(path, bytes):
        raise GalleryDamaged(f"row {row} has no path in the catalogue: run bm25v verify")
    file = (os.fsdecode(path), content, size, mtime_ns)
    return ImageRecord(row, *file, checksum, bool(live), *metadata)
