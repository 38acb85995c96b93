"""Which images a search or a list is limited to: by folder or pattern, date and size."""

import operator
import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any, NamedTuple

from bm25v.display import display_path
from bm25v.errors import InvalidQuery
from bm25v.images import matches_pattern

PathInput = str | os.PathLike[str]
Size = int | tuple[int, int]
Moment = str | date  # also a datetime, which is a date
Period = Moment | tuple[Moment | None, Moment | None]

UNLIMITED = 2**63 - 1

_MOMENT = re.compile(
    r"(\d{4})(?:-(\d\d?)(?:-(\d\d?)(?:[T ](\d\d?)(?::(\d\d)(?::(\d\d)(?:\.\d+)?)?)?)?)?)?"
)
_UNITS = ("year", "month", "day", "hour", "minute", "second")
_MAX_WILDCARDS, _MAX_PATTERNS = 64, 4_096  # as each path is compared with all patterns
_FIRST_YEAR, _LAST_YEAR = 1900, 2200  # of file times, which are 64-bit numbers of nanoseconds


class DateRange(NamedTuple):
    """From a start on, and before an end; None leaves a side open."""

    start: datetime | None
    end: datetime | None
    text: str  # as it was given


class Called(NamedTuple):
    """Images that people gave a name, by the hashes of their contents."""

    name: str
    contents: tuple[bytes, ...]


@dataclass(frozen=True)
class ImageFilter:
    """Conditions that an image must meet, all of them; of several folders it must be in one."""

    folders: tuple[str, ...] = ()  # absolute paths, ids, or patterns
    dates: tuple[DateRange, ...] = ()  # in one of them
    names: tuple[str, ...] = ()  # in lower case: whole words that the path has, all of them
    called: tuple[Called, ...] = ()  # names that people gave it, all of them
    min_size: tuple[int, int] | None = None
    max_size: tuple[int, int] | None = None

    @classmethod
    def of(
        cls,
        *,
        folder: PathInput | Iterable[PathInput] | None = None,
        date: Period | None = None,
        min_size: Size | None = None,
        max_size: Size | None = None,
    ) -> "ImageFilter":
        """Return a filter; raise `InvalidQuery` for values that have no meaning.

        >>> images = ImageFilter.of(folder="/photos/2023", date="2023-06", min_size=800)
        >>> images.dates[0].start, images.dates[0].end
        (datetime.datetime(2023, 6, 1, 0, 0), datetime.datetime(2023, 7, 1, 0, 0))
        >>> images.describe()
        'in /photos/2023, dated 2023-06, at least 800 × 800 pixels'
        """
        names = [folder] if isinstance(folder, str | os.PathLike) else [*(folder or ())]
        patterns = "".join(name for name in map(str, names) if is_pattern(name))
        n_wildcards = patterns.count("*") + patterns.count("?")
        if n_wildcards > _MAX_WILDCARDS or len(patterns) > _MAX_PATTERNS:
            raise InvalidQuery(
                f"folder: {n_wildcards:,} wildcards in {len(patterns):,} characters of patterns; "
                f"give at most {_MAX_WILDCARDS} in {_MAX_PATTERNS:,}"
            )
        return cls(
            tuple(path for name in names for path in _check_folder(name)),
            () if date is None else (parse_period(date),),
            min_size=_check_size("min_size", min_size),
            max_size=_check_size("max_size", max_size),
        )

    def __bool__(self) -> bool:
        return self != ImageFilter()

    def describe(self) -> str:
        """Return the conditions as they are read after "an image"."""
        parts = []
        if self.folders:
            parts.append("in " + " or ".join(dict.fromkeys(map(display_path, self.folders))))
        if self.names:
            parts.append(
                "with " + " and ".join(f"“{name}”" for name in self.names) + " in its path"
            )
        if self.called:
            parts.append("called " + " and ".join(f"“{called.name}”" for called in self.called))
        if self.dates:
            parts.append(f"dated {self.dates[0].text}")
        if self.min_size is not None:
            parts.append("at least {} × {} pixels".format(*self.min_size))
        if self.max_size is not None:
            parts.append("at most {} × {} pixels".format(*self.max_size))
        return ", ".join(parts)


def parse_period(period: Period) -> DateRange:
    """Return what a year, month, day or time means, or a range: "2021..2023-06", "2023..".

    A range includes all of its last year, month or day.

    >>> parse_period("2021..2023-06").end
    datetime.datetime(2023, 7, 1, 0, 0)
    >>> parse_period(("2023-12-24", None)).start
    datetime.datetime(2023, 12, 24, 0, 0)
    """
    if isinstance(period, str) and ".." in period:
        first, _, last = (part.strip() for part in period.partition(".."))
        period = (first or None, last or None)
    if not isinstance(period, tuple):
        start, end = _parse_moment(period)
        return DateRange(start, end, str(period))
    given: tuple[Any, ...] = period  # callers may not check types
    if len(given) != 2 or not any(given):
        raise InvalidQuery(f"date {period!r}: give a start, an end or both, such as 2021..2023-06")
    first_moment, last_moment = period
    start_of_first = None if first_moment is None else _parse_moment(first_moment)[0]
    end_of_last = None if last_moment is None else _parse_moment(last_moment)[1]
    text = f"{first_moment or ''}..{last_moment or ''}"
    if start_of_first is not None and end_of_last is not None and start_of_first >= end_of_last:
        raise InvalidQuery(f"date {text}: it ends before it starts")
    return DateRange(start_of_first, end_of_last, text)


def _parse_moment(moment: Moment) -> tuple[datetime, datetime]:
    """Return the start of a year, month, day, hour, minute or second, and of the next one."""
    if isinstance(moment, datetime):
        local = moment if moment.tzinfo is None else moment.astimezone().replace(tzinfo=None)
        second = local.replace(microsecond=0)
        return second, second + timedelta(seconds=1)
    text = moment.isoformat() if isinstance(moment, date) else str(moment)
    match = _MOMENT.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError
        numbers = [int(number) for number in match.groups() if number is not None]
        # The first moment of it: month and day start with 1, hours, minutes and seconds with 0.
        numbers_of_start = (*numbers, *(0, 1, 1, 0, 0, 0)[len(numbers) :])
        year, month, day, hour, minute, seconds = numbers_of_start
        start = datetime(year, month, day, hour, minute, seconds)
        return start, _start_of_next(start, len(numbers))
    except (ValueError, OverflowError):  # such as February 30
        raise InvalidQuery(
            f"date {moment!r}: give a year, a month, a day or a time, such as 2023, 2023-06, "
            "2023-06-01 or 2023-06-01T14:30"
        ) from None


def _start_of_next(start: datetime, n_numbers: int) -> datetime:
    unit = _UNITS[n_numbers - 1]
    if unit == "year":
        return start.replace(year=start.year + 1)
    if unit == "month":
        return (start + timedelta(days=31)).replace(day=1)
    return start + timedelta(**{f"{unit}s": 1})


def _check_folder(folder: PathInput) -> list[str]:
    """Return what a folder or pattern stands for: a path from the current folder on, or ids.

    A pattern without a slash, or one that starts with `**/`, stands for images anywhere.
    """
    name = os.fspath(folder)
    if not name.strip():
        raise InvalidQuery("an empty folder: give a path or a pattern such as 2023/**/*.jpg")
    is_name = not re.search(r"[/\\]", name.rstrip("/"))
    if is_pattern(name) and (name.startswith("**/") or is_name):
        return [name]
    return list(dict.fromkeys([os.path.abspath(name), name]))


def is_pattern(name: str) -> bool:
    return "*" in name or "?" in name


def folder_of_pattern(pattern: str) -> str:
    """Return the folder that all paths of a pattern are in; "" if it may be any."""
    literal = re.split(r"[*?]", pattern, maxsplit=1)[0]
    return literal.rpartition(os.sep)[0] if os.path.isabs(literal) else ""


def has_pattern(path: str, patterns: Iterable[str]) -> bool:
    names = tuple(pattern.replace(os.sep, "/") for pattern in patterns)
    return matches_pattern(path.replace(os.sep, "/").lstrip("/"), names)


def has_names(path: str, names: Iterable[str]) -> bool:
    """Return whether a path has some names as whole words, whatever the case.

    >>> has_names("/photos/Holiday/IMG_1466.jpg", ["img_1466", "holiday"])
    True
    >>> has_names("/photos/party.jpg", ["art"])
    False
    """
    lower = path.lower()
    return all(re.search(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", lower) for name in names)


def _check_size(option: str, size: Size | None) -> tuple[int, int] | None:
    if size is None:
        return None
    try:
        width, height = map(operator.index, (size, size) if isinstance(size, int) else size)
    except (TypeError, ValueError):
        width = height = 0
    if width < 1 or height < 1:
        raise InvalidQuery(f"{option} = {size!r}: give a number of pixels, or (width, height)")
    return width, height


def list_folders(path: str) -> list[str]:
    """Return all folders that a path or id is in, the inner one first; "" is the root.

    >>> list_folders("/photos/2023/cat.jpg"), list_folders("shop/cat-7"), list_folders("cat")
    (['/photos/2023', '/photos', ''], ['shop'], [])
    """
    parts = path.split(os.sep)
    return [os.sep.join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def count_in_folders(paths: Iterable[str]) -> Counter[str]:
    """Return how many of some images are in each folder and below it.

    >>> sorted(count_in_folders(["/p/a/1.jpg", "/p/2.jpg", "cat"]).items())
    [('', 2), ('/p', 2), ('/p/a', 1)]
    """
    counts: Counter[str] = Counter()
    for folder, n in Counter(map(os.path.dirname, paths)).items():
        if folder:
            counts.update(dict.fromkeys(list_folders(os.path.join(folder, "image")), n))
    return counts


def time_bounds(dates: DateRange) -> tuple[int, int]:
    """Return a range of dates as file times, on the clock of this computer."""
    start = -UNLIMITED if dates.start is None else _to_nanoseconds(dates.start)
    return start, UNLIMITED if dates.end is None else _to_nanoseconds(dates.end)


def _to_nanoseconds(moment: datetime) -> int:
    if moment.year < _FIRST_YEAR:
        return -UNLIMITED
    return UNLIMITED if moment.year > _LAST_YEAR else int(moment.timestamp()) * 10**9
