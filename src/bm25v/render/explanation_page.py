"""The page of an explanation: a sentence, both photos, groups, and the numbers behind them."""

import io
from pathlib import Path

from bm25v.errors import InvalidOption
from bm25v.explain.drawing import draw
from bm25v.explain.explanation import Explanation
from bm25v.render.explained import describe, embed_photos
from bm25v.render.html import PAGE_SUFFIXES, check_output, render, write_output

FORMATS = {  # by suffix
    **dict.fromkeys(PAGE_SUFFIXES, "HTML"),
    ".png": "PNG",
    ".jpg": "JPEG",
    ".jpeg": "JPEG",
    ".webp": "WEBP",
    ".pdf": "PDF",
}

_PHOTO_SIDE = 760  # pixels


def render_explanation(explanation: Explanation, *, words: int = 24) -> str:
    """Return the page; `words` are listed under its details."""
    photos = list(embed_photos(explanation, side=_PHOTO_SIDE))
    return render("explanation.html", photos=photos, **describe(explanation, words=words))


def write_explanation(explanation: Explanation, path: Path, *, words: int) -> None:
    if words < 0:
        raise InvalidOption(f"words = {words}: list 0 words or more")
    check_output(path, FORMATS)
    kind = FORMATS[path.suffix.lower()]
    if kind == "HTML":
        write_output(path, render_explanation(explanation, words=words))
    else:
        file = io.BytesIO()
        draw(explanation).save(file, kind, quality=90)
        write_output(path, file.getvalue())
