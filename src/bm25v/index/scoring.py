"""Compiled: the score of a bag, as `reference` has it.

Words are added in the order of `reference`, so scores are the same floats.
"""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import compiled
from bm25v.index.bm25 import K1, B
from bm25v.vocabulary.bag import SCALE

Words = NDArray[np.unsignedinteger]
Counts = NDArray[np.uint16]
Floats = NDArray[np.float64]
Places = NDArray[np.uint16]  # of each word in the query, from 1 on; 0 if it is not asked for
Found = tuple[NDArray[np.int64], Floats]  # rows and their scores


@compiled
def length_norm(tf_nk: Counts, row: int, average: float) -> float:
    """Return k1 (1 - b + b |d| / average) of a row."""
    length = 0
    for slot in range(tf_nk.shape[1]):
        length += tf_nk[row, slot]
    return K1 * (1 - B + B * (length / SCALE) / average)


@compiled
def exact_score(
    words_nk: Words, tf_nk: Counts, row: int, average: float, place_v: Places, gains: Floats
) -> float:
    """Return a row's BM25 score; `gains` are weight · idf of each place."""
    norm = length_norm(tf_nk, row, average)
    score = 0.0
    for slot in range(tf_nk.shape[1]):
        place = place_v[words_nk[row, slot]]
        if place > 0:
            frequency = tf_nk[row, slot] / SCALE
            score += gains[place] * (frequency * (K1 + 1) / (frequency + norm))
    return score


@compiled
def first_place(words_nk: Words, tf_nk: Counts, row: int, place_v: Places) -> int:
    """Return the lowest place among the row's words, or 0 if none of them is asked for."""
    lowest = 0
    for slot in range(tf_nk.shape[1]):
        place = place_v[words_nk[row, slot]]
        if place > 0 and tf_nk[row, slot] > 0 and (lowest == 0 or place < lowest):
            lowest = place
    return lowest


@compiled
def scan(
    words_nk: Words,
    tf_nk: Counts,
    rows: NDArray[np.int64],
    average: float,
    place_v: Places,
    gains: Floats,
) -> Found:
    """Return those of the given rows that have a word that is asked for, and their scores."""
    found = np.empty(len(rows), dtype=np.int64)
    scores = np.empty(len(rows), dtype=np.float64)
    n = 0
    for row in rows:
        if first_place(words_nk, tf_nk, row, place_v) > 0:
            found[n] = row
            scores[n] = exact_score(words_nk, tf_nk, row, average, place_v, gains)
            n += 1
    return found[:n], scores[:n]


@compiled
def score_far(
    rows: NDArray[np.int64],
    words_nk: Words,
    tf_nk: Counts,
    average: float,
    place_v: Places,
    gains: Floats,
) -> Floats:
    """Score rows that are far apart in memory: touched first, they arrive side by side."""
    touched = 0
    for row in rows:  # a bag may reach into a second line of the cache
        touched += words_nk[row, 0] + tf_nk[row, -1]
    scores = np.empty(len(rows), dtype=np.float64)
    for i in range(len(rows)):
        scores[i] = exact_score(words_nk, tf_nk, rows[i], average, place_v, gains)
    scores[touched:0] = 0  # changes nothing; unused, the sum would not be computed
    return scores
