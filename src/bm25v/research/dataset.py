"""A data set: the images of the gallery, the queries, and what is wrong with them; and the folder
that it is read from.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, MissingExtra
from bm25v.files import read_limited

_MAX_BYTES = 256_000_000  # of a list or table; that of a million images has less

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class PixelBox(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float


class RevisitedTruth(NamedTuple):
    box: PixelBox
    easy: frozenset[Path]
    hard: frozenset[Path]
    junk: frozenset[Path]  # neither relevant nor wrong


@dataclass(frozen=True)
class Item:
    path: Path
    label: str
    truth: RevisitedTruth | None = None  # of queries that are judged by it, not by their class


@dataclass(frozen=True)
class Dataset:
    """A gallery and queries; an image can be both, and is then no answer to itself."""

    name: str
    folder: Path
    protocol: str  # which published parts the gallery and the queries are
    gallery: list[Item]
    queries: list[Item]
    notes: list[str] = field(default_factory=list)  # problems that were found while reading

    @property
    def title(self) -> str:
        """The name for people: that of the folder if it is not a published data set."""
        return self.folder.resolve().name if self.name == "folder" else self.name

    @property
    def unanswerable(self) -> list[Item]:
        """The queries without a relevant image."""
        images = {(item.path, item.label) for item in self.gallery}
        class_sizes = Counter(label for _, label in images)
        return [
            query
            for query in self.queries
            if (
                class_sizes[query.label] == ((query.path, query.label) in images)
                if query.truth is None
                else not (query.truth.easy or query.truth.hard)
            )
        ]

    @property
    def problems(self) -> list[str]:
        """Everything that makes the metrics doubtful, counted, one line each."""
        if self.is_revisited:
            return self.notes
        problem = "queries without another image of their class in the gallery"
        names = [self.id_of(query.path) for query in self.unanswerable]
        return self.notes + summarize_problem(problem, names)

    @property
    def own_rows(self) -> NDArray[np.int64]:
        """The row of each query in the gallery, which is not one of its answers; -1: none."""
        rows = {item.path: row for row, item in enumerate(self.gallery)}
        return np.array([rows.get(query.path, -1) for query in self.queries], dtype=np.int64)

    @property
    def is_revisited(self) -> bool:
        """Whether it is judged by the revisited protocol, not by classes."""
        return any(query.truth for query in self.queries)

    def id_of(self, path: Path) -> str:
        return path.relative_to(self.folder).as_posix()


def summarize_problem(problem: str, names: Iterable[str]) -> list[str]:
    """Return one line with the number of names and the first three, or nothing without names.

    >>> summarize_problem("missing", ["a", "b", "c", "d"]), summarize_problem("missing", [])
    (['missing: 4 (a, b, c and 1 more)'], [])
    """
    names = list(names)
    if not names:
        return []
    more = f" and {len(names) - 3:,} more" if len(names) > 3 else ""
    return [f"{problem}: {len(names):,} ({', '.join(names[:3])}{more})"]


def drop_unreadable(dataset: Dataset, hashes: Mapping[Path, bytes | str]) -> Dataset:
    """Return a data set without its unreadable images, which its notes name.

    `hashes` has the hash of each image's file, or why it cannot be read. Copies stay and are noted.
    """
    errors = {path: error for path, error in hashes.items() if isinstance(error, str)}
    gallery = [item for item in dataset.gallery if item.path not in errors]
    queries = [item for item in dataset.queries if item.path not in errors]
    if not gallery or not queries:
        path, error = next(iter(errors.items()))
        raise EvaluationError(
            f"{len(errors):,} of {len(hashes):,} images in {dataset.folder} cannot be read, which "
            f"leaves {len(gallery):,} in the gallery and {len(queries):,} queries; the first is "
            f"{dataset.id_of(path)}: {error}"
        )
    unreadable = (f"{dataset.id_of(path)}: {error}" for path, error in errors.items())
    notes = dataset.notes + summarize_problem("unreadable and left out", unreadable)
    readable = replace(dataset, gallery=gallery, queries=queries)
    return replace(readable, notes=notes + _find_copies(readable, hashes))


def _find_copies(dataset: Dataset, hashes: Mapping[Path, bytes | str]) -> list[str]:
    def group(items: Iterable[Item]) -> defaultdict[bytes | str, list[Item]]:
        groups: defaultdict[bytes | str, list[Item]] = defaultdict(list)
        for item in items:
            groups[hashes[item.path]].append(item)
        return groups

    ambiguous = []
    for copies in group(dataset.gallery + dataset.queries).values():
        by_label = {item.label: dataset.id_of(item.path) for item in copies}
        if len(by_label) > 1:
            ambiguous.append(" = ".join(by_label.values()))
    in_gallery = group(dataset.gallery)
    repeated = [
        dataset.id_of(query.path)
        for query in dataset.queries
        if any(item.path != query.path for item in in_gallery[hashes[query.path]])
    ]
    return [
        *summarize_problem("the same content in several classes", ambiguous),
        *summarize_problem("queries with a copy in the gallery", repeated),
    ]


# The folder


class DatasetParts(NamedTuple):
    """The images that a data set's lists name, whether the files exist or not."""

    protocol: str  # which published parts the gallery and the queries are
    gallery: list[Item]
    queries: list[Item]
    notes: Sequence[str] = ()  # problems for people to know


@dataclass(frozen=True)
class DatasetLayout:
    title: str
    folder: str  # its usual name
    files: str
    homepage: str
    read: Callable[["DatasetFolder"], DatasetParts] = field(repr=False)


class DatasetFolder:
    """The folder of a data set: `data` itself, or the folder in it with the usual name."""

    def __init__(self, data: Path, layout: DatasetLayout) -> None:
        inner = data / layout.folder
        self.root = inner if layout.folder and inner.is_dir() else data
        self._layout = layout
        if not self.root.is_dir():
            self.fail("there is no such folder")

    def fail(self, problem: str) -> NoReturn:
        """Raise an error with the problem, the expected files and where to get them."""
        homepage = self._layout.homepage
        published = f"; the data set is published on {homepage}" if homepage else ""
        raise EvaluationError(
            f"{self._layout.title} in {self.root}: {problem}; expected: {self._layout.files}"
            f"{published}"
        )

    def read_bytes(self, name: str) -> bytes:
        try:
            return read_limited(self.root / name, _MAX_BYTES)
        except FileNotFoundError:
            self.fail(f"{name} is missing")
        except OSError as error:
            self.fail(f"{name} cannot be read: {error.strerror}")
        except ValueError as error:
            self.fail(f"{name} is too large: {error}")

    def read_lines(self, name: str) -> list[str]:
        try:
            text = self.read_bytes(name).decode()
        except UnicodeDecodeError:
            self.fail(f"{name} is not a text file")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def read_table(self, name: str, columns: int) -> list[list[str]]:
        """Return the lines of a file, split at spaces into columns."""
        rows = [line.split(maxsplit=columns - 1) for line in self.read_lines(name)]
        for row in rows:
            if len(row) != columns:
                line = " ".join(row)
                self.fail(f"{name} has the line {line!r} with {len(row)} columns, not {columns}")
        return rows

    def read_mapping(self, name: str) -> dict[str, str]:
        return {row[0]: row[1] for row in self.read_table(name, 2)}

    def look_up(self, mapping: Mapping[_Key, _Value], key: _Key, name: str) -> _Value:
        if key not in mapping:
            self.fail(f"{name} has no entry for {key}")
        return mapping[key]

    def read_matlab(self, name: str, variable: str) -> Any:
        try:
            from scipy.io import loadmat
        except ImportError as error:
            raise MissingExtra("reading .mat files", "research") from error
        self.read_bytes(name)
        try:
            variables = dict(loadmat(self.root / name, squeeze_me=True))
        except Exception:  # damaged files raise errors of all kinds
            self.fail(f"{name} is damaged")
        if variable not in variables:
            self.fail(f"{name} has no variable {variable}")
        return np.atleast_1d(variables[variable])
