"""Images in the terminal: by a graphics protocol if the terminal has one, else as coloured text.

In: pixels, and how many cells (columns and lines) they may take. Out: what is written to the
terminal. Which protocol that is follows from environment variables alone: asking the terminal
itself may leave its answer on the screen. Not this module's job: writing, and captions.
"""

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.style import Style
from rich.text import Text

from bm25v import images
from bm25v.errors import WrongUse

Pixels = NDArray[np.uint8]

CHOICE = "BM25V_TERMINAL"  # an environment variable that names a protocol
PROTOCOLS = ("kitty", "iterm2", "sixel", "blocks")
BLOCKS = "blocks"

_UPPER_HALF = "▀"
_KITTY_CHUNK = 4096  # characters, at most
_SIXEL_COLOURS = 255
_MULTIPLEXERS = ("TMUX", "STY")  # they may drop what they do not know


class Cell(NamedTuple):
    """The size of a character, in pixels."""

    width: int = 10
    height: int = 20


def choose_protocol(environment: Mapping[str, str]) -> str:
    """Return how the terminal shows images, as far as its environment variables tell.

    >>> choose_protocol({"TERM": "xterm-kitty"}), choose_protocol({"TERM": "xterm-256color"})
    ('kitty', 'blocks')
    """
    chosen = environment.get(CHOICE, "")
    if chosen:
        if chosen not in PROTOCOLS:
            raise WrongUse(f"{CHOICE}={chosen}: choose one of {', '.join(PROTOCOLS)}")
        return chosen
    term, program = environment.get("TERM", ""), environment.get("TERM_PROGRAM", "")
    if any(map(environment.get, _MULTIPLEXERS)) or term.startswith(("screen", "tmux")):
        return BLOCKS
    if term in ("xterm-kitty", "xterm-ghostty") or program == "ghostty":
        return "kitty"
    if program in ("iTerm.app", "WezTerm", "mintty"):
        return "iterm2"
    return "sixel" if term in ("foot", "foot-extra", "mlterm") or "sixel" in term else BLOCKS


def draw_row(
    row: Sequence[Pixels | None],
    protocol: str,
    *,
    columns: int,
    lines: int,
    gap: int,
    cell: Cell = Cell(),  # noqa: B008 - a tuple
) -> str:
    """Return what shows images side by side, each in a box of cells, and ends below them.

    The lines are made first, so that nothing scrolls while the image is drawn, and the cursor is
    restored after it, because protocols leave it at different positions.
    """
    width = (len(row) * (columns + gap) - gap) * cell.width
    strip = Image.new("RGBA", (width, lines * cell.height))
    box = (columns * cell.width, lines * cell.height)
    for n, pixels in enumerate(row):
        if pixels is not None:
            image = Image.fromarray(pixels)
            image.thumbnail(box, Image.Resampling.BICUBIC)
            left = n * (columns + gap) * cell.width + (box[0] - image.width) // 2
            strip.paste(image, (left, box[1] - image.height))
    size = (width // cell.width, lines)
    if protocol == "sixel":
        drawn = encode_sixel(strip)
    else:
        drawn = (encode_kitty if protocol == "kitty" else encode_iterm2)(strip, *size)
    up, down = f"\x1b[{lines}A", f"\x1b[{lines}B"
    return "\n" * lines + up + "\x1b7" + drawn + "\x1b8" + down


def encode_kitty(image: Image.Image, columns: int, lines: int) -> str:
    """Return the commands of kitty's graphics protocol; the terminal is not to answer."""
    content = base64.b64encode(_encode_png(image)).decode()
    chunks = [content[n : n + _KITTY_CHUNK] for n in range(0, len(content), _KITTY_CHUNK)]
    commands = []
    for n, chunk in enumerate(chunks):
        keys = f"a=T,f=100,q=2,C=1,c={columns},r={lines}," if n == 0 else ""
        commands.append(f"\x1b_G{keys}m={int(n < len(chunks) - 1)};{chunk}\x1b\\")
    return "".join(commands)


def encode_iterm2(image: Image.Image, columns: int, lines: int) -> str:
    """Return the command of iTerm2's inline images protocol."""
    content = _encode_png(image)
    keys = f"inline=1;size={len(content)};width={columns};height={lines};preserveAspectRatio=0"
    return f"\x1b]1337;File={keys}:{base64.b64encode(content).decode()}\x07"


def encode_sixel(image: Image.Image) -> str:
    """Return an image in sixels: bands of six lines, each colour drawn over the whole band.

    Transparent pixels are not drawn.
    """
    rgba_hwc = np.asarray(image.convert("RGBA"))
    height, width = rgba_hwc.shape[:2]
    reduced = Image.fromarray(rgba_hwc[..., :3]).quantize(_SIXEL_COLOURS)
    colours_hw = np.asarray(reduced).astype(np.int16)
    colours_hw = np.where(rgba_hwc[..., 3] < 128, -1, colours_hw)
    palette = np.array(reduced.getpalette(), dtype=float).reshape(-1, 3) * 100 / 255
    used = [int(colour) for colour in np.unique(colours_hw) if colour >= 0]
    registers = "".join("#{};2;{:.0f};{:.0f};{:.0f}".format(n, *palette[n]) for n in used)
    padded_hw = np.pad(colours_hw, ((0, -height % 6), (0, 0)), constant_values=-1)
    bands = "-".join(_encode_band(band) for band in padded_hw.reshape(-1, 6, width))
    return f'\x1bP0;1;0q"1;1;{width};{height}{registers}{bands}\x1b\\'


def _encode_band(band: NDArray[np.int16]) -> str:
    bits = np.array([1, 2, 4, 8, 16, 32])[:, None]
    parts = []
    for colour in np.unique(band[band >= 0]).tolist():
        sixels = ((band == colour) * bits).sum(axis=0)
        parts.append(f"#{colour}" + "".join(_repeat(sixels)))
    return "$".join(parts)


def _repeat(sixels: NDArray[np.int64]) -> Iterator[str]:
    """Yield the characters of a line of sixels; equal ones are counted."""
    starts = np.flatnonzero(np.diff(sixels, prepend=-1))
    lengths = np.diff(starts, append=len(sixels)).tolist()
    for sixel, length in zip(sixels[starts].tolist(), lengths, strict=True):
        character = chr(63 + sixel)
        yield f"!{length}{character}" if length > 3 else character * length


def draw_half_blocks(image_hwc: Pixels, *, columns: int, max_lines: int | None = None) -> Text:
    """Return an image as coloured text: each character shows two pixels, one above the other.

    It has that many columns, or fewer if it would have more than `max_lines`.

    >>> shown = draw_half_blocks(np.zeros((40, 60, 3), np.uint8), columns=30)
    >>> lines = shown.plain.splitlines()
    >>> len(lines), set(map(len, lines))
    (10, {30})
    """
    height, width = image_hwc.shape[:2]
    if max_lines is not None:
        columns = max(1, min(columns, round(2 * max_lines * width / height)))
    lines = max(1, round(columns * height / width / 2))
    small = images.resize_image(image_hwc, width=columns, height=2 * lines)
    text = Text()
    for y in range(lines):
        text.append("\n" if y else "")
        for upper, lower in zip(small[2 * y].tolist(), small[2 * y + 1].tolist(), strict=True):
            text.append(_UPPER_HALF, Style(color=_rgb(upper), bgcolor=_rgb(lower)))
    return text


def _encode_png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _rgb(pixel: list[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*pixel)
