"""What a search has to say for itself: why a picture was found, or why none was."""

from collections.abc import Callable, Mapping

import numpy as np

from bm25v.gallery.results import Match, QueryWord, Word, label
from bm25v.gallery.searching import allowed, coverages, worth
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import (
    Contribution,
    Statistics,
    WeightedWords,
    contributions,
    sum_contributions,
)
from bm25v.search import EncodedQuery
from bm25v.vocabulary.bag import SCALE

Names = Mapping[int, str]


class Matcher:
    """Takes the scores of rows apart, for one wish."""

    def __init__(self, snapshot: Snapshot, wish: EncodedQuery, names: Names) -> None:
        self._snapshot, self._wish, self._names = snapshot, wish, names
        self._statistics = snapshot.searcher.statistics
        wanted = wish.wanted
        worths: list[float] = worth(wanted, self._statistics).tolist()
        self._worths: dict[int, float] = dict(zip(wanted.words.tolist(), worths, strict=True))
        self._whole = sum(worths)

    def match(self, row: int, path: str, dense: float) -> Match:
        """Say what one row's score is made of."""
        bag, statistics = self._snapshot.bag(row), self._statistics
        parts = contributions(self._wish.query, bag, statistics, self._snapshot.searcher.parameters)
        return Match(
            path=path,
            sparse=sum_contributions(parts),
            dense=None if self._wish.dense_e is None else dense,
            words=tuple(self._word(part) for part in parts),
            coverage=self._coverage(parts),
            length=int(bag.tf.sum(dtype=np.int64)) / SCALE,
            average_length=statistics.average_length,
            pictures=statistics.n,
        )

    def _word(self, part: Contribution) -> Word:
        return Word(
            word=part.word,
            name=self._names.get(part.word),
            idf=part.idf,
            tf=part.tf,
            query_tf=part.query_tf,
            saturation=part.saturation,
            contribution=part.value,
            weight=part.weight,
            df=part.df,
        )

    def _coverage(self, parts: list[Contribution]) -> float:
        shared = sorted(part.word for part in parts if part.word in self._worths)
        return sum(self._worths[word] for word in shared) / (self._whole or 1.0)


def asked_words(
    query: WeightedWords, statistics: Statistics, names: Names
) -> tuple[QueryWord, ...]:
    """Return what was asked for, what counts most first."""
    columns = (query.words, query.weights, query.frequencies, statistics.idf(query.words))
    rows = zip(*(column.tolist() for column in columns), strict=True)
    found = (
        QueryWord(word, names.get(word), weight, tf, idf, int(statistics.df_v[word]))
        for word, weight, tf, idf in rows
    )
    return tuple(sorted(found, key=lambda one: (-one.weight * one.idf, one.word)))


def notes(wish: EncodedQuery, statistics: Statistics, names: Names) -> tuple[str, ...]:
    """Say where the words come from, if that is not plain, and which steering was in vain."""
    return wish.notes + tuple(
        f"no picture has {label(word, names.get(word))}: {what}"
        for words, what in (
            (wish.without, "leaving it out changes nothing"),
            (wish.boosted, "boosting it lifts none"),
        )
        for word in words
        if statistics.df_v[word] == 0
    )


def no_match(
    snapshot: Snapshot,
    wish: EncodedQuery,
    min_coverage: float,
    names: Names,
    path_of: Callable[[int], str],
) -> str:
    """Say why nothing was found."""
    searcher, wanted = snapshot.searcher, wish.wanted
    if searcher.statistics.n == 0:
        return "there are no pictures in the gallery"
    flags = allowed(searcher, wish)
    rows = snapshot.rows if flags is None else np.flatnonzero(flags)
    if not len(rows):
        return _ruled_out(wish, searcher.statistics, names)
    condition = f" that {_condition(wish, names)}" if wish.is_filtered else ""
    if not len(wanted.words):
        return "no word is asked for: the picture has none, or all are muted"
    shares_n = coverages(searcher, wanted)
    best = int(rows[np.argmax(shares_n[rows])])
    if shares_n[best] <= 0:
        n = len(wanted.words)
        return f"0 of {n} word{'s' * (n != 1)} shared with any picture{condition}"
    if shares_n[best] < min_coverage:
        found = f"the best has {shares_n[best]:.2f}: {path_of(best)}"
        return f"no picture{condition} reaches a coverage of {min_coverage:g} ({found})"
    return "in every picture, what speaks against it outweighs what speaks for it"


def _ruled_out(wish: EncodedQuery, statistics: Statistics, names: Names) -> str:
    missing = [word for word in wish.must if statistics.df_v[word] == 0]
    if missing:
        return f"no picture has {_listed(missing, names)}"
    if not wish.must:
        return f"every picture has {_listed(wish.without, names, 'or')}"
    return f"no picture {_condition(wish, names)}"


def _condition(wish: EncodedQuery, names: Names) -> str:
    """Say what pictures must and must not have.

    >>> query = EncodedQuery(WeightedWords(*np.empty((3, 0))), must=(3, 4), without=(7,))
    >>> _condition(query, {4: "striped ear"})
    'has word 3 and striped ear but not word 7'
    """
    required = f"has {_listed(wish.must, names)}" if wish.must else ""
    excluded = _listed(wish.without, names, "or")
    if not excluded:
        return required
    return f"{required} but not {excluded}" if required else f"does not have {excluded}"


def _listed(words: tuple[int, ...] | list[int], names: Names, link: str = "and") -> str:
    labels = [label(word, names.get(word)) for word in words]
    return f" {link} ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
