"""`bm25v explain`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import console, gallery_option, json_option, print_json, shown
from bm25v.cli.steering import steering_options
from bm25v.display import count

if TYPE_CHECKING:
    from bm25v.explain import Explanation
    from bm25v.search import Mode, QueryOptions

_WIDEST = 60  # columns of a picture in the terminal


@click.command("explain")
@click.argument("queries", nargs=-1, type=click.Path(), metavar="[QUERY]...")
@click.argument("hit", type=click.Path())
@gallery_option
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write both images with a heat map of each word: a page (.html), or an image of the first "
    "words (.png, .jpg, .webp, .pdf).",
)
@click.option(
    "--top",
    type=click.IntRange(1),
    help="Words to show: usually 5, and all on a page.",
)
@click.option("--show", is_flag=True, help="Show in the terminal what matched in both pictures.")
@steering_options
@click.option(
    "--mode",
    type=click.Choice(["two-stage", "sparse", "dense", "hybrid"]),
    help="The order of the search: it decides which words count for a --text.",
)
@json_option
def command(
    queries: tuple[str, ...],
    hit: str,
    gallery_path: Path,
    output: Path | None,
    top: int | None,
    show: bool,
    wanted: "QueryOptions",
    mode: "Mode | None",
    as_json: bool,
) -> None:
    """Say why HIT, a picture of the gallery, matches QUERY, or several.

    Steered like a search, it explains that search.
    """
    from bm25v.api import Gallery

    if output is not None:
        from bm25v.pages.explanation_page import check_output, write_explanation

        check_output(output)  # before the work
    with Gallery.open(gallery_path) as gallery:
        wanted["mode"] = mode
        explanation = gallery.explain(queries, hit, **wanted)
    if output is not None:
        names = [Path(query).name for query in queries]
        write_explanation(explanation, output, top=top, query_names=names)
    if as_json:
        print_json(explanation.to_dict())
        return
    _print(explanation, top or 5)
    if show:
        _show(explanation)
    if output is not None:
        click.echo(f"drawn: {output}")


def _print(explanation: "Explanation", top: int) -> None:
    match = explanation.match
    for note in explanation.notes:
        click.echo(f"note: {note}", err=True)
    click.echo(shown(explanation.hit_path))
    cosine = "" if match.dense is None else f"cosine {match.dense:.3f}, "
    click.echo(f"{cosine}coverage {match.coverage:.0%}, BM25 {match.sparse:.2f}, of that:")
    contributions = explanation.rounded_contributions()
    for part, contribution in zip(explanation.parts[:top], contributions, strict=False):
        word = part.word
        weight = "" if word.weight == 1 else f" × weight {word.weight:.3g}"
        click.echo(
            f"{contribution:7.2f}  {word.label:<12} idf {word.idf:.2f} × saturation "
            f"{word.saturation:.2f}{weight}  (tf {word.tf:.2f} here, {word.query_tf:.2f} in the "
            f"query; in {word.df} pictures)"
        )
    rest = contributions[top:]
    if rest:
        click.echo(f"{sum(rest):7.2f}  {count(len(rest), 'more word')}")
    click.echo(
        f"{match.pictures:,} pictures; all tf together are {match.length:.2f} here, "
        f"{match.average_length:.2f} on average"
    )


def _show(explanation: "Explanation") -> None:
    from rich.table import Table

    from bm25v.explain.explanation import combine_maps
    from bm25v.explain.heatmaps import overlay
    from bm25v.explain.terminal import draw_half_blocks

    out = console()
    if out.color_system is None:
        click.echo("note: there are no colours here to show pictures with: use -o", err=True)
        return
    in_queries, in_hit = combine_maps(explanation)
    maps = list(zip(explanation.query_images, in_queries, strict=True))
    if explanation.hit_image is not None and in_hit is not None:
        maps.append((explanation.hit_image, in_hit))
    columns = min(_WIDEST, (out.width - 2 * len(maps)) // max(1, len(maps)))
    row = Table.grid(padding=(0, 2))
    row.add_row(*(draw_half_blocks(overlay(image, grid), columns=columns) for image, grid in maps))
    out.print(row)
