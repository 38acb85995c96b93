"""The systems that `search.py` compares, all on one thread.

By words, with the same exact scores: bm25v, the paper's sparse matrix, bm25s and Qdrant's engine.
tantivy counts whole tf; Seismic is approximate. By full bags: whole searches. By dense vectors:
exact in numpy and faiss, approximate with HNSW and IVF-PQ.
"""

import os
import struct
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from workload import BenchQuery, EncodedImages

from bm25v.index import second_stage
from bm25v.index.bm25 import Statistics, saturation
from bm25v.index.searcher import Ranked, Searcher, top_positions
from bm25v.research.systems import vectors
from bm25v.research.systems.full_bags import MemoryView, encode_bag
from bm25v.search.scoring import MODES, Mode
from bm25v.vocabulary.bag import dequantise

Floats = NDArray[np.float32]
_Built = TypeVar("_Built")


@dataclass(frozen=True)
class System:
    """A way to search for the k best images, and what it took to build it."""

    search: Callable[[BenchQuery, int], Ranked]
    build_s: float
    nbytes: int
    files: object = None  # that exist as long as this does


def time_build(build: Callable[[], _Built]) -> tuple[_Built, float]:
    start = time.perf_counter()
    built = build()
    return built, time.perf_counter() - start


# bm25v


def build_searcher(images: EncodedImages) -> tuple[Searcher, float]:
    """Return a searcher with its index, and the seconds of building it without compilation."""

    def build(images: EncodedImages) -> Searcher:
        searcher = Searcher(images.bags["words"], images.bags["tf"], n_words=images.n_words)
        searcher.build_index()
        return searcher

    build(images.first(2))  # compiles; an array of one row would have another type
    return time_build(lambda: build(images))


def first_stage(searcher: Searcher, images: EncodedImages, build_s: float) -> System:
    """Our top k by BM25."""
    nbytes = images.bags.nbytes + searcher.nbytes
    return System(lambda query, k: searcher.search(query.words, k), build_s, nbytes)


def two_stage(first: System, images: EncodedImages) -> System:
    """The paper's search: 200 candidates of our first stage, and the top k of them by cosine."""
    dense_ne = images.dense_ne
    n_candidates = MODES["two-stage"].candidates

    def search(query: BenchQuery, k: int) -> Ranked:
        rows = first.search(query, n_candidates).rows
        cosines = second_stage.cosines(dense_ne, query.dense_e, rows, compiled=True)
        top = top_positions(rows, cosines, k)
        return Ranked(rows[top], cosines[top].astype(np.float64))

    return System(search, first.build_s, first.nbytes + dense_ne.nbytes)


def by_full_bags(
    mode: Mode, searcher: Searcher, images: EncodedImages, queries: Sequence[BenchQuery]
) -> System:
    """Candidates by the index, the top k of them by full bags; queries are encoded in advance."""
    gallery, build_s = time_build(
        lambda: MemoryView.of(searcher, images.full_bags, images.dense_ne)
    )
    encoded = {
        id(query): gallery.weigh(encode_bag(query.full_bag, query.dense_e, mode))
        for query in queries
    }
    nbytes = images.bags.nbytes + searcher.nbytes + images.full_bags.nbytes
    nbytes += images.dense_ne.nbytes if mode == "hybrid" else 0

    def search(query: BenchQuery, k: int) -> Ranked:
        candidates = MODES[mode].count_candidates(k)
        return gallery.search(encoded[id(query)], k=k, candidates=candidates)

    return System(search, build_s, nbytes)


# The same scores from a sparse matrix


@dataclass(frozen=True)
class Postings:
    """What each word adds to the score of each image: a sparse matrix in CSC form."""

    impacts: NDArray[np.float32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]  # of each word
    n_rows: int

    @classmethod
    def build(cls, images: EncodedImages) -> "Postings":
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
        return self.impacts.nbytes + self.rows.nbytes + self.starts.nbytes


def scipy_csc(postings: Postings, build_s: float) -> System:
    """The paper's search: the inverted index as a sparse matrix (CSC), times a vector."""
    return _matrix_product(_csc_matrix(postings), postings, build_s)


def scipy_csr(postings: Postings, build_s: float) -> System:
    """The same product with a matrix stored image by image (CSR)."""
    return _matrix_product(_csc_matrix(postings).tocsr(), postings, build_s)


def _matrix_product(matrix: Any, postings: Postings, build_s: float) -> System:
    def search(query: BenchQuery, k: int) -> Ranked:
        query_v = np.zeros(matrix.shape[1], dtype=np.float32)
        query_v[query.words.words] = query.words.weights
        return _matches(top_k(matrix @ query_v, k))

    return System(search, build_s, postings.nbytes)


def scipy_columns(postings: Postings, build_s: float) -> System:
    """The same product over the columns of the query's words only: the fastest way in scipy."""
    matrix = _csc_matrix(postings)

    def search(query: BenchQuery, k: int) -> Ranked:
        weights = query.words.weights.astype(np.float32)
        return _matches(top_k(matrix[:, query.words.words] @ weights, k))

    return System(search, build_s, postings.nbytes)


def _csc_matrix(postings: Postings) -> Any:
    parts = (postings.impacts, postings.rows, postings.starts)
    shape = (postings.n_rows, len(postings.starts) - 1)
    return import_module("scipy.sparse").csc_array(parts, shape=shape)


def bm25s(postings: Postings, build_s: float) -> System:
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

    def search(query: BenchQuery, k: int) -> Ranked:
        hits = engine.retrieve([query.words.words.tolist()], k=k, show_progress=False)
        return _matches(Ranked(hits.documents[0], hits.scores[0]))

    return System(search, build_s, postings.nbytes)


def seismic(postings: Postings, build_s: float) -> System:
    """Seismic, approximate, with settings that find nearly all hits and leave out no posting.

    It reads its own format: the number of images, then of each its words and what they add.
    """
    module = import_module("seismic")
    order = np.argsort(postings.rows, kind="stable")
    words = np.repeat(np.arange(len(postings.starts) - 1), np.diff(postings.starts))
    words, impacts = words[order].astype(np.uint32), postings.impacts[order]
    ends = np.cumsum(np.bincount(postings.rows, minlength=postings.n_rows))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "images.bin"
        with path.open("wb") as file:
            file.write(struct.pack("<I", postings.n_rows))
            start = 0
            for end in ends.tolist():
                file.write(struct.pack("<I", end - start))
                file.write(words[start:end].tobytes() + impacts[start:end].tobytes())
                start = end
        settings = {
            "n_postings": postings.n_rows,
            "max_fraction": 1.0,
            "summary_energy": 0.8,
            "centroid_fraction": min(0.1, 50_000 / postings.n_rows),  # 65,535 at most
        }
        build = partial(module.SeismicIndexRaw.build, str(path), **settings)
        stdout = os.dup(1)
        os.dup2(2, 1)  # it prints its settings, which are no figures
        try:
            index, index_s = time_build(build)
        finally:
            os.dup2(stdout, 1)
            os.close(stdout)

    def search(query: BenchQuery, k: int) -> Ranked:
        known = query.words.words.astype(np.int32)
        hits = index.search(known, np.ones(len(known), np.float32), k, len(known), 0.7, 0, True)
        scores, rows = np.array(hits, np.float64).reshape(-1, 2).T
        return Ranked(rows.astype(np.int64), scores)

    return System(search, build_s + index_s, int(index.nnz) * 8)


def tantivy(images: EncodedImages) -> System:
    """tantivy, whose BM25 counts whole tf: each word is repeated as often as its tf, rounded."""
    module = import_module("tantivy")
    builder = module.SchemaBuilder()
    builder.add_text_field("words", tokenizer_name="whitespace", index_option="freq")
    builder.add_unsigned_field("row", fast=True, stored=True)
    index = module.Index(builder.build())
    counts_nk = np.maximum(np.rint(dequantise(images.bags["tf"])), images.bags["tf"] > 0)

    def build() -> Any:
        writer = index.writer(500_000_000, num_threads=1)
        pairs = zip(images.bags["words"].tolist(), counts_nk.astype(int).tolist(), strict=True)
        for row, (words, counts) in enumerate(pairs):
            repeated = (f"w{word} " * n for word, n in zip(words, counts, strict=True))
            document = module.Document()
            document.add_text("words", "".join(repeated))
            document.add_unsigned("row", row)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
        index.reload()
        return index.searcher()

    searcher, build_s = time_build(build)

    def search(query: BenchQuery, k: int) -> Ranked:
        text = " ".join(f"w{word}" for word in query.words.words.tolist())
        hits = searcher.search(index.parse_query(text, ["words"]), k, count=False).hits
        rows = [searcher.doc(address)["row"][0] for _, address in hits]
        return Ranked(np.array(rows, np.int64), np.array([score for score, _ in hits]))

    return System(search, build_s, 0)


def qdrant(images: EncodedImages, postings: Postings) -> System:
    """Qdrant's engine in this process, one shard, exact: its index of sparse vectors."""
    edge = import_module("qdrant_edge")
    folder = tempfile.TemporaryDirectory(prefix="bm25v-edge-")
    config = edge.EdgeConfig(vectors={}, sparse_vectors={"words": edge.EdgeSparseVectorParams()})
    shard = edge.EdgeShard.create(f"{folder.name}/shard", config)
    impacts_nk = np.zeros(images.bags["words"].shape, np.float32)
    used = np.flatnonzero(images.bags["tf"])
    by_word = used[np.argsort(images.bags["words"].ravel()[used], kind="stable")]
    impacts_nk.ravel()[by_word] = postings.impacts

    def build() -> None:
        for start in range(0, len(images), 1_000):
            rows = range(start, min(start + 1_000, len(images)))
            vectors_n = (
                edge.SparseVector(images.bags["words"][row].tolist(), impacts_nk[row].tolist())
                for row in rows
            )
            points = [
                edge.Point(row, {"words": vector}, {})
                for row, vector in zip(rows, vectors_n, strict=True)
            ]
            shard.update(edge.UpdateOperation.upsert_points(points))
        shard.optimize()

    _, build_s = time_build(build)

    def search(query: BenchQuery, k: int) -> Ranked:
        words, weights, _ = query.words
        vector = edge.SparseVector(words.tolist(), weights.tolist())
        request = edge.QueryRequest(
            limit=k,
            query=edge.Query.Nearest(vector, using="words"),
            params=edge.SearchParams(exact=True),
            with_payload=False,
        )
        hits = shard.query(request)
        scores = np.array([hit.score for hit in hits], np.float64)
        return Ranked(np.array([int(hit.id) for hit in hits], np.int64), scores)

    return System(search, build_s, 0, files=folder)


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


def dense_numpy(floats_ne: Floats, build_s: float) -> System:
    """All dot products, and the top k of them."""
    return System(lambda query, k: top_k(floats_ne @ query.dense_e, k), build_s, floats_ne.nbytes)


def dense_faiss(floats_ne: Floats, build_s: float) -> System:
    """The search of faiss's IndexFlatIP, over the given matrix instead of a copy."""
    faiss = _single_threaded_faiss()

    def search(query: BenchQuery, k: int) -> Ranked:
        query_1e = query.dense_e[np.newaxis]
        scores, rows = faiss.knn(query_1e, floats_ne, k, metric=faiss.METRIC_INNER_PRODUCT)
        return Ranked(rows[0], scores[0])

    return System(search, build_s, floats_ne.nbytes)


def approximate(build: Callable[[Floats], Any], floats_ne: Floats) -> System:
    """HNSW or IVF-PQ with the settings of `bm25v evaluate`."""
    faiss = _single_threaded_faiss()
    index, build_s = time_build(lambda: build(floats_ne))

    def search(query: BenchQuery, k: int) -> Ranked:
        (ranked,) = vectors.search_faiss(index, query.dense_e[np.newaxis], k)
        return ranked

    return System(search, build_s, faiss.serialize_index(index).nbytes)


def _single_threaded_faiss() -> Any:
    faiss = import_module("faiss")
    faiss.omp_set_num_threads(1)
    return faiss
