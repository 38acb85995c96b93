"""Where a picture is light and where it is dark: do two pictures show the same view?

Words and dense vectors say what is in a picture, and two photos of one dog on one lawn agree in
that. A small grey picture of one agrees with that of the other only if one was made from the
other. It is compared as a whole, and with parts of it cut off or slightly turned.
"""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.images import Source

SMALL = 48  # pixels a side of what is kept of a picture
_SIDE = 16  # pixels a side of what is compared
_FLAT = 2.0 * _SIDE  # length of a view in which nothing stands out: two grey levels from its mean
_TURNS = (-5.0, -2.5, 2.5, 5.0)  # degrees

Small = NDArray[np.uint8]
Views = NDArray[np.float32]


def small(source: Source) -> Small:
    """Return a picture in a few shades of grey, squeezed to a square."""
    pixels = images.decode_image(source, short_side=2 * SMALL)
    grey = Image.fromarray(pixels).convert("L")
    return np.asarray(grey.resize((SMALL, SMALL), Image.Resampling.BOX))


def whole(picture: Small) -> Views | None:
    """Return the view of all of a picture, of length 1; None if it is all of one grey."""
    view = _view(Image.fromarray(picture), (0, 0, 1, 1))
    length = float(np.linalg.norm(view))
    return view / np.float32(length) if length >= _FLAT else None


def parts(picture: Small) -> Views:
    """Return the views of the whole and of its parts, a row each."""
    grey = Image.fromarray(picture)
    views = [_view(grey, box) for box in _boxes()]
    for degrees in _TURNS:
        turned = grey.rotate(degrees, Image.Resampling.BILINEAR)
        angle = math.radians(abs(degrees))
        margin = (1 - 1 / (math.cos(angle) + math.sin(angle))) / 2  # without the empty corners
        views.append(_view(turned, (margin, margin, 1 - margin, 1 - margin)))
    views_wp = np.array(views)
    lengths = np.linalg.norm(views_wp, axis=1, keepdims=True)
    return np.asarray(views_wp / np.maximum(lengths, _FLAT), dtype=np.float32)


def _boxes() -> Iterator[tuple[float, float, float, float]]:
    """Give the whole, parts of 90 and 80 %, and all but a strip at one side."""
    yield 0, 0, 1, 1
    for side in (0.9, 0.8):
        starts = (0, (1 - side) / 2, 1 - side)
        yield from ((x, y, x + side, y + side) for x in starts for y in starts)
    strip = 0.15
    yield from ((strip, 0, 1, 1), (0, strip, 1, 1), (0, 0, 1 - strip, 1), (0, 0, 1, 1 - strip))


def _view(grey: Image.Image, box: tuple[float, float, float, float]) -> Views:
    left, top, right, bottom = (SMALL * share for share in box)
    part = grey.resize((_SIDE, _SIDE), Image.Resampling.BOX, box=(left, top, right, bottom))
    values = np.asarray(part, dtype=np.float32).ravel()
    return np.asarray(values - values.mean(), dtype=np.float32)
