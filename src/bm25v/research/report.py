"""Measures everything on one data set, and writes a page and its numbers as JSON.

In: a data set and a vocabulary. Out: a `Report`, from one extraction of features. Not this module's
job: the HTML (`bm25v.pages`).
"""

import platform
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v import __version__
from bm25v.display import format_json
from bm25v.files import make_folder, replace_file
from bm25v.gallery.rows import RowArray
from bm25v.index.bm25 import DEFAULT_PARAMETERS
from bm25v.pages.evaluation_page import render_evaluation
from bm25v.progress import Progress, no_progress
from bm25v.research import cost, zipf
from bm25v.research.ablate import AblationResult, ablate, plan_trials
from bm25v.research.bags import BagTable
from bm25v.research.bench.search import time_systems
from bm25v.research.bench.workload import BenchQuery, Collection
from bm25v.research.cost import Growth, SystemCost, WordUsage
from bm25v.research.datasets import Dataset
from bm25v.research.evaluate import EvaluationResult, evaluate
from bm25v.research.features import extract_features
from bm25v.research.settings import RankingSettings, format_setting
from bm25v.research.systems import SYSTEMS, SystemRunner, resolve_systems
from bm25v.research.zipf import ZipfFit
from bm25v.threads import available_cpus
from bm25v.vocabulary import DEFAULT, Vocabulary
from bm25v.vocabulary.bag import quantise, word_bytes

PAGE, NUMBERS = "report.html", "report.json"
PROJECTIONS = (1_000_000, 100_000_000)

_VARIED = ("k_post", "k_query", "scoring", "k_full", "weight")

TIMED_SYSTEMS = ("first-stage", "two-stage", "words", "hybrid", "dense", "hnsw")
_TIMED_QUERIES = 200  # at most
_TIMED_CANDIDATES = 200
_ANN_LIMIT = 100_000  # images: an index of more would take hours to build


class SystemLatency(NamedTuple):
    """How long one query takes one system."""

    system: str
    median_ms: float
    p95_ms: float


@dataclass(frozen=True)
class Latencies:
    """How long searches take, on one thread, with encoded queries."""

    machine: str
    queries: int
    candidates: int  # of the first stage
    systems: tuple[SystemLatency, ...]


@dataclass(frozen=True)
class Report:
    """Everything that a report shows."""

    result: EvaluationResult
    ablations: tuple[AblationResult, ...]  # of one setting each
    zipf: ZipfFit
    usages: tuple[WordUsage, ...]  # of this gallery, then of larger ones
    growth: Growth
    dim: int  # of a dense vector
    bag_bytes: int  # per image on disk
    full_bag_bytes: int
    dense_bytes: int
    latencies: Latencies | None
    commands: tuple[str, ...]  # that reproduce the report
    version: str

    def cost_tables(self) -> list[list[SystemCost]]:
        """Return what each system costs, for each of the usages."""
        return [cost.cost_table(usage, dim=self.dim) for usage in self.usages]

    def expected_words(self) -> list[float]:
        """Return how many words are expected in any image, for each of the usages."""
        return [
            float(cost.expected_active_words(usage.images, usage.image_words, usage.vocabulary))
            for usage in self.usages
        ]

    def changed_settings(self) -> dict[str, str]:
        """Return the settings that are not the default ones, as a person types them."""
        changed = self.result.settings.non_default
        return {name: format_setting(value) for name, value in changed.items()}

    def setting(self, name: str) -> str:
        """Return the value of a setting as a person types it."""
        settings, vocabulary = self.result.settings, self.result.vocabulary
        defaults = {"k_full": vocabulary["k_full"], "query": settings.index_weighting}
        value = getattr(settings, name)
        return format_setting(defaults.get(name, vocabulary["k_post"]) if value is None else value)

    def compared(self) -> dict[str, dict[str, Any]]:
        """Return the paper's systems, ours and dense: whose they are, and relative to dense."""
        result = self.result
        return {
            name: {
                "owner": owner,
                "relative_to_dense": {
                    metric: result.relative_to_dense(name, metric) for metric in result.metrics
                },
            }
            for name, owner in result.compared_systems.items()
        }

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return {
            "version": self.version,
            **self.result.to_dict(),
            "compared": self.compared(),
            "ablations": {
                ablation.axes[0]: [trial.to_dict() for trial in ablation.trials]
                for ablation in self.ablations
            },
            "zipf": self.zipf.to_dict(),
            "cost": [
                {**usage.to_dict(), "systems": [line.to_dict() for line in lines]}
                for usage, lines in zip(self.usages, self.cost_tables(), strict=True)
            ],
            "growth": self.growth._asdict(),
            "bytes_on_disk": {
                "bags": self.bag_bytes,
                "full_bags": self.full_bag_bytes,
                "dense": self.dense_bytes,
            },
            "milliseconds": None if self.latencies is None else _milliseconds(self.latencies),
            "commands": list(self.commands),
        }


def _milliseconds(latencies: Latencies) -> dict[str, Any]:
    systems = {
        latency.system: {"median": latency.median_ms, "p95": latency.p95_ms}
        for latency in latencies.systems
    }
    return {**vars(latencies), "systems": systems}


def measure_report(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    settings: RankingSettings | None = None,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Report:
    """Measure everything that a report shows; only BM25 with the default k1 and b is timed."""
    settings = settings or RankingSettings()
    planned = [plan_trials({name: []}, vocabulary, settings) for name in _VARIED]
    resolve_systems(SYSTEMS, settings)  # fail before features take hours
    features = extract_features(dataset, vocabulary, cache=cache, progress=progress)
    result = evaluate(features, vocabulary, settings=settings, per_class=True, progress=progress)
    runner = SystemRunner(features, vocabulary, settings, depth=1, progress=progress)
    df_v, (n, dim) = runner.words.df_v, runner.vectors[0].shape
    full_rows, query_rows = runner.full_bags.rows, runner.full_bags.query_rows
    usage = replace(
        cost.count_usage(df_v, n, runner.words.queries()),
        full_bags=cost.count_full_usage(full_rows, df_v, query_rows),
    )
    ablations = [ablate(features, trials, progress=progress) for trials in planned]
    progress("timing", 0, 1)
    is_default = settings.fits_index and settings.parameters == DEFAULT_PARAMETERS
    return Report(
        result=result,
        ablations=tuple(ablations),
        zipf=zipf.fit_zipf(df_v, n),
        usages=(usage, *(usage.project(size) for size in PROJECTIONS if size > n)),
        growth=cost.measure_growth(df_v, n),
        dim=dim,
        bag_bytes=(word_bytes(vocabulary.n_words) + 2) * runner.words.gallery.words_nk.shape[1],
        full_bag_bytes=full_rows.dtype.itemsize,
        dense_bytes=runner.vectors[0].itemsize * dim,
        latencies=_time_searches(runner) if is_default else None,
        commands=tuple(_commands(dataset, vocabulary, settings)),
        version=__version__,
    )


def write_report(report: Report, folder: Path) -> None:
    """Write the page and its numbers into a folder."""
    make_folder(folder)
    replace_file(folder / PAGE, render_evaluation(report))
    replace_file(folder / NUMBERS, format_json(report.to_dict()) + "\n")


def _time_searches(runner: SystemRunner) -> Latencies:
    """Time bm25v, a scan of the dense vectors and HNSW with the data set's queries."""
    words, (dense_ne, dense_qe) = runner.words, runner.vectors
    weighted, full_bags = words.queries(), runner.full_bags
    chosen = np.unique(np.linspace(0, len(weighted) - 1, _TIMED_QUERIES).round().astype(int))
    queries = [
        BenchQuery(weighted[row], dense_qe[row], full_bags.queries[row]) for row in chosen.tolist()
    ]
    n_words = len(words.df_v)
    rows = _gallery_rows(words.gallery, n_words)
    gallery = Collection(rows, dense_ne, n_words, full_bags.rows)
    times = time_systems(
        gallery, queries, k=_TIMED_CANDIDATES, ann_limit=_ANN_LIMIT, only=TIMED_SYSTEMS
    )
    return Latencies(
        machine=f"{platform.machine()}, {available_cpus()} cores",
        queries=len(chosen),
        candidates=min(_TIMED_CANDIDATES, len(gallery)),
        systems=tuple(
            SystemLatency(name, times[name].median_ms, times[name].p95_ms)
            for name in TIMED_SYSTEMS
            if name in times
        ),
    )


def _gallery_rows(bags: BagTable, n_words: int) -> RowArray:
    """Return bags in the format of a gallery's files."""
    n, k = bags.words_nk.shape
    word_type = f"<u{word_bytes(n_words)}"
    rows = np.zeros(n, np.dtype([("words", word_type, (k,)), ("tf", "<u2", (k,))]))
    rows["words"], rows["tf"] = bags.words_nk, quantise(bags.tf_nk)
    return rows


def _commands(dataset: Dataset, vocabulary: Vocabulary, settings: RankingSettings) -> list[str]:
    """Return the commands that measure the same numbers."""
    data = f"--data {_quote(dataset.folder)}"
    split = f" --split {_quote(dataset.split)}" if dataset.split else ""
    words = "" if vocabulary.source == DEFAULT else f" --vocabulary {_quote(vocabulary.source)}"
    changed = settings.non_default
    if settings.k_post == vocabulary.k_post:
        del changed["k_post"]
    options = "".join(f" --set {name}={format_setting(value)}" for name, value in changed.items())
    kind = "" if dataset.name == "folder" else f" --dataset {dataset.name}"
    commands = [
        f"bm25v report {dataset.name} {data}{split}{words}{options}",
        f"bm25v evaluate {dataset.name} {data}{split}{words}{options}",
        *(f"bm25v ablate {name} {data}{kind}{split}{words}{options}" for name in _VARIED),
    ]
    if not dataset.leave_one_out or changed:  # no gallery on disk has just these images and words
        return commands
    gallery = _quote(f"{dataset.title}.bm25v")
    projections = "".join(f" --project {size}" for size in PROJECTIONS)
    return [
        *commands,
        f"bm25v index {_quote(dataset.folder)} -g {gallery}{words}",
        f"bm25v zipf -g {gallery}",
        f"bm25v cost -g {gallery}{projections}",
        f"bm25v bench search -g {gallery}",
    ]


def _quote(name: str | Path) -> str:
    return shlex.quote(str(name))
