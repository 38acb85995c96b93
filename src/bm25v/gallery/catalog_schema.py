"""The tables of the catalogue: their columns and indexes, and how older formats become this one.

Values only, for `catalog`. A change here is a new format: add its number, an entry in `UPGRADES`
and a golden gallery in `tests/compat`.
"""

from bm25v.index.bm25 import Bm25Parameters

FILE_NAME = "catalog.sqlite"
FORMAT = 6

METADATA_FORMAT = 4  # the first with dates, sizes and known failures
# Since format 5, in `meta`: full bags and their statistics, and the scores of weak and strong hits.
FULL_KEYS = ("full_k", "full_patches", "full_rows")
STATISTICS_KEYS = ("full_images", "full_length", "full_df")
CALIBRATION_KEYS = ("hit_weak", "hit_strong", "hit_images", "hit_change")
# Since format 6, in `meta`: the second backbone of dense vectors, or empty texts.
SECOND_FORMAT = 6
SECOND_KEYS = ("second_backbone", "second_fingerprint")

OLD_PARAMETERS = Bm25Parameters(k1=1.5, b=0.75)  # of formats 1 and 2, which do not store them
COLUMNS = "row, path, content, size, mtime_ns, checksum, live, width, height, taken"
_METADATA_COLUMNS = ("width", "height", "taken")
OLD_COLUMNS = "row, path, content, size, mtime_ns, checksum, live, NULL, NULL, NULL"
_CREATE_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"
_CREATE_IMAGES = """CREATE TABLE pictures (
    row INTEGER PRIMARY KEY,    -- of the bag and of the dense vector
    path BLOB NOT NULL,         -- bytes, because file names need not be text
    content BLOB NOT NULL,      -- hash of the file
    size INTEGER NOT NULL,
    mtime_ns INTEGER NOT NULL,
    checksum INTEGER NOT NULL,  -- of the two rows
    live INTEGER NOT NULL,      -- 0 after removal; kept for readers of older snapshots
    width INTEGER,              -- in pixels; NULL if an older format did not store it
    height INTEGER,
    taken INTEGER               -- EXIF date, in seconds of the camera's clock; NULL if none
)"""
# An index that has the column `live` answers a query by itself, without a look at the table.
_CREATE_INDEXES = (
    "CREATE UNIQUE INDEX live_path ON pictures (path, live) WHERE live",
    "CREATE INDEX content ON pictures (content)",
)
# Since format 2: readers follow changes without reading everything again.
_CREATE_REMOVED_INDEX = "CREATE INDEX removed ON pictures (row) WHERE NOT live"
_CREATE_CHANGES = """CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    row INTEGER NOT NULL,       -- removed or restored; a new row needs no entry
    live INTEGER NOT NULL
)"""
# Since format 4: filters by date and size read this index alone; failures that are known already.
_CREATE_METADATA_INDEX = (
    "CREATE INDEX metadata ON pictures (taken, mtime_ns, width, height, live) WHERE live"
)
_CREATE_FAILURES = """CREATE TABLE failures (
    path BLOB PRIMARY KEY,      -- of a file that could not be indexed
    error TEXT NOT NULL
) WITHOUT ROWID"""
CREATE = (
    _CREATE_META,
    _CREATE_IMAGES,
    _CREATE_CHANGES,
    _CREATE_FAILURES,
    *_CREATE_INDEXES,
    _CREATE_REMOVED_INDEX,
    _CREATE_METADATA_INDEX,
    f"INSERT INTO meta VALUES ('format', {FORMAT}), ('generation', 0)",
)
UPGRADES = {  # from the format that is the key to the next one
    1: (_CREATE_CHANGES, _CREATE_REMOVED_INDEX, "INSERT INTO meta VALUES ('generation', 0)"),
    2: (f"INSERT INTO meta VALUES ('k1', {OLD_PARAMETERS.k1}), ('b', {OLD_PARAMETERS.b})",),
    3: (
        *(f"ALTER TABLE pictures ADD COLUMN {name} INTEGER" for name in _METADATA_COLUMNS),
        "DROP INDEX live_path",
        _CREATE_INDEXES[0],
        _CREATE_METADATA_INDEX,
        _CREATE_FAILURES,
    ),
    4: (),  # `indexing` adds the full bags, image by image
    5: ("INSERT INTO meta VALUES ('second_backbone', ''), ('second_fingerprint', '')",),
}
RENUMBER = (
    "ALTER TABLE pictures RENAME TO old",
    _CREATE_IMAGES,
    f"INSERT INTO pictures ({COLUMNS}) "
    f"SELECT row_number() OVER (ORDER BY row) - 1, {COLUMNS.removeprefix('row, ')} "
    "FROM old WHERE live ORDER BY row",
    "DROP TABLE old",
    *_CREATE_INDEXES,
    _CREATE_REMOVED_INDEX,
    _CREATE_METADATA_INDEX,
    "DELETE FROM changes",
    "UPDATE meta SET value = value + 1 WHERE key = 'generation'",
)
