"""What a file says about its image: the size of the upright image, and when it was taken.

Damaged metadata counts as missing, because it is no reason to refuse intact pixels.
"""

import re
from datetime import datetime
from typing import NamedTuple

from PIL import Image
from PIL.ExifTags import IFD, Base

SIDEWAYS = range(5, 9)
"""The orientations of EXIF, from 1 to 8, in which width and height are exchanged."""

_DATES = (Base.DateTimeOriginal, Base.DateTimeDigitized)  # the same for a camera
_DATE = re.compile(r"(\d{4})\D(\d\d)\D(\d\d)\D(\d\d)\D(\d\d)(?:\D(\d\d))?", re.ASCII)


class Metadata(NamedTuple):
    """The size of an upright image in pixels, and when it was taken, on the clock of the camera."""

    width: int
    height: int
    taken: datetime | None = None  # without a time zone; None if the file does not say


def read_image_metadata(image: Image.Image, size: tuple[int, int]) -> Metadata:
    """Return the metadata of an opened image, whose stored pixels have this size."""
    width, height = size[::-1] if read_orientation(image) in SIDEWAYS else size
    try:
        exif = image.getexif().get_ifd(IFD.Exif)
    except Exception:  # Pillow raises nearly every type for damaged metadata
        exif = {}
    dates = (parse_date(exif.get(tag)) for tag in _DATES)
    return Metadata(width, height, next(filter(None, dates), None))


def read_orientation(source: Image.Image | bytes) -> int:
    """Return the orientation of an image or an EXIF block; 1, upright, if missing or damaged."""
    try:
        exif = Image.Exif() if isinstance(source, bytes) else source.getexif()
        if isinstance(source, bytes):
            exif.load(source)
        orientation = int(exif.get(Base.Orientation, 1))
    except Exception:
        return 1
    return orientation if 1 <= orientation <= 8 else 1


def parse_date(text: object) -> datetime | None:
    """Return a date of EXIF; None if it is missing or impossible, as "0000:00:00 00:00:00" is.

    >>> parse_date("2023:06:01 14:30:05")
    datetime.datetime(2023, 6, 1, 14, 30, 5)
    """
    match = _DATE.match(text.strip()) if isinstance(text, str) else None
    if match is None:
        return None
    try:
        return datetime.fromisoformat("{}-{}-{}T{}:{}:{}".format(*match.groups(default="00")))
    except ValueError:
        return None
