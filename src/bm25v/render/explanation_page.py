"""The page of an explanation: both images, the words that matched, and how they add up."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from bm25v.errors import InvalidOption
from bm25v.explain.crops import encode_jpeg, shrink
from bm25v.explain.drawing import draw
from bm25v.explain.explanation import Explanation, Grid
from bm25v.explain.heatmaps import list_photos, make_mask
from bm25v.explain.sums import percent_of, sum_up
from bm25v.render import commands
from bm25v.render.explained import embed_examples, list_rows
from bm25v.render.html import PAGE_SUFFIXES, check_output, render, write_output
from bm25v.search.scoring import MODES

FORMATS = {  # by suffix
    **dict.fromkeys(PAGE_SUFFIXES, "HTML"),
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".pdf": "PDF",
}

_PHOTO_SIDE, _CROP_SIDE = 760, 112  # pixels
_PAGE_WORDS, _IMAGE_WORDS = 12, 5  # that are shown, unless `top` says how many
_MISSING_WORDS = 24
_HIT = "hit"
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
    """Return the page; the `top` words, those that contribute most, have a row of their own.

    `folder` is where the page will be: pages of words that are there too are linked.
    """
    contributions = explanation.rounded_contributions()
    n_shown = len(contributions[: top or _PAGE_WORDS])
    n_positive = sum(part.word.weight > 0 for part in explanation.parts)
    match, scoring = explanation.match, MODES[explanation.match.mode]
    strengths = _TEXT_STRENGTHS if match.text else _STRENGTHS
    missing = () if explanation.is_text_alone else explanation.missing
    return render(
        "explanation.html",
        explanation=explanation,
        about_strength=strengths.get(match.strength or "", ""),
        by_strength=scoring.bags == "full" and scoring.source == "index" and not match.text,
        is_sum=scoring.is_sum,
        n_positive=n_positive,
        n_negative=len(explanation.parts) - n_positive,
        n_query=sum(word.weight > 0 for word in explanation.query_words) or n_positive,
        photos=list(_show_photos(explanation)),
        sum_lines=list(sum_up(match)),
        terms=list(_make_terms(explanation)),
        positive_parts=sum(max(0.0, part.value) for part in match.parts),
        rows=list(_make_rows(explanation, n_shown, folder)),
        n_more=len(contributions) - n_shown,
        shown_sum=sum(contributions[:n_shown]),
        rest=sum(contributions[n_shown:]),
        missing=missing[:_MISSING_WORDS],
        n_more_missing=len(missing[_MISSING_WORDS:]),
    )


def write_explanation(explanation: Explanation, path: Path, *, top: int | None = None) -> None:
    if top is not None and top < 1:
        raise InvalidOption(f"top = {top}: show at least 1 word")
    check_output(path, FORMATS)
    kind = FORMATS[path.suffix.lower()]
    if kind == "HTML":
        write_output(path, render_explanation(explanation, top=top, folder=path.parent))
    else:
        file = io.BytesIO()
        draw(explanation, top=top or _IMAGE_WORDS).save(file, kind, quality=90)
        write_output(path, file.getvalue())


def _show_photos(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield each photo; its `mask` is where all words together keep its colours."""
    for n, photo in enumerate(list_photos(explanation)):
        height, width = photo.pixels.shape[:2]
        side = min(_PHOTO_SIDE, max(height, width))
        yield {
            "side": _HIT if photo.role == "Hit" else f"q{n}",
            "role": photo.role,
            "path": photo.path,
            "jpeg": encode_jpeg(shrink(photo.pixels, side=side)),
            "shape": width / height,
            "mask": _encode_mask(photo.grid, explanation.visibility),
            "pins": photo.pins,
            "region": explanation.region if photo.role == "Query" and n == 0 else None,
        }


def _make_terms(explanation: Explanation) -> Iterator[dict[str, Any]]:
    """Yield the row of each word of a text, then that of the rest of the query, if it counts."""
    lines = list(sum_up(explanation.match))[:-1] if explanation.terms else []
    for n, line in enumerate(lines):
        term = explanation.terms[n] if n < len(explanation.terms) else None
        grid = None if term is None else term.in_hit
        yield {
            "number": n + 1,
            "label": line.label,
            "value": float(line.value),
            "shown": line.value.replace("-", "−"),
            "mask": None if grid is None else _encode_mask(grid, explanation.visibility),
            "words": [] if term is None else list(dict.fromkeys(w.label for w in term.words)),
        }


def _make_rows(
    explanation: Explanation, n_shown: int, folder: Path | None
) -> Iterator[dict[str, Any]]:
    parts = explanation.parts[:n_shown]
    rows = list_rows(
        [part.word for part in parts],
        explanation.rounded_contributions(),
        embed_examples(parts, side=_CROP_SIDE),
    )
    has_negative = any(part.word.contribution < 0 for part in explanation.parts)
    whole = "what counts for it" if has_negative else "what words add"
    for part, row in zip(parts, rows, strict=True):
        word = part.word
        percent = percent_of(word.contribution, explanation.positive_sum)
        grids = {f"q{i}": grid for i, grid in enumerate(part.in_queries)}
        if part.in_hit is not None:
            grids[_HIT] = part.in_hit
        strength = explanation.part_visibility(part)
        page = f"word-{word.word}.html"
        yield {
            **row,
            "weight": f"{word.weight:.3g}".replace("-", "−"),
            "about": "counts against it" if word.contribution < 0 else f"{percent} of {whole}",
            # No mask where the word is not.
            "masks": {side: _encode_mask(g, strength) for side, g in grids.items() if g.any()},
            "link": page if folder is not None and (folder / page).is_file() else None,
            "commands": _make_commands(explanation, word.word),
        }


def _make_commands(explanation: Explanation, word: int) -> dict[str, str | None]:
    def search(option: str) -> str:
        return commands.search_command(explanation, option, str(word)) or f"{option} {word}"

    gallery = explanation.gallery
    return {
        "without": search("--without"),
        "must": search("--must"),
        "page": commands.word_page_command(gallery, word) if gallery else None,
        "name": commands.name_command(gallery, word) if gallery else None,
    }


def _encode_mask(grid: Grid, strength: float) -> bytes:
    file = io.BytesIO()
    alpha = Image.fromarray(make_mask(grid, strength))
    Image.merge("LA", (Image.new("L", alpha.size), alpha)).save(file, "PNG", optimize=True)
    return file.getvalue()
