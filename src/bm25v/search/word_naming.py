"""Names words of a gallery: those that the vocabulary suggests, where the gallery confirms them.

In a gallery of one subject the same words may stand for something else. A word keeps its name if
the images that have most of it show what the name means, by the lexicon and their stored vectors.
No image is read.
"""

from typing import NamedTuple

import numpy as np

from bm25v.dense import normalise
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import split_text

CONFIRMED = 2.2  # mean of how much the strongest images show it, in standard deviations

_SAMPLE = 5000  # images
_STRONGEST = 8  # images of a word


class NamesWithNotes(NamedTuple):
    """Names of words, and for each a note on how sure it is."""

    names: dict[int, str]
    notes: dict[int, str]


def confirm_names(vocabulary: Vocabulary, snapshot: Snapshot) -> NamesWithNotes:
    """Return the suggested names that the images of a gallery confirm."""
    lexicon, suggested = vocabulary.lexicon, vocabulary.suggested_names
    if lexicon is None or not len(snapshot.rows):
        return NamesWithNotes({}, {})
    numbers = {name: lexicon.find(split_text(name)) for name in set(suggested.values())}
    words = [w for w in sorted(suggested) if numbers[suggested[w]] is not None]
    rows = snapshot.rows[:: -(-len(snapshot.rows) // _SAMPLE)]
    strongest = snapshot.find_strongest_among(rows, words, _STRONGEST)
    names, notes = {}, {}
    for word, word_rows in strongest.items():
        number = numbers[suggested[word]]
        if number is None or not len(word_rows):
            continue
        entry = lexicon[number]
        vectors_ne = snapshot.dense_ne[word_rows][:, : len(entry.direction_e)].astype(np.float32)
        shown = float((normalise(vectors_ne) @ entry.direction_e).mean()) - entry.means[0]
        if shown >= CONFIRMED:
            names[word] = suggested[word]
            notes[word] = f"{shown:.1f} standard deviations"
    return NamesWithNotes(names, notes)
