"""An explanation as one image: a sentence, both photos, and each group with where it is in them."""

import os
import unicodedata
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bm25v.explain.explanation import Explanation, Pixels
from bm25v.explain.groups import Grid, Group
from bm25v.explain.heatmaps import highlight, list_photos
from bm25v.search.regions import Box

Position = tuple[int, int]  # x, y
Size = tuple[int, int]  # width, height
Colour = tuple[int, int, int]

_MARGIN, _GAP, _PHOTO, _SMALL, _COLUMN = 48, 24, 480, 200, 536
_WIDTH = 2 * _MARGIN + 2 * _PHOTO + _GAP
_LINE, _TEXT = 30, 72  # the height of a line of the sentence, and of a group without photos
_MIN_SIDE = 16  # pixels of the short side of a panorama

_PAPER, _INK, _QUIET = (251, 250, 248), (30, 28, 26), (116, 111, 104)
_RULE, _TRACK, _ACCENT, _OTHER = (228, 224, 217), (235, 231, 225), (208, 84, 36), (179, 56, 44)
_LEVELS: dict[str, tuple[int, Colour]] = {  # bars of the meter, and their colour
    "strong": (3, (39, 117, 74)),
    "fair": (2, (154, 103, 0)),
    "weak": (1, (179, 56, 44)),
}


def draw(explanation: Explanation) -> Image.Image:
    """Draw all that matched, then each group."""
    explanation = explanation.fine
    # Of several images of a query, the first is drawn.
    photos = {photo.role: photo for photo in reversed(list(list_photos(explanation)))}
    lines = _wrap(explanation.sentence or "Nothing counts for it.", 22, _WIDTH - 2 * _MARGIN)
    images = [photos[role].pixels if role in photos else None for role in ("Query", "Hit")]
    tall, small = (max(_fit(image, side)[1] for image in images) for side in (_PHOTO, _SMALL))
    rows = [
        max(small, _TEXT)
        if any(photo.groups[n] is not None for photo in photos.values())
        else _TEXT
        for n in range(len(explanation.groups))
    ]
    top = _MARGIN + 52 + _LINE * len(lines)
    height = top + 64 + tall + sum(row + 2 * _GAP for row in rows) + _MARGIN
    sheet = Image.new("RGB", (_WIDTH, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    _draw_title(pen, explanation)
    for n, line in enumerate(lines):
        _write(pen, (_MARGIN, _MARGIN + 48 + n * _LINE), line, 22, _INK)
    names = (_name_query(explanation), _name_file(explanation.hit_path))
    for n, (role, name) in enumerate(zip(("Query", "Hit"), names, strict=True)):
        x, photo = _MARGIN + n * (_PHOTO + _GAP), photos.get(role)
        _write(pen, (x, top + 8), role, 17, _QUIET)
        _write(pen, (x, top + 30), _shorten(name, 19, _PHOTO), 19, _INK)
        grid = None if photo is None else photo.grid
        size = _paste(sheet, (x, top + 64), _PHOTO, images[n], grid, explanation.visibility)
        if role == "Query" and explanation.region is not None:
            _draw_frame(pen, (x, top + 64), size, explanation.region)
    y = top + 64 + tall + _GAP
    for number, group in enumerate(explanation.groups):
        pen.line((_MARGIN, y, _WIDTH - _MARGIN, y), _RULE)
        for n, role in enumerate(("Query", "Hit")):
            grid = photos[role].groups[number] if role in photos else None
            if grid is not None:
                corner = (_MARGIN + n * (_SMALL + _GAP), y + _GAP)
                _paste(sheet, corner, _SMALL, images[n], grid)
        _draw_group(pen, y + _GAP, group)
        y += rows[number] + 2 * _GAP
    return sheet


def _fit(image_hwc: Pixels | None, side: int) -> Size:
    """Return the size at which an image fills its box without changing its shape."""
    if image_hwc is None:
        return side, side // 2
    height, width = image_hwc.shape[:2]
    scale = side / max(width, height)
    return max(_MIN_SIDE, round(width * scale)), max(_MIN_SIDE, round(height * scale))


def _paste(
    sheet: Image.Image,
    corner: Position,
    side: int,
    image_hwc: Pixels | None,
    grid: Grid | None,
    strength: float = 1.0,
) -> Size:
    size = _fit(image_hwc, side)
    if image_hwc is None:  # an empty box
        sheet.paste(_TRACK, (*corner, corner[0] + size[0], corner[1] + size[1]))
        return size
    pixels = np.array(Image.fromarray(image_hwc).resize(size, Image.Resampling.BICUBIC))
    shown = pixels if grid is None else highlight(pixels, grid, strength)
    sheet.paste(Image.fromarray(shown), corner)
    return size


def _draw_frame(pen: ImageDraw.ImageDraw, corner: Position, size: Size, region: Box) -> None:
    x, y, width, height = region
    left, right = (corner[0] + round(share * (size[0] - 1)) for share in (x, x + width))
    top, bottom = (corner[1] + round(share * (size[1] - 1)) for share in (y, y + height))
    pen.rectangle((left, top, right, bottom), outline=_ACCENT, width=3)


def _name_query(explanation: Explanation) -> str:
    paths, n_more = explanation.query_paths, len(explanation.query_images) - 1
    without_name = "image" if explanation.query_images else "words"
    name = _name_file(paths[0] if paths else "") or explanation.text or without_name
    return f"{name} + {n_more}" if n_more > 0 else name


def _name_file(path: str) -> str:
    return os.path.join(os.path.basename(os.path.dirname(path)), os.path.basename(path))


def _draw_title(pen: ImageDraw.ImageDraw, explanation: Explanation) -> None:
    x, bottom = _MARGIN, _MARGIN + 26
    if explanation.match.strength is not None:
        n_bars, colour = _LEVELS[explanation.match.strength]
        for n in range(3):
            pen.rectangle((x, bottom - 12 - 6 * n, x + 7, bottom), colour if n < n_bars else _RULE)
            x += 11
        x += 8
    _write(pen, (x, bottom + 1), explanation.title, 34, _INK, anchor="ls")


def _draw_group(pen: ImageDraw.ImageDraw, y: int, group: Group) -> None:
    right, colour = _WIDTH - _MARGIN, _OTHER if group.value < 0 else _ACCENT
    x = right - _COLUMN
    _write(pen, (x, y - 4), _shorten(group.label, 24, _COLUMN - 130), 24, _INK)
    _write(pen, (right, y - 6), group.percent, 28, colour, anchor="ra")
    pen.rectangle((x, y + 38, right - 1, y + 49), _TRACK)
    pen.rectangle(
        (x, y + 38, x + round(min(1.0, abs(group.share)) * (_COLUMN - 1)), y + 49), colour
    )
    _write(pen, (x, y + 60), group.about, 17, _QUIET)


def _write(
    pen: ImageDraw.ImageDraw,
    position: Position,
    text: str,
    size: int,
    colour: Colour,
    anchor: str = "la",
) -> None:
    pen.text(position, _to_drawable(text), fill=colour, font=_font(size), anchor=anchor)


def _wrap(text: str, size: int, width: int) -> list[str]:
    """Divide a text into lines that fit the width at that font size."""
    lines = [""]
    for word in _to_drawable(text).split():
        longer = f"{lines[-1]} {word}".strip()
        if _font(size).getlength(longer) <= width or not lines[-1]:
            lines[-1] = _shorten(longer, size, width)
        else:
            lines.append(_shorten(word, size, width))
    return lines


def _shorten(text: str, size: int, width: int) -> str:
    """Leave out the middle of a text, so that it fits the width at that font size.

    >>> _shorten("a_very_long_name_of_an_image.jpeg", 20, 160)
    'a_very_...ge.jpeg'
    """
    text = _to_drawable(text)
    kept = len(text)
    shortened = text
    while _font(size).getlength(shortened) > width and kept > 2:
        kept -= 1
        shortened = f"{text[: (kept + 1) // 2]}...{text[len(text) - kept // 2 :]}"
    return shortened


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return Pillow's own font, which every machine has."""
    return ImageFont.load_default(size=size)


def _to_drawable(text: str) -> str:
    """Remove accents, and replace what the font cannot draw by `?`."""
    decomposed = unicodedata.normalize("NFKD", text.replace("×", "x").replace("−", "-"))
    plain = (c for c in decomposed if not unicodedata.combining(c))
    return "".join(c if _is_drawable(c) else "?" for c in plain)


@lru_cache(maxsize=4096)
def _is_drawable(character: str) -> bool:
    font = _font(20)
    missing = bytes(font.getmask("\uffff"))
    return character.isprintable() and bytes(font.getmask(character)) != missing
