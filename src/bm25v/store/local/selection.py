"""Which rows a filter selects; each condition reads one index of the catalogue.

So few images out of many cost no more.
"""

import os
import re
from collections.abc import Iterator
from itertools import filterfalse

import numpy as np

from bm25v.deadline import check_deadline
from bm25v.store.base import Rows
from bm25v.store.filters import (
    UNLIMITED,
    ImageFilter,
    folder_of_pattern,
    has_names,
    has_pattern,
    is_pattern,
    time_bounds,
)
from bm25v.store.local.catalog import Catalog, path_bounds
from bm25v.store.records import to_seconds

_PATHS_AT_ONCE = 10_000


def select_rows(catalog: Catalog, image_filter: ImageFilter) -> Rows:
    selections = []
    if image_filter.folders:
        patterns = tuple(filter(is_pattern, image_filter.folders))
        folders = filterfalse(is_pattern, image_filter.folders)
        selections.append([_rows_like(catalog, patterns), *(_rows_in(catalog, f) for f in folders)])
    if image_filter.names:
        selections.append([_rows_named(catalog, image_filter.names)])
    selections += [[catalog.rows_with(called.contents)] for called in image_filter.called]
    if image_filter.dates or image_filter.min_size or image_filter.max_size:
        selections.append(_rows_by_metadata(catalog, image_filter))
    if not selections:
        return catalog.rows_where("1")
    first, *others = (np.unique(np.concatenate(parts)) for parts in selections)
    for rows in others:
        first = np.intersect1d(first, rows, assume_unique=True)
    return first


def _rows_in(catalog: Catalog, folder: str) -> Rows:
    name, low, high = path_bounds(folder)
    at_path = catalog.rows_where("path = ?", name)
    return np.concatenate([at_path, catalog.rows_where("path > ? AND path < ?", low, high)])


def _rows_like(catalog: Catalog, patterns: tuple[str, ...]) -> Rows:
    """Return the rows whose paths match a pattern; each path is compared once, with all of them."""
    rows = []
    end = b""
    for low, high in sorted(map(_bounds_of_pattern, patterns)):
        if low >= end:  # else it is in a folder that was read already
            paths = _read_paths(catalog, low, high, {_to_glob(pattern) for pattern in patterns})
            rows += [row for row, path in paths if has_pattern(os.fsdecode(path), patterns)]
            end = high
    return np.array(rows, dtype=np.int64)


def _rows_named(catalog: Catalog, names: tuple[str, ...]) -> Rows:
    """Return the rows whose paths have some names; SQLite leaves out most of the others."""
    contains = " AND ".join(["instr(lower(CAST(path AS TEXT)), ?)"] * len(names))
    query = f"SELECT row, path FROM images WHERE live AND {contains}"
    # SQLite knows upper and lower case of ASCII only.
    found = catalog.execute(query, *("".join(re.findall("^[ -~]*", name)) for name in names))
    rows = [row for row, path in found if has_names(os.fsdecode(path), names)]
    return np.array(rows, dtype=np.int64)


def _bounds_of_pattern(pattern: str) -> tuple[bytes, bytes]:
    folder = folder_of_pattern(pattern)
    return path_bounds(folder)[1:] if folder else (b"", b"\xff" * 8)


def _to_glob(pattern: str) -> str:
    """Return the plain characters that a path must have, as SQLite looks for them."""
    plain = r"[^*?/\\\[\x00-\x1f\x7f-\U0010ffff\udc80-\udcff]+"
    return f"*{'*'.join(re.findall(plain, pattern.removeprefix('./')))}*"


def _read_paths(
    catalog: Catalog, low: bytes, high: bytes, globs: set[str]
) -> Iterator[tuple[int, bytes]]:
    """Yield rows and paths within bounds, page by page; SQLite leaves out most of the others."""
    matches = " OR ".join(["CAST(path AS TEXT) GLOB ?"] * len(globs))
    query = f"SELECT row, path FROM images WHERE live AND path >= ? AND path < ? AND ({matches})"
    query += f" ORDER BY path LIMIT {_PATHS_AT_ONCE}"
    while page := catalog.execute(query, low, high, *globs):
        check_deadline()
        yield from page
        low = page[-1][1] + b"\0"  # the first that is greater


def _rows_by_metadata(catalog: Catalog, image_filter: ImageFilter) -> list[Rows]:
    sizes = ""
    values: list[int] = []
    for sign, size in ((">=", image_filter.min_size), ("<=", image_filter.max_size)):
        if size is not None:
            sizes += f" AND width {sign} ? AND height {sign} ?"
            values += size
    if not image_filter.dates:
        return [catalog.rows_where(f"1{sizes}", *values)]
    by_file = f"taken IS NULL AND mtime_ns >= ? AND mtime_ns < ?{sizes}"
    rows = []
    for dates in image_filter.dates:
        start, end = to_seconds(dates.start), to_seconds(dates.end)
        camera = (-UNLIMITED if start is None else start, UNLIMITED if end is None else end)
        rows.append(catalog.rows_where(f"taken >= ? AND taken < ?{sizes}", *camera, *values))
        rows.append(catalog.rows_where(by_file, *time_bounds(dates), *values))
    return rows
