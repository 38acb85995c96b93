"""The order of all images of a collection by a cosine, by the terms of a text, or by both."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import Rows, Vectors

_COSINE_ERROR = 1e-5  # of a cosine that Qdrant computes
_HALF_ERROR = 5e-4  # of one with a half of the vectors: rounded to float16, halves differ in length
_ONE = np.float32(1)


class Order:
    """Scores all images.

    The score grows with the cosine of each direction; those of an excluded term are reversed.
    `slack` is by how much other parts of a score, such as words, may differ between two images,
    `dim` the size of the vectors of points.
    """

    def __init__(
        self,
        dense_e: NDArray[np.float32] | None,
        terms: Sequence[ConceptTerm],
        weight: float,
        slack: float,
        dim: int,
    ) -> None:
        self._dense_e, self._terms, self._weight, self.slack = dense_e, terms, weight, slack
        own = [] if dense_e is None else [dense_e]
        of_terms = [_sign(term) * weights_e for term in terms for weights_e in term.weights_ce]
        directions = {vector.tobytes(): vector for vector in (*own, *of_terms)}
        self.directions: list[NDArray[np.float32]] = list(directions.values())
        lengths = weight * sum(float(np.linalg.norm(vector)) for vector in of_terms)
        is_whole = all(len(vector) == dim for vector in self.directions)
        error = _COSINE_ERROR if is_whole else _HALF_ERROR
        self.largest_error = error * (len(own) + lengths)

    def score(self, vectors: Vectors, n: int) -> NDArray[np.float64]:
        rows, scores = np.arange(n), np.zeros(n)
        if self._dense_e is not None:
            scores += vectors.cosines(self._dense_e, rows)
        for term in self._terms:
            if isinstance(vectors, KnownCosines):
                vectors = vectors.with_sign(_sign(term))
            scores += self._weight * term.log_probabilities(vectors, rows)
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
        return self._sign * self._known[(self._sign * query_e).tobytes()][rows]

    def with_sign(self, sign: np.float32) -> "KnownCosines":
        other = KnownCosines((), (), sign)
        other._known = self._known
        return other


def _sign(term: ConceptTerm) -> np.float32:
    return -_ONE if term.is_excluded else _ONE
