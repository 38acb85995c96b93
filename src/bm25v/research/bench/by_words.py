"""Search by words: ours, the paper's sparse matrix, and bm25s, all for the same exact scores."""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.index.searcher import Ranked, Searcher
from bm25v.index.statistics import Statistics, saturation
from bm25v.research.bench.pictures import BenchQuery, Pictures
from bm25v.research.bench.system import System, best, timed
from bm25v.vocabulary.bag import dequantise


def make_searcher(pictures: Pictures) -> tuple[Searcher, float]:
    """Return a searcher with its index, and the seconds that took once it was compiled."""
    _searcher(pictures.first(2))  # compiles; one row would be another kind of array
    return timed(lambda: _searcher(pictures))


def _searcher(pictures: Pictures) -> Searcher:
    bags = pictures.bags
    searcher = Searcher(bags["words"], bags["tf"], n_words=pictures.n_words)
    searcher.build()
    return searcher


def first_stage(searcher: Searcher, pictures: Pictures, k: int, build_s: float) -> System:
    """Our top k by words."""
    nbytes = pictures.bags.nbytes + searcher.nbytes
    return System(lambda query: searcher.search(query.query, k), build_s, nbytes)


def two_stage(first: System, pictures: Pictures, answers: int) -> System:
    """Our first stage, and the best of its candidates by cosine."""
    dense_ne = pictures.dense_ne

    def search(query: BenchQuery) -> Ranked:
        rows = first.search(query).rows
        cosines = ranking.cosines(dense_ne, query.dense_e, rows, compiled=True)
        top = ranking.top(rows, cosines, answers)
        return Ranked(rows[top], cosines[top].astype(np.float64))

    return System(search, first.build_s, first.nbytes + dense_ne.nbytes)


@dataclass(frozen=True)
class Postings:
    """What each word adds to each picture's score, word after word: a matrix in CSC form."""

    impacts: NDArray[np.float32]
    rows: NDArray[np.int32]
    starts: NDArray[np.int32]  # of the words
    n_rows: int

    @classmethod
    def of(cls, pictures: Pictures) -> "Postings":
        """Invert bags and compute all that their words can add."""
        words_nk, tf_nk = pictures.bags["words"], pictures.bags["tf"]
        statistics = Statistics.of(words_nk, tf_nk, pictures.n_words)
        norms = statistics.length_norms(tf_nk.sum(axis=1, dtype=np.int64))
        idf_v = statistics.idf(np.arange(pictures.n_words))
        impacts_nk = idf_v[words_nk] * saturation(dequantise(tf_nk), norms[:, np.newaxis])
        used = np.flatnonzero(tf_nk)
        slots = used[np.argsort(words_nk.ravel()[used], kind="stable")]
        return cls(
            impacts_nk.ravel()[slots].astype(np.float32),
            (slots // words_nk.shape[1]).astype(np.int32),
            np.concatenate(([0], np.cumsum(statistics.df_v))).astype(np.int32),
            len(pictures),
        )

    @property
    def nbytes(self) -> int:
        """What it takes in memory."""
        return self.impacts.nbytes + self.rows.nbytes + self.starts.nbytes


def by_scipy(postings: Postings, k: int, build_s: float) -> System:
    """The paper's way: the inverted index as a sparse matrix (CSC), times a vector."""
    return _product(_matrix(postings), postings, k, build_s)


def by_rows(postings: Postings, k: int, build_s: float) -> System:
    """The same product with the matrix stored picture after picture (CSR)."""
    return _product(_matrix(postings).tocsr(), postings, k, build_s)


def _product(matrix: Any, postings: Postings, k: int, build_s: float) -> System:
    def search(query: BenchQuery) -> Ranked:
        query_v = np.zeros(matrix.shape[1], dtype=np.float32)
        query_v[query.query.words] = query.query.weights
        return _matching(best(matrix @ query_v, k))

    return System(search, build_s, postings.nbytes)


def by_columns(postings: Postings, k: int, build_s: float) -> System:
    """The same product with only the columns that it needs: the fastest that scipy can do."""
    matrix = _matrix(postings)

    def search(query: BenchQuery) -> Ranked:
        weights = query.query.weights.astype(np.float32)
        return _matching(best(matrix[:, query.query.words] @ weights, k))

    return System(search, build_s, postings.nbytes)


def _matrix(postings: Postings) -> Any:
    parts = (postings.impacts, postings.rows, postings.starts)
    shape = (postings.n_rows, len(postings.starts) - 1)
    return import_module("scipy.sparse").csc_array(parts, shape=shape)


def by_bm25s(postings: Postings, k: int, build_s: float) -> System:
    """bm25s, compiled. It counts whole words when it indexes, so it is given the matrix instead."""
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
        found = engine.retrieve([query.query.words.tolist()], k=k, show_progress=False)
        return _matching(Ranked(found.documents[0], found.scores[0]))

    return System(search, build_s, postings.nbytes)


def _matching(ranked: Ranked) -> Ranked:
    """Leave out rows that share no word with the query."""
    is_match = ranked.scores > 0
    return Ranked(ranked.rows[is_match], ranked.scores[is_match])
