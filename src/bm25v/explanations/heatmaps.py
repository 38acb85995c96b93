"""A word's grid of patches becomes colours over an image.

In: an image and a grid. Out: pixels. The grid covers the whole image, whatever its shape: backbones
see images resized to a square.
"""

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]

_LUMA = np.array([0.299, 0.587, 0.114], dtype=np.float32)
_STOPS = np.array(  # from plum over red and orange to pale yellow, lighter at every step
    [(43, 6, 62), (140, 29, 92), (224, 79, 57), (251, 161, 28), (255, 240, 158)], dtype=np.float32
)
_VISIBLE = 0.03  # of the peak: below, the image is grey
_OPAQUE = 0.5  # of the peak: above, nothing of the grey is left
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


def overlay(image_hwc: NDArray[np.uint8], grid: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the image in warm colours where the word is, dark and grey where it is not.

    >>> blue = np.full((20, 20, 3), (0, 0, 255), dtype=np.uint8)
    >>> drawn = overlay(blue, np.array([[0.0, 1.0]]))
    >>> drawn[10, 1].tolist(), bool(drawn[10, 18].mean() > 100)
    ([30, 30, 30], True)
    """
    height, width = image_hwc.shape[:2]
    share_hw = upsample(grid, width=width, height=height)
    pixels = image_hwc.astype(np.float32)
    grey_hw1 = (pixels @ _LUMA)[..., None]
    # The brightness of the image shows through the heat, so that one sees what is there. Its
    # colours do not: on an orange flower they would look like heat.
    heat = _colour(0.25 + 0.75 * share_hw) * (0.65 + 0.35 * grey_hw1 / 255)
    opacity_hw1 = _opacity(share_hw)[..., None]
    mixed = (16 + 0.5 * grey_hw1) * (1 - opacity_hw1) + heat * opacity_hw1
    return np.clip(mixed, 0, 255).astype(np.uint8)


def colour_scale(*, width: int, height: int) -> NDArray[np.uint8]:
    """Return the colours from weak to strong, for a legend.

    >>> colour_scale(width=100, height=8).shape
    (8, 100, 3)
    """
    grey = np.full((height, width, 3), 215, dtype=np.uint8)
    return overlay(grey, np.linspace(0, 1, width)[None])


def heat_layer(grid: NDArray[np.floating]) -> NDArray[np.uint8]:
    """Return the heat alone, as RGBA to put over an image; small, as it is smooth.

    >>> heat = heat_layer(np.array([[0.0, 0.0], [0.0, 2.5]]))
    >>> heat.shape, heat[-1, -1, 3] > 200, heat[0, 0, 3]
    ((56, 56, 4), np.True_, np.uint8(0))
    """
    height, width = (max(_LAYER_SIDE, 3 * cells) for cells in grid.shape)
    share_hw = upsample(grid, width=width, height=height)
    colours_hwc = _colour(0.25 + 0.75 * share_hw)
    opacity_hw1 = 255 * _opacity(share_hw)[..., None]
    return np.concatenate([colours_hwc, opacity_hw1], axis=-1).astype(np.uint8)


def _colour(share_hw: Floats) -> Floats:
    positions = np.linspace(0, 1, len(_STOPS))
    channels = [np.interp(share_hw, positions, stops) for stops in _STOPS.T]
    return np.stack(channels, axis=-1).astype(np.float32)


def _opacity(share_hw: Floats) -> Floats:
    """Rise smoothly from 0 at `_VISIBLE` to 1 at `_OPAQUE`."""
    x: Floats = np.clip((share_hw - _VISIBLE) / (_OPAQUE - _VISIBLE), 0, 1)
    return x * x * (3 - 2 * x)
