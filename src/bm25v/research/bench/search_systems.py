"""The systems that `bm25v bench search` compares, all on one thread.

In: a collection. Out: for each system a search function, its build time and its size in memory. By
words, with the same exact scores: bm25v, the paper's sparse matrix, and bm25s. By full bags: whole
searches, and the second stage alone. By dense vectors: exact in numpy and faiss, approximate with
HNSW and IVF-PQ. Not this module's job: timing searches.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.device import DeviceSearcher
from bm25v.index.bm25 import Statistics, saturation
from bm25v.index.searcher import Ranked, Searcher, SearchRequest, top_positions
from bm25v.research.bench.workload import BenchQuery, Collection
from bm25v.research.memory_gallery import MemoryGallery, encode_bag
from bm25v.research.systems import vectors
from bm25v.search import ranking
from bm25v.search.encode import EncodedQuery
from bm25v.search.query import Mode
from bm25v.vocabulary.bag import dequantise

Floats = NDArray[np.float32]
_FULL_MODES: tuple[Mode, ...] = ("words", "hybrid")
_Built = TypeVar("_Built")


@dataclass(frozen=True)
class System:
    """A way to search, and what it took to build it."""

    search: Callable[[BenchQuery], Ranked]
    build_s: float
    nbytes: int


def time_build(build: Callable[[], _Built]) -> tuple[_Built, float]:
    """Return what a function builds, and the seconds that it took."""
    start = time.perf_counter()
    built = build()
    return built, time.perf_counter() - start


# bm25v


def build_searcher(images: Collection) -> tuple[Searcher, float]:
    """Return a searcher with its index, and the seconds of building it without compilation."""
    _build_searcher(images.first(2))  # compiles; an array of one row would have another type
    return time_build(lambda: _build_searcher(images))


def _build_searcher(images: Collection) -> Searcher:
    searcher = Searcher(images.bags["words"], images.bags["tf"], n_words=images.n_words)
    searcher.build_index()
    return searcher


def first_stage(searcher: Searcher, images: Collection, k: int, build_s: float) -> System:
    """Our top k by BM25."""
    nbytes = images.bags.nbytes + searcher.nbytes
    return System(lambda query: searcher.search(query.words, k), build_s, nbytes)


def on_device(
    searcher: Searcher, device: str, queries: Sequence[BenchQuery], k: int, threads: int
) -> tuple[System, Callable[[], list[Ranked]]]:
    """Our top k by BM25 on a device of torch: for one query, and for all of them at once."""
    device_searcher, build_s = time_build(lambda: DeviceSearcher(searcher, device))

    def search(queries: Sequence[BenchQuery]) -> list[Ranked]:
        with threadpool_limits(threads):
            return device_searcher.search_many([SearchRequest(q.words, k) for q in queries])

    system = System(lambda query: search([query])[0], build_s, device_searcher.nbytes)
    return system, lambda: search(queries)


def two_stage(first: System, images: Collection, k: int) -> System:
    """Our first stage, and the top k of its candidates by cosine."""
    dense_ne = images.dense_ne

    def search(query: BenchQuery) -> Ranked:
        return _order_by_cosine(dense_ne, query, first.search(query).rows, k)

    return System(search, first.build_s, first.nbytes + dense_ne.nbytes)


class FullBagSystems:
    """Searches of a collection by full bags, and their second stage alone.

    All queries are encoded in advance, and so are their candidates for the second stage.
    """

    def __init__(
        self, searcher: Searcher, images: Collection, queries: Sequence[BenchQuery], k: int
    ) -> None:
        assert images.full_bags is not None
        self._searcher, self._images, self._k = searcher, images, k
        full_bags = images.full_bags
        self._gallery, build_s = time_build(
            lambda: MemoryGallery(searcher, full_bags, images.dense_ne)
        )
        self._build_s = build_s
        self._encoded = {mode: _encode_all(queries, mode) for mode in _FULL_MODES}
        self._nbytes = images.bags.nbytes + searcher.nbytes + full_bags.nbytes

    def search(self, mode: Mode, candidates: int) -> System:
        """A whole search: candidates by the index, the top k of them by full bags."""
        encoded, gallery, k = self._encoded[mode], self._gallery, self._k
        dense = self._images.dense_ne.nbytes if mode == "hybrid" else 0
        return System(
            lambda query: gallery.search(encoded[id(query)], k=k, candidates=candidates),
            self._build_s,
            self._nbytes + dense,
        )

    def find(self, candidates: int) -> System:
        """The first stage of a search by full bags: the strongest words of the query."""
        words = {number: query.first_words for number, query in self._encoded["words"].items()}
        searcher = self._searcher
        nbytes = self._images.bags.nbytes + searcher.nbytes
        return System(lambda query: searcher.search(words[id(query)], candidates), 0.0, nbytes)

    def rerank_by_words(self, candidates: int) -> System:
        """The second stage of a search by words."""
        encoded, rows_of = self._encoded["words"], self._find_candidates(candidates)
        full_bags, parameters = self._gallery.full_bags, self._searcher.parameters

        def search(query: BenchQuery) -> Ranked:
            rows, words = rows_of[id(query)], encoded[id(query)].words
            scores = ranking.score_full_bags(full_bags, words, rows, parameters, compiled=True)
            top = top_positions(rows, scores.bm25, self._k)
            return Ranked(rows[top], scores.bm25[top])

        return System(search, self._build_s, full_bags.rows.nbytes)

    def rerank_by_cosine(self, candidates: int) -> System:
        """The second stage of two-stage search, with the same candidates as by words."""
        rows_of, dense_ne = self._find_candidates(candidates), self._images.dense_ne

        def search(query: BenchQuery) -> Ranked:
            return _order_by_cosine(dense_ne, query, rows_of[id(query)], self._k)

        return System(search, 0.0, dense_ne.nbytes)

    def _find_candidates(self, candidates: int) -> dict[int, NDArray[np.int64]]:
        """Return the candidates of each query: all images if there are no more."""
        if len(self._images) <= candidates:
            return dict.fromkeys(self._encoded["words"], self._searcher.rows)
        return {
            number: self._searcher.search(encoded.first_words, candidates).rows
            for number, encoded in self._encoded["words"].items()
        }


def _encode_all(queries: Sequence[BenchQuery], mode: Mode) -> dict[int, EncodedQuery]:
    """Return queries as the engine reads them, by the identity of each."""
    return {
        id(query): encode_bag(query.full_bag, query.dense_e, mode)
        for query in queries
        if query.full_bag is not None
    }


def _order_by_cosine(
    dense_ne: NDArray[np.float16], query: BenchQuery, rows: NDArray[np.int64], k: int
) -> Ranked:
    cosines = ranking.cosines(dense_ne, query.dense_e, rows, compiled=True)
    top = top_positions(rows, cosines, k)
    return Ranked(rows[top], cosines[top].astype(np.float64))


# The same scores from a sparse matrix


@dataclass(frozen=True)
class Postings:
    """What each word adds to the score of each image: a sparse matrix in CSC form."""

    impacts: NDArray[np.float32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]  # of each word
    n_rows: int

    @classmethod
    def build(cls, images: Collection) -> "Postings":
        """Invert bags, and compute the contribution of each posting for a weight of 1."""
        words_nk, tf_nk = images.bags["words"], images.bags["tf"]
        statistics = Statistics.count(words_nk, tf_nk, images.n_words)
        norms = statistics.length_norms(tf_nk.sum(axis=1, dtype=np.int64))
        idf_v = statistics.idf(np.arange(images.n_words))
        impacts_nk = idf_v[words_nk] * saturation(dequantise(tf_nk), norms[:, np.newaxis])
        used = np.flatnonzero(tf_nk)
        slots = used[np.argsort(words_nk.ravel()[used], kind="stable")]
        return cls(
            impacts_nk.ravel()[slots].astype(np.float32),
            (slots // words_nk.shape[1]).astype(np.int32),
            np.concatenate(([0], np.cumsum(statistics.df_v))).astype(np.int32),
            len(images),
        )

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.impacts.nbytes + self.rows.nbytes + self.starts.nbytes


def scipy_csc(postings: Postings, build_s: float, k: int) -> System:
    """The paper's search: the inverted index as a sparse matrix (CSC), times a vector."""
    return _matrix_product(_csc_matrix(postings), postings, k, build_s)


def scipy_csr(postings: Postings, build_s: float, k: int) -> System:
    """The same product with a matrix stored image by image (CSR)."""
    return _matrix_product(_csc_matrix(postings).tocsr(), postings, k, build_s)


def _matrix_product(matrix: Any, postings: Postings, k: int, build_s: float) -> System:
    def search(query: BenchQuery) -> Ranked:
        query_v = np.zeros(matrix.shape[1], dtype=np.float32)
        query_v[query.words.words] = query.words.weights
        return _matches(top_k(matrix @ query_v, k))

    return System(search, build_s, postings.nbytes)


def scipy_columns(postings: Postings, build_s: float, k: int) -> System:
    """The same product over the columns of the query's words only: the fastest way in scipy."""
    matrix = _csc_matrix(postings)

    def search(query: BenchQuery) -> Ranked:
        weights = query.words.weights.astype(np.float32)
        return _matches(top_k(matrix[:, query.words.words] @ weights, k))

    return System(search, build_s, postings.nbytes)


def _csc_matrix(postings: Postings) -> Any:
    parts = (postings.impacts, postings.rows, postings.starts)
    shape = (postings.n_rows, len(postings.starts) - 1)
    return import_module("scipy.sparse").csc_array(parts, shape=shape)


def bm25s(postings: Postings, build_s: float, k: int) -> System:
    """bm25s, compiled; its own indexing needs whole term counts, so it gets our matrix."""
    engine = import_module("bm25s").BM25(backend="numba")
    engine.scores = {
        "data": postings.impacts,
        "indices": postings.rows,
        "indptr": postings.starts,
        "num_docs": postings.n_rows,
    }
    engine.nonoccurrence_array = None
    engine.unique_token_ids_set = set(range(len(postings.starts) - 1))

    def search(query: BenchQuery) -> Ranked:
        hits = engine.retrieve([query.words.words.tolist()], k=k, show_progress=False)
        return _matches(Ranked(hits.documents[0], hits.scores[0]))

    return System(search, build_s, postings.nbytes)


def top_k(scores_n: NDArray[np.float32], k: int) -> Ranked:
    """Return the best k rows, as one usually does it in numpy.

    >>> top_k(np.array([0.5, 0.9, 0.1], dtype=np.float32), k=2).rows.tolist()
    [1, 0]
    """
    rows = np.argpartition(scores_n, len(scores_n) - k)[len(scores_n) - k :]
    rows = rows[np.argsort(-scores_n[rows])]
    return Ranked(rows, scores_n[rows].astype(np.float64))


def _matches(ranked: Ranked) -> Ranked:
    """Remove rows that share no word with the query."""
    is_match = ranked.scores > 0
    return Ranked(ranked.rows[is_match], ranked.scores[is_match])


# Dense vectors


def dense_numpy(floats_ne: Floats, build_s: float, k: int) -> System:
    """All dot products, and the top k of them."""
    return System(lambda query: top_k(floats_ne @ query.dense_e, k), build_s, floats_ne.nbytes)


def dense_faiss(floats_ne: Floats, build_s: float, k: int) -> System:
    """The search of faiss's IndexFlatIP, over the given matrix instead of a copy."""
    faiss = _single_threaded_faiss()

    def search(query: BenchQuery) -> Ranked:
        query_1e = query.dense_e[np.newaxis]
        scores, rows = faiss.knn(query_1e, floats_ne, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Ranked(rows[0], scores[0])

    return System(search, build_s, floats_ne.nbytes)


def hnsw(floats_ne: Floats, k: int) -> System:
    """HNSW with the settings of `bm25v evaluate`, which are the paper's."""
    return _approximate(vectors.build_hnsw, floats_ne, k)


def ivfpq(floats_ne: Floats, k: int) -> System:
    """IVF-PQ with the settings of `bm25v evaluate`, which are the paper's."""
    return _approximate(vectors.build_ivfpq, floats_ne, k)


def _approximate(build: Callable[[Floats], Any], floats_ne: Floats, k: int) -> System:
    faiss = _single_threaded_faiss()
    index, build_s = time_build(lambda: build(floats_ne))

    def search(query: BenchQuery) -> Ranked:
        (ranked,) = vectors.search_faiss(index, query.dense_e[np.newaxis], k)
        return ranked

    return System(search, build_s, faiss.serialize_index(index).nbytes)


def _single_threaded_faiss() -> Any:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss
