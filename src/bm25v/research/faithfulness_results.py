"""Deletion and insertion curves of explanations, the areas under them, and tables of both.

Array letters: o orders of patches, q pairs of a query and a hit, s steps of a curve.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bm25v.research.significance import (
    Comparison,
    Interval,
    compare,
    confidence_interval,
    confidence_intervals,
    ratio_interval,
)
from bm25v.research.tables import Cells, format_interval, format_p, format_share

Mask = Literal["grey", "blur"]
MASKS: tuple[Mask, ...] = get_args(Mask)

# Orders of patches; the explanation's order is compared with the three others.
EXPLANATION, DENSE, MIDDLE, RANDOM = "explanation", "dense", "middle", "random"
ORDERS = (EXPLANATION, DENSE, MIDDLE, RANDOM)
BASELINES = (RANDOM, MIDDLE, DENSE)

_NOTE = (
    "deletion: the score while the most important patches are masked first, lower is better; "
    "insertion: the score while they are revealed first, higher is better; both are areas under "
    "the curve"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """A score over the share of patches that are masked, or revealed, by order."""

    shares_s: Floats
    values_oqs: dict[str, Floats]  # per order, a row per pair

    @property
    def orders(self) -> list[str]:
        return list(self.values_oqs)

    @cached_property
    def aucs_oq(self) -> dict[str, Floats]:
        """The area under the curve of each pair: 1 if the score is 1 throughout."""
        return {
            order: np.asarray(np.trapezoid(values_qs, self.shares_s, axis=1))
            for order, values_qs in self.values_oqs.items()
        }

    def auc(self, order: str) -> Interval:
        return confidence_interval(self.aucs_oq[order])

    def means(self, order: str) -> list[Interval]:
        return confidence_intervals(self.values_oqs[order])

    def compare(self, order: str) -> Comparison:
        """Compare the areas of the explanation's order with those of another order."""
        return compare(self.aucs_oq[EXPLANATION], self.aucs_oq[order])


class CurvePair(NamedTuple):
    deletion: Curves
    insertion: Curves


class WordDeletion(NamedTuple):
    """How much of one word's contribution is left after masking, as a share; a value per pair."""

    patches_q: Floats  # how many patches have the word
    left_q: Floats  # after masking these patches
    left_random_q: Floats  # after masking as many random patches


@dataclass(frozen=True)
class MaskResult:
    bm25: CurvePair  # relative to the score of the complete hit
    cosine: CurvePair
    word: WordDeletion

    def deletion_ratio(self, baseline: str) -> Interval:
        """Return a baseline's deletion AUC, divided by the explanation's; above 1 is better."""
        aucs = self.bm25.deletion.aucs_oq
        return ratio_interval(aucs[baseline], aucs[EXPLANATION])

    def insertion_ratio(self, baseline: str) -> Interval:
        """Return the explanation's insertion AUC, divided by a baseline's; above 1 is better."""
        aucs = self.bm25.insertion.aucs_oq
        return ratio_interval(aucs[EXPLANATION], aucs[baseline])

    def to_dict(self) -> dict[str, Any]:
        word, scores = self.word, {"bm25": self.bm25, "cosine": self.cosine}
        return {
            "orders": {
                order: {
                    score: {
                        "deletion": deletion.auc(order)._asdict(),
                        "insertion": insertion.auc(order)._asdict(),
                        "deletion_curve": [point.mean for point in deletion.means(order)],
                        "insertion_curve": [point.mean for point in insertion.means(order)],
                    }
                    for score, (deletion, insertion) in scores.items()
                }
                for order in ORDERS
            },
            "against": {
                baseline: {
                    "deletion_ratio": self.deletion_ratio(baseline)._asdict(),
                    "deletion_p": self.bm25.deletion.compare(baseline).p,
                    "insertion_ratio": self.insertion_ratio(baseline)._asdict(),
                    "insertion_p": self.bm25.insertion.compare(baseline).p,
                }
                for baseline in BASELINES
            },
            "one_word": {
                "patches": confidence_interval(word.patches_q)._asdict(),
                "left": confidence_interval(word.left_q)._asdict(),
                "left_random": confidence_interval(word.left_random_q)._asdict(),
                "p": compare(word.left_q, word.left_random_q).p,
            },
        }


@dataclass(frozen=True)
class Faithfulness:
    title: str
    images: int
    pairs: int
    seed: int
    vocabulary: dict[str, Any]
    problems: list[str]
    masks: dict[Mask, MaskResult]

    @property
    def shares(self) -> list[float]:
        shares: list[float] = next(iter(self.masks.values())).bm25.deletion.shares_s.tolist()
        return shares

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.title,
            "n_images": self.images,
            "pairs": self.pairs,
            "seed": self.seed,
            "shares": self.shares,
            "masks": {mask: result.to_dict() for mask, result in self.masks.items()},
            "problems": self.problems,
            "vocabulary": self.vocabulary,
        }


def describe(result: Faithfulness) -> list[str]:
    words = result.vocabulary
    shares = ", ".join(f"{share:.0%}" for share in result.shares)
    return [
        f"{result.title}: {result.pairs:,} pairs of a query and a hit, {result.images:,} images to "
        f"search; seed {result.seed}; {shares} of the patches",
        f"vocabulary {words['name']}: {words['words']:,} words of {words['backbone']}, "
        f"k_post {words['k_post']}",
        _NOTE,
    ]


def mask_tables(mask: Mask, measured: MaskResult) -> tuple[Cells, Cells]:
    """Return the areas of all orders, and how they compare with the explanation's."""
    (deletion, insertion), cosine = measured.bm25, measured.cosine
    area_columns = ["deletion", "95 %", "insertion", "95 %", "cosine deletion", "cosine insertion"]
    areas = [
        [
            order,
            *format_interval(deletion.auc(order)),
            *format_interval(insertion.auc(order)),
            format_share(cosine.deletion.auc(order).mean),
            format_share(cosine.insertion.auc(order).mean),
        ]
        for order in ORDERS
    ]
    ratios = [
        [
            baseline,
            _times(measured.deletion_ratio(baseline)),
            format_p(deletion.compare(baseline).p),
            _times(measured.insertion_ratio(baseline)),
            format_p(insertion.compare(baseline).p),
        ]
        for baseline in BASELINES
    ]
    ratio_columns = ["explanation, times better than", "deletion", "p", "insertion", "p"]
    return ([f"order of patches, mask: {mask}", *area_columns], areas), (ratio_columns, ratios)


def describe_word(measured: MaskResult) -> str:
    """Return what is left of a word's contribution without its patches, in one sentence."""
    patches, *shares = (confidence_interval(values_q) for values_q in measured.word)
    left, left_random = ("{} ({})".format(*format_interval(share)) for share in shares)
    p = format_p(compare(measured.word.left_q, measured.word.left_random_q).p)
    return (
        f"one word per explanation: after masking its patches ({patches.mean:.1f} on average), "
        f"{left} of its contribution is left; after masking as many random patches, "
        f"{left_random} ({p})"
    )


def _times(ratio: Interval) -> str:
    return f"{ratio.mean:.2f}× ({ratio.low:.2f}–{ratio.high:.2f})"
