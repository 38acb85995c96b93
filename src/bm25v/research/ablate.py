"""Varies one setting, or several, and measures the effect of each value.

Of the SAE, only k can be varied without training. Finished trials are cached, so an interrupted run
continues where it stopped.
"""

import hashlib
import itertools
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np

from bm25v import __version__
from bm25v.errors import EvaluationError, InvalidOption
from bm25v.files import make_folder
from bm25v.progress import Progress, no_progress
from bm25v.research import settings as choices
from bm25v.research.datasets import Dataset
from bm25v.research.evaluate import ranking_depth, score_queries
from bm25v.research.features import DatasetFeatures, extract_features
from bm25v.research.settings import RankingSettings
from bm25v.research.systems import FULL_BAG_SYSTEMS, SystemRunner, resolve_systems
from bm25v.vocabulary import Vocabulary

_FORMAT = 3
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
        trial = Trial({}, vocabulary, settings)
        for name, (label, chosen) in zip(axes, combination, strict=True):
            values, setting = {**trial.values, name: label}, AXES[name].setting
            changed = trial.settings.with_value(setting, label) if setting else trial.settings
            trial = Trial(values, chosen or trial.vocabulary, changed)
        trials.append(trial)
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
    trial_cache = TrialCache(first.cache / "cells.jsonl")
    dense_trial = Trial({}, trials[0].vocabulary, RankingSettings())
    dense = _measure(trial_cache, first, dense_trial, ["dense"], progress)
    results = []
    for done, trial in enumerate(trials):
        progress(" ".join(trial.values.values()), done, len(trials))
        features = features_by_backbone[trial.vocabulary.features_fingerprint]
        results.append(_measure(trial_cache, features, trial, systems, progress))
    return AblationResult(first.dataset, axes, dense.metrics["dense"], results)


def _measure(
    cache: "TrialCache",
    features: DatasetFeatures,
    trial: Trial,
    systems: Sequence[str],
    progress: Progress,
) -> TrialResult:
    key = _trial_key(features, trial, systems)
    record = cache.get(key)
    is_new = record is None
    if record is None:
        depth = ranking_depth(features.dataset)
        runner = SystemRunner(
            features, trial.vocabulary, trial.settings, depth=depth, progress=progress
        )
        figures = {}
        for system in systems:
            (name,) = resolve_systems([system], trial.settings)
            scores = score_queries(features, runner.run(name).rankings)
            figures[system] = {
                metric: float(np.nanmean(values_q)) for metric, values_q in scores.metrics.items()
            }
        is_dense = systems == ["dense"]
        record = {
            "figures": figures,
            "words": 0.0 if is_dense else runner.words.words_per_image,
            "postings": 0.0 if is_dense else runner.words.postings_per_query,
        }
        cache.add(key, record)
    return TrialResult(trial.values, record["figures"], record["words"], record["postings"], is_new)


def _trial_key(features: DatasetFeatures, trial: Trial, systems: Sequence[str]) -> str:
    dataset = features.dataset
    indices, own_rows = features.query_index_q.tolist(), dataset.own_rows.tolist()
    queries = [
        (index, row, query.label, [sorted(map(str, part)) for part in (query.truth or ())[1:]])
        for index, row, query in zip(indices, own_rows, dataset.queries, strict=True)
    ]
    facts = {
        "format": _FORMAT,
        "version": __version__,
        "features": features.key,
        "gallery": features.gallery_index_n.tolist(),
        "labels": [item.label for item in dataset.gallery],
        "queries": queries,
        "vocabulary": trial.vocabulary.fingerprint,
        "settings": {
            **vars(trial.settings),
            "k_post": trial.settings.k_post or trial.vocabulary.k_post,
            "k_full": trial.settings.k_full or trial.vocabulary.full_bag_words,
        },
        "systems": list(systems),
    }
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


class TrialCache:
    """Measured trials by key, one JSON line each; incomplete lines, as after a crash, are ignored.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "cells.jsonl"
    >>> TrialCache(path).add("k1", {"R@1": 0.5})
    >>> TrialCache(path).get("k1"), TrialCache(path).get("k2")
    ({'R@1': 0.5}, None)
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: dict[str, dict[str, Any]] = {}
        content = path.read_bytes() if path.is_file() else b""
        self._ends_incomplete = bool(content) and not content.endswith(b"\n")
        for line in content.split(b"\n"):
            try:
                entry = json.loads(line)
                self._records[entry["key"]] = entry["record"]
            except (ValueError, TypeError, KeyError):
                continue

    def get(self, key: str) -> dict[str, Any] | None:
        return self._records.get(key)

    def add(self, key: str, record: dict[str, Any]) -> None:
        """Append a record: one synced write at the end of the file."""
        line = json.dumps({"key": key, "record": record}).encode() + b"\n"
        try:
            make_folder(self._path.parent)
            with self._path.open("ab") as file:
                file.write(b"\n" + line if self._ends_incomplete else line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise EvaluationError(
                f"{self._path} cannot be written ({error.strerror}): "
                "choose another folder with --cache"
            ) from error
        self._ends_incomplete = False
        self._records[key] = record
