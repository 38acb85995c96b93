"""How sure is a figure, and is one system better than another?

Queries are what varies, so both answers come from drawing queries again: a percentile bootstrap for
the interval of a mean, and the paired sign-flip test for a difference. If two systems were equally
good, which of them won on a query would be a coin toss; the test asks how often coin tosses alone
make a difference as large. It needs no normal distribution, and for figures that are 0 or 1, such
as R@1, it is McNemar's exact test, which is then computed without drawing.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, WrongUse

_CHUNK = 2_000_000  # numbers drawn at a time, to bound memory

Values = NDArray[np.floating] | NDArray[np.bool_]


class Interval(NamedTuple):
    """A mean and where it lies with 95 % confidence."""

    mean: float
    low: float
    high: float


class Comparison(NamedTuple):
    """System a against system b over the same queries."""

    difference: float  # mean of a minus mean of b
    wins: int  # queries on which a is better
    losses: int
    p: float  # how likely chance alone makes a difference as large


def interval(values_q: Values, *, samples: int = 2_000, seed: int = 0) -> Interval:
    """Return the mean over queries with its bootstrap interval.

    >>> interval(np.array([True] * 80 + [False] * 20))
    Interval(mean=0.8, low=0.72, high=0.88)
    """
    values = np.asarray(values_q, dtype=np.float64)
    (found,) = intervals(values[:, None], samples=samples, seed=seed)
    return found


def intervals(values_qm: Values, *, samples: int = 2_000, seed: int = 0) -> list[Interval]:
    """Return the same for each of several measures of the same queries, with the same draws."""
    values = np.asarray(values_qm, dtype=np.float64)
    if not len(values):
        raise EvaluationError("there are no queries to measure")
    lows, highs = np.quantile(_means(values, samples, seed), [0.025, 0.975], axis=0)
    found = zip(values.mean(axis=0).tolist(), lows.tolist(), highs.tolist(), strict=True)
    return [Interval(*one) for one in found]


def ratio(a_q: Values, b_q: Values, *, samples: int = 2_000, seed: int = 0) -> Interval:
    """Return how many times the mean of b the mean of a is, the same queries drawn for both.

    >>> ratio(np.array([2.0, 4.0, 6.0]), np.array([1.0, 2.0, 3.0]))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    a, b = np.asarray(a_q, dtype=np.float64), np.asarray(b_q, dtype=np.float64)
    if a.shape != b.shape or not len(a):
        raise WrongUse(f"{len(a)} and {len(b)} queries cannot be paired")
    if b.min() <= 0:
        raise EvaluationError(f"a value of {b.min():g} cannot be divided by: it must be above 0")
    means = _means(np.stack([a, b], axis=1), samples, seed)
    low, high = np.quantile(means[:, 0] / means[:, 1], [0.025, 0.975]).tolist()
    return Interval(float(a.mean() / b.mean()), low, high)


def compare(a_q: Values, b_q: Values, *, samples: int = 10_000, seed: int = 0) -> Comparison:
    """Test whether two systems differ, from what each query earned with either.

    >>> compare(np.array([1, 1, 1, 1, 1, 0.0]), np.zeros(6))
    Comparison(difference=0.8333333333333334, wins=5, losses=0, p=0.0625)
    """
    a, b = np.asarray(a_q, dtype=np.float64), np.asarray(b_q, dtype=np.float64)
    if a.shape != b.shape or not len(a):
        raise WrongUse(f"{len(a)} and {len(b)} queries cannot be paired")
    gains = a - b
    wins, losses = int((gains > 0).sum()), int((gains < 0).sum())
    gains = gains[gains != 0]
    if len(np.unique(np.abs(gains))) <= 1:
        p = _mcnemar(wins, losses)
    else:
        p = _sign_flips(gains, samples, seed)
    return Comparison(float((a - b).mean()), wins, losses, p)


def _means(values_qm: NDArray[np.float64], samples: int, seed: int) -> NDArray[np.float64]:
    """Draw queries again and again; return the means of each draw."""
    n = len(values_qm)
    rng = np.random.default_rng(seed)
    means = []
    for rows in _chunks(samples, n):
        drawn = rng.integers(n, size=(rows, n)) + n * np.arange(rows)[:, None]
        times = np.bincount(drawn.ravel(), minlength=rows * n).reshape(rows, n)
        means.append(times @ values_qm / n)
    return np.concatenate(means)


def _mcnemar(wins: int, losses: int) -> float:
    """Return how likely a fair coin falls as unevenly; whole numbers, as the terms are huge."""
    tosses, term, total = wins + losses, 1, 0
    for heads in range(min(wins, losses) + 1):
        total += term
        term = term * (tosses - heads) // (heads + 1)
    return min(1.0, 2 * total / (1 << tosses))


def _sign_flips(gains: NDArray[np.float64], samples: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    observed = abs(gains.sum()) * (1 - 1e-9)  # sums in another order differ in the last digits
    extreme = 0
    for rows in _chunks(samples, len(gains)):
        heads = rng.integers(2, size=(rows, len(gains)), dtype=np.int8)
        extreme += int((np.abs((2 * heads - 1) @ gains) >= observed).sum())
    return (extreme + 1) / (samples + 1)  # what was observed is one of the possible outcomes


def _chunks(samples: int, width: int) -> Iterator[int]:
    rows = max(1, _CHUNK // width)
    for start in range(0, samples, rows):
        yield min(rows, samples - start)
