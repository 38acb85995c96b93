"""How well a sparse auto-encoder explains held-out patches. numpy only."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import InvalidOption
from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.recipe import Patches

_BLOCK_ROWS = 4096


class Quality(NamedTuple):
    """Measurements on held-out patches; shares are between 0 and 1."""

    patches: int
    fvu: float  # fraction of variance unexplained
    l0: float  # active words per patch
    silent_share: float  # share of words that are active in none of the patches
    dense_share: float  # share of words that are active in more than a tenth of the patches
    coherence: float  # mean cosine of each decoder row with the most similar other row

    def report(self) -> dict[str, float]:
        return {
            "held_out_patches": self.patches,
            "fvu": self.fvu,
            "explained_variance": 1 - self.fvu,
            "l0": self.l0,
            "silent_share": self.silent_share,
            "dense_share": self.dense_share,
            "coherence": self.coherence,
        }


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


def measure_quality(sae: SparseAutoEncoder, blocks: Sequence[Patches]) -> Quality:
    """Measure on patches that come in blocks; sums are kept in float64.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> quality = measure_quality(SparseAutoEncoder(eye, zeros, eye, zeros, k=1), [3 * eye])
    >>> quality.fvu, quality.l0, quality.silent_share
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
    return Quality(
        patches=n,
        fvu=unexplained / variance,
        l0=float(active_v.sum() / n),
        silent_share=float((active_v == 0).mean()),
        dense_share=float((active_v / n > 0.1).mean()),
        coherence=_coherence(sae.w_dec_vd),
    )


def _coherence(w_dec_vd: NDArray[np.float32]) -> float:
    unit_vd = normalise(w_dec_vd)
    best = []
    for start in range(0, len(unit_vd), 1024):
        cosines = unit_vd[start : start + 1024] @ unit_vd.T
        np.fill_diagonal(cosines[:, start:], -1)
        best.append(cosines.max(axis=1))
    return float(np.concatenate(best).mean())
