"""`bm25v evaluate faithfulness`."""

import json
from pathlib import Path

import click

from bm25v.cli.evaluate import cache_option, data_option, split_option
from bm25v.cli.options import console, print_notes, shown


@click.command("faithfulness")
@data_option
@click.option("--dataset", "name", default="folder", show_default=True, help="What DATA holds.")
@split_option
@click.option("--pairs", default=200, show_default=True, type=click.IntRange(2))
@click.option(
    "--hide",
    "ways",
    multiple=True,
    default=["grey"],
    show_default=True,
    type=click.Choice(["grey", "blur"]),
    help="How patches are hidden; twice for both, which takes twice as long.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--vocabulary", default="default", show_default=True)
@click.option("--format", "format_name", default="table", type=click.Choice(["table", "markdown"]))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw the curves, as .png.")
@click.option("--json", "json_path", metavar="FILE", help="Write JSON there; - prints it.")
@cache_option
def command(
    data: Path,
    name: str,
    split: Path | None,
    pairs: int,
    ways: tuple[str, ...],
    seed: int,
    vocabulary: str,
    format_name: str,
    output: Path | None,
    json_path: str | None,
    cache: Path | None,
) -> None:
    """Measure whether scores hang on the patches that explanations name.

    For pairs of a query and one of its ten best hits by BM25, patches of the hit are hidden and the
    rest is scored anew, from the pixels: those first where the explanation says that words are
    ("explanation"), those first that resemble the query as a whole ("dense"), from the middle
    outwards ("middle"), or any ("random"). Then the other way round: all is hidden, and patches
    are shown in that order.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, faithfulness_results, plots
    from bm25v.research.faithfulness import measure_faithfulness
    from bm25v.vocabulary import Vocabulary

    if output:
        plots.check_path(output)  # before minutes go by
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = measure_faithfulness(
            dataset,
            Vocabulary.load(vocabulary),
            pairs=pairs,
            masks=tuple(mask for mask in faithfulness_results.MASKS if mask in ways),
            seed=seed,
            cache=cache,
            progress=progress,
        )
    print_notes(result.problems)
    if output:
        plots.draw_faithfulness(result, output)
    if json_path:
        text = json.dumps(result.to_dict(), indent=2) + "\n"
        if json_path == "-":
            click.echo(text, nl=False)
            return
        Path(json_path).write_text(text, encoding="utf-8")
    if format_name == "markdown":
        click.echo(faithfulness_results.to_markdown(result), nl=False)
        return
    out = console()
    for line in faithfulness_results.describe(result):
        out.print(line, style="dim", soft_wrap=True)
    for part in faithfulness_results.terminal_tables(result):
        out.print(part, soft_wrap=True)
    if output:
        click.echo(f"{shown(str(output))}: the curves")
