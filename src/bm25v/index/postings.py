"""The inverted index: for each word, the rows that have it and how often."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Postings:
    """Rows and term frequencies, word after word; within a word the rows ascend."""

    offsets: NDArray[np.int64]  # word w holds the slots offsets[w] to offsets[w + 1]
    rows: NDArray[np.int32]
    tf: NDArray[np.uint16]

    @classmethod
    def build(
        cls, words_nk: NDArray[np.unsignedinteger], tf_nk: NDArray[np.uint16], n_words: int
    ) -> "Postings":
        """Invert fixed-width bags; a slot with tf 0 is empty."""
        rows, slots = np.nonzero(tf_nk)
        words = words_nk[rows, slots]
        order = np.argsort(words, kind="stable")
        offsets = np.zeros(n_words + 1, dtype=np.int64)
        np.cumsum(np.bincount(words, minlength=n_words), out=offsets[1:])
        return cls(offsets, rows[order].astype(np.int32), tf_nk[rows, slots][order])

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_words(self) -> int:
        """V, the number of words there could be."""
        return len(self.offsets) - 1
