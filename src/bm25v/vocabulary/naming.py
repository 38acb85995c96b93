"""What is seen where words are strong in, names of words out.

An occurrence is a word in one of the images that have most of it; of each, some things are seen:
classes of a teacher and what is wider, or a folder's name. A word gets the name of a thing that is
seen in most of its occurrences and rarely elsewhere, and no name if there is none. Names are told
apart. Not this module's job: what images show (`search.word_naming` by concepts,
`training.word_evidence` by a classifier), files.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.vocabulary.bag import LEVELS
from bm25v.vocabulary.concepts import ConceptTable

STRONGEST = 24  # images of each word that its name is made from, at most
MIN_IMAGES = 6  # fewer prove nothing
MIN_SHARE = 0.4  # of the occurrences, less one standard error
CONFIRMED = 0.6  # of the occurrences: a name that a word already has
MIN_LIFT = 3.0  # over the share among all occurrences

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
_SUFFIX = re.compile(r" [0-9]+$")  # the number of a word, which tells equal names apart

Counts = NDArray[np.int64]


class Occurrences(NamedTuple):
    """Words in the images that have most of them, by word, the strongest first."""

    words_o: Counts
    rows_o: Counts
    patches_o: Counts  # where the word is strongest
    df_v: Counts  # how many images have each word


class Seen(NamedTuple):
    """Pairs of an occurrence and a thing that is seen in it; each pair once."""

    occurrences: Counts
    things: Counts


class WordName(NamedTuple):
    """A name for a word, and why."""

    word: int
    name: str
    share: float  # of the occurrences in which the thing is seen
    images: int  # the occurrences
    elsewhere: float  # the share among the occurrences of all words


@dataclass(frozen=True)
class Things:
    """What can be seen: the concepts of a table, then labels that are no concepts.

    >>> from bm25v.vocabulary.concepts import Concept
    >>> things = Things(ConceptTable(1, (
    ...     Concept("n1", ("tabby",), (1,), 0), Concept("n2", ("cat",), (), 0))))
    >>> things.add_label("Tabbies"), things.add_label("Tabby"), things.add_label("my_cats")
    (2, 0, 3)
    >>> things.names, things.wider(0), things.add_label("2019-04")
    (['tabby', 'cat', 'tabbies', 'my cats'], (0, 1), None)
    """

    table: ConceptTable
    _labels: dict[str, int] = field(default_factory=dict)

    def add_label(self, text: str) -> int | None:
        """Return the thing that a label names, a new one if need be; None if it names nothing."""
        if text[:9] in self._ids:
            return self._ids[text[:9]]
        label = re.sub(r"[\W_]+", " ", text).strip().lower()
        if not re.fullmatch(r"[^\d]{3,100}", label):
            return None
        for name in (label, label.removesuffix("s")):
            if name in self._names:
                return self._names[name]
        return self._labels.setdefault(label, len(self.table.concepts) + len(self._labels))

    @property
    def names(self) -> list[str]:
        """The name of each."""
        concepts = (concept.names[0] for concept in self.table.concepts)
        return [*(_SHOWN_AS.get(name, name) for name in concepts), *self._labels]

    def find_named(self, names: Mapping[int, str]) -> dict[int, int]:
        """Return what words are named after; words with other names are left out."""
        positions = {name: i for i, name in reversed(list(enumerate(self.names)))}
        bases = {word: _SUFFIX.sub("", name) for word, name in names.items()}
        return {word: positions[base] for word, base in bases.items() if base in positions}

    def wider(self, thing: int) -> tuple[int, ...]:
        """Return a thing and everything wider."""
        if thing >= len(self.table.concepts):
            return (thing,)
        return (thing, *sorted(self.table.ancestors(thing)))

    @property
    def may_name(self) -> NDArray[np.bool_]:
        """Which can name a word: classes, labels, and wider concepts that people call by name."""
        first = [concept.names[0] for concept in self.table.concepts]
        file = resources.files("bm25v.vocabulary").joinpath("everyday_concepts.txt")
        text = file.read_text(encoding="ascii")
        everyday = {*text.split("\n"), *_SHOWN_AS}
        wide = [name in everyday for name in first[self.table.n_classes :]]
        others = [True] * len(self._labels)
        return np.array([*[True] * self.table.n_classes, *wide, *others], dtype=bool)

    @cached_property
    def _ids(self) -> Mapping[str, int]:
        return {concept.id: i for i, concept in enumerate(self.table.concepts)}

    @cached_property
    def _names(self) -> Mapping[str, int]:
        concepts = reversed(list(enumerate(self.table.concepts)))
        return {name.lower(): i for i, concept in concepts for name in concept.names}


def find_occurrences(
    full_bags: Mapping[str, Any] | NDArray[Any], rows: Counts, *, n_words: int, n: int = STRONGEST
) -> Occurrences:
    """Return for each word the n images with the highest tf, ties to the lower row.

    `full_bags` has the arrays "words", "levels" and "patches", as a gallery's file has.

    >>> bags = {"words": np.array([[1, 2], [1, 0], [1, 2]]), "patches": np.zeros((3, 2), int),
    ...         "levels": np.array([[5, 1], [9, 0], [7, 3]])}
    >>> found = find_occurrences(bags, np.arange(3), n_words=3, n=2)
    >>> found.words_o.tolist(), found.rows_o.tolist(), found.df_v.tolist()
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


def collect_seen(things: Things, pairs: Iterable[tuple[Counts, Counts]]) -> Seen:
    """Return what is seen, with everything wider, from arrays of occurrences and things."""
    wider = [things.wider(thing) for thing in range(len(things.names))]
    depth = max(map(len, wider), default=1)
    wider_td = np.array([[*w, *[-1] * (depth - len(w))] for w in wider], np.int64)
    coded = []
    for occurrences, seen in pairs:
        seen_od = wider_td[seen]
        at_o, at_d = np.nonzero(seen_od >= 0)
        coded.append(occurrences[at_o] * len(wider) + seen_od[at_o, at_d])
    return Seen(*np.divmod(np.unique(np.concatenate([*coded, np.empty(0, np.int64)])), len(wider)))


class Choice(NamedTuple):
    """What a word is named after."""

    thing: int
    share: float  # of the occurrences that show it


def name_words(
    occurrences: Occurrences,
    seen: Seen,
    things: Things,
    known: Mapping[int, str] | None = None,
) -> list[WordName]:
    """Return names for the words whose occurrences mostly show one thing, by word.

    Other words keep a `known` name if most of their occurrences confirm it.
    """
    n_v = np.bincount(occurrences.words_o, minlength=len(occurrences.df_v))
    shares = check_names(occurrences, seen, things, known or {})
    confirmed = {word: share for word, share in shares.items() if n_v[word] >= MIN_IMAGES}
    chosen = keep_known(things, known or {}, confirmed, at_least=CONFIRMED)
    chosen |= choose_things(occurrences, seen, things)
    elsewhere_t = _share_elsewhere(occurrences, seen, things)
    return [
        WordName(
            word, name, chosen[word].share, int(n_v[word]), float(elsewhere_t[chosen[word].thing])
        )
        for word, name in write_names(chosen, things).items()
    ]


def choose_things(
    occurrences: Occurrences, seen: Seen, things: Things, *, min_share: float = MIN_SHARE
) -> dict[int, Choice]:
    """Return what words can be named after; words without anything clear are left out.

    Of several things, the one that says most is taken: share · log(share / elsewhere).
    """
    names = things.names
    elsewhere_t = _share_elsewhere(occurrences, seen, things)
    n_v = np.bincount(occurrences.words_o, minlength=len(occurrences.df_v))
    words_s = occurrences.words_o[seen.occurrences]
    pairs, counts = np.unique(words_s * len(names) + seen.things, return_counts=True)
    words, thing = np.divmod(pairs, len(names))
    n = n_v[words]
    share = counts / n
    low = share - np.sqrt(share * (1 - share) / n + 0.25 / n**2)
    says = share * np.log(share / elsewhere_t[thing])
    may_name = things.may_name[thing] & (n >= MIN_IMAGES) & (low >= min_share)
    may_name &= share >= MIN_LIFT * elsewhere_t[thing]
    order = np.lexsort((-thing, says, words))
    best = order[may_name[order]]  # the last one of a word counts
    return {int(words[at]): Choice(int(thing[at]), float(share[at])) for at in best.tolist()}


def keep_known(
    things: Things, known: Mapping[int, str], shares: Mapping[int, float], *, at_least: float
) -> dict[int, Choice]:
    """Return the known names that are confirmed: `shares` say how much images show of each."""
    return {
        word: Choice(thing, shares[word])
        for word, thing in things.find_named(known).items()
        if shares.get(word, 0.0) >= at_least
    }


def write_names(chosen: Mapping[int, Choice], things: Things) -> dict[int, str]:
    """Return a name for each word, by word; equal names get the number of the word too.

    >>> from bm25v.vocabulary.concepts import Concept
    >>> concepts = (Concept("n1", ("dog",), (), 0), Concept("n2", ("cat",), (), 0))
    >>> things = Things(ConceptTable(2, concepts))
    >>> write_names({4: Choice(0, 0.9), 5: Choice(0, 0.8), 6: Choice(1, 0.7)}, things)
    {4: 'dog 4', 5: 'dog 5', 6: 'cat'}
    """
    names = things.names
    named = {word: names[choice.thing] for word, choice in sorted(chosen.items())}
    n_words = Counter(named.values())
    return {word: name if n_words[name] == 1 else f"{name} {word}" for word, name in named.items()}


def _share_elsewhere(occurrences: Occurrences, seen: Seen, things: Things) -> NDArray[np.float64]:
    counts_t = np.bincount(seen.things, minlength=len(things.names))
    return np.asarray(counts_t / max(1, len(occurrences.words_o)))


def check_names(
    occurrences: Occurrences, seen: Seen, things: Things, names: Mapping[int, str]
) -> dict[int, float]:
    """Return, for each named word with an occurrence, the share that show what it is named after.

    Words that are named after nothing that can be seen are left out.
    """
    n_words = len(occurrences.df_v)
    thing_v = np.full(n_words, -1)
    for word, thing in things.find_named(names).items():
        thing_v[word] = thing
    words_s = occurrences.words_o[seen.occurrences]
    right_v = np.bincount(words_s[thing_v[words_s] == seen.things], minlength=n_words)
    n_v = np.bincount(occurrences.words_o, minlength=n_words)
    words = np.flatnonzero((thing_v >= 0) & (n_v > 0))
    return dict(zip(words.tolist(), (right_v[words] / n_v[words]).tolist(), strict=True))
