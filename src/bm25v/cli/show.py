"""Images in the terminal as coloured text, side by side with captions, as many per row as fit."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.color import Color
from rich.style import Style
from rich.table import Table
from rich.text import Text

from bm25v import images
from bm25v.cli.printing import console, echo
from bm25v.display import one_line

Pixels = NDArray[np.uint8]

_GAP = 2  # columns between two images
_MAX_WIDTH = 200  # columns of a row, also where a line has no end


class Shown(NamedTuple):
    """An image and the lines below it; without pixels, only these."""

    pixels: Pixels | None
    captions: Sequence[str]


def can_show() -> bool:
    """Return whether standard output shows images; if not, say what to do instead."""
    out = console()
    if out.color_system is None or out.no_color:
        echo("note: this terminal has no colours to show images with: use -o", err=True)
        return False
    return True


def show_images(shown: Sequence[Shown], *, columns: int, lines: int) -> None:
    """Print images, each in a box of at most that many cells, with captions."""
    out = console()
    width = min(out.width, _MAX_WIDTH)
    columns = max(1, min(columns, width))
    per_row = max(1, (width + _GAP) // (columns + _GAP))
    for start in range(0, len(shown), per_row):
        row = shown[start : start + per_row]
        table = Table.grid(padding=(0, _GAP, 0, 0))
        for _ in row:
            table.add_column(width=columns, justify="center", vertical="bottom")
        drawn = [
            draw_half_blocks(image.pixels, columns=columns, max_lines=lines)
            if image.pixels is not None
            else ""
            for image in row
        ]
        table.add_row(*drawn)
        for captions in zip(*(image.captions for image in row), strict=True):
            texts = map(one_line, captions)
            table.add_row(
                *(Text(t, justify="left", no_wrap=True, overflow="ellipsis") for t in texts)
            )
        out.print(table)


def draw_half_blocks(image_hwc: Pixels, *, columns: int, max_lines: int) -> Text:
    """Return an image as coloured text: each character shows two pixels, one above the other.

    It has that many columns, or fewer if it would have more than `max_lines`.

    >>> shown = draw_half_blocks(np.zeros((40, 60, 3), np.uint8), columns=30, max_lines=12)
    >>> lines = shown.plain.splitlines()
    >>> len(lines), set(map(len, lines))
    (10, {30})
    """
    height, width = image_hwc.shape[:2]
    columns = max(1, min(columns, round(2 * max_lines * width / height)))
    lines = max(1, round(columns * height / width / 2))
    small = images.resize_image(image_hwc, width=columns, height=2 * lines)
    text = Text()
    for y in range(lines):
        text.append("\n" if y else "")
        for upper, lower in zip(small[2 * y].tolist(), small[2 * y + 1].tolist(), strict=True):
            text.append("▀", Style(color=Color.from_rgb(*upper), bgcolor=Color.from_rgb(*lower)))
    return text
