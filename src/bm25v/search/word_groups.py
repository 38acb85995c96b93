"""Groups the words of a query and of its hits by names, for people.

Most words have no name, and the name of one is often wrong for a single photo. So a name counts if
the query as a whole shows it, by the lexicon; people's own names always count.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from bm25v.backbones.protocol import Floats
from bm25v.search.results import Hit, Results
from bm25v.search.scoring import MODES
from bm25v.search.text import NamedVocabulary
from bm25v.vocabulary.labels import Labels
from bm25v.vocabulary.phrases import split_text

_OF_QUERY, _OF_HIT = 6, 3  # groups at most
_MOST_WORDS = 16  # of a group that are listed
_SHOWN_FROM = 1.5  # how much the query must show a name, in standard deviations


class WordGroup(NamedTuple):
    """The words of one name, or one word that has none."""

    label: str | None
    words: tuple[int, ...]  # the strongest, at most 16
    share: float  # of what all words add up to


class GroupedWords(NamedTuple):
    """The largest groups of a query, and of each hit."""

    query: list[WordGroup]
    hits: list[list[WordGroup]]


def group_words(
    results: Results, named: NamedVocabulary, query_e: Floats | None, given: Collection[str]
) -> GroupedWords:
    """Return the words that count for hits in groups; none if words did not order them.

    `query_e` is the vector of the query, and `given` are names that it has.
    """
    if not MODES[results.mode].words:
        return GroupedWords([], [[] for _ in results])
    all_names = {word.name for word in results.query if word.name}
    names = _choose_names(all_names, named, query_e).union(given)
    labels = {word.word: word.name if word.name in names else None for word in results.query}
    query = ((word.word, word.weight * word.idf) for word in results.query if word.df)
    hits = (_list_contributions(hit) for hit in results)
    return GroupedWords(
        _make_groups(query, labels, _OF_QUERY),
        [_make_groups(words, labels, _OF_HIT) for words in hits],
    )


def _list_contributions(hit: Hit) -> list[tuple[int, float]]:
    """Return what words add to a hit; nothing if a text counts by its vector alone."""
    if hit.text and not any(part.by_words for part in hit.text):
        return []
    return [(word.word, word.contribution) for word in hit.words]


def _choose_names(names: Iterable[str], named: NamedVocabulary, query_e: Floats | None) -> set[str]:
    """Return the names that people gave, and those that the query shows."""
    own, lexicon = set(named.own_names.values()), named.vocabulary.lexicon
    if lexicon is None or query_e is None:
        return {*own, *names}
    entries = {name: lexicon.find(split_text(name)) for name in names}
    known = {name: entry for name, entry in entries.items() if entry is not None}
    if not known:
        return own
    labels = Labels(lexicon, list(known), list(known.values()))
    (shown_t,) = labels.measure(query_e[None]) - labels.rarity_t
    return own | {name for name, shown in zip(known, shown_t, strict=True) if shown >= _SHOWN_FROM}


def _make_groups(
    words: Iterable[tuple[int, float]], labels: Mapping[int, str | None], n: int
) -> list[WordGroup]:
    groups: dict[str | int, list[tuple[float, int]]] = {}
    for word, value in words:
        if value > 0:
            groups.setdefault(labels[word] or word, []).append((value, word))
    sums = {key: sum(value for value, _ in group) for key, group in groups.items()}
    total = sum(sums.values())
    largest = sorted(groups, key=lambda key: -sums[key])[:n]
    return [
        WordGroup(
            key if isinstance(key, str) else None,
            tuple(word for _, word in sorted(groups[key], key=lambda pair: -pair[0])[:_MOST_WORDS]),
            sums[key] / total,
        )
        for key in largest
    ]
