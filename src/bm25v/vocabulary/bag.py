"""Codes of an image's patches in, the image's bag of visual words out.

The activations of each word are summed over the patches, the k_post largest sums are kept and
quantised to uint16 (paper, equations 7 and 8 and the paragraph on quantisation). Not this module's
job: scores, statistics, files.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count
from bm25v.sae.model import Codes

SCALE = 100  # stored tf = round(100 · tf)
_LARGEST = np.iinfo(np.uint16).max


class Bag(NamedTuple):
    """An image's words, ascending, and their quantised term frequencies, all above 0."""

    words: NDArray[np.int32]
    tf: NDArray[np.uint16]

    def __repr__(self) -> str:
        order = np.argsort(-self.frequencies, kind="stable")[:3]
        pairs = zip(self.words[order].tolist(), self.frequencies[order].tolist(), strict=True)
        strongest = ", ".join(f"{word} ({tf:.2f})" for word, tf in pairs)
        return f"<Bag: {count(len(self.words), 'word')}, strongest {strongest or 'none'}>"

    @property
    def frequencies(self) -> NDArray[np.float64]:
        """The term frequencies of the BM25 formula: not quantised."""
        return dequantise(self.tf)


def quantise(frequencies: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Return round(100 · tf), clipped to the range of uint16.

    >>> quantise(np.array([0.004, 1.237, 9999.0])).tolist()
    [0, 124, 65535]
    """
    scaled = np.asarray(frequencies, dtype=np.float64) * SCALE
    return np.rint(scaled).clip(0, _LARGEST).astype(np.uint16)


def dequantise(tf: NDArray[np.uint16]) -> NDArray[np.float64]:
    """Return the term frequencies that were quantised.

    >>> dequantise(np.array([124], dtype=np.uint16)).tolist()
    [1.24]
    """
    return tf / np.float64(SCALE)


def pool_codes(codes: Codes, *, k_post: int) -> Bag:
    """Sum each word's activations over all patches and keep the k_post largest sums.

    Of equal sums, that of the lower word is kept.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> bag = pool_codes(codes, k_post=2)
    >>> bag.words.tolist(), bag.frequencies.tolist()
    ([2, 7], [0.5, 3.0])
    """
    activations = codes.activations_pk.ravel().astype(np.float64)
    sum_v = np.bincount(codes.words_pk.ravel(), activations).astype(np.float64)
    active = np.flatnonzero(sum_v)
    top = active[np.argsort(-sum_v[active], kind="stable")[:k_post]]
    tf = quantise(sum_v[top])
    ascending = np.argsort(top)
    ascending = ascending[tf[ascending] > 0]
    return Bag(top[ascending].astype(np.int32), tf[ascending])


def word_activations(codes: Codes, word: int) -> NDArray[np.float32]:
    """Return how active one word is in each patch: where in the image the word is.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> word_activations(codes, 5).tolist()
    [0.0, 0.25]
    """
    active_pk = np.where(codes.words_pk == word, codes.activations_pk, np.float32(0))
    return np.asarray(active_pk.sum(axis=1), dtype=np.float32)
