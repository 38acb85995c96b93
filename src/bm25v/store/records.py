"""What is known about an image, and which hits of a collection are strong, as values."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from bm25v.images import Metadata

_EPOCH = datetime(1970, 1, 1)


class ImageRecord(NamedTuple):
    """What a store knows about one image."""

    row: int  # -1 in Qdrant
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


@dataclass(frozen=True)
class GalleryImage:
    """What a gallery knows about one of its images; usable wherever a path is."""

    path: str  # or the id of an image that was added from memory
    date: datetime  # when it was taken, by its metadata, else the time of its file
    width: int | None  # in pixels; None if it is not known
    height: int | None
    file_size: int  # in bytes
    taken: datetime | None  # by its metadata; None if that does not say

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        size = f"{self.width} × {self.height}" if self.width else "size unknown"
        return f"<GalleryImage {self.path}: {size}, {self.date:%Y-%m-%d}>"

    def to_dict(self) -> dict[str, Any]:
        """Return the facts as plain values; dates are texts, such as "2023-06-01T14:30:05"."""
        dates = {"date": self.date, "taken": self.taken}
        return vars(self) | {name: date and date.isoformat() for name, date in dates.items()}


def to_gallery_image(record: ImageRecord) -> GalleryImage:
    taken = from_seconds(record.taken)
    date = taken or file_date(record.mtime_ns)
    return GalleryImage(record.path, date, record.width, record.height, record.size, taken)


def file_date(mtime_ns: int) -> datetime:
    """Return the time of a file by the clock of this machine."""
    try:
        return datetime.fromtimestamp(mtime_ns // 10**9)
    except (OverflowError, OSError, ValueError):  # a time that no calendar has
        return datetime.max if mtime_ns > 0 else datetime.min


def to_seconds(date: datetime | None) -> int | None:
    """Return a date without a time zone as seconds from 1970 on, by the same clock.

    >>> to_seconds(datetime(1970, 1, 2)), from_seconds(86_400)
    (86400, datetime.datetime(1970, 1, 2, 0, 0))
    """
    return None if date is None else (date - _EPOCH) // timedelta(seconds=1)


def from_seconds(seconds: int | None) -> datetime | None:
    return None if seconds is None else _EPOCH + timedelta(seconds=seconds)
