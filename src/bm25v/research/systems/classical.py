"""The classical bag of visual words (BoVW): k-means clusters of patch features, scored by TF-IDF.

The clusters are trained on the gallery that is searched, as was usual before vocabularies were
shared; an SAE is trained on other images.
"""

import hashlib
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.progress import Progress, no_progress
from bm25v.research.bags import BagTable
from bm25v.research.features import DatasetFeatures
from bm25v.research.systems.sparse import rank_by_product, sparse_matrix, unit_rows
from bm25v.research.systems.vectors import import_faiss
from bm25v.training.feature_store import Arrays, load_or_compute

N_WORDS = 1_024
_MAX_PATCHES_PER_WORD = 64  # limits the training time
_MIN_PATCHES_PER_WORD = 8  # small galleries get fewer words
_ITERATIONS = 10


def rank_bovw(
    features: DatasetFeatures, k: int, progress: Progress = no_progress
) -> tuple[list[Ranked], int]:
    """Rank by the cosine of tf · ln(N / df); also return the number of words."""
    patch_words_up = cluster_patches(features, progress)
    bags = BagTable.stack(np.unique(words, return_counts=True) for words in patch_words_up)
    gallery, queries = bags.take(features.gallery_index_n), bags.take(features.query_index_q)
    n_words = int(patch_words_up.max()) + 1
    df_v = np.bincount(gallery.words_nk[gallery.tf_nk > 0], minlength=n_words)
    idf_v = np.log(len(gallery.tf_nk) / np.maximum(df_v, 1))
    query_matrix, gallery_matrix = (
        sparse_matrix(side.words_nk, unit_rows(side.tf_nk * idf_v[side.words_nk]), n_words)
        for side in (queries, gallery)
    )
    return list(rank_by_product(query_matrix, gallery_matrix, k)), n_words


def cluster_patches(
    features: DatasetFeatures, progress: Progress = no_progress
) -> NDArray[np.uint16]:
    """Return the cluster of each patch of all distinct images, from the cache if possible."""
    gallery = np.unique(features.gallery_index_n)
    gallery_hash = hashlib.blake2b(gallery.tobytes(), digest_size=8).hexdigest()
    path = features.cache / "words" / f"{features.key}-kmeans-{N_WORDS}-{gallery_hash}.npz"

    def train() -> Arrays:
        return {"words": _train_clusters(features, gallery, progress)}

    return np.asarray(load_or_compute(path, ("words",), train)["words"])


def _train_clusters(
    features: DatasetFeatures, gallery: NDArray[np.int64], progress: Progress
) -> NDArray[np.uint16]:
    faiss = import_faiss("k-means")
    sample_nd = _sample_patches(features, gallery)
    kmeans = faiss.Kmeans(
        sample_nd.shape[1],
        min(N_WORDS, max(1, len(sample_nd) // _MIN_PATCHES_PER_WORD)),
        niter=_ITERATIONS,
        seed=0,
        min_points_per_centroid=1,
        max_points_per_centroid=_MAX_PATCHES_PER_WORD,
    )
    progress("k-means", 0, len(features))
    kmeans.train(sample_nd)

    def find_nearest(patches_npd: NDArray[np.float16]) -> tuple[NDArray[np.uint16]]:
        n, p, d = patches_npd.shape
        _, nearest = kmeans.index.search(patches_npd.reshape(n * p, d).astype(np.float32), 1)
        return (nearest.reshape(n, p).astype(np.uint16),)

    (words_up,) = features.map_patches(find_nearest, partial(progress, "k-means"))
    return words_up


def _sample_patches(features: DatasetFeatures, gallery: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return random patches of the gallery, the same number from each image."""
    per_image = max(1, -(-N_WORDS * _MAX_PATCHES_PER_WORD // len(gallery)))
    in_gallery = np.isin(np.arange(len(features)), gallery)
    samples: dict[int, NDArray[np.float32]] = {}
    for rows, patches_npd in features.patches():
        for row, patches_pd in zip(rows.tolist(), patches_npd, strict=True):
            if in_gallery[row]:  # a generator per image, as shards come in any order
                chosen = np.random.default_rng(row).permutation(len(patches_pd))[:per_image]
                samples[row] = patches_pd[chosen].astype(np.float32)
    return np.concatenate([samples[row] for row in sorted(samples)])
