"""How long do searches take in the pictures of a data set, with its own queries?"""

import os
import platform

import numpy as np

from bm25v.gallery.rows import Rows
from bm25v.research.bench.pictures import BenchQuery, Pictures
from bm25v.research.bench.search import time_systems
from bm25v.research.figures import Speed, Speeds
from bm25v.research.report import Searched
from bm25v.research.words import Bags
from bm25v.vocabulary.bag import quantise

QUERIES = 200  # at most
CANDIDATES = 200
_SYSTEMS = ("first-stage", "two-stage", "dense", "hnsw")
_ANN_LIMIT = 100_000  # pictures: more would take hours to build


def time_searches(searched: Searched) -> Speeds:
    """Time the product, a dense scan and HNSW over the same queries."""
    words, weighted = searched.words, searched.words.queries()
    asked = np.unique(np.linspace(0, len(weighted) - 1, QUERIES).round().astype(int))
    queries = [BenchQuery(weighted[row], searched.dense_qe[row]) for row in asked]
    n_words = len(words.df_v)
    pictures = Pictures(_rows(words.gallery, n_words), searched.dense_ne, n_words)
    times = time_systems(pictures, queries, k=CANDIDATES, ann_limit=_ANN_LIMIT, only=_SYSTEMS)
    return Speeds(
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        queries=len(asked),
        candidates=min(CANDIDATES, len(pictures)),
        systems=tuple(
            Speed(name, times[name].median_ms, times[name].p95_ms)
            for name in _SYSTEMS
            if name in times
        ),
    )


def _rows(bags: Bags, n_words: int) -> Rows:
    """Return bags as a gallery's files have them."""
    n, k = bags.words_nk.shape
    word = "<u2" if n_words <= 1 << 16 else "<u4"
    rows = np.zeros(n, np.dtype([("words", word, (k,)), ("tf", "<u2", (k,))]))
    rows["words"], rows["tf"] = bags.words_nk, quantise(bags.tf_nk)
    return rows
