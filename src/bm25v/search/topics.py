"""What a collection shows, for people who do not know what to type."""

import numpy as np

from bm25v.dense import normalise
from bm25v.store.base import View
from bm25v.store.filters import ImageFilter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.phrases import split_text

_SAMPLE = 500  # images
_SHOWN_FROM = 2.0  # standard deviations of how much an image shows something


def list_topics(vocabulary: Vocabulary, view: View, n: int = 8) -> list[str]:
    """Return what most images of a collection show, by the names that its words may have."""
    lexicon = vocabulary.lexicon
    if lexicon is None or not view.statistics.n:
        return []
    names = sorted(set(vocabulary.suggested_names.values()))
    numbers = [lexicon.find(split_text(name)) for name in names]
    pairs = zip(names, numbers, strict=True)
    known = {name: number for name, number in pairs if number is not None}
    images = view.fetch(view.page(ImageFilter(), 0, _SAMPLE))
    vectors_ne = normalise(images.dense_vectors(images.rows)[:, : lexicon.dense_dim])
    chosen = list(known.values())
    shown_nt = vectors_ne @ lexicon.directions(chosen).T - lexicon.tensors["means"][chosen, 0]
    counts_t = (shown_nt >= _SHOWN_FROM).sum(axis=0)
    best = np.argsort(-counts_t, kind="stable")[:n]
    return [list(known)[i] for i in best.tolist() if counts_t[i]]
