"""How certain a metric is, and whether one system is better than another.

Both come from resampling queries: a percentile bootstrap for the interval of a mean, and the paired
sign-flip test for a difference, which assumes no normal distribution. For values of 0 or 1, such as
R@1, it is McNemar's test, which is computed exactly.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError

CHUNK = 2_000_000  # random numbers per step, to limit memory
_BOOTSTRAP_SAMPLES = 2_000
_SIGN_FLIPS = 10_000

Values = NDArray[np.floating] | NDArray[np.bool_]


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

    >>> ratio_interval(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    means = _resampled_means(np.stack([a_q, b_q], axis=1).astype(np.float64))
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975]).tolist()
    return Interval(float(a_q.mean() / b_q.mean()), low, high)


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
