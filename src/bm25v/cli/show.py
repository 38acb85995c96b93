"""Images in the terminal, side by side with captions, as many per row as fit."""

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from bm25v.cli.printing import cell_width, console, echo, shorten

if TYPE_CHECKING:
    from bm25v.explanations.terminal import Cell, Pixels

_GAP = 2  # columns between two images
EXAMPLE_SIDE = 96  # pixels of an image that shows a word
_EXAMPLE_COLUMNS = 36  # of such an image, at most
_MAX_WIDTH = 200  # columns of a row, also where a line has no end


class Box(NamedTuple):
    """Cells of the terminal."""

    columns: int
    lines: int


class Shown(NamedTuple):
    """An image and the lines below it; without pixels, its place stays empty."""

    pixels: "Pixels | None"
    captions: Sequence[str]


def can_show() -> bool:
    """Return whether standard output shows images; if not, say what to do instead."""
    from bm25v.explanations.terminal import CHOICE

    out = console()
    if os.environ.get(CHOICE) or (out.color_system is not None and not out.no_color):
        return True
    echo("note: this terminal has no colours to show images with: use -o", err=True)
    return False


def thumbnail_box() -> Box:
    """Return the size of a thumbnail; as coloured text, it needs more to be recognised."""
    from bm25v.explanations.terminal import BLOCKS, choose_protocol

    return Box(25, 12) if choose_protocol(os.environ) == BLOCKS else Box(18, 9)


def show_examples(crops: "Sequence[Pixels]") -> None:
    """Print images that show a word in one row, as large as the terminal allows."""
    columns = (min(console().width, _MAX_WIDTH) + _GAP) // max(1, len(crops)) - _GAP
    columns = max(1, min(columns, _EXAMPLE_COLUMNS))
    show_images([Shown(pixels, ()) for pixels in crops], Box(columns, -(-columns // 2)))


def show_images(shown: Sequence[Shown], box: Box) -> None:
    """Print images, each in a box of at most that many cells, and its captions."""
    from bm25v.explanations.terminal import BLOCKS, choose_protocol, draw_row

    protocol = choose_protocol(os.environ)
    width = min(console().width, _MAX_WIDTH)
    columns = max(1, min(box.columns, width))
    per_row = max(1, (width + _GAP) // (columns + _GAP))
    for start in range(0, len(shown), per_row):
        row = shown[start : start + per_row]
        pixels = [image.pixels for image in row]
        if protocol == BLOCKS:
            _print_blocks(pixels, columns, box.lines)
        else:
            sys.stdout.flush()
            cells = {"columns": columns, "lines": box.lines, "gap": _GAP}
            sys.stdout.write(draw_row(pixels, protocol, **cells, cell=_measure_cell()))
            sys.stdout.flush()
        for captions in zip(*(image.captions for image in row), strict=True):
            fitted = [_fit(caption, columns) for caption in captions]
            echo((" " * _GAP).join(fitted).rstrip())


def _print_blocks(row: "Sequence[Pixels | None]", columns: int, lines: int) -> None:
    from rich.table import Table

    from bm25v.explanations.terminal import draw_half_blocks

    table = Table.grid(padding=(0, _GAP, 0, 0))
    for _ in row:
        table.add_column(width=columns, justify="center", vertical="bottom")
    table.add_row(
        *(
            "" if pixels is None else draw_half_blocks(pixels, columns=columns, max_lines=lines)
            for pixels in row
        )
    )
    console().print(table)


def _fit(caption: str, width: int) -> str:
    short = shorten(caption, width)
    return short + " " * (width - cell_width(short))


def _measure_cell() -> "Cell":
    """Return the size of a character, which sixels need; a usual one if it is not known."""
    from bm25v.explanations.terminal import Cell

    try:
        import fcntl  # Windows: has none, and no terminal with sixels is detected there
        import struct
        import termios  # Windows: has none either

        answer = fcntl.ioctl(sys.stdout.fileno(), termios.TIOCGWINSZ, bytes(8))
        n_lines, n_columns, width, height = struct.unpack("HHHH", answer)
    except (ImportError, OSError):  # Windows; or no terminal
        return Cell()
    return Cell(width // n_columns, height // n_lines) if width and height else Cell()
