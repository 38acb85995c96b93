"""How a data set is laid out on disk, how its files are read, and folders of class folders."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from bm25v import images
from bm25v.errors import EvaluationError, MissingExtra
from bm25v.files import read_limited
from bm25v.research.datasets.dataset import Item, summarize_problem

_MAX_BYTES = 256_000_000  # of a list or table; that of a million images has less

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


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


def _read_class_folders(folder: DatasetFolder) -> DatasetParts:
    train, test = folder.root / "train", folder.root / "test"
    if not all(part.is_dir() and any(map(Path.is_dir, part.iterdir())) for part in (train, test)):
        items, notes = _find_items(folder.root)
        return DatasetParts("leave-one-out", items, items, notes)
    gallery, gallery_notes = _find_items(train)
    queries, query_notes = _find_items(test)
    others = sorted(
        path.name for path in folder.root.iterdir() if path.is_dir() and path not in (train, test)
    )
    unused = summarize_problem("folders besides train and test, not used", others)
    notes = gallery_notes + query_notes + unused
    return DatasetParts("gallery: train, queries: test", gallery, queries, notes)


def _find_items(folder: Path) -> tuple[list[Item], list[str]]:
    """Return the images in class folders, and notes about the rest."""
    items: list[Item] = []
    outside: list[str] = []
    unreadable: list[str] = []
    for path in images.find_images(
        folder, on_error=lambda path, error: unreadable.append(f"{path}: {error}")
    ):
        relative = path.relative_to(folder)
        if len(relative.parts) < 2:
            outside.append(str(relative))
        else:
            items.append(Item(path, relative.parts[0]))
    notes = summarize_problem("cannot be opened", unreadable)
    return items, notes + summarize_problem("in no class folder", outside)


CLASS_FOLDERS = DatasetLayout(
    title="the data set",
    folder="",
    files="class folders with images, or such folders in train/ and test/",
    homepage="",
    read=_read_class_folders,
)
