"""`bm25v bench`."""

import itertools
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli import bench_explain
from bm25v.cli.options import console, json_option, print_json

if TYPE_CHECKING:
    from bm25v.research.bench.search import SearchTimes

_RATIOS = (  # slow and fast, or so one hopes
    ("dense", "first-stage"),
    ("scipy", "first-stage"),
    ("scipy-rows", "first-stage"),
    ("scipy-columns", "first-stage"),
    ("bm25s", "first-stage"),
    ("dense", "two-stage"),
    ("hnsw", "two-stage"),
)


@click.group("bench")
def command() -> None:
    """Time the product on this machine."""


command.add_command(bench_explain.command)


@command.command("encode")
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--vocabulary", default="default", show_default=True)
@click.option("-n", "limit", default=200, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@json_option
def encode(folder: Path | None, vocabulary: str, limit: int, rounds: int, as_json: bool) -> None:
    """Time indexing against the bare forward passes, on FOLDER or on the demo's photos."""
    from bm25v import demo, images
    from bm25v.backbones import downloads
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.encode import time_encoding

    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        if folder is None:
            demo.unpack(downloads.read_file(demo.PHOTOS), Path(scratch))
        paths = list(itertools.islice(images.find_images(folder or scratch), limit))
        times = time_encoding(paths, vocabulary=vocabulary, rounds=rounds, progress=progress)
    n = times.images * times.rounds
    if as_json:
        seconds = {"forward": times.forward_seconds, "index": times.index_seconds}
        counts = {"pictures": times.images, "rounds": times.rounds}
        print_json({**counts, "seconds": seconds, "overhead": times.overhead})
        return
    click.echo(f"forward passes alone  {n / times.forward_seconds:6.1f} pictures/s")
    click.echo(f"indexing, all in      {n / times.index_seconds:6.1f} pictures/s")
    click.echo(f"overhead              {times.overhead:+.1%}")


@command.command("train")
@click.option("--dim", "dims", multiple=True, type=click.IntRange(1), default=(384, 768))
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1))
@json_option
def train(dims: tuple[int, ...], rounds: int, as_json: bool) -> None:
    """Time a training step against the same step written densely, and patches becoming words."""
    from bm25v.training import trainer as _needs_torch  # noqa: F401, I001 - says so in one line
    from bm25v.research.bench.train import time_steps, time_words
    from bm25v.cli.progress import progress_bar

    with progress_bar() as progress:
        found = []
        for done, dim in enumerate(dims):
            progress("timing", done, len(dims) + 1)
            found.append(time_steps(dim, rounds=rounds))
        progress("timing", len(dims), len(dims) + 1)
        words = time_words(rounds=rounds)
    if as_json:
        steps = [{**vars(times), "ratio": times.ratio} for times in found]
        print_json({"steps": steps, "words": {**vars(words), "ratio": words.ratio}})
        return
    for times in found:
        click.echo(
            f"D {times.dim}, {times.words:,} words: {times.ours * 1e3:.0f} ms a step, "
            f"dense {times.dense * 1e3:.0f} ms: {times.ratio:.1f} times faster"
        )
    click.echo(
        f"{words.patches} patches, D {words.dim}, {words.words:,} words, one thread: "
        f"{words.numpy * 1e3:.0f} ms, torch {words.torch * 1e3:.0f} ms: "
        f"{words.ratio:.1f} times faster"
    )


@command.command("search")
@click.option(
    "--n",
    "sizes",
    multiple=True,
    type=click.IntRange(1),
    default=(10_000, 100_000, 1_000_000),
    show_default=True,
    help="Made-up pictures to search in; several times for several tables.",
)
@click.option("--dim", default=1152, show_default=True, type=click.IntRange(1))
@click.option(
    "-g",
    "--gallery",
    "gallery_path",
    type=click.Path(path_type=Path),
    help="Search in a copy of this gallery instead, with pictures of its own.",
)
@click.option("--k", default=200, show_default=True, type=click.IntRange(1), help="Candidates.")
@click.option("--queries", "n_queries", default=50, show_default=True, type=click.IntRange(1))
@click.option("--threads", type=click.IntRange(1), help="Of the batch row  [default: all cores]")
@click.option(
    "--ann-limit",
    default=100_000,
    show_default=True,
    help="HNSW and IVF-PQ, slow to build, are timed in up to so many pictures.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw a plot, as .png.")
@json_option
def search(
    sizes: tuple[int, ...],
    dim: int,
    gallery_path: Path | None,
    k: int,
    n_queries: int,
    threads: int | None,
    ann_limit: int,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time searches against other systems, and changes, on one thread."""
    from bm25v.research import plots
    from bm25v.research.bench.search import time_search
    from bm25v.research.bench.workload import SyntheticImages, read_gallery

    if output:
        plots.check_path(output)  # before minutes go by
    found = []
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
            threads=threads,
            ann_limit=ann_limit,
            warn=lambda message: click.echo(message, err=True),
        )
        found.append(times)
        if not as_json:
            _print_search(times)
    if as_json:
        print_json([asdict(times) for times in found])
    if output:
        plots.draw_search_times(found, output)


def _print_search(times: "SearchTimes") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("system", no_wrap=True)
    for name in ("median ms", "p95 ms", "against dense", "build s", "bytes a vector", "recall"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, system in times.systems.items():
        table.add_row(
            name,
            f"{system.median_ms:.3f}",
            f"{system.p95_ms:.3f}",
            f"{times.ratio('dense', name):.1f}×",
            f"{system.build_s:.2f}",
            f"{system.bytes_per_vector:,.0f}",
            "" if system.recall is None else f"{system.recall:.0%}",
        )
    out = console()
    out.print(f"{times.n:,} pictures, K = {times.k}, D = {times.dim}", style="bold")
    out.print(table)
    update = times.update
    out.print(
        f"one picture added {update.add_ms:.1f} ms, removed {update.remove_ms:.1f} ms, on disk and "
        f"seen by the next search; 1,000 new ones seen by a reader {update.refresh_ms:.1f} ms"
    )
    for slow, fast in _RATIOS:
        ratio = times.ratio(slow, fast)
        if ratio is not None:
            out.print(f"{fast} is {ratio:.2f} times as fast as {slow}")
    out.print()


@command.command("duplicates")
@click.argument("folder", type=click.Path(exists=True, path_type=Path))
@click.option("--vocabulary", default="default", show_default=True)
@click.option("--every", default=4, show_default=True, type=click.IntRange(1))
@json_option
def duplicates(folder: Path, vocabulary: str, every: int, as_json: bool) -> None:
    """Change every n-th picture of FOLDER a little, and see which are found again."""
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.duplicates import measure_duplicates

    with progress_bar() as progress:
        result = measure_duplicates(folder, vocabulary=vocabulary, every=every, progress=progress)
    if as_json:
        print_json(result.to_dict())
        return
    for kind, share in result.recall.items():
        click.echo(f"{share:7.1%}  of {kind}")
    each = 1e3 * result.seconds / result.images
    click.echo(
        f"{result.groups:,} groups among {result.images:,} pictures, {each:.1f} ms a picture"
    )
    for paths in result.mixed:
        click.echo(f"one group: {', '.join(paths)}")
