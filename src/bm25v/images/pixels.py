"""Pixels of every mode of Pillow become upright RGB, reduced, without a second copy at full size.

Large images are converted tile by tile. Grey values of more than 8 bits are scaled to look as in a
viewer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.errors import InvalidOption
from bm25v.images.metadata import SIDEWAYS

Array = NDArray[np.uint8]

TILE_SIDE = 2048  # a tile of any mode takes at most 17 MB
_REDUCIBLE_MODES = frozenset({"L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
_COLOURS = (1, 3, 4)
_USUAL_BITS = (8, 10, 12, 14, 16)
_BITS_PER_SAMPLE = 0x0102  # a TIFF tag

# The upright array as a file of each orientation stores it.
_STORED_VIEWS: dict[int, Callable[[Array], Array]] = {
    1: lambda array: array,
    2: lambda array: array[:, ::-1],
    3: lambda array: array[::-1, ::-1],
    4: lambda array: array[::-1],
    5: lambda array: array.swapaxes(0, 1),
    6: lambda array: array.swapaxes(0, 1)[::-1],
    7: lambda array: array.swapaxes(0, 1)[::-1, ::-1],
    8: lambda array: array.swapaxes(0, 1)[:, ::-1],
}

_GreyRange = tuple[float, float]  # the values that become black and white


def reduction_factor(size: tuple[int, int], short_side: int | None) -> int:
    """Return by how much an image is reduced, so that its short side keeps `short_side` pixels."""
    return max(1, min(size) // (short_side or min(size)))


def convert_to_array(
    image: Image.Image, *, short_side: int | None = None, orientation: int = 1
) -> Array:
    """Return an image as an upright (H, W, 3) array; transparent parts become white.

    With `short_side`, whole blocks of pixels are averaged if the image is at least twice as large.
    """
    factor = reduction_factor(image.size, short_side)
    grey = _find_grey_range(image)
    width, height = (-(-side // factor) for side in image.size)
    shape = (width, height, 3) if orientation in SIDEWAYS else (height, width, 3)
    upright = np.empty(shape, np.uint8)
    stored = _STORED_VIEWS[orientation](upright)
    for tile, (x, y) in _split_in_tiles(image, factor):
        tile_hwc = np.asarray(_reduce_to_rgb(tile, factor, grey))
        stored[y : y + tile_hwc.shape[0], x : x + tile_hwc.shape[1]] = tile_hwc
    return upright


def convert_array(array: NDArray[Any]) -> Array:
    """Return an array of grey, RGB or RGBA pixels as (H, W, 3); transparent parts become white.

    Floats are from 0 to 1. The colours are the last axis or the first; if both could be, the last.

    >>> convert_array(np.ones((3, 20, 30))).shape, convert_array(np.zeros((20, 30))).shape
    ((20, 30, 3), (20, 30, 3))
    """
    pixels = array[..., None] if array.ndim == 2 else array
    if pixels.ndim == 3 and pixels.shape[2] not in _COLOURS and pixels.shape[0] in _COLOURS:
        pixels = np.moveaxis(pixels, 0, 2)
    if not array.size or pixels.ndim != 3 or pixels.shape[2] not in _COLOURS:
        raise InvalidOption(
            f"an array of shape {array.shape} is not an image: give (height, width), "
            "(height, width, colours) or (colours, height, width) with 1, 3 or 4 colours"
        )
    if np.issubdtype(pixels.dtype, np.floating):
        if not (pixels.min() >= 0 and pixels.max() <= 1):
            raise InvalidOption(
                f"an array of {array.dtype} with values from {pixels.min():g} to "
                f"{pixels.max():g} is not an image: give floats from 0 to 1, or uint8"
            )
        pixels = (pixels * 255).round().astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise InvalidOption(f"an array of {array.dtype} is not an image: give uint8 or floats")
    if pixels.shape[2] == 4:
        return np.array(_convert_to_rgb(Image.fromarray(np.ascontiguousarray(pixels))))
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _split_in_tiles(
    image: Image.Image, factor: int
) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """Yield the tiles of an image, and where each begins in the reduced image."""
    width, height = image.size
    side = max(TILE_SIDE // factor, 1) * factor
    for top in range(0, height, side):
        for left in range(0, width, side):
            box = (left, top, min(left + side, width), min(top + side, height))
            tile = image if box == (0, 0, width, height) else image.crop(box)
            yield tile, (left // factor, top // factor)


def _reduce_to_rgb(tile: Image.Image, factor: int, grey: _GreyRange | None) -> Image.Image:
    if grey is not None:
        tile = Image.fromarray(_scale_to_8_bits(tile, grey))
    if factor == 1:
        return _convert_to_rgb(tile)
    if tile.mode in _REDUCIBLE_MODES and "transparency" not in tile.info:
        return _convert_to_rgb(tile.reduce(factor))
    return _convert_to_rgb(tile).reduce(factor)


def _convert_to_rgb(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(image, mask=image.getchannel("A"))
    return white


def _find_grey_range(image: Image.Image) -> _GreyRange | None:
    """Return the smallest usual range that holds the values; None for modes of 8 bits."""
    if image.mode not in ("I", "F") and not image.mode.startswith("I;16"):
        return None
    if image.format == "PPM":  # Pillow scales by the maximum that the file states
        return 0, 1 if image.mode == "F" else 65535
    stated_bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
    if image.mode.startswith("I;16") and stated_bits < 16:
        return 0, 2**stated_bits - 1
    extrema = []
    for tile, _ in _split_in_tiles(image, 1):
        values = _read_finite(tile)
        extrema += [float(values.min()), float(values.max())]
    low, high = min(extrema), max(extrema)
    if low < 0 or high > 65535:
        return low, high
    if image.mode == "F" and high <= 1:
        return 0, 1
    return 0, next(2**bits - 1 for bits in _USUAL_BITS if high <= 2**bits - 1)


def _read_finite(image: Image.Image) -> NDArray[np.float32]:
    return np.nan_to_num(np.asarray(image).astype(np.float32), posinf=0, neginf=0)


def _scale_to_8_bits(image: Image.Image, grey: _GreyRange) -> Array:
    black, white = grey
    scaled = (_read_finite(image) - black) * (255 / (white - black or 1))
    return scaled.round().clip(0, 255).astype(np.uint8)
