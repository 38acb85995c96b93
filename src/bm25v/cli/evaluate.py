"""`bm25v evaluate`, and its subcommands that compare settings: ablate and report."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import (
    ANY_PATH,
    FOLDER,
    dense_option,
    json_option,
    output_option,
    split_list,
    vocabulary_option,
)
from bm25v.cli.printing import echo, echo_text, echo_wrapped, emit, print_grid, print_notes
from bm25v.cli.progress import progress_bar
from bm25v.display import display_path
from bm25v.errors import InvalidOption
from bm25v.files import make_folder

if TYPE_CHECKING:
    from bm25v.research.datasets import Dataset
    from bm25v.research.settings import RankingSettings

cache_option = click.option(
    "--cache", type=FOLDER, help="Keep features in this folder  [default: the user's cache folder]"
)


def data_option(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option("--data", required=True, type=ANY_PATH, help=help_text)


_data_option = data_option("The data set's folder, or the folder that holds it.")


def dataset_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command --data and --dataset; it gets the `dataset`."""

    @_data_option
    @click.option(
        "--dataset",
        "name",
        default="folder",
        show_default=True,
        help="Which data set is in --data.",
    )
    @wraps(function)
    def command(*, data: Path, name: str, **values: Any) -> None:
        from bm25v.research import datasets

        function(dataset=datasets.load(name, data), **values)

    return command


def _settings_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command --preset and --set; it gets the `settings`."""

    @click.option(
        "--preset",
        default="default",
        type=click.Choice(["default", "paper"]),
        help="paper: the paper's method and nothing else.",
    )
    @click.option(
        "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting: k_post=64."
    )
    @wraps(function)
    def command(*, preset: str, changes: tuple[str, ...], **values: Any) -> None:
        from bm25v.research.settings import RankingSettings

        settings = RankingSettings.paper() if preset == "paper" else RankingSettings()
        for change in changes:
            name, equals, value = change.partition("=")
            if not equals:
                raise InvalidOption(
                    f"--set {change}: write it as NAME=VALUE, such as --set k_post=64"
                )
            settings = settings.with_value(name.strip(), value.strip())
        function(settings=settings, **values)

    return command


class _Evaluate(click.Command):
    """The command; in place of a DATASET it also accepts the name of a subcommand."""

    @property
    def commands(self) -> dict[str, click.Command]:
        """The subcommands by name, as a group has them."""
        from bm25v.cli import measures as m

        measures = (m.zipf, m.cost, m.regions, m.text, m.no_match, m.faithfulness)
        return {str(command.name): command for command in (ablate, report, *measures)}

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        if not args or args[0] not in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        subcommand = self.commands[args[0]]
        return subcommand.make_context(f"{info_name} {args[0]}", args[1:], parent, **extra)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, command.get_short_help_str(70)) for name, command in self.commands.items()]
            )


@click.command("evaluate", cls=_Evaluate)
@click.argument("name", metavar="[DATASET]", default="folder")
@_data_option
@click.option("--systems", help="Some of them, separated by commas  [default: all]")
@vocabulary_option
@dense_option
@_settings_options
@click.option("--per-class", is_flag=True, help="Also show every class.")
@click.option("--format", "format_name", type=click.Choice(["table", "markdown", "csv", "latex"]))
@output_option("Write the table to this file: .md, .csv, .tex, .json, or text.")
@json_option
@click.option("--run", "run_folder", type=ANY_PATH, help="Write TREC files to this folder.")
@cache_option
def evaluate(
    name: str,
    data: Path,
    systems: str | None,
    vocabulary: str,
    dense: str | None,
    format_name: str | None,
    output: Path | None,
    as_json: bool,
    run_folder: Path | None,
    **options: Any,
) -> None:
    """Measure bm25v and other systems on a DATASET.

    DATASET is cub200, cars196, aircraft, pets, flowers102, dtd, food101, roxford5k or rparis6k, in
    the layout of its authors, or "folder": any folder of class folders, where each image is a query
    for the others of its class, or those in test/ for those in train/. Features are kept, so only
    the first run takes long.
    """
    from bm25v.research import datasets, tables
    from bm25v.research.evaluate import evaluate
    from bm25v.vocabulary import Vocabulary

    dataset = datasets.load(name, data)
    if run_folder:
        tables.check_trec(dataset)  # before hours of work
    if output and not output.parent.is_dir():
        raise InvalidOption(f"{output}: the folder {output.parent} does not exist: create it first")
    with progress_bar() as progress:
        result = evaluate(
            dataset,
            Vocabulary.load(vocabulary).with_dense(dense),
            systems=None if systems is None else split_list(systems),
            progress=progress,
            **options,
        )
    print_notes(result.problems)
    if run_folder:
        rankings = {name: system.rankings for name, system in result.systems.items()}
        tables.write_trec(run_folder, result.dataset, rankings)
    if output:
        result.save(output, format_name)

    def print_result() -> None:
        if format_name not in (None, "table"):
            echo_text(tables.FORMATS[format_name](result))
            return
        for line in tables.describe(result):
            echo_wrapped(line, style="dim")
        first, *others = tables.list_tables(result)
        print_grid(*first)
        for table in others:
            echo()
            print_grid(*table)

    if as_json or output is None:
        emit(result.to_dict, as_json, print_result)


@click.command("ablate")
@click.argument("axes", metavar="SETTING...", nargs=-1, required=True)
@dataset_options
@click.option(
    "--values", multiple=True, help="Separated by commas; once for each SETTING  [default: a range]"
)
@vocabulary_option
@click.option(
    "--vocabularies",
    multiple=True,
    help="For k, expansion and layer: a vocabulary trained with another value; give several.",
)
@_settings_options
@output_option("Draw a plot, as .png.")
@cache_option
@json_option
def ablate(
    axes: tuple[str, ...],
    dataset: "Dataset",
    values: tuple[str, ...],
    vocabulary: str,
    vocabularies: tuple[str, ...],
    settings: "RankingSettings",
    output: Path | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Evaluate several values of a SETTING.

    SETTING is k, expansion, layer, k_post, k_full, k_query, scoring, quantisation, k1, b,
    candidates, query, tf, pooling, stop or weight; several are combined. With --values, k encodes
    with the same SAE; to compare SAEs trained with another k, expansion or layer, give
    --vocabularies. Finished measurements are kept and not repeated.
    """
    from bm25v.research import plots
    from bm25v.research.ablate import ablate, plan_trials
    from bm25v.vocabulary import Vocabulary

    if len(values) not in (0, len(axes)):
        raise InvalidOption(
            f"--values was given {len(values)} times for {len(axes)} settings "
            f"({', '.join(axes)}): give it once per setting, or not at all"
        )
    chosen = [split_list(value) for value in values] or [[] for _ in axes]
    trials = plan_trials(
        dict(zip(axes, chosen, strict=True)),
        Vocabulary.load(vocabulary),
        settings,
        [Vocabulary.load(path) for text in vocabularies for path in split_list(text)],
    )
    if output:
        plots.check_path(output)  # before hours of work
        plots.ablation_values([trial.values for trial in trials])
    with progress_bar() as progress:
        result = ablate(dataset, trials, cache=cache, progress=progress)
    print_notes(result.dataset.problems)
    known = sum(not trial.is_new for trial in result.trials)
    if known:
        echo(f"{known} of {len(result.trials)} were measured before", err=True)
    if output:
        plots.draw_ablation(result, output)
    emit(result.to_dict, as_json, lambda: print_grid(*result.table()))


@click.command("report")
@dataset_options
@click.option(
    "-o",
    "--output",
    default="report",
    show_default=True,
    type=FOLDER,
    help="The folder for report.md, its plots, and report.json with all figures.",
)
@vocabulary_option
@_settings_options
@cache_option
@json_option
def report(
    dataset: "Dataset", output: Path, vocabulary: str, as_json: bool, **options: Any
) -> None:
    """Measure everything on a data set, and write Markdown with plots."""
    from bm25v.research import plots, report, tables
    from bm25v.vocabulary import Vocabulary

    make_folder(output)
    plots.check_path(output / "zipf.png")  # before hours of work
    with progress_bar() as progress:
        result = report.measure_report(
            dataset, Vocabulary.load(vocabulary), progress=progress, **options
        )
    report.write_report(result, output)
    print_notes(result.result.problems)

    def print_result() -> None:
        print_grid(*tables.comparison_table(result.result))
        echo(f"{display_path(str(output / report.TEXT))}: a report about {result.result.name}")
        echo(f"{display_path(str(output / report.FIGURES))}: its figures")

    emit(result.to_dict, as_json, print_result)
