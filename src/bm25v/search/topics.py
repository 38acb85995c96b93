"""What a collection shows, for people who do not know what to type."""

from typing import NamedTuple

import numpy as np

from bm25v.store.base import View
from bm25v.store.filters import ImageFilter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.labels import Labels

_SAMPLE = 5000  # images
_SHOWN_FROM = 2.2  # standard deviations of how much an image shows something
_MOST_ALIKE = 0.5  # of a topic's images that a more frequent one has, too


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
    is_shown_nt = shown_nt >= _SHOWN_FROM
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
