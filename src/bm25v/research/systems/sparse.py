"""Ranks by words: visual words by `bm25v.index` if the settings allow it, else by a product of
sparse matrices, which supports all settings; and k-means words, the classical method.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import MissingExtra
from bm25v.index.bm25 import Statistics, WeightedWords, saturation
from bm25v.index.searcher import Ranked, Searcher, top_positions
from bm25v.progress import Progress, no_progress
from bm25v.research.bags import BagTable
from bm25v.research.features import DatasetFeatures, load_or_compute
from bm25v.research.settings import RankingSettings, Scoring, Transform, Weighting
from bm25v.research.systems.vectors import import_faiss
from bm25v.training.patches import Arrays
from bm25v.vocabulary.bag import quantise, word_bytes

INDEX_FROM = 1_000_000  # pairs of query and image; left alone, `Searcher` would scan for longer
BLOCK_SCORES = 4_000_000  # scores per product: 48 MB as a sparse matrix

_N_CLUSTERS = 1_024  # k-means words
_MAX_PATCHES_PER_CLUSTER = 64  # limits the training time
_MIN_PATCHES_PER_CLUSTER = 8  # small galleries get fewer words
_ITERATIONS = 10

Floats = NDArray[np.float64]

_TRANSFORMS: dict[Transform, Callable[[Floats], Floats]] = {
    "none": lambda tf: tf,
    "sqrt": np.sqrt,
    "log1p": np.log1p,
}


class WordRanker:
    """The bags of a gallery and of queries, with statistics, ready to be scored.

    >>> bags = BagTable(
    ...     np.array([[1, 4], [2, 0], [4, 5]]), np.array([[1.0, 3.0], [2.0, 0], [0.5, 1]])
    ... )
    >>> ranker = WordRanker(
    ...     bags, bags.take(np.array([0])), n_words=8, settings=RankingSettings()
    ... )
    >>> ranker.search(k=2)[0].rows.tolist()
    [0, 2]
    """

    def __init__(
        self, gallery: BagTable, queries: BagTable, *, n_words: int, settings: RankingSettings
    ) -> None:
        self._settings = settings
        self.gallery, self._queries = gallery, queries
        transform = _TRANSFORMS[settings.tf]
        self._tf_nk, self._tf_qk = transform(gallery.tf_nk), transform(queries.tf_nk)
        n = len(gallery.tf_nk)
        df_v = np.bincount(gallery.words_nk[gallery.tf_nk > 0], minlength=n_words)
        self.df_v = df_v  # document frequencies in the gallery
        self._idf_v = Statistics(n, df_v, 0).idf(np.arange(n_words))
        self._average_length = float(self._tf_nk.sum() / max(n, 1)) or 1.0
        self._weights_qk = self._query_weights(df_v > settings.stop * n)

    @property
    def words_per_image(self) -> float:
        return float(self.df_v.sum() / max(len(self._tf_nk), 1))

    @property
    def postings_per_query(self) -> float:
        postings_qk = np.where(self._weights_qk > 0, self.df_v[self._queries.words_nk], 0)
        return float(postings_qk.sum() / max(len(postings_qk), 1))

    def queries(self) -> list[WeightedWords]:
        queries = []
        for row, weights_k in enumerate(self._weights_qk):
            used_k = weights_k > 0
            words = self._queries.words_nk[row, used_k].astype(np.int32)
            queries.append(
                WeightedWords(words, weights_k[used_k], self._queries.tf_nk[row, used_k])
            )
        return queries

    def with_scoring(self, scoring: Scoring) -> "WordRanker":
        settings = replace(self._settings, scoring=scoring)
        return WordRanker(self.gallery, self._queries, n_words=len(self.df_v), settings=settings)

    def search(self, k: int) -> list[Ranked]:
        """Return the k best rows of each query that share a word with it; ties: lower row first."""
        if self._settings.fits_index:
            return self.prepare_searcher().search_many(self.queries(), k)
        return list(rank_by_product(*self._matrices(), k))

    def prepare_searcher(self) -> Searcher:
        """Return the index of the gallery's bags, built if all queries together justify it."""
        if len(self._weights_qk) * len(self._tf_nk) > INDEX_FROM:
            self._searcher.build_index()
        return self._searcher

    @cached_property
    def _searcher(self) -> Searcher:
        words_nk, tf_nk = self.gallery.words_nk, quantise(self.gallery.tf_nk)
        return Searcher(
            words_nk.astype(f"u{word_bytes(len(self.df_v))}"),  # as in galleries
            tf_nk,
            n_words=len(self.df_v),
            parameters=self._settings.parameters,
        )

    def _query_weights(self, is_stop_v: NDArray[np.bool_]) -> Floats:
        """Return the weight of each query slot; 0 if it is empty or has a stop word."""
        used_qk = (self._queries.tf_nk > 0) & ~is_stop_v[self._queries.words_nk]
        weights_qk = weigh_words(self._tf_qk, self._settings.index_weighting, self._saturate)
        return np.where(used_qk, weights_qk, 0.0)

    def _saturate(self, tf_nk: Floats) -> Floats:
        k1, b = self._settings.k1, self._settings.b
        norms_n = k1 * (1 - b + b * tf_nk.sum(axis=1, keepdims=True) / self._average_length)
        with np.errstate(invalid="ignore"):  # 0 / 0 where k1 is 0 and a slot empty
            return np.asarray(np.nan_to_num(saturation(tf_nk, norms_n, self._settings.parameters)))

    def _matrices(self) -> tuple[Any, Any]:
        """Return sparse matrices of queries and images whose product is the scores."""
        query_words, image_words = self._queries.words_nk, self.gallery.words_nk
        used_qk, used_nk = (self._weights_qk > 0).astype(float), (self._tf_nk > 0).astype(float)
        tf_qk, tf_nk = self._tf_qk * used_qk, self._tf_nk
        idf_qk, idf_nk = self._idf_v[query_words], self._idf_v[image_words]
        scorings: dict[Scoring, Callable[[], tuple[Floats, Floats]]] = {
            "bm25": lambda: (self._weights_qk * idf_qk, self._saturate(tf_nk)),
            "tfidf": lambda: (normalise(tf_qk * idf_qk), normalise(tf_nk * idf_nk)),
            "cosine": lambda: (normalise(tf_qk), normalise(tf_nk)),
            "dot": lambda: (tf_qk, tf_nk),
            "idf": lambda: (used_qk * idf_qk, used_nk),
            "binary": lambda: (used_qk, used_nk),
        }
        values_qk, values_nk = scorings[self._settings.scoring]()
        n_words = len(self.df_v)
        return (
            sparse_matrix(query_words, values_qk, n_words),
            sparse_matrix(image_words, values_nk, n_words),
        )


def weigh_words(tf: Floats, weighting: Weighting, saturate: Callable[[Floats], Floats]) -> Floats:
    weightings: dict[Weighting, Callable[[Floats], Floats]] = {
        "presence": np.ones_like,
        "tf": lambda tf: tf,
        "sqrt-tf": np.sqrt,
        "saturated": saturate,
    }
    return weightings[weighting](tf)


def rank_by_product(queries: Any, gallery: Any, k: int) -> Iterator[Ranked]:
    """Yield for each row of the query matrix the k best rows of the gallery by dot product."""
    columns = gallery.T.tocsr()
    block = max(1, BLOCK_SCORES // max(1, gallery.shape[0]))
    for start in range(0, queries.shape[0], block):
        product = queries[start : start + block] @ columns
        for first, end in zip(product.indptr[:-1], product.indptr[1:], strict=True):
            rows, scores = product.indices[first:end].astype(np.int64), product.data[first:end]
            best = top_positions(rows, scores, k)
            yield Ranked(rows[best], scores[best])


def sparse_matrix(words_nk: NDArray[np.int64], values_nk: Floats, n_words: int) -> Any:
    """Return a scipy matrix, images × words, of the slots that are not 0."""
    rows, slots = np.nonzero(values_nk)
    content = (values_nk[rows, slots], (rows, words_nk[rows, slots]))
    return import_scipy_sparse().csr_array(content, shape=(len(words_nk), n_words))


def import_scipy_sparse() -> Any:
    try:
        return import_module("scipy.sparse")
    except ImportError as error:
        raise MissingExtra("scoring by sparse matrices", "research") from error


# The classical bag of visual words (BoVW): k-means clusters of patch features, scored by TF-IDF.
# They are trained on the gallery that is searched, as was usual before vocabularies were shared.


def rank_clusters(
    features: DatasetFeatures, k: int, progress: Progress = no_progress
) -> tuple[list[Ranked], int]:
    """Rank by the cosine of tf · ln(N / df) of k-means words; also return their number."""
    clusters_up = cluster_patches(features, progress)
    bags = BagTable.stack(np.unique(words, return_counts=True) for words in clusters_up)
    gallery, queries = bags.take(features.gallery_index_n), bags.take(features.query_index_q)
    n_words = int(clusters_up.max()) + 1
    df_v = np.bincount(gallery.words_nk[gallery.tf_nk > 0], minlength=n_words)
    idf_v = np.log(len(gallery.tf_nk) / np.maximum(df_v, 1))
    query_matrix, gallery_matrix = (
        sparse_matrix(side.words_nk, normalise(side.tf_nk * idf_v[side.words_nk]), n_words)
        for side in (queries, gallery)
    )
    return list(rank_by_product(query_matrix, gallery_matrix, k)), n_words


def cluster_patches(
    features: DatasetFeatures, progress: Progress = no_progress
) -> NDArray[np.uint16]:
    """Return the cluster of each patch of all distinct images, from the cache if possible."""
    gallery = np.unique(features.gallery_index_n)
    gallery_hash = hashlib.blake2b(gallery.tobytes(), digest_size=8).hexdigest()
    path = features.cache / "words" / f"{features.key}-kmeans-{_N_CLUSTERS}-{gallery_hash}.npz"

    def train() -> Arrays:
        sample_nd = _sample_patches(features, gallery)
        kmeans = import_faiss("k-means").Kmeans(
            sample_nd.shape[1],
            min(_N_CLUSTERS, max(1, len(sample_nd) // _MIN_PATCHES_PER_CLUSTER)),
            niter=_ITERATIONS,
            seed=0,
            min_points_per_centroid=1,
            max_points_per_centroid=_MAX_PATCHES_PER_CLUSTER,
        )
        progress("k-means", 0, len(features))
        kmeans.train(sample_nd)

        def find_nearest(patches_npd: NDArray[np.float16]) -> tuple[NDArray[np.uint16]]:
            n, p, d = patches_npd.shape
            _, nearest = kmeans.index.search(patches_npd.reshape(n * p, d).astype(np.float32), 1)
            return (nearest.reshape(n, p).astype(np.uint16),)

        (clusters_up,) = features.map_patches(find_nearest, partial(progress, "k-means"))
        return {"words": clusters_up}

    return np.asarray(load_or_compute(path, ("words",), train)["words"])


def _sample_patches(features: DatasetFeatures, gallery: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return random patches of the gallery, the same number from each image."""
    per_image = max(1, -(-_N_CLUSTERS * _MAX_PATCHES_PER_CLUSTER // len(gallery)))
    in_gallery = np.isin(np.arange(len(features)), gallery)
    samples: dict[int, NDArray[np.float32]] = {}
    for rows, patches_npd in features.patches():
        for row, patches_pd in zip(rows.tolist(), patches_npd, strict=True):
            if in_gallery[row]:  # a generator per image, as shards come in any order
                chosen = np.random.default_rng(row).permutation(len(patches_pd))[:per_image]
                samples[row] = patches_pd[chosen].astype(np.float32)
    return np.concatenate([samples[row] for row in sorted(samples)])
