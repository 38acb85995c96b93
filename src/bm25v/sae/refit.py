"""A decoder fitted anew by least squares, while the encoder, and so every word, stays as it is."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import jit
from bm25v.errors import WrongUse
from bm25v.sae.batches import Patches
from bm25v.sae.model import Codes, SparseAutoEncoder

MOST_WORDS = 32_768  # two square matrices of float64 are 17 GB then
PULL = 0.1  # towards the old decoder: this many times a word's mean sum of squares

_BLOCK_ROWS = 4096


def refit(sae: SparseAutoEncoder, blocks: Iterable[Patches]) -> SparseAutoEncoder:
    """Return the auto-encoder with the decoder that explains patches best, given their words.

    The decoder is pulled a little towards the old one: a word that is never active keeps its row.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> spoilt = SparseAutoEncoder(eye, zeros, 0 * eye, zeros, k=1)
    >>> patches = np.array([[3, 0], [2, 0], [0, 3], [0, 2]], dtype=np.float32)
    >>> from bm25v.sae.measure import measure
    >>> measure(spoilt, [patches]).fvu > 10 * measure(refit(spoilt, [patches]), [patches]).fvu
    True
    """
    n_words = sae.n_words
    if n_words > MOST_WORDS:
        raise WrongUse(
            f"a decoder of {n_words:,} words is too large to be fitted at once: "
            f"{MOST_WORDS:,} are the most"
        )
    products_ww = np.zeros((n_words + 1, n_words + 1))  # the last row is of the bias
    targets_wd = np.zeros((n_words + 1, sae.patch_dim))
    for block in blocks:
        for start in range(0, len(block), _BLOCK_ROWS):
            z_nd = np.asarray(block[start : start + _BLOCK_ROWS], dtype=np.float32)
            words_nj, activations_nj = _with_bias(sae.encode(z_nd), n_words)
            _add(words_nj, activations_nj, z_nd, products_ww, targets_wd)
    diagonal_w = np.einsum("ww->w", products_ww)
    pull = PULL * diagonal_w.mean()
    diagonal_w += pull
    targets_wd += pull * np.vstack([sae.w_dec_vd, sae.b_dec_d])
    fitted_wd = np.linalg.solve(products_ww, targets_wd).astype(np.float32)
    return replace(sae, w_dec_vd=fitted_wd[:-1], b_dec_d=fitted_wd[-1])


def _with_bias(codes: Codes, n_words: int) -> Codes:
    """Add a word after the last one, which is active with 1 at every patch."""
    return Codes(
        np.pad(codes.words_pk, ((0, 0), (0, 1)), constant_values=n_words),
        np.pad(codes.activations_pk, ((0, 0), (0, 1)), constant_values=1),
    )


@jit
def _add(
    words_nj: NDArray[np.int32],
    activations_nj: NDArray[np.float32],
    z_nd: NDArray[np.float32],
    products_ww: NDArray[np.float64],
    targets_wd: NDArray[np.float64],
) -> None:
    """Add patches to both sides of the normal equations."""
    for n in range(len(words_nj)):
        for j in range(words_nj.shape[1]):
            word, activation = words_nj[n, j], np.float64(activations_nj[n, j])
            for d in range(z_nd.shape[1]):
                targets_wd[word, d] += activation * z_nd[n, d]
            for other in range(words_nj.shape[1]):
                products_ww[word, words_nj[n, other]] += activation * activations_nj[n, other]
