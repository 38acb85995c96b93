"""The bags and vectors of a query's images in, one set of weighted words and one vector out.

Rocchio's formula over the presence of words: liked images count less than those of the query, and
counter-examples are subtracted. Options for single words are applied afterwards.
"""

import numbers
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import InvalidQuery
from bm25v.index.bm25 import WeightedWords
from bm25v.vocabulary.bag import Bag

MAX_BOOST = 1e6  # beyond, other words would not count at all, and sums might overflow
LIKED_WEIGHT = 0.75  # of a word that all liked images have; query images weigh 1
NEGATIVE_WEIGHT = 0.5  # subtracted for a word that all counter-examples have


def combine_bags(
    bags: Sequence[Bag],
    *,
    liked: Sequence[Bag] = (),
    negative: Sequence[Bag] = (),
    by_strength: bool = False,
) -> WeightedWords:
    """Return the words of several bags, each weighted by the share of the bags that have it.

    Liked bags count `LIKED_WEIGHT`, negative ones `-NEGATIVE_WEIGHT`. By strength, a bag has a word
    by the square root of its tf relative to the bag's strongest word; words without a tf, those of
    a text, count fully.

    >>> ear_grass, ear_sofa, sofa = (
    ...     Bag(np.array(words, np.int32), np.full(len(words), 100, np.uint16))
    ...     for words in ([1, 2], [1, 7], [7]))
    >>> query = combine_bags([ear_grass, ear_sofa], negative=[sofa])
    >>> query.words.tolist(), query.weights.tolist()
    ([1, 2, 7], [1.0, 0.5, 0.0])
    """
    all_words = [bag.words for bag in (*bags, *liked, *negative)]
    words = np.unique(np.concatenate([np.empty(0, np.int32), *all_words]))
    weights = (
        _shares(words, bags, by_strength)
        + LIKED_WEIGHT * _shares(words, liked, by_strength)
        - NEGATIVE_WEIGHT * _shares(words, negative, by_strength)
    )
    frequencies = np.zeros(len(words))
    for bag in bags:
        frequencies[np.searchsorted(words, bag.words)] += bag.frequencies / len(bags)
    return WeightedWords(words, weights, frequencies)


def add_words(parts: Sequence[WeightedWords]) -> WeightedWords:
    """Return the words of several parts of a query, with the sums of their weights.

    >>> part = WeightedWords(np.array([3, 9], np.int32), np.array([0.5, 0.25]), np.zeros(2))
    >>> add_words([part, part.scaled(2)]).weights.tolist()
    [1.5, 0.75]
    """
    words, positions = np.unique(
        np.concatenate([part.words for part in parts]), return_inverse=True
    )
    weights, frequencies = np.zeros(len(words)), np.zeros(len(words))
    np.add.at(weights, positions, np.concatenate([part.weights for part in parts]))
    np.add.at(frequencies, positions, np.concatenate([part.frequencies for part in parts]))
    return WeightedWords(words, weights, frequencies)


def _shares(
    words: NDArray[np.int32], bags: Sequence[Bag], by_strength: bool
) -> NDArray[np.float64]:
    counts = np.zeros(len(words))
    for bag in bags:
        strongest = bag.tf.max(initial=0)
        presence = np.sqrt(bag.tf / strongest) if by_strength and strongest else 1.0
        counts[np.searchsorted(words, bag.words)] += presence
    return counts / max(len(bags), 1)


def combine_vectors(
    vectors: Sequence[NDArray[np.floating]],
    *,
    liked: Sequence[NDArray[np.floating]] = (),
    negative: Sequence[NDArray[np.floating]] = (),
) -> NDArray[np.float32]:
    """Return one dense vector of length 1 for several, with the weights of `combine_bags`.

    It is as short as the shortest of them: regions and texts have no vector of a second backbone.

    >>> combine_vectors([np.array([3.0, 0.0]), np.array([0.0, 5.0])]).round(3).tolist()
    [0.7070000171661377, 0.7070000171661377]
    """
    weighted = ((1.0, vectors), (LIKED_WEIGHT, liked), (-NEGATIVE_WEIGHT, negative))
    width = min((len(v) for _, group in weighted for v in group), default=0)
    sum_e = sum(
        (
            weight * np.mean([normalise(v[:width].astype(np.float64)) for v in group], axis=0)
            for weight, group in weighted
            if len(group)
        ),
        start=np.float64(0),
    )
    return normalise(np.asarray(sum_e)).astype(np.float32)


def apply_word_options(
    query: WeightedWords,
    *,
    must: Collection[int] = (),
    without: Collection[int] = (),
    boost: Mapping[int, float] | None = None,
) -> WeightedWords:
    """Return the query with required and boosted words added and excluded words left out.

    `boost` multiplies a word's weight. Words with weight 0 are left out.

    >>> bag = Bag(np.array([3, 9], np.int32), np.array([150, 20], np.uint16))
    >>> query = WeightedWords.from_bag(bag)
    >>> query = apply_word_options(query, must=[5], without=[9], boost={3: 2.0, 8: 0.5})
    >>> query.words.tolist(), query.weights.tolist()
    ([3, 5, 8], [2.0, 1.0, 0.5])
    """
    boost = boost or {}
    _check_word_options(must, without, boost)
    if not must and not without and not boost:
        return query.select(np.flatnonzero(query.weights))
    pairs = zip(query.weights.tolist(), query.frequencies.tolist(), strict=True)
    terms = dict(zip(query.words.tolist(), pairs, strict=True))
    for word in (*must, *boost):
        terms.setdefault(word, (1.0, 0.0))
    for word, factor in boost.items():
        weight, frequency = terms[word]
        terms[word] = (weight * float(factor), frequency)
    kept = sorted(w for w, (weight, _) in terms.items() if weight != 0 and w not in without)
    return WeightedWords(
        np.array(kept, dtype=np.int32),
        np.array([terms[word][0] for word in kept], dtype=np.float64),
        np.array([terms[word][1] for word in kept], dtype=np.float64),
    )


def _check_word_options(
    must: Collection[int], without: Collection[int], boost: Mapping[int, Any]
) -> None:
    for word in without:
        if word in must:
            raise InvalidQuery(f"word {word} is both required (must) and excluded (without)")
        if word in boost:
            raise InvalidQuery(f"word {word} is excluded (without): it cannot be boosted")
    for word, factor in boost.items():
        is_number = isinstance(factor, numbers.Real) and not isinstance(factor, bool)
        if not is_number or not abs(factor) <= MAX_BOOST:
            raise InvalidQuery(
                f"boost of word {word} by {factor!r}: give a number from {-MAX_BOOST:,.0f} to "
                f"{MAX_BOOST:,.0f}; 0 mutes the word"
            )
