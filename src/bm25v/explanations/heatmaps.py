"""A grid of patches becomes a highlight: the image keeps its colours there, the rest is grey.

In: an image and a grid. Out: pixels, or the mask that a page puts over its own copy of the image.
The grid covers the whole image, whatever its shape: backbones see images resized to a square.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]

_LUMA = np.array([0.2126, 0.7152, 0.0722], dtype=np.float32)
# The rest is a grey veil of low contrast, neither dark nor light: dark and light things stand out.
_VEIL, _VEIL_GREY = 0.7, 100
_VISIBLE = 0.08  # of the peak: below, there is no colour
_FULL = 0.55  # of the peak: above, there is nothing but colour
_LAYER_SIDE = 56  # pixels


def upsample(grid: NDArray[np.floating], *, width: int, height: int) -> Floats:
    """Return the grid at an image's size, as shares of its peak between 0 and 1.

    >>> share = upsample(np.array([[0.0, 0.0], [0.0, 2.5]]), width=40, height=30)
    >>> share.shape, round(float(share[28, 38]), 1), round(float(share[2, 2]), 1)
    ((30, 40), 1.0, 0.0)
    """
    peak = float(grid.max(initial=0))
    if peak <= 0:
        return np.zeros((height, width), dtype=np.float32)
    shares = Image.fromarray((grid / peak).astype(np.float32))
    large = shares.resize((width, height), Image.Resampling.BICUBIC)
    return np.clip(np.asarray(large, dtype=np.float32), 0, 1)  # bicubic overshoots


def highlight(
    image_hwc: NDArray[np.uint8], grid: NDArray[np.floating], strength: float = 1.0
) -> NDArray[np.uint8]:
    """Return the image in its colours where the grid is active, under a grey veil elsewhere.

    `strength`, from 0 to 1, is how much of the colours is shown: less of them for a weak match.

    >>> blue = np.full((20, 20, 3), (0, 0, 255), dtype=np.uint8)
    >>> grid = np.array([[0.0, 1.0]])
    >>> highlight(blue, grid)[10, [1, 18]].tolist()
    [[75, 75, 75], [0, 0, 255]]
    >>> highlight(blue, grid, strength=0.5)[10, 18].tolist()
    [37, 37, 165]
    """
    height, width = image_hwc.shape[:2]
    opacity_hw1 = _opacity(upsample(grid, width=width, height=height), strength)[..., None]
    pixels = image_hwc.astype(np.float32)
    grey_hw1 = (pixels @ _LUMA)[..., None]
    veiled_hw1 = _VEIL * _VEIL_GREY + (1 - _VEIL) * grey_hw1
    mixed = veiled_hw1 * (1 - opacity_hw1) + pixels * opacity_hw1
    return np.clip(mixed, 0, 255).astype(np.uint8)


def make_mask(grid: NDArray[np.floating], strength: float = 1.0) -> NDArray[np.uint8]:
    """Return how much of the colours is shown, from 0 to 255; small, as it is smooth.

    >>> mask = make_mask(np.array([[0.0, 0.0], [0.0, 2.5]]), strength=0.6)
    >>> mask.shape, int(mask[0, 0]), int(mask[-1, -1])
    ((56, 56), 0, 153)
    """
    height, width = (max(_LAYER_SIDE, 3 * cells) for cells in grid.shape)
    share_hw = upsample(grid, width=width, height=height)
    return (255 * _opacity(share_hw, strength)).round().astype(np.uint8)


def _opacity(share_hw: Floats, strength: float) -> Floats:
    """Rise smoothly from 0 at `_VISIBLE` to the strength at `_FULL`."""
    x: Floats = np.clip((share_hw - _VISIBLE) / (_FULL - _VISIBLE), 0, 1)
    return strength * x * x * (3 - 2 * x)
