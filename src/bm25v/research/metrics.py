"""Metrics of each query, how certain their means are, and whether one system is better.

For classes, R@K is the paper's and average precision is trec_eval's; a query whose class has no
other image in the gallery counts as missed. ROxford5k and RParis6k are judged by their own protocol
(Radenović et al., 2018), whose average precision is another one.

Queries are resampled: a percentile bootstrap for the interval of a mean, and the paired sign-flip
test for a difference, which assumes no normal distribution. For values of 0 or 1, such as R@1, it
is McNemar's test, which is computed exactly.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError
from bm25v.index.searcher import Ranked
from bm25v.research.datasets import Dataset, Item

RECALL_KS = (1, 5, 10, 20, 50, 100, 200)
REVISITED_KS = (1, 5, 10)
SETUPS = ("easy", "medium", "hard")  # of the revisited protocol
CHUNK = 2_000_000  # random numbers per step, to limit memory
_BOOTSTRAP_SAMPLES = 2_000
_SIGN_FLIPS = 10_000

Rankings = Sequence[NDArray[np.integer] | Sequence[int]]
Values = NDArray[np.floating] | NDArray[np.bool_]
QueryMetrics = dict[str, NDArray[np.float64]]  # by name, a value per query


def ranking_depth(dataset: Dataset) -> int:
    """Return how many images per query are judged: all of them in the revisited protocol."""
    return len(dataset.gallery) if dataset.is_revisited else max(RECALL_KS)


def score_queries(dataset: Dataset, rankings: Sequence[Ranked]) -> QueryMetrics:
    """Return the metrics of each query; NaN where a query does not count."""
    rows = [ranked.rows for ranked in rankings]
    if dataset.is_revisited:
        return judge_revisited(rows, dataset.gallery, dataset.queries)
    is_relevant_qk, n_relevant_q = judge_rankings(
        rows,
        [item.label for item in dataset.gallery],
        [item.label for item in dataset.queries],
        dataset.own_rows,
    )
    judgements = Judgements(is_relevant_qk[:, : ranking_depth(dataset)], n_relevant_q)
    metrics = {f"R@{k}": recall_at(k, judgements).astype(np.float64) for k in RECALL_KS}
    return {**metrics, "mAP": average_precision(judgements)}


class Judgements(NamedTuple):
    is_relevant_qk: NDArray[np.bool_]  # by rank
    n_relevant_q: NDArray[np.int64]  # relevant images in the whole gallery


def judge_rankings(
    rankings: Rankings,
    gallery_labels: Sequence[str],
    query_labels: Sequence[str],
    own_rows: NDArray[np.int64] | None = None,
) -> Judgements:
    """Compare the classes of ranked rows with those of the queries.

    `own_rows` is the row of each query in the gallery (-1: none). That row is removed and the rows
    behind it move up, so rankings should be one row longer than the largest K.

    >>> judgements = judge_rankings([[0, 2, 1]], ["cat", "cat", "dog"], ["cat"], np.array([0]))
    >>> judgements.is_relevant_qk.tolist(), judgements.n_relevant_q.tolist()
    ([[False, True, False]], [1])
    """
    own_q = np.full(len(rankings), -1) if own_rows is None else own_rows
    numbers = {label: number for number, label in enumerate(dict.fromkeys(gallery_labels))}
    class_n = np.array([numbers[label] for label in gallery_labels], dtype=np.int64)
    class_q = np.array([numbers.get(label, -1) for label in query_labels], dtype=np.int64)
    counts = np.append(np.bincount(class_n, minlength=len(numbers)), 0)  # 0 for class -1
    class_of_row = np.append(class_n, -2)  # -2 for row -1, which is not a row
    return Judgements(
        class_of_row[_align_rankings(rankings, own_q)] == class_q[:, None],
        counts[class_q] - (class_of_row[own_q] == class_q),
    )


def _align_rankings(rankings: Rankings, own_q: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return rankings as one array, without the queries themselves; -1 after the end."""
    width = max((len(ranking) for ranking in rankings), default=0)
    rows_qk = np.full((len(rankings), width), -1, dtype=np.int64)
    for number, ranking in enumerate(rankings):
        rows_qk[number, : len(ranking)] = ranking
    is_own = rows_qk == own_q[:, None]
    rows_qk[is_own] = -1
    order = np.argsort(is_own, axis=1, kind="stable")
    return np.take_along_axis(rows_qk, order, axis=1)


def recall_at(k: int, judgements: Judgements) -> NDArray[np.bool_]:
    """Return for each query whether one of the first k images is relevant (the paper's R@K)."""
    return np.asarray(judgements.is_relevant_qk[:, :k].any(axis=1))


def average_precision(judgements: Judgements) -> NDArray[np.float64]:
    """Return for each query the mean of the precisions at its relevant images.

    A relevant image that is not in the ranking has precision 0.

    >>> judgements = Judgements(np.array([[True, False, True, True]]), np.array([4]))
    >>> average_precision(judgements).round(3)
    array([0.604])
    """
    is_relevant_qk, n_relevant_q = judgements
    ranks = np.arange(1, is_relevant_qk.shape[1] + 1)
    precision_qk = np.cumsum(is_relevant_qk, axis=1) / ranks
    total_q = (precision_qk * is_relevant_qk).sum(axis=1)
    return np.asarray(total_q / np.maximum(n_relevant_q, 1), dtype=np.float64)


def judge_revisited(
    rankings: Rankings, gallery: Sequence[Item], queries: Sequence[Item]
) -> QueryMetrics:
    """Judge rankings of gallery rows in the setups easy, medium and hard: "mAP easy", "mP@5 hard".

    Each setup has its own relevant images and its own junk, which is removed from a ranking before
    it is judged. Queries without relevant images in a setup do not count there: NaN. Rankings
    should cover the whole gallery; a relevant image that is not in a ranking counts as never found.
    """
    row_of_path = {item.path: row for row, item in enumerate(gallery)}

    def rows(paths: Iterable[Path]) -> list[int]:
        return [row_of_path[path] for path in paths if path in row_of_path]

    kinds = ["mAP", *(f"mP@{k}" for k in REVISITED_KS)]
    names = [f"{kind} {setup}" for kind in kinds for setup in SETUPS]
    metrics = {name: np.full(len(queries), np.nan) for name in names}
    for number, (ranking, query) in enumerate(zip(rankings, queries, strict=True)):
        assert query.truth is not None
        _, easy, hard, junk = query.truth
        relevant_and_ignored = (easy, hard | junk), (easy | hard, junk), (hard, easy | junk)
        for setup, (relevant, ignored) in zip(SETUPS, relevant_and_ignored, strict=True):
            if not relevant:
                continue
            kept = np.asarray(ranking)[~np.isin(ranking, rows(ignored))]
            positions = np.flatnonzero(np.isin(kept, rows(relevant)))
            metrics[f"mAP {setup}"][number] = trapezoid_ap(positions, len(relevant))
            for k in REVISITED_KS:
                precision = precision_at(k, positions, len(relevant))
                metrics[f"mP@{k} {setup}"][number] = precision
    return metrics


def trapezoid_ap(positions: NDArray[np.integer], n_relevant: int) -> float:
    """Return the area under the precision-recall curve; positions are counted from 0.

    Each relevant image is a step of recall, with the mean of the precisions before and at it.

    >>> round(trapezoid_ap(np.array([0, 2]), 2), 4)  # ((1 + 1) + (1/2 + 2/3)) / 2 / 2
    0.7917
    """
    earlier = np.arange(len(positions))  # relevant images before each one
    before = np.where(positions == 0, 1.0, earlier / np.maximum(positions, 1))
    at = (earlier + 1) / (positions + 1)
    return float((before + at).sum() / 2 / n_relevant)


def precision_at(k: int, positions: NDArray[np.integer], n_relevant: int) -> float:
    """Return the precision of the first k, or up to the last relevant image if it comes earlier."""
    complete = len(positions) == n_relevant
    depth = min(k, int(positions[-1]) + 1) if complete else k
    return float((positions < depth).sum() / depth)


# How certain


class Interval(NamedTuple):
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float


class Comparison(NamedTuple):
    """System a compared with system b on the same queries."""

    difference: float  # mean of a minus mean of b
    wins: int  # queries on which a is better
    losses: int
    p: float  # probability of a difference as large if the systems are equally good


def confidence_interval(values_q: Values) -> Interval:
    """Return the mean over queries with its bootstrap interval.

    >>> confidence_interval(np.array([True] * 80 + [False] * 20))
    Interval(mean=0.8, low=0.72, high=0.88)
    """
    return confidence_intervals(np.asarray(values_q, dtype=np.float64)[:, None])[0]


def confidence_intervals(values_qm: Values) -> list[Interval]:
    """Return the intervals of several metrics of the same queries, from the same samples."""
    values = np.asarray(values_qm, dtype=np.float64)
    if not len(values):
        raise EvaluationError("there are no queries, so there is no mean")
    lows, highs = np.quantile(_resampled_means(values), [0.025, 0.975], axis=0)
    columns = zip(values.mean(axis=0).tolist(), lows.tolist(), highs.tolist(), strict=True)
    return [Interval(*column) for column in columns]


def ratio_interval(a_q: Values, b_q: Values) -> Interval:
    """Return mean(a) / mean(b) with its bootstrap interval, the same queries resampled for both.

    It is infinite, or NaN, where the mean of b is 0.

    >>> ratio_interval(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    means = _resampled_means(np.stack([a_q, b_q], axis=1).astype(np.float64))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean, ratios = np.divide(a_q.mean(), b_q.mean()), means[:, 0] / means[:, 1]
    low, high = np.quantile(ratios, [0.025, 0.975], method="nearest").tolist()
    return Interval(float(mean), low, high)


def compare(a_q: Values, b_q: Values) -> Comparison:
    """Test whether two systems differ, from the metrics of the same queries.

    >>> compare(np.array([1, 1, 1, 1, 1, 0.0]), np.zeros(6))
    Comparison(difference=0.8333333333333334, wins=5, losses=0, p=0.0625)
    """
    differences_q = np.asarray(a_q, dtype=np.float64) - np.asarray(b_q, dtype=np.float64)
    wins, losses = int((differences_q > 0).sum()), int((differences_q < 0).sum())
    others = differences_q[differences_q != 0]
    is_hit_or_miss = len(np.unique(np.abs(others))) <= 1
    p = _mcnemar_p(wins, losses) if is_hit_or_miss else _sign_flip_p(others)
    return Comparison(float(differences_q.mean()), wins, losses, p)


def _resampled_means(values_qm: NDArray[np.float64]) -> NDArray[np.float64]:
    """Draw queries with replacement; return the means of each sample."""
    n = len(values_qm)
    rng = np.random.default_rng(0)
    means = []
    for rows in _chunks(_BOOTSTRAP_SAMPLES, n):
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        means.append(counts @ values_qm / n)
    return np.concatenate(means)


def _mcnemar_p(wins: int, losses: int) -> float:
    """Return the two-sided binomial probability; in integers, as the terms are huge."""
    tosses, term, total = wins + losses, 1, 0
    for heads in range(min(wins, losses) + 1):
        total += term
        term = term * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * total / (1 << tosses))


def _sign_flip_p(differences: NDArray[np.float64]) -> float:
    rng = np.random.default_rng(0)
    observed = abs(differences.sum()) * (1 - 1e-9)  # the order of summation changes last digits
    extreme = 0
    for rows in _chunks(_SIGN_FLIPS, len(differences)):
        heads = rng.integers(2, size=(rows, len(differences)), dtype=np.int8)
        extreme += int((np.abs((2 * heads - 1) @ differences) >= observed).sum())
    return (extreme + 1) / (_SIGN_FLIPS + 1)  # the observed outcome is one of the possible ones


def _chunks(samples: int, width: int) -> Iterator[int]:
    rows = max(1, CHUNK // width)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)
