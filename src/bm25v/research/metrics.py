"""Rankings become figures: R@K as in the paper, and average precision as trec_eval has it.

In: for each query the rows of the gallery, best first, and the classes of both. Out: what each
query earns. A query whose class has no other picture in the gallery cannot be
answered; it counts as missed, and is counted. Not this room's job: the protocol of the revisited
benchmarks, whose average precision is another one (`revisited`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse

KS = (1, 5, 10, 20, 50, 100, 200)


class Judged(NamedTuple):
    """What became of each query."""

    hits_qk: NDArray[np.bool_]  # has the picture at this rank the query's class?
    relevant_q: NDArray[np.int64]  # pictures in the gallery that have it


def judge(
    rankings: Sequence[NDArray[np.integer] | Sequence[int]],
    gallery_labels: Sequence[str],
    query_labels: Sequence[str],
    own_rows: NDArray[np.int64] | None = None,
) -> Judged:
    """Compare the classes of ranked rows with those of the queries.

    `own_rows` says which row each query is in the gallery (-1: none). It is taken out, and the rows
    behind it move up, so ask for one row more than the largest K.

    >>> judged = judge([[0, 2, 1]], ["cat", "cat", "dog"], ["cat"], np.array([0]))
    >>> judged.hits_qk.tolist(), judged.relevant_q.tolist()
    ([[False, True, False]], [1])
    """
    if len(rankings) != len(query_labels):
        raise WrongUse(f"{len(rankings)} rankings for {len(query_labels)} queries")
    own = np.full(len(rankings), -1) if own_rows is None else own_rows
    numbers = {label: number for number, label in enumerate(dict.fromkeys(gallery_labels))}
    classes_n = np.array([numbers[label] for label in gallery_labels], dtype=np.int64)
    classes_q = np.array([numbers.get(label, -1) for label in query_labels], dtype=np.int64)
    counts = np.append(np.bincount(classes_n, minlength=len(numbers)), 0)  # -1: none
    found_n = np.append(classes_n, -2)  # of row -1, which is no row
    return Judged(
        found_n[_rows(rankings, own)] == classes_q[:, None],
        counts[classes_q] - (found_n[own] == classes_q),
    )


def _rows(
    rankings: Sequence[NDArray[np.integer] | Sequence[int]], own_q: NDArray[np.integer]
) -> NDArray[np.int64]:
    """Put rankings side by side, without the queries themselves; -1 where one ends."""
    width = max((len(ranking) for ranking in rankings), default=0)
    rows_qk = np.full((len(rankings), width), -1, dtype=np.int64)
    for number, ranking in enumerate(rankings):
        rows_qk[number, : len(ranking)] = ranking
    is_own = rows_qk == own_q[:, None]
    rows_qk[is_own] = -1
    order = np.argsort(is_own, axis=1, kind="stable")
    return np.take_along_axis(rows_qk, order, axis=1)


def successes(judged: Judged, k: int) -> NDArray[np.bool_]:
    """Return for each query whether one of the first k has its class; beyond the end is nothing."""
    if k < 1:
        raise WrongUse(f"k = {k}; it must be at least 1")
    return np.asarray(judged.hits_qk[:, :k].any(axis=1))


def average_precisions(judged: Judged) -> NDArray[np.float64]:
    """Return for each query the mean, over all pictures of its class, of the precision there.

    A picture that the ranking does not reach has precision 0.

    >>> average_precisions(Judged(np.array([[True, False, True, True]]), np.array([4]))).round(3)
    array([0.604])
    """
    ranks = np.arange(1, judged.hits_qk.shape[1] + 1)
    precision_qk = np.cumsum(judged.hits_qk, axis=1) / ranks
    total_q = (precision_qk * judged.hits_qk).sum(axis=1)
    return np.asarray(total_q / np.maximum(judged.relevant_q, 1), dtype=np.float64)
