"""Where words are in images: grids of patches, combined and highlighted, and parts cut out.

A highlighted image is as it is where a grid is active; the rest is dark, and grey. The border is
outlined, because some photos are dark or grey themselves. A grid covers the whole image, whatever
its shape: backbones see images resized to a square.
"""

import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.explain.explanation import Explanation, Pixels
from bm25v.explain.groups import Grid, Group
from bm25v.explain.words import PatchBox

Floats = NDArray[np.float32]

_LUMA = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
_VEIL = 0.5  # the brightness of the rest
_VISIBLE = 0.2  # of the peak: below, it is dark
_FULL = 0.45  # of the peak: above, it is as it is
_LAYER_SIDE, _EDGE_SIDE = 56, 224  # pixels
_MOST = 0.6  # of a word's activation, summed over the patches of a crop
_MIN_SIDE = 0.3  # of the patches in a row
_MAX_SIDE = 0.72  # of them: a larger crop shows the middle of the image, not the word
_PATCHES = 3  # in a row of a crop around one patch
_COLUMNS = 8  # of a sheet


def upsample(grid: NDArray[np.floating], *, width: int, height: int) -> Floats:
    """Return the grid at an image's size, as shares of its peak between 0 and 1.

    Patches below 0, which count against something, have 0.

    >>> share = upsample(np.array([[0.0, 0.0], [0.0, 2.5]]), width=40, height=30)
    >>> share.shape, round(float(share[28, 38]), 1), round(float(share[2, 2]), 1)
    ((30, 40), 1.0, 0.0)
    """
    peak = float(grid.max(initial=0))
    if peak <= 0:
        return np.zeros((height, width), dtype=np.float32)
    shares = Image.fromarray((np.maximum(grid, 0) / peak).astype(np.float32))
    large = shares.resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(large, dtype=np.float32), 0, 1)  # bicubic overshoots


def highlight(image_hwc: Pixels, grid: NDArray[np.floating], strength: float = 1.0) -> Pixels:
    """Return the image as it is where the grid is active, with an outline; dark elsewhere.

    `strength`, from 0 to 1, is how much of the colours is shown: less of them for a weak match.

    >>> blue = np.full((20, 20, 3), (0, 0, 255), dtype=np.uint8)
    >>> grid = np.array([[0.0, 1.0]])
    >>> highlight(blue, grid)[10, [1, 18]].tolist()
    [[9, 9, 9], [0, 0, 255]]
    >>> highlight(blue, grid, strength=0.5)[10, 18].tolist()
    [4, 4, 132]
    """
    height, width = image_hwc.shape[:2]
    opacity_hw1 = _opacity(upsample(grid, width=width, height=height), strength)[..., None]
    pixels = image_hwc.astype(np.float32)
    grey_hw1 = (pixels @ _LUMA)[..., None]
    mixed = _VEIL * grey_hw1 * (1 - opacity_hw1) + pixels * opacity_hw1
    edge_hw = outline(grid, width=width, height=height)
    mixed[edge_hw] += strength * (255 - mixed[edge_hw])
    return np.clip(mixed, 0, 255).astype(np.uint8)


def outline(grid: NDArray[np.floating], *, width: int, height: int) -> NDArray[np.bool_]:
    """Return the pixels that are shown, and have a neighbour that is not."""
    is_shown_hw = _opacity(upsample(grid, width=width, height=height), 1.0) >= 0.5
    around = np.pad(is_shown_hw, 1, mode="edge")
    neighbours = around[:-2, 1:-1] & around[2:, 1:-1] & around[1:-1, :-2] & around[1:-1, 2:]
    return is_shown_hw & ~neighbours


def make_mask(grid: NDArray[np.floating], strength: float = 1.0) -> Pixels:
    """Return how much of the colours is shown, from 0 to 255; small, as it is smooth.

    >>> mask = make_mask(np.array([[0.0, 0.0], [0.0, 2.5]]), strength=0.6)
    >>> mask.shape, int(mask[0, 0]), int(mask[-1, -1])
    ((56, 56), 0, 153)
    """
    height, width = (max(_LAYER_SIDE, 3 * cells) for cells in grid.shape)
    share_hw = upsample(grid, width=width, height=height)
    return (255 * _opacity(share_hw, strength)).round().astype(np.uint8)


def make_edge(grid: NDArray[np.floating], strength: float = 1.0) -> Pixels:
    """Return how much of the outline is shown, from 0 to 255: a smooth line."""
    edge = Image.fromarray(outline(grid, width=2 * _EDGE_SIDE, height=2 * _EDGE_SIDE))
    share_hw = np.asarray(edge.convert("F").reduce(2)) / 255
    return (255 * strength * np.minimum(1, 2 * share_hw)).astype(np.uint8)


def _opacity(share_hw: Floats, strength: float) -> Floats:
    """Rise smoothly from 0 at `_VISIBLE` to the strength at `_FULL`."""
    x: Floats = np.clip((share_hw - _VISIBLE) / (_FULL - _VISIBLE), 0, 1)
    return strength * x * x * (3 - 2 * x)


class Photo(NamedTuple):
    """An image of an explanation; `grid` is where all that matched is."""

    role: str  # "Query" or "Hit"
    path: str
    pixels: Pixels
    grid: Grid
    groups: list[Grid | None]  # where each group is


def list_photos(explanation: Explanation) -> Iterator[Photo]:
    """Yield each image of the query, then the hit if its file can be read."""
    groups, paths = explanation.groups, dict(enumerate(explanation.query_paths))
    for n, pixels in enumerate(explanation.query_images):
        grids = [group.in_queries[n] if group.in_queries else None for group in groups]
        yield Photo("Query", paths.get(n, ""), pixels, _add_maps(groups, grids), grids)
    if explanation.hit_image is not None:
        grids = [group.in_hit for group in groups]
        combined = _add_maps(groups, grids)
        yield Photo("Hit", explanation.hit_path, explanation.hit_image, combined, grids)


def combine_maps(explanation: Explanation) -> tuple[tuple[Grid, ...], Grid | None]:
    """Return where all that matched is: in each image of the query, and in the hit."""
    photos = list(list_photos(explanation))
    in_hit = next((photo.grid for photo in photos if photo.role == "Hit"), None)
    return tuple(photo.grid for photo in photos if photo.role == "Query"), in_hit


def _add_maps(groups: Sequence[Group], grids: Sequence[Grid | None]) -> Grid:
    """Add up what groups add to the score, each spread over its grid; everywhere if none has one.

    The peak of a term is what it adds: a small object is not brighter than a large one.
    """
    counted = [pair for pair in zip(groups, grids, strict=True) if pair[0].value > 0]
    known = [(group, grid) for group, grid in counted if grid is not None and grid.any()]
    if not known:
        return np.full((1, 1), bool(counted), dtype=np.float32)
    units = [grid.max() if group.kind == "term" else grid.sum() for group, grid in known]
    shares = [g.value * grid / unit for (g, grid), unit in zip(known, units, strict=True)]
    return np.asarray(np.sum(shares, axis=0), dtype=np.float32)


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
    crop = crop_word(image_hwc, grid)
    return encode_jpeg(images.resize_image(crop, width=side, height=side))


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


def _cut_square(image_hwc: Pixels, x: float, y: float, length: float) -> Pixels:
    """Cut out a square inside the image, its centre as near to the point as possible."""
    height, width = image_hwc.shape[:2]
    side = max(1, min(height, width, round(length)))
    left = min(max(0, round(x - side / 2)), width - side)
    top = min(max(0, round(y - side / 2)), height - side)
    return image_hwc[top : top + side, left : left + side]
