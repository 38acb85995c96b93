"""Search by dense vectors: exact in numpy and faiss, approximate by HNSW and IVF-PQ.

The approximate ones have the paper's settings. All are for one thread.
"""

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.bench.pictures import Wish
from bm25v.bench.system import System, best, timed
from bm25v.index.searcher import Ranked

_CODE_BYTES = 48  # of a vector in IVF-PQ, at most
_LEARNT_FROM = 64  # vectors a centroid; faiss advises 30 to 256

Floats = NDArray[np.float32]


def by_numpy(floats_ne: Floats, k: int, build_s: float) -> System:
    """All dot products, then the best of them."""
    return System(lambda wish: best(floats_ne @ wish.dense_e, k), build_s, floats_ne.nbytes)


def by_faiss(floats_ne: Floats, k: int, build_s: float) -> System:
    """The search of faiss's IndexFlatIP, over the given matrix rather than a copy of it."""
    faiss = _faiss()

    def search(wish: Wish) -> Ranked:
        query_1e = wish.dense_e[np.newaxis]
        scores, rows = faiss.knn(query_1e, floats_ne, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Ranked(rows[0], scores[0])

    return System(search, build_s, floats_ne.nbytes)


def by_hnsw(floats_ne: Floats, k: int) -> System:
    """A graph of neighbours."""
    faiss = _faiss()
    index = faiss.IndexHNSWFlat(floats_ne.shape[1], 32, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = 100
    return _filled(faiss, index, floats_ne, k)


def by_ivfpq(floats_ne: Floats, k: int) -> System:
    """Clusters, as many as √N, of vectors squeezed to a few bytes; the nearest one is searched."""
    faiss = _faiss()
    n, dim = floats_ne.shape
    code_bytes = max(m for m in range(1, _CODE_BYTES + 1) if dim % m == 0)
    coarse, clusters = faiss.IndexFlatIP(dim), round(n**0.5)
    index = faiss.IndexIVFPQ(coarse, dim, clusters, code_bytes, 8, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # no warnings
    step = max(1, n // (_LEARNT_FROM * max(clusters, 256)))  # 256: values of a byte
    _, learning_s = timed(lambda: index.train(floats_ne[::step]))
    return _filled(faiss, index, floats_ne, k, learning_s)


def _filled(faiss: Any, index: Any, floats_ne: Floats, k: int, learning_s: float = 0.0) -> System:
    _, filling_s = timed(lambda: index.add(floats_ne))

    def search(wish: Wish) -> Ranked:
        scores, rows = index.search(wish.dense_e[np.newaxis], k)
        return Ranked(rows[0], scores[0])

    return System(search, learning_s + filling_s, faiss.serialize_index(index).nbytes)


def _faiss() -> Any:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss
