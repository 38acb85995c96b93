"""The protocol of ROxford5k and RParis6k (Radenović et al., 2018): Easy, Medium and Hard.

Each setup has its own right answers and its own junk, which is taken out of a ranking before it is
judged. Average precision is the area under the precision-recall curve by trapezoids, not the one of
trec_eval. A query without right answers in a setup is left out of its means.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, WrongUse
from bm25v.research.datasets import Item

KS = (1, 5, 10)
SETUPS = ("easy", "medium", "hard")


@dataclass(frozen=True)
class Revisited:
    """Results of one setup."""

    ap_q: NDArray[np.float64]  # NaN: the query has no right answer here
    precision_qk: NDArray[np.float64]  # at each of KS

    @property
    def queries(self) -> int:
        """Queries that count."""
        return int((~np.isnan(self.ap_q)).sum())

    @property
    def mean_ap(self) -> float:
        """The setup's mAP; NaN if no query counts."""
        return float(self.ap_q[~np.isnan(self.ap_q)].mean()) if self.queries else float("nan")

    @property
    def mean_precision(self) -> dict[int, float]:
        """The setup's mP@k, by k."""
        counting = self.precision_qk[~np.isnan(self.ap_q)]
        means = counting.mean(axis=0) if self.queries else np.full(len(KS), np.nan)
        return dict(zip(KS, means.tolist(), strict=True))


def measure(
    rankings: Sequence[NDArray[np.integer] | Sequence[int]],
    gallery: Sequence[Item],
    queries: Sequence[Item],
) -> dict[str, Revisited]:
    """Judge rankings of gallery rows in all three setups; the protocol ranks the whole gallery.

    What a shorter ranking does not reach is taken as never found.
    """
    if len(rankings) != len(queries):
        raise WrongUse(f"{len(rankings)} rankings for {len(queries)} queries")
    rows = {item.path: row for row, item in enumerate(gallery)}
    results = {}
    for setup in SETUPS:
        ap_q = np.full(len(queries), np.nan)
        precision_qk = np.full((len(queries), len(KS)), np.nan)
        for number, (ranking, query) in enumerate(zip(rankings, queries, strict=True)):
            right, junk = _answers(setup, query)
            if not right:
                continue
            kept = np.asarray(ranking)[~np.isin(ranking, _known(rows, junk))]
            positions = np.flatnonzero(np.isin(kept, _known(rows, right)))
            ap_q[number] = trapezoid_ap(positions, len(right))
            precision_qk[number] = [precision_at(k, positions, len(right)) for k in KS]
        results[setup] = Revisited(ap_q, precision_qk)
    return results


def trapezoid_ap(positions: NDArray[np.integer], relevant: int) -> float:
    """Return the area under the precision-recall curve; positions are counted from 0.

    Each right answer is a step of recall, with the mean of the precisions before and at it.

    >>> round(trapezoid_ap(np.array([0, 2]), relevant=2), 4)  # ((1 + 1) + (1/2 + 2/3)) / 2 / 2
    0.7917
    """
    found = np.arange(len(positions))
    before = np.where(positions == 0, 1.0, found / np.maximum(positions, 1))
    at = (found + 1) / (positions + 1)
    return float((before + at).sum() / 2 / relevant)


def precision_at(k: int, positions: NDArray[np.integer], relevant: int) -> float:
    """Return the precision in the first k, or up to the last right answer if that comes earlier."""
    complete = len(positions) == relevant
    depth = min(k, int(positions[-1]) + 1) if complete else k
    return float((positions < depth).sum() / depth)


def _answers(setup: str, query: Item) -> tuple[frozenset[Path], frozenset[Path]]:
    """Return what is right for a query, and what is to be taken out."""
    if query.landmark is None:
        raise EvaluationError(f"{query.path} has no revisited ground truth: use R@K and mAP for it")
    _, easy, hard, junk = query.landmark
    return {
        "easy": (easy, hard | junk),
        "medium": (easy | hard, junk),
        "hard": (hard, easy | junk),
    }[setup]


def _known(rows: dict[Path, int], paths: Iterable[Path]) -> list[int]:
    return [rows[path] for path in paths if path in rows]
