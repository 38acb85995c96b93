"""`bm25v bench search`: how long do searches and changes take, compared with other systems?

In: a collection and queries. Out: times per query of each system on one thread, and times of
changes to a gallery on disk. Searches by full bags are timed as a whole; their second stage is also
timed alone, beside the cosine of the same candidates. The systems take turns of ten queries, so
that other work on the machine slows all of them alike. Systems with exact results are first checked
against each other. Systems that are not installed are skipped.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median

import numpy as np
from threadpoolctl import threadpool_limits

from bm25v.api import Gallery
from bm25v.gallery.writer import Writer
from bm25v.index.searcher import Ranked, Searcher
from bm25v.research.bench import search_systems
from bm25v.research.bench.search_systems import System, time_build
from bm25v.research.bench.workload import BenchQuery, Collection, synthetic_file, write_gallery
from bm25v.search import contract
from bm25v.threads import available_cpus

DENSE_HITS = 10  # hits of a search that ends with dense vectors or full bags
DEFAULT_CANDIDATES = contract.DEFAULT_CANDIDATES["words"]  # of a search by full bags

_TURN = 10  # queries of a system before the next system's turn
_CHECKED = 5  # queries whose results are compared
_SAME_RESULTS = {
    "scipy": "first-stage",
    "scipy-rows": "first-stage",
    "scipy-columns": "first-stage",
    "bm25s": "first-stage",
    "faiss-flat": "dense",
    "words": "words-rerank",
    f"words-{DEFAULT_CANDIDATES}": f"words-rerank-{DEFAULT_CANDIDATES}",
}
_APPROXIMATE = ("hnsw", "ivfpq")
_SINGLE_CHANGES = 10
_BATCHES = 3
_BATCH_IMAGES = 1_000

Warn = Callable[[str], None]


@dataclass(frozen=True)
class SystemTimes:
    """Times of one system, in milliseconds per query."""

    median_ms: float
    p95_ms: float
    build_s: float
    bytes_per_vector: float
    recall: float | None  # of an approximate system: the share of the exact hits that it finds


@dataclass(frozen=True)
class UpdateTimes:
    """Times of changes to a gallery on disk, medians."""

    add_ms: float  # add one encoded image, until it is durable and in the next search
    remove_ms: float  # remove one image, likewise
    refresh_ms: float  # until a reader sees a batch of 1,000 images that was committed


@dataclass(frozen=True)
class SearchTimes:
    """Times of all systems over the same images."""

    n: int
    k: int
    dim: int
    systems: dict[str, SystemTimes]
    update: UpdateTimes | None  # None if only some systems were timed

    def ratio(self, slow: str, fast: str) -> float | None:
        """Return how many times as fast one system is as another; None if one was skipped."""
        if not {slow, fast} <= self.systems.keys():
            return None
        return self.systems[slow].median_ms / self.systems[fast].median_ms


def time_search(
    images: Collection,
    queries: Collection,
    *,
    k: int,
    ann_limit: int,
    only: Sequence[str] | None = None,
    threads: int | None = None,
    device: str | None = None,
    warn: Warn = lambda message: None,
) -> SearchTimes:
    """Time changes and every installed system; approximate systems in up to `ann_limit` images.

    With `only`, just these systems and the first stage are timed, and no changes. `threads` is for
    the batch searches; all CPUs by default. One of them is on a `device` of torch, if it is given.
    """
    k = min(k, len(images))
    update = time_updates(images, queries, k) if only is None else None
    systems = time_systems(
        images,
        queries.queries(),
        k=k,
        ann_limit=ann_limit,
        only=only,
        threads=threads,
        device=device,
        warn=warn,
    )
    return SearchTimes(len(images), k, images.dim, systems, update)


def time_systems(
    images: Collection,
    queries: Sequence[BenchQuery],
    *,
    k: int,
    ann_limit: int,
    only: Sequence[str] | None = None,
    threads: int | None = None,
    device: str | None = None,
    warn: Warn = lambda message: None,
) -> dict[str, SystemTimes]:
    """Time searches alone; with `only`, just these systems and the first stage."""
    k = min(k, len(images))
    with threadpool_limits(1):
        searcher, build_s = search_systems.build_searcher(images)
        first = search_systems.first_stage(searcher, images, k, build_s)
        by_full_bags = _build_full_bag_systems(searcher, images, queries, k, only, warn)
        others = _build_systems(first, images, k, ann_limit, only, warn)
        systems = {"first-stage": first, **by_full_bags, **others}
        _check_results(systems, queries[:_CHECKED])
        recall = {
            name: _recall(systems[name], systems["dense"], queries)
            for name in _APPROXIMATE
            if name in systems
        }
        threads = threads or available_cpus()
        batch: Callable[[], object] = partial(_batch, searcher, queries, k, threads)
        built, batches = {**systems, "batch": first}, {"batch": batch}
        if device is not None:
            name, given = f"batch-{device}", (searcher, device, queries, k, threads)
            built[name], batches[name] = search_systems.on_device(*given)
            _check_same(built[name], first, f"{name} and first-stage", queries[:_CHECKED])
        milliseconds = _take_turns(systems, queries, batches)
    return {
        name: SystemTimes(
            float(np.median(ms)),
            float(np.percentile(ms, 95)),
            built[name].build_s,
            built[name].nbytes / len(images),
            recall.get(name),
        )
        for name, ms in milliseconds.items()
    }


def _build_full_bag_systems(
    searcher: Searcher,
    images: Collection,
    queries: Sequence[BenchQuery],
    k: int,
    only: Sequence[str] | None,
    warn: Warn,
) -> dict[str, System]:
    """Return searches by full bags and their second stage, with K and the default candidates."""
    if images.full_bags is None:
        warn("words and hybrid are skipped: the gallery has no full bags")
        return {}
    hits = min(DENSE_HITS, k)  # more hits than candidates would make more candidates
    build = search_systems.FullBagSystems(searcher, images, queries, hits)
    systems = {}
    for candidates, suffix in ((k, ""), (DEFAULT_CANDIDATES, f"-{DEFAULT_CANDIDATES}")):
        builders: dict[str, Callable[[int], System]] = {
            "words": partial(build.search, "words"),
            "hybrid": partial(build.search, "hybrid"),
            "words-first-stage": build.find,
            "words-rerank": build.rerank_by_words,
            "cosine-rerank": build.rerank_by_cosine,
        }
        for name, build_system in builders.items():
            if only is None or name + suffix in only:
                systems[name + suffix] = build_system(candidates)
    return systems


def _build_systems(
    first: System,
    images: Collection,
    k: int,
    ann_limit: int,
    only: Sequence[str] | None,
    warn: Warn,
) -> dict[str, System]:
    hits = min(DENSE_HITS, len(images))
    postings = cache(lambda: time_build(lambda: search_systems.Postings.build(images)))
    floats = cache(lambda: time_build(lambda: images.dense_ne.astype(np.float32)))
    builders: dict[str, Callable[[], System]] = {
        "two-stage": lambda: search_systems.two_stage(first, images, hits),
        "scipy": lambda: search_systems.scipy_csc(*postings(), k),
        "scipy-rows": lambda: search_systems.scipy_csr(*postings(), k),
        "scipy-columns": lambda: search_systems.scipy_columns(*postings(), k),
        "bm25s": lambda: search_systems.bm25s(*postings(), k),
        "dense": lambda: search_systems.dense_numpy(*floats(), hits),
        "faiss-flat": lambda: search_systems.dense_faiss(*floats(), hits),
    }
    if len(images) <= ann_limit:
        builders["hnsw"] = lambda: search_systems.hnsw(floats()[0], hits)
        builders["ivfpq"] = lambda: search_systems.ivfpq(floats()[0], hits)
    systems = {}
    for name, build in builders.items():
        if only is not None and name not in only:
            continue
        try:
            systems[name] = build()
        except ModuleNotFoundError as error:
            warn(f"{name} is skipped: {error.name} is not installed")
    return systems


def _check_results(systems: dict[str, System], queries: Sequence[BenchQuery]) -> None:
    for name, other in _SAME_RESULTS.items():
        if {name, other} <= systems.keys():
            _check_same(systems[name], systems[other], f"{name} and {other}", queries)


def _check_same(system: System, other: System, names: str, queries: Sequence[BenchQuery]) -> None:
    for query in queries:
        if not same_ranking(system.search(query), other.search(query)):
            words = query.words.words.tolist()
            raise RuntimeError(f"{names} return different hits for words {words}")


def _recall(system: System, exact: System, queries: Sequence[BenchQuery]) -> float:
    pairs = [(system.search(query).rows, exact.search(query).rows) for query in queries]
    return float(np.mean([np.isin(expected, rows).mean() for rows, expected in pairs]))


def same_ranking(ranked: Ranked, other: Ranked) -> bool:
    """Return whether two rankings are the same, except for rounding and the order of ties.

    >>> two = Ranked(np.array([4, 7]), np.array([2.0, 1.0]))
    >>> same_ranking(two, Ranked(np.array([4, 9]), np.array([2.0, 1.0])))
    True
    >>> same_ranking(two, Ranked(np.array([5, 7]), np.array([2.0, 1.0])))
    False
    """
    if len(ranked.rows) != len(other.rows):
        return False
    tolerance = 1e-5 * np.abs(ranked.scores) + 1e-6
    if np.any(np.abs(ranked.scores - other.scores) > tolerance):
        return False
    is_clear = ranked.scores > ranked.scores[-1:] + 2 * tolerance  # not tied with the last row
    return bool(np.isin(ranked.rows[is_clear], other.rows).all())


def _take_turns(
    systems: dict[str, System],
    queries: Sequence[BenchQuery],
    batches: Mapping[str, Callable[[], object]],
) -> dict[str, list[float]]:
    """Return the milliseconds of each query and system; a batch runs all queries at once."""
    names = ("first-stage", *batches, *systems)
    milliseconds: dict[str, list[float]] = {name: [] for name in names}
    for start in range(0, len(queries), _TURN):
        turn = queries[start : start + _TURN]
        for name, system in systems.items():
            system.search(turn[-1])  # not timed: the CPU's caches hold another system's data
            milliseconds[name] += [_ms(partial(system.search, query)) for query in turn]
        for name, search in batches.items():
            milliseconds[name].append(_ms(search) / len(queries))
    return milliseconds


def _batch(searcher: Searcher, queries: Sequence[BenchQuery], k: int, threads: int) -> None:
    searcher.search_many([query.words for query in queries], k, threads=threads)


def time_updates(images: Collection, new_images: Collection, k: int) -> UpdateTimes:
    """Add new images to a gallery again and again, and remove some of the first ones."""
    with tempfile.TemporaryDirectory() as scratch:
        write_gallery(Path(scratch), images)
        with Gallery.open(scratch) as gallery:
            return _time_updates(gallery, new_images, k)


def _time_updates(gallery: Gallery, new_images: Collection, k: int) -> UpdateTimes:
    query = new_images.queries()[0].words
    old_numbers, new_numbers = itertools.count(), itertools.count(len(gallery))

    def search() -> None:
        gallery.store.snapshot().searcher.search(query, k)

    def add(n: int = 1) -> None:
        with Writer(gallery.path) as writer:
            for number in itertools.islice(new_numbers, n):
                encoding = new_images.encoding(number % len(new_images))
                writer.put(synthetic_file(number), encoding)
            writer.commit()

    def remove() -> None:
        gallery.remove(synthetic_file(next(old_numbers)).path)

    gallery.store.snapshot().searcher.build_index()
    search()
    search_ms = median(_ms(search) for _ in range(_SINGLE_CHANGES))
    add_ms = median(_ms(add, search) for _ in range(_SINGLE_CHANGES))
    remove_ms = median(_ms(remove, search) for _ in range(_SINGLE_CHANGES))
    refresh_ms = []
    for _ in range(_BATCHES):
        add(_BATCH_IMAGES)
        refresh_ms.append(_ms(gallery.store.snapshot))
    return UpdateTimes(add_ms - search_ms, remove_ms - search_ms, median(refresh_ms))


def _ms(*actions: Callable[[], object]) -> float:
    start = time.perf_counter()
    for action in actions:
        action()
    return (time.perf_counter() - start) * 1e3
