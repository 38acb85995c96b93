"""The filters of a query as conditions on the payload of points.

Every condition that Qdrant knows is checked there, exactly. Patterns of paths it does not know: the
paths are read, and those that match become a list of ids.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from qdrant_client import models

from bm25v.store.base import Filter
from bm25v.store.filters import (
    ImageFilter,
    folder_of_pattern,
    has_names,
    has_pattern,
    is_pattern,
    time_bounds,
)
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import FOLDERS, WORDS, point_id, read_path, to_text
from bm25v.store.records import to_seconds


def select(images: ImageFilter, calls: Calls) -> models.Filter | None:
    """Return the conditions of a filter by folder, date and size; None if there are none."""
    if not images:
        return None
    must: list[Any] = []
    if images.folders:
        must.append(models.Filter(should=_in_folders(images.folders, calls)))
    if images.names:
        must.append(_with_paths(calls, lambda path: has_names(path, images.names)))
    for size, side in ((images.min_size, "gte"), (images.max_size, "lte")):
        if size is not None:
            must += [
                _range(key, **{side: n}) for key, n in zip(("width", "height"), size, strict=True)
            ]
    if images.dates:
        has_no_date = models.IsEmptyCondition(is_empty=models.PayloadField(key="taken"))
        periods: list[Any] = []
        for dates in images.dates:
            by_file = [bound // 10**9 for bound in time_bounds(dates)]
            by_time: list[Any] = [has_no_date, _range("seconds", gte=by_file[0], lt=by_file[1])]
            taken = (to_seconds(dates.start), to_seconds(dates.end))
            periods += [_range("taken", gte=taken[0], lt=taken[1]), models.Filter(must=by_time)]
        must.append(models.Filter(should=periods))
    return models.Filter(must=must)


def allow(condition: Filter, selected: models.Filter | None) -> models.Filter | None:
    """Return everything that a query rules out as conditions; None if that is nothing.

    `selected` are the conditions of its folders, dates and sizes.
    """
    must: list[Any] = [_has(WORDS, group) for group in condition.must]
    must_not: list[Any] = [_has(WORDS, [word]) for word in condition.without]
    if selected is not None:
        must.append(selected)
    if condition.own_paths:
        must_not.append(models.HasIdCondition(has_id=list(map(point_id, condition.own_paths))))
    if condition.own_contents:
        contents = sorted(content.hex() for content in condition.own_contents)
        must_not.append(_has("content", contents))
    return models.Filter(must=must or None, must_not=must_not or None) if condition else None


def at_or_below(paths: Sequence[str]) -> list[Any]:
    ids: list[Any] = [point_id(path) for path in paths]
    return [_has(FOLDERS, list(map(to_text, paths))), models.HasIdCondition(has_id=ids)]


def with_any_word(words: Sequence[int], others: models.Filter | None = None) -> models.Filter:
    more = [] if others is None else [others]
    return models.Filter(must=[_has(WORDS, list(words)), *more])


def _in_folders(folders: Sequence[str], calls: Calls) -> list[Any]:
    plain = [name.rstrip(os.sep) for name in folders if not is_pattern(name)]
    conditions: list[Any] = at_or_below(plain) if plain else []
    for pattern in filter(is_pattern, folders):
        folder = folder_of_pattern(pattern)
        below = models.Filter(must=[_has(FOLDERS, [to_text(folder)])]) if folder else None
        conditions.append(_with_paths(calls, partial(_matches, pattern), below))
    return conditions


def _matches(pattern: str, path: str) -> bool:
    return has_pattern(path, pattern)


def _with_paths(
    calls: Calls, accepts: Callable[[str], bool], among: models.Filter | None = None
) -> models.HasIdCondition:
    """Return a condition for the images whose paths are accepted; all paths are read."""
    ids: list[Any] = [
        record.id
        for records in calls.scroll(among, ["path", "bytes"])
        for record in records
        if accepts(read_path(record.payload))
    ]
    return models.HasIdCondition(has_id=ids)


def _has(key: str, values: Sequence[Any]) -> models.FieldCondition:
    return models.FieldCondition(key=key, match=models.MatchAny(any=list(values)))


def _range(key: str, **bounds: int | None) -> models.FieldCondition:
    return models.FieldCondition(key=key, range=models.Range(**bounds))
