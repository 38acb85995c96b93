"""The classical bag of visual words: k-means clusters of patches, scored by TF-IDF.

The words are learnt from the patches of the very gallery that is searched, as it was done before
vocabularies travelled; those of an SAE come from other pictures.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.research.features import Extracted, Progress
from bm25v.research.store import Arrays, cached
from bm25v.research.systems.sparse import by_product, matrix
from bm25v.research.systems.vectors import import_faiss
from bm25v.research.words import Bags

WORDS = 1_024
_LEARNT_FROM = 64  # patches a word at most, which bounds the time that learning takes
_AT_LEAST = 8  # patches a word: small galleries have fewer words
_ROUNDS = 10


def bovw(
    pictures: Extracted, k: int, progress: Progress = lambda what, done, total: None
) -> tuple[list[Ranked], int]:
    """Rank by the cosine of tf · ln(N / df); also say how many words there are."""
    patch_words_up = words_of(pictures, progress)
    bags = Bags.stack(np.unique(words, return_counts=True) for words in patch_words_up)
    gallery, queries = bags.take(pictures.gallery_n), bags.take(pictures.queries_q)
    n_words = int(patch_words_up.max()) + 1
    df_v = np.bincount(gallery.words_nk[gallery.tf_nk > 0], minlength=n_words)
    idf_v = np.log(len(gallery.tf_nk) / np.maximum(df_v, 1))
    sides = [_unit(bags, idf_v) for bags in (queries, gallery)]
    asked, searched = (matrix(side.words_nk, side.tf_nk, n_words) for side in sides)
    return list(by_product(asked, searched, k)), n_words


def words_of(pictures: Extracted, progress: Progress) -> NDArray[np.uint16]:
    """Return the nearest cluster of each patch of all distinct pictures: found once, then kept."""
    searched = np.unique(pictures.gallery_n)
    which = hashlib.blake2b(searched.tobytes(), digest_size=8).hexdigest()
    name = f"{pictures.key}-kmeans-{WORDS}-{which}.npz"

    def learn() -> Arrays:
        return {"words": _learnt(pictures, searched, progress)}

    return np.asarray(cached(pictures.cache / "words" / name, ("words",), learn)["words"])


def _learnt(
    pictures: Extracted, searched: NDArray[np.int64], progress: Progress
) -> NDArray[np.uint16]:
    faiss = import_faiss("k-means")
    sample_nd = _sample(pictures, searched)
    clusters = min(WORDS, max(1, len(sample_nd) // _AT_LEAST))
    kmeans = faiss.Kmeans(
        sample_nd.shape[1],
        clusters,
        niter=_ROUNDS,
        seed=0,
        min_points_per_centroid=1,
        max_points_per_centroid=_LEARNT_FROM,
    )
    progress("k-means", 0, len(pictures))
    kmeans.train(sample_nd)
    found: NDArray[np.uint16] | None = None
    done = 0
    for rows, patches_npd in pictures.patches():
        n, p, d = patches_npd.shape
        _, nearest = kmeans.index.search(patches_npd.reshape(n * p, d).astype(np.float32), 1)
        if found is None:
            found = np.empty((len(pictures), p), np.uint16)
        found[rows] = nearest.reshape(n, p)
        done += n
        progress("k-means", done, len(pictures))
    return np.empty((0, 0), np.uint16) if found is None else found


def _sample(pictures: Extracted, searched: NDArray[np.int64]) -> NDArray[np.float32]:
    """Return random patches of the gallery, as many of each picture."""
    wanted = max(1, -(-WORDS * _LEARNT_FROM // len(searched)))
    is_searched = np.isin(np.arange(len(pictures)), searched)
    parts: dict[int, NDArray[np.float32]] = {}
    for rows, patches_npd in pictures.patches():
        for row, patches_pd in zip(rows.tolist(), patches_npd, strict=True):
            if is_searched[row]:  # a draw of its own, as shards come in any order
                chosen = np.random.default_rng(row).permutation(len(patches_pd))[:wanted]
                parts[row] = patches_pd[chosen].astype(np.float32)
    return np.concatenate([parts[row] for row in sorted(parts)])


def _unit(bags: Bags, idf_v: NDArray[np.float64]) -> Bags:
    weighed_nk = bags.tf_nk * idf_v[bags.words_nk]
    lengths_n = np.linalg.norm(weighed_nk, axis=1, keepdims=True)
    return Bags(bags.words_nk, weighed_nk / np.maximum(lengths_n, 1e-12))
