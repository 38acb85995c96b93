"""The counts behind every score: N, df of each word, average length. Always live."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import K1, B
from bm25v.vocabulary.bag import SCALE

_BLOCK_ROWS = 16_384  # counted at once: they fit into the cache


@dataclass(frozen=True)
class Statistics:
    """N, document frequencies and total length of a set of bags."""

    n: int
    df_v: NDArray[np.int64]
    total_length: int  # in quantised units, so that it stays a whole number

    @classmethod
    def of(
        cls, words_nk: NDArray[np.unsignedinteger], tf_nk: NDArray[np.uint16], n_words: int
    ) -> "Statistics":
        """Count fixed-width bags; a slot with tf 0 is empty."""
        df_v = np.zeros(n_words, dtype=np.int64)
        total_length = 0
        for start in range(0, len(words_nk), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            words, tf = words_nk[block].ravel(), tf_nk[block].ravel()
            df_v += np.bincount(words if tf.all() else words[tf > 0], minlength=n_words)
            total_length += int(tf.sum(dtype=np.int64))
        return cls(len(words_nk), df_v, total_length)

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.n + other.n, self.df_v + other.df_v, self.total_length + other.total_length
        )

    def __sub__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            self.n - other.n, self.df_v - other.df_v, self.total_length - other.total_length
        )

    @property
    def n_words(self) -> int:
        """V, the number of words there could be."""
        return len(self.df_v)

    @property
    def average_length(self) -> float:
        """The mean |d|, in term frequency units."""
        return self.total_length / SCALE / max(self.n, 1)

    def idf(self, words: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return ln(1 + (N - df + 0.5) / (df + 0.5)) of each word (equation 2)."""
        df = self.df_v[words]
        return np.asarray(np.log(1 + (self.n - df + 0.5) / (df + 0.5)), dtype=np.float64)

    @property
    def usual_length(self) -> float:
        """The average length, or 1 where no picture has a word and any will do."""
        return self.average_length or 1.0

    def length_norms(self, lengths: NDArray[np.integer]) -> NDArray[np.float64]:
        """Return k1 (1 - b + b |d| / average) for quantised lengths."""
        return K1 * (1 - B + B * (lengths / SCALE) / self.usual_length)


def saturation(frequencies: NDArray[np.float64], norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return tf (k1 + 1) / (tf + norm): how much of a word's IDF a picture earns."""
    return frequencies * (K1 + 1) / (frequencies + norms)
