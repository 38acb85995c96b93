"""The files of a data set, as published; what is not there ends in an error that says how it is."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bm25v.errors import EvaluationError, MissingExtra
from bm25v.research.datasets.dataset import Item


class Parts(NamedTuple):
    """What a data set's files name; whether it is all there is seen later."""

    protocol: str
    gallery: list[Item]
    queries: list[Item] | None  # None: it is only learnt from
    leave_one_out: bool = False
    findings: Sequence[str] = ()


@dataclass(frozen=True)
class Source:
    """How one data set is laid out, where it is published, and how it is read."""

    title: str
    folder: str  # what its folder is usually called
    layout: str
    home: str
    read: Callable[["Tree"], Parts] = field(repr=False)


class Tree:
    """The folder of a data set: `data` itself, or the one in it with the usual name."""

    def __init__(self, data: Path, source: Source) -> None:
        inner = data / source.folder
        self.root = inner if source.folder and inner.is_dir() else data
        self._source = source
        if not self.root.is_dir():
            self.refuse("there is no such folder")

    def refuse(self, what: str) -> NoReturn:
        """Say what is wrong, how it should be, and where that can be had."""
        home = f"; it is published on {self._source.home}" if self._source.home else ""
        raise EvaluationError(
            f"{self._source.title} in {self.root}: {what}; expected are {self._source.layout}{home}"
        )

    def bytes_of(self, name: str) -> bytes:
        """Return a file's content."""
        try:
            return (self.root / name).read_bytes()
        except FileNotFoundError:
            self.refuse(f"{name} is missing")
        except OSError as error:
            self.refuse(f"{name} cannot be read: {error.strerror}")

    def lines(self, name: str) -> list[str]:
        """Return a file's lines that are not empty."""
        try:
            text = self.bytes_of(name).decode()
        except UnicodeDecodeError:
            self.refuse(f"{name} is no text")
        return [line.strip() for line in text.splitlines() if line.strip()]

    def table(self, name: str, columns: int) -> list[list[str]]:
        """Return a file's lines, cut at spaces into so many columns."""
        rows = [line.split(maxsplit=columns - 1) for line in self.lines(name)]
        for row in rows:
            if len(row) != columns:
                self.refuse(f"{name} has the line {' '.join(row)!r}, not {columns} columns")
        return rows

    def pairs(self, name: str) -> dict[str, str]:
        """Return a file of keys and values."""
        return {row[0]: row[1] for row in self.table(name, 2)}

    def look_up(self, table: Mapping[str, str], key: str, name: str) -> str:
        """Return the value of a key in the table that a file holds."""
        if key not in table:
            self.refuse(f"{name} says nothing of {key}")
        return table[key]

    def matlab(self, name: str) -> dict[str, Any]:
        """Return the variables of a .mat file."""
        try:
            from scipy.io import loadmat
        except ImportError as error:
            raise MissingExtra("reading .mat files", "research") from error
        self.bytes_of(name)
        try:
            return dict(loadmat(self.root / name, squeeze_me=True))
        except Exception:  # damaged files raise errors of all kinds
            self.refuse(f"{name} is damaged")
