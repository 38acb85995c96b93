"""What a file says about its image: the size of the upright image, and when it was taken.

Damaged metadata counts as missing, because it is no reason to refuse intact pixels.
"""

import re
from datetime import datetime
from typing import NamedTuple

from PIL import Image
from PIL.ExifTags import IFD, Base

_DATES = (Base.DateTimeOriginal, Base.DateTimeDigitized)  # the same for a camera

_DATE = re.compile(r"(\d{4})\D(\d\d)\D(\d\d)\D(\d\d)\D(\d\d)(?:\D(\d\d))?", re.ASCII)

_TRANSPOSITIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = {_TRANSPOSITIONS[orientation] for orientation in (5, 6, 7, 8)}


class Metadata(NamedTuple):
    """The size of an upright image in pixels, and when it was taken, on the clock of the camera."""

    width: int
    height: int
    taken: datetime | None = None  # without a time zone; None if the file does not say


def read_image_metadata(image: Image.Image, size: tuple[int, int]) -> Metadata:
    """Return the metadata of an opened image, whose stored pixels have this size."""
    width, height = size if read_transposition(image) not in SIDEWAYS else size[::-1]
    try:
        exif = image.getexif().get_ifd(IFD.Exif)
    except Exception:  # Pillow raises nearly every type for damaged metadata
        exif = {}
    dates = (parse_date(exif.get(tag)) for tag in _DATES)
    return Metadata(width, height, next(filter(None, dates), None))


def read_transposition(image: Image.Image) -> Image.Transpose | None:
    """Return what makes the image upright."""
    try:
        return _TRANSPOSITIONS.get(image.getexif().get(Base.Orientation, 1))
    except Exception:
        return None


def read_orientation(exif: bytes) -> int:
    """Return the orientation of an EXIF block; 1, upright, if it is missing or damaged."""
    try:
        block = Image.Exif()
        block.load(exif)
        orientation = block.get(Base.Orientation)
    except Exception:
        return 1
    return orientation if orientation in _TRANSPOSITIONS else 1


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
