"""Varies one setting, or several, and measures the effect of each value.

Of the SAE, only k can be varied without training. Finished trials are cached, so an interrupted run
continues where it stopped.
"""

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from bm25v import __version__
from bm25v.errors import InvalidOption
from bm25v.progress import Progress, no_progress
from bm25v.research import settings as choices
from bm25v.research.datasets import Dataset
from bm25v.research.features import DatasetFeatures, extract_features, load_or_compute
from bm25v.research.metrics import ranking_depth, score_queries
from bm25v.research.settings import RankingSettings
from bm25v.research.systems import FULL_BAG_SYSTEMS, SystemRunner, resolve_systems
from bm25v.research.tables import Cells, format_share
from bm25v.training.patches import Arrays
from bm25v.vocabulary import Vocabulary

_METRICS = ("R@1", "R@100", "mAP")  # of a table
_METRICS_OF_BM25V = ("R@1", "R@10", "R@100", "R@200", "mAP")
_BY_INDEX = ("bm25v", "two-stage")  # by the words of the index
_ALL_SYSTEMS = _BY_INDEX + FULL_BAG_SYSTEMS


class AblationAxis(NamedTuple):
    values: tuple[str, ...]  # the default values to try, as a person types them
    setting: str | None  # None: the vocabulary is varied
    systems: tuple[str, ...] = _ALL_SYSTEMS  # those that it affects


AXES = {
    "k": AblationAxis(("8", "16", "32", "64", "128"), None),
    "expansion": AblationAxis((), None),
    "layer": AblationAxis((), None),
    "k_post": AblationAxis(("8", "16", "32", "64", "128"), "k_post"),
    "k_full": AblationAxis(("64", "128", "256"), "k_full", FULL_BAG_SYSTEMS),
    "k_query": AblationAxis(("8", "16", "32", "64", "128"), "k_query"),
    "scoring": AblationAxis(get_args(choices.Scoring), "scoring", _BY_INDEX),
    "quantisation": AblationAxis(("on", "off"), "quantised", _BY_INDEX),
    "k1": AblationAxis(("0.5", "0.9", "1.2", "1.5", "2", "3", "5"), "k1"),
    "b": AblationAxis(("0", "0.25", "0.5", "0.75", "1"), "b"),
    "candidates": AblationAxis(
        ("50", "100", "200", "500", "1000"), "candidates", ("two-stage", *FULL_BAG_SYSTEMS)
    ),
    "query": AblationAxis(get_args(choices.Weighting), "query"),
    "tf": AblationAxis(get_args(choices.Transform), "tf", _BY_INDEX),
    "pooling": AblationAxis(get_args(choices.Pooling), "pooling"),
    "stop": AblationAxis(("0.05", "0.1", "0.2", "0.3", "0.5", "1"), "stop", _BY_INDEX),
    "weight": AblationAxis(("0", "0.5", "1", "1.5", "2", "3"), "weight", ("hybrid",)),
}


class Trial(NamedTuple):
    values: dict[str, str]  # by axis
    vocabulary: Vocabulary
    settings: RankingSettings


@dataclass(frozen=True)
class TrialResult:
    values: dict[str, str]
    metrics: dict[str, dict[str, float]]  # by system and metric
    words: float  # per image in the index, on average
    postings: float  # read per query, on average
    is_new: bool  # measured now, not read from the cache

    def to_dict(self) -> dict[str, Any]:
        sizes = {"image_words": self.words, "postings": self.postings}
        return {**self.values, **sizes, **self.metrics}


@dataclass(frozen=True)
class AblationResult:
    dataset: Dataset
    axes: tuple[str, ...]
    dense: dict[str, float]
    trials: list[TrialResult]

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.dataset.title,
            "axes": list(self.axes),
            "dense": self.dense,
            "trials": [trial.to_dict() for trial in self.trials],
        }

    def table(self) -> Cells:
        """Return the trials, named by their values, below a row for dense vectors."""
        columns = [
            (system, metric)
            for system, metrics in self.trials[0].metrics.items()
            for metric in metrics
            if "R@1" not in metrics
            or metric in (_METRICS_OF_BM25V if system == "bm25v" else _METRICS)
        ]
        names = [f"{system} {metric}" for system, metric in columns]
        dense = [format_share(self.dense[metric]) for _, metric in columns]
        rows = [["dense", "", "", *dense]]
        for trial in self.trials:
            metrics = [format_share(trial.metrics[system][metric]) for system, metric in columns]
            sizes = [f"{trial.words:.1f}", f"{trial.postings:,.0f}"]
            rows.append([", ".join(trial.values.values()), *sizes, *metrics])
        return [", ".join(self.axes), "words per image", "postings", *names], rows


def plan_trials(
    axes: Mapping[str, Sequence[str]],
    vocabulary: Vocabulary,
    settings: RankingSettings,
    vocabularies: Sequence[Vocabulary] = (),
) -> list[Trial]:
    """Return all combinations of the axes' values; an axis without values gets its default ones.

    >>> axes = {"k_post": ["16", "64"], "query": []}
    >>> trials = plan_trials(axes, Vocabulary.load("toy"), RankingSettings())
    >>> len(trials), trials[-1].values
    (8, {'k_post': '64', 'query': 'saturated'})
    """
    options = [_options(name, values, vocabulary, vocabularies) for name, values in axes.items()]
    by_vocabulary = [name for name in axes if AXES[name].setting is None]
    if len(by_vocabulary) > 1:
        names = " and ".join(by_vocabulary)
        raise InvalidOption(f"{names} cannot vary at once: choose one of them")
    if vocabularies and not by_vocabulary:
        raise InvalidOption("--vocabularies is for k, expansion and layer: use --vocabulary")
    trials = []
    for combination in itertools.product(*options):
        values, used, changed = {}, vocabulary, settings
        for name, (label, trained) in zip(axes, combination, strict=True):
            values[name], used = label, trained or used
            if setting := AXES[name].setting:
                changed = changed.with_value(setting, label)
        trials.append(Trial(values, used, changed))
    return trials


def _options(
    name: str, values: Sequence[str], vocabulary: Vocabulary, vocabularies: Sequence[Vocabulary]
) -> list[tuple[str, Vocabulary | None]]:
    if name not in AXES:
        raise InvalidOption(f"{name!r} cannot be varied; choose from {', '.join(AXES)}")
    if AXES[name].setting:
        return [(value, None) for value in values or AXES[name].values]
    if vocabularies:
        if values:
            raise InvalidOption(
                f"{name} takes its values from the vocabularies: leave out --values"
            )
        labels = [_trained_value(name, trained) for trained in vocabularies]
        is_unique = len(set(labels)) == len(labels)
        return [
            (label if is_unique else f"{label} ({trained.source})", trained)
            for label, trained in zip(labels, vocabularies, strict=True)
        ]
    if name != "k":
        raise InvalidOption(
            f"another {name} needs another SAE: train vocabularies with bm25v train, and give them "
            "with --vocabularies"
        )
    return [(value, _with_k(vocabulary, value)) for value in values or AXES[name].values]


def _trained_value(name: str, vocabulary: Vocabulary) -> str:
    if name == "k":
        return str(vocabulary.sae.k)
    if name == "expansion":
        return f"{vocabulary.n_words / vocabulary.sae.patch_dim:g}"
    _, _, layer = vocabulary.backbone_name.rpartition("#")
    return layer


def _with_k(vocabulary: Vocabulary, text: str) -> Vocabulary:
    """Return a vocabulary with the same weights and another number of words per patch."""
    if not text.isdecimal() or not 1 <= int(text) <= vocabulary.n_words:
        raise InvalidOption(f"k = {text!r}: it must be a number from 1 to {vocabulary.n_words:,}")
    k = int(text)
    if k == vocabulary.sae.k:
        return vocabulary
    fingerprint = f"{vocabulary.fingerprint}-k{k}"
    return replace(vocabulary, sae=replace(vocabulary.sae, k=k), fingerprint=fingerprint)


def ablate(
    dataset: Dataset | DatasetFeatures,
    trials: Sequence[Trial],
    *,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> AblationResult:
    """Measure all trials; those that were measured before are read from the cache."""
    axes = tuple(trials[0].values)
    affected = {system for name in axes for system in AXES[name].systems}
    if not all(trial.settings.full_bags for trial in trials):
        affected -= {*FULL_BAG_SYSTEMS}
    systems = [name for name in _ALL_SYSTEMS if name in affected]
    if not systems:
        raise InvalidOption(f"{' and '.join(axes)} changes only full bags: set full_bags=on")
    for trial in trials:
        resolve_systems(systems, trial.settings)  # fail before features take hours
    features_by_backbone: dict[str, DatasetFeatures] = {}
    for trial in trials:
        backbone = trial.vocabulary.features_fingerprint
        if backbone not in features_by_backbone:
            features_by_backbone[backbone] = extract_features(
                dataset, trial.vocabulary, cache=cache, progress=progress
            )
    first = next(iter(features_by_backbone.values()))
    dense = _measure(first, Trial({}, trials[0].vocabulary, RankingSettings()), ["dense"], progress)
    results = []
    for done, trial in enumerate(trials):
        progress(" ".join(trial.values.values()), done, len(trials))
        features = features_by_backbone[trial.vocabulary.features_fingerprint]
        results.append(_measure(features, trial, systems, progress))
    return AblationResult(first.dataset, axes, dense.metrics["dense"], results)


def _measure(
    features: DatasetFeatures, trial: Trial, systems: Sequence[str], progress: Progress
) -> TrialResult:
    def compute() -> Arrays:
        depth = ranking_depth(features.dataset)
        runner = SystemRunner(
            features, trial.vocabulary, trial.settings, depth=depth, progress=progress
        )
        means_sm = []
        for name in systems:
            (system,) = resolve_systems([name], trial.settings)
            metrics = score_queries(features.dataset, runner.run(system).rankings)
            means_sm.append([np.nanmean(values_q) for values_q in metrics.values()])
        sizes = [0.0, 0.0]
        if systems != ["dense"]:
            sizes = [runner.words.words_per_image, runner.words.postings_per_query]
        names = np.array(list(metrics))
        return {"names": names, "means": np.array(means_sm), "sizes": np.array(sizes)}

    path = features.cache / "trials" / f"{_trial_key(features, trial, systems)}.npz"
    is_new = not path.exists()
    arrays = load_or_compute(path, ("names", "means", "sizes"), compute)
    names, (words, postings) = arrays["names"].tolist(), arrays["sizes"].tolist()
    metrics = {
        system: dict(zip(names, means_m, strict=True))
        for system, means_m in zip(systems, arrays["means"].tolist(), strict=True)
    }
    return TrialResult(trial.values, metrics, words, postings, is_new)


def _trial_key(features: DatasetFeatures, trial: Trial, systems: Sequence[str]) -> str:
    dataset = features.dataset
    indices, own_rows = features.query_index_q.tolist(), dataset.own_rows.tolist()
    queries = [
        (index, row, query.label, [sorted(map(str, part)) for part in (query.truth or ())[1:]])
        for index, row, query in zip(indices, own_rows, dataset.queries, strict=True)
    ]
    facts = {
        "version": __version__,
        "features": features.key,
        "gallery": features.gallery_index_n.tolist(),
        "labels": [item.label for item in dataset.gallery],
        "queries": queries,
        "vocabulary": trial.vocabulary.fingerprint,
        "settings": {**vars(trial.settings), **trial.settings.bag_sizes(trial.vocabulary)},
        "systems": list(systems),
    }
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
