"""`bm25v zipf`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import DEFAULT_GALLERY, console, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.research.zipf import ZipfFit

_PAPER = (
    "the paper's seven sets: α 1.20 to 2.32, R² .917 to .973, head 0.25 to 1.83%, "
    "IDF > 2 96 to 99.7%"
)


@click.command("zipf")
@click.option(
    "-g",
    "--gallery",
    "paths",
    multiple=True,
    default=lambda: (os.environ.get("BM25V_GALLERY", DEFAULT_GALLERY),),
    show_default=f"$BM25V_GALLERY, else {DEFAULT_GALLERY}",
    type=click.Path(path_type=Path),
    help="A gallery's folder; several times to compare.",
)
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw words by rank, as .png, .svg or .pdf; several galleries in one plot.",
)
@json_option
def command(paths: tuple[Path, ...], output: Path | None, as_json: bool) -> None:
    """Show how words are spread over pictures, and the power law that fits best.

    Head are words in more than half of the pictures, tail those in less than a tenth, as shares
    of the active words: those in any picture at all.
    """
    from bm25v.research import plots
    from bm25v.research.zipf import read_frequencies, short_names

    paths = tuple(dict.fromkeys(paths))
    counted = [read_frequencies(path) for path in paths]
    found = dict(zip(short_names(paths), (one.fit_zipf() for one in counted), strict=True))
    if output and len(found) == 1:
        ((name, zipf),) = found.items()
        plots.draw_zipf(zipf, f"In how many pictures words are: {name}", output)
    elif output:
        plots.draw_zipf_comparison(found, output)
    if as_json:
        lines = zip(counted, found.values(), strict=True)
        print_json([_to_json(one.info.path, one.info.words, zipf) for one, zipf in lines])
        return
    _print_table(found)
    if output:
        click.echo(f"{shown(str(output))}: words by rank")


def _to_json(path: str, words: int, zipf: "ZipfFit") -> dict[str, Any]:
    return {
        "gallery": path,
        "pictures": zipf.images,
        "words": words,
        "active": zipf.active_words,
        "alpha": zipf.alpha,
        "r2": zipf.r2,
        "head": zipf.head,
        "tail": zipf.tail,
        "idf_above_2": zipf.high_idf,
    }


def _print_table(found: "dict[str, ZipfFit]") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("gallery", no_wrap=True)
    for name in ("pictures", "active words", "α", "R²", "head", "tail", "IDF > 2"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, zipf in found.items():
        counts = (f"{zipf.images:,}", f"{zipf.active_words:,}")
        shares = (f"{zipf.head:.2%}", f"{zipf.tail:.1%}", f"{zipf.high_idf:.1%}")
        table.add_row(name, *counts, f"{zipf.alpha:.2f}", f"{zipf.r2:.3f}", *shares)
    out = console()
    out.print(table)
    out.print(_PAPER, style="dim")
