"""What the catalogue knows, as values: about a gallery, about a version of it, about an image."""

import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bm25v.errors import GalleryDamaged
from bm25v.images import Metadata
from bm25v.index.bm25 import Bm25Parameters

_SEPARATOR = os.fsencode(os.sep)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True)
class Meta:
    """Facts that never change after a gallery was created."""

    vocabulary: str  # the name or path it was created with
    vocabulary_fingerprint: str
    backbone: str
    backbone_fingerprint: str
    n_words: int
    k_post: int  # words of a bag, at most
    k_full: int  # words of a full bag, at most
    n_patches: int  # of an image
    dense_dim: int
    k1: float
    b: float

    @property
    def parameters(self) -> Bm25Parameters:
        return Bm25Parameters(k1=self.k1, b=self.b)


class ImageRecord(NamedTuple):
    """The catalogue's entry for one image."""

    row: int
    path: str
    content: bytes  # hash of the file
    size: int
    mtime_ns: int
    checksum: int  # of its rows
    live: bool = True
    width: int | None = None  # in pixels; None if it is not known
    height: int | None = None
    taken: int | None = None  # seconds of the camera's clock, from 1970 on

    @property
    def metadata(self) -> Metadata | None:
        if self.width is None or self.height is None:
            return None
        return Metadata(self.width, self.height, from_seconds(self.taken))


class Calibration(NamedTuple):
    """What the gallery's own images reach when they search for each other."""

    weak_below: float  # a hybrid score
    strong_from: float
    n_images: int  # of the gallery at that time
    last_change: int  # of the catalogue at that time


class State(NamedTuple):
    """Which version of the gallery a transaction sees."""

    generation: int  # how many times rows were renumbered
    n_rows: int  # with those of removed images
    last_change: int  # the newest entry of `changes`
    forgotten: int = 0  # changes up to this one are no longer listed
    calibration: Calibration | None = None


def path_bounds(path: str) -> tuple[bytes, bytes, bytes]:
    """Return a path as it is stored, and the bounds between which everything in the folder is."""
    name = os.fsencode(path).rstrip(_SEPARATOR)
    return name, name + _SEPARATOR, name + bytes([_SEPARATOR[0] + 1])


def to_seconds(date: datetime | None) -> int | None:
    """Return a date without a time zone as seconds from 1970 on, by the same clock.

    >>> to_seconds(datetime(1970, 1, 2)), from_seconds(86_400)
    (86400, datetime.datetime(1970, 1, 2, 0, 0))
    """
    return None if date is None else (date - _EPOCH) // timedelta(seconds=1)


def from_seconds(seconds: int | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)


def to_record(columns: tuple[Any, ...]) -> ImageRecord:
    row, path, content, size, mtime_ns, checksum, live, *metadata = columns
    if not isinstance(path, bytes):
        raise GalleryDamaged(f"row {row} has no path in the catalogue: run bm25v verify")
    file = (os.fsdecode(path), content, size, mtime_ns)
    return ImageRecord(row, *file, checksum, bool(live), *metadata)
