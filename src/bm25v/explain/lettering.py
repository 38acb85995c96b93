"""Text on a sheet: any name, in the one font that is always there."""

import unicodedata
from functools import lru_cache

from PIL import ImageDraw, ImageFont

Colour = tuple[int, int, int]


def write(
    pencil: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    size: int,
    colour: Colour,
    anchor: str = "la",
) -> None:
    """Write a line of text; `anchor` says which of its corners is at the place, as in Pillow."""
    pencil.text(place, _readable(text), fill=colour, font=_font(size), anchor=anchor)


def shorten(text: str, size: int, width: int) -> str:
    """Return the text with its middle left out, so that it fits the width at that font size.

    >>> shorten("a_very_long_name_of_a_picture.jpeg", 20, 160)
    'a_very_...re.jpeg'
    """
    text = _readable(text)
    kept = len(text)
    shortened = text
    while _font(size).getlength(shortened) > width and kept > 2:
        kept -= 1
        shortened = f"{text[: (kept + 1) // 2]}...{text[len(text) - kept // 2 :]}"
    return shortened


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def _readable(text: str) -> str:
    """Write accented letters without accents, and `?` for what the font cannot show."""
    plain = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if _is_drawable(c) else "?" for c in plain)


@lru_cache(maxsize=4096)
def _is_drawable(character: str) -> bool:
    font = _font(20)
    missing = bytes(font.getmask("\uffff"))
    return character.isprintable() and bytes(font.getmask(character)) != missing
