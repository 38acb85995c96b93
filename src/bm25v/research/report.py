"""Measures everything on one data set, and writes it as Markdown with plots, and as JSON."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bm25v import __version__
from bm25v.display import format_json
from bm25v.files import make_folder, replace_file
from bm25v.progress import Progress, no_progress
from bm25v.research import cost, plots, tables, zipf
from bm25v.research.ablate import AXES, AblationResult, ablate, plan_trials
from bm25v.research.cost import Growth, WordUsage
from bm25v.research.datasets import Dataset
from bm25v.research.evaluate import EvaluationResult, evaluate
from bm25v.research.features import extract_features
from bm25v.research.settings import RankingSettings, format_setting
from bm25v.research.systems import FULL_BAG_SYSTEMS, SystemRunner, default_systems, resolve_systems
from bm25v.research.tables import markdown_table
from bm25v.research.zipf import ZipfFit
from bm25v.vocabulary import DEFAULT, Vocabulary

TEXT, FIGURES = "report.md", "report.json"
PROJECTIONS = (1_000_000, 100_000_000)

_VARIED = {
    "k_post": "How many words of an image are in the index",
    "k_query": "How many words of the query are used",
    "scoring": "How words are compared: by BM25, or in other ways",
    "k_full": "How many words a full bag has, which words and hybrid order by",
    "weight": "How much words count in hybrid, beside the cosine",
}


@dataclass(frozen=True)
class Report:
    result: EvaluationResult
    ablations: tuple[AblationResult, ...]  # of one setting each
    zipf: ZipfFit
    usages: tuple[WordUsage, ...]  # of this gallery, then of larger ones
    growth: Growth
    dim: int  # of a dense vector
    commands: tuple[str, ...]  # that reproduce the report

    def to_dict(self) -> dict[str, Any]:
        return {
            "version": __version__,
            **self.result.to_dict(),
            "ablations": {
                ablation.axes[0]: [trial.to_dict() for trial in ablation.trials]
                for ablation in self.ablations
            },
            "zipf": self.zipf.to_dict(),
            "cost": [usage.to_dict(self.dim) for usage in self.usages],
            "growth": self.growth._asdict(),
            "commands": list(self.commands),
        }


def measure_report(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    settings: RankingSettings | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Measure everything that a report shows, from one extraction of features."""
    settings = settings or RankingSettings()
    varied = [
        name
        for name in _VARIED
        if settings.full_bags or not {*AXES[name].systems} <= {*FULL_BAG_SYSTEMS}
    ]
    planned = [plan_trials({name: []}, vocabulary, settings) for name in varied]
    resolve_systems(default_systems(settings), settings)  # fail before features take hours
    features = extract_features(dataset, vocabulary, cache=cache, progress=progress)
    result = evaluate(features, vocabulary, settings=settings, per_class=True, progress=progress)
    runner = SystemRunner(features, vocabulary, settings, depth=1, progress=progress)
    df_v, (n, dim) = runner.words.df_v, runner.vectors[0].shape
    full_usage = None
    if settings.full_bags:
        full_usage = cost.count_full_usage(runner.full_bags.rows, df_v, runner.full_bags.query_rows)
    usage = cost.count_usage(df_v, n, runner.words.queries(), full_usage)
    return Report(
        result=result,
        ablations=tuple(ablate(features, trials, progress=progress) for trials in planned),
        zipf=zipf.fit_zipf(df_v, n),
        usages=(usage, *(usage.project(size) for size in PROJECTIONS if size > n)),
        growth=cost.measure_growth(df_v, n),
        dim=dim,
        commands=tuple(_list_commands(dataset, vocabulary, settings, varied)),
    )


def write_report(report: Report, folder: Path) -> None:
    """Write report.md, its plots, and all figures as report.json."""
    make_folder(folder)
    title = report.result.name
    if any(metric.startswith("R@") for metric in report.result.metrics):
        plots.draw_recall(report.result, folder / "recall.png")
    for ablation in report.ablations:
        if _is_numeric(ablation):
            plots.draw_ablation(ablation, folder / f"{ablation.axes[0]}.png")
    plots.draw_zipf(report.zipf, f"Images per word: {title}", folder / "zipf.png")
    plots.draw_growth(report.growth, f"Words in use: {title}", folder / "growth.png")
    replace_file(folder / TEXT, "\n\n".join(_write_parts(report)) + "\n")
    replace_file(folder / FIGURES, format_json(report.to_dict()) + "\n")


def _write_parts(report: Report) -> Iterator[str]:
    result = report.result
    yield f"# {result.name}"
    yield tables.to_markdown(result).rstrip()
    if any(metric.startswith("R@") for metric in result.metrics):
        yield "![Share of queries with their class among the first K hits](recall.png)"
    yield "The paper's systems, ours and dense vectors:"
    yield markdown_table(*tables.comparison_table(result))
    yield "## What settings change"
    for ablation in report.ablations:
        (axis,) = ablation.axes
        value = getattr(result.settings, axis)
        if value is None:  # the vocabulary decides
            value = result.vocabulary["k_full" if axis == "k_full" else "k_post"]
        yield f"### {axis}"
        yield f"{_VARIED[axis]}. Here it is {format_setting(value)}."
        yield markdown_table(*ablation.table())
        if _is_numeric(ablation):
            yield f"![Metrics by {axis}]({axis}.png)"
    yield "## How often words occur"
    yield (
        "α and R² are those of a power law. Head: words in over half of the images, tail: in less "
        "than a tenth; all shares are of the active words, those in any image."
    )
    yield markdown_table(*zipf.zipf_table({result.name: report.zipf}))
    yield "![Images with each word, from frequent to rare](zipf.png)"
    yield "![Words in use as the gallery grows](growth.png)"
    yield "## What a search costs"
    for usage in report.usages:
        yield f"{usage.n_images:,} images, {usage.active:,.0f} words in use:"
        yield markdown_table(*usage.table(report.dim))
    yield "## How to measure this again"
    yield "\n".join(["```", *report.commands, "```"])


def _is_numeric(ablation: AblationResult) -> bool:
    (axis,) = ablation.axes
    return all(trial.values[axis].replace(".", "", 1).isdecimal() for trial in ablation.trials)


def _list_commands(
    dataset: Dataset, vocabulary: Vocabulary, settings: RankingSettings, varied: Sequence[str]
) -> Iterator[str]:
    options = f" --data {shlex.quote(str(dataset.folder))}"
    if vocabulary.source != DEFAULT:
        options += f" --vocabulary {shlex.quote(str(vocabulary.source))}"
    changed = settings.non_default
    if settings.k_post == vocabulary.k_post:
        del changed["k_post"]
    for name, value in changed.items():
        options += f" --set {name}={format_setting(value)}"
    dataset_option = "" if dataset.name == "folder" else f" --dataset {dataset.name}"
    yield f"bm25v evaluate {dataset.name}{options}"
    yield f"bm25v evaluate report{dataset_option}{options}"
    for name in varied:
        yield f"bm25v evaluate ablate {name}{dataset_option}{options}"
