"""What the words of a new vocabulary look like, looked up in some of the training pictures."""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import bags, images
from bm25v.backbones import Backbone
from bm25v.errors import ImageError
from bm25v.explain.heatmaps import overlay
from bm25v.explain.samples import Box, Example, Samples, SampleWord
from bm25v.sae.model import Codes, SparseAutoEncoder

PICTURES = 400
WORDS = 24
EXAMPLES = 7  # pictures a word

_ENOUGH = 4  # a word in fewer pictures has little to show
_EXAMPLE_SIDE, _HEAT_MAP_SIDE = 96, 144
_QUALITY = 72

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
    return [(path, sae.encode(backbone.forward(backbone.prepare(image)).patches_pd))]


def _picture(backbone: Backbone, path: Path) -> Pixels:
    return images.decode(path, short_side=2 * backbone.input_size)


def _count(seen: Seen, n_words: int) -> tuple[Counts, Counts]:
    """Return how many patches, and how many pictures, have each word."""
    patches_v, pictures_v = np.zeros((2, n_words), dtype=np.int64)
    for _, codes in seen:
        count_v = np.bincount(codes.words_pk[codes.activations_pk > 0], minlength=n_words)
        patches_v += count_v
        pictures_v += count_v > 0
    return patches_v, pictures_v


def _show(backbone: Backbone, seen: Seen, pictures_v: Counts, word: int) -> SampleWord | None:
    grids = [(path, bags.where(codes, word)) for path, codes in seen]
    grids.sort(key=lambda one: -float(one[1].max()))
    best = list(_pictures(backbone, [one for one in grids[:EXAMPLES] if one[1].any()]))
    if not best:
        return None
    examples = tuple(_example(image, grid) for image, grid in best)
    return SampleWord(word, int(pictures_v[word]), _heat_map(*best[0]), examples)


def _pictures(
    backbone: Backbone, found: list[tuple[Path, NDArray[np.float32]]]
) -> Iterator[tuple[Pixels, NDArray[np.float32]]]:
    for path, grid_p in found:
        try:
            yield _picture(backbone, path), grid_p.reshape(backbone.grid)
        except ImageError:  # gone by now
            continue


def _example(image_hwc: Pixels, grid: NDArray[np.float32]) -> Example:
    """Cut out a square around the strongest patch, about three patches wide."""
    height, width = image_hwc.shape[:2]
    row, column = np.unravel_index(int(grid.argmax()), grid.shape)
    tall, wide = height / grid.shape[0], width / grid.shape[1]
    side = max(1, min(height, width, round(1.5 * (tall + wide))))
    left = _start((float(column) + 0.5) * wide, side, width)
    top = _start((float(row) + 0.5) * tall, side, height)
    x, y = float(column) * wide - left, float(row) * tall - top
    box = (np.array([x, y, x + wide, y + tall]) / side).clip(0, 1).round(3)
    x0, y0, x1, y1 = (float(value) for value in box)
    part = image_hwc[top : top + side, left : left + side]
    jpeg = _jpeg(images.resize(part, width=_EXAMPLE_SIDE, height=_EXAMPLE_SIDE))
    return Example(jpeg, float(grid.max()), Box(x0, y0, x1 - x0, y1 - y0))


def _start(centre: float, side: int, length: int) -> int:
    """Return where a part begins that is centred as well as the picture's edges allow."""
    return min(max(0, round(centre - side / 2)), length - side)


def _heat_map(image_hwc: Pixels, grid: NDArray[np.float32]) -> bytes:
    height, width = image_hwc.shape[:2]
    scale = _HEAT_MAP_SIDE / max(width, height)
    width, height = max(8, round(width * scale)), max(8, round(height * scale))
    return _jpeg(overlay(images.resize(image_hwc, width=width, height=height), grid))


def _jpeg(image_hwc: Pixels) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image_hwc).save(file, "JPEG", quality=_QUALITY)
    return file.getvalue()
