"""Small images that show a word: cut out where it is strongest, or whole with a highlight."""

import io
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.explain.heatmaps import highlight
from bm25v.explain.words import PatchBox

Pixels = NDArray[np.uint8]
Grid = NDArray[np.float32]

_MOST = 0.6  # of a word's activation, summed over the patches
_MIN_SIDE = 0.3  # of the patches in a row
_MAX_SIDE = 0.72  # of them: a larger crop shows the middle of the image, not the word
_PATCHES = 3  # in a row of a crop around one patch
_COLUMNS = 8  # of a sheet


def crop_word(image_hwc: Pixels, grid: Grid) -> Pixels:
    """Cut out the smallest square that holds most of a word: a whole face, or only its ear.

    It is at least three patches wide, and three tenths of the image's short side: with a fine grid,
    a few patches show too little to recognise anything. A word that is everywhere is cut out where
    most of it is.
    """
    height, width = image_hwc.shape[:2]
    tall, wide = height / grid.shape[0], width / grid.shape[1]
    finest = min(grid.shape)
    smallest = min(finest, max(3, round(_MIN_SIDE * finest)))
    for size in range(smallest, max(smallest, round(_MAX_SIDE * finest)) + 1):
        windows = np.lib.stride_tricks.sliding_window_view(grid, (size, size)).sum(axis=(2, 3))
        if windows.max() >= _MOST * grid.sum():
            break
    top, left = (int(index) for index in np.unravel_index(int(windows.argmax()), windows.shape))
    inside = grid[top : top + size, left : left + size]
    total = max(float(inside.sum()), 1e-12)
    x = left + 0.5 + float(inside.sum(axis=0) @ np.arange(size)) / total
    y = top + 0.5 + float(inside.sum(axis=1) @ np.arange(size)) / total
    return _cut_square(image_hwc, x * wide, y * tall, size * (tall + wide) / 2)


def crop_patch(image_hwc: Pixels, patch: PatchBox) -> Pixels:
    """Cut out a square around a patch, three patches wide; wider if patches are small.

    >>> image = np.zeros((70, 140, 3), dtype=np.uint8)
    >>> crop_patch(image, PatchBox(3 / 7, 3 / 7, 1 / 7, 1 / 7)).shape
    (45, 45, 3)
    >>> crop_patch(image, PatchBox(0.96, 0.96, 0.04, 0.04)).shape
    (21, 21, 3)
    """
    height, width = image_hwc.shape[:2]
    x, y = (patch.left + patch.width / 2) * width, (patch.top + patch.height / 2) * height
    length = _PATCHES * (patch.width * width + patch.height * height) / 2
    shortest = _MIN_SIDE * min(height, width)
    return _cut_square(image_hwc, x, y, max(length, shortest))


def encode_crop(image_hwc: Pixels, grid: Grid, *, side: int) -> bytes:
    return encode_jpeg(_resize_square(crop_word(image_hwc, grid), side))


def encode_highlight(image_hwc: Pixels, grid: Grid, *, side: int, strength: float = 1.0) -> bytes:
    return encode_jpeg(highlight(shrink(image_hwc, side=side), grid, strength))


def shrink(image_hwc: Pixels, *, side: int) -> Pixels:
    """Resize an image so that its longer side has that length."""
    height, width = image_hwc.shape[:2]
    scale = side / max(width, height)
    width, height = max(8, round(width * scale)), max(8, round(height * scale))
    return images.resize_image(image_hwc, width=width, height=height)


def make_sheet(crops: Sequence[Pixels | None], side: int) -> bytes:
    """Return squares as one WebP, in rows of eight; those that are missing are transparent."""
    n_columns, n_rows = min(_COLUMNS, len(crops)), -(-len(crops) // _COLUMNS)
    sheet = Image.new("RGBA", (n_columns * side, n_rows * side))
    for i, crop in enumerate(crops):
        if crop is not None:
            row, column = divmod(i, _COLUMNS)
            sheet.paste(Image.fromarray(crop), (column * side, row * side))
    file = io.BytesIO()
    sheet.save(file, "WEBP", quality=78, method=2)
    return file.getvalue()


def encode_jpeg(image_hwc: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_hwc).save(file, "JPEG", quality=78)
    return file.getvalue()


def _resize_square(image_hwc: Pixels, side: int) -> Pixels:
    return images.resize_image(image_hwc, width=side, height=side)


def _cut_square(image_hwc: Pixels, x: float, y: float, length: float) -> Pixels:
    """Cut out a square inside the image, its centre as near to the point as possible."""
    height, width = image_hwc.shape[:2]
    side = max(1, min(height, width, round(length)))
    left = min(max(0, round(x - side / 2)), width - side)
    top = min(max(0, round(y - side / 2)), height - side)
    return image_hwc[top : top + side, left : left + side]
