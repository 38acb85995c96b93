"""What a file says about its image: the size of the upright image, and when it was taken.

In: an image that Pillow has opened. Out: `Metadata`. Damaged metadata counts as missing, because it
is no reason to refuse intact pixels. Not this module's job: opening files.
"""

import re
from datetime import datetime
from typing import NamedTuple

from PIL import Image

_ORIENTATION = 0x0112  # an EXIF tag, like those below
_EXIF_BLOCK = 0x8769
_DATES = (0x9003, 0x9004)  # taken; digitised, which for a camera is the same

_DATE = re.compile(r"(\d{4})\D(\d\d)\D(\d\d)\D(\d\d)\D(\d\d)(?:\D(\d\d))?", re.ASCII)

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_SIDEWAYS = {_TURNS[orientation] for orientation in (5, 6, 7, 8)}


class Metadata(NamedTuple):
    """The size of an upright image in pixels, and when it was taken, on the clock of the camera."""

    width: int
    height: int
    taken: datetime | None = None  # without a time zone; None if the file does not say


def read_image_metadata(image: Image.Image, size: tuple[int, int]) -> Metadata:
    """Return the metadata of an opened image, whose stored pixels have this size."""
    width, height = size
    if read_turn(image) in _SIDEWAYS:
        width, height = height, width
    return Metadata(width, height, _read_date(image))


def read_turn(image: Image.Image) -> Image.Transpose | None:
    """Return what makes the image upright."""
    try:
        return _TURNS.get(image.getexif().get(_ORIENTATION, 1))
    except Exception:  # Pillow raises nearly every type for damaged metadata
        return None


def read_orientation(exif: bytes) -> int:
    """Return the orientation of an EXIF block; 1, upright, if it is missing or damaged."""
    try:
        block = Image.Exif()
        block.load(exif)
        orientation = block.get(_ORIENTATION)
    except Exception:
        return 1
    return orientation if orientation in _TURNS else 1


def _read_date(image: Image.Image) -> datetime | None:
    try:
        exif = image.getexif().get_ifd(_EXIF_BLOCK)
    except Exception:
        return None
    return next(filter(None, (parse_date(exif.get(tag)) for tag in _DATES)), None)


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
