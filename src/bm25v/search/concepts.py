"""Terms of a text and dense vectors in, the probability that each image shows them out.

A concept is a direction w and a bias b over the dense vector x, of length 1: its log-odds are
w · x + b. A term is one of several concepts; its probability is 1 − Π (1 − p), and that of an
excluded term Π (1 − p). A term adds the logarithm of its probability to a score, so that a score is
the logarithm of the probability of everything that the text names.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bm25v.search.text_terms import Term
from bm25v.vocabulary.concepts import Concepts

STRONG_FROM = 0.5  # probability of the least probable term of a hit
WEAK_BELOW = 0.05


class Comparable(Protocol):
    """Dense vectors in rows, to compare with."""

    def cosines(
        self, query_e: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> NDArray[np.float32]: ...


@dataclass(frozen=True, eq=False)
class ConceptTerm:
    """A term of a text as directions."""

    label: str  # "cat", or "without dog"
    is_excluded: bool
    weights_ce: NDArray[np.float32]
    biases_c: NDArray[np.float32]

    @classmethod
    def of(cls, term: Term, concepts: Concepts) -> "ConceptTerm":
        columns = sorted({concepts.table.concepts[c].column for c in term.concepts})
        label = f"without {term.label}" if term.is_excluded else term.label
        return cls(
            label, term.is_excluded, concepts.weights_ce[columns], concepts.biases_c[columns]
        )

    def log_probabilities(
        self, vectors: Comparable, rows: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Return the logarithm of the probability of the term in each of the given rows."""
        absent_r = np.zeros(len(rows))  # log Π (1 − p)
        present_r = np.zeros(len(rows))
        for weights_e, bias in zip(self.weights_ce, self.biases_c, strict=True):
            length = float(np.linalg.norm(weights_e.astype(np.float64)))
            cosine_r = vectors.cosines(weights_e, rows).astype(np.float64)
            log_odds_r = length * cosine_r + float(bias)
            present_r = _log_sigmoid(log_odds_r)
            absent_r += _log_sigmoid(-log_odds_r)
        if self.is_excluded:
            return absent_r
        return present_r if len(self.biases_c) == 1 else np.log(-np.expm1(absent_r))


def sum_log_probabilities(
    terms: Sequence[ConceptTerm], vectors: Comparable, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the logarithm of the probability of all terms in each of the given rows."""
    values = (term.log_probabilities(vectors, rows) for term in terms)
    return sum(values, start=np.zeros(len(rows)))


def _log_sigmoid(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.minimum(values, 0) - np.log1p(np.exp(-np.abs(values)))
