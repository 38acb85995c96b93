"""`bm25v evaluate`."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import console, print_notes

if TYPE_CHECKING:
    from bm25v.research.evaluate import EvaluationResult
    from bm25v.research.settings import RankingSettings

_OTHERS = ("faithfulness", "regions")  # a module each
_ENDINGS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}

cache_option = click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep features here  [default: the user's cache folder]",
)
data_option = click.option(
    "--data",
    required=True,
    type=click.Path(path_type=Path),
    help="The data set's folder, or the one that holds it.",
)
split_option = click.option(
    "--split",
    type=click.Path(path_type=Path),
    help='For "folder": a file of lines "path<TAB>gallery|query".',
)
preset_option = click.option("--preset", default="default", type=click.Choice(["default", "paper"]))
set_option = click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting: k_post=64."
)


class _Evaluate(click.Command):
    """The command, and beside it those that are told by their name where a DATASET would be."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if not args or args[0] not in _OTHERS:
            return super().make_context(info_name, args, parent, **extra)
        other: click.Command = importlib.import_module(f"bm25v.cli.{args[0]}").command
        return other.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)


@click.command("evaluate", cls=_Evaluate)
@click.argument("name", metavar="DATASET")
@data_option
@split_option
@click.option("--systems", help="Some of them, with commas between  [default: all]")
@click.option("--vocabulary", default="default", show_default=True)
@preset_option
@set_option
@click.option("--per-class", is_flag=True, help="Also show every class.")
@click.option("--format", "format_name", type=click.Choice(["table", "markdown", "csv", "latex"]))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write the table there.")
@click.option("--json", "json_path", metavar="FILE", help="Write JSON there; - prints it.")
@click.option(
    "--run", "run_folder", type=click.Path(path_type=Path), help="Write TREC files there."
)
@cache_option
def command(
    name: str,
    data: Path,
    split: Path | None,
    systems: str | None,
    vocabulary: str,
    preset: str,
    changes: tuple[str, ...],
    per_class: bool,
    format_name: str | None,
    output: Path | None,
    json_path: str | None,
    run_folder: Path | None,
    cache: Path | None,
) -> None:
    """Measure how well pictures of a DATASET are found, by bm25v and by others.

    DATASET is cub200, cars196, aircraft, pets, flowers102, dtd, food101, roxford5k or rparis6k, as
    its authors lay it out, or "folder": any folder of class folders, where each picture asks for
    the others of its class. Features are kept, so that only the first run takes long.

    Two more commands, with a --help of their own:

    \b
    bm25v evaluate regions       searches by a part of a picture
    bm25v evaluate faithfulness  explanations
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, trec
    from bm25v.research.evaluate import evaluate
    from bm25v.research.systems import SYSTEMS, resolve_systems
    from bm25v.vocabulary import Vocabulary

    settings = read_settings(preset, changes)
    wanted = resolve_systems(SYSTEMS if systems is None else listed(systems), settings)
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = evaluate(
            dataset,
            Vocabulary.load(vocabulary),
            settings=settings,
            systems=wanted,
            cache=cache,
            per_class=per_class,
            progress=progress,
        )
    print_notes(result.problems)
    if run_folder:
        rankings = {name: system.rankings for name, system in result.systems.items()}
        trec.write_trec(run_folder, result.dataset, rankings)
    _print(result, format_name, output, json_path)


def read_settings(preset: str, changes: tuple[str, ...]) -> "RankingSettings":
    """Return a preset with changes like "k_post=64"."""
    from bm25v.errors import WrongUse
    from bm25v.research.settings import PRESETS

    settings = PRESETS[preset]
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise WrongUse(f"--set {change}: write it like --set k_post=64")
        settings = settings.with_value(name.strip(), value.strip())
    return settings


def listed(text: str) -> list[str]:
    """Return what stands between commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(
    result: "EvaluationResult", format_name: str | None, output: Path | None, json_path: str | None
) -> None:
    from bm25v.research import tables

    if json_path == "-":
        click.echo(tables.to_json(result), nl=False)
    elif json_path:
        Path(json_path).write_text(tables.to_json(result), encoding="utf-8")
    if output:
        chosen = format_name or _ENDINGS.get(output.suffix.lower(), "table")
        output.write_text(tables.FORMATS[chosen](result), encoding="utf-8")
    if json_path == "-" or output:
        return
    if format_name not in (None, "table"):
        click.echo(tables.FORMATS[format_name](result), nl=False)
        return
    out = console()
    for line in tables.describe(result):
        out.print(line, style="dim", soft_wrap=True)
    out.print(tables.terminal_table(result))
    if any(system.classes for system in result.systems.values()):
        out.print(tables.class_table(result))
