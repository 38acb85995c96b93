"""A data set is put to several systems; out comes what each of them is worth."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.research import metrics, revisited, statistics
from bm25v.research.datasets import Dataset
from bm25v.research.features import Extracted, Progress, extract
from bm25v.research.result import Measured, Result, vocabulary_facts
from bm25v.research.settings import Settings
from bm25v.research.systems import NAMES, Contest, Ranking, resolve
from bm25v.vocabulary import Vocabulary

DEPTH = max(metrics.KS)


class Earned(NamedTuple):
    """What each query earned, by figure; NaN where the query does not count."""

    figures: dict[str, NDArray[np.float64]]
    unanswerable: int


def evaluate(
    dataset: Dataset | Extracted,
    vocabulary: Vocabulary,
    *,
    settings: Settings | None = None,
    systems: Sequence[str] = NAMES,
    cache: Path | None = None,
    per_class: bool = False,
    progress: Progress = lambda what, done, total: None,
) -> Result:
    """Measure systems on a data set, or on what was extracted of it.

    Features are taken from the cache, or made and kept there. Figures of ROxford and RParis follow
    the revisited protocol, all others are R@K and mAP of the first 200 answers.
    """
    settings = settings or Settings()
    names = resolve(systems, settings)
    pictures = extract(dataset, vocabulary, cache=cache, progress=progress)
    contest = Contest(
        pictures, vocabulary, settings, depth=depth_of(pictures.dataset), progress=progress
    )
    rankings: dict[str, Ranking] = {}
    for done, name in enumerate(names):
        progress(name, done, len(names))
        rankings[name] = contest.rank(name)
    earned = {name: earn(pictures, ranking.answers) for name, ranking in rankings.items()}
    figures = _intervals(earned)
    return Result(
        dataset=pictures.dataset,
        problems=pictures.dataset.problems + _too_deep(pictures.dataset),
        vocabulary=vocabulary_facts(vocabulary, settings),
        settings=settings,
        unanswerable=next(iter(earned.values())).unanswerable,
        systems={
            name: Measured(
                about=ranking.about,
                figures=figures[name],
                against_dense=_compared(earned[name], earned.get("dense"), name),
                classes=_classes(pictures, earned[name]) if per_class else {},
                answers=ranking.answers,
            )
            for name, ranking in rankings.items()
        },
    )


def depth_of(dataset: Dataset) -> int:
    """Return how many answers are judged: the revisited protocol ranks the whole gallery."""
    return len(dataset.gallery) if is_revisited(dataset) else DEPTH


def is_revisited(dataset: Dataset) -> bool:
    """Say whether a data set is judged by the revisited protocol."""
    return any(query.landmark for query in dataset.queries)


def earn(pictures: Extracted, answers: Sequence[Ranked]) -> Earned:
    """Judge the answers to each query."""
    dataset = pictures.dataset
    rows = [ranked.rows for ranked in answers]
    if is_revisited(dataset):
        return _earn_revisited(dataset, rows)
    judged = metrics.judge(
        rows,
        [item.label for item in dataset.gallery],
        [item.label for item in dataset.queries],
        dataset.own_rows,
    )
    kept = metrics.Judged(judged.hits_qk[:, :DEPTH], judged.relevant_q)
    figures = {f"R@{k}": metrics.successes(kept, k).astype(np.float64) for k in metrics.KS}
    figures["mAP"] = metrics.average_precisions(kept)
    return Earned(figures, int((kept.relevant_q == 0).sum()))


def _earn_revisited(dataset: Dataset, rows: Sequence[NDArray[np.int64]]) -> Earned:
    found = revisited.measure(rows, dataset.gallery, dataset.queries)
    figures = {f"mAP {setup}": one.ap_q for setup, one in found.items()}
    for place, k in enumerate(revisited.KS):
        for setup, one in found.items():
            figures[f"mP@{k} {setup}"] = one.precision_qk[:, place]
    counts_q = np.any([~np.isnan(one.ap_q) for one in found.values()], axis=0)
    return Earned(figures, int((~counts_q).sum()))


def _intervals(earned: Mapping[str, Earned]) -> dict[str, dict[str, statistics.Interval]]:
    """Return means and intervals by system and figure; the same queries are drawn for all."""
    all_q = {
        (name, figure): values_q
        for name, one in earned.items()
        for figure, values_q in one.figures.items()
    }
    groups: dict[bytes, list[tuple[str, str]]] = {}
    for place, values_q in all_q.items():
        groups.setdefault(np.isnan(values_q).tobytes(), []).append(place)
    found: dict[str, dict[str, statistics.Interval]] = {name: {} for name in earned}
    for places in groups.values():
        values_qm = np.stack([all_q[place] for place in places], axis=1)
        values_qm = values_qm[~np.isnan(values_qm[:, 0])]
        nothing = statistics.Interval(math.nan, math.nan, math.nan)
        means = statistics.intervals(values_qm) if len(values_qm) else [nothing] * len(places)
        for (name, figure), one in zip(places, means, strict=True):
            found[name][figure] = one
    return {name: {f: found[name][f] for f in one.figures} for name, one in earned.items()}


def _compared(earned: Earned, dense: Earned | None, name: str) -> dict[str, statistics.Comparison]:
    if dense is None or name == "dense":
        return {}
    found = {}
    for figure, values_q in earned.figures.items():
        counts_q = ~np.isnan(values_q)
        if counts_q.any():
            base_q = dense.figures[figure]
            found[figure] = statistics.compare(values_q[counts_q], base_q[counts_q])
    return found


def _classes(pictures: Extracted, earned: Earned) -> dict[str, dict[str, float]]:
    labels = np.array([query.label for query in pictures.dataset.queries])
    if is_revisited(pictures.dataset):
        return {}
    found = {}
    for label in sorted(set(labels.tolist())):
        mask = labels == label
        means = {name: float(values_q[mask].mean()) for name, values_q in earned.figures.items()}
        found[label] = {"queries": int(mask.sum()), **means}
    return found


def _too_deep(dataset: Dataset) -> list[str]:
    """Say which K a gallery is too small for."""
    others = len(dataset.gallery) - int((dataset.own_rows >= 0).all())
    deep = [f"R@{k}" for k in metrics.KS if k > others]
    if not deep or is_revisited(dataset):
        return []
    return [f"{', '.join(deep)} look at the whole gallery: it has but {others:,} pictures to find"]
