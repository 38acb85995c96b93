"""What hiding patches did to scores, as curves and areas below them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.research.faithfulness.hiding import Way
from bm25v.research.faithfulness.orders import DENSE, MIDDLE, ORDERS, OURS, RANDOM
from bm25v.research.statistics import Comparison, Interval, compare, interval, intervals, ratio

RIVALS = (RANDOM, MIDDLE, DENSE)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """A score over the share of patches hidden, or shown; that of the whole picture is 1."""

    shares_s: Floats
    values_oqs: dict[str, Floats]  # by order: a row a pair

    @cached_property
    def areas_oq(self) -> dict[str, Floats]:
        """The area below each curve: 1 if the score stayed whole throughout."""
        return {
            name: np.asarray(np.trapezoid(values_qs, self.shares_s, axis=1))
            for name, values_qs in self.values_oqs.items()
        }

    def area(self, order: str) -> Interval:
        """Return the mean area of an order."""
        return interval(self.areas_oq[order])

    def steps(self, order: str) -> list[Interval]:
        """Return the mean score at each share."""
        return intervals(self.values_oqs[order])

    def compared(self, order: str) -> Comparison:
        """Return the area of the explanation's order against another one's."""
        return compare(self.areas_oq[OURS], self.areas_oq[order])


class Scores(NamedTuple):
    """Curves of one score: hiding what matters first, and showing it first."""

    deletion: Curves
    insertion: Curves


class OneWord(NamedTuple):
    """What is left of one word's contribution, as a share, a value a pair."""

    patches_q: Floats  # where the word is
    hidden_q: Floats  # after hiding these
    random_q: Floats  # after hiding as many random ones


@dataclass(frozen=True)
class Hidden:
    """What one way of hiding did to all pairs."""

    bm25: Scores
    cosine: Scores
    word: OneWord

    def deletion_ratio(self, rival: str) -> Interval:
        """Return how many times the explanation's deletion area another order's is."""
        areas = self.bm25.deletion.areas_oq
        return ratio(areas[rival], areas[OURS])

    def insertion_ratio(self, rival: str) -> Interval:
        """Return how many times another order's insertion area the explanation's is."""
        areas = self.bm25.insertion.areas_oq
        return ratio(areas[OURS], areas[rival])

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        word = self.word
        return {
            "orders": {name: self._order(name) for name in ORDERS},
            "against": {name: self._against(name) for name in RIVALS},
            "one_word": {
                "patches": interval(word.patches_q)._asdict(),
                "left": interval(word.hidden_q)._asdict(),
                "left_random": interval(word.random_q)._asdict(),
                "p": compare(word.hidden_q, word.random_q).p,
            },
        }

    def _order(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for score, (deletion, insertion) in (("bm25", self.bm25), ("cosine", self.cosine)):
            found[score] = {
                "deletion": deletion.area(name)._asdict(),
                "insertion": insertion.area(name)._asdict(),
                "deletion_curve": [step.mean for step in deletion.steps(name)],
                "insertion_curve": [step.mean for step in insertion.steps(name)],
            }
        return found

    def _against(self, name: str) -> dict[str, Any]:
        return {
            "deletion_ratio": self.deletion_ratio(name)._asdict(),
            "deletion_p": self.bm25.deletion.compared(name).p,
            "insertion_ratio": self.insertion_ratio(name)._asdict(),
            "insertion_p": self.bm25.insertion.compared(name).p,
        }


@dataclass(frozen=True)
class Faithfulness:
    """What was measured on a data set, by the way of hiding."""

    title: str
    pictures: int
    pairs: int
    seed: int
    vocabulary: dict[str, Any]
    problems: list[str]
    ways: dict[Way, Hidden]

    @property
    def shares(self) -> list[float]:
        """The shares of patches that were hidden, or shown."""
        shares: list[float] = next(iter(self.ways.values())).bm25.deletion.shares_s.tolist()
        return shares

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "dataset": self.title,
            "pictures": self.pictures,
            "pairs": self.pairs,
            "seed": self.seed,
            "shares": self.shares,
            "ways": {way: hidden.to_dict() for way, hidden in self.ways.items()},
            "problems": self.problems,
            "vocabulary": self.vocabulary,
        }
