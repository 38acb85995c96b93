"""Times the searches of an evaluation report: the data set's images, with its own queries.

In: the words and dense vectors of a data set. Out: milliseconds per query of four systems. A report
about a small collection says little about a large one; that is what `bm25v bench search` is for.
"""

import platform

import numpy as np

from bm25v.gallery.rows import Rows
from bm25v.research.bench.search import time_systems
from bm25v.research.bench.workload import BenchQuery, Collection
from bm25v.research.figures import Speed, Speeds
from bm25v.research.report import Searched
from bm25v.research.words import Bags
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import quantise

MAX_QUERIES = 200
CANDIDATES = 200
SYSTEMS = ("first-stage", "two-stage", "dense", "hnsw")
_ANN_LIMIT = 100_000  # images: building HNSW for more would take hours


def time_searches(searched: Searched) -> Speeds:
    """Time the first stage, both stages, a dense scan and HNSW with the same queries."""
    words, weighted = searched.words, searched.words.queries()
    numbers = np.unique(np.linspace(0, len(weighted) - 1, MAX_QUERIES).round().astype(int))
    queries = [BenchQuery(weighted[number], searched.dense_qe[number]) for number in numbers]
    n_words = len(words.df_v)
    images = Collection(_to_rows(words.gallery, n_words), searched.dense_ne, n_words)
    times = time_systems(images, queries, k=CANDIDATES, ann_limit=_ANN_LIMIT, only=SYSTEMS)
    return Speeds(
        machine=f"{platform.machine()}, {available_cpus()} cores",
        queries=len(queries),
        candidates=min(CANDIDATES, len(images)),
        systems=tuple(
            Speed(name, times[name].median_ms, times[name].p95_ms)
            for name in SYSTEMS
            if name in times
        ),
    )


def _to_rows(bags: Bags, n_words: int) -> Rows:
    """Return bags as rows of a gallery's file."""
    n, k = bags.words_nk.shape
    word_type = "<u2" if n_words <= 1 << 16 else "<u4"
    rows = np.zeros(n, np.dtype([("words", word_type, (k,)), ("tf", "<u2", (k,))]))
    rows["words"], rows["tf"] = bags.words_nk, quantise(bags.tf_nk)
    return rows
