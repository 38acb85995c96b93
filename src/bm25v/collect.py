"""Hits become files of one folder, numbered by rank: copies, or links to the originals.

In: the paths of hits. Out: new files, and a report of what could not be copied. Nothing that exists
is overwritten. Not this module's job: searching, printing.
"""

import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from bm25v.errors import WrongUse
from bm25v.files import make_folder, reporting_full_disk
from bm25v.search import Hit


class CollectedFile(NamedTuple):
    """A file that was written for a hit."""

    hit: str
    file: str


class SkippedHit(NamedTuple):
    """A hit that has no file, or one that cannot be read."""

    hit: str
    reason: str


@dataclass(frozen=True)
class Collection:
    """What became of the hits."""

    files: tuple[CollectedFile, ...]
    skipped: tuple[SkippedHit, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {
            "files": [file._asdict() for file in self.files],
            "skipped": [hit._asdict() for hit in self.skipped],
        }


def collect_hits(hits: Iterable[Hit], folder: Path, *, link: bool = False) -> Collection:
    """Copy the files of hits into a folder, or link to them; ranks start the names.

    A name that is taken gets a number: `01-rose (2).jpg`.
    """
    if folder.exists() and not folder.is_dir():
        raise WrongUse(f"{folder} is a file: give a folder")
    make_folder(folder)
    hits = list(hits)
    digits = max(2, len(str(max((hit.rank for hit in hits), default=0))))
    files, skipped = [], []
    for hit in hits:
        try:
            file = _collect(Path(hit.path), folder, f"{hit.rank:0{digits}}-", link=link)
        except OSError as error:
            skipped.append(SkippedHit(hit.path, (error.strerror or str(error)).lower()))
        except WrongUse as error:
            skipped.append(SkippedHit(hit.path, str(error)))
        else:
            files.append(CollectedFile(hit.path, str(file)))
    return Collection(tuple(files), tuple(skipped))


def _collect(source: Path, folder: Path, prefix: str, *, link: bool) -> Path:
    if not source.is_absolute():
        raise WrongUse("was added from memory, without a file")
    with source.open("rb") as file:  # an error before anything is made
        for number in count(1):
            suffix = f" ({number})" if number > 1 else ""
            target = folder / f"{prefix}{source.stem}{suffix}{source.suffix}"
            with suppress(FileExistsError):
                if link:
                    target.symlink_to(source)
                else:
                    _copy(source, file, target)
                break
    return target


def _copy(source: Path, file: BinaryIO, target: Path) -> None:
    with reporting_full_disk(target):
        try:
            with target.open("xb") as copy:
                shutil.copyfileobj(file, copy)
        except FileExistsError:
            raise
        except BaseException:
            target.unlink(missing_ok=True)
            raise
    shutil.copystat(source, target)
