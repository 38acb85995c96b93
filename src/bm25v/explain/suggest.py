"""Names for words, suggested by a model that knows both pictures and text.

A word's own direction says nothing to a text tower, but pictures do: the parts that have most of
the word become vectors, their mean is compared with prompts. What all pictures of the gallery have
in common is taken off first, or every word would be called by it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import text
from bm25v.errors import ImageError, WrongUse
from bm25v.explain import crops
from bm25v.explain.portrait import Sight, strongest
from bm25v.gallery import Gallery
from bm25v.vocabulary.names import check_name

EXAMPLES = 8  # pictures a word

Floats = NDArray[np.float32]


class Suggestion(NamedTuple):
    """What a word could be called, and how sure that is."""

    word: int
    name: str
    cosine: float
    margin: float  # over the next best
    next: str


def read_prompts(path: Path) -> list[str]:
    """Return the prompts in a file, a line each; lines that start with # are remarks."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise WrongUse(f"{path} does not exist: give a text file with a prompt a line") from None
    except UnicodeDecodeError:
        raise WrongUse(f"{path} is not text in UTF-8: save it as such") from None
    prompts: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip() and not line.startswith("#"):
                prompts[check_name(line)] = None
        except WrongUse as error:
            raise WrongUse(f"{path}, line {number}: {error}") from None
    if len(prompts) < 2:
        raise WrongUse(f"{path} has {len(prompts)} prompts: a choice needs at least two")
    return list(prompts)


def suggestions(
    gallery: Gallery,
    words: Sequence[int],
    prompts: Sequence[str],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Suggestion]:
    """Return the prompt that fits each word best; words without a readable picture are left out."""
    tower = text.load(gallery.vocabulary.backbone.name)
    prompts_te = tower.embed(prompts)
    snapshot = gallery.snapshot()
    mean_e = snapshot.dense_ne[snapshot.rows].astype(np.float32).mean(axis=0)
    found = []
    for done, (word, sights) in enumerate(strongest(gallery, words, EXAMPLES), start=1):
        vectors = [_vector(gallery, sight) for sight in sights]
        seen = [vector for vector in vectors if vector is not None]
        if seen:
            found.append(_nearest(word, np.mean(seen, axis=0) - mean_e, prompts_te, prompts))
        progress(done, len(words))
    return found


def _vector(gallery: Gallery, sight: Sight) -> Floats | None:
    backbone = gallery.vocabulary.backbone
    if sight.grid is None:
        return None
    try:
        pixels = images.decode_image(sight.path, short_side=2 * backbone.input_size)
    except ImageError:
        return None
    part = crops.most(pixels, sight.grid)
    dense_e = backbone.forward(backbone.prepare(part)).dense_e
    return dense_e / np.float32(max(float(np.linalg.norm(dense_e)), 1e-12))


def _nearest(word: int, vector_e: Floats, prompts_te: Floats, prompts: Sequence[str]) -> Suggestion:
    cosines_t = prompts_te @ (vector_e / max(float(np.linalg.norm(vector_e)), 1e-12))
    best, second = np.argsort(-cosines_t, kind="stable")[:2].tolist()
    cosine, following = float(cosines_t[best]), float(cosines_t[second])
    return Suggestion(word, prompts[best], cosine, cosine - following, prompts[second])
