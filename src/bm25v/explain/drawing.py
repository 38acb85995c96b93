"""An explanation as one image: both images, how the score adds up, then the words that add most."""

import os
import unicodedata
from functools import lru_cache

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from bm25v.display import count
from bm25v.explain.crops import cut_examples
from bm25v.explain.explanation import Explanation, Grid, Pixels
from bm25v.explain.heatmaps import Pin, highlight, list_photos
from bm25v.explain.sums import percent_of, sum_up
from bm25v.search.regions import Box

Position = tuple[int, int]  # x, y
Size = tuple[int, int]  # width, height
Colour = tuple[int, int, int]

_MARGIN, _GAP, _BOX, _COLUMN = 48, 28, 280, 400
_LEFT = (_MARGIN, _MARGIN + _BOX + _GAP, _MARGIN + 2 * _BOX + 3 * _GAP)  # query, hit, text
_WIDTH = _LEFT[2] + _COLUMN + _MARGIN
_CAPTIONS, _FOOTER = 118, 76
_TEXT = 216  # height of the text beside images
_LINE_HEIGHT = 34  # of a word of a text
_CROP = 94  # pixels
_MIN_SIDE = 16  # pixels of the short side of a panorama

_PAPER, _INK, _QUIET = (251, 250, 248), (30, 28, 26), (116, 111, 104)
_LINE, _TRACK, _COUNTED, _ACCENT = (228, 224, 217), (235, 231, 225), (207, 200, 190), (208, 84, 36)
_LEVELS: dict[str, tuple[int, Colour]] = {  # bars of the meter, and their colour
    "strong": (3, (39, 117, 74)),
    "fair": (2, (154, 103, 0)),
    "weak": (1, (179, 56, 44)),
}


def draw(explanation: Explanation, *, top: int = 5) -> Image.Image:
    """Draw where the `top` words are, and how all words add up to the score."""
    images = explanation.query_images or (None,)
    query_size, hit_size = _fit(images[0]), _fit(explanation.hit_image)
    queries = [_resize(image, query_size) for image in images]  # all in the shape of the first
    hit = _resize(explanation.hit_image, hit_size)
    shown = explanation.parts[:top]
    row = max(query_size[1], hit_size[1], _TEXT)  # its height
    first_row = max(row, _LINE_HEIGHT * len(explanation.match.text) + 50)
    rows = first_row + _GAP + len(shown) * (row + 2 * _GAP)
    sheet = Image.new("RGB", (_WIDTH, 2 * _MARGIN + _CAPTIONS + rows + _FOOTER), _PAPER)
    pen = ImageDraw.Draw(sheet)
    _draw_title(pen, explanation)
    _draw_caption(pen, _LEFT[0], "Query", _name_query(explanation))
    _draw_caption(pen, _LEFT[1], "Hit", _name_file(explanation.hit_path))
    y = _MARGIN + _CAPTIONS
    first_photos = {photo.role: photo for photo in reversed(list(list_photos(explanation)))}
    for x, role, pixels in ((_LEFT[0], "Query", queries[0]), (_LEFT[1], "Hit", hit)):
        photo = first_photos.get(role)
        _paste(sheet, (x, y), pixels, photo and photo.grid, explanation.visibility)
        if role == "Query" and explanation.region is not None:
            _draw_frame(pen, (x, y), query_size, explanation.region)
        if photo is not None:
            _draw_pins(pen, (x, y), (pixels.shape[1], pixels.shape[0]), photo.pins)
    _draw_sum(pen, y, explanation)
    y += first_row + _GAP
    crops = cut_examples((e for part in shown for e in part.examples), side=_CROP)
    contributions = explanation.rounded_contributions()
    for n, part in enumerate(shown):
        pen.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
        strength = explanation.part_visibility(part)
        _paste(sheet, (_LEFT[0], y + _GAP), queries[part.best_query], part.in_query, strength)
        _paste(sheet, (_LEFT[1], y + _GAP), hit, part.in_hit, strength)
        _draw_word(pen, y + _GAP, n, contributions, explanation)
        for i, crop in enumerate(crops[e] for e in part.examples if e in crops):
            position = (_LEFT[2] + i * (_CROP + 8), y + _GAP + _TEXT - _CROP)
            sheet.paste(Image.fromarray(crop), position)
        y += row + 2 * _GAP
    if shown or not explanation.terms:
        _draw_footer(pen, y, explanation, len(shown))
    return sheet


def _fit(image_hwc: Pixels | None) -> Size:
    """Return the size at which an image fills its box without changing its shape."""
    if image_hwc is None:
        return _BOX, _BOX * 3 // 4
    height, width = image_hwc.shape[:2]
    scale = _BOX / max(width, height)
    return max(_MIN_SIDE, round(width * scale)), max(_MIN_SIDE, round(height * scale))


def _resize(image_hwc: Pixels | None, size: Size) -> Pixels:
    if image_hwc is None:  # an empty box
        return np.full((size[1], size[0], 3), _TRACK, dtype=np.uint8)
    return np.array(Image.fromarray(image_hwc).resize(size, Image.Resampling.BICUBIC))


def _paste(
    sheet: Image.Image, corner: Position, pixels: Pixels, grid: Grid | None, strength: float
) -> None:
    shown = pixels if grid is None else highlight(pixels, grid, strength)
    sheet.paste(Image.fromarray(shown), corner)


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
            pen.rectangle((x, bottom - 12 - 6 * n, x + 7, bottom), colour if n < n_bars else _LINE)
            x += 11
        x += 8
    _write(pen, (x, bottom + 1), explanation.title, 34, _INK, anchor="ls")


def _draw_caption(pen: ImageDraw.ImageDraw, x: int, role: str, name: str) -> None:
    _write(pen, (x, _MARGIN + 52), role, 17, _QUIET)
    _write(pen, (x, _MARGIN + 76), _shorten(name, 19, _BOX), 19, _INK)


def _draw_pins(pen: ImageDraw.ImageDraw, corner: Position, size: Size, pins: list[Pin]) -> None:
    for pin in pins:
        x, y = round(corner[0] + pin.x * size[0]), round(corner[1] + pin.y * size[1])
        pen.ellipse((x - 13, y - 13, x + 13, y + 13), (255, 255, 255), _INK, 2)
        _write(pen, (x, y), str(pin.number), 17, _INK, anchor="mm")


def _draw_sum(pen: ImageDraw.ImageDraw, y: int, explanation: Explanation) -> None:
    x, right = _LEFT[2], _LEFT[2] + _COLUMN
    *terms, score = sum_up(explanation.match)
    for n, line in enumerate(terms):
        sign = "+ " if n and line.value else ""
        number = f"{n + 1}  " if explanation.is_text_alone else ""  # as in the image
        _write(pen, (x, y), _shorten(f"{sign}{number}{line.label}", 22, _COLUMN - 100), 22, _INK)
        _write(pen, (right, y), line.value, 22, _INK, anchor="ra")
        _write(pen, (x, y + 28), line.about, 17, _QUIET)
        y += 60 if line.about else _LINE_HEIGHT
    pen.line((x, y, right, y), _COUNTED)
    _write(pen, (x, y + 8), f"= {score.label}", 26, _INK)
    _write(pen, (right, y + 8), score.value, 26, _INK, anchor="ra")
    if explanation.terms:
        return
    matched = f"{explanation.match.coverage:.0%} of the query matched"
    _write(pen, (x, y + 50), matched, 17, _QUIET)
    if not explanation.parts:
        _write(pen, (x, y + 76), "No shared words", 17, _QUIET)


def _draw_word(
    pen: ImageDraw.ImageDraw,
    y: int,
    n: int,
    contributions: list[float],
    explanation: Explanation,
) -> None:
    word, x, right = explanation.parts[n].word, _LEFT[2], _LEFT[2] + _COLUMN
    label = word.label if explanation.is_text_alone else f"{n + 1}  {word.label}"
    _write(pen, (x, y - 4), _shorten(label, 24, _COLUMN - 130), 24, _INK)
    _write(pen, (right, y - 6), f"{contributions[n]:+.2f}", 28, _ACCENT, anchor="ra")
    before = sum(contributions[:n])
    _draw_bar(pen, y + 38, before, contributions[n], explanation.positive_sum)
    percent = percent_of(word.contribution, explanation.positive_sum)
    rarity = f"in {word.df:,} of {count(explanation.match.n_images, 'image')}"
    about = "counts against it" if word.contribution < 0 else f"{percent} of what words add"
    _write(pen, (x, y + 58), f"{about}, {rarity}", 17, _INK)
    weight = "" if word.weight == 1 else f" x weight {word.weight:.3g}"
    factors = f"idf {word.idf:.2f} x saturation {word.saturation:.2f}{weight}"
    _write(pen, (x, y + 84), factors, 17, _QUIET)


def _draw_bar(pen: ImageDraw.ImageDraw, y: int, before: float, value: float, whole: float) -> None:
    """Draw a part of the score; it starts where the part above it ends."""

    def stretch(start: float, end: float, colour: Colour) -> None:
        left, right = (_LEFT[2] + round(_COLUMN * part / (whole or 1)) for part in (start, end))
        pen.rectangle((left, y, max(left, right - 1), y + 11), colour)

    stretch(0, whole or 1, _TRACK)
    if before > 0:
        stretch(0, min(before, before + value), _COUNTED)
    if value:
        stretch(min(before, before + value), max(before, before + value), _ACCENT)


def _draw_footer(pen: ImageDraw.ImageDraw, y: int, explanation: Explanation, n_drawn: int) -> None:
    pen.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
    score, x, right = explanation.sparse, _LEFT[2], _LEFT[2] + _COLUMN
    contributions = explanation.rounded_contributions()
    drawn, rest = sum(contributions[:n_drawn]), sum(contributions[n_drawn:])
    n_more = len(contributions) - n_drawn
    if n_more:
        more = count(n_more, "more word")
        about = f"{more}: {percent_of(rest, score)}"
        _write(pen, (x, y + _GAP - 4), about, 19, _INK)
        _write(pen, (right, y + _GAP - 8), f"{rest:+.2f}", 24, _ACCENT, anchor="ra")
        _draw_bar(pen, y + _GAP + 26, drawn, rest, explanation.positive_sum)
        summary = f"{drawn:.2f} above + {rest:.2f} in {more} = {score:.2f} by words (BM25)"
    else:
        summary = f"All shared words are shown; they add up to {score:.2f} by words (BM25)"
    _write(pen, (_MARGIN, y + _GAP - 4), summary, 19, _INK)


def _write(
    pen: ImageDraw.ImageDraw,
    position: Position,
    text: str,
    size: int,
    colour: Colour,
    anchor: str = "la",
) -> None:
    pen.text(position, _to_drawable(text), fill=colour, font=_font(size), anchor=anchor)


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
    decomposed = unicodedata.normalize("NFKD", text.replace("×", "x"))
    plain = (c for c in decomposed if not unicodedata.combining(c))
    return "".join(c if _is_drawable(c) else "?" for c in plain)


@lru_cache(maxsize=4096)
def _is_drawable(character: str) -> bool:
    font = _font(20)
    missing = bytes(font.getmask("\uffff"))
    return character.isprintable() and bytes(font.getmask(character)) != missing
