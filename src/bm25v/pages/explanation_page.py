"""An explanation becomes a page: both images with heat maps, then what each word adds to the score.

In: an `Explanation`. Out: HTML, or a file in the format that its suffix names. Not this module's
job: finding the words and where they are (`bm25v.explanations`).
"""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from bm25v.errors import Bm25vError, WrongUse
from bm25v.explanations.crops import encode_jpeg, shrink
from bm25v.explanations.drawing import draw
from bm25v.explanations.explanation import (
    Explanation,
    Grid,
    Part,
    Pixels,
    combine_maps,
    describe_score,
    percent_of,
)
from bm25v.explanations.heatmaps import heat_layer
from bm25v.files import replace_file
from bm25v.pages.render import render
from bm25v.search import WordContribution
from bm25v.search.regions import Box

_PHOTO_SIDE = 760  # pixels
_PAGE_WORDS, _MISSING_WORDS = 24, 24  # that are shown on a page, if nobody says how many
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


def render_explanation(explanation: Explanation, *, top: int | None = None) -> str:
    """Return the page; `top` words, those that contribute most, have a row of their own.

    >>> import numpy as np
    >>> from bm25v.search import Match
    >>> pixels, grid = np.zeros((40, 60, 3), np.uint8), np.ones((7, 7), np.float32)
    >>> word = WordContribution(7, "petal", 2.0, 3.0, 4.0, 1.5, 3.0)
    >>> scores = ("words", 3.0, 3.0, 1.0, "strong", 0.9)
    >>> match = Match("rose.jpg", *scores, (word,), 0.4, 3.0, 3.0, 20)
    >>> parts = (Part(word, (grid,), grid),)
    >>> page = render_explanation(Explanation((pixels,), pixels, match, parts))
    >>> "<h1>rose.jpg</h1>" in page, "petal" in page, "+3.00" in page
    (True, True, True)
    """
    if top is not None and top < 1:
        raise WrongUse(f"top = {top}: show at least 1 word")
    sides = {f"q{n}": image for n, image in enumerate(explanation.query_images)}
    if explanation.hit_image is not None:
        sides[_HIT] = explanation.hit_image
    contributions = explanation.rounded_contributions()
    n_shown = len(contributions[: top or _PAGE_WORDS])
    n_positive = sum(part.word.weight > 0 for part in explanation.parts)
    in_queries, in_hit = combine_maps(explanation)
    return render(
        "explanation.html",
        name=Path(explanation.hit_path).name,
        photos={
            side: encode_jpeg(shrink(image, side=_PHOTO_SIDE)) for side, image in sides.items()
        },
        n_shared=len(explanation.parts),
        n_positive=n_positive,
        n_negative=len(explanation.parts) - n_positive,
        n_query=sum(word.weight > 0 for word in explanation.query_words) or n_positive,
        facts=list(describe_score(explanation.match)),
        notes=explanation.notes,
        query_figures=_query_figures(explanation, sides, in_queries),
        text=explanation.text,
        hit_map=None
        if in_hit is None
        else _make_map(_HIT, sides, in_hit, "What matched in the hit"),
        rows=[_make_row(explanation, sides, n, contributions) for n in range(n_shown)],
        stretches=_make_stretches(explanation, contributions, n_shown),
        positive_sum=explanation.positive_sum,
        n_more=len(contributions) - n_shown,
        formula=explanation.match.formula,
        shown_sum=sum(contributions[:n_shown]),
        rest=sum(contributions[n_shown:]),
        missing=explanation.missing[:_MISSING_WORDS],
        n_more_missing=len(explanation.missing[_MISSING_WORDS:]),
        match=explanation.match,
        has_region=explanation.region is not None,
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

    A page has 24 words unless `top` is given, an image five.
    """
    check_output(path)
    kind = _FORMATS[path.suffix.lower()]
    if kind == _PAGE:
        content: str | bytes = render_explanation(explanation, top=top)
    else:
        file = io.BytesIO()
        draw(explanation, top=5 if top is None else top).save(file, kind, quality=90)
        content = file.getvalue()
    try:
        replace_file(path, content)
    except OSError as error:
        raise Bm25vError(f"{path} cannot be written: {error.strerror}") from error


class _Map(NamedTuple):
    side: str  # which photo is under the heat
    shape: float  # width / height
    heat: bytes
    label: str
    region: Box | None = None


class _Figure(NamedTuple):
    map: _Map
    name: str


class _Row(NamedTuple):
    """One word; `before` is the sum of the contributions above it."""

    word: WordContribution
    contribution: float
    before: float
    weight: str
    about: str
    query_map: _Map | None
    hit_map: _Map | None


class _Stretch(NamedTuple):
    """A word's part of the bar of all words; `row` is the word's row, if it has one."""

    row: int | None
    label: str
    contribution: float
    percent: float


def _query_figures(
    explanation: Explanation, sides: Mapping[str, Pixels], grids: Sequence[Grid]
) -> list[_Figure]:
    figures = []
    names = dict(enumerate(explanation.query_names))
    for n, grid in enumerate(grids):
        region = explanation.region if n == 0 else None
        heat_map = _make_map(f"q{n}", sides, grid, "What matched in the query", region)
        figures.append(_Figure(heat_map, names.get(n, "")))
    return figures


def _make_row(
    explanation: Explanation, sides: Mapping[str, Pixels], n: int, contributions: Sequence[float]
) -> _Row:
    part = explanation.parts[n]
    word = part.word
    has_negative = explanation.parts[-1].word.contribution < 0
    whole = "what counts for it" if has_negative else "what words add"
    percent = percent_of(word.contribution, explanation.positive_sum)
    return _Row(
        word,
        contributions[n],
        sum(contributions[:n]),
        f"{word.weight:.3g}".replace("-", "−"),
        "counts against it" if word.contribution < 0 else f"{percent} of {whole}",
        _query_map(part, sides),
        None
        if part.in_hit is None
        else _make_map(_HIT, sides, part.in_hit, f"Where {word.label} is in the hit"),
    )


def _query_map(part: Part, sides: Mapping[str, Pixels]) -> _Map | None:
    if part.in_query is None or not part.in_query.any():
        return None
    label = f"Where {part.word.label} is in the query"
    return _make_map(f"q{part.best_query}", sides, part.in_query, label)


def _make_map(
    side: str, sides: Mapping[str, Pixels], grid: Grid, label: str, region: Box | None = None
) -> _Map:
    height, width = sides[side].shape[:2]
    file = io.BytesIO()
    Image.fromarray(heat_layer(grid)).save(file, "PNG", optimize=True)
    return _Map(side, width / height, file.getvalue(), label, region)


def _make_stretches(
    explanation: Explanation, contributions: Sequence[float], n_shown: int
) -> list[_Stretch]:
    whole = explanation.positive_sum or 1
    return [
        _Stretch(
            n if n < n_shown else None,
            part.word.label,
            contributions[n],
            100 * part.word.contribution / whole,
        )
        for n, part in enumerate(explanation.parts)
        if part.word.contribution > 0
    ]
