"""`bm25v search`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import console, gallery_option, json_option, print_json, shown
from bm25v.cli.steering import steering_options

if TYPE_CHECKING:
    from bm25v.search import Hit, Mode, QueryOptions, Results

_MODES = {
    "two-stage": "the best {candidates} by BM25, ordered by cosine",
    "sparse": "ordered by BM25",
    "dense": "all pictures, ordered by cosine",
    "hybrid": "the best {candidates} by BM25, ordered by cosine + {factor:.3g} × BM25",
}
_ASKED = 8  # words that are listed


@click.command("search")
@click.argument("pictures", nargs=-1, type=click.Path(), metavar="[PICTURE]...")
@gallery_option
@click.option("-k", default=10, show_default=True, type=click.IntRange(1), help="Hits to show.")
@steering_options
@click.option(
    "--min-coverage",
    default=0.0,
    type=click.FloatRange(0, 1),
    help="Only pictures that match at least this share of the query's IDF mass, 0 to 1.",
)
@click.option(
    "--mode",
    type=click.Choice(list(_MODES)),
    help="The order: usually two-stage; dense with --text; sparse with --boost or words alone.",
)
@click.option(
    "--candidates",
    default=200,
    show_default=True,
    type=click.IntRange(1),
    help="How many pictures the first stage hands to the second.",
)
@json_option
def command(
    pictures: tuple[str, ...],
    gallery_path: Path,
    k: int,
    wanted: "QueryOptions",
    min_coverage: float,
    mode: "Mode | None",
    candidates: int,
    as_json: bool,
) -> None:
    """Find the pictures most like PICTURE, or several, and the words that say so.

    Without a picture, search by --text, or by visual words alone: --must and --boost. A WORD is a
    number or a name.
    """
    from bm25v.api import Gallery
    from bm25v.errors import WrongUse

    if not pictures and not any(wanted.values()) and wanted["text"] is None:
        raise WrongUse("nothing to look for: give a PICTURE, a --text, or words by --must, --boost")
    with Gallery.open(gallery_path) as gallery:
        wanted |= {"min_coverage": min_coverage, "k": k, "mode": mode, "candidates": candidates}
        results = gallery.search(pictures, **wanted)
        is_empty = len(gallery) == 0
    if as_json:
        print_json(results.to_dict())
        return
    for note in results.notes:
        click.echo(f"note: {note}", err=True)
    if is_empty:
        click.echo(f"no match: the gallery {gallery_path} has no images")
    elif not results:
        click.echo(f"no match: {results.no_match}")
    else:
        _print_table(results, candidates)


def _print_table(results: "Results", candidates: int) -> None:
    from rich.table import Table

    has_stages = results.mode in ("two-stage", "hybrid")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("#", *["was"] * has_stages, "score", "BM25", "coverage"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("picture", overflow="fold")
    table.add_column("words that mattered most", overflow="fold")
    for hit in results:
        ranks = (str(hit.rank), *[str(hit.first_rank)] * has_stages)
        numbers = (f"{hit.score:.3f}", f"{hit.sparse:.2f}", f"{hit.coverage:.0%}")
        table.add_row(*ranks, *numbers, shown(hit.path), _top_words(hit))
    took = " + ".join(f"{stage} {ms:.0f} ms" for stage, ms in results.ms.items())
    how = _MODES[results.mode].format(candidates=candidates, factor=results.sparse_factor or 0)
    out = console()
    out.print(table)
    if any(word.weight != 1 for word in results.query):
        out.print(_weights(results), style="dim")
    out.print(f"{how}; {took}", style="dim")


def _top_words(hit: "Hit") -> str:
    return ", ".join(f"{word.label} ({word.contribution:.2f})" for word in hit.words[:3])


def _weights(results: "Results") -> str:
    """Say what counts how much, the heaviest first."""
    heaviest = sorted(results.query, key=lambda word: -abs(word.weight))
    listed = ", ".join(f"{word.label} × {word.weight:.3g}" for word in heaviest[:_ASKED])
    n_more = len(heaviest) - _ASKED
    return f"asked for: {listed}" + (f" and {n_more} more" if n_more > 0 else "")
