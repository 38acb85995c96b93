"""`bm25v demo`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.options import console, json_option, print_json, shown

if TYPE_CHECKING:
    from bm25v.demo import DemoReport
    from bm25v.pages.searches_page import LabelledSearch


@click.command("demo")
@click.option(
    "--folder",
    default="demo",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the photos, the gallery and the report go.",
)
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Index 190 real photos, search with 20 more, and write a page that says why."""
    from bm25v import demo
    from bm25v.cli.progress import progress_bar

    with progress_bar() as progress:
        report = demo.run(folder, progress=progress, say=lambda line: click.echo(line, err=True))
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)


def _print(report: "DemoReport") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("query", "species", "first hit", "its species"):
        table.add_column(name, overflow="fold")
    for name in ("cosine", "BM25", "agree"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.searches:
        table.add_row(*_row(one))
    console().print(table)
    found, by_words = report.agreement, report.agreement_by_words
    click.echo(
        f"\nspecies agrees in {found.first} of {found.queries} first hits, "
        f"{found.all} of {found.hits} hits in all"
    )
    click.echo(f"by words alone, without dense vectors: {by_words.first} and {by_words.all}")
    click.echo(f"report: {shown(str(report.page))}")
    if report.drawing is not None:
        click.echo(f"one match, drawn: {shown(str(report.drawing))}")


def _row(one: "LabelledSearch") -> tuple[str, ...]:
    query = (Path(one.query).name, one.labels.get(one.query, ""))
    if not one.results.hits:
        return (*query, "none", "", "", "", "0 of 0")
    hit = one.results[0]
    agree = sum(one.agrees(found) is True for found in one.results)
    found = (Path(hit.path).name, one.labels.get(hit.path, ""))
    return (
        *query,
        *found,
        f"{hit.dense:.3f}",
        f"{hit.sparse:.2f}",
        f"{agree} of {len(one.results)}",
    )
