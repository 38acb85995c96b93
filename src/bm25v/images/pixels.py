"""Pixels of every mode of Pillow become upright RGB, reduced, without a second copy at full size.

In: an image that Pillow has decoded. Out: an RGB array. Large images are converted tile by tile.
Grey values of more than 8 bits are scaled to look as in a viewer. Not this module's job: decoding.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.uint8]

TILE_SIDE = 2048  # a tile of any mode takes at most 17 MB
_REDUCIBLE_MODES = frozenset({"L", "LA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"})
_USUAL_BITS = (8, 10, 12, 14, 16)
_BITS_PER_SAMPLE = 0x0102  # a TIFF tag

# The upright array, seen as the file stores it.
_STORED_VIEWS: dict[Image.Transpose, Callable[[Array], Array]] = {
    Image.Transpose.FLIP_LEFT_RIGHT: lambda array: array[:, ::-1],
    Image.Transpose.ROTATE_180: lambda array: array[::-1, ::-1],
    Image.Transpose.FLIP_TOP_BOTTOM: lambda array: array[::-1],
    Image.Transpose.TRANSPOSE: lambda array: array.swapaxes(0, 1),
    Image.Transpose.ROTATE_270: lambda array: array.swapaxes(0, 1)[::-1],
    Image.Transpose.TRANSVERSE: lambda array: array.swapaxes(0, 1)[::-1, ::-1],
    Image.Transpose.ROTATE_90: lambda array: array.swapaxes(0, 1)[:, ::-1],
}
_SIDEWAYS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)


class _GreyRange(NamedTuple):
    """The values that become black and white."""

    black: float
    white: float


def reduction_factor(size: tuple[int, int], short_side: int | None) -> int:
    """Return by how much an image is reduced, so that its short side keeps `short_side` pixels."""
    return max(1, min(size) // (short_side or min(size)))


def convert_to_array(
    image: Image.Image, *, short_side: int | None = None, turn: Image.Transpose | None = None
) -> Array:
    """Return an image as an upright (H, W, 3) array; transparent parts become white.

    With `short_side`, whole blocks of pixels are averaged if the image is at least twice as large.
    """
    factor = reduction_factor(image.size, short_side)
    grey = _find_grey_range(image)
    if max(image.size) <= TILE_SIDE:
        rgb = _reduce_to_rgb(image, factor, grey)
        return np.array(rgb if turn is None else rgb.transpose(turn))
    width, height = (-(-side // factor) for side in image.size)
    shape = (width, height, 3) if turn in _SIDEWAYS else (height, width, 3)
    upright = np.empty(shape, np.uint8)
    stored = upright if turn is None else _STORED_VIEWS[turn](upright)
    for tile, (x, y) in _split_in_tiles(image, factor):
        tile_hwc = np.asarray(_reduce_to_rgb(tile, factor, grey))
        stored[y : y + tile_hwc.shape[0], x : x + tile_hwc.shape[1]] = tile_hwc
    return upright


def _split_in_tiles(
    image: Image.Image, factor: int
) -> Iterator[tuple[Image.Image, tuple[int, int]]]:
    """Yield the tiles of an image, and where each begins in the reduced image."""
    width, height = image.size
    side = max(TILE_SIDE // factor, 1) * factor
    for top in range(0, height, side):
        for left in range(0, width, side):
            box = (left, top, min(left + side, width), min(top + side, height))
            yield image.crop(box), (left // factor, top // factor)


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
        return _GreyRange(0, 1 if image.mode == "F" else 65535)
    stated_bits = getattr(image, "tag_v2", {}).get(_BITS_PER_SAMPLE, (16,))[0]
    if image.mode.startswith("I;16") and stated_bits < 16:
        return _GreyRange(0, 2**stated_bits - 1)
    low, high = _find_extrema(image)
    if low < 0 or high > 65535:
        return _GreyRange(low, high)
    if image.mode == "F" and high <= 1:
        return _GreyRange(0, 1)
    return _GreyRange(0, next(2**bits - 1 for bits in _USUAL_BITS if high <= 2**bits - 1))


def _find_extrema(image: Image.Image) -> tuple[float, float]:
    if image.mode == "I;16":
        _, highest = image.getextrema()
        return 0, float(highest)  # type: ignore[arg-type]
    extrema = [
        (values.min(), values.max())
        for values in (_read_finite(tile) for tile, _ in _split_in_tiles(image, 1))
    ]
    return float(min(low for low, _ in extrema)), float(max(high for _, high in extrema))


def _read_finite(image: Image.Image) -> NDArray[np.float32]:
    return np.nan_to_num(np.asarray(image).astype(np.float32), posinf=0, neginf=0)


def _scale_to_8_bits(image: Image.Image, grey: _GreyRange) -> Array:
    if image.mode == "I;16":
        table = _scale_values(np.arange(2**16, dtype=np.float32), grey)
        return np.take(table, np.asarray(image))
    return _scale_values(_read_finite(image), grey)


def _scale_values(values: NDArray[np.float32], grey: _GreyRange) -> Array:
    scaled = (values - grey.black) * (255 / (grey.white - grey.black or 1))
    return scaled.round().clip(0, 255).astype(np.uint8)
