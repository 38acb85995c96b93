"""An explanation becomes a page: both images, the words that matched, and how they add up.

In: an `Explanation`. Out: HTML, or a file in the format that its suffix names. Not this module's
job: finding the words and where they are (`bm25v.explanations`).
"""

import io
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from bm25v.errors import Bm25vError, WrongUse
from bm25v.explanations.crops import cut_examples, encode_jpeg, shrink
from bm25v.explanations.drawing import draw
from bm25v.explanations.explanation import Explanation, Grid, Pixels
from bm25v.explanations.heatmaps import make_mask
from bm25v.explanations.maps import Pin, combine_maps, pin_hit, pin_query
from bm25v.explanations.sums import percent_of, sum_up
from bm25v.files import replace_file
from bm25v.pages import commands
from bm25v.pages.render import EmbeddedImage, render
from bm25v.search import WordContribution
from bm25v.search.regions import Box

_PHOTO_SIDE, _CROP_SIDE = 760, 112  # pixels
_PAGE_WORDS, _MISSING_WORDS = 12, 24  # that are shown on a page, if nobody says how many
_HIT = "hit"
_PAGE = "HTML"
_FORMATS = {
    ".html": _PAGE,
    ".htm": _PAGE,
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".pdf": "PDF",
}
_STRENGTHS = {
    "strong": "As close as best hits in this gallery usually are.",
    "fair": "Less close than most best hits in this gallery.",
    "weak": "Less close than nearly all best hits in this gallery: probably not what you look for.",
}
_TEXT_STRENGTHS = {
    "strong": "It probably shows what the text names.",
    "fair": "It may show what the text names.",
    "weak": "It probably does not show what the text names.",
}


def render_explanation(
    explanation: Explanation, *, top: int | None = None, folder: Path | None = None
) -> str:
    """Return the page; `top` words, those that contribute most, have a row of their own.

    `folder` is where the page will be: pages of words that are there too are linked.

    >>> import numpy as np
    >>> from bm25v.explanations import Part
    >>> from bm25v.search import Match
    >>> pixels, grid = np.zeros((40, 60, 3), np.uint8), np.ones((7, 7), np.float32)
    >>> word = WordContribution(7, "petal", 2.0, 3.0, 4.0, 1.5, 3.0)
    >>> scores = ("words", 3.0, 3.0, 1.0, "strong", 0.9)
    >>> match = Match("rose.jpg", *scores, (word,), 0.4, 3.0, 3.0, 20)
    >>> parts = (Part(word, (grid,), grid),)
    >>> page = render_explanation(Explanation((pixels,), pixels, match, parts))
    >>> "Strong match</h1>" in page, "petal" in page, "+3.00" in page
    (True, True, True)
    """
    if top is not None and top < 1:
        raise WrongUse(f"top = {top}: show at least 1 word")
    contributions = explanation.rounded_contributions()
    n_shown = len(contributions[: top or _PAGE_WORDS])
    n_positive = sum(part.word.weight > 0 for part in explanation.parts)
    match, standing = explanation.match, explanation.standing
    strengths = _TEXT_STRENGTHS if match.mode == "concepts" else _STRENGTHS
    return render(
        "explanation.html",
        title=explanation.title,
        hit=_name_file(explanation.hit_path),
        match=match,
        standing=standing,
        about_strength=strengths.get(match.strength or "", ""),
        n_positive=n_positive,
        n_negative=len(explanation.parts) - n_positive,
        n_query=sum(word.weight > 0 for word in explanation.query_words) or n_positive,
        notes=explanation.notes,
        photos=list(_show_photos(explanation)),
        text=explanation.text,
        is_hit_readable=explanation.hit_image is not None,
        has_region=explanation.region is not None,
        sum_lines=list(sum_up(match)),
        digits=2 if match.mode in ("words", "sparse") else 3,
        rows=list(_make_rows(explanation, contributions[:n_shown], folder)),
        positive_sum=explanation.positive_sum,
        n_more=len(contributions) - n_shown,
        shown_sum=sum(contributions[:n_shown]),
        rest=sum(contributions[n_shown:]),
        missing=explanation.missing[:_MISSING_WORDS],
        n_more_missing=len(explanation.missing[_MISSING_WORDS:]),
        k1=explanation.parameters.k1,
        b=explanation.parameters.b,
    )


def check_output(path: Path) -> None:
    """Refuse a path that `write_explanation` cannot write to, before any work is done."""
    if path.suffix.lower() not in _FORMATS:
        allowed = ", ".join(_FORMATS)
        raise WrongUse(
            f"{path} has none of the possible endings: name a file that ends in {allowed}"
        )
    if not path.parent.is_dir():
        raise WrongUse(f"{path}: the folder {path.parent} does not exist: create it first")


def write_explanation(explanation: Explanation, path: Path, *, top: int | None = None) -> None:
    """Write an explanation in the format of the suffix: a page, or an image of the `top` words.

    A page has 12 words unless `top` is given, an image five.
    """
    check_output(path)
    kind = _FORMATS[path.suffix.lower()]
    if kind == _PAGE:
        content: str | bytes = render_explanation(explanation, top=top, folder=path.parent)
    else:
        file = io.BytesIO()
        draw(explanation, top=5 if top is None else top).save(file, kind, quality=90)
        content = file.getvalue()
    try:
        replace_file(path, content)
    except OSError as error:
        raise Bm25vError(f"{path} cannot be written: {error.strerror}") from error


class _File(NamedTuple):
    folder: str
    name: str
    path: str


class _Photo(NamedTuple):
    """A photo of the page; `mask` is where all words together keep its colours."""

    side: str
    role: str
    file: _File
    jpeg: bytes
    shape: float  # width / height
    mask: bytes
    pins: list[Pin]
    region: Box | None


class _Commands(NamedTuple):
    """What can be done with a word; None without a gallery."""

    without: str
    must: str
    page: str | None
    name: str | None


class _Row(NamedTuple):
    """One word; `before` is the sum of the contributions above it."""

    number: int
    word: WordContribution
    contribution: float
    before: float
    weight: str
    about: str
    crops: list[EmbeddedImage]
    masks: dict[str, bytes]  # by the side of the photo; none where the word is not
    link: str | None
    commands: _Commands


def _name_file(path: str) -> _File:
    return _File(os.path.basename(os.path.dirname(path)), os.path.basename(path), path)


def _show_photos(explanation: Explanation) -> Iterator[_Photo]:
    """Yield each image of the query, then the hit."""
    in_queries, in_hit = combine_maps(explanation)
    paths = dict(enumerate(explanation.query_paths))
    strength = explanation.visibility
    for n, (image, grid) in enumerate(zip(explanation.query_images, in_queries, strict=True)):
        file, region = _name_file(paths.get(n, "")), explanation.region if n == 0 else None
        mask = _encode_mask(grid, strength)
        yield _show_photo(f"q{n}", file, image, mask, pin_query(explanation, n), region)
    if explanation.hit_image is not None and in_hit is not None:
        file, mask = _name_file(explanation.hit_path), _encode_mask(in_hit, strength)
        yield _show_photo(_HIT, file, explanation.hit_image, mask, pin_hit(explanation))


def _show_photo(
    side: str,
    file: _File,
    image: Pixels,
    mask: bytes,
    pins: list[Pin],
    region: Box | None = None,
) -> _Photo:
    height, width = image.shape[:2]
    jpeg = encode_jpeg(shrink(image, side=min(_PHOTO_SIDE, max(height, width))))
    role = "Hit" if side == _HIT else "Query"
    return _Photo(side, role, file, jpeg, width / height, mask, pins, region)


def _make_rows(
    explanation: Explanation, contributions: Sequence[float], folder: Path | None
) -> Iterator[_Row]:
    parts = explanation.parts[: len(contributions)]
    cut = cut_examples((e for part in parts for e in part.examples), side=_CROP_SIDE)
    jpegs = {example: encode_jpeg(crop) for example, crop in cut.items()}
    has_negative = any(part.word.contribution < 0 for part in explanation.parts)
    whole = "what counts for it" if has_negative else "what words add"
    for n, part in enumerate(parts):
        word = part.word
        percent = percent_of(word.contribution, explanation.positive_sum)
        grids = {f"q{i}": grid for i, grid in enumerate(part.in_queries)}
        if part.in_hit is not None:
            grids[_HIT] = part.in_hit
        strength = explanation.part_visibility(part)
        page = f"word-{word.word}.html"
        yield _Row(
            n + 1,
            word,
            contributions[n],
            sum(contributions[:n]),
            f"{word.weight:.3g}".replace("-", "−"),
            "counts against it" if word.contribution < 0 else f"{percent} of {whole}",
            [
                EmbeddedImage(jpegs[example], f"{word.label} in {os.path.basename(example.path)}")
                for example in part.examples
                if example in jpegs
            ],
            {side: _encode_mask(grid, strength) for side, grid in grids.items() if grid.any()},
            page if folder is not None and (folder / page).is_file() else None,
            _make_commands(explanation, word.word),
        )


def _make_commands(explanation: Explanation, word: int) -> _Commands:
    without, must = (
        commands.search_command(explanation, option, str(word)) or f"{option} {word}"
        for option in ("--without", "--must")
    )
    if not explanation.gallery:
        return _Commands(without, must, None, None)
    page = commands.word_page_command(explanation.gallery, word)
    return _Commands(without, must, page, commands.name_command(explanation.gallery, word))


def _encode_mask(grid: Grid, strength: float) -> bytes:
    file = io.BytesIO()
    alpha = Image.fromarray(make_mask(grid, strength))
    Image.merge("LA", (Image.new("L", alpha.size), alpha)).save(file, "PNG", optimize=True)
    return file.getvalue()
