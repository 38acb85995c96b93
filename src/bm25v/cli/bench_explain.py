"""`bm25v bench explain`."""

import tempfile
from dataclasses import asdict
from pathlib import Path

import click

from bm25v.cli.options import json_option, print_json


@click.command("explain")
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("--vocabulary", default="default", show_default=True)
@click.option("--hits", default=20, show_default=True, type=click.IntRange(1))
@click.option(
    "--n",
    default=100_000,
    show_default=True,
    type=click.IntRange(1),
    help="Made-up pictures of the gallery whose words are counted.",
)
@json_option
def command(folder: Path | None, vocabulary: str, hits: int, n: int, as_json: bool) -> None:
    """Time saying why, with FOLDER or the demo's photos, and counting a gallery's words."""
    from bm25v import demo, images
    from bm25v.backbones import downloads
    from bm25v.cli.progress import progress_bar
    from bm25v.research.bench.explain import time_explanations, time_word_counts

    with tempfile.TemporaryDirectory() as scratch, progress_bar() as progress:
        if folder is None:
            demo.unpack(downloads.read_file(demo.PHOTOS), Path(scratch))
        paths = list(images.find_images(folder or scratch))
        hit = time_explanations(paths, vocabulary=vocabulary, hits=hits, progress=progress)
    usage = time_word_counts(n)
    if as_json:
        print_json({"hit": {**asdict(hit), "added_ms": hit.added_ms}, "words": usage.to_dict()})
        return
    click.echo(f"one hit after a search, median of {hit.hits}")
    click.echo(f"{hit.forward_ms:9.1f} ms  its forward pass")
    click.echo(f"{hit.added_ms:9.1f} ms  its words and where they are, beside the forward pass")
    click.echo(f"{hit.page_ms:9.1f} ms  that as a page")
    click.echo(f"{hit.sheet_ms:9.1f} ms  that as a picture")
    click.echo(f"the words of {usage.images:,} made-up pictures, {usage.words:,} in use")
    click.echo(f"{usage.first_s:9.3f} s   all of them, counted for the first time")
    click.echo(f"{usage.again_s:9.3f} s   again, as nothing has changed")
    click.echo(f"{usage.renewed_s:9.3f} s   again, after a picture was added")
    click.echo(f"{usage.word_s:9.3f} s   all about the word in most pictures")
