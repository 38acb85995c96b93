"""All that a person asks for, ready to be searched."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes


@dataclass(frozen=True)
class EncodedQuery:
    """Weighted words, words that pictures must or must not have, and a dense vector if any.

    `codes` say where the words are in each picture asked with, in the region that counts.
    """

    query: WeightedWords
    must: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    boosted: tuple[int, ...] = ()
    dense_e: NDArray[np.float32] | None = None
    no_dense: str = ""  # why there is none
    codes: tuple[Codes, ...] = ()
    text: str | None = None
    notes: tuple[str, ...] = ()  # where the words come from, if that is not plain

    @property
    def is_filtered(self) -> bool:
        """Whether some pictures are out of the question, however similar."""
        return bool(self.must or self.without)

    @property
    def wanted(self) -> WeightedWords:
        """The words that speak for a picture."""
        chosen = self.query.weights > 0
        words, weights, frequencies = self.query
        return WeightedWords(words[chosen], weights[chosen], frequencies[chosen])
