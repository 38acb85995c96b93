"""An explanation as one picture: both photos, then a row for each of the words that give most."""

import unicodedata
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from bm25v.errors import WrongUse
from bm25v.explain.explanation import Explanation, Part
from bm25v.explain.heatmaps import overlay
from bm25v.query.regions import Box

Pixels = NDArray[np.uint8]
Size = tuple[int, int]  # width, height

_MARGIN, _GAP, _BOX, _COLUMN = 48, 28, 280, 400
_LEFT = (_MARGIN, _MARGIN + _BOX + _GAP, _MARGIN + 2 * _BOX + 3 * _GAP)  # query, hit, text
_WIDTH = _LEFT[2] + _COLUMN + _MARGIN
_CAPTIONS, _FOOTER = 66, 76
_HEAD_TEXT, _WORD_TEXT = 216, 132  # heights that the text beside the pictures needs
_THINNEST = 16  # pixels left of the short side of a panorama

_PAPER, _INK, _QUIET = (251, 250, 248), (30, 28, 26), (116, 111, 104)
_LINE, _TRACK, _COUNTED, _ACCENT = (228, 224, 217), (235, 231, 225), (207, 200, 190), (208, 84, 36)


class _Layout(NamedTuple):
    query: Size
    hit: Size
    head: int  # heights of the rows
    word: int
    n_words: int

    @property
    def height(self) -> int:
        words = max(self.n_words, 1) * (self.word + 2 * _GAP)
        return _MARGIN + _CAPTIONS + self.head + _GAP + words + _FOOTER + _MARGIN


def draw(explanation: Explanation, *, top: int = 5, query_name: str = "query") -> Image.Image:
    """Return a sheet that shows where the `top` words are and how all words make up the score.

    >>> from bm25v.gallery import Match, Word
    >>> pixels, grid = np.zeros((40, 60, 3), np.uint8), np.ones((7, 7), np.float32)
    >>> word = Word(7, "petal", 2.0, 3.0, 4.0, 1.5, 3.0)
    >>> match = Match("rose.jpg", 3.0, 0.9, (word,), 0.4, 3.0, 3.0, 20)
    >>> draw(Explanation((pixels,), pixels, match, (Part(word, (grid,), grid),))).width
    1140
    """
    layout = _layout(explanation, top)
    sheet = Image.new("RGB", (_WIDTH, layout.height), _PAPER)
    pencil = ImageDraw.Draw(sheet)
    queries = [_resized(image, layout.query) for image in explanation.query_images]
    hit = _resized(explanation.hit_image, layout.hit)
    first = queries[0] if queries else _resized(None, layout.query)
    n_more = len(queries) - 1
    _caption(pencil, _LEFT[0], "Query", f"{query_name} + {n_more}" if n_more > 0 else query_name)
    _caption(pencil, _LEFT[1], "Hit", Path(explanation.hit_path).name)
    y = _MARGIN + _CAPTIONS
    _paste(sheet, y, _framed(first, explanation.region), hit)
    _head(pencil, y, explanation)
    y += layout.head + _GAP
    before = 0.0
    for part in explanation.parts[:top]:
        pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
        shown = queries[part.query] if queries else first
        _paste(sheet, y + _GAP, _glowing(shown, part.in_query), _glowing(hit, part.in_hit))
        _word(pencil, y + _GAP, part, before, explanation)
        before += part.word.contribution
        y += layout.word + 2 * _GAP
    if not explanation.parts:
        pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
        _write(pencil, (_MARGIN, y + _GAP), "No shared words", 22, _INK)
        y += layout.word + 2 * _GAP
    _footer(pencil, y, explanation, layout.n_words)
    return sheet


def sheet_size(explanation: Explanation, *, top: int = 5) -> Size:
    """Return the width and height that `draw` gives the sheet."""
    return _WIDTH, _layout(explanation, top).height


def _layout(explanation: Explanation, top: int) -> _Layout:
    if top < 1:
        raise WrongUse(f"top = {top}: draw at least 1 word")
    images = explanation.query_images
    # Of several pictures, each is squeezed into the shape of the first.
    query, hit = _fit(images[0] if images else None), _fit(explanation.hit_image)
    tallest = max(query[1], hit[1])
    n_words = min(top, len(explanation.parts))
    word = max(tallest, _WORD_TEXT) if n_words else 30
    return _Layout(query, hit, max(tallest, _HEAD_TEXT), word, n_words)


def _fit(image_hwc: Pixels | None) -> Size:
    """Return the size at which a picture fills its box, in its own shape."""
    if image_hwc is None:
        return _BOX, _BOX * 3 // 4
    height, width = image_hwc.shape[:2]
    scale = _BOX / max(width, height)
    return max(_THINNEST, round(width * scale)), max(_THINNEST, round(height * scale))


def _resized(image_hwc: Pixels | None, size: Size) -> Pixels:
    if image_hwc is None:  # an empty place
        return np.full((size[1], size[0], 3), _TRACK, dtype=np.uint8)
    return np.array(Image.fromarray(image_hwc).resize(size, Image.Resampling.BICUBIC))


def _glowing(pixels: Pixels, grid: NDArray[np.float32] | None) -> Pixels:
    return pixels if grid is None else overlay(pixels, grid)


def _framed(pixels: Pixels, region: Box | None) -> Pixels:
    if region is None:
        return pixels
    picture = Image.fromarray(pixels)
    x, y, width, height = region
    corners = (x, y, x + width, y + height)
    sides = (picture.width - 1, picture.height - 1) * 2
    frame = [round(corner * side) for corner, side in zip(corners, sides, strict=True)]
    ImageDraw.Draw(picture).rectangle(frame, outline=_ACCENT, width=3)
    return np.array(picture)


def _paste(sheet: Image.Image, y: int, query: Pixels, hit: Pixels) -> None:
    for x, pixels in zip(_LEFT, (query, hit), strict=False):
        sheet.paste(Image.fromarray(pixels), (x, y))


def _caption(pencil: ImageDraw.ImageDraw, x: int, role: str, name: str) -> None:
    _write(pencil, (x, _MARGIN - 4), role, 17, _QUIET)
    _write(pencil, (x, _MARGIN + 20), _shorten(name, 21, _BOX), 21, _INK)


def _head(pencil: ImageDraw.ImageDraw, y: int, explanation: Explanation) -> None:
    x, n_words = _LEFT[2], len(explanation.parts)
    _write(pencil, (x, y - 4), "BM25 score", 17, _QUIET)
    _write(pencil, (x, y + 18), f"{explanation.sparse:.2f}", 60, _INK)
    _write(pencil, (x, y + 88), f"the sum of {_count(n_words, 'shared word')}", 19, _QUIET)
    coverage = f"{explanation.match.coverage:.0%} of what was asked for, by rarity"
    _write(pencil, (x, y + 112), coverage, 19, _QUIET)
    if explanation.dense is not None:
        _write(pencil, (x, y + 152), f"Cosine {explanation.dense:.3f}", 24, _INK)
        note = "of the dense vectors: stands beside the score"
        _write(pencil, (x, y + 184), note, 17, _QUIET)


def _word(
    pencil: ImageDraw.ImageDraw, y: int, part: Part, before: float, explanation: Explanation
) -> None:
    score, whole = explanation.sparse, peak(explanation)
    word, x, right = part.word, _LEFT[2], _LEFT[2] + _COLUMN
    _write(pencil, (x, y - 4), _shorten(word.label, 24, _COLUMN - 130), 24, _INK)
    _write(pencil, (right, y - 6), f"{word.contribution:+.2f}", 28, _ACCENT, anchor="ra")
    _bar(pencil, y + 40, before, word.contribution, whole)
    share = f"{_percent(word.contribution, score)} of the score"
    _write(pencil, (x, y + 64), share, 19, _INK)
    weight = "" if word.weight == 1 else f" x weight {word.weight:.3g}"
    factors = f"idf {word.idf:.2f} x saturation {word.saturation:.2f}{weight}"
    _write(pencil, (x, y + 92), factors, 17, _QUIET)
    frequencies = f"tf {word.query_tf:.2f} in the query, {word.tf:.2f} in the hit"
    _write(pencil, (x, y + 115), frequencies, 17, _QUIET)


def _bar(pencil: ImageDraw.ImageDraw, y: int, before: float, value: float, whole: float) -> None:
    """Draw a part of the score where the parts above it end, so that all parts fill the track."""

    def stretch(start: float, end: float, colour: tuple[int, int, int]) -> None:
        left, right = (_LEFT[2] + round(_COLUMN * part / (whole or 1)) for part in (start, end))
        pencil.rectangle((left, y, max(left, right - 1), y + 11), colour)

    stretch(0, whole or 1, _TRACK)
    if before > 0:
        stretch(0, min(before, before + value), _COUNTED)
    if value:
        stretch(min(before, before + value), max(before, before + value), _ACCENT)


def peak(explanation: Explanation) -> float:
    """Return how far the bars reach: all that speaks for the hit, before what speaks against."""
    return sum(max(0.0, part.word.contribution) for part in explanation.parts)


def remainder(explanation: Explanation, *, top: int) -> float:
    """Return what the words after the `top` give, to the cent: printed parts add up as printed."""
    printed = sum(round(part.word.contribution, 2) for part in explanation.parts[:top])
    rest = [part.word.contribution for part in explanation.parts[top:]]
    if not rest:
        return 0.0
    left = round(explanation.sparse, 2) - printed
    return left if min(rest) < 0 else max(0.0, left)


def _footer(pencil: ImageDraw.ImageDraw, y: int, explanation: Explanation, n_drawn: int) -> None:
    pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
    score, x, right = explanation.sparse, _LEFT[2], _LEFT[2] + _COLUMN
    n_more, rest = len(explanation.parts) - n_drawn, remainder(explanation, top=n_drawn)
    if n_more:
        more = _count(n_more, "more word")
        share = f"{more}: {_percent(rest, score)} of the score"
        _write(pencil, (x, y + _GAP - 4), share, 19, _INK)
        _write(pencil, (right, y + _GAP - 8), f"{rest:+.2f}", 24, _ACCENT, anchor="ra")
        _bar(pencil, y + _GAP + 26, score - rest, rest, peak(explanation))
        summary = f"{score - rest:.2f} above + {rest:.2f} in {more} = {score:.2f}, the BM25 score"
    else:
        summary = f"All shared words are shown; they add up to {score:.2f}, the BM25 score"
    _write(pencil, (_MARGIN, y + _GAP - 4), summary, 19, _INK)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"


def _write(
    pencil: ImageDraw.ImageDraw,
    place: tuple[int, int],
    text: str,
    size: int,
    colour: tuple[int, int, int],
    anchor: str = "la",
) -> None:
    pencil.text(place, _readable(text), fill=colour, font=_font(size), anchor=anchor)


@lru_cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=size)


def _shorten(text: str, size: int, width: int) -> str:
    """Return the text with its middle left out, so that it fits the width at that font size.

    >>> _shorten("a_very_long_name_of_a_picture.jpeg", 20, 160)
    'a_very_...re.jpeg'
    """
    text = _readable(text)
    kept = len(text)
    shortened = text
    while _font(size).getlength(shortened) > width and kept > 2:
        kept -= 1
        shortened = f"{text[: (kept + 1) // 2]}...{text[len(text) - kept // 2 :]}"
    return shortened


def _readable(text: str) -> str:
    """Write accented letters without accents, and `?` for what the font cannot show."""
    plain = (c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return "".join(c if _is_drawable(c) else "?" for c in plain)


@lru_cache(maxsize=4096)
def _is_drawable(character: str) -> bool:
    font = _font(20)
    missing = bytes(font.getmask("\uffff"))
    return character.isprintable() and bytes(font.getmask(character)) != missing
