"""What pages and notebooks show of an explanation: photos with what matched, and rows of words."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bm25v.explain.crops import cut_examples, encode_crop, encode_highlight, encode_jpeg
from bm25v.explain.explanation import Explanation, Part
from bm25v.explain.heatmaps import Pin, list_photos
from bm25v.render.html import EmbeddedImage
from bm25v.search import WordContribution


class HighlightedPhoto(NamedTuple):
    role: str
    path: str
    image: EmbeddedImage
    pins: Sequence[Pin] = ()


def highlight_photos(explanation: Explanation, *, side: int) -> Iterator[HighlightedPhoto]:
    """Yield each image of the query, then the hit if its file can be read."""
    strength = explanation.visibility
    for photo in list_photos(explanation):
        jpeg = encode_highlight(photo.pixels, photo.grid, side=side, strength=strength)
        image = EmbeddedImage(jpeg, f"What matched in the {photo.role.lower()}")
        yield HighlightedPhoto(photo.role, photo.path, image, photo.pins)


def list_rows(
    words: Sequence[WordContribution],
    contributions: Sequence[float],
    crops: Sequence[Sequence[EmbeddedImage]],
) -> Iterator[dict[str, Any]]:
    """Yield the row of each word that has crops; `before` is the sum of the rows above it."""
    before = 0.0
    for n, (word, contribution, own) in enumerate(
        zip(words, contributions, crops, strict=False), start=1
    ):
        yield {
            "number": n,
            "word": word,
            "contribution": contribution,
            "before": before,
            "crops": own,
        }
        before += contribution


def embed_examples(parts: Sequence[Part], *, side: int) -> list[list[EmbeddedImage]]:
    cut = cut_examples((example for part in parts for example in part.examples), side=side)
    return [
        [
            EmbeddedImage(
                encode_jpeg(cut[example]), f"{part.word.label} in {os.path.basename(example.path)}"
            )
            for example in part.examples
            if example in cut
        ]
        for part in parts
    ]


def embed_crops(explanation: Explanation, part: Part, *, side: int) -> list[EmbeddedImage]:
    """Return the word of a part in the query and in the hit, as far as it is in them."""
    query = explanation.query_images[part.best_query] if explanation.query_images else None
    pairs = ((query, part.in_query, "query"), (explanation.hit_image, part.in_hit, "hit"))
    return [
        EmbeddedImage(encode_crop(pixels, grid, side=side), f"{part.word.label} in the {role}")
        for pixels, grid, role in pairs
        if pixels is not None and grid is not None and grid.any()
    ]
