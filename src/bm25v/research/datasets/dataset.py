"""A data set: which pictures are searched, which ones ask, and what is wrong with them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    left: float
    top: float
    right: float
    bottom: float


class Landmark(NamedTuple):
    """What the revisited benchmarks say of a query: its part of the picture, and its answers."""

    box: Box
    easy: frozenset[Path]
    hard: frozenset[Path]
    junk: frozenset[Path]  # neither right nor wrong


@dataclass(frozen=True)
class Item:
    """One picture and its class."""

    path: Path
    label: str
    landmark: Landmark | None = None  # of queries that are judged by it instead of their class


@dataclass(frozen=True)
class Dataset:
    """A gallery and the queries put to it; with `leave_one_out` they are the same pictures."""

    name: str
    folder: Path
    protocol: str  # which published parts gallery and queries are
    gallery: list[Item]
    queries: list[Item]
    leave_one_out: bool = False
    split: Path | None = None  # the file that says which is which, if it was somebody's own
    findings: list[str] = field(default_factory=list)  # what reading it brought to light

    @property
    def title(self) -> str:
        """What to call it: a folder of somebody's own by its name."""
        return self.folder.resolve().name if self.name == "folder" else self.name

    @property
    def problems(self) -> list[str]:
        """Everything that makes its figures doubtful, counted, a line each."""
        asked = [query for query in self.queries if query.landmark is None]
        pictures = {(item.path, item.label) for item in self.gallery}
        answers = Counter(label for _, label in pictures)
        hopeless = [
            query
            for query in asked
            if answers[query.label] == ((query.path, query.label) in pictures)
        ]
        what = "queries without another picture of their class in the gallery"
        return self.findings + report(what, (self.id_of(query.path) for query in hopeless))

    @property
    def own_rows(self) -> NDArray[np.int64]:
        """The row of each query in the gallery, to be left out of its answers; -1 if in none."""
        rows = {item.path: row for row, item in enumerate(self.gallery)}
        return np.array([rows.get(query.path, -1) for query in self.queries], dtype=np.int64)

    def id_of(self, path: Path) -> str:
        """Return the path of a picture inside the data set."""
        return path.relative_to(self.folder).as_posix()


def report(what: str, names: Iterable[str]) -> list[str]:
    """Return one line that counts and names, or nothing if there is nothing to name.

    >>> report("missing", ["a", "b", "c", "d"]), report("missing", [])
    (['missing: 4 (a, b, c and 1 more)'], [])
    """
    listed = list(names)
    return [f"{what}: {len(listed):,} ({some(listed)})"] if listed else []


def some(names: Sequence[str]) -> str:
    """Return the first three names and how many more there are."""
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
