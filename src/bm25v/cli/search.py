"""`bm25v search`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import console, gallery_option, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.gallery import Hit, Results
    from bm25v.gallery.gallery import Mode

_MODES = {
    "two-stage": "the best {candidates} by BM25, ordered by cosine",
    "sparse": "ordered by BM25",
    "dense": "all pictures, ordered by cosine",
}


@click.command("search")
@click.argument("picture", type=click.Path())
@gallery_option
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Hits to show.")
@click.option("--mode", default="two-stage", show_default=True, type=click.Choice(list(_MODES)))
@click.option(
    "--candidates",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    help="How many pictures the first stage hands to the second.",
)
@json_option
def command(
    picture: str, gallery_path: Path, k: int, mode: "Mode", candidates: int, as_json: bool
) -> None:
    """Find the pictures most like PICTURE and the words that say so."""
    from bm25v.errors import ImageError
    from bm25v.gallery import Gallery

    with Gallery.open(gallery_path) as gallery:
        try:
            results = gallery.search(picture, k=k, mode=mode, candidates=candidates)
        except ImageError as error:
            raise ImageError(f"{picture}: {error}") from None
        is_empty = len(gallery) == 0
    if as_json:
        print_json(results.to_json())
    elif is_empty:
        click.echo(f"no match: there are no pictures in {gallery_path}")
    elif not results:
        click.echo(f"no match: no picture shares a word with {picture}")
    else:
        _print_table(results, _MODES[mode].format(candidates=candidates))


def _print_table(results: "Results", how: str) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", "score", "BM25"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("picture", overflow="fold")
    table.add_column("words that mattered most", overflow="fold")
    for hit in results:
        numbers = (str(hit.rank), f"{hit.score:.3f}", f"{hit.sparse:.2f}")
        table.add_row(*numbers, shown(hit.path), _top_words(hit))
    took = " + ".join(f"{stage} {ms:.0f} ms" for stage, ms in results.ms.items())
    out = console()
    out.print(table)
    out.print(f"{how}; {took}", style="dim")


def _top_words(hit: "Hit") -> str:
    return ", ".join(f"{word.label} ({word.contribution:.2f})" for word in hit.words[:3])
