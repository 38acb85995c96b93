"""Search by dense vectors: exact in numpy and faiss, approximate by HNSW and IVF-PQ.

The approximate ones are those of `evaluate`, with the paper's settings. All are for one thread.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.research.bench.pictures import BenchQuery
from bm25v.research.bench.system import System, best, timed
from bm25v.research.systems import vectors

Floats = NDArray[np.float32]


def by_numpy(floats_ne: Floats, k: int, build_s: float) -> System:
    """All dot products, then the best of them."""
    return System(lambda query: best(floats_ne @ query.dense_e, k), build_s, floats_ne.nbytes)


def by_faiss(floats_ne: Floats, k: int, build_s: float) -> System:
    """The search of faiss's IndexFlatIP, over the given matrix rather than a copy of it."""
    faiss = _faiss()

    def search(query: BenchQuery) -> Ranked:
        query_1e = query.dense_e[np.newaxis]
        scores, rows = faiss.knn(query_1e, floats_ne, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Ranked(rows[0], scores[0])

    return System(search, build_s, floats_ne.nbytes)


def by_hnsw(floats_ne: Floats, k: int) -> System:
    """A graph of neighbours."""
    return _approximate(vectors.hnsw, floats_ne, k)


def by_ivfpq(floats_ne: Floats, k: int) -> System:
    """Clusters of vectors squeezed to a few bytes; the nearest one is searched."""
    return _approximate(vectors.ivfpq, floats_ne, k)


def _approximate(build: Callable[[Floats], Any], floats_ne: Floats, k: int) -> System:
    faiss = _faiss()
    index, build_s = timed(lambda: build(floats_ne))

    def search(query: BenchQuery) -> Ranked:
        (found,) = vectors.search(index, query.dense_e[np.newaxis], k)
        return found

    return System(search, build_s, faiss.serialize_index(index).nbytes)


def _faiss() -> Any:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss
