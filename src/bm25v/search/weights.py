"""How much each word counts: pictures, examples and counter-examples become one query."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.index.bm25 import WeightedWords
from bm25v.vocabulary.bag import Bag

LIKED = 0.75  # what a word of all liked pictures counts, beside the 1 of the pictures asked with
AGAINST = 0.5  # what a word of all counter-examples counts against a picture


def from_bags(
    pictures: Sequence[Bag],
    *,
    liked: Sequence[Bag] = (),
    against: Sequence[Bag] = (),
    by_strength: bool = False,
) -> WeightedWords:
    """Return what several pictures ask for together (Rocchio, over presence).

    A word counts the share of the pictures that have it, and `LIKED` times the share of the liked
    ones, less `AGAINST` times the share of the counter-examples. Below 0, it speaks against.
    By strength, a picture has a word only by the square root of how strong it is in it, beside
    the picture's strongest word; words of no strength, a text's, still count in full.

    >>> ear_grass, ear_sofa, sofa = (
    ...     Bag(np.array(words, np.int32), np.full(len(words), 100, np.uint16))
    ...     for words in ([1, 2], [1, 7], [7]))
    >>> query = from_bags([ear_grass, ear_sofa], against=[sofa])
    >>> query.words.tolist(), query.weights.tolist()
    ([1, 2, 7], [1.0, 0.5, 0.0])
    """
    bags = (*pictures, *liked, *against)
    words = np.unique(np.concatenate([np.empty(0, np.int32), *(bag.words for bag in bags)]))
    shares, good, bad = (_shares(words, kind, by_strength) for kind in (pictures, liked, against))
    weights = shares + LIKED * good - AGAINST * bad
    frequencies = np.zeros(len(words))
    for bag in pictures:
        frequencies[np.searchsorted(words, bag.words)] += bag.frequencies / len(pictures)
    return WeightedWords(words, weights, frequencies)


def steered(
    query: WeightedWords,
    *,
    must: Collection[int] = (),
    without: Collection[int] = (),
    boost: Mapping[int, float] | None = None,
) -> WeightedWords:
    """Return the query with words added, left out and weighed differently.

    A word that a picture must have is asked for. `boost` multiplies a word's weight; a word that
    the query does not have is asked for first. What counts 0 is left out.

    >>> bag = Bag(np.array([3, 9], np.int32), np.array([150, 20], np.uint16))
    >>> query = WeightedWords.from_bag(bag)
    >>> query = steered(query, must=[5], without=[9], boost={3: 2.0, 8: 0.5})
    >>> query.words.tolist(), query.weights.tolist()
    ([3, 5, 8], [2.0, 1.0, 0.5])
    """
    boost = boost or {}
    _require_sense(must, without, boost)
    found = zip(query.weights.tolist(), query.frequencies.tolist(), strict=True)
    asked = dict(zip(query.words.tolist(), found, strict=True))
    for word in (*must, *boost):
        asked.setdefault(word, (1.0, 0.0))
    for word, factor in boost.items():
        weight, frequency = asked[word]
        asked[word] = (weight * factor, frequency)
    kept = sorted(w for w, (weight, _) in asked.items() if weight != 0 and w not in without)
    return WeightedWords(
        np.array(kept, dtype=np.int32),
        np.array([asked[word][0] for word in kept], dtype=np.float64),
        np.array([asked[word][1] for word in kept], dtype=np.float64),
    )


def blended(
    pictures: Sequence[NDArray[np.floating]],
    *,
    liked: Sequence[NDArray[np.floating]] = (),
    against: Sequence[NDArray[np.floating]] = (),
) -> NDArray[np.float32]:
    """Return one dense vector of length 1 for several, weighed as `from_bags` weighs words.

    >>> blended([np.array([3.0, 0.0]), np.array([0.0, 5.0])]).round(3).tolist()
    [0.7070000171661377, 0.7070000171661377]
    """
    mixed_e = sum(
        (
            share * np.mean([_unit(vector_e) for vector_e in vectors], axis=0)
            for share, vectors in ((1.0, pictures), (LIKED, liked), (-AGAINST, against))
            if len(vectors)
        ),
        start=np.float64(0),
    )
    return _unit(np.asarray(mixed_e)).astype(np.float32)


def _shares(
    words: NDArray[np.int32], bags: Sequence[Bag], by_strength: bool
) -> NDArray[np.float64]:
    """Return the share of the bags that have each word."""
    counts = np.zeros(len(words))
    for bag in bags:
        strongest = bag.tf.max(initial=0)
        has = np.sqrt(bag.tf / strongest) if by_strength and strongest else 1.0
        counts[np.searchsorted(words, bag.words)] += has
    return counts / max(len(bags), 1)


def _unit(vector_e: NDArray[np.floating]) -> NDArray[np.float64]:
    vector = vector_e.astype(np.float64)
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12))


def _require_sense(
    must: Collection[int], without: Collection[int], boost: Mapping[int, float]
) -> None:
    for word in without:
        if word in must:
            raise WrongUse(f"word {word}: pictures cannot both have it (must) and be without it")
        if word in boost:
            raise WrongUse(f"word {word}: pictures without it have nothing to boost")
    for word, factor in boost.items():
        if not np.isfinite(factor):
            raise WrongUse(f"boost of word {word} by {factor}: give a finite number, 0 to mute it")
