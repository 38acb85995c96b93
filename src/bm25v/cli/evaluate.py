"""`bm25v evaluate`, with `evaluate regions`, `faithfulness`, `no-match` and `text`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.cli.options import (
    MODES,
    PathType,
    dense_option,
    json_option,
    split_list,
    vocabulary_option,
)
from bm25v.cli.printing import (
    echo,
    echo_text,
    echo_wrapped,
    make_columns,
    print_grid,
    print_json,
    print_problems,
    print_table,
)
from bm25v.display import display_path, format_json
from bm25v.errors import WrongUse
from bm25v.files import replace_file

if TYPE_CHECKING:
    from bm25v.research.evaluate import EvaluationResult
    from bm25v.research.settings import RankingSettings
    from bm25v.research.significance import Interval
    from bm25v.search import Mode

_SUFFIX_FORMATS = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}

cache_option = click.option(
    "--cache",
    type=PathType(path_type=Path, file_okay=False),
    help="Keep features in this folder  [default: the user's cache folder]",
)
data_option = click.option(
    "--data",
    required=True,
    type=PathType(path_type=Path),
    help="The data set's folder, or the folder that holds it.",
)
dataset_option = click.option(
    "--dataset", "name", default="folder", show_default=True, help="Which data set is in --data."
)
split_option = click.option(
    "--split",
    type=PathType(path_type=Path),
    help='For "folder": a file with lines "path<TAB>gallery|query".',
)
preset_option = click.option("--preset", default="default", type=click.Choice(["default", "paper"]))
set_option = click.option(
    "--set", "changes", multiple=True, metavar="NAME=VALUE", help="Change a setting: k_post=64."
)
seed_option = click.option("--seed", default=0, show_default=True, type=click.IntRange(0))
_json_file_option = click.option(
    "--json", "json_path", metavar="FILE", help="Write JSON to this file; - prints it."
)


def read_settings(preset: str, changes: tuple[str, ...]) -> "RankingSettings":
    """Return a preset with changes such as "k_post=64"."""
    from bm25v.research.settings import PRESETS

    settings = PRESETS[preset]
    for change in changes:
        name, equals, value = change.partition("=")
        if not equals:
            raise WrongUse(f"--set {change}: write it as NAME=VALUE, such as --set k_post=64")
        settings = settings.with_value(name.strip(), value.strip())
    return settings


class _Evaluate(click.Command):
    """The command; in place of a DATASET it also accepts the name of a subcommand."""

    @property
    def commands(self) -> dict[str, click.Command]:
        """The subcommands, as a group has them."""
        return {
            "regions": regions,
            "faithfulness": faithfulness,
            "no-match": no_match,
            "text": text,
        }

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


@click.command("evaluate", cls=_Evaluate)
@click.argument("name", metavar="DATASET")
@data_option
@split_option
@click.option("--systems", help="Some of them, separated by commas  [default: all]")
@vocabulary_option
@dense_option
@preset_option
@set_option
@click.option("--per-class", is_flag=True, help="Also show every class.")
@click.option("--format", "format_name", type=click.Choice(["table", "markdown", "csv", "latex"]))
@click.option("-o", "--output", type=PathType(path_type=Path), help="Write the table to this file.")
@_json_file_option
@click.option(
    "--run",
    "run_folder",
    type=PathType(path_type=Path),
    help="Write TREC files to this folder.",
)
@cache_option
def evaluate(
    name: str,
    data: Path,
    split: Path | None,
    systems: str | None,
    vocabulary: str,
    dense: str | None,
    preset: str,
    changes: tuple[str, ...],
    per_class: bool,
    format_name: str | None,
    output: Path | None,
    json_path: str | None,
    run_folder: Path | None,
    cache: Path | None,
) -> None:
    """Measure bm25v and other systems on a DATASET.

    DATASET is cub200, cars196, aircraft, pets, flowers102, dtd, food101, roxford5k or rparis6k, in
    the layout of its authors, or "folder": any folder of class folders, where each image is a query
    for the others of its class. Features are kept, so only the first run takes long.

    Subcommands with a --help of their own:

    \b
    bm25v evaluate regions       searches by a part of an image
    bm25v evaluate text          searches by the names of classes
    bm25v evaluate no-match      searches that have no good match
    bm25v evaluate faithfulness  explanations
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, trec
    from bm25v.research.evaluate import evaluate
    from bm25v.research.systems import SYSTEMS, resolve_systems
    from bm25v.vocabulary import Vocabulary

    settings = read_settings(preset, changes)
    chosen = resolve_systems(SYSTEMS if systems is None else split_list(systems), settings)
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = evaluate(
            dataset,
            Vocabulary.load(vocabulary).with_dense(dense),
            settings=settings,
            systems=chosen,
            cache=cache,
            per_class=per_class,
            progress=progress,
        )
    print_problems(result.problems)
    if run_folder:
        rankings = {name: system.rankings for name, system in result.systems.items()}
        trec.write_trec(run_folder, result.dataset, rankings)
    _print_evaluation(result, format_name, output, json_path)


def _print_evaluation(
    result: "EvaluationResult", format_name: str | None, output: Path | None, json_path: str | None
) -> None:
    from bm25v.research import tables

    if json_path == "-":
        echo_text(tables.to_json(result))
    elif json_path:
        replace_file(Path(json_path), tables.to_json(result))
    if output:
        chosen = format_name or _SUFFIX_FORMATS.get(output.suffix.lower(), "table")
        replace_file(output, tables.FORMATS[chosen](result))
    if json_path == "-" or output:
        return
    if format_name not in (None, "table"):
        echo_text(tables.FORMATS[format_name](result))
        return
    for line in tables.describe(result):
        echo_wrapped(line, style="dim")
    print_grid(*tables.result_table(result))
    if any(system.classes for system in result.systems.values()):
        echo()
        print_grid(*tables.class_table(result))


@click.command("regions")
@data_option
@dataset_option
@split_option
@click.option("--pairs", default=100, show_default=True, type=click.IntRange(1))
@click.option("--k", default=5, show_default=True, type=click.IntRange(1), help="Hits that count.")
@click.option("--mode", type=click.Choice(MODES))
@seed_option
@vocabulary_option
@json_option
def regions(
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

    Images of different classes are put side by side in pairs. All other images are searched with
    the whole pair and with a box around either image. A search is right if one of its first K hits
    has the class of that image.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets
    from bm25v.research.region_recall import measure_region_recall

    dataset = datasets.load(name, data, split=split)
    print_problems(dataset.problems)
    with progress_bar() as progress:
        result = measure_region_recall(
            dataset,
            vocabulary=vocabulary,
            pairs=pairs,
            k=k,
            mode=mode,
            seed=seed,
            progress=progress,
        )
    if as_json:
        counts = {"pairs": result.pairs, "k": result.k, "mode": result.mode, "seed": seed}
        intervals = {"whole": result.whole, "box": result.box, "gain": result.gain}
        print_json(counts | {kind: value._asdict() for kind, value in intervals.items()})
        return
    echo(f"{result.pairs} pairs, {result.mode}; the right class among the first {result.k} hits:")
    echo(f"whole pair      {_format(result.whole, '.1%')}")
    echo(f"box around one  {_format(result.box, '.1%')}")
    echo(f"a box is right {_format(result.gain, '.2f')} times as often")


@click.command("no-match")
@click.option(
    "--in",
    "inside",
    required=True,
    type=PathType(path_type=Path),
    help="A folder of class folders: half of each class becomes the gallery.",
)
@click.option(
    "--out",
    "outside",
    required=True,
    multiple=True,
    type=PathType(path_type=Path),
    help="A folder of images of other things.",
)
@vocabulary_option
@json_option
def no_match(inside: Path, outside: tuple[Path, ...], vocabulary: str, as_json: bool) -> None:
    """Measure how often "No good match" is right.

    Half of the images of each class in --in are indexed. The others are searched for: a good match
    exists. Those in --out are searched for, too: there is none.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research.no_match import measure_no_match

    with progress_bar() as progress:
        result = measure_no_match(inside, outside, vocabulary=vocabulary, progress=progress)
    if as_json:
        print_json(result.to_dict())
        return
    echo(f"{result.n_images:,} images in the gallery; the best hit is")
    rows = [
        (name, f"{counts.n:,}", *(f"{counts.share(s):.1%}" for s in ("strong", "fair", "weak")))
        for name, counts in result.counts.items()
    ]
    print_table(make_columns(("queries", "n", "strong", "fair", "weak"), rows, texts=("queries",)))


@click.command("text")
@click.option(
    "--data",
    required=True,
    type=PathType(path_type=Path),
    help="A folder of class folders; the name of each is a text: great_pyrenees.",
)
@vocabulary_option
@json_option
def text(data: Path, vocabulary: str, as_json: bool) -> None:
    """Measure searches by text: does the name of a class find its images?

    P@10 and P@100 are the right ones among the first 10 and 100 hits, or among as many as the class
    has images. Classes whose name is not fully understood are counted apart.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research.text_search import PRECISIONS, measure_text, summarize

    with progress_bar() as progress:
        result = measure_text(data, vocabulary=vocabulary, progress=progress)
    if as_json:
        print_json(result.to_dict())
        return
    figures = [f"P@{k}" for k in PRECISIONS] + ["mAP"]
    rows = [
        (
            entry.name,
            f"{entry.n_images:,}",
            *(f"{entry.precision[k]:.3f}" for k in PRECISIONS),
            f"{entry.average_precision:.3f}",
            entry.strength or "",
            ", ".join(entry.understood) or "nothing",
        )
        for entry in result.classes
    ]
    header = ("class", "n", *figures[:-1], "AP", "best hit", "understood as")
    print_table(make_columns(header, rows, texts=("class", "best hit", "understood as")))
    for title, is_known in (("names understood", True), ("names not fully understood", False)):
        means = summarize(result.select(is_known=is_known))
        shown = ", ".join(f"{key} {means[key]:.3f}" for key in figures)
        echo(f"{title}: {means['classes']:.0f} classes" + (f", {shown}" if is_known else ""))


def _format(interval: "Interval", form: str) -> str:
    return f"{interval.mean:{form}} ({interval.low:{form}} to {interval.high:{form}})"


@click.command("faithfulness")
@data_option
@dataset_option
@split_option
@click.option("--pairs", default=200, show_default=True, type=click.IntRange(2))
@click.option(
    "--hide",
    "masks",
    multiple=True,
    default=["grey"],
    show_default=True,
    type=click.Choice(["grey", "blur"]),
    help="How patches are masked; give it twice for both, which takes twice as long.",
)
@seed_option
@vocabulary_option
@click.option("--format", "format_name", default="table", type=click.Choice(["table", "markdown"]))
@click.option("-o", "--output", type=PathType(path_type=Path), help="Draw the curves, as .png.")
@_json_file_option
@cache_option
def faithfulness(
    data: Path,
    name: str,
    split: Path | None,
    pairs: int,
    masks: tuple[str, ...],
    seed: int,
    vocabulary: str,
    format_name: str,
    output: Path | None,
    json_path: str | None,
    cache: Path | None,
) -> None:
    """Measure whether scores depend on the patches that explanations show.

    For pairs of a query and one of its ten best hits by BM25, patches of the hit are masked and the
    image is scored again (deletion). The order of the patches is that of the explanation
    ("explanation"), of their similarity to the whole query ("dense"), from the middle outwards
    ("middle"), or random. Insertion is the reverse: everything is masked, and patches are revealed
    in that order.
    """
    from bm25v.cli.progress import progress_bar
    from bm25v.research import datasets, faithfulness_results, plots
    from bm25v.research.faithfulness import measure_faithfulness
    from bm25v.vocabulary import Vocabulary

    if output:
        plots.check_path(output)  # before minutes of work
    dataset = datasets.load(name, data, split=split)
    with progress_bar() as progress:
        result = measure_faithfulness(
            dataset,
            Vocabulary.load(vocabulary),
            pairs=pairs,
            masks=tuple(mask for mask in faithfulness_results.MASKS if mask in masks),
            seed=seed,
            cache=cache,
            progress=progress,
        )
    print_problems(result.problems)
    if output:
        plots.draw_faithfulness(result, output)
    if json_path:
        if json_path == "-":
            print_json(result.to_dict())
            return
        replace_file(Path(json_path), format_json(result.to_dict()) + "\n")
    if format_name == "markdown":
        echo_text(faithfulness_results.to_markdown(result))
        return
    for line in faithfulness_results.describe(result):
        echo_wrapped(line, style="dim")
    for mask, measured in result.masks.items():
        for table in faithfulness_results.mask_tables(mask, measured):
            echo()
            print_grid(*table)
        echo_wrapped(faithfulness_results.describe_word(measured))
    if output:
        echo(f"{display_path(str(output))}: the curves")
