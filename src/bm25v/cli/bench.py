"""`bm25v bench`."""

import itertools
import tempfile
from pathlib import Path

import click

from bm25v.cli.options import json_option, print_json


@click.group("bench")
def command() -> None:
    """Time the product on this machine."""


@command.command("encode")
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--vocabulary", default="default", show_default=True)
@click.option("-n", "limit", default=200, show_default=True, type=click.IntRange(1))
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1))
@json_option
def encode(folder: Path | None, vocabulary: str, limit: int, rounds: int, as_json: bool) -> None:
    """Time indexing against the bare forward passes, on FOLDER or on the demo's photos."""
    from bm25v import demo, downloads, images
    from bm25v.bench.encode import time_encoding
    from bm25v.cli.progress import progress_bar

    with tempfile.TemporaryDirectory() as scratch, progress_bar("timing") as progress:
        if folder is None:
            demo.unpack(downloads.read(demo.PHOTOS), Path(scratch))
        paths = list(itertools.islice(images.find(folder or scratch), limit))
        times = time_encoding(paths, vocabulary=vocabulary, rounds=rounds, progress=progress)
    n = times.pictures * times.rounds
    if as_json:
        seconds = {"forward": times.forward_seconds, "index": times.index_seconds}
        counts = {"pictures": times.pictures, "rounds": times.rounds}
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
    from bm25v.sae import trainer as _needs_torch  # noqa: F401, I001 - says so in one line
    from bm25v.bench.train import time_steps
    from bm25v.bench.words import time_words
    from bm25v.cli.progress import progress_bar

    with progress_bar("timing") as progress:
        found = []
        for done, dim in enumerate(dims):
            progress(done, len(dims) + 1)
            found.append(time_steps(dim, rounds=rounds))
        progress(len(dims), len(dims) + 1)
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
        f"numpy {words.numpy * 1e3:.0f} ms, torch {words.torch * 1e3:.0f} ms, int8 "
        f"{words.int8 * 1e3:.0f} ms: {words.ratio:.1f} times faster, {words.agreement:.2%} the same"
    )
