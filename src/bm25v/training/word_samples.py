"""Samples of a new vocabulary's words: how frequent they are, and image parts that show them.

In: some of the training images. Out: `Samples`, which training saves beside the vocabulary, because
the images may be missing later; and the words that are in nearly all images.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError
from bm25v.explanations import crops
from bm25v.explanations.samples import EXAMPLES, Samples, SampleWord, choose_words
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.threads import available_cpus
from bm25v.vocabulary import bag as bags

IMAGES = 400
STOP_SHARE = 0.7  # of the images: a word in more of them does not enter bags

_EXAMPLE_SIDE, _HEAT_MAP_SIDE = 96, 144

Pixels = NDArray[np.uint8]
Counts = NDArray[np.int64]
EncodedImages = list[tuple[Path, Codes]]


def gather_samples(
    backbone: Backbone,
    sae: SparseAutoEncoder,
    paths: Sequence[Path],
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> Samples:
    """Count the words of some random images, and cut out examples of frequent and rare words."""
    chosen = np.random.default_rng(seed).permutation(len(paths))[:IMAGES]
    chosen_paths = [paths[i] for i in chosen.tolist()]
    encoded: EncodedImages = []
    with ThreadPoolExecutor(available_cpus()) as pool:
        results = pool.map(partial(_encode_image, backbone, sae), chosen_paths)
        for done, (path, codes) in enumerate(zip(chosen_paths, results, strict=True), start=1):
            if codes is not None:
                encoded.append((path, codes))
            progress("collecting samples of words", done, len(chosen_paths))
        patches_v, images_v = _count_words(encoded, sae.n_words)
        make_sample = partial(_make_sample, backbone, encoded, images_v)
        words = tuple(s for s in pool.map(make_sample, choose_words(patches_v, images_v)) if s)
    n_patches = sum(len(codes.words_pk) for _, codes in encoded)
    counts_v, stop_words = patches_v.astype(np.uint32), find_stop_words(images_v, len(encoded))
    return Samples(len(encoded), n_patches, counts_v, words, stop_words)


def find_stop_words(images_v: Counts, n_images: int) -> tuple[int, ...]:
    """Return the words that most images have: they link everything to everything.

    At most one word in 500 is left out, so that a small vocabulary, whose words are all frequent,
    keeps them.

    >>> images_v = np.ones(1000, dtype=np.int64)
    >>> images_v[[7, 31, 400]] = 95, 80, 60
    >>> find_stop_words(images_v, n_images=100)
    (7, 31)
    """
    frequent = np.flatnonzero(images_v > STOP_SHARE * n_images)
    most = frequent[np.argsort(-images_v[frequent], kind="stable")[: len(images_v) // 500]]
    return tuple(sorted(most.tolist()))


def _encode_image(backbone: Backbone, sae: SparseAutoEncoder, path: Path) -> Codes | None:
    """Return the codes of an image; None if it cannot be read."""
    try:
        image_hwc = _decode(backbone, path)
    except ImageError:
        return None
    return sae.encode(backbone.forward(backbone.prepare_image(image_hwc)).patches_pd)


def _decode(backbone: Backbone, path: Path) -> Pixels:
    return images.decode_image(path, short_side=2 * backbone.input_size)


def _count_words(encoded: EncodedImages, n_words: int) -> tuple[Counts, Counts]:
    """Return how many patches, and how many images, have each word."""
    patches_v, images_v = np.zeros((2, n_words), dtype=np.int64)
    for _, codes in encoded:
        count_v = np.bincount(codes.words_pk[codes.activations_pk > 0], minlength=n_words)
        patches_v += count_v
        images_v += count_v > 0
    return patches_v, images_v


def _make_sample(
    backbone: Backbone, encoded: EncodedImages, images_v: Counts, word: int
) -> SampleWord | None:
    maps = [(path, bags.word_activations(codes, word)) for path, codes in encoded]
    maps.sort(key=lambda path_and_map: -float(path_and_map[1].max()))
    best = list(_decode_best(backbone, [pair for pair in maps[:EXAMPLES] if pair[1].any()]))
    if not best:
        return None
    examples = tuple(crops.crop_strongest_patch(*pair, side=_EXAMPLE_SIDE) for pair in best)
    heat_map = crops.encode_highlight(*best[0], side=_HEAT_MAP_SIDE)
    return SampleWord(word, int(images_v[word]), heat_map, examples)


def _decode_best(
    backbone: Backbone, maps: list[tuple[Path, NDArray[np.float32]]]
) -> Iterator[tuple[Pixels, NDArray[np.float32]]]:
    for path, map_p in maps:
        try:
            yield _decode(backbone, path), map_p.reshape(backbone.grid)
        except ImageError:  # deleted in the meantime
            continue
