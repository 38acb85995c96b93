"""What pages and notebooks show of an explanation: photos, groups, and the numbers behind them."""

import io
from collections.abc import Iterator
from typing import Any

from PIL import Image

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

_MISSING_WORDS = 24


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
