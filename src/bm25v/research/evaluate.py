"""Measures systems on a data set: R@K and mAP with confidence intervals, compared with dense."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bm25v.errors import EvaluationError
from bm25v.files import replace_file
from bm25v.index.searcher import Ranked
from bm25v.progress import Progress, no_progress
from bm25v.research import tables
from bm25v.research.datasets import Dataset
from bm25v.research.datasets import load as load_dataset
from bm25v.research.features import DatasetFeatures, extract_features
from bm25v.research.metrics import (
    RECALL_KS,
    Comparison,
    Interval,
    QueryMetrics,
    compare,
    confidence_intervals,
    ranking_depth,
    score_queries,
)
from bm25v.research.settings import RankingSettings
from bm25v.research.systems import SystemRunner, default_systems, resolve_systems
from bm25v.research.systems.vectors import MIN_PQ_VECTORS
from bm25v.vocabulary import DEFAULT, Vocabulary

_UNDEFINED = Interval(math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class SystemResult:
    description: str  # how it was set up
    metrics: dict[str, Interval]
    against_dense: dict[str, Comparison]  # by metric; empty for dense itself, and without it
    classes: dict[str, dict[str, float]]  # empty unless per_class
    rankings: Sequence[Ranked] = field(repr=False, default=())

    def to_dict(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: metric.mean for name, metric in self.metrics.items()}
        values["ci"] = {name: [metric.low, metric.high] for name, metric in self.metrics.items()}
        if self.against_dense:
            values["against_dense"] = {
                name: comparison._asdict() for name, comparison in self.against_dense.items()
            }
        if self.classes:
            values["classes"] = self.classes
        return {**values, "about": self.description}


@dataclass(frozen=True)
class EvaluationResult:
    dataset: Dataset
    problems: list[str]
    vocabulary: dict[str, Any]
    settings: RankingSettings
    systems: dict[str, SystemResult]

    @property
    def name(self) -> str:
        return self.dataset.title

    @property
    def unanswerable(self) -> int:
        """How many queries have no relevant image in the gallery; they count as missed."""
        return len(self.dataset.unanswerable)

    @property
    def metrics(self) -> list[str]:
        return list(next(iter(self.systems.values())).metrics)

    def __str__(self) -> str:
        return tables.to_text(self)

    def save(self, path: str | os.PathLike[str], format_name: str | None = None) -> None:
        """Write the table; the suffix .md, .csv, .tex or .json decides the format, else text."""
        chosen = format_name or tables.SUFFIXES.get(Path(path).suffix.lower(), "table")
        replace_file(Path(path), tables.FORMATS[chosen](self))

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.name,
            "queries": len(self.dataset.queries),
            "gallery": len(self.dataset.gallery),
            "systems": {name: system.to_dict() for name, system in self.systems.items()},
            "protocol": self.dataset.protocol,
            "unanswerable": self.unanswerable,
            "problems": self.problems,
            "vocabulary": self.vocabulary,
            "settings": {
                **vars(self.settings),
                "k_post": self.vocabulary["k_post"],
                "k_full": self.vocabulary["k_full"],
            },
        }


def evaluate(
    data: str | os.PathLike[str] | Dataset | DatasetFeatures,
    vocabulary: str | os.PathLike[str] | Vocabulary = DEFAULT,
    *,
    settings: RankingSettings | None = None,
    systems: Sequence[str] | None = None,
    cache: Path | None = None,
    per_class: bool = False,
    progress: Progress = no_progress,
) -> EvaluationResult:
    """Measure systems on a data set: a folder of class folders, or what `datasets.load` returns.

    Features are read from the cache, or extracted and cached. ROxford5k and RParis6k are judged by
    the revisited protocol, all other data sets by R@K and the mAP of the first 200 images. The
    result prints as a table, and can be saved as Markdown, CSV, LaTeX and JSON.
    """
    if isinstance(data, str | os.PathLike):
        data = load_dataset("folder", Path(data))
    if not isinstance(vocabulary, Vocabulary):
        vocabulary = Vocabulary.load(vocabulary)
    settings = settings or RankingSettings()
    if systems is None:
        systems = default_systems(settings)
    names = resolve_systems(systems, settings)
    features = extract_features(data, vocabulary, cache=cache, progress=progress)
    problems = [*features.dataset.problems, *_too_small(features.dataset)]
    n_images = len(features.dataset.gallery)
    if "ivfpq" in names and n_images < MIN_PQ_VECTORS:
        reason = f"ivfpq cannot be trained on {n_images:,} images: it needs {MIN_PQ_VECTORS:,}"
        names.remove("ivfpq")
        if not names:
            raise EvaluationError(reason)
        problems.append(f"{reason}, and is left out")
    depth = ranking_depth(features.dataset)
    runner = SystemRunner(features, vocabulary, settings, depth=depth, progress=progress)
    outputs, scores = {}, {}
    for done, name in enumerate(names):
        progress(name, done, len(names))
        outputs[name] = runner.run(name)
        scores[name] = score_queries(features.dataset, outputs[name].rankings)
    intervals = _intervals(scores)
    return EvaluationResult(
        dataset=features.dataset,
        problems=problems,
        vocabulary=describe_vocabulary(vocabulary, settings),
        settings=settings,
        systems={
            name: SystemResult(
                description=output.description,
                metrics=intervals[name],
                against_dense=_compare_with_dense(scores, name),
                classes=_classes(features.dataset, scores[name]) if per_class else {},
                rankings=output.rankings,
            )
            for name, output in outputs.items()
        },
    )


def _intervals(scores: Mapping[str, QueryMetrics]) -> dict[str, dict[str, Interval]]:
    """Return means and intervals by system and metric, from the same resampled queries."""
    # Metrics that leave out the same queries are resampled together.
    groups: dict[bytes, list[tuple[str, str]]] = {}
    for system, metrics in scores.items():
        for metric, values_q in metrics.items():
            groups.setdefault(np.isnan(values_q).tobytes(), []).append((system, metric))
    intervals = {system: dict.fromkeys(metrics, _UNDEFINED) for system, metrics in scores.items()}
    for columns in groups.values():
        values_qm = np.stack([scores[system][metric] for system, metric in columns], axis=1)
        values_qm = values_qm[~np.isnan(values_qm[:, 0])]
        if len(values_qm):
            group = confidence_intervals(values_qm)
            for (system, metric), interval in zip(columns, group, strict=True):
                intervals[system][metric] = interval
    return intervals


def _compare_with_dense(scores: Mapping[str, QueryMetrics], system: str) -> dict[str, Comparison]:
    if system == "dense" or "dense" not in scores:
        return {}
    comparisons = {}
    for metric, values_q in scores[system].items():
        counts_q = ~np.isnan(values_q)
        if counts_q.any():
            comparisons[metric] = compare(values_q[counts_q], scores["dense"][metric][counts_q])
    return comparisons


def _classes(dataset: Dataset, metrics: QueryMetrics) -> dict[str, dict[str, float]]:
    if dataset.is_revisited:
        return {}
    labels = np.array([query.label for query in dataset.queries])
    classes = {}
    for label in sorted(set(labels.tolist())):
        mask_q = labels == label
        means = {name: float(values_q[mask_q].mean()) for name, values_q in metrics.items()}
        classes[label] = {"queries": int(mask_q.sum()), **means}
    return classes


def _too_small(dataset: Dataset) -> list[str]:
    """Name the metrics R@K that a gallery is too small for."""
    others = len(dataset.gallery) - int((dataset.own_rows >= 0).all())
    metrics = [f"R@{k}" for k in RECALL_KS if k > others]
    if not metrics or dataset.is_revisited:
        return []
    return [f"{', '.join(metrics)} cover the whole gallery: it has only {others:,} images to find"]


def describe_vocabulary(vocabulary: Vocabulary, settings: RankingSettings) -> dict[str, Any]:
    return {
        "name": vocabulary.name,
        "fingerprint": vocabulary.fingerprint,
        "backbone": vocabulary.backbone.name,
        "words": vocabulary.n_words,
        "k": vocabulary.sae.k,
        **settings.bag_sizes(vocabulary),
        "learnt_from": str(vocabulary.report_section("data").get("about") or "not stated"),
    }
