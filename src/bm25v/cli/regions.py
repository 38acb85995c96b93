"""`bm25v evaluate regions`."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from bm25v.cli.evaluate import data_option, split_option
from bm25v.cli.options import json_option, print_json, print_notes

if TYPE_CHECKING:
    from bm25v.research.significance import Interval
    from bm25v.search import Mode


@click.command("regions")
@data_option
@click.option("--dataset", "name", default="folder", show_default=True, help="What DATA holds.")
@split_option
@click.option("--pairs", default=100, show_default=True, type=click.IntRange(1))
@click.option("--k", default=5, show_default=True, type=click.IntRange(1), help="Hits that count.")
@click.option("--mode", type=click.Choice(["two-stage", "sparse", "dense", "hybrid"]))
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
@click.option("--vocabulary", default="default", show_default=True)
@json_option
def command(
    data: Path,
    name: str,
    split: Path | None,
    pairs: int,
    k: int,
    mode: "Mode | None",
    seed: int,
    vocabulary: str,
    as_json: bool,
) -> None:
    """Measure whether a box finds what is in it.

    Pictures of different classes are put side by side in pairs, and all others are searched, with
    the whole pair and with a box around either picture. A search is right if one of its first K
    hits is of that picture's class.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets
    from bm25v.research.region_recall import measure_region_recall

    dataset = datasets.load(name, data, split=split)
    print_notes(dataset.problems)
    with progress_bar() as progress:
        found = measure_region_recall(
            dataset,
            vocabulary=vocabulary,
            pairs=pairs,
            k=k,
            mode=mode,
            seed=seed,
            progress=progress,
        )
    if as_json:
        counts = {"pairs": found.pairs, "k": found.k, "mode": found.mode, "seed": seed}
        kinds = {"whole": found.whole, "box": found.box, "gain": found.gain}
        print_json(counts | {kind: _plain(one) for kind, one in kinds.items()})
        return
    click.echo(
        f"{found.pairs} pairs, {found.mode}; the right class among the first {found.k} hits:"
    )
    click.echo(f"whole pair      {_shown(found.whole, '.1%')}")
    click.echo(f"box around one  {_shown(found.box, '.1%')}")
    click.echo(f"a box is right {_shown(found.gain, '.2f')} times as often")


def _plain(one: "Interval") -> dict[str, float | None]:
    """Return an interval for JSON, which knows no infinite numbers."""
    return {name: x if math.isfinite(x) else None for name, x in one._asdict().items()}


def _shown(one: "Interval", form: str) -> str:
    return f"{one.mean:{form}} ({one.low:{form}} to {one.high:{form}})"
