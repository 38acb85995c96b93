"""The order of all images of a collection by a cosine, by the terms of a text, or by both.

Qdrant finds the best images by one direction. Those by all directions are found by the threshold
algorithm: no other image is better than one that is in each direction as good as the last of the
best by that direction.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from qdrant_client import models

from bm25v.search.concepts import ConceptTerm
from bm25v.search.encode import EncodedQuery
from bm25v.store.base import Rows
from bm25v.store.qdrant.calls import Calls, Scored, with_ids
from bm25v.store.qdrant.points import DENSE, to_dense_query

MORE = 16  # images fetched beyond those needed
GROWTH = 4  # times as many are fetched if these do not decide

_COSINE_ERROR = 1e-5  # of a cosine that Qdrant computes
_HALF_ERROR = 5e-4  # of one with a half of the vectors: rounded to float16, halves differ in length
_ONE = np.float32(1)


class Order:
    """Scores all images by what a query has beside words.

    The score grows with the cosine of each direction; those of an excluded term are reversed. BM25
    may add to it: `_slack` is by how much that may differ between two images.
    """

    def __init__(self, encoded: EncodedQuery, calls: Calls, dim: int) -> None:
        scoring = encoded.scoring
        self._calls, self._dim = calls, dim
        self._dense_e = encoded.dense_e if scoring.cosine else None
        self._terms, self._weight = encoded.terms, scoring.terms
        self._slack = scoring.words if encoded.ranks_by_words else 0.0
        own = [] if self._dense_e is None else [self._dense_e]
        of_terms = [_sign(t) * weights_e for t in self._terms for weights_e in t.weights_ce]
        # By their bytes, because terms may share directions.
        self._directions = {vector.tobytes(): vector for vector in (*own, *of_terms)}
        lengths = self._weight * sum(float(np.linalg.norm(vector)) for vector in of_terms)
        is_whole = all(len(vector) == dim for vector in self._directions.values())
        error = _COSINE_ERROR if is_whole else _HALF_ERROR
        self._largest_error = error * (len(own) + lengths)

    def find_best(self, n: int, allowed: models.Filter | None) -> list[str]:
        """Return the ids of images that include the n best."""
        limit = n + MORE
        while True:
            best = self._query(limit, allowed)
            ids = list(dict.fromkeys(key for scored in best for key in scored.ids))
            if len(ids) <= n:  # there are no more
                return ids
            scores = self._score([best[0].scores] if len(best) == 1 else self._compare(ids))
            needed = np.partition(scores, -n)[-n]
            best_other = -np.inf
            if all(len(scored.ids) == limit for scored in best):
                best_other = float(self._score([scored.scores[-1:] for scored in best])[0])
            if needed > best_other + self._slack + self._largest_error:
                kept = np.flatnonzero(scores >= needed - self._slack - self._largest_error)
                return [ids[i] for i in kept.tolist()]
            limit *= GROWTH

    def _query(self, limit: int, allowed: models.Filter | None) -> list[Scored]:
        """Return the best images by each direction, by one call for each: it reads all vectors."""
        scored = []
        for direction in self._directions.values():
            vector, factor = to_dense_query(direction, self._dim)
            ids, scores = self._calls.query(vector, DENSE, limit, allowed)
            scored.append(Scored(ids, [factor * score for score in scores]))
        return scored

    def _compare(self, ids: list[str]) -> list[list[float]]:
        """Return the cosines of some images with each direction."""
        scored = self._query(len(ids), with_ids(ids))
        known = (dict(zip(*column, strict=True)) for column in scored)
        return [[cosine_of.get(key, -1.0) for key in ids] for cosine_of in known]

    def _score(self, columns: Sequence[Sequence[float]]) -> NDArray[np.float64]:
        """Return the scores of images by their cosines with each direction."""
        pairs = zip(self._directions, columns, strict=True)
        known = {key: np.array(column, dtype=np.float32) for key, column in pairs}
        rows = np.arange(len(columns[0]))
        scores = np.zeros(len(rows))
        if self._dense_e is not None:
            scores += _KnownCosines(known, _ONE).cosines(self._dense_e, rows)
        for term in self._terms:
            cosines = _KnownCosines(known, _sign(term))
            scores += self._weight * term.log_probabilities(cosines, rows)
        return scores


class _KnownCosines(NamedTuple):
    """Cosines by direction, in place of vectors; with sign -1, of the opposite directions."""

    by_direction: dict[bytes, NDArray[np.float32]]
    sign: np.float32

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        return self.sign * self.by_direction[(self.sign * query_e).tobytes()][rows]


def _sign(term: ConceptTerm) -> np.float32:
    return -_ONE if term.is_excluded else _ONE
