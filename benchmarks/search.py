"""How long searches and changes take, compared with other systems.

Times per query are of one thread. The systems alternate after ten queries, so that other work on
the machine slows all of them alike: trust the ratios. Systems with exact results are first checked
against each other; those that are not installed are skipped.
"""

import argparse
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import systems
from systems import System, time_build
from threadpoolctl import threadpool_limits
from workload import BenchQuery, EncodedImages, SyntheticImages, add_images, add_rows, print_table

from bm25v.gallery import Gallery
from bm25v.index.searcher import Searcher, SearchRequest
from bm25v.research.systems import vectors
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary

_SLICE = 10  # queries of a system before those of the next one
_CHECKED = 5  # queries whose results are compared
_SAME_RESULTS = {
    "scipy": "first-stage",
    "scipy-rows": "first-stage",
    "scipy-columns": "first-stage",
    "bm25s": "first-stage",
    "qdrant": "first-stage",
    "faiss-flat": "dense",
}
_APPROXIMATE = {"hnsw": "dense", "ivfpq": "dense", "seismic": "first-stage"}
_SLOW_TO_BUILD = ("hnsw", "ivfpq", "qdrant")
_RATIOS = (  # the system to compare with, and ours
    ("dense", "first-stage"),
    ("scipy", "first-stage"),
    ("scipy-columns", "first-stage"),
    ("bm25s", "first-stage"),
    ("dense", "two-stage"),
    ("dense", "words"),
    ("dense", "hybrid"),
    ("hnsw", "two-stage"),
)
_BATCH_ROUNDS = 10  # of all queries, in one batch
_SINGLE_CHANGES = 10
_BATCHES = 3
_BATCH_IMAGES = 1_000


@dataclass(frozen=True)
class SystemTimes:
    """Figures of one system; milliseconds and recall for each k."""

    median_ms: dict[int, float]
    p95_ms: dict[int, float]
    recall: dict[int, float]  # of an approximate system: the share of the exact hits that it finds
    build_s: float
    bytes_per_vector: float  # 0: not known


@dataclass(frozen=True)
class UpdateTimes:
    """Times of changes to a gallery on disk, medians."""

    n_images: int
    add_ms: float  # add one encoded image, until it is durable and in the next search
    remove_ms: float  # remove one image, likewise
    refresh_ms: float  # until a reader sees a batch of 1,000 images that was committed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, nargs="+", default=[100_000], help="synthetic images")
    parser.add_argument("--dim", type=int, default=1152, help="of dense vectors")
    parser.add_argument("--k", type=int, nargs="+", default=[10, 200], help="best images")
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--only", nargs="+", metavar="SYSTEM", help="these, and no changes")
    parser.add_argument("--threads", type=int, default=available_cpus(), help="of batches")
    parser.add_argument("--device", help="also search in batches with torch: cpu, cuda")
    parser.add_argument(
        "--slow-limit",
        type=int,
        default=100_000,
        help=f"most images for those that take minutes to build: {', '.join(_SLOW_TO_BUILD)}",
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = [measure(n, options) for n in options.n]
    if options.json:
        print(json.dumps(figures, indent=2))


def measure(n: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time all systems with n images, and print or return the figures."""
    synthetic = SyntheticImages(options.dim, seed=0)
    images = synthetic.draw_images(n)
    queries = synthetic.draw_queries(options.queries).queries()
    ks = sorted({min(k, n) for k in options.k})
    update = None if options.only else time_updates(n, max(ks))
    with threadpool_limits(1):
        times = time_systems(images, queries, ks, options)
    if not options.json:
        print_figures(n, ks, times, update, options.dim)
    update_json = None if update is None else asdict(update)
    systems_json = {name: asdict(system) for name, system in times.items()}
    return {"n": n, "k": ks, "dim": options.dim, "systems": systems_json, "update": update_json}


def print_figures(
    n: int, ks: list[int], times: dict[str, SystemTimes], update: UpdateTimes | None, dim: int
) -> None:
    print(f"\n{n:,} images, dense vectors of {dim}; milliseconds of a search for K images, medians")
    print_table(
        ("system", *(f"K {k}" for k in ks), *(f"recall {k}" for k in ks), "build s", "bytes"),
        [
            (
                name,
                *(f"{system.median_ms[k]:.3f}" for k in ks),
                *(f"{system.recall[k]:.0%}" if system.recall else "" for k in ks),
                f"{system.build_s:.2f}",
                f"{system.bytes_per_vector:,.0f}" if system.bytes_per_vector else "",
            )
            for name, system in times.items()
        ],
    )
    for slow, fast in _RATIOS:
        if {slow, fast} <= times.keys():
            ratios = (times[slow].median_ms[k] / times[fast].median_ms[k] for k in ks)
            listed = " and ".join(f"{ratio:.1f}" for ratio in ratios)
            print(f"{fast} is {listed} times as fast as {slow}")
    if update is not None:
        print(
            f"in a gallery of {update.n_images:,} images: one added in {update.add_ms:.1f} ms, "
            f"removed in {update.remove_ms:.1f} ms, on disk and visible to the next search; 1,000 "
            f"new ones read in {update.refresh_ms:.1f} ms"
        )


def time_systems(
    images: EncodedImages, queries: list[BenchQuery], ks: list[int], options: argparse.Namespace
) -> dict[str, SystemTimes]:
    searcher, build_s = systems.build_searcher(images)
    first = systems.first_stage(searcher, images, build_s)
    built = {"first-stage": first, **build_others(searcher, first, images, queries, options)}
    for name, other in _SAME_RESULTS.items():
        if {name, other} <= built.keys():
            check_same_results(name, built[name], built[other], queries[:_CHECKED], max(ks))
    words = [query.words for query in queries] * _BATCH_ROUNDS
    batches: dict[str, Callable[[int], object]] = {
        "batch": lambda k: searcher.search_many(words, k, threads=options.threads)
    }
    sizes = {name: system.nbytes for name, system in built.items()} | {"batch": first.nbytes}
    seconds = {name: system.build_s for name, system in built.items()} | {"batch": build_s}
    if options.device:
        from bm25v.device import DeviceSearcher

        on_device, device_s = time_build(lambda: DeviceSearcher(searcher, options.device))
        name = f"batch-{options.device}"
        batches[name] = lambda k: on_device.search_many([SearchRequest(q, k) for q in words])
        sizes[name], seconds[name] = on_device.nbytes, device_s
    milliseconds = {k: time_alternately(built, queries, batches, options.threads, k) for k in ks}
    figures = {}
    for name in milliseconds[ks[0]]:
        exact = built.get(_APPROXIMATE.get(name, ""))
        figures[name] = SystemTimes(
            {k: float(np.median(milliseconds[k][name])) for k in ks},
            {k: float(np.percentile(milliseconds[k][name], 95)) for k in ks},
            {}
            if exact is None
            else {k: measure_recall(built[name], exact, queries, k) for k in ks},
            seconds[name],
            sizes[name] / len(images),
        )
    return figures


def build_others(
    searcher: Searcher,
    first: System,
    images: EncodedImages,
    queries: list[BenchQuery],
    options: argparse.Namespace,
) -> dict[str, System]:
    """Build the chosen systems that are installed."""
    postings = cache(lambda: time_build(lambda: systems.Postings.build(images)))
    floats = cache(lambda: time_build(lambda: images.dense_ne.astype(np.float32)))
    builders: dict[str, Callable[[], System]] = {
        "two-stage": lambda: systems.two_stage(first, images),
        "words": lambda: systems.by_full_bags("words", searcher, images, queries),
        "hybrid": lambda: systems.by_full_bags("hybrid", searcher, images, queries),
        "scipy": lambda: systems.scipy_csc(*postings()),
        "scipy-rows": lambda: systems.scipy_csr(*postings()),
        "scipy-columns": lambda: systems.scipy_columns(*postings()),
        "bm25s": lambda: systems.bm25s(*postings()),
        "qdrant": lambda: systems.qdrant(images, postings()[0]),
        "tantivy": lambda: systems.tantivy(images),
        "seismic": lambda: systems.seismic(*postings()),
        "dense": lambda: systems.dense_numpy(*floats()),
        "faiss-flat": lambda: systems.dense_faiss(*floats()),
        "hnsw": lambda: systems.approximate(vectors.build_hnsw, floats()[0]),
        "ivfpq": lambda: systems.approximate(vectors.build_ivfpq, floats()[0]),
    }
    built = {}
    for name, build in builders.items():
        is_too_slow = name in _SLOW_TO_BUILD and len(images) > options.slow_limit
        is_too_small = name == "ivfpq" and len(images) < vectors.MIN_PQ_VECTORS
        if is_too_slow or is_too_small or (options.only and name not in options.only):
            continue
        try:
            built[name] = build()
        except ModuleNotFoundError as error:
            print(f"{name} is skipped: {error.name} is not installed", file=sys.stderr)
    return built


def check_same_results(
    name: str, system: System, other: System, queries: Sequence[BenchQuery], k: int
) -> None:
    """Raise an error if rankings differ, except for rounding and the order of ties."""
    for query in queries:
        ranked, expected = system.search(query, k), other.search(query, k)
        tolerance = 1e-5 * np.abs(expected.scores) + 1e-6
        is_clear = expected.scores > expected.scores[-1:] + 2 * tolerance  # not tied with the last
        if (
            len(ranked.rows) != len(expected.rows)
            or np.any(np.abs(ranked.scores - expected.scores) > tolerance)
            or not np.isin(expected.rows[is_clear], ranked.rows).all()
        ):
            raise RuntimeError(f"{name} returns other hits for {query.words.words.tolist()}")


def measure_recall(system: System, exact: System, queries: Sequence[BenchQuery], k: int) -> float:
    pairs = [(exact.search(query, k), system.search(query, k)) for query in queries]
    shares = [np.isin(expected.rows, ranked.rows).mean() for expected, ranked in pairs]
    return float(np.mean(shares))


def time_alternately(
    built: dict[str, System],
    queries: Sequence[BenchQuery],
    batches: dict[str, Callable[[int], object]],
    threads: int,
    k: int,
) -> dict[str, list[float]]:
    """Return the milliseconds of each query and system; a batch runs all queries at once."""
    milliseconds: dict[str, list[float]] = {name: [] for name in ("first-stage", *batches, *built)}
    for start in range(0, len(queries), _SLICE):
        timed = queries[start : start + _SLICE]
        for name, system in built.items():
            system.search(timed[-1], k)  # not timed: the CPU's caches hold another system's data
            milliseconds[name] += [time_ms(partial(system.search, query, k)) for query in timed]
        with threadpool_limits(threads):
            for name, search in batches.items():
                n_queries = _BATCH_ROUNDS * len(queries)
                milliseconds[name].append(time_ms(partial(search, k)) / n_queries)
    return milliseconds


def time_updates(n: int, k: int) -> UpdateTimes:
    """Add images to a gallery of the default vocabulary, and remove some of the first ones."""
    vocabulary = Vocabulary.load("default")
    synthetic = SyntheticImages(vocabulary.backbone.dense_dim, 0, vocabulary.n_words)
    new_images = synthetic.draw_queries(_BATCH_IMAGES)
    query = new_images.queries()[0].words
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "gallery"
        Gallery.create(path).close()
        add_rows(path, synthetic.draw_images(n))
        numbers, removed = itertools.count(n), itertools.count()
        with Gallery.open(path) as gallery:
            first = np.arange(min(_SINGLE_CHANGES, n))
            paths = gallery.local.snapshot().images(first).paths(first)

            def search() -> None:
                gallery.local.snapshot().searcher.search(query, k)

            def add() -> None:
                number = next(numbers)
                add_images(path, new_images, range(number, number + 1))

            def remove() -> None:
                gallery.remove(paths[next(removed)])

            gallery.local.snapshot().searcher.build_index()
            search()
            search_ms = median(time_ms(search) for _ in paths)
            add_ms = median(time_ms(add, search) for _ in paths)
            remove_ms = median(time_ms(remove, search) for _ in paths)
            refresh_ms = []
            for batch in range(1, _BATCHES + 1):
                start = n + batch * _BATCH_IMAGES
                add_images(path, new_images, range(start, start + _BATCH_IMAGES))
                refresh_ms.append(time_ms(gallery.local.snapshot))
    return UpdateTimes(n, add_ms - search_ms, remove_ms - search_ms, median(refresh_ms))


def time_ms(*actions: Callable[[], object]) -> float:
    start = time.perf_counter()
    for action in actions:
        action()
    return (time.perf_counter() - start) * 1e3


if __name__ == "__main__":
    main()
