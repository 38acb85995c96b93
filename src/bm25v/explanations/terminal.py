"""An image in the terminal: each character shows two pixels, one above the other."""

import numpy as np
from numpy.typing import NDArray
from rich.style import Style
from rich.text import Text

from bm25v import images

_UPPER_HALF = "▀"


def draw_half_blocks(image_hwc: NDArray[np.uint8], *, columns: int) -> Text:
    """Return an image as coloured text with that many columns.

    >>> shown = draw_half_blocks(np.zeros((40, 60, 3), np.uint8), columns=30)
    >>> lines = shown.plain.splitlines()
    >>> len(lines), set(map(len, lines))
    (10, {30})
    """
    height, width = image_hwc.shape[:2]
    lines = max(1, round(columns * height / width / 2))
    small = images.resize_image(image_hwc, width=columns, height=2 * lines)
    text = Text()
    for y in range(lines):
        for upper, lower in zip(small[2 * y].tolist(), small[2 * y + 1].tolist(), strict=True):
            text.append(_UPPER_HALF, Style(color=_rgb(upper), bgcolor=_rgb(lower)))
        text.append("\n")
    return text


def _rgb(pixel: list[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)
