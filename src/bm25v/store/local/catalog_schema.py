"""The tables of the catalogue. A change here is a new format, with a golden gallery of its own."""

FILE_NAME = "catalog.sqlite"
FORMAT = 1

STATISTICS_KEYS = ("full_images", "full_length", "full_df")  # in `meta`, of full bags
CALIBRATION_KEYS = ("hit_weak", "hit_strong", "hit_images", "hit_change")  # in `meta`
CHECKSUM_KEYS = ("checksum", "hit_checksum")  # in `meta`: of what is constant, of the calibration
COLUMNS = "row, path, content, size, mtime_ns, checksum, live, width, height, taken"

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
CREATE = (
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
RENUMBER = (
    "ALTER TABLE images RENAME TO old",
    _CREATE_IMAGES,
    f"INSERT INTO images ({COLUMNS}) "
    f"SELECT row_number() OVER (ORDER BY row) - 1, {COLUMNS.removeprefix('row, ')} "
    "FROM old WHERE live ORDER BY row",
    "DROP TABLE old",
    *_CREATE_INDEXES,
    "DELETE FROM changes",
    "UPDATE meta SET value = value + 1 WHERE key = 'generation'",
)
