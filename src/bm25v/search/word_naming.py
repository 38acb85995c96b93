"""Names words of a gallery by its stored bags and dense vectors; no image is read.

The concepts of the vocabulary tell from an image's dense vector what it probably shows. A word
keeps the name that the vocabulary suggests if the images of this gallery that have it among their
strongest words probably show it. Other such words are named after a concept that many of the images
with most of the word show, and few others.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.store.bags import RowArray
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concepts
from bm25v.vocabulary.naming import (
    Labels,
    Observations,
    Occurrences,
    choose_labels,
    disambiguate_names,
    find_occurrences,
    keep_confirmed,
    with_ancestors,
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
    if concepts is None or not len(snapshot.rows):
        return NamesWithNotes({}, {})
    rows = snapshot.rows
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(0).choice(rows, _SAMPLE, replace=False))
    bags = snapshot.full_bags[rows]
    at_n = np.arange(len(rows))
    n_words = vocabulary.n_words
    strong = find_occurrences(
        keep_strongest(bags, vocabulary.k_post), at_n, n_words=n_words, n=_STRONGEST
    )
    everywhere = find_occurrences(bags, at_n, n_words=n_words)
    is_strong_o = strong.df_v[everywhere.words_o] > 0
    words_o, rows_o, patches_o = (array[is_strong_o] for array in everywhere[:3])
    occurrences = Occurrences(words_o, rows_o, patches_o, everywhere.df_v)

    labels = Labels(concepts.table)
    probabilities_nc = _find_probabilities(concepts, snapshot.dense_ne[rows])
    known = vocabulary.suggested_names
    confirmed = _confirm(strong, labels.find_named(known), probabilities_nc)
    observations = _observe_concepts(occurrences, labels, probabilities_nc)
    own = choose_labels(occurrences, observations, labels, min_share=MIN_SHARE)
    kept = keep_confirmed(labels, known, confirmed, at_least=CONFIRMED)
    notes = {word: f"shown by {choice.share:.0%} of its images" for word, choice in own.items()}
    notes |= {word: f"mean probability {choice.share:.2f}" for word, choice in kept.items()}
    return NamesWithNotes(disambiguate_names(own | kept, labels), notes)


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
    vectors_ne = normalise(dense_ne[:, :width].astype(np.float32))
    log_odds_nc = vectors_ne @ concepts.weights_ce.T + concepts.biases_c
    return np.asarray(1 / (1 + np.exp(-log_odds_nc)), np.float32)[:, columns]


def _confirm(
    strong: Occurrences, named_after: dict[int, int], probabilities_nc: Floats
) -> dict[int, float]:
    """Return the mean probability of each word's name in the images that have the word."""
    n_words = len(strong.df_v)
    concept_v = np.full(n_words, -1)
    for word, concept in named_after.items():
        concept_v[word] = concept
    is_named_o = concept_v[strong.words_o] >= 0
    words_o, rows_o = strong.words_o[is_named_o], strong.rows_o[is_named_o]
    sums_v = np.bincount(words_o, probabilities_nc[rows_o, concept_v[words_o]], minlength=n_words)
    counts_v = np.bincount(words_o, minlength=n_words)
    words = np.flatnonzero(counts_v)
    return dict(zip(words.tolist(), (sums_v[words] / counts_v[words]).tolist(), strict=True))


def _observe_concepts(
    occurrences: Occurrences, labels: Labels, probabilities_nc: Floats
) -> Observations:
    """Return the most probable classes of each occurrence's image, and what is wider."""
    classes_nc = probabilities_nc[:, : labels.table.n_classes]
    pairs = []
    for class_n in np.argsort(-classes_nc, axis=1, kind="stable")[:, :_CLASSES].T:
        is_shown_n = classes_nc[np.arange(len(class_n)), class_n] >= MIN_PROBABILITY
        at_o = np.flatnonzero(is_shown_n[occurrences.rows_o])
        pairs.append((at_o, class_n[occurrences.rows_o[at_o]]))
    return with_ancestors(labels, pairs)
