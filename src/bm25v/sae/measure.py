"""How good an auto-encoder is, measured on patches it has not seen."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.sae.batches import Patches
from bm25v.sae.model import SparseAutoEncoder

DENSE_WORD = 0.1  # active in more than a tenth of the patches

_BLOCK_ROWS = 4096


class Figures(NamedTuple):
    """What was measured; shares are between 0 and 1."""

    patches: int
    fvu: float  # share of the variance left unexplained
    l0: float  # active words a patch
    silent_share: float  # words that none of the patches activates
    dense_share: float  # words that more than a tenth of the patches activate
    coherence: float  # mean cosine of each decoder row with the one most like it
    density_v: NDArray[np.float64]  # share of the patches that activate each word

    def report(self) -> dict[str, float]:
        """Return what a vocabulary's report says of them."""
        return {
            "held_out_patches": self.patches,
            "fvu": self.fvu,
            "explained_variance": 1 - self.fvu,
            "l0": self.l0,
            "silent_share": self.silent_share,
            "dense_share": self.dense_share,
            "coherence": self.coherence,
        }


def measure(sae: SparseAutoEncoder, blocks: Iterable[Patches]) -> Figures:
    """Measure on patches that come in blocks; sums are kept in float64.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> figures = measure(SparseAutoEncoder(eye, zeros, eye, zeros, k=1), [3 * eye])
    >>> figures.fvu, figures.l0, figures.silent_share
    (0.0, 1.0, 0.0)
    """
    n = 0
    left = 0.0
    sum_d = np.zeros(sae.patch_dim)
    squares = 0.0
    active_v = np.zeros(sae.n_words)
    for block in blocks:
        for start in range(0, len(block), _BLOCK_ROWS):
            z_nd = np.asarray(block[start : start + _BLOCK_ROWS], dtype=np.float32)
            codes = sae.encode(z_nd)
            exact_nd = z_nd.astype(np.float64)
            left += float(((exact_nd - sae.decode(codes)) ** 2).sum())
            squares += float((exact_nd**2).sum())
            sum_d += exact_nd.sum(axis=0)
            words = codes.words_pk[codes.activations_pk > 0]
            active_v += np.bincount(words, minlength=sae.n_words)
            n += len(z_nd)
    spread = squares - float((sum_d**2).sum()) / n
    density_v = active_v / n
    return Figures(
        patches=n,
        fvu=left / spread,
        l0=float(active_v.sum() / n),
        silent_share=float((active_v == 0).mean()),
        dense_share=float((density_v > DENSE_WORD).mean()),
        coherence=_coherence(sae.w_dec_vd),
        density_v=density_v,
    )


def _coherence(w_dec_vd: NDArray[np.float32]) -> float:
    lengths = np.maximum(np.linalg.norm(w_dec_vd, axis=1, keepdims=True), 1e-12)
    unit_vd = w_dec_vd / lengths
    best = []
    for start in range(0, len(unit_vd), 1024):
        cosines = unit_vd[start : start + 1024] @ unit_vd.T
        np.fill_diagonal(cosines[:, start:], -1)
        best.append(cosines.max(axis=1))
    return float(np.concatenate(best).mean())
