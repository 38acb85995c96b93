"""Measures a trained auto-encoder: on held-out patches, and which words nearly all images have."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.dense import normalise
from bm25v.errors import ImageError, InvalidOption
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.patches import worker_pool
from bm25v.training.recipe import Patches

STOP_WORD_IMAGES = 400  # at most, in which words are counted
STOP_SHARE = 0.7  # of these images: a word in more of them does not enter bags

_BLOCK_ROWS = 4096


def check_held_out(blocks: Sequence[Patches]) -> None:
    """Raise if nothing can be measured on patches: there must be finite, different ones.

    >>> check_held_out([np.ones((3, 2), np.float16)])
    Traceback (most recent call last):
    bm25v.errors.InvalidOption: the patches held out for measuring are all equal: ...
    """
    if not all(np.isfinite(block).all() for block in blocks):
        raise InvalidOption(
            "the patches held out for measuring contain NaN or infinite values: check the images "
            "and the backbone"
        )
    first_d = next((block[0] for block in blocks if len(block)), None)
    if first_d is None or all((block == first_d).all() for block in blocks):
        raise InvalidOption(
            "the patches held out for measuring are all equal: give more or other images, or "
            "another --seed"
        )


def measure_quality(sae: SparseAutoEncoder, blocks: Sequence[Patches]) -> dict[str, float]:
    """Measure on patches that come in blocks; sums are kept in float64.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> quality = measure_quality(SparseAutoEncoder(eye, zeros, eye, zeros, k=1), [3 * eye])
    >>> quality["fvu"], quality["l0"], quality["silent_share"]
    (0.0, 1.0, 0.0)
    """
    check_held_out(blocks)
    n = 0
    unexplained = 0.0
    # Sums of differences to one patch: those of almost equal patches would cancel out.
    offset_d = next(block[0] for block in blocks if len(block)).astype(np.float64)
    sum_d = np.zeros(sae.patch_dim)
    squares = 0.0
    active_v = np.zeros(sae.n_words)
    for block in blocks:
        for start in range(0, len(block), _BLOCK_ROWS):
            z_nd = np.asarray(block[start : start + _BLOCK_ROWS], dtype=np.float32)
            codes = sae.encode(z_nd)
            exact_nd = z_nd.astype(np.float64)
            unexplained += float(((exact_nd - sae.decode(codes)) ** 2).sum())
            shifted_nd = exact_nd - offset_d
            squares += float((shifted_nd**2).sum())
            sum_d += shifted_nd.sum(axis=0)
            words = codes.words_pk[codes.activations_pk > 0]
            active_v += np.bincount(words, minlength=sae.n_words)
            n += len(z_nd)
    variance = squares - float((sum_d**2).sum()) / n
    fvu = unexplained / variance
    return {
        "held_out_patches": n,
        "fvu": fvu,  # fraction of variance unexplained
        "explained_variance": 1 - fvu,
        "l0": float(active_v.sum() / n),  # active words per patch
        "silent_share": float((active_v == 0).mean()),  # of words that are active in no patch
        "dense_share": float((active_v / n > 0.1).mean()),  # in more than a tenth of the patches
        "coherence": _coherence(sae.w_dec_vd),
    }


def _coherence(w_dec_vd: NDArray[np.float32]) -> float:
    """Return the mean cosine of each decoder row with the most similar other row."""
    unit_vd = normalise(w_dec_vd)
    best = []
    for start in range(0, len(unit_vd), 1024):
        cosines = unit_vd[start : start + 1024] @ unit_vd.T
        np.fill_diagonal(cosines[:, start:], -1)
        best.append(cosines.max(axis=1))
    return float(np.concatenate(best).mean())


def find_stop_words(
    backbone: Backbone,
    sae: SparseAutoEncoder,
    paths: Sequence[Path],
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[int, ...]:
    """Return the words that most of some random images have."""
    chosen = np.random.default_rng(seed).permutation(len(paths))[:STOP_WORD_IMAGES].tolist()

    def find_words(path: Path) -> NDArray[np.int32] | None:
        try:
            image_hwc = images.decode_image(path, short_side=2 * backbone.input_size)
        except ImageError:
            return None
        codes = sae.encode(backbone.forward(backbone.prepare_image(image_hwc)).patches_pd)
        return np.unique(codes.words_pk[codes.activations_pk > 0])

    n_images, images_v = 0, np.zeros(sae.n_words, dtype=np.int64)
    with worker_pool() as pool:
        for done, words in enumerate(pool.map(find_words, [paths[i] for i in chosen]), start=1):
            if words is not None:
                n_images += 1
                images_v[words] += 1
            progress("counting words", done, len(chosen))
    return choose_stop_words(images_v, n_images)


def choose_stop_words(images_v: NDArray[np.int64], n_images: int) -> tuple[int, ...]:
    """Return the words that most images have: they link everything to everything.

    At most one word in 500 is left out, so that a small vocabulary, whose words are all frequent,
    keeps them. `images_v` says how many of the images have each word.
    """
    frequent = np.flatnonzero(images_v > STOP_SHARE * n_images)
    most = frequent[np.argsort(-images_v[frequent], kind="stable")[: len(images_v) // 500]]
    return tuple(sorted(most.tolist()))
