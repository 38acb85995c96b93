"""A part of an image in, the weight of each patch out.

A region is a box (x, y, width, height), in pixels or, if no number is above 1, in fractions of the
image; or a mask: an array over the whole image that is not 0 where the image counts. A patch counts
by the share of it that lies in the region. The features are those of the whole image, so a region
needs no second forward pass.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import InvalidQuery
from bm25v.sae.model import Codes

Region = Sequence[float] | NDArray[np.generic]  # a box, or a mask with two dimensions
Box = tuple[float, float, float, float]
Size = tuple[int, int]  # width and height in pixels

_ROUNDING = 1e-6  # computed fractions may exceed the image by this much
_SMALLEST = 1e-6  # width and height of a box, as a share of the image


def as_box(region: Region | None) -> Box | None:
    """Return a region's x, y, width and height; None for a mask or for no region."""
    return None if region is None or _is_mask(region) else _box(region)


def is_in_pixels(region: Region) -> bool:
    """Return whether a region is given in pixels, so that the image's size is needed.

    >>> is_in_pixels((120, 40, 200, 180)), is_in_pixels((0.5, 0, 0.5, 1))
    (True, False)
    """
    return not _is_mask(region) and max(_box(region)) > 1


def to_fractions(region: Region, size: Size) -> Region:
    """Return a region in fractions of an image of this size.

    >>> to_fractions((120, 40, 200, 180), (400, 400))
    (0.3, 0.1, 0.5, 0.45)
    """
    if not is_in_pixels(region):
        return region
    width, height = size
    x, y, w, h = _box(region)
    is_outside = x >= width or y >= height
    if is_outside or x + w > width + 1 or y + h > height + 1:  # one pixel is rounding
        raise InvalidQuery(
            f"region {_format(region)} reaches beyond the image of {width} × {height} pixels: "
            "give x,y,width,height inside it"
        )
    return (x / width, y / height, min(w, width - x) / width, min(h, height - y) / height)


def patch_weights(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    """Return the weight of each patch, row by row; the patch that is covered most has weight 1.

    >>> patch_weights((0, 0, 0.75, 1), grid=(1, 2)).tolist()
    [1.0, 0.5]
    """
    shares_yx = _mask_shares(region, grid) if _is_mask(region) else _box_shares(region, grid)
    return np.asarray((shares_yx / shares_yx.max()).ravel(), dtype=np.float64)


def weigh_codes(codes: Codes, weights_p: NDArray[np.float64]) -> Codes:
    """Return codes whose activations are multiplied by the weights of their patches.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> weigh_codes(codes, np.array([0.0, 1.0])).activations_pk.tolist()
    [[0.0, 0.0], [2.0, 0.25]]
    """
    activations_pk = codes.activations_pk * weights_p[:, None]
    return Codes(codes.words_pk, activations_pk.astype(np.float32))


def _is_mask(region: Region) -> bool:
    return isinstance(region, np.ndarray) and region.ndim != 1


def _box(region: Region) -> Box:
    try:
        x, y, width, height = (float(value) for value in region)
    except (OverflowError, TypeError, ValueError):
        raise InvalidQuery(
            f"region {region!r}: give x,y,width,height, in pixels or in fractions of the image"
        ) from None
    if not all(map(math.isfinite, (x, y, width, height))):
        raise InvalidQuery(f"region {_format(region)}: each number must be finite")
    if width <= 0 or height <= 0:
        raise InvalidQuery(f"region {_format(region)} has no area: give a width and height above 0")
    if x < 0 or y < 0:
        raise InvalidQuery(
            f"region {_format(region)} starts outside the image: x and y must be 0 or more"
        )
    return x, y, width, height


def _box_shares(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    x, y, width, height = _box(region)
    is_outside = x >= 1 or y >= 1
    if is_outside or x + width > 1 + _ROUNDING or y + height > 1 + _ROUNDING:
        raise InvalidQuery(
            f"region {_format(region)} reaches beyond the image: in fractions, x + width and "
            "y + height must be at most 1"
        )
    if width < _SMALLEST or height < _SMALLEST:
        raise InvalidQuery(
            f"region {_format(region)} is too small: its width and height must be at least "
            f"{_SMALLEST:g} of the image's"
        )
    rows, columns = grid
    return np.outer(_overlaps(y, height, rows), _overlaps(x, width, columns))


def _overlaps(start: float, length: float, cells: int) -> NDArray[np.float64]:
    """Return the share of each cell of an axis that an interval covers."""
    first = np.arange(cells)
    covered = np.minimum(first + 1, (start + length) * cells) - np.maximum(first, start * cells)
    return np.asarray(np.maximum(covered, 0), dtype=np.float64)


def _mask_shares(region: Region, grid: tuple[int, int]) -> NDArray[np.float64]:
    mask_hw = np.asarray(region) != 0
    if mask_hw.ndim != 2:
        raise InvalidQuery(
            f"a mask of shape {mask_hw.shape}: give an array with a height and a width"
        )
    if not mask_hw.any():
        raise InvalidQuery("the mask is 0 everywhere: mark at least one pixel")
    rows, columns = grid
    image = Image.fromarray(mask_hw.astype(np.float32))
    return np.asarray(image.resize((columns, rows), Image.Resampling.BOX), dtype=np.float64)


def _format(region: Region) -> str:
    return ",".join(f"{float(value):g}" for value in region)
