"""Combines word scores and cosines: candidates of the first stage, ordered by both."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.index.searcher import Ranked, top_positions
from bm25v.research.settings import Fusion, RankingSettings
from bm25v.research.systems.vectors import Vectors
from bm25v.search import ranking

_RRF_K = 60  # the constant of reciprocal rank fusion, as published

Floats = NDArray[np.float64]


def check_fusion(settings: RankingSettings) -> None:
    """Refuse a fusion that is not defined for the scoring."""
    if settings.fusion == "coverage" and settings.scoring != "bm25":
        raise WrongUse(
            f"fusion coverage needs scoring bm25, not {settings.scoring}: choose convex or rrf, "
            "or leave out hybrid"
        )


def fuse(
    candidates: Sequence[Ranked],
    vectors: Vectors,
    max_score_q: Floats,
    settings: RankingSettings,
) -> list[Ranked]:
    """Order the candidates of each query by words and cosine."""
    check_fusion(settings)
    combine = _FUSIONS[settings.fusion]
    dense_ne, dense_qe = vectors
    rankings = []
    for query_e, max_score, words in zip(dense_qe, max_score_q, candidates, strict=True):
        cosines = ranking.cosines(dense_ne, query_e, words.rows).astype(np.float64)
        scores = combine(cosines, words, float(max_score), settings.weight)
        order = top_positions(words.rows, scores, max(1, len(scores)))
        rankings.append(Ranked(words.rows[order], scores[order]))
    return rankings


def _coverage(cosines: Floats, words: Ranked, max_score: float, weight: float) -> Floats:
    return cosines + weight * words.scores / (max_score or 1.0)


def _convex(cosines: Floats, words: Ranked, max_score: float, weight: float) -> Floats:
    return (1 - weight) * _rescale(cosines) + weight * _rescale(words.scores)


def _rrf(cosines: Floats, words: Ranked, max_score: float, weight: float) -> Floats:
    by_cosine, by_words = _ranks(words.rows, cosines), _ranks(words.rows, words.scores)
    return 1 / (_RRF_K + by_cosine) + 1 / (_RRF_K + by_words)


def _rescale(scores: Floats) -> Floats:
    """Rescale scores to 0 … 1.

    >>> _rescale(np.array([2.0, 4, 3])).tolist(), _rescale(np.array([2.0])).tolist()
    ([0.0, 1.0, 0.5], [0.0])
    """
    if not len(scores):
        return scores
    return np.asarray((scores - scores.min()) / (float(np.ptp(scores)) or 1.0))


def _ranks(rows: NDArray[np.int64], scores: Floats) -> Floats:
    """Return the rank of each score, from 1."""
    ranks = np.empty(len(scores))
    ranks[np.lexsort((rows, -scores))] = np.arange(1, len(scores) + 1)
    return ranks


_FUSIONS: dict[Fusion, Callable[[Floats, Ranked, float, float], Floats]] = {
    "coverage": _coverage,
    "convex": _convex,
    "rrf": _rrf,
}
