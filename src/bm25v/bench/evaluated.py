"""How long do searches take in the pictures of a data set, with its own queries?"""

import os
import platform

import numpy as np

from bm25v.bags import quantise
from bm25v.bench.pictures import Pictures
from bm25v.bench.search import time_search
from bm25v.evaluate.pages.figures import Speed, Speeds
from bm25v.evaluate.report import Searched
from bm25v.evaluate.words import Bags
from bm25v.gallery.rows import Rows

QUERIES = 200  # at most
CANDIDATES = 200
_SYSTEMS = ("first-stage", "two-stage", "dense", "hnsw")
_ANN_LIMIT = 100_000  # pictures: more would take hours to build


def time_searches(searched: Searched) -> Speeds:
    """Time the product, a dense scan and HNSW over the same queries."""
    asked = np.linspace(0, len(searched.dense_qe) - 1, QUERIES).round().astype(int)
    asked = np.unique(asked)
    pictures = Pictures(
        _rows(searched.gallery, searched.n_words), searched.dense_ne, searched.n_words
    )
    queries = Pictures(
        _rows(searched.queries.take(asked), searched.n_words),
        searched.dense_qe[asked].astype(np.float16),
        searched.n_words,
    )
    times = time_search(pictures, queries, k=CANDIDATES, ann_limit=_ANN_LIMIT)
    return Speeds(
        machine=f"{platform.machine()}, {os.cpu_count()} cores",
        queries=len(asked),
        candidates=times.k,
        systems=tuple(
            Speed(name, times.systems[name].median_ms, times.systems[name].p95_ms)
            for name in _SYSTEMS
            if name in times.systems
        ),
    )


def _rows(bags: Bags, n_words: int) -> Rows:
    """Return bags as a gallery's files have them."""
    n, k = bags.words_nk.shape
    word = "<u2" if n_words <= 1 << 16 else "<u4"
    rows = np.zeros(n, np.dtype([("words", word, (k,)), ("tf", "<u2", (k,))]))
    rows["words"], rows["tf"] = bags.words_nk, quantise(bags.tf_nk)
    return rows
