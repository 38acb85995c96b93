"""An explanation as a page or an image, and what all pages and notebooks show of one."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from PIL import Image

from bm25v.errors import InvalidOption
from bm25v.explain.drawing import draw
from bm25v.explain.explanation import Explanation
from bm25v.explain.groups import Grid
from bm25v.explain.heatmaps import (
    encode_highlight,
    encode_jpeg,
    list_photos,
    make_edge,
    make_mask,
    shrink,
)
from bm25v.explain.sums import sum_up
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
_MISSING_WORDS = 24


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


def describe(explanation: Explanation, *, words: int) -> dict[str, Any]:
    """Return what is shown beside the photos; `words` are listed under the details."""
    contributions = explanation.rounded_contributions()
    missing = () if explanation.is_text_alone else explanation.missing
    return {
        "explanation": explanation,
        "sum": list(sum_up(explanation.match)),
        "rows": list(zip(explanation.parts[:words], contributions, strict=False)),
        "n_more": len(contributions[words:]),
        "rest": sum(contributions[words:]),
        "missing": missing[:_MISSING_WORDS],
        "n_more_missing": len(missing[_MISSING_WORDS:]),
    }


def embed_photos(explanation: Explanation, *, side: int) -> Iterator[dict[str, Any]]:
    """Yield each photo, with masks of all that matched and of each group."""
    for n, photo in enumerate(list_photos(explanation.fine)):
        height, width = photo.pixels.shape[:2]
        yield {
            "side": "hit" if photo.role == "Hit" else f"q{n}",
            "role": photo.role,
            "path": photo.path,
            "jpeg": encode_jpeg(shrink(photo.pixels, side=min(side, max(height, width)))),
            "shape": width / height,
            "mask": _encode_masks(photo.grid, explanation.visibility),
            "groups": [grid is not None and _encode_masks(grid) for grid in photo.groups],
            "region": explanation.region if photo.role == "Query" and n == 0 else None,
        }


def embed_highlights(explanation: Explanation, *, side: int) -> Iterator[dict[str, Any]]:
    """Yield each photo with a highlight, for pages without scripts."""
    for photo in list_photos(explanation.fine):
        strength = explanation.visibility
        jpeg = encode_highlight(photo.pixels, photo.grid, side=side, strength=strength)
        yield {"role": photo.role, "path": photo.path, "jpeg": jpeg}


def _encode_masks(grid: Grid, strength: float = 1.0) -> tuple[bytes, bytes]:
    """Return where a photo is bright, and the outline of that, as PNG."""
    files = []
    for alpha_hw in (make_mask(grid, strength), make_edge(grid, strength)):
        alpha, file = Image.fromarray(alpha_hw), io.BytesIO()
        Image.merge("LA", (Image.new("L", alpha.size), alpha)).save(file, "PNG", optimize=True)
        files.append(file.getvalue())
    return files[0], files[1]
