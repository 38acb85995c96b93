"""Rows of a gallery that show what a word is: those with most of it first.

In: a snapshot and words. Out: rows. The index ranks them by BM25; a word that it has in few images
is looked up in full bags, in a sample of them if there are many. Not this module's job: which of
the images are shown (`explanations.word_examples`).
"""

from collections.abc import Sequence

import numpy as np

from bm25v.index.bm25 import WeightedWords
from bm25v.search.contract import Rows
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary.bag import LEVELS

_SCANNED = 20_000  # full bags that are looked through


def rank_rows(snapshot: Snapshot, words: Sequence[int], n: int, at_least: int) -> dict[int, Rows]:
    """Return for each word up to n rows of the index, and others if these are too few."""
    ranked = {word: _rank_in_index(snapshot, word, n) for word in words}
    few = [word for word, rows in ranked.items() if len(rows) < at_least]
    for word, rows in scan_full_bags(snapshot, few, n).items():
        ranked[word] = np.array(list(dict.fromkeys([*ranked[word].tolist(), *rows.tolist()])))
    return ranked


def query_word(word: int) -> WeightedWords:
    return WeightedWords(np.array([word], np.int32), np.ones(1), np.ones(1))


def _rank_in_index(snapshot: Snapshot, word: int, n: int) -> Rows:
    rows, scores = snapshot.searcher.search(query_word(word), n)
    return rows[scores > 0]


def scan_full_bags(snapshot: Snapshot, words: Sequence[int], n: int) -> dict[int, Rows]:
    """Return the n rows with most of each word, among evenly chosen ones if there are many."""
    if not words:
        return {}
    rows = snapshot.rows[:: -(-len(snapshot.rows) // _SCANNED) or 1]
    full_rows = snapshot.full_bags.rows[rows]
    levels_nk = full_rows["levels"]
    is_listed_v = np.zeros(snapshot.full_bags.statistics.n_words, dtype=bool)
    is_listed_v[list(words)] = True
    positions, slots = np.nonzero(is_listed_v[full_rows["words"]] & (levels_nk > 0))
    found, levels = full_rows["words"][positions, slots], levels_nk[positions, slots]
    order = np.argsort(-LEVELS[levels].astype(np.int64), kind="stable")
    positions, found = positions[order], found[order]
    return {word: rows[positions[found == word][:n]] for word in words}
