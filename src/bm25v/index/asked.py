"""A query as the loops over rows want it."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.index.bm25 import WeightedWords
from bm25v.index.statistics import Statistics

Bags = tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]  # words and term frequencies
Found = tuple[NDArray[np.int64], NDArray[np.float64]]  # rows and their scores


class Asked(NamedTuple):
    """A query's known words, what each is worth, and where to look that up."""

    words: NDArray[np.int64]
    gains: NDArray[np.float64]  # weight · idf of each, behind a 0 for all words not asked for
    place_v: NDArray[np.uint16]  # of each word in `gains`

    @classmethod
    def of(cls, query: WeightedWords, statistics: Statistics) -> "Asked":
        """Weigh a query's words; those that the vocabulary does not have are left out."""
        if not np.isfinite(query.weights).all():
            raise WrongUse(f"weights {query.weights.tolist()}: each must be a finite number")
        words, weights = query.words.astype(np.int64), query.weights
        if len(words) and words[-1] >= statistics.n_words:  # they ascend
            known = words < statistics.n_words
            words, weights = words[known], weights[known]
        gains = np.zeros(len(words) + 1)
        gains[1:] = weights * statistics.idf(words)
        place_v = np.zeros(statistics.n_words, dtype=np.uint16)
        place_v[words] = np.arange(1, len(words) + 1)
        return cls(words, gains, place_v)
