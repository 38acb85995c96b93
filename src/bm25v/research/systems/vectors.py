"""Ranks by dense vectors: exactly, as searches with mode "dense" do, and approximately by faiss."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import MissingExtra
from bm25v.index import second_stage
from bm25v.index.searcher import Ranked, top_positions
from bm25v.research.cost import HNSW_DEGREE, HNSW_EF, PQ_PARTS
from bm25v.training.patches import worker_pool

_FEWEST_BITS, _MOST_BITS = 4, 8  # of the code of a part
_VECTORS_PER_CODE = 39  # and per list: with fewer, faiss warns
MIN_PQ_VECTORS = _VECTORS_PER_CODE * 2**_FEWEST_BITS
COMPILE_FROM = 1_000_000  # cosines: fewer are faster without the compiler

Vectors = tuple[NDArray[np.float16], NDArray[np.float32]]  # of the gallery and of the queries


def rank_dense(vectors: Vectors, k: int) -> list[Ranked]:
    """Rank the whole gallery by cosine.

    >>> gallery = np.array([[3, 4], [0, 1]], np.float16)
    >>> rank_dense((gallery, np.array([[0, 1]], np.float32)), 2)[0].rows.tolist()
    [1, 0]
    """
    dense_ne, dense_qe = vectors
    rows = np.arange(len(dense_ne))
    compiled = len(rows) * len(dense_qe) > COMPILE_FROM

    def rank(query_e: NDArray[np.float32]) -> Ranked:
        cosines = second_stage.cosines(dense_ne, query_e, rows, compiled=compiled)
        best = top_positions(rows, cosines, k)
        return Ranked(rows[best], cosines[best].astype(np.float64))

    with worker_pool() as pool:
        return list(pool.map(rank, dense_qe))


def rerank_dense(vectors: Vectors, candidates: Sequence[Ranked]) -> list[Ranked]:
    """Order the candidates of each query by cosine, as the second stage does."""
    dense_ne, dense_qe = vectors
    rankings = []
    for query_e, (rows, _) in zip(dense_qe, candidates, strict=True):
        cosines = second_stage.cosines(dense_ne, query_e, rows)
        order = top_positions(rows, cosines, max(1, len(cosines)))
        rankings.append(Ranked(rows[order], cosines[order].astype(np.float64)))
    return rankings


def build_hnsw(dense_ne: NDArray[np.float32]) -> Any:
    """Build a neighbour graph with the paper's settings: M 32, ef 100."""
    faiss = import_faiss("HNSW")
    index = faiss.IndexHNSWFlat(dense_ne.shape[1], HNSW_DEGREE, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efSearch = HNSW_EF
    with _one_thread(faiss):  # several threads would build another graph each time
        index.add(dense_ne)
    return index


def build_ivfpq(dense_ne: NDArray[np.float32]) -> Any:
    """Build clusters of quantised vectors: m 48 and 4 to 8 bits, as in the paper.

    The paper's bits are "adaptive": here they grow with the number of vectors to train on. There
    are about √n clusters, each with enough vectors to be trained, and an eighth of them is probed,
    at least 4. Vectors are padded with zeros so that they divide into 48 parts, which changes no
    dot product. There must be `MIN_PQ_VECTORS`.
    """
    faiss = import_faiss("IVF-PQ")
    dense_ne = pad_to_parts(dense_ne)
    n, dim = dense_ne.shape
    lists = min(round(n**0.5), n // _VECTORS_PER_CODE)
    coarse = faiss.IndexFlatIP(dim)
    index = faiss.IndexIVFPQ(coarse, dim, lists, PQ_PARTS, pq_bits(n), faiss.METRIC_INNER_PRODUCT)
    index.nprobe = min(lists, max(4, lists // 8))
    with _one_thread(faiss):
        index.train(dense_ne)
        index.add(dense_ne)
    return index


def pq_bits(n: int) -> int:
    """Return how many bits the code of a part has when it is trained on n vectors.

    >>> [pq_bits(n) for n in (624, 1_020, 5_994, 75_750)]
    [4, 4, 7, 8]
    """
    return min(_MOST_BITS, int(np.log2(n / _VECTORS_PER_CODE)))


def pad_to_parts(vectors_ne: NDArray[np.float32]) -> NDArray[np.float32]:
    """Pad vectors with zeros, evenly, so that they divide into 48 parts of the same width.

    >>> pad_to_parts(np.ones((1, 320), np.float32)).reshape(48, 7).sum(axis=1).tolist()[-2:]
    [6.0, 6.0]
    """
    n, dim = vectors_ne.shape
    if dim % PQ_PARTS == 0:
        return vectors_ne
    width = -(-dim // PQ_PARTS)
    part_e = np.sort(np.arange(dim) % PQ_PARTS)
    column_e = part_e * width + np.arange(dim) - np.searchsorted(part_e, part_e)
    padded = np.zeros((n, PQ_PARTS * width), np.float32)
    padded[:, column_e] = vectors_ne
    return padded


def search_faiss(index: Any, dense_qe: NDArray[np.float32], k: int) -> list[Ranked]:
    if index.d != dense_qe.shape[1]:
        dense_qe = pad_to_parts(dense_qe)
    scores_qk, rows_qk = index.search(dense_qe, min(k, index.ntotal))
    return [
        Ranked(rows[rows >= 0], scores[rows >= 0].astype(np.float64))
        for rows, scores in zip(rows_qk, scores_qk, strict=True)
    ]


def import_faiss(feature: str) -> Any:
    try:
        return import_module("faiss")
    except ImportError as error:
        raise MissingExtra(feature, "research") from error


def to_unit_float32(dense_ne: NDArray[np.float16]) -> NDArray[np.float32]:
    """Return vectors of length 1, whose dot products are cosines, in the type that faiss takes."""
    return normalise(dense_ne.astype(np.float32))


@contextmanager
def _one_thread(faiss: Any) -> Iterator[None]:
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
