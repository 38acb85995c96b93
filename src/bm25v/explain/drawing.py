"""An explanation as one picture: both photos, what matched, then the words that give most."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from bm25v.errors import WrongUse
from bm25v.explain.explanation import Explanation, Part, combined
from bm25v.explain.heatmaps import overlay, scale
from bm25v.explain.lettering import shorten, write
from bm25v.explain.sums import count, peak, remainder, share
from bm25v.search.regions import Box

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
        rows = (1 + self.n_words) * (self.word + 2 * _GAP)  # the first is of all words together
        return _MARGIN + _CAPTIONS + self.head + _GAP + rows + _FOOTER + _MARGIN


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
    pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
    if explanation.parts:
        in_queries, in_hit = combined(explanation)
        in_first = in_queries[0] if in_queries else None
        _paste(sheet, y + _GAP, _glowing(first, in_first), _glowing(hit, in_hit))
        _together(sheet, pencil, y + _GAP)
    else:
        write(pencil, (_MARGIN, y + _GAP), "No shared words", 22, _INK)
    y += layout.word + 2 * _GAP
    before = 0.0
    for part in explanation.parts[:top]:
        pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
        shown = queries[part.query] if queries else first
        _paste(sheet, y + _GAP, _glowing(shown, part.in_query), _glowing(hit, part.in_hit))
        _word(pencil, y + _GAP, part, before, explanation)
        before += part.word.contribution
        y += layout.word + 2 * _GAP
    _footer(pencil, y, explanation, layout.n_words)
    return sheet


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
    write(pencil, (x, _MARGIN - 4), role, 17, _QUIET)
    write(pencil, (x, _MARGIN + 20), shorten(name, 21, _BOX), 21, _INK)


def _head(pencil: ImageDraw.ImageDraw, y: int, explanation: Explanation) -> None:
    x, n_words = _LEFT[2], len(explanation.parts)
    write(pencil, (x, y - 4), "BM25 score", 17, _QUIET)
    write(pencil, (x, y + 18), f"{explanation.sparse:.2f}", 60, _INK)
    write(pencil, (x, y + 88), f"the sum of {count(n_words, 'shared word')}", 19, _QUIET)
    coverage = f"{explanation.match.coverage:.0%} of what was asked for, by rarity"
    write(pencil, (x, y + 112), coverage, 19, _QUIET)
    if explanation.dense is not None:
        write(pencil, (x, y + 152), f"Cosine {explanation.dense:.3f}", 24, _INK)
        note = "of the dense vectors: stands beside the score"
        write(pencil, (x, y + 184), note, 17, _QUIET)


def _together(sheet: Image.Image, pencil: ImageDraw.ImageDraw, y: int) -> None:
    x, right = _LEFT[2], _LEFT[2] + _COLUMN
    write(pencil, (x, y - 4), "What matched", 24, _INK)
    write(pencil, (x, y + 32), "All words together, each by what it gives", 19, _QUIET)
    sheet.paste(Image.fromarray(scale(width=_COLUMN, height=12)), (x, y + 76))
    write(pencil, (x, y + 94), "faint", 17, _QUIET)
    write(pencil, (right, y + 94), "strongest", 17, _QUIET, anchor="ra")


def _word(
    pencil: ImageDraw.ImageDraw, y: int, part: Part, before: float, explanation: Explanation
) -> None:
    score, whole = explanation.sparse, peak(explanation)
    word, x, right = part.word, _LEFT[2], _LEFT[2] + _COLUMN
    write(pencil, (x, y - 4), shorten(word.label, 24, _COLUMN - 130), 24, _INK)
    write(pencil, (right, y - 6), f"{word.contribution:+.2f}", 28, _ACCENT, anchor="ra")
    _bar(pencil, y + 40, before, word.contribution, whole)
    write(pencil, (x, y + 64), f"{share(word.contribution, score)} of the score", 19, _INK)
    weight = "" if word.weight == 1 else f" x weight {word.weight:.3g}"
    factors = f"idf {word.idf:.2f} x saturation {word.saturation:.2f}{weight}"
    write(pencil, (x, y + 92), factors, 17, _QUIET)
    frequencies = f"tf {word.query_tf:.2f} in the query, {word.tf:.2f} in the hit"
    write(pencil, (x, y + 115), frequencies, 17, _QUIET)


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


def _footer(pencil: ImageDraw.ImageDraw, y: int, explanation: Explanation, n_drawn: int) -> None:
    pencil.line((_MARGIN, y, _WIDTH - _MARGIN, y), _LINE)
    score, x, right = explanation.sparse, _LEFT[2], _LEFT[2] + _COLUMN
    n_more, rest = len(explanation.parts) - n_drawn, remainder(explanation, top=n_drawn)
    if n_more:
        more = count(n_more, "more word")
        about = f"{more}: {share(rest, score)} of the score"
        write(pencil, (x, y + _GAP - 4), about, 19, _INK)
        write(pencil, (right, y + _GAP - 8), f"{rest:+.2f}", 24, _ACCENT, anchor="ra")
        _bar(pencil, y + _GAP + 26, score - rest, rest, peak(explanation))
        summary = f"{score - rest:.2f} above + {rest:.2f} in {more} = {score:.2f}, the BM25 score"
    else:
        summary = f"All shared words are shown; they add up to {score:.2f}, the BM25 score"
    write(pencil, (_MARGIN, y + _GAP - 4), summary, 19, _INK)
