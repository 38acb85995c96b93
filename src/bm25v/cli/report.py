"""`bm25v report`."""

from pathlib import Path

import click

from bm25v.cli.evaluate import (
    cache_option,
    data_option,
    preset_option,
    read_settings,
    set_option,
    split_option,
)
from bm25v.cli.options import json_option, print_json, shown


@click.command("report")
@click.argument("name", metavar="[DATASET]", default="folder")
@data_option
@split_option
@click.option(
    "-o",
    "--output",
    default="report",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder to write the page into, and its figures as JSON.",
)
@click.option("--vocabulary", default="default", show_default=True)
@preset_option
@set_option
@cache_option
@json_option
def command(
    name: str,
    data: Path,
    split: Path | None,
    output: Path,
    vocabulary: str,
    preset: str,
    changes: tuple[str, ...],
    cache: Path | None,
    as_json: bool,
) -> None:
    """Measure everything on a data set and write one page about it.

    DATASET is one that is laid out as published (see bm25v evaluate --help), or "folder" for any
    folder of class folders.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, report
    from bm25v.vocabulary import Vocabulary

    settings = read_settings(preset, changes)
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        found = report.measure_report(
            dataset,
            Vocabulary.load(vocabulary),
            settings=settings,
            cache=cache,
            progress=progress,
        )
    report.write_report(found, output)
    if as_json:
        print_json(found.to_dict())
        return
    click.echo(f"{shown(str(output / report.PAGE))}: a page about {found.result.name}")
    click.echo(f"{shown(str(output / report.NUMBERS))}: its figures")
