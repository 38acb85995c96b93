"""A part of a picture: which of its patches count, and how much.

A region is a box (x, y, width, height), in pixels or, if no number is above 1, in fractions of the
picture; or a mask, an array that covers the picture and is not 0 where it counts. Words and dense
vector come from the patches of the whole picture's forward pass: a patch counts by how much of it
lies in the region.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import WrongUse
from bm25v.sae.model import Codes

Region = Sequence[float] | NDArray[np.generic]  # a box, or a mask with two dimensions
Box = tuple[float, float, float, float]
Size = tuple[int, int]  # width and height in pixels

_SLACK = 1e-6  # of a picture's side: fractions that were computed may be off by so much


def as_box(region: Region | None) -> Box | None:
    """Return a region's x, y, width and height; None for a mask or for no region."""
    return None if region is None or _is_mask(region) else _box(region)


def is_in_pixels(region: Region) -> bool:
    """Say whether a region means pixels, so that the picture's size is needed.

    >>> is_in_pixels((120, 40, 200, 180)), is_in_pixels((0.5, 0, 0.5, 1))
    (True, False)
    """
    return not _is_mask(region) and max(_box(region)) > 1


def fractions(region: Region, size: Size) -> Region:
    """Return a region that does not depend on the picture's size.

    >>> fractions((120, 40, 200, 180), (400, 400))
    (0.3, 0.1, 0.5, 0.45)
    """
    if not is_in_pixels(region):
        return region
    width, height = size
    x, y, w, h = _box(region)
    is_outside = x >= width or y >= height
    if is_outside or x + w > width + 1 or y + h > height + 1:  # one pixel is rounding
        raise WrongUse(
            f"region {_text(region)} reaches out of the picture, which has {width} × {height} "
            "pixels: give x,y,width,height within it"
        )
    return (x / width, y / height, min(w, width - x) / width, min(h, height - y) / height)


def patch_shares(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    """Return how much each patch counts, in reading order: 1 for the one covered most.

    >>> patch_shares((0, 0, 0.75, 1), grid=(1, 2)).tolist()
    [1.0, 0.5]
    """
    shares_yx = _mask_shares(region, grid) if _is_mask(region) else _box_shares(region, grid)
    return np.asarray((shares_yx / shares_yx.max()).ravel(), dtype=np.float64)


def within(codes: Codes, shares_p: NDArray[np.float64]) -> Codes:
    """Return codes in which words are as active as their patches count.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> within(codes, np.array([0.0, 1.0])).activations_pk.tolist()
    [[0.0, 0.0], [2.0, 0.25]]
    """
    active_pk = codes.activations_pk * shares_p[:, None]
    return Codes(codes.words_pk, active_pk.astype(np.float32))


def _is_mask(region: Region) -> bool:
    return isinstance(region, np.ndarray) and region.ndim != 1


def _box(region: Region) -> Box:
    try:
        x, y, width, height = (float(value) for value in region)
    except (TypeError, ValueError):
        raise WrongUse(
            f"region {region!r}: give x,y,width,height, in pixels or in fractions of the picture"
        ) from None
    if not all(map(math.isfinite, (x, y, width, height))):
        raise WrongUse(f"region {_text(region)}: each number must be finite")
    if width <= 0 or height <= 0:
        raise WrongUse(f"region {_text(region)} has no area: give a width and height above 0")
    if x < 0 or y < 0:
        raise WrongUse(f"region {_text(region)} begins outside the picture: x and y start at 0")
    return x, y, width, height


def _box_shares(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    x, y, width, height = _box(region)
    is_outside = x >= 1 or y >= 1
    if is_outside or x + width > 1 + _SLACK or y + height > 1 + _SLACK:
        raise WrongUse(
            f"region {_text(region)} reaches out of the picture: as fractions, x + width and "
            "y + height are at most 1"
        )
    rows, columns = grid
    return np.outer(_overlaps(y, height, rows), _overlaps(x, width, columns))


def _overlaps(start: float, length: float, cells: int) -> NDArray[np.float64]:
    """Return which share of each of the cells of a line a stretch of it covers."""
    first = np.arange(cells)
    covered = np.minimum(first + 1, (start + length) * cells) - np.maximum(first, start * cells)
    return np.asarray(np.maximum(covered, 0), dtype=np.float64)


def _mask_shares(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    mask_hw = np.asarray(region) != 0
    if mask_hw.ndim != 2:
        raise WrongUse(f"a mask of shape {mask_hw.shape}: give one with a height and a width")
    if not mask_hw.any():
        raise WrongUse("the mask is 0 everywhere: nothing of the picture would count")
    rows, columns = grid
    picture = Image.fromarray(mask_hw.astype(np.float32))
    return np.asarray(picture.resize((columns, rows), Image.Resampling.BOX), dtype=np.float64)


def _text(region: Region) -> str:
    return ",".join(f"{float(value):g}" for value in region)
