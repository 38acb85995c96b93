"""How fast is a search? Ours against the paper's way, bm25s and dense search, on one thread.

Systems take turns, ten queries each, so that what else the machine does hits all alike. Those that
must agree are compared first. What is not installed is left out.
"""

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from threadpoolctl import threadpool_limits

from bm25v.index.searcher import Ranked, Searcher
from bm25v.research.bench import by_vectors, by_words
from bm25v.research.bench.pictures import BenchQuery, Pictures
from bm25v.research.bench.system import System, timed
from bm25v.research.bench.updates import Updates, time_updates

ANSWERS = 10  # of a search that ends with dense vectors

_TURN = 10  # queries
_CHECKED = 5  # queries
_EXACT = {  # must agree
    "scipy": "first-stage",
    "scipy-rows": "first-stage",
    "scipy-columns": "first-stage",
    "bm25s": "first-stage",
    "faiss-flat": "dense",
}
_APPROXIMATE = ("hnsw", "ivfpq")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Times:
    """What one system took; milliseconds are those of one query."""

    median_ms: float
    p95_ms: float
    build_s: float
    bytes_per_vector: float
    recall: float | None  # of an approximate one: the share of the exact answers that it finds


@dataclass(frozen=True)
class SearchTimes:
    """All systems over the same pictures."""

    n: int
    k: int
    dim: int
    systems: dict[str, Times]
    update: Updates

    def ratio(self, slow: str, fast: str) -> float | None:
        """How many times faster one system is than another, if both were timed."""
        if not {slow, fast} <= self.systems.keys():
            return None
        return self.systems[slow].median_ms / self.systems[fast].median_ms


def time_search(
    pictures: Pictures,
    queries: Pictures,
    *,
    k: int,
    ann_limit: int,
    threads: int | None = None,
    say: Say = lambda text: None,
) -> SearchTimes:
    """Time every system that is installed; approximate ones in up to `ann_limit` pictures.

    `threads` are those of the batch, all cores by default.
    """
    k = min(k, len(pictures))
    update = time_updates(pictures, queries, k)
    systems = time_systems(
        pictures, queries.queries(), k=k, ann_limit=ann_limit, threads=threads, say=say
    )
    return SearchTimes(len(pictures), k, pictures.dim, systems, update)


def time_systems(
    pictures: Pictures,
    queries: Sequence[BenchQuery],
    *,
    k: int,
    ann_limit: int,
    only: Collection[str] | None = None,
    threads: int | None = None,
    say: Say = lambda text: None,
) -> dict[str, Times]:
    """Time searches alone; with `only`, no other systems than these and the first stage."""
    k = min(k, len(pictures))
    with threadpool_limits(1):
        searcher, build_s = by_words.make_searcher(pictures)
        first = by_words.first_stage(searcher, pictures, k, build_s)
        systems = {"first-stage": first, **_others(first, pictures, k, ann_limit, only, say)}
        _check(systems, queries[:_CHECKED])
        recall = {
            name: _recall(systems[name], systems["dense"], queries)
            for name in _APPROXIMATE
            if name in systems
        }
        taken = _take_turns(systems, queries, partial(_batch, searcher, queries, k, threads))
    built = {**systems, "batch": first}
    return {
        name: Times(
            float(np.median(ms)),
            float(np.percentile(ms, 95)),
            built[name].build_s,
            built[name].nbytes / len(pictures),
            recall.get(name),
        )
        for name, ms in taken.items()
    }


def _others(
    first: System,
    pictures: Pictures,
    k: int,
    ann_limit: int,
    only: Collection[str] | None,
    say: Say,
) -> dict[str, System]:
    n, answers = len(pictures), min(ANSWERS, len(pictures))
    postings, postings_s = timed(lambda: by_words.Postings.of(pictures))
    floats_ne, floats_s = timed(lambda: pictures.dense_ne.astype(np.float32))
    makers: dict[str, Callable[[], System]] = {
        "two-stage": lambda: by_words.two_stage(first, pictures, answers),
        "scipy": lambda: by_words.by_scipy(postings, k, postings_s),
        "scipy-rows": lambda: by_words.by_rows(postings, k, postings_s),
        "scipy-columns": lambda: by_words.by_columns(postings, k, postings_s),
        "bm25s": lambda: by_words.by_bm25s(postings, k, postings_s),
        "dense": lambda: by_vectors.by_numpy(floats_ne, answers, floats_s),
        "faiss-flat": lambda: by_vectors.by_faiss(floats_ne, answers, floats_s),
    }
    if n <= ann_limit:
        makers["hnsw"] = lambda: by_vectors.by_hnsw(floats_ne, answers)
        makers["ivfpq"] = lambda: by_vectors.by_ivfpq(floats_ne, answers)
    systems = {}
    for name, make in makers.items():
        if only is not None and name not in only:
            continue
        try:
            systems[name] = make()
        except ModuleNotFoundError as error:
            say(f"{name} is left out: {error.name} is not installed")
    return systems


def _check(systems: dict[str, System], queries: Sequence[BenchQuery]) -> None:
    for name, other in _EXACT.items():
        for query in queries if name in systems else ():
            if not agree(systems[name].search(query), systems[other].search(query)):
                raise RuntimeError(f"{name} and {other} disagree on {query.query.words.tolist()}")


def _recall(system: System, exact: System, queries: Sequence[BenchQuery]) -> float:
    pairs = [(system.search(query).rows, exact.search(query).rows) for query in queries]
    return float(np.mean([np.isin(wanted, rows).mean() for rows, wanted in pairs]))


def agree(ranked: Ranked, other: Ranked) -> bool:
    """Say whether two rankings are the same, but for rounding and for the order of ties.

    >>> two = Ranked(np.array([4, 7]), np.array([2.0, 1.0]))
    >>> agree(two, Ranked(np.array([4, 9]), np.array([2.0, 1.0])))
    True
    >>> agree(two, Ranked(np.array([5, 7]), np.array([2.0, 1.0])))
    False
    """
    if len(ranked.rows) != len(other.rows):
        return False
    tolerance = 1e-5 * np.abs(ranked.scores) + 1e-6
    if np.any(np.abs(ranked.scores - other.scores) > tolerance):
        return False
    is_clear = ranked.scores > ranked.scores[-1:] + 2 * tolerance  # no tie with the last one
    return bool(np.isin(ranked.rows[is_clear], other.rows).all())


def _take_turns(
    systems: dict[str, System], queries: Sequence[BenchQuery], batch: Callable[[], None]
) -> dict[str, list[float]]:
    """Return each system's milliseconds a query; a batch is all queries at once."""
    taken: dict[str, list[float]] = {name: [] for name in ("first-stage", "batch", *systems)}
    for start in range(0, len(queries), _TURN):
        turn = queries[start : start + _TURN]
        for name, system in systems.items():
            system.search(turn[-1])  # not timed: caches are full of another system's data
            taken[name] += [_ms(system.search, query) for query in turn]
        taken["batch"].append(_ms(batch) / len(queries))
    return taken


def _batch(searcher: Searcher, queries: Sequence[BenchQuery], k: int, threads: int | None) -> None:
    searcher.search_many([query.query for query in queries], k, threads=threads)


def _ms(action: Callable[..., object], *arguments: object) -> float:
    start = time.perf_counter()
    action(*arguments)
    return (time.perf_counter() - start) * 1e3
