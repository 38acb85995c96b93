"""The page of one word or several: images that have it, where it is in them, related words."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bm25v import images
from bm25v.errors import ImageError
from bm25v.explain.explanation import Pixels
from bm25v.explain.groups import Grid
from bm25v.explain.heatmaps import encode_crop, encode_highlight
from bm25v.explain.portraits import RelatedWord, WordInImage, WordPortrait
from bm25v.render.commands import name_command
from bm25v.render.html import EmbeddedImage, render

_CROP_SIDE, _MAP_SIDE = 240, 260  # pixels
_CHIP_SIDE = 112
_DECODED_SIDE = 512  # of the short side


def render_words(portraits: Sequence[WordPortrait]) -> str:
    """Return a page with one word below the other."""
    return render("words.html", words=list(map(_describe_word, portraits)))


def _describe_word(portrait: WordPortrait) -> dict[str, Any]:
    facts = portrait.uses.facts
    groups = (
        ("Strongest", "The images with most of it", portrait.top),
        ("Medium", "Images with neither much nor little of it", portrait.middle),
        ("Random", "Any images that have it", portrait.random),
    )
    together = "Words that share more images with it than chance would give"
    similar = "Words of this gallery with the most similar directions"
    return {
        "portrait": portrait,
        "label": facts.label,
        "name_command": name_command(portrait.gallery, facts.word),
        "groups": [
            (title, about, [_describe_image(image, facts.label) for image in group])
            for title, about, group in groups
        ],
        "mean_grid": portrait.mean_grid.tolist(),
        "related": [
            (
                "Often together with",
                together,
                [_describe_related(word, "{:.1f} × chance") for word in portrait.companions],
            ),
            (
                "Similar words",
                similar,
                [_describe_related(word, "cosine {:.2f}") for word in portrait.neighbours],
            ),
        ],
    }


def _describe_image(image: WordInImage, label: str) -> dict[str, Any]:
    encode = partial(encode_highlight, side=_MAP_SIDE)
    return {
        "path": image.path,
        "tf": image.tf,
        "crop": _embed_crop(image, label, _CROP_SIDE),
        "highlight": _embed(image, _MAP_SIDE, f"Where {label} is in", encode),
    }


def _describe_related(related: RelatedWord, form: str) -> dict[str, Any]:
    return {
        "facts": related.facts,
        "value": form.format(related.value),
        "crop": _embed_crop(related.best, related.facts.label, _CHIP_SIDE),
    }


def _embed_crop(image: WordInImage, label: str, side: int) -> EmbeddedImage:
    return _embed(image, _DECODED_SIDE, f"{label} in", partial(encode_crop, side=side))


def _embed(
    image: WordInImage, decoded_side: int, about: str, encode: Callable[[Pixels, Grid], bytes]
) -> EmbeddedImage:
    name = Path(image.path).name
    if image.grid is None:
        return EmbeddedImage(None, name, image.problem or "cannot be shown")
    try:
        pixels = images.decode_image(image.path, short_side=decoded_side)
    except ImageError as error:
        return EmbeddedImage(None, name, str(error))
    return EmbeddedImage(encode(pixels, image.grid), f"{about} {name}")
