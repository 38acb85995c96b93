"""Codes and bags of a data set's images, under any settings.

With the default settings the bags are those that a gallery stores.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.research.features import DatasetFeatures, load_or_compute
from bm25v.research.settings import Pooling, RankingSettings
from bm25v.sae.model import Codes
from bm25v.store.bags import RowArray, full_bag_layout
from bm25v.training.patches import Arrays, worker_pool
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import FULL_WORDS, LEVELS, dequantise, quantise, to_levels, word_bytes

_BATCH = 16  # images that are encoded together
CHUNK_ROWS = 4_096  # full bags that are counted together

Pooled = tuple[NDArray[np.int64], NDArray[np.float64]]  # ascending words and their frequencies


class BagTable(NamedTuple):
    """The bags of N images, words ascending; a slot with frequency 0 is empty."""

    words_nk: NDArray[np.int64]
    tf_nk: NDArray[np.float64]

    @classmethod
    def stack(cls, bags: Iterable[Pooled]) -> "BagTable":
        """Make a table from bags of different sizes.

        >>> small, large = (np.array([3]), np.array([0.5])), (np.array([1, 4]), np.array([1.0, 2]))
        >>> BagTable.stack([small, large]).words_nk.tolist()
        [[3, 0], [1, 4]]
        """
        bags = list(bags)
        width = max((len(words) for words, _ in bags), default=0)
        shape = (len(bags), max(1, width))
        table = cls(np.zeros(shape, np.int64), np.zeros(shape))
        for row, (words, tf) in enumerate(bags):
            table.words_nk[row, : len(words)] = words
            table.tf_nk[row, : len(tf)] = tf
        return table

    def take(self, rows: NDArray[np.int64]) -> "BagTable":
        return BagTable(self.words_nk[rows], self.tf_nk[rows])

    def row(self, number: int) -> Pooled:
        used = self.tf_nk[number] > 0
        return self.words_nk[number, used], self.tf_nk[number, used]


def compute_codes(
    features: DatasetFeatures,
    vocabulary: Vocabulary,
    progress: Progress = no_progress,
    *,
    stop_words: bool = True,
) -> Codes:
    """Return the codes of all distinct images, with shape (U, P, k), from the cache if possible.

    The vocabulary's stop words are left out, unless `stop_words` is False: then there are none.
    """
    path = features.cache / "sae-codes" / f"{features.key}-{vocabulary.fingerprint}.npz"
    arrays = load_or_compute(
        path, ("words", "activations"), lambda: _encode(features, vocabulary, progress)
    )
    words_upk, activations_upk = arrays["words"], arrays["activations"]
    if stop_words and vocabulary.stop_words:
        is_stop_word = np.isin(words_upk, vocabulary.stop_words)
        activations_upk = np.where(is_stop_word, np.float32(0), activations_upk)
    return Codes(words_upk, activations_upk)


def _encode(features: DatasetFeatures, vocabulary: Vocabulary, progress: Progress) -> Arrays:
    word_type = np.dtype(f"u{word_bytes(vocabulary.n_words)}")

    def encode_batch(patches_npd: NDArray[np.float16]) -> Codes:
        n, p, d = patches_npd.shape
        codes = vocabulary.sae.encode(patches_npd.reshape(n * p, d).astype(np.float32))
        return Codes(codes.words_pk.reshape(n, p, -1), codes.activations_pk.reshape(n, p, -1))

    with worker_pool() as pool:

        def encode(patches_npd: NDArray[np.float16]) -> tuple[NDArray[Any], NDArray[np.float32]]:
            starts = range(0, len(patches_npd), _BATCH)
            batches = [patches_npd[start : start + _BATCH] for start in starts]
            encoded = zip(*pool.map(encode_batch, batches), strict=True)
            words_npk, activations_npk = map(np.concatenate, encoded)
            return words_npk.astype(word_type), activations_npk

        words_upk, activations_upk = features.map_patches(encode, partial(progress, "words"))
    return {"words": words_upk, "activations": activations_upk}


def pool_bags(codes_upk: Codes, settings: RankingSettings, *, k_post: int) -> BagTable:
    """Pool codes over the patches, keep the k_post strongest words, quantise.

    >>> codes = Codes(np.array([[[7, 2], [7, 5]]]), np.array([[[1.0, 0.5], [2.0, 0.25]]]))
    >>> words_nk, tf_nk = pool_bags(codes, RankingSettings(pooling="max"), k_post=2)
    >>> words_nk.tolist(), tf_nk.tolist()
    ([[2, 7]], [[0.5, 2.0]])
    """
    return BagTable.stack(pool_images(codes_upk, settings, k_post))


def pool_images(codes_upk: Codes, settings: RankingSettings, k: int) -> Iterator[Pooled]:
    """Yield the k strongest words of each image and their frequencies."""
    pool = _POOLINGS[settings.pooling]
    for words_pk, activations_pk in zip(*codes_upk, strict=True):
        words, values = pool(words_pk.ravel(), activations_pk.ravel().astype(np.float64))
        top = np.argsort(-values, kind="stable")[:k]
        tf = dequantise(quantise(values[top])) if settings.quantised else values[top]
        ascending = np.argsort(top)
        ascending = ascending[tf[ascending] > 0]
        yield words[top[ascending]], tf[ascending]


def pool_full_bags(
    codes_upk: Codes, settings: RankingSettings, *, k_full: int, n_words: int
) -> RowArray:
    """Return the full bags of images as rows of a gallery's file; which patches, they do not say.

    >>> codes = Codes(np.array([[[7, 2], [7, 5]]]), np.array([[[1.0, 0.5], [2.0, 0.25]]]))
    >>> rows = pool_full_bags(codes, RankingSettings(), k_full=3, n_words=8)
    >>> rows["words"].tolist(), LEVELS[rows["levels"]].tolist()
    ([[2, 5, 7]], [[51, 25, 305]])
    """
    n, n_patches, k = codes_upk.words_pk.shape
    width = min(k_full, max(FULL_WORDS, n_patches * k))  # that of galleries, unless k_full is more
    rows = np.zeros(n, dtype=full_bag_layout(width, n_words, n_patches))
    for row, (words, tf) in zip(
        rows, pool_images(codes_upk, replace(settings, quantised=True), k_full), strict=True
    ):
        row["words"][: len(words)] = words
        row["levels"][: len(words)] = to_levels(quantise(tf))
    return rows


def count_full_bags(rows: RowArray, n_words: int) -> Statistics:
    """Count full bags for BM25, a part at a time: their term frequencies are not stored."""
    statistics = Statistics.empty(n_words)
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows[start : start + CHUNK_ROWS]
        statistics += Statistics.count(part["words"], LEVELS[part["levels"]], n_words)
    return statistics


def _sum(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    sums_v = np.bincount(words, values).astype(np.float64)
    active = np.flatnonzero(sums_v)
    return active, sums_v[active]


def _sum_largest(words: NDArray[np.integer], values: NDArray[np.float64], n: int) -> Pooled:
    order = np.lexsort((-values, words))
    words, values = words[order], values[order]
    is_first = np.append(True, words[1:] != words[:-1])
    firsts = np.flatnonzero(is_first)
    rank = np.arange(len(words)) - firsts[np.cumsum(is_first) - 1]
    return _sum(words[rank < n], values[rank < n])


_POOLINGS: dict[Pooling, Callable[[NDArray[np.integer], NDArray[np.float64]], Pooled]] = {
    "sum": _sum,
    "max": partial(_sum_largest, n=1),
    "top3": partial(_sum_largest, n=3),
}
