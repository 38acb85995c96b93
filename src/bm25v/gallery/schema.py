"""The tables of a catalogue: how they are made, brought up to date, and written anew."""

FORMAT = 2

COLUMNS = "row, path, content, size, mtime_ns, checksum, live"

_META = "CREATE TABLE meta (key TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID"
_PICTURES = """CREATE TABLE pictures (
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
_CHANGES = """CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    row INTEGER NOT NULL,       -- removed or put back; new rows are simply the next ones
    live INTEGER NOT NULL
)"""

CREATE = (
    _META,
    _PICTURES,
    _CHANGES,
    *_INDEXES,
    _REMOVED_INDEX,
    f"INSERT INTO meta VALUES ('format', {FORMAT}), ('generation', 0)",
)

UPGRADE = (  # from format 1
    _CHANGES,
    _REMOVED_INDEX,
    "INSERT INTO meta VALUES ('generation', 0)",
    f"UPDATE meta SET value = {FORMAT} WHERE key = 'format'",
)

RENUMBER = (  # forgets removed pictures and numbers the others from 0 on, in their order
    "ALTER TABLE pictures RENAME TO old",
    _PICTURES,
    f"INSERT INTO pictures ({COLUMNS}) "
    f"SELECT row_number() OVER (ORDER BY row) - 1, {COLUMNS.removeprefix('row, ')} "
    "FROM old WHERE live ORDER BY row",
    "DROP TABLE old",
    *_INDEXES,
    _REMOVED_INDEX,
    "DELETE FROM changes",
    "UPDATE meta SET value = value + 1 WHERE key = 'generation'",
)
