"""`bm25v report`."""

from pathlib import Path

import click

from bm25v.cli.evaluate import cache_option, data_option
from bm25v.cli.options import json_option, print_json, shown


@click.command("report")
@click.argument("name", default="folder")
@data_option
@click.option(
    "-o",
    "--output",
    default="report",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write the page into, and its figures as JSON.",
)
@click.option("--vocabulary", default="default", show_default=True)
@cache_option
@json_option
def command(
    name: str, data: Path, output: Path, vocabulary: str, cache: Path | None, as_json: bool
) -> None:
    """Measure everything on a data set and write one page about it.

    NAME is a data set that is laid out as published, or "folder" for any folder of class folders.
    """
    from bm25v.bench.evaluated import time_searches
    from bm25v.cli.progress import stages_bar
    from bm25v.evaluate import datasets, report
    from bm25v.vocabulary import Vocabulary

    dataset = datasets.load(name, data)
    with stages_bar() as progress:
        found = report.make(
            dataset,
            Vocabulary.load(vocabulary),
            cache=cache,
            time=time_searches,
            progress=progress,
        )
    report.write(found, output)
    if as_json:
        print_json(found.to_json())
        return
    click.echo(f"{shown(str(output / report.PAGE))}: a page about {found.result.name}")
    click.echo(f"{shown(str(output / report.FIGURES))}: its figures")
