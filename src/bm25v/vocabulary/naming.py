"""Names words after the labels that are observed where the words are strong.

An occurrence is a word in one of the images that have most of it. A word gets the name of a label
that is observed in most of its occurrences and rarely elsewhere, and no name if there is none.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.vocabulary.bag import LEVELS
from bm25v.vocabulary.concepts import ConceptTable

STRONGEST = 24  # images of each word that its name is made from, at most
MIN_IMAGES = 6  # fewer prove nothing

_CHUNK_ROWS = 16_384
_SHOWN_AS = {  # by the first name of a concept
    "chelonian": "turtle",
    "domestic cat": "cat",
    "equine": "horse or zebra",
    "geological formation": "landscape",
    "mercantile establishment": "shop",
    "motor vehicle": "car or truck",
    "passerine": "songbird",
    "ungulate": "hoofed animal",
}
_SUFFIX = re.compile(r" [0-9]+$")  # the number of a word, which makes equal names distinct

Counts = NDArray[np.int64]


class Occurrences(NamedTuple):
    """Words in the images that have most of them, by word, the strongest first."""

    words_o: Counts
    rows_o: Counts
    patches_o: Counts  # where the word is strongest
    df_v: Counts  # how many images have each word

    @property
    def counts_v(self) -> Counts:
        return np.bincount(self.words_o, minlength=len(self.df_v))


class Observations(NamedTuple):
    """Pairs of an occurrence and a label that is observed in it; each pair once."""

    occurrences: Counts
    labels: Counts


class Choice(NamedTuple):
    label: int
    share: float  # of the occurrences that show it


@dataclass(frozen=True)
class Labels:
    """What words can be named after: the concepts of a table.

    >>> from bm25v.vocabulary.concepts import Concept
    >>> labels = Labels(ConceptTable(1, (
    ...     Concept("n1", ("tabby",), (1,), 0), Concept("n2", ("domestic cat",), (), 0))))
    >>> labels.names, labels.ancestors(0), labels.find_named({7: "cat 7", 8: "mine"})
    (['tabby', 'cat'], (0, 1), {7: 1})
    """

    table: ConceptTable

    @property
    def names(self) -> list[str]:
        first = (concept.names[0] for concept in self.table.concepts)
        return [_SHOWN_AS.get(name, name) for name in first]

    @property
    def may_name(self) -> NDArray[np.bool_]:
        """Which can name a word: classes, and wider concepts that people call by name."""
        file = resources.files("bm25v.vocabulary").joinpath("everyday_concepts.txt")
        everyday = {*file.read_text(encoding="ascii").split("\n"), *_SHOWN_AS}
        n_classes = self.table.n_classes
        concepts = enumerate(self.table.concepts)
        return np.array([i < n_classes or concept.names[0] in everyday for i, concept in concepts])

    def ancestors(self, label: int) -> tuple[int, ...]:
        """Return a label and everything wider."""
        return (label, *sorted(self.table.ancestors(label)))

    def find_named(self, names: Mapping[int, str]) -> dict[int, int]:
        """Return what words are named after; words with other names are left out."""
        positions = {name: i for i, name in reversed(list(enumerate(self.names)))}
        bases = {word: _SUFFIX.sub("", name) for word, name in names.items()}
        return {word: positions[base] for word, base in bases.items() if base in positions}


def find_occurrences(
    full_bags: Mapping[str, Any] | NDArray[Any], rows: Counts, *, n_words: int, n: int = STRONGEST
) -> Occurrences:
    """Return for each word the n images with the highest tf, ties to the lower row.

    `full_bags` has the arrays "words", "levels" and "patches", as a gallery's file has.

    >>> bags = {"words": np.array([[1, 2], [1, 0], [1, 2]]), "patches": np.zeros((3, 2), int),
    ...         "levels": np.array([[5, 1], [9, 0], [7, 3]])}
    >>> occurrences = find_occurrences(bags, np.arange(3), n_words=3, n=2)
    >>> occurrences.words_o.tolist(), occurrences.rows_o.tolist(), occurrences.df_v.tolist()
    ([1, 1, 2, 2], [1, 2, 2, 0], [0, 3, 2])
    """
    kept = np.empty((4, 0), np.int64)  # word, row, patch, tf
    df_v = np.zeros(n_words, np.int64)
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = rows[start : start + _CHUNK_ROWS]
        levels_nk = full_bags["levels"][chunk]
        at_n, at_k = np.nonzero(levels_nk)
        row = chunk[at_n]
        word = full_bags["words"][row, at_k].astype(np.int64)
        tf = LEVELS[levels_nk[at_n, at_k]].astype(np.int64)
        patch = full_bags["patches"][row, at_k].astype(np.int64)
        df_v += np.bincount(word, minlength=n_words)
        kept = np.concatenate([kept, [word, row, patch, tf]], axis=1)
        kept = kept[:, np.lexsort((kept[1], -kept[3], kept[0]))]
        first_v = np.searchsorted(kept[0], np.arange(n_words))
        kept = kept[:, np.arange(kept.shape[1]) - first_v[kept[0]] < n]
    return Occurrences(kept[0], kept[1], kept[2], df_v)


def with_ancestors(labels: Labels, pairs: Iterable[tuple[Counts, Counts]]) -> Observations:
    """Return observations from arrays of occurrences and labels; a label implies what is wider."""
    wider = [labels.ancestors(label) for label in range(len(labels.names))]
    depth = max(map(len, wider), default=1)
    wider_td = np.array([[*w, *[-1] * (depth - len(w))] for w in wider], np.int64)
    coded = [np.empty(0, np.int64)]
    for occurrences, observed in pairs:
        labels_od = wider_td[observed]
        at_o, at_d = np.nonzero(labels_od >= 0)
        coded.append(occurrences[at_o] * len(wider) + labels_od[at_o, at_d])
    return Observations(*np.divmod(np.unique(np.concatenate(coded)), len(wider)))


def share_of_labels(
    occurrences: Occurrences, observations: Observations, labels: Labels
) -> NDArray[np.float64]:
    """Return the share of all occurrences that show each label."""
    counts_t = np.bincount(observations.labels, minlength=len(labels.names))
    return np.asarray(counts_t / max(1, len(occurrences.words_o)))


def choose_labels(
    occurrences: Occurrences, observations: Observations, labels: Labels, *, min_share: float
) -> dict[int, Choice]:
    """Return what words can be named after; words without anything clear are left out.

    A label counts if its share of the word's occurrences, less one standard error, is at least
    `min_share`. Of several, the most informative is taken: share · log(share / elsewhere).
    """
    n_labels = len(labels.names)
    elsewhere_t = share_of_labels(occurrences, observations, labels)
    words_s = occurrences.words_o[observations.occurrences]
    pairs, counts = np.unique(words_s * n_labels + observations.labels, return_counts=True)
    words, label = np.divmod(pairs, n_labels)
    n = occurrences.counts_v[words]
    share = counts / n
    low = share - np.sqrt(share * (1 - share) / n + 0.25 / n**2)
    information = share * np.log(share / elsewhere_t[label])
    may_name = labels.may_name[label] & (n >= MIN_IMAGES) & (low >= min_share)
    may_name &= share >= 3 * elsewhere_t[label]
    order = np.lexsort((-label, information, words))
    best = order[may_name[order]]  # the last one of a word counts
    return {int(words[at]): Choice(int(label[at]), float(share[at])) for at in best.tolist()}


def keep_confirmed(
    labels: Labels, names: Mapping[int, str], shares: Mapping[int, float], *, at_least: float
) -> dict[int, Choice]:
    """Return the names that are confirmed: `shares` say how much images show of each."""
    return {
        word: Choice(label, shares[word])
        for word, label in labels.find_named(names).items()
        if shares.get(word, 0.0) >= at_least
    }


def disambiguate_names(chosen: Mapping[int, Choice], labels: Labels) -> dict[int, str]:
    """Return a name for each word, by word; equal names get the number of the word too.

    >>> from bm25v.vocabulary.concepts import Concept
    >>> concepts = (Concept("n1", ("dog",), (), 0), Concept("n2", ("cat",), (), 0))
    >>> labels = Labels(ConceptTable(2, concepts))
    >>> disambiguate_names({4: Choice(0, 0.9), 5: Choice(0, 0.8), 6: Choice(1, 0.7)}, labels)
    {4: 'dog 4', 5: 'dog 5', 6: 'cat'}
    """
    names = labels.names
    named = {word: names[choice.label] for word, choice in sorted(chosen.items())}
    n_words = Counter(named.values())
    return {word: name if n_words[name] == 1 else f"{name} {word}" for word, name in named.items()}
