"""What a mode is: the parts that a score is the sum of, and what they are computed from."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Mode = Literal["hybrid", "words", "two-stage", "sparse", "dense", "concepts"]


@dataclass(frozen=True)
class Scoring:
    """score = cosine · similarity + words · BM25 + terms · ln(probability of a text's terms).

    Beside another part, BM25 counts as a share of the highest score that the query can reach.
    """

    cosine: float
    words: float
    terms: float
    source: Literal["index", "all"]  # what is ordered: the best by the index, or all images
    bags: Literal["index", "full"]  # that BM25 reads
    order: str  # by what hits are sorted, for people
    candidates: int = 0  # images that the index passes on; 0: as many as hits are asked for

    @property
    def by_words_alone(self) -> bool:
        return self.words > 0 and not self.is_sum

    @property
    def is_sum(self) -> bool:
        """Whether BM25 is added to another part."""
        return self.words > 0 and (self.cosine > 0 or self.source == "all")

    @property
    def by_terms(self) -> bool:
        """Whether hits are ordered by a text alone."""
        return self.source == "all" and not self.cosine


HYBRID_WEIGHT = 1.5  # of BM25 as a share of the query's highest score; a cosine is at most 1
MODES: Mapping[Mode, Scoring] = {
    "hybrid": Scoring(
        1, HYBRID_WEIGHT, 0.1, "index", "full", "similarity + {factor:.3g} × BM25", candidates=1000
    ),
    "words": Scoring(0, 1, 1, "index", "full", "words (BM25)", candidates=1000),
    "two-stage": Scoring(1, 0, 0.1, "index", "index", "similarity", candidates=200),
    "sparse": Scoring(0, 1, 1, "index", "index", "words of the index (BM25)"),
    "dense": Scoring(1, 0, 0.1, "all", "index", "similarity"),
    "concepts": Scoring(0, 5, 1, "all", "full", "the probability of what the text names"),
}
IMAGE_MODES: tuple[Mode, ...] = ("hybrid", "words", "two-stage", "sparse", "dense")  # not of texts
