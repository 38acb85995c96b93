"""`bm25v ablate`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.evaluate import (
    cache_option,
    data_option,
    listed,
    preset_option,
    read_settings,
    set_option,
    split_option,
)
from bm25v.cli.options import console, json_option, print_json, print_notes

if TYPE_CHECKING:
    from bm25v.research.ablate import AblationResult


@click.command("ablate")
@click.argument("axes", metavar="WHAT...", nargs=-1, required=True)
@data_option
@click.option("--dataset", "name", default="folder", show_default=True, help="What DATA holds.")
@split_option
@click.option(
    "--values", multiple=True, help="With commas between; several times for several WHAT."
)
@click.option("--vocabulary", default="default", show_default=True)
@click.option(
    "--vocabularies", help="For k, expansion and layer: some trained so, with commas between."
)
@preset_option
@set_option
@click.option("--format", "format_name", default="table", type=click.Choice(["table", "markdown"]))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Draw a plot, as .png.")
@cache_option
@json_option
def command(
    axes: tuple[str, ...],
    data: Path,
    name: str,
    split: Path | None,
    values: tuple[str, ...],
    vocabulary: str,
    vocabularies: str | None,
    preset: str,
    changes: tuple[str, ...],
    format_name: str,
    output: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Try several values of WHAT, or of several at once.

    WHAT is k, expansion, layer, k_post, k_query, scoring, quantisation, k1, b, candidates, query,
    tf, pooling, stop, fusion or weight. With --values, k encodes with the same SAE; to see one
    that was trained with another k, expansion or layer, name --vocabularies. What was measured
    before is not measured again.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.errors import WrongUse
    from bm25v.research import datasets, plots, tables
    from bm25v.research.ablate import ablate, plan_trials
    from bm25v.vocabulary import Vocabulary

    if len(values) not in (0, len(axes)):
        raise WrongUse(
            f"--values is there {len(values)} times for {len(axes)} of {', '.join(axes)}"
        )
    chosen = [listed(one) for one in values] or [[] for _ in axes]
    trials = plan_trials(
        dict(zip(axes, chosen, strict=True)),
        Vocabulary.load(vocabulary),
        read_settings(preset, changes),
        [Vocabulary.load(one) for one in listed(vocabularies or "")],
    )
    if output:
        plots.check_path(output)  # before hours go by
        plots.ablation_values([trial.values for trial in trials])
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = ablate(dataset, trials, cache=cache, progress=progress)
    print_notes(result.dataset.problems)
    known = sum(not trial.is_new for trial in result.trials)
    if known:
        click.echo(f"{known} of {len(result.trials)} were measured before", err=True)
    if output:
        plots.draw_ablation(result, output)
    if as_json:
        print_json(_json(result))
    elif format_name == "markdown":
        click.echo(tables.markdown_table(*tables.ablation_table(result)))
    else:
        console().print(tables.rich_table(*tables.ablation_table(result)))


def _json(result: "AblationResult") -> dict[str, object]:
    return {
        "dataset": result.dataset.title,
        "axes": list(result.axes),
        "dense": result.dense,
        "cells": [trial.to_dict() for trial in result.trials],
    }
