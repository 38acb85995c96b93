"""One setting, or several, takes value after value: which of them matter, and how much?

Settings between features and rankings share one extraction. Of the SAE, only k can be changed
without training; other expansions and layers come as vocabularies that were trained so.
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
from bm25v.errors import WrongUse
from bm25v.research import settings as kinds
from bm25v.research.cells import Cells
from bm25v.research.datasets import Dataset
from bm25v.research.features import Extracted, Progress, extract
from bm25v.research.run import depth_of, earn
from bm25v.research.settings import Settings
from bm25v.research.systems import Contest, resolve
from bm25v.vocabulary import Vocabulary

_FORMAT = 1
_ALL_SYSTEMS = ("bm25v", "two-stage", "hybrid")


class Axis(NamedTuple):
    """Something that can be varied."""

    values: tuple[str, ...]  # tried unless told, as one types them
    setting: str | None  # None: it is the vocabulary that varies
    systems: tuple[str, ...] = _ALL_SYSTEMS  # that it makes a difference to


AXES = {
    "k": Axis(("8", "16", "32", "64", "128"), None),
    "expansion": Axis((), None),
    "layer": Axis((), None),
    "k_post": Axis(("8", "16", "32", "64", "128"), "k_post"),
    "k_query": Axis(("8", "16", "32", "64", "128"), "k_query"),
    "scoring": Axis(get_args(kinds.Scoring), "scoring", ("bm25v", "two-stage")),
    "quantisation": Axis(("on", "off"), "quantised"),
    "k1": Axis(("0.5", "0.9", "1.2", "1.5", "2", "3", "5"), "k1"),
    "b": Axis(("0", "0.25", "0.5", "0.75", "1"), "b"),
    "candidates": Axis(("25", "50", "100", "200", "400"), "candidates", ("two-stage", "hybrid")),
    "query": Axis(get_args(kinds.Weighting), "query"),
    "tf": Axis(get_args(kinds.Transform), "tf"),
    "pooling": Axis(get_args(kinds.Pooling), "pooling"),
    "stop": Axis(("0.05", "0.1", "0.2", "0.3", "0.5", "1"), "stop"),
    "fusion": Axis(get_args(kinds.Fusion), "fusion", ("hybrid",)),
    "weight": Axis(("0", "0.05", "0.1", "0.2", "0.3", "0.5"), "weight", ("hybrid",)),
}


class Trial(NamedTuple):
    """One cell of a grid, before it is measured."""

    values: dict[str, str]  # by axis
    vocabulary: Vocabulary
    settings: Settings


@dataclass(frozen=True)
class Cell:
    """One cell of a grid."""

    values: dict[str, str]
    figures: dict[str, dict[str, float]]  # by system, and by what was measured
    words: float  # of a picture, in the mean
    postings: float  # that a query reads, in the mean
    is_new: bool

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {**self.values, "words": self.words, "postings": self.postings, **self.figures}


@dataclass(frozen=True)
class Grid:
    """All cells, and what dense vectors alone are worth beside them."""

    dataset: Dataset
    axes: tuple[str, ...]
    dense: dict[str, float]
    cells: list[Cell]


def trials(
    axes: Mapping[str, Sequence[str]],
    vocabulary: Vocabulary,
    settings: Settings,
    vocabularies: Sequence[Vocabulary] = (),
) -> list[Trial]:
    """Return every combination of the axes' values; an axis without values has its usual ones.

    >>> found = trials({"k_post": ["16", "64"], "query": []}, Vocabulary.load("toy"), Settings())
    >>> len(found), found[-1].values
    (8, {'k_post': '64', 'query': 'saturated'})
    """
    choices = [_choices(name, values, vocabulary, vocabularies) for name, values in axes.items()]
    _refuse_unused(axes, vocabularies)
    found = []
    for combination in itertools.product(*choices):
        trial = Trial({}, vocabulary, settings)
        for name, (label, chosen) in zip(axes, combination, strict=True):
            values, setting = {**trial.values, name: label}, AXES[name].setting
            changed = trial.settings.changed(setting, label) if setting else trial.settings
            trial = Trial(values, chosen or trial.vocabulary, changed)
        found.append(trial)
    return found


def _choices(
    name: str, values: Sequence[str], vocabulary: Vocabulary, vocabularies: Sequence[Vocabulary]
) -> list[tuple[str, Vocabulary | None]]:
    if name not in AXES:
        raise WrongUse(f"nothing called {name!r} can be varied; there are: {', '.join(AXES)}")
    if AXES[name].setting:
        return [(value, None) for value in values or AXES[name].values]
    if vocabularies:
        if values:
            raise WrongUse(f"{name} takes its values from the vocabularies: leave out --values")
        labels = [_trained_with(name, one) for one in vocabularies]
        is_clear = len(set(labels)) == len(labels)
        return [
            (label if is_clear else f"{label} ({one.source})", one)
            for label, one in zip(labels, vocabularies, strict=True)
        ]
    if name != "k":
        raise WrongUse(
            f"another {name} needs another SAE: train some with bm25v train, and name them with "
            "--vocabularies"
        )
    return [(value, _with_k(vocabulary, value)) for value in values or AXES[name].values]


def _refuse_unused(axes: Mapping[str, Sequence[str]], vocabularies: Sequence[Vocabulary]) -> None:
    by_vocabulary = [name for name in axes if AXES[name].setting is None]
    if len(by_vocabulary) > 1:
        raise WrongUse(f"{' and '.join(by_vocabulary)} cannot vary at once: choose one of them")
    if vocabularies and not by_vocabulary:
        raise WrongUse("--vocabularies are for k, expansion and layer: use --vocabulary")


def _trained_with(name: str, vocabulary: Vocabulary) -> str:
    if name == "k":
        return str(vocabulary.sae.k)
    if name == "expansion":
        return f"{vocabulary.n_words / vocabulary.sae.patch_dim:g}"
    _, _, layer = vocabulary.backbone_name.rpartition("#")
    return layer


def _with_k(vocabulary: Vocabulary, text: str) -> Vocabulary:
    """Return the same weights with another number of words a patch."""
    if not text.isdecimal() or not 1 <= int(text) <= vocabulary.n_words:
        raise WrongUse(f"k = {text!r}: a number from 1 to {vocabulary.n_words:,} is wanted")
    k = int(text)
    if k == vocabulary.sae.k:
        return vocabulary
    fingerprint = f"{vocabulary.fingerprint}-k{k}"
    return replace(vocabulary, sae=replace(vocabulary.sae, k=k), fingerprint=fingerprint)


def ablate(
    dataset: Dataset | Extracted,
    wanted: Sequence[Trial],
    *,
    cache: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Grid:
    """Measure every trial; those that were measured before are read from the cache."""
    axes = tuple(wanted[0].values)
    affected = {system for name in axes for system in AXES[name].systems}
    systems = [name for name in _ALL_SYSTEMS if name in affected]
    for trial in wanted:
        resolve(systems, trial.settings)  # refuses before hours go into features
    extracted: dict[str, Extracted] = {}
    for trial in wanted:
        backbone = trial.vocabulary.backbone_fingerprint
        if backbone not in extracted:
            extracted[backbone] = extract(dataset, trial.vocabulary, cache=cache, progress=progress)
    first = next(iter(extracted.values()))
    cells = Cells(first.cache / "cells.jsonl")
    alone = Trial({}, wanted[0].vocabulary, Settings())
    dense, _ = _measured(cells, first, alone, ["dense"], progress)
    found = []
    for done, trial in enumerate(wanted):
        progress(" ".join(trial.values.values()), done, len(wanted))
        pictures = extracted[trial.vocabulary.backbone_fingerprint]
        measured, is_new = _measured(cells, pictures, trial, systems, progress)
        found.append(Cell(trial.values, **measured, is_new=is_new))
    return Grid(first.dataset, axes, dense["figures"]["dense"], found)


def _measured(
    cells: Cells, pictures: Extracted, trial: Trial, systems: Sequence[str], progress: Progress
) -> tuple[dict[str, Any], bool]:
    key = _key(pictures, trial, systems)
    known = cells.get(key)
    if known is not None:
        return known, False
    depth = depth_of(pictures.dataset)
    contest = Contest(pictures, trial.vocabulary, trial.settings, depth=depth, progress=progress)
    figures = {}
    for system in systems:
        (name,) = resolve([system], trial.settings)
        earned = earn(pictures, contest.rank(name).answers).figures
        figures[system] = {figure: float(np.nanmean(one)) for figure, one in earned.items()}
    is_dense = systems == ["dense"]
    found = {
        "figures": figures,
        "words": 0.0 if is_dense else contest.words.words_a_picture,
        "postings": 0.0 if is_dense else contest.words.postings_a_query,
    }
    cells.add(key, found)
    return found, True


def _key(pictures: Extracted, trial: Trial, systems: Sequence[str]) -> str:
    """Return a hash of all that decides a cell's figures."""
    dataset = pictures.dataset
    asked = [
        (row, own, query.label, [sorted(map(str, part)) for part in (query.landmark or ())[1:]])
        for row, own, query in zip(
            pictures.queries_q.tolist(), dataset.own_rows.tolist(), dataset.queries, strict=True
        )
    ]
    facts = {
        "format": _FORMAT,
        "version": __version__,
        "features": pictures.key,
        "gallery": pictures.gallery_n.tolist(),
        "labels": [item.label for item in dataset.gallery],
        "queries": asked,
        "vocabulary": trial.vocabulary.fingerprint,
        "settings": {
            **vars(trial.settings),
            "k_post": trial.settings.k_post or trial.vocabulary.k_post,
        },
        "systems": list(systems),
    }
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
