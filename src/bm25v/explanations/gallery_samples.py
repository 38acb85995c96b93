"""What the words of a vocabulary look like in a gallery, if there are no samples beside it.

In: an open gallery. Out: how many images have each word, and images that show some of them. Not
this module's job: pixels.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.display import word_label
from bm25v.explanations.samples import EXAMPLES, choose_words
from bm25v.explanations.word_examples import WordExample, find_examples
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.search.embedded import EmbeddedEngine


class GalleryWord(NamedTuple):
    """One word with images that show it best."""

    word: int
    label: str
    df: int  # how many images have it
    examples: tuple[WordExample, ...]


@dataclass(frozen=True)
class GallerySamples:
    """Statistics and examples of a vocabulary's words in a gallery."""

    gallery: str  # its folder
    n_images: int
    df_v: NDArray[np.int64]
    words: tuple[GalleryWord, ...]  # from frequent to rare


def sample_gallery(store: GalleryStore) -> GallerySamples:
    """Return how frequent the words of a gallery are, and images that show some of them."""

    def sample(snapshot: Snapshot) -> GallerySamples:
        statistics, names = snapshot.word_statistics, store.word_names
        df_v = statistics.df_v.astype(np.int64)
        words = choose_words(df_v, df_v)
        examples = find_examples(EmbeddedEngine(store), words, n=EXAMPLES)
        sampled = (
            GalleryWord(word, word_label(word, names.get(word)), int(df_v[word]), examples[word])
            for word in words
        )
        return GallerySamples(str(store.path), statistics.n, df_v, tuple(sampled))

    return store.read(sample)
