"""What words and images are called, for people: names of words, of groups of words, and topics.

A word stands for something else in another gallery, and the name of one is often wrong for a single
photo. So a name counts if images show what it means, by the lexicon and their stored vectors;
people's own names always count. No image is read.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.search.results import Hit, Results
from bm25v.search.scoring import MODES
from bm25v.search.text import NamedVocabulary
from bm25v.store.base import View
from bm25v.store.filters import ImageFilter
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.labels import Labels, list_labels
from bm25v.vocabulary.lexicon import Lexicon
from bm25v.vocabulary.phrases import split_text

_SAMPLE = 5000  # images of a gallery that are compared
_STRONGEST = 8  # images of a word
_CONFIRMED = 2.2  # standard deviations: how much they, or those of a topic, show a name on average
_FITS = 1.5  # how much the query must show a name, to be shown for one photo
_SAME = 0.75  # cosine of directions: from there on, two names mean the same
_MOST_ALIKE = 0.5  # of a topic's images that a more frequent one has, too
_OF_QUERY, _OF_HIT = 6, 3  # groups at most
_MOST_WORDS = 16  # of a group that are listed


def confirm_names(
    vocabulary: Vocabulary, snapshot: Snapshot
) -> tuple[dict[int, str], dict[int, str]]:
    """Return the names that the vocabulary suggests and the images of a gallery confirm.

    And for each a note on how sure it is.
    """
    lexicon, suggested = vocabulary.lexicon, vocabulary.suggested_names
    if lexicon is None or not len(snapshot.rows):
        return {}, {}
    same = merge_synonyms(lexicon, set(suggested.values()))
    words = [word for word in sorted(suggested) if suggested[word] in same]
    rows = snapshot.rows[:: -(-len(snapshot.rows) // _SAMPLE)]
    names: dict[int, str] = {}
    notes: dict[int, str] = {}
    for word, word_rows in snapshot.find_strongest_among(rows, words, _STRONGEST).items():
        name, number = same[suggested[word]]
        if not len(word_rows):
            continue
        entry = lexicon[number]
        vectors_ne = snapshot.dense_ne[word_rows][:, : len(entry.direction_e)].astype(np.float32)
        shown = float((normalise(vectors_ne) @ entry.direction_e).mean()) - entry.means[0]
        if shown >= _CONFIRMED:
            names[word] = name
            notes[word] = f"{shown:.1f} standard deviations"
    return names, notes


def merge_synonyms(lexicon: Lexicon, names: Iterable[str]) -> dict[str, tuple[str, int]]:
    """Return for each name of the lexicon the one that stands for it, and that one's entry.

    Of names that mean the same, such as "bike" and "bicycle", it is that which labels have, else
    the most frequent one.
    """
    labels = frozenset(list_labels())
    known = sorted(
        _find_entries(lexicon, names).items(), key=lambda pair: (pair[0] not in labels, pair[1])
    )
    units_ne = normalise(lexicon.directions([entry for _, entry in known]))
    is_same_nn = units_ne @ units_ne.T >= _SAME
    return {name: known[int(np.argmax(is_same_nn[i]))] for i, (name, _) in enumerate(known)}


def _find_entries(lexicon: Lexicon, names: Iterable[str]) -> dict[str, int]:
    entries = {name: lexicon.find(split_text(name)) for name in names}
    return {name: entry for name, entry in entries.items() if entry is not None}


def choose_names(
    names: Iterable[str], named: NamedVocabulary, shown_e: Floats | None
) -> Collection[str]:
    """Return the names that people gave, and those that fit what an image shows as a whole."""
    own, lexicon = set(named.own_names.values()), named.vocabulary.lexicon
    if lexicon is None or shown_e is None:
        return own.union(names)
    entries = _find_entries(lexicon, names)
    labels = Labels(lexicon, list(entries), list(entries.values()))
    (shown_t,) = labels.measure(shown_e[None]) - labels.rarity_t
    return own.union(
        name for name, shown in zip(labels.names, shown_t, strict=True) if shown >= _FITS
    )


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
    names = {*choose_names(all_names, named, query_e), *given}
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


class Topic(NamedTuple):
    """Something that several images show."""

    name: str
    n_images: int  # about
    path: str  # of the image that shows it most


def list_topics(vocabulary: Vocabulary, view: View, n: int = 12) -> list[Topic]:
    """Return what most images of a collection show; of two topics with the same images, one."""
    lexicon, n_images = vocabulary.lexicon, view.statistics.n
    if lexicon is None or not n_images:
        return []
    labels = Labels.of(lexicon)
    step = max(1, n_images // _SAMPLE)
    pages = (
        view.page(ImageFilter(), start, _SAMPLE // step) for start in range(0, n_images, _SAMPLE)
    )
    images = view.fetch([record for page in pages for record in page][:_SAMPLE])
    shown_nt = labels.measure(images.dense_vectors(images.rows)) - labels.rarity_t
    is_shown_nt = shown_nt >= _CONFIRMED
    counts_t = is_shown_nt.sum(axis=0)
    topics: list[Topic] = []
    is_listed_n = np.zeros(len(shown_nt), bool)
    for label in np.argsort(-counts_t, kind="stable").tolist():
        if len(topics) == n or not counts_t[label]:
            break
        if is_listed_n[is_shown_nt[:, label]].mean() > _MOST_ALIKE:
            continue
        is_listed_n |= is_shown_nt[:, label]
        best = images.rows[[int(shown_nt[:, label].argmax())]]
        n_all = round(int(counts_t[label]) * n_images / len(shown_nt))
        topics.append(Topic(labels.names[label], n_all, images.paths(best)[0]))
    return topics
