"""Ranks by dense vectors: exactly as the product does, and approximately by faiss."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.errors import MissingExtra
from bm25v.index.searcher import Ranked
from bm25v.research.cost import HNSW_DEGREE, HNSW_EF, IVF_LISTS, IVF_PROBES, PQ_PARTS

PQ_BITS = (4, 8)  # of a part's code: at least and at most, as there are vectors to learn from
_LEARNT_FROM = 39  # vectors a code, below which faiss warns
_WORTH_COMPILING = 1_000_000  # cosines

Vectors = tuple[NDArray[np.float16], NDArray[np.float32]]  # of the gallery and of the queries


def dense(vectors: Vectors, k: int) -> list[Ranked]:
    """Rank the whole gallery by cosine.

    >>> found = dense((np.array([[3, 4], [0, 1]], np.float16), np.array([[0, 1]], np.float32)), 2)
    >>> found[0].rows.tolist()
    [1, 0]
    """
    rows = np.arange(len(vectors[0]))
    compiled = len(rows) * len(vectors[1]) > _WORTH_COMPILING

    def one(query_e: NDArray[np.float32]) -> Ranked:
        cosines = ranking.cosines(vectors[0], query_e, rows, compiled=compiled)
        best = ranking.top(rows, cosines, k)
        return Ranked(rows[best], cosines[best].astype(np.float64))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, vectors[1]))


def rerank(vectors: Vectors, candidates: Sequence[Ranked]) -> list[Ranked]:
    """Order each query's candidates by cosine instead, as the product does."""
    dense_ne, dense_qe = vectors
    found = []
    for query_e, first in zip(dense_qe, candidates, strict=True):
        cosines = ranking.cosines(dense_ne, query_e, first.rows)
        order = ranking.top(first.rows, cosines, max(1, len(cosines)))
        found.append(Ranked(first.rows[order], cosines[order].astype(np.float64)))
    return found


def hnsw(floats_ne: NDArray[np.float32]) -> Any:
    """Build a graph of neighbours with the paper's settings: M 32, ef 100."""
    faiss = import_faiss("HNSW")
    index = faiss.IndexHNSWFlat(floats_ne.shape[1], HNSW_DEGREE, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = HNSW_EF
    with _one_thread(faiss):  # else the graph is another one each time
        index.add(floats_ne)
    return index


def ivfpq(floats_ne: NDArray[np.float32]) -> Any:
    """Build clusters of squeezed vectors with the paper's settings: m 48, 4 to 8 bits, 1 probe.

    The paper calls the bits adaptive: they are as many as there are vectors to learn from, and 100
    clusters unless there are fewer vectors. Vectors are widened with zeros until 48 parts of one
    width hold them, which leaves every product as it is.
    """
    faiss = import_faiss("IVF-PQ")
    floats_ne = spread(floats_ne)
    n, dim = floats_ne.shape
    coarse, lists = faiss.IndexFlatIP(dim), min(IVF_LISTS, n)
    index = faiss.IndexIVFPQ(coarse, dim, lists, PQ_PARTS, pq_bits(n), faiss.METRIC_INNER_PRODUCT)
    index.nprobe = IVF_PROBES
    index.cp.min_points_per_centroid = index.pq.cp.min_points_per_centroid = 1  # no warnings
    with _one_thread(faiss):
        index.train(floats_ne)
        index.add(floats_ne)
    return index


def pq_bits(n: int) -> int:
    """Return how many bits a part's code has, learnt from so many vectors.

    >>> [pq_bits(n) for n in (10, 400, 1_020, 5_994, 75_750)]
    [3, 4, 4, 7, 8]
    """
    least, most = PQ_BITS
    wanted = int(np.log2(max(1, n / _LEARNT_FROM)))
    possible = int(np.log2(n))  # faiss needs a vector a code
    return max(1, min(max(least, wanted), most, possible))


def spread(vectors_ne: NDArray[np.float32]) -> NDArray[np.float32]:
    """Widen vectors with zeros, spread evenly, so that 48 parts of one width hold them.

    >>> spread(np.ones((1, 320), np.float32)).reshape(48, 7).sum(axis=1).tolist()[-2:]
    [6.0, 6.0]
    """
    n, dim = vectors_ne.shape
    if dim % PQ_PARTS == 0:
        return vectors_ne
    width = -(-dim // PQ_PARTS)
    parts_e = np.sort(np.arange(dim) % PQ_PARTS)
    places_e = parts_e * width + np.arange(dim) - np.searchsorted(parts_e, parts_e)
    wide_nw = np.zeros((n, PQ_PARTS * width), np.float32)
    wide_nw[:, places_e] = vectors_ne
    return wide_nw


def search(index: Any, queries_qe: NDArray[np.float32], k: int) -> list[Ranked]:
    """Return what an index of faiss finds for each query."""
    if index.d != queries_qe.shape[1]:
        queries_qe = spread(queries_qe)
    scores_qk, rows_qk = index.search(queries_qe, min(k, index.ntotal))
    return [
        Ranked(rows[rows >= 0], scores[rows >= 0].astype(np.float64))
        for rows, scores in zip(rows_qk, scores_qk, strict=True)
    ]


def import_faiss(what: str) -> Any:
    """Import faiss, or say how to get it."""
    try:
        return import_module("faiss")
    except ImportError as error:
        raise MissingExtra(what, "research") from error


def unit(dense_ne: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return vectors of length 1, whose products are cosines, as faiss wants them."""
    floats_ne = dense_ne.astype(np.float32)
    return np.asarray(floats_ne / np.maximum(np.linalg.norm(floats_ne, axis=1)[:, None], 1e-12))


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
