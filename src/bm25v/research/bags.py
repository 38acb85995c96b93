"""Codes and bags of a data set's images, under any settings.

In: `DatasetFeatures` and a vocabulary. Out: the SAE codes of all patches, cached on disk, and bags
that are pooled from them. With the default settings these are the bags that a gallery stores.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.backbones import Features
from bm25v.gallery.rows import RowArray, full_bag_layout
from bm25v.index.bm25 import Statistics
from bm25v.progress import Progress, no_progress
from bm25v.research.features import DatasetFeatures
from bm25v.research.settings import Pooling, RankingSettings
from bm25v.sae.model import Codes
from bm25v.threads import available_cpus
from bm25v.training.feature_store import Arrays, load_or_compute
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import (
    FULL_WORDS,
    LEVELS,
    dequantise,
    quantise,
    to_levels,
)

_BATCH = 16  # images that are encoded together
_CHUNK_ROWS = 4_096  # full bags that are counted together

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
        """Return a table of the given rows."""
        return BagTable(self.words_nk[rows], self.tf_nk[rows])

    def row(self, number: int) -> Pooled:
        """Return one bag."""
        used = self.tf_nk[number] > 0
        return self.words_nk[number, used], self.tf_nk[number, used]


def compute_codes(
    features: DatasetFeatures, vocabulary: Vocabulary, progress: Progress = no_progress
) -> Codes:
    """Return the codes of all distinct images, with shape (U, P, k), from the cache if possible."""
    path = features.cache / "codes" / f"{features.key}-{vocabulary.fingerprint}.npz"
    codes = load_or_compute(
        path, ("words", "activations"), lambda: _encode(features, vocabulary, progress)
    )
    return Codes(codes["words"], codes["activations"])


def _encode(features: DatasetFeatures, vocabulary: Vocabulary, progress: Progress) -> Arrays:
    words_upk = activations_upk = np.empty(0)
    done = 0
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(available_cpus()) as pool:
        for rows, patches_npd in features.patches():
            starts = range(0, len(rows), _BATCH)
            batches = [patches_npd[start : start + _BATCH] for start in starts]
            encoded = list(pool.map(lambda batch: _encode_batch(batch, vocabulary), batches))
            words = np.concatenate([codes.words_pk for codes in encoded])
            if not done:
                shape = (len(features), *words.shape[1:])
                word_type = np.uint16 if vocabulary.n_words <= 2**16 else np.uint32
                words_upk, activations_upk = np.empty(shape, word_type), np.empty(shape, np.float32)
            words_upk[rows] = words
            activations_upk[rows] = np.concatenate([codes.activations_pk for codes in encoded])
            done += len(rows)
            progress("words", done, len(features))
    return {"words": words_upk, "activations": activations_upk}


def _encode_batch(patches_npd: NDArray[np.float16], vocabulary: Vocabulary) -> Codes:
    """Encode the patches of a few images, as indexing does."""
    unused_e = np.ones(1, np.float32)
    features = [Features(patches_pd.astype(np.float32), unused_e) for patches_pd in patches_npd]
    codes = [encoding.codes for encoding in vocabulary.encode_features(features)]
    return Codes(
        np.stack([image.words_pk for image in codes]),
        np.stack([image.activations_pk for image in codes]),
    )


def pool_bags(codes_upk: Codes, settings: RankingSettings, *, k_post: int) -> BagTable:
    """Pool codes over the patches, keep the k_post strongest words, quantise.

    >>> codes = Codes(np.array([[[7, 2], [7, 5]]]), np.array([[[1.0, 0.5], [2.0, 0.25]]]))
    >>> words_nk, tf_nk = pool_bags(codes, RankingSettings(pooling="max"), k_post=2)
    >>> words_nk.tolist(), tf_nk.tolist()
    ([[2, 7]], [[0.5, 2.0]])
    """
    return BagTable.stack(_pool_images(codes_upk, settings, k_post))


def _pool_images(codes_upk: Codes, settings: RankingSettings, k: int) -> Iterator[Pooled]:
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
        rows, _pool_images(codes_upk, replace(settings, quantised=True), k_full), strict=True
    ):
        row["words"][: len(words)] = words
        row["levels"][: len(words)] = to_levels(quantise(tf))
    return rows


def count_full_bags(rows: RowArray, n_words: int) -> Statistics:
    """Count full bags for BM25, a part at a time: their term frequencies are not stored."""
    statistics = Statistics.empty(n_words)
    for start in range(0, len(rows), _CHUNK_ROWS):
        part = rows[start : start + _CHUNK_ROWS]
        statistics += Statistics.count(part["words"], LEVELS[part["levels"]], n_words)
    return statistics


def _sum(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    sums_v = np.bincount(words, values).astype(np.float64)
    active = np.flatnonzero(sums_v)
    return active, sums_v[active]


def _max(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    return _sum_largest(words, values, 1)


def _top3(words: NDArray[np.integer], values: NDArray[np.float64]) -> Pooled:
    return _sum_largest(words, values, 3)


def _sum_largest(words: NDArray[np.integer], values: NDArray[np.float64], n: int) -> Pooled:
    """Sum the n largest values of each word."""
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
