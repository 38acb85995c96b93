"""A BM25 score taken apart: which words gave how much. The parts sum to the score."""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from bm25v.index.bm25 import WeightedWords
from bm25v.index.statistics import Statistics, saturation
from bm25v.vocabulary.bag import Bag


class Contribution(NamedTuple):
    """What one shared word gives to one picture's score: weight · idf · saturation."""

    word: int
    idf: float
    query_tf: float
    tf: float
    saturation: float
    value: float
    weight: float
    df: int


def contributions(query: WeightedWords, bag: Bag, statistics: Statistics) -> list[Contribution]:
    """Return the shared words' parts of the score, largest first."""
    _, in_query, in_bag = np.intersect1d(
        query.words, bag.words, assume_unique=True, return_indices=True
    )
    words = query.words[in_query]
    idf = statistics.idf(words)
    frequencies = bag.frequencies[in_bag]
    norm = statistics.length_norms(bag.tf.sum(dtype=np.int64, keepdims=True))
    saturations = saturation(frequencies, norm)
    weights = query.weights[in_query]
    columns = (
        words,
        idf,
        query.frequencies[in_query],
        frequencies,
        saturations,
        weights * idf * saturations,
        weights,
        statistics.df_v[words],
    )
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return sorted((Contribution(*row) for row in rows), key=lambda part: (-part.value, part.word))


def total(parts: Iterable[Contribution]) -> float:
    """Return the score that parts make up, added in the order that the searcher adds them."""
    score = 0.0  # not `sum`, which rounds in its own way in newer Pythons
    for part in sorted(parts, key=lambda part: part.word):
        score += part.value
    return score
