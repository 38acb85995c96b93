"""What a mode is: the parts that a score is the sum of, and what they are computed from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords

Mode = Literal["hybrid", "words", "two-stage", "sparse", "dense"]


@dataclass(frozen=True)
class Scoring:
    """score = cosine · similarity + words · BM25.

    Beside the cosine, BM25 counts as a share of the highest score that the query can reach; for a
    text, as the lexicon has learned.
    """

    cosine: float
    words: float
    source: Literal["index", "all"]  # what is ordered: the best by the index, or all images
    bags: Literal["index", "full"]  # that BM25 reads
    order: str  # by what hits are sorted, for people
    candidates: int = 0  # images that the index passes on; 0: as many as hits are asked for
    few_candidates: int = 0  # the same for the first `FEW_HITS` hits: more would seldom add one

    def count_candidates(self, n_hits: int) -> int:
        """Return how many images the index passes on by default, for so many hits."""
        return self.few_candidates if n_hits <= FEW_HITS else self.candidates

    @property
    def by_words_alone(self) -> bool:
        return self.words > 0 and not self.is_sum

    @property
    def is_sum(self) -> bool:
        """Whether BM25 is added to another part."""
        return self.words > 0 and self.cosine > 0


FEW_HITS = 20
HYBRID_WEIGHT = 1.5  # of BM25 as a share of the query's highest score; a cosine is at most 1
MODES: Mapping[Mode, Scoring] = {
    "hybrid": Scoring(
        1,
        HYBRID_WEIGHT,
        "index",
        "full",
        "similarity + {factor:.3g} × BM25",
        candidates=1000,
        few_candidates=300,
    ),
    "words": Scoring(0, 1, "index", "full", "words (BM25)", candidates=1000, few_candidates=300),
    "two-stage": Scoring(1, 0, "index", "index", "similarity", candidates=200, few_candidates=200),
    "sparse": Scoring(0, 1, "index", "index", "words of the index (BM25)"),
    "dense": Scoring(1, 0, "all", "index", "similarity"),
}


def share_factor(
    words: WeightedWords, scoring: Scoring, statistics: Statistics, parameters: Bm25Parameters
) -> float:
    """Return the factor by which BM25 counts beside the cosine.

    It counts as a share of the highest score that the query can reach.
    """
    if scoring.by_words_alone:
        return scoring.words
    highest = sum(np.maximum(statistics.idf_masses(words), 0).tolist())
    return scoring.words / (parameters.largest_saturation * highest or 1.0)
