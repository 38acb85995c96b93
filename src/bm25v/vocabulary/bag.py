"""Sparse codes in, a picture's bag of visual words out.

Sum-pool over patches, keep the top k_post, quantise to uint16 (paper, equations 7 and 8 and the
paragraph on quantisation). Not this room's job: scores, statistics, files.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.sae.model import Codes

SCALE = 100  # stored tf = round(100 · tf)
_LARGEST = np.iinfo(np.uint16).max


class Bag(NamedTuple):
    """One picture's words, ascending, and their quantised term frequencies, all above 0."""

    words: NDArray[np.int32]
    tf: NDArray[np.uint16]

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """The term frequencies as the formula wants them."""
        return dequantise(self.tf)


def quantise(frequencies: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Return round(100 · tf), clipped to what uint16 holds.

    >>> quantise(np.array([0.004, 1.237, 9999.0])).tolist()
    [0, 124, 65535]
    """
    scaled = np.asarray(frequencies, dtype=np.float64) * SCALE
    return np.rint(scaled).clip(0, _LARGEST).astype(np.uint16)


def dequantise(tf: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the term frequencies that quantised ones stand for.

    >>> dequantise(np.array([124], dtype=np.uint16)).tolist()
    [1.24]
    """
    return tf / np.float64(SCALE)


def pool_codes(codes: Codes, *, k_post: int) -> Bag:
    """Sum each word's activations over all patches and keep the k_post largest, ties to the lower.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> bag = pool_codes(codes, k_post=2)
    >>> bag.words.tolist(), bag.frequencies.tolist()
    ([2, 7], [0.5, 3.0])
    """
    activations = codes.activations_pk.ravel().astype(np.float64)
    pooled = np.bincount(codes.words_pk.ravel(), activations).astype(np.float64)
    active = np.flatnonzero(pooled)
    top = active[np.argsort(-pooled[active], kind="stable")[:k_post]]
    tf = quantise(pooled[top])
    ascending = np.argsort(top)
    ascending = ascending[tf[ascending] > 0]
    return Bag(top[ascending].astype(np.int32), tf[ascending])


def word_activations(codes: Codes, word: int) -> NDArray[np.float32]:
    """Return how active one word is at each patch: where in the picture the word is.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> word_activations(codes, 5).tolist()
    [0.0, 0.25]
    """
    active_pk = np.where(codes.words_pk == word, codes.activations_pk, np.float32(0))
    return np.asarray(active_pk.sum(axis=1), dtype=np.float32)
