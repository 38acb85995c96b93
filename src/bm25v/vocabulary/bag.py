"""Pools the codes of an image's patches into bags of visual words.

The activations of each word are summed over the patches. The bag of the index has the k_post
largest sums, quantised to uint16 (paper, equations 7 and 8 and the paragraph on quantisation). The
full bag has up to k_full, with one byte for each sum, and the patch where each word is strongest.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count
from bm25v.sae.model import Codes

SCALE = 100  # stored tf = round(100 · tf)
FULL_WORDS = 256  # of a full bag, at most
MAX_K_POST = (1 << 16) - 1  # the index numbers the words of a query in two bytes
FULL_BYTES = 1024  # of a stored full bag, at most
_LARGEST = np.iinfo(np.uint16).max


def _make_levels() -> NDArray[np.uint16]:
    """Return the stored tf of each level: whole numbers, the steps 1 or about 3.5 %."""
    values = [0, 1]
    while len(values) < 256:
        values.append(values[-1] + max(1, (values[-1] * 9 + 128) // 256))
    return np.minimum(values, _LARGEST).astype(np.uint16)


LEVELS = _make_levels()  # from 0 to 65535; part of the format of galleries


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

    def strongest(self, n: int | None) -> "Bag":
        """Return the n words with the largest tf; of equals, the lower words. None: all words."""
        if n is None:
            return self
        kept = np.sort(np.argsort(-self.frequencies, kind="stable")[:n])
        return Bag(self.words[kept], self.tf[kept])


class FullBag(NamedTuple):
    """An image's words, ascending, the level of each one's tf, and where each is strongest."""

    words: NDArray[np.int32]
    levels: NDArray[np.uint8]
    patches: NDArray[np.uint16]

    def __repr__(self) -> str:
        return repr(self.bag).replace("Bag", "FullBag", 1)

    @property
    def bag(self) -> Bag:
        """The words with their term frequencies, as BM25 reads them."""
        return Bag(self.words, LEVELS[self.levels])


def quantise(frequencies: NDArray[np.floating]) -> NDArray[np.uint16]:
    """Return round(100 · tf), clipped to the range of uint16.

    >>> quantise(np.array([0.004, 1.237, 9999.0])).tolist()
    [0, 124, 65535]
    """
    scaled = np.asarray(frequencies, dtype=np.float64) * SCALE
    return np.rint(scaled).clip(0, _LARGEST).astype(np.uint16)


def dequantise(tf: NDArray[np.uint16]) -> NDArray[np.float64]:
    return tf / np.float64(SCALE)


def to_levels(tf: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Return the level that is nearest to each stored tf, at least 1 for what is above 0.

    >>> LEVELS[to_levels(np.array([0, 7, 1000, 65535], dtype=np.uint16))].tolist()
    [0, 7, 985, 65535]
    """
    middles = (LEVELS[:-1].astype(np.int64) + LEVELS[1:] + 1) // 2
    return np.searchsorted(middles, tf, side="right").astype(np.uint8)


def full_bag_words(n_words: int, n_patches: int) -> int:
    """Return how many words fit into a stored full bag.

    >>> full_bag_words(10_240, 49), full_bag_words(18_432, 729)
    (256, 204)
    """
    return min(FULL_WORDS, FULL_BYTES // (word_bytes(n_words) + 1 + patch_bytes(n_patches)))


def word_bytes(n_words: int) -> int:
    return 2 if n_words <= 1 << 16 else 4


def patch_bytes(n_patches: int) -> int:
    return 1 if n_patches <= 1 << 8 else 2


def pool_codes(codes: Codes, *, k_post: int) -> Bag:
    """Sum each word's activations over all patches and keep the k_post largest sums.

    Of equal sums, that of the lower word is kept.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> bag = pool_codes(codes, k_post=2)
    >>> bag.words.tolist(), bag.frequencies.tolist()
    ([2, 7], [0.5, 3.0])
    """
    return _keep_largest(*_sum_activations(codes), k_post)


def pool_bags(codes: Codes, *, k_post: int, k_full: int) -> tuple[Bag, FullBag, Bag]:
    """Return the bag of the index, as `pool_codes` does, the full bag with k_full words, and all.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> bag, full_bag, _ = pool_bags(codes, k_post=1, k_full=3)
    >>> bag.words.tolist(), full_bag.words.tolist(), full_bag.patches.tolist()
    ([7], [2, 5, 7], [0, 1, 1])
    """
    active, sums = _sum_activations(codes)
    words, tf = _keep_largest(active, sums, k_full)
    strongest_v = np.zeros(int(words[-1]) + 1 if len(words) else 0, dtype=np.uint16)
    flat_words, activations = codes.words_pk.ravel(), codes.activations_pk.ravel()
    kept = np.flatnonzero(flat_words < len(strongest_v))
    patches = kept // codes.words_pk.shape[1]
    last_is_strongest = np.lexsort((-patches, activations[kept]))
    strongest_v[flat_words[kept[last_is_strongest]]] = patches[last_is_strongest]
    full_bag = FullBag(words, to_levels(tf), strongest_v[words])
    all_words = _keep_largest(active, sums, MAX_K_POST)
    return _keep_largest(active, sums, k_post), full_bag, all_words


def _sum_activations(codes: Codes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the active words, ascending, and the sum of each one's activations."""
    activations = codes.activations_pk.ravel().astype(np.float64)
    sum_v = np.bincount(codes.words_pk.ravel(), activations).astype(np.float64)
    active = np.flatnonzero(sum_v)
    return active, sum_v[active]


def _keep_largest(active: NDArray[np.int64], sums: NDArray[np.float64], k: int) -> Bag:
    top = np.sort(np.argsort(-sums, kind="stable")[:k])
    tf = quantise(sums[top])
    return Bag(active[top[tf > 0]].astype(np.int32), tf[tf > 0])


def word_activations(codes: Codes, word: int) -> NDArray[np.float32]:
    """Return how active one word is in each patch: where in the image the word is.

    >>> codes = Codes(np.array([[7, 2], [7, 5]]), np.array([[1.0, 0.5], [2.0, 0.25]]))
    >>> word_activations(codes, 5).tolist()
    [0.0, 0.25]
    """
    active_pk = np.where(codes.words_pk == word, codes.activations_pk, np.float32(0))
    return np.asarray(active_pk.sum(axis=1), dtype=np.float32)
