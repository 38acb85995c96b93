"""Scores straight from the bags, in numpy: no index to build, for few searches or few rows."""

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import dequantise
from bm25v.index.asked import Asked, Bags, Found
from bm25v.index.statistics import Statistics, saturation

_BLOCK_ROWS = 65_536


def scan(bags: Bags, rows: NDArray[np.int64], statistics: Statistics, asked: Asked) -> Found:
    """Return those of the given rows that have a word that is asked for, and their scores."""
    words_nk, tf_nk = bags
    found, scores = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        words_bk, tf_bk = words_nk[block], tf_nk[block]
        places, slots = np.nonzero((asked.place_v[words_bk] > 0) & (tf_bk > 0))
        touched, which = np.unique(places, return_inverse=True)
        lengths = tf_bk[touched].sum(axis=1, dtype=np.int64)
        norms = statistics.length_norms(lengths)
        frequencies = dequantise(tf_bk[places, slots])
        gained = asked.gains[asked.place_v[words_bk[places, slots]]]
        values = gained * saturation(frequencies, norms[which])
        found.append(block[touched])
        summed = np.bincount(which, values, minlength=len(touched))  # in this order
        scores.append(summed.astype(np.float64))
    return np.concatenate(found), np.concatenate(scores)
