"""Metrics of each query: R@K and average precision, and the revisited protocol.

For classes, R@K is the paper's and average precision is trec_eval's; a query whose class has no
other image in the gallery counts as missed. ROxford5k and RParis6k are judged by their own protocol
(Radenović et al., 2018), whose average precision is another one.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.research.datasets import Dataset, Item

RECALL_KS = (1, 5, 10, 20, 50, 100, 200)
REVISITED_KS = (1, 5, 10)
SETUPS = ("easy", "medium", "hard")  # of the revisited protocol

Rankings = Sequence[NDArray[np.integer] | Sequence[int]]
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
