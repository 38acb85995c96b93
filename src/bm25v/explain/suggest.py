"""Names for words, suggested by a model that understands both images and text.

The image parts that have most of a word become dense vectors, and their mean is compared with the
prompts. The mean of the whole gallery is subtracted first; otherwise every word would get the name
of what all images have in common.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import text
from bm25v.dense import normalise
from bm25v.display import count
from bm25v.errors import ImageError, InvalidOption
from bm25v.explain.heatmaps import crop_word
from bm25v.explain.portraits import WordInImage, find_strongest
from bm25v.progress import Progress, no_progress
from bm25v.store.base import View
from bm25v.store.filters import ImageFilter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.names import check_name

if TYPE_CHECKING:
    from bm25v.gallery import Gallery

EXAMPLES = 8  # images per word

Floats = NDArray[np.float32]


class Suggestion(NamedTuple):
    """A name for a word, and how well it fits."""

    word: int
    name: str
    cosine: float
    margin: float  # cosine over that of the next best prompt
    next: str


def read_prompts(path: Path) -> list[str]:
    """Return the prompts in a text file, one per line; lines that start with # are comments."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except FileNotFoundError:
        raise InvalidOption(
            f"{path} does not exist: give a text file with one prompt per line"
        ) from None
    except UnicodeDecodeError:
        raise InvalidOption(f"{path} is not UTF-8 text: save it as UTF-8") from None
    prompts: dict[str, None] = {}
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip() and not line.startswith("#"):
                prompts[check_name(line)] = None
        except InvalidOption as error:
            raise InvalidOption(f"{path}, line {number}: {error}") from None
    if len(prompts) < 2:
        raise InvalidOption(
            f"{path} has {count(len(prompts), 'prompt')}: give at least two to choose from"
        )
    return list(prompts)


def suggest_names(
    gallery: "Gallery",
    words: Sequence[int],
    prompts: Sequence[str],
    *,
    progress: Progress = no_progress,
) -> list[Suggestion]:
    """Return the prompt that fits each word best; words without a readable image are left out."""
    tower = text.load_text_tower(gallery.vocabulary.backbone_name)
    prompts_te = tower.embed(prompts)
    width = prompts_te.shape[1]  # a second backbone, whose values follow, has no text tower
    mean_e = gallery.store.read(_average_vectors)[:width]
    suggestions = []
    for done, (word, examples) in enumerate(find_strongest(gallery, words, EXAMPLES), start=1):
        vectors = [_encode_example(gallery.vocabulary, example) for example in examples]
        readable = [vector for vector in vectors if vector is not None]
        if readable:
            vector_e = normalise(np.mean(readable, axis=0)[:width] - mean_e)
            cosines_t = prompts_te @ vector_e
            best, second = np.argsort(-cosines_t, kind="stable")[:2].tolist()
            cosine, margin = float(cosines_t[best]), float(cosines_t[best] - cosines_t[second])
            suggestions.append(Suggestion(word, prompts[best], cosine, margin, prompts[second]))
        progress("suggesting names", done, len(words))
    return suggestions


def _average_vectors(view: View) -> Floats:
    images = view.fetch(view.page(ImageFilter(), 0, view.statistics.n))
    return np.asarray(images.dense_vectors(images.rows).mean(axis=0))


def _encode_example(vocabulary: Vocabulary, example: WordInImage) -> Floats | None:
    backbone = vocabulary.backbone
    if example.grid is None:
        return None
    try:
        pixels = images.decode_image(example.path, short_side=2 * backbone.input_size)
    except ImageError:
        return None
    part = crop_word(pixels, example.grid)
    return normalise(backbone.forward(backbone.prepare_image(part)).dense_e)
