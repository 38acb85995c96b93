"""The words of a gallery: in how many pictures each is, how rare that makes it, where it is most.

All of it is counted from the bags when asked for. That is 0.8 s of work for 100,000
pictures; a gallery keeps the list as long as nothing is committed and nothing named.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.gallery.catalog import Catalog
from bm25v.gallery.results import label
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import Statistics
from bm25v.vocabulary.bag import dequantise

COMPANIONS = 8

Rows = NDArray[np.int64]


class Use(NamedTuple):
    """A picture that has a word, and how much of it."""

    path: str
    tf: float


@dataclass(frozen=True)
class WordFacts:
    """One word of a gallery, with the pictures that have most of it."""

    word: int
    name: str | None
    df: int
    idf: float
    best: tuple[Use, ...]

    @property
    def label(self) -> str:
        """Its name, or its number as one."""
        return label(self.word, self.name)


class Companion(NamedTuple):
    """A word that some pictures, such as those with another word, have more often than all do."""

    word: int
    together: int  # how many of these pictures have it
    lift: float  # so many times as often as all pictures


class Folder(NamedTuple):
    """A folder, and how many of its pictures have a word."""

    name: str
    pictures: int
    has_word: int


@dataclass(frozen=True)
class WordUses:
    """All that a gallery knows of one word."""

    facts: WordFacts
    n: int  # pictures in the gallery
    uses: tuple[Use, ...]  # all of them, strongest first
    companions: tuple[Companion, ...]
    folders: tuple[Folder, ...]  # with the word, most pictures first; none if all lie in one

    @property
    def purity(self) -> float | None:
        """The share of the pictures with the word that lie in the folder with most of them."""
        return self.folders[0].has_word / self.facts.df if self.folders else None


class Listing(NamedTuple):
    """The words in use, of one moment and under the names of that moment."""

    snapshot: Snapshot
    names: Mapping[int, str]
    best: int
    words: list[WordFacts]


def listed(
    snapshot: Snapshot, catalog: Catalog, names: Mapping[int, str], *, best: int
) -> list[WordFacts] | None:
    """Return the words in use, by number; None if rows have new numbers by now."""
    statistics = snapshot.searcher.statistics
    words = np.flatnonzero(statistics.df_v)
    path_of = catalog.all_paths(snapshot.state.generation)
    if path_of is None:
        return None
    strongest = _strongest(snapshot, best)
    found = zip(words.tolist(), statistics.idf(words).tolist(), strict=True)
    return [
        WordFacts(
            word,
            names.get(word),
            int(statistics.df_v[word]),
            idf,
            tuple(Use(path_of[row], tf) for row, tf in strongest[word]),
        )
        for word, idf in found
    ]


def of_word(
    snapshot: Snapshot, catalog: Catalog, names: Mapping[int, str], word: int
) -> WordUses | None:
    """Return all about one word; None if rows have new numbers by now."""
    path_of = catalog.all_paths(snapshot.state.generation)
    if path_of is None:
        return None
    statistics = snapshot.searcher.statistics
    rows, tf = with_word(snapshot, word)
    found = tuple(
        Use(path_of[row], frequency) for row, frequency in zip(rows.tolist(), tf, strict=True)
    )
    (idf,) = statistics.idf(np.array([word]))
    facts = WordFacts(word, names.get(word), len(found), float(idf), found[:1])
    paths = [path_of[row] for row in snapshot.rows.tolist()]
    return WordUses(
        facts,
        statistics.n,
        found,
        companions(snapshot.bags[rows], statistics, word),
        folders(paths, [use.path for use in found]),
    )


def with_word(snapshot: Snapshot, word: int) -> tuple[Rows, list[float]]:
    """Return the rows that have a word, strongest first, and its term frequencies there."""
    bags, rows = snapshot.bags, snapshot.rows
    places, slots = np.nonzero((bags["words"] == word) & (bags["tf"] > 0))
    kept = np.isin(places, rows)
    places, tf = places[kept], bags["tf"][places[kept], slots[kept]]
    order = np.argsort(-tf.astype(np.int64), kind="stable")
    return places[order], dequantise(tf[order]).tolist()


def companions(bags: NDArray[np.void], statistics: Statistics, word: int) -> tuple[Companion, ...]:
    """Return the words that come with a word, given the bags that have it."""
    others = (one for one in telling(bags, statistics) if one.word != word)
    return tuple(islice(others, COMPANIONS))


def telling(bags: NDArray[np.void], statistics: Statistics) -> list[Companion]:
    """Return the words that some bags have more often than all do, the most telling first.

    A rare word that happens to come along once has a huge lift and means little. So they are
    ordered by pictures · ln(lift), and two pictures are the least.
    """
    words = bags["words"][bags["tf"] > 0]
    together_v = np.bincount(words, minlength=statistics.n_words)
    candidates = np.flatnonzero(together_v >= 2)
    together = together_v[candidates]
    lift = together * statistics.n / (len(bags) * statistics.df_v[candidates])
    order = np.lexsort((candidates, -together * np.log(lift)))
    return [
        Companion(int(candidates[i]), int(together[i]), float(lift[i]))
        for i in order
        if lift[i] > 1
    ]


def folders(paths: Sequence[str], with_word: Sequence[str]) -> tuple[Folder, ...]:
    """Take the names of parent folders for labels, and count the pictures that have a word.

    >>> paths = ["/p/cat/1.jpg", "/p/cat/2.jpg", "/p/dog/1.jpg"]
    >>> folders(paths, with_word=paths[1:])
    (Folder(name='dog', pictures=1, has_word=1), Folder(name='cat', pictures=2, has_word=1))
    >>> folders(paths[:2], with_word=paths[:1])
    ()
    """
    in_all, in_use = _count(paths), _count(with_word)
    if len(in_all) < 2:
        return ()
    counted = [Folder(name, in_all[name], has_word) for name, has_word in in_use.items()]
    return tuple(sorted(counted, key=lambda one: (-one.has_word, one.pictures, one.name)))


def _count(paths: Sequence[str]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for folder, pictures in Counter(path.rpartition(os.sep)[0] for path in paths).items():
        counted[os.path.basename(folder)] += pictures
    return counted


def _strongest(snapshot: Snapshot, best: int) -> dict[int, list[tuple[int, float]]]:
    """Return each word's rows of the highest term frequencies, ties to the lower row."""
    rows = snapshot.rows
    bags = snapshot.bags[rows]
    places, slots = np.nonzero(bags["tf"])
    words, tf = bags["words"][places, slots], bags["tf"][places, slots]
    order = np.argsort(~tf, kind="stable")  # by one short number after the other: a radix sort
    order = order[np.argsort(words[order], kind="stable")]
    words = words[order].astype(np.int64)
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    ends = np.minimum(starts + best, [*starts[1:], len(words)])
    return {
        int(words[start]): list(
            zip(
                rows[places[order[start:end]]].tolist(),
                dequantise(tf[order[start:end]]).tolist(),
                strict=True,
            )
        )
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    }
