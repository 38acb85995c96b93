"""Joins words and dense vectors: the candidates that words found, ordered by both."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v import ranking
from bm25v.errors import WrongUse
from bm25v.index.searcher import Ranked
from bm25v.research.settings import Fusion, Settings
from bm25v.research.systems.vectors import Vectors

_RRF = 60  # of reciprocal rank fusion, as it was published

Floats = NDArray[np.float64]


def check(settings: Settings) -> None:
    """Refuse a fusion that does not go with the scoring."""
    if settings.fusion == "coverage" and settings.scoring != "bm25":
        raise WrongUse(
            f"fusion coverage needs scoring bm25, not {settings.scoring}: choose convex or rrf, "
            "or leave out hybrid"
        )


def fuse(
    candidates: Sequence[Ranked],
    vectors: Vectors,
    most_q: Floats,
    settings: Settings,
) -> list[Ranked]:
    """Order each query's candidates, found by words, by words and cosine."""
    check(settings)
    join = _FUSIONS[settings.fusion]
    dense_ne, dense_qe = vectors
    found = []
    for query_e, most, first in zip(dense_qe, most_q, candidates, strict=True):
        cosines = ranking.cosines(dense_ne, query_e, first.rows).astype(np.float64)
        scores = join(cosines, first, float(most), settings.weight)
        order = ranking.top(first.rows, scores, max(1, len(scores)))
        found.append(Ranked(first.rows[order], scores[order]))
    return found


def _coverage(cosines: Floats, words: Ranked, most: float, weight: float) -> Floats:
    return cosines + weight * words.scores / (most or 1.0)


def _convex(cosines: Floats, words: Ranked, most: float, weight: float) -> Floats:
    return (1 - weight) * _stretched(cosines) + weight * _stretched(words.scores)


def _rrf(cosines: Floats, words: Ranked, most: float, weight: float) -> Floats:
    by_cosine, by_words = _ranks(words.rows, cosines), _ranks(words.rows, words.scores)
    return 1 / (_RRF + by_cosine) + 1 / (_RRF + by_words)


def _stretched(scores: Floats) -> Floats:
    """Stretch scores to 0 … 1.

    >>> _stretched(np.array([2.0, 4, 3])).tolist(), _stretched(np.array([2.0])).tolist()
    ([0.0, 1.0, 0.5], [0.0])
    """
    if not len(scores):
        return scores
    return np.asarray((scores - scores.min()) / (float(np.ptp(scores)) or 1.0))


def _ranks(rows: NDArray[np.int64], scores: Floats) -> Floats:
    """Return each score's rank, from 1."""
    ranks = np.empty(len(scores))
    ranks[np.lexsort((rows, -scores))] = np.arange(1, len(scores) + 1)
    return ranks


_FUSIONS: dict[Fusion, Callable[[Floats, Ranked, float, float], Floats]] = {
    "coverage": _coverage,
    "convex": _convex,
    "rrf": _rrf,
}
