"""`bm25v bench`: encode, search, explain, duplicates, soak, serve, engines."""

import itertools
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import PathType, dense_option, json_option, vocabulary_option
from bm25v.cli.printing import echo, echo_wrapped, print_facts, print_grid, print_json
from bm25v.display import count, duration, file_size
from bm25v.errors import WrongUse
from bm25v.threads import available_cpus

if TYPE_CHECKING:
    from bm25v.research.bench.search import SearchTimes
    from bm25v.research.bench.soak import SoakReport

_RATIOS = (  # the system to compare with, and ours
    ("dense", "first-stage"),
    ("scipy", "first-stage"),
    ("scipy-rows", "first-stage"),
    ("scipy-columns", "first-stage"),
    ("bm25s", "first-stage"),
    ("dense", "two-stage"),
    ("dense", "words"),
    ("dense", "hybrid"),
    ("dense", "words-1000"),
    ("dense", "hybrid-1000"),
    ("hnsw", "two-stage"),
)
_RERANKS = (  # the second stage by words, and by cosine
    ("words-rerank", "cosine-rerank"),
    ("words-rerank-1000", "cosine-rerank-1000"),
)
_folder_argument = click.argument(
    "folder", required=False, type=PathType(exists=True, path_type=Path)
)


@click.group("bench")
def bench() -> None:
    """Measure parts of bm25v on this machine."""


@contextmanager
def _image_paths(folder: Path | None) -> Iterator[Iterator[Path]]:
    """Yield the images of a folder, or the demo's photos in a temporary one."""
    from bm25v import demo, images
    from bm25v.backbones import downloads

    with tempfile.TemporaryDirectory() as scratch:
        if folder is None:
            demo.unpack(downloads.read_file(demo.PHOTOS), Path(scratch))
        yield images.find_images(folder or scratch)


@bench.command("encode")
@_folder_argument
@vocabulary_option
@dense_option
@click.option("-n", "limit", default=200, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@json_option
def encode(
    folder: Path | None,
    vocabulary: str,
    dense: str | None,
    limit: int,
    rounds: int,
    as_json: bool,
) -> None:
    """Compare indexing with the forward passes alone, on FOLDER or on the demo's photos."""
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.encode import time_encoding

    with _image_paths(folder) as paths, progress_bar() as progress:
        images = list(itertools.islice(paths, limit))
        times = time_encoding(
            images, vocabulary=vocabulary, dense=dense, rounds=rounds, progress=progress
        )
    n = times.images * times.rounds
    if as_json:
        seconds = {"forward": times.forward_seconds, "index": times.index_seconds}
        counts = {"pictures": times.images, "rounds": times.rounds}
        print_json({**counts, "seconds": seconds, "overhead": times.overhead})
        return
    echo(f"forward passes alone  {n / times.forward_seconds:6.1f} images/s")
    echo(f"indexing, everything  {n / times.index_seconds:6.1f} images/s")
    echo(f"overhead              {times.overhead:+.1%}")


@bench.command("search")
@click.option(
    "--n",
    "sizes",
    multiple=True,
    type=click.IntRange(1),
    default=(10_000, 100_000, 1_000_000),
    show_default=True,
    help="Synthetic images to search; give several for several tables.",
)
@click.option("--dim", default=1152, show_default=True, type=click.IntRange(1))
@click.option(
    "-g",
    "--gallery",
    "gallery_path",
    type=PathType(path_type=Path),
    help="Search a copy of this gallery instead, with its own images.",
)
@click.option("--k", default=200, show_default=True, type=click.IntRange(1), help="Candidates.")
@click.option(
    "--only",
    multiple=True,
    metavar="SYSTEM",
    help="Time only the first stage and this system, a row of the table, and no changes.",
)
@click.option("--queries", "n_queries", default=50, show_default=True, type=click.IntRange(1))
@click.option("--threads", type=click.IntRange(1), help="Of the batch rows  [default: all CPUs]")
@click.option(
    "--device",
    metavar="DEVICE",
    help="Also search in batches with torch: cpu, cuda. Needs the extra train.",
)
@click.option(
    "--ann-limit",
    default=100_000,
    show_default=True,
    help="HNSW and IVF-PQ, which are slow to build, are timed up to this many images.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("-o", "--output", type=PathType(path_type=Path), help="Draw a plot, as .png.")
@json_option
def search(
    sizes: tuple[int, ...],
    dim: int,
    gallery_path: Path | None,
    k: int,
    only: tuple[str, ...],
    n_queries: int,
    threads: int | None,
    device: str | None,
    ann_limit: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Compare searches with other systems on one thread, and time updates.

    Searches by full bags (words, hybrid) order K candidates, or the 1,000 that are their default;
    words-first-stage finds these, words-rerank and cosine-rerank are the second stage alone.
    """
    from bm25v.research import plots
    from bm25v.research.bench.search import time_search
    from bm25v.research.bench.workload import SyntheticImages, read_gallery

    if output:
        plots.check_path(output)  # before minutes of work
    all_times = []
    for n in sizes if gallery_path is None else (0,):
        if gallery_path is None:
            synthetic = SyntheticImages(dim, seed)
            images, queries = synthetic.draw_images(n), synthetic.draw_queries(n_queries)
        else:
            images, queries = read_gallery(gallery_path, n_queries, seed)
        times = time_search(
            images,
            queries,
            k=k,
            only=only or None,
            threads=threads,
            device=device,
            ann_limit=ann_limit,
            warn=lambda message: echo(message, err=True),
        )
        all_times.append(times)
        if not as_json:
            _print_search_times(times)
    if as_json:
        print_json([asdict(times) for times in all_times])
    if output:
        plots.draw_search_times(all_times, output)


def _print_search_times(times: "SearchTimes") -> None:
    numbers = ("median ms", "p95 ms", "vs. dense", "build s", "bytes per vector", "recall")
    rows = [
        (
            name,
            f"{system.median_ms:.3f}",
            f"{system.p95_ms:.3f}",
            "" if (ratio := times.ratio("dense", name)) is None else f"{ratio:.1f}×",
            f"{system.build_s:.2f}",
            f"{system.bytes_per_vector:,.0f}",
            "" if system.recall is None else f"{system.recall:.0%}",
        )
        for name, system in times.systems.items()
    ]
    echo_wrapped(f"{count(times.n, 'image')}, K = {times.k}, D = {times.dim}", style="bold")
    print_grid(("system", *numbers), rows)
    if times.update is not None:
        update = times.update
        echo_wrapped(
            f"one image added in {update.add_ms:.1f} ms, removed in {update.remove_ms:.1f} ms, on "
            f"disk and visible to the next search; 1,000 new ones read in {update.refresh_ms:.1f} "
            "ms"
        )
    for slow, fast in _RATIOS:
        ratio = times.ratio(slow, fast)
        if ratio is not None:
            echo_wrapped(f"{fast} is {ratio:.2f} times as fast as {slow}")
    for words, cosine in _RERANKS:
        ratio = times.ratio(words, cosine)
        if ratio is not None:
            echo_wrapped(f"{words} takes {ratio:.2f} times as long as {cosine}")
    echo()


@bench.command("explain")
@_folder_argument
@vocabulary_option
@click.option("--hits", default=20, show_default=True, type=click.IntRange(1))
@click.option(
    "--n",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="Synthetic images whose words are counted.",
)
@json_option
def explain(folder: Path | None, vocabulary: str, hits: int, n: int, as_json: bool) -> None:
    """Time explanations, on FOLDER or the demo's photos, and counting a gallery's words."""
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.explain import time_explanations, time_word_counts

    with _image_paths(folder) as paths, progress_bar() as progress:
        images = list(paths)
        hit = time_explanations(images, vocabulary=vocabulary, hits=hits, progress=progress)
    words = time_word_counts(n)
    if as_json:
        print_json({"hit": {**asdict(hit), "added_ms": hit.added_ms}, "words": words.to_dict()})
        return
    echo(f"one hit after a search, median of {hit.hits}")
    echo(f"{hit.forward_ms:9.1f} ms  forward pass of the hit")
    echo(f"{hit.added_ms:9.1f} ms  its words and where they are, without the forward pass")
    echo(f"{hit.page_ms:9.1f} ms  the page")
    echo(f"{hit.sheet_ms:9.1f} ms  the image")
    echo(f"words of {words.images:,} synthetic images, {words.words:,} in use")
    echo(f"{words.first_s:9.3f} s   all words, first time")
    echo(f"{words.again_s:9.3f} s   all words again, nothing changed")
    echo(f"{words.renewed_s:9.3f} s   all words again, after an image was added")
    echo(f"{words.word_s:9.3f} s   everything about the most frequent word")


@bench.command("duplicates")
@click.argument("folder", type=PathType(exists=True, path_type=Path))
@vocabulary_option
@click.option("--every", default=4, show_default=True, type=click.IntRange(1))
@json_option
def duplicates(folder: Path, vocabulary: str, every: int, as_json: bool) -> None:
    """Change every n-th image of FOLDER a little, and measure how many are found."""
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.duplicates import measure_duplicates

    with progress_bar() as progress:
        result = measure_duplicates(folder, vocabulary=vocabulary, every=every, progress=progress)
    if as_json:
        print_json(result.to_dict())
        return
    for kind, share in result.recall.items():
        echo(f"{share:7.1%}  of {kind}")
    ms = 1e3 * result.seconds / result.images
    echo(
        f"{count(result.groups, 'group')} among {count(result.images, 'image')}, {ms:.1f} ms per "
        "image"
    )
    for paths in result.mixed:
        echo(f"one group: {', '.join(paths)}")


@bench.command("soak")
@click.option("--seconds", default=60, show_default=True, type=click.IntRange(1))
@click.option(
    "--images",
    "n_images",
    default=500,
    show_default=True,
    type=click.IntRange(2),
    help="Synthetic images that are added, updated, moved and removed.",
)
@click.option("--readers", "n_readers", default=2, show_default=True, type=click.IntRange(1))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option(
    "-g",
    "--gallery",
    "gallery_path",
    type=PathType(path_type=Path),
    help="Make the gallery in this empty folder and keep it  [default: a temporary folder]",
)
@json_option
def soak(
    seconds: int,
    n_images: int,
    n_readers: int,
    seed: int,
    gallery_path: Path | None,
    as_json: bool,
) -> None:
    """Write to a gallery, kill the writers, search meanwhile and check every answer.

    The exit code is 1 if something is wrong. Ctrl-C ends the run early.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.soak import run_soak

    with progress_bar() as progress:
        report = run_soak(
            seconds=seconds,
            n_images=n_images,
            n_readers=n_readers,
            seed=seed,
            folder=gallery_path,
            progress=progress,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        _print_soak(report)
    if report.problems:
        sys.exit(1)
    if report.is_interrupted:
        raise KeyboardInterrupt


def _print_soak(report: "SoakReport") -> None:
    writers = count(report.kills.total(), "writer")
    facts = {
        "run": f"{duration(report.seconds)}, {count(report.n_images, 'image')}, seed {report.seed}",
        "written": f"{count(report.commits, 'commit')}, {count(report.compactions, 'compaction')}",
        "killed": f"{writers} ({_list_counts(report.kills)})",
        "interrupted": f"{report.interrupted_commits:,} commits and compactions, of which "
        f"{report.kept_commits:,} had taken effect; {report.repeated:,} begun again",
        "checked": f"{report.searches.total():,} searches ({_list_counts(report.searches)})",
    }
    for number, reader in enumerate(report.readers):
        start, end = reader.usage_at_start, reader.usage_at_end
        facts[f"reader {number}"] = (
            f"{count(reader.snapshots, 'snapshot')}, {count(reader.compactions, 'compaction')} "
            f"followed, {reader.retries:,} retries, slowest search {reader.slowest_ms:.0f} ms, "
            f"memory {file_size(start.memory_bytes)} at first, {file_size(end.memory_bytes)} at "
            f"the end, open files {start.open_files} and {end.open_files}"
        )
    print_facts(facts)
    for problem in report.problems:
        echo(f"problem: {problem}")
    if not report.problems:
        echo("no problems")


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{n:,} {name}" for name, n in sorted(counts.items()))


@bench.command("serve")
@click.option(
    "-g",
    "--gallery",
    "gallery_path",
    type=PathType(path_type=Path),
    help="Serve this gallery instead of random images.",
)
@click.option("--n", default=10_000, show_default=True, type=click.IntRange(1), help="Images.")
@click.option("--requests", default=200, show_default=True, type=click.IntRange(1))
@click.option("--clients", default=64, show_default=True, type=click.IntRange(1, 512))
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0, 3600),
    help="Of the mixed load.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 256),
    help="Processes of the server that search.  [default: as many as there are CPUs]",
)
@json_option
def serve(
    gallery_path: Path | None,
    n: int,
    requests: int,
    clients: int,
    seconds: float,
    workers: int | None,
    as_json: bool,
) -> None:
    """Compare searches by image id over HTTP with those of the library; then many clients."""
    from bm25v.errors import MissingExtra

    try:
        from bm25v.research.bench.serve import ServeTimes, make_gallery, time_server
    except ImportError as error:
        raise MissingExtra("bm25v bench serve", "serve") from error

    with tempfile.TemporaryDirectory() as scratch:
        path = gallery_path or Path(scratch) / "gallery"
        if gallery_path is None:
            make_gallery(path, n)
        workers = workers or available_cpus()
        options = {"requests": requests, "clients": clients, "workers": workers}
        times: ServeTimes = time_server(path, Path(scratch), seconds=seconds, **options)
    if as_json:
        print_json({"clients": clients, "workers": workers, **times.to_dict()})
        return
    figures = times.to_dict()
    titles = {
        "library": "Gallery.search",
        "json": "the same, as JSON",
        "http": "over HTTP",
        "searches": f"{clients} clients, searches",
        "mix": f"{clients} clients, all kinds",
    }
    names = ("median_ms", "p95_ms", "p99_ms")
    rows = [
        (title, *(f"{figures[key][name]:.2f}" for name in names)) for key, title in titles.items()
    ]
    rows += [
        (f"  {kind}", *(f"{values[name]:.2f}" for name in names))
        for kind, values in figures["mix"]["kinds"].items()
    ]
    print_grid((f"{times.n_images:,} images", "median ms", "p95 ms", "p99 ms"), rows)
    answers = ", ".join(
        f"{number:,} × {status}" for status, number in sorted(times.mix.statuses.items())
    )
    rates = {name: f"{rate:.0f}/s" for name, rate in times.searches_per_second.items()}
    print_facts(
        {
            "HTTP adds": f"{times.overhead_ms:.2f} ms (p95)",
            "in a loop": f"{rates['library']} Gallery.search, {rates['json']} as JSON, "
            f"{rates['http']} by one client",
            "together": f"{rates['clients']} by {clients} clients, with {workers} workers, "
            f"{rates['mix']} among all kinds",
            "answers": f"{answers} in {duration(times.mix.seconds)}; {times.mix.n_errors} errors",
            "memory": ", ".join(map(file_size, times.mix.memory)) + " (start, middle, end)",
        }
    )


@bench.command("engines")
@click.option("--n", default=20_000, show_default=True, type=click.IntRange(2_000))
@click.option("--dim", default=128, show_default=True, type=click.IntRange(1))
@click.option("--shards", default=4, show_default=True, type=click.IntRange(1))
@click.option("--queries", default=50, show_default=True, type=click.IntRange(1))
@json_option
def engines(n: int, dim: int, shards: int, queries: int, as_json: bool) -> None:
    """Measure what bm25v adds to the time of Qdrant's engine, which runs in this process.

    Synthetic images are loaded, beside bare upserts of the same points, and searched. Needs the
    extra qdrant, and the package qdrant-edge-py.
    """
    from bm25v.cli.progress import progress_bar

    try:
        from bm25v.research.bench.engines import time_engines
    except ImportError as error:
        raise WrongUse(f"{error}: pip install 'bm25v[qdrant]' qdrant-edge-py") from error
    with progress_bar() as progress:
        times = time_engines(n, dim=dim, shards=shards, n_queries=queries, progress=progress)
    if as_json:
        searches = [search._asdict() for search in times.searches]
        print_json({**vars(times), "searches": searches, "load_ratio": times.load_ratio})
        return
    echo(f"bare upserts  {n / times.upsert_seconds:8,.0f} images/s")
    echo(f"loading       {n / times.load_seconds:8,.0f} images/s ({times.load_ratio:.2f} of that)")
    header = ("mode", "in Qdrant's calls, ms", "finding candidates", "second stage")
    rows = [(mode, *(f"{value:.2f}" for value in values)) for mode, *values in times.searches]
    print_grid(header, rows)
