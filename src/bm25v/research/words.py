"""Features become words: SAE codes, kept on disk, and bags of them by any settings."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.backbones import Features
from bm25v.research.features import Extracted, Progress
from bm25v.research.settings import Pooling, Settings
from bm25v.research.store import Arrays, cached
from bm25v.sae.model import Codes
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import dequantise, quantise

_AT_ONCE = 16  # pictures whose words are found together

Pooled = tuple[NDArray[np.int64], NDArray[np.float64]]  # words, ascending, and their frequencies


class Bags(NamedTuple):
    """Words and frequencies, a row a picture, words ascending; a slot with frequency 0 is empty."""

    words_nk: NDArray[np.int64]
    tf_nk: NDArray[np.float64]

    @classmethod
    def stack(cls, bags: Iterable[Pooled]) -> "Bags":
        """Put bags of different sizes below each other.

        >>> small, large = (np.array([3]), np.array([0.5])), (np.array([1, 4]), np.array([1.0, 2]))
        >>> Bags.stack([small, large]).words_nk.tolist()
        [[3, 0], [1, 4]]
        """
        listed = list(bags)
        width = max((len(words) for words, _ in listed), default=0)
        shape = (len(listed), max(1, width))
        stacked = cls(np.zeros(shape, np.int64), np.zeros(shape))
        for row, (words, tf) in enumerate(listed):
            stacked.words_nk[row, : len(words)] = words
            stacked.tf_nk[row, : len(tf)] = tf
        return stacked

    def take(self, rows: NDArray[np.int64]) -> "Bags":
        """Return some rows."""
        return Bags(self.words_nk[rows], self.tf_nk[rows])

    def row(self, number: int) -> Pooled:
        """Return one bag."""
        used = self.tf_nk[number] > 0
        return self.words_nk[number, used], self.tf_nk[number, used]


def codes_of(
    pictures: Extracted,
    vocabulary: Vocabulary,
    progress: Progress = lambda what, done, total: None,
) -> Codes:
    """Return the codes of all distinct pictures, (U, P, k): found once, then kept."""
    path = pictures.cache / "words" / f"{pictures.key}-{vocabulary.fingerprint}.npz"
    found = cached(path, ("words", "activations"), lambda: _encode(pictures, vocabulary, progress))
    return Codes(found["words"], found["activations"])


def _encode(pictures: Extracted, vocabulary: Vocabulary, progress: Progress) -> Arrays:
    words_upk = activations_upk = np.empty(0)
    done = 0
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
        for rows, patches_npd in pictures.patches():
            starts = range(0, len(rows), _AT_ONCE)
            chunks = [patches_npd[start : start + _AT_ONCE] for start in starts]
            encoded = list(pool.map(lambda chunk: _codes(chunk, vocabulary), chunks))
            words = np.concatenate([codes.words_pk for codes in encoded])
            if not done:
                shape = (len(pictures), *words.shape[1:])
                kind = np.uint16 if vocabulary.n_words <= 2**16 else np.uint32
                words_upk, activations_upk = np.empty(shape, kind), np.empty(shape, np.float32)
            words_upk[rows] = words
            activations_upk[rows] = np.concatenate([codes.activations_pk for codes in encoded])
            done += len(rows)
            progress("words", done, len(pictures))
    return {"words": words_upk, "activations": activations_upk}


def _codes(patches_npd: NDArray[np.float16], vocabulary: Vocabulary) -> Codes:
    """Encode as the product does, a few pictures at once."""
    unused_e = np.ones(1, np.float32)
    features = [Features(one_pd.astype(np.float32), unused_e) for one_pd in patches_npd]
    found = [encoding.codes for encoding in vocabulary.encode_features(features)]
    return Codes(
        np.stack([codes.words_pk for codes in found]),
        np.stack([codes.activations_pk for codes in found]),
    )


def bags_of(codes_upk: Codes, settings: Settings, *, k_post: int) -> Bags:
    """Pool, keep the k_post largest, quantise: `bags.pool` at the paper's settings.

    >>> codes = Codes(np.array([[[7, 2], [7, 5]]]), np.array([[[1.0, 0.5], [2.0, 0.25]]]))
    >>> words_nk, tf_nk = bags_of(codes, Settings(pooling="max"), k_post=2)
    >>> words_nk.tolist(), tf_nk.tolist()
    ([[2, 7]], [[0.5, 2.0]])
    """
    pool = _POOLINGS[settings.pooling]

    def bag(words_pk: NDArray[np.integer], activations_pk: NDArray[np.float32]) -> Pooled:
        words, values = pool(words_pk.ravel(), activations_pk.ravel().astype(np.float64))
        top = np.argsort(-values, kind="stable")[:k_post]
        tf = dequantise(quantise(values[top])) if settings.quantised else values[top]
        ascending = np.argsort(top)
        ascending = ascending[tf[ascending] > 0]
        return words[top[ascending]], tf[ascending]

    return Bags.stack(map(bag, *codes_upk))


def _sum(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    sums_v = np.bincount(words, values).astype(np.float64)
    active = np.flatnonzero(sums_v)
    return active, sums_v[active]


def _max(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    return _largest(words, values, 1)


def _top3(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    return _largest(words, values, 3)


def _largest(words: NDArray[np.integer], values: NDArray[np.float64], n: int) -> Pooled:
    """Sum only the n largest values of each word."""
    order = np.lexsort((-values, words))
    words, values = words[order], values[order]
    is_first = np.append(True, words[1:] != words[:-1])
    firsts = np.flatnonzero(is_first)
    rank = np.arange(len(words)) - firsts[np.cumsum(is_first) - 1]
    return _sum(words[rank < n], values[rank < n])


_POOLINGS: dict[Pooling, Callable[[NDArray[np.integer], NDArray[np.float64]], Pooled]] = {
    "sum": _sum,
    "max": _max,
    "top3": _top3,
}
