"""What the words of a new vocabulary look like, looked up in some of the training pictures."""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError
from bm25v.explain import crops
from bm25v.explain.samples import Samples, SampleWord
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.vocabulary import bag as bags

PICTURES = 400
WORDS = 24
EXAMPLES = 7  # pictures a word

_ENOUGH = 4  # a word in fewer pictures has little to show
_EXAMPLE_SIDE, _HEAT_MAP_SIDE = 96, 144

Pixels = NDArray[np.uint8]
Counts = NDArray[np.int64]
Seen = list[tuple[Path, Codes]]


def gather(
    backbone: Backbone,
    sae: SparseAutoEncoder,
    paths: Sequence[Path],
    *,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Samples:
    """Count the words in some random pictures, and cut out what shows words of all densities."""
    chosen = np.random.default_rng(seed).permutation(len(paths))[:PICTURES]
    wanted = [paths[i] for i in chosen.tolist()]
    seen: Seen = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, one in enumerate(pool.map(partial(_look, backbone, sae), wanted), start=1):
            seen += one
            progress(done, len(wanted))
        patches_v, pictures_v = _count(seen, sae.n_words)
        show = partial(_show, backbone, seen, pictures_v)
        words = tuple(word for word in pool.map(show, choose(patches_v, pictures_v)) if word)
    n_patches = sum(len(codes.words_pk) for _, codes in seen)
    return Samples(len(seen), n_patches, patches_v.astype(np.uint32), words)


def choose(patches_v: Counts, pictures_v: Counts) -> list[int]:
    """Return words spread evenly over the logarithm of their frequency, frequent ones first.

    >>> patches_v = 2 ** np.arange(12)
    >>> choose(patches_v, pictures_v=patches_v)
    [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    """
    words = np.flatnonzero(pictures_v >= _ENOUGH)
    if len(words) < WORDS:
        words = np.flatnonzero(pictures_v)
    words = words[np.argsort(-patches_v[words], kind="stable")]
    if len(words) <= WORDS:
        return [int(word) for word in words]
    logs = np.log(patches_v[words])
    chosen: list[int] = []
    for target in np.linspace(logs[0], logs[-1], WORDS):
        distances = np.abs(logs - target)
        distances[chosen] = np.inf
        chosen.append(int(distances.argmin()))
    return [int(word) for word in words[sorted(chosen)]]


def _look(backbone: Backbone, sae: SparseAutoEncoder, path: Path) -> Seen:
    try:
        image = _picture(backbone, path)
    except ImageError:
        return []
    return [(path, sae.encode(backbone.forward(backbone.prepare_image(image)).patches_pd))]


def _picture(backbone: Backbone, path: Path) -> Pixels:
    return images.decode_image(path, short_side=2 * backbone.input_size)


def _count(seen: Seen, n_words: int) -> tuple[Counts, Counts]:
    """Return how many patches, and how many pictures, have each word."""
    patches_v, pictures_v = np.zeros((2, n_words), dtype=np.int64)
    for _, codes in seen:
        count_v = np.bincount(codes.words_pk[codes.activations_pk > 0], minlength=n_words)
        patches_v += count_v
        pictures_v += count_v > 0
    return patches_v, pictures_v


def _show(backbone: Backbone, seen: Seen, pictures_v: Counts, word: int) -> SampleWord | None:
    grids = [(path, bags.word_activations(codes, word)) for path, codes in seen]
    grids.sort(key=lambda one: -float(one[1].max()))
    best = list(_pictures(backbone, [one for one in grids[:EXAMPLES] if one[1].any()]))
    if not best:
        return None
    examples = tuple(crops.crop_strongest_patch(*one, side=_EXAMPLE_SIDE) for one in best)
    heat_map = crops.encode_heat_map(*best[0], side=_HEAT_MAP_SIDE)
    return SampleWord(word, int(pictures_v[word]), heat_map, examples)


def _pictures(
    backbone: Backbone, found: list[tuple[Path, NDArray[np.float32]]]
) -> Iterator[tuple[Pixels, NDArray[np.float32]]]:
    for path, grid_p in found:
        try:
            yield _picture(backbone, path), grid_p.reshape(backbone.grid)
        except ImageError:  # gone by now
            continue
