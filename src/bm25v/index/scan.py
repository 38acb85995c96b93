"""Scores straight from the bags, in numpy: no index to build, for few searches or few rows."""

import numpy as np
from numpy.typing import NDArray

from bm25v.index.asked import Asked, Bags, Found
from bm25v.index.statistics import Statistics, saturation
from bm25v.vocabulary.bag import dequantise

_BLOCK_ROWS = 65_536


def scan(bags: Bags, rows: NDArray[np.int64], statistics: Statistics, asked: Asked) -> Found:
    """Return those of the given rows that have a word that is asked for, and their scores."""
    words_nk, tf_nk = bags
    asked_v = asked.place_v > 0
    found, scores = [np.empty(0, np.int64)], [np.empty(0, np.float64)]
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = rows[start : start + _BLOCK_ROWS]
        which = _as_slice(block)
        words_bk, tf_bk = words_nk[which], tf_nk[which]
        places, slots = np.divmod(np.flatnonzero(asked_v[words_bk]), words_bk.shape[1])
        tf = tf_bk[places, slots]
        if not tf.all():  # a slot with tf 0 is empty
            places, slots, tf = places[tf > 0], slots[tf > 0], tf[tf > 0]
        touched, which_touched = np.unique(places, return_inverse=True)
        norms = statistics.length_norms(tf_bk[touched].sum(axis=1, dtype=np.int64))
        gains = asked.gains[asked.place_v[words_bk[places, slots]]]
        values = gains * saturation(dequantise(tf), norms[which_touched])
        summed = np.bincount(which_touched, values, minlength=len(touched))  # in this order
        found.append(block[touched])
        scores.append(summed.astype(np.float64))
    return np.concatenate(found), np.concatenate(scores)


def sums(
    bags: Bags, words: NDArray[np.integer], values: NDArray[np.float64], n_words: int
) -> NDArray[np.float64]:
    """Return for each row the sum of the values of its words."""
    words_nk, tf_nk = bags
    values_v = np.zeros(n_words)
    values_v[words] = values
    sums_n = np.empty(len(words_nk))
    for start in range(0, len(words_nk), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        values_bk = values_v[words_nk[block]]
        sums_n[block] = np.where(tf_nk[block] > 0, values_bk, 0).sum(axis=1)
    return sums_n


def _as_slice(rows: NDArray[np.int64]) -> slice | NDArray[np.int64]:
    """Return ascending rows as a slice if none is missing: that saves a copy of their bags."""
    first, end = int(rows[0]), int(rows[-1]) + 1
    return slice(first, end) if end - first == len(rows) else rows
