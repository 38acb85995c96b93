"""What orders all images of a collection by directions of dense vectors: a cosine, terms, or both.

In: a vector and the terms of a text. Out: scores, and by how much those of Qdrant may be wrong. Not
this module's job: which images are compared (`view`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import Rows, Vectors

_COSINE_ERROR = 1e-5  # of a cosine that Qdrant computes
_ONE = np.float32(1)


class Order:
    """What orders all images: a cosine, terms of a text, or both.

    The score grows with the cosine of each direction; those of an excluded term are turned round.
    `slack` is by how much other parts of a score, such as words, may differ between two images.
    """

    def __init__(
        self,
        dense_e: NDArray[np.float32] | None,
        terms: Sequence[ConceptTerm],
        weight: float,
        slack: float,
    ) -> None:
        self._dense_e, self._terms, self._weight, self.slack = dense_e, terms, weight, slack
        own = [] if dense_e is None else [dense_e]
        turned = [sign * w for t in terms for sign in (_sign(t),) for w in t.weights_ce]
        directions = {vector.tobytes(): vector for vector in (*own, *turned)}
        self.directions: list[NDArray[np.float32]] = list(directions.values())
        lengths = weight * sum(float(np.linalg.norm(vector)) for vector in turned)
        self.largest_error = _COSINE_ERROR * (len(own) + lengths)

    def score(self, vectors: Vectors, n: int) -> NDArray[np.float64]:
        """Return the score of each of the first n rows."""
        rows, scores = np.arange(n), np.zeros(n)
        if self._dense_e is not None:
            scores += vectors.cosines(self._dense_e, rows)
        for term in self._terms:
            scores += self._weight * term.log_probabilities(_turn(vectors, _sign(term)), rows)
        return scores


class KnownCosines:
    """Cosines by direction, in place of vectors; with sign -1, of the opposite directions."""

    def __init__(
        self,
        directions: Sequence[NDArray[np.float32]],
        columns: Sequence[Sequence[float]],
        sign: np.float32 = _ONE,
    ) -> None:
        self._sign = sign
        self._known = {
            vector.tobytes(): np.array(column, dtype=np.float32)
            for vector, column in zip(directions, columns, strict=True)
        }

    def cosines(self, query_e: NDArray[np.float32], rows: Rows) -> NDArray[np.float32]:
        """Return the cosine of a direction and each of some rows."""
        return self._sign * self._known[(self._sign * query_e).tobytes()][rows]

    def turned(self, sign: np.float32) -> "KnownCosines":
        """Return the same for a term whose directions have this sign."""
        other = KnownCosines((), (), sign)
        other._known = self._known
        return other


def _sign(term: ConceptTerm) -> np.float32:
    return -_ONE if term.is_excluded else _ONE


def _turn(vectors: Vectors, sign: np.float32) -> Vectors:
    return vectors.turned(sign) if isinstance(vectors, KnownCosines) else vectors
