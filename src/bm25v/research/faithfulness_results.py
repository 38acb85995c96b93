"""Deletion and insertion curves of explanations, the areas under them, and tables of both.

Array letters: o orders of patches, q pairs of a query and a hit, s steps of a curve, x deletion and
insertion.
"""

from dataclasses import dataclass
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
KINDS = ("deletion", "insertion")

_NOTE = (
    "deletion: the score while the most important patches are masked first, lower is better; "
    "insertion: the score while they are revealed first, higher is better; both are areas under "
    "the curve"
)

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """A score over the share of patches that are masked, or revealed."""

    shares_s: Floats
    values_qoxs: Floats  # by ORDERS and KINDS

    def values(self, order: str, kind: str) -> Floats:
        return self.values_qoxs[:, ORDERS.index(order), KINDS.index(kind)]

    def aucs(self, order: str, kind: str) -> Floats:
        """Return the area under the curve of each pair: 1 if the score is 1 throughout."""
        return np.asarray(np.trapezoid(self.values(order, kind), self.shares_s, axis=1))

    def auc(self, order: str, kind: str) -> Interval:
        return confidence_interval(self.aucs(order, kind))

    def means(self, order: str, kind: str) -> list[Interval]:
        return confidence_intervals(self.values(order, kind))

    def compare(self, baseline: str, kind: str) -> Comparison:
        """Compare the areas of the explanation's order with those of another order."""
        return compare(self.aucs(EXPLANATION, kind), self.aucs(baseline, kind))

    def ratio(self, baseline: str, kind: str) -> Interval:
        """Return how many times better the explanation's area is than a baseline's."""
        ours, theirs = self.aucs(EXPLANATION, kind), self.aucs(baseline, kind)
        return ratio_interval(theirs, ours) if kind == "deletion" else ratio_interval(ours, theirs)


class WordDeletion(NamedTuple):
    """How much of one word's contribution is left after masking, as a share; a value per pair."""

    patches_q: Floats  # how many patches have the word
    left_q: Floats  # after masking these patches
    left_random_q: Floats  # after masking as many random patches


class MaskResult(NamedTuple):
    bm25: Curves  # relative to the score of the complete hit
    cosine: Curves
    word: WordDeletion

    def to_dict(self) -> dict[str, Any]:
        def describe_order(curves: Curves, order: str) -> dict[str, Any]:
            areas = {kind: curves.auc(order, kind)._asdict() for kind in KINDS}
            means = {
                f"{kind}_curve": [point.mean for point in curves.means(order, kind)]
                for kind in KINDS
            }
            return {**areas, **means}

        def compare_with(baseline: str) -> dict[str, Any]:
            compared: dict[str, Any] = {}
            for kind in KINDS:
                compared[f"{kind}_ratio"] = self.bm25.ratio(baseline, kind)._asdict()
                compared[f"{kind}_p"] = self.bm25.compare(baseline, kind).p
            return compared

        scores = {"bm25": self.bm25, "cosine": self.cosine}
        patches, left, left_random = map(confidence_interval, self.word)
        return {
            "orders": {
                order: {score: describe_order(curves, order) for score, curves in scores.items()}
                for order in ORDERS
            },
            "against": {baseline: compare_with(baseline) for baseline in BASELINES},
            "one_word": {
                "patches": patches._asdict(),
                "left": left._asdict(),
                "left_random": left_random._asdict(),
                "p": compare(self.word.left_q, self.word.left_random_q).p,
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
    shares: list[float]
    masks: dict[Mask, MaskResult]

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
    area_columns = ["deletion", "95 %", "insertion", "95 %", "cosine deletion", "cosine insertion"]
    areas = []
    for order in ORDERS:
        bm25 = [cell for kind in KINDS for cell in format_interval(measured.bm25.auc(order, kind))]
        cosine = [format_share(measured.cosine.auc(order, kind).mean) for kind in KINDS]
        areas.append([order, *bm25, *cosine])
    ratios = []
    for baseline in BASELINES:
        cells = [baseline]
        for kind in KINDS:
            mean, low, high = measured.bm25.ratio(baseline, kind)
            p = format_p(measured.bm25.compare(baseline, kind).p)
            cells += [f"{mean:.2f}× ({low:.2f}–{high:.2f})", p]
        ratios.append(cells)
    ratio_columns = ["explanation, times better than", "deletion", "p", "insertion", "p"]
    return ([f"order of patches, mask: {mask}", *area_columns], areas), (ratio_columns, ratios)


def describe_word(measured: MaskResult) -> str:
    """Return what is left of a word's contribution without its patches, in one sentence."""
    patches, *shares = map(confidence_interval, measured.word)
    left, left_random = ("{} ({})".format(*format_interval(share)) for share in shares)
    p = format_p(compare(measured.word.left_q, measured.word.left_random_q).p)
    return (
        f"one word per explanation: after masking its patches ({patches.mean:.1f} on average), "
        f"{left} of its contribution is left; after masking as many random patches, "
        f"{left_random} ({p})"
    )
