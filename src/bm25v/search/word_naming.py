"""A gallery's stored words and vectors in, names for its words out; no image is read.

The concepts of the vocabulary tell from an image's dense vector what it probably shows. A word
keeps the name that the vocabulary suggests if the images of this gallery that have it among their
strongest words probably show it. Other such words are named after a concept that many of the images
with most of the word show, and few others. A word without either has no name. Not this module's
job: how names are chosen and told apart (`vocabulary.naming`), and when this is done (`bm25v.api`).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.gallery.rows import RowArray
from bm25v.gallery.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concepts
from bm25v.vocabulary.naming import (
    Occurrences,
    Seen,
    Things,
    choose_things,
    collect_seen,
    find_occurrences,
    keep_known,
    write_names,
)

MIN_PROBABILITY = 0.2  # of a concept that an image shows
MIN_SHARE = 0.3  # of the images with most of a word, less one standard error
CONFIRMED = 0.15  # mean probability of a suggested name

_SAMPLE = 5000  # images
_STRONGEST = 8  # images of a word that confirm its name
_CLASSES = 3  # concepts that an image shows, at most; and what is wider

Floats = NDArray[np.float32]


class NamesWithNotes(NamedTuple):
    """Names of words, and for each a note on how sure it is."""

    names: dict[int, str]
    notes: dict[int, str]


def name_by_concepts(vocabulary: Vocabulary, snapshot: Snapshot) -> NamesWithNotes:
    """Return names for the words that images of a gallery have among their strongest."""
    concepts = vocabulary.concepts
    if concepts is None or snapshot.full_bags is None or not len(snapshot.rows):
        return NamesWithNotes({}, {})
    rows = snapshot.rows
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(0).choice(rows, _SAMPLE, replace=False))
    bags = snapshot.full_bags.rows[rows]
    at_n = np.arange(len(rows))
    n_words = vocabulary.n_words
    strong = find_occurrences(
        keep_strongest(bags, vocabulary.k_post), at_n, n_words=n_words, n=_STRONGEST
    )
    everywhere = find_occurrences(bags, at_n, n_words=n_words)
    is_strong_o = strong.df_v[everywhere.words_o] > 0
    words_o, rows_o, patches_o = (array[is_strong_o] for array in everywhere[:3])
    occurrences = Occurrences(words_o, rows_o, patches_o, everywhere.df_v)

    things = Things(concepts.table)
    probabilities_nc = _find_probabilities(concepts, snapshot.dense_ne[rows])
    known = vocabulary.suggested_names
    named_after = things.find_named(known)
    confirmed = _confirm(strong, named_after, probabilities_nc)
    seen = _see_concepts(occurrences, things, probabilities_nc)
    own = choose_things(occurrences, seen, things, min_share=MIN_SHARE)
    kept = keep_known(things, known, confirmed, at_least=CONFIRMED)
    notes = {word: f"shown by {choice.share:.0%} of its images" for word, choice in own.items()}
    notes |= {word: f"mean probability {choice.share:.2f}" for word, choice in kept.items()}
    return NamesWithNotes(write_names(own | kept, things), notes)


def keep_strongest(bags: RowArray, k: int) -> dict[str, NDArray[np.generic]]:
    """Return full bags with their k strongest words only, and those that are as strong.

    >>> bags = np.zeros(1, [("words", "u2", 3), ("levels", "u1", 3), ("patches", "u1", 3)])
    >>> bags["levels"] = [[5, 9, 7]]
    >>> keep_strongest(bags, 2)["levels"].tolist()
    [[0, 9, 7]]
    """
    levels_nk = bags["levels"]
    k = min(k, levels_nk.shape[1])
    weakest_n = np.partition(levels_nk, -k, axis=1)[:, -k]
    kept_nk = np.where(levels_nk >= weakest_n[:, None], levels_nk, 0)
    return {"words": bags["words"], "levels": kept_nk, "patches": bags["patches"]}


def _find_probabilities(concepts: Concepts, dense_ne: NDArray[np.float16]) -> Floats:
    """Return how probably each image shows each concept."""
    columns = [concept.column for concept in concepts.table.concepts]
    width = concepts.weights_ce.shape[1]  # of two dense vectors, the first
    vectors_ne = dense_ne[:, :width].astype(np.float32)
    lengths_n1 = np.linalg.norm(vectors_ne, axis=1, keepdims=True)
    vectors_ne /= np.maximum(lengths_n1, np.float32(1e-12))
    log_odds_nc = vectors_ne @ concepts.weights_ce.T + concepts.biases_c
    return np.asarray(1 / (1 + np.exp(-log_odds_nc)), np.float32)[:, columns]


def _confirm(
    strong: Occurrences, named_after: dict[int, int], probabilities_nc: Floats
) -> dict[int, float]:
    """Return the mean probability of each word's name in the images that have the word."""
    n_words, n_concepts = len(strong.df_v), probabilities_nc.shape[1]
    concept_v = np.full(n_words, -1)
    for word, thing in named_after.items():
        if thing < n_concepts:
            concept_v[word] = thing
    is_named_o = concept_v[strong.words_o] >= 0
    words_o, rows_o = strong.words_o[is_named_o], strong.rows_o[is_named_o]
    sums_v = np.bincount(words_o, probabilities_nc[rows_o, concept_v[words_o]], minlength=n_words)
    counts_v = np.bincount(words_o, minlength=n_words)
    words = np.flatnonzero(counts_v)
    return dict(zip(words.tolist(), (sums_v[words] / counts_v[words]).tolist(), strict=True))


def _see_concepts(occurrences: Occurrences, things: Things, probabilities_nc: Floats) -> Seen:
    """Return the most probable classes of each occurrence's image, and what is wider."""
    classes_nc = probabilities_nc[:, : things.table.n_classes]
    pairs = []
    for class_n in np.argsort(-classes_nc, axis=1, kind="stable")[:, :_CLASSES].T:
        is_shown_n = classes_nc[np.arange(len(class_n)), class_n] >= MIN_PROBABILITY
        at_o = np.flatnonzero(is_shown_n[occurrences.rows_o])
        pairs.append((at_o, class_n[occurrences.rows_o[at_o]]))
    return collect_seen(things, pairs)
