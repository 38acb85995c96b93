"""The words of a collection in any engine: how many images have each, and where it is strongest.

In: an open collection. Out: the values of `word_statistics`. Counts are those of the statistics and
are exact. Images are looked for among the first ones that the engine returns for a word, so of a
frequent word these are some of the strongest, not all. Not this module's job: a gallery, which can
look at all of its rows (`word_statistics`).
"""

import os
from collections import Counter
from collections.abc import Mapping
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from bm25v.explanations.word_statistics import (
    COMPANIONS,
    FolderWithWord,
    ImageWithWord,
    WordInGallery,
    WordList,
    WordOrder,
    WordUse,
    compare_folders,
)
from bm25v.gallery.selection import list_folders
from bm25v.index.bm25 import Statistics
from bm25v.search.contract import FoundByWord, Images, Rows, SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.search.text import find_shared_words
from bm25v.vocabulary.bag import dequantise
from bm25v.vocabulary.names import check_word

_IMAGES_OF_ONE = 1_000  # that are looked at to describe a word
_IMAGES_OF_EACH = 24  # of a list of words


def list_words(
    engine: SearchEngine, *, best: int, sort: WordOrder, offset: int, limit: int | None
) -> WordList:
    """Return the words in use, or some of them, each with images where it is strongest."""

    def read(view: View) -> WordList:
        statistics, names = _count_words(view), engine.word_names
        words = np.flatnonzero(statistics.df_v)
        df = statistics.df_v[words]
        if sort != "word":
            words = words[np.argsort(-df if sort == "df" else df, kind="stable")]
        listed = words[offset : None if limit is None else offset + limit]
        found = view.find_with_words(listed.tolist(), _IMAGES_OF_EACH, _IMAGES_OF_EACH)
        facts = zip(listed.tolist(), statistics.idf(listed).tolist(), strict=True)
        return WordList(
            WordInGallery(
                word,
                names.get(word),
                int(statistics.df_v[word]),
                idf,
                _order_images(found, word)[:best],
            )
            for word, idf in facts
        )

    return engine.read(read)


def describe_word(engine: SearchEngine, word: int) -> WordUse:
    """Return what is known about one word."""
    check_word(word, engine.meta.n_words)

    def read(view: View) -> WordUse:
        statistics = _count_words(view)
        found = view.find_with_words([word], _IMAGES_OF_ONE, _IMAGES_OF_ONE)
        images, df = _order_images(found, word), int(statistics.df_v[word])
        (idf,) = statistics.idf(np.array([word])).tolist()
        facts = WordInGallery(word, engine.word_names.get(word), df, idf, images[:1])
        shared = find_shared_words(*_read_words(found.images, found.rows[word]), statistics)
        companions = islice((other for other in shared if other.word != word), COMPANIONS)
        folders = _compare_folders(view, word, df)
        return WordUse(facts, statistics.n, images, tuple(companions), folders)

    return engine.read(read)


def _count_words(view: View) -> Statistics:
    """Return the statistics of all words that images have."""
    return view.statistics if view.full_statistics is None else view.full_statistics


def _order_images(found: FoundByWord, word: int) -> tuple[ImageWithWord, ...]:
    """Return the images of a word, those with the highest tf first."""
    rows = np.sort(found.rows[word])
    words_nk, tf_nk = _read_words(found.images, rows)
    tf = np.where(words_nk == word, tf_nk, 0).max(axis=1, initial=0)  # empty slots have tf 0
    order = np.argsort(-tf.astype(np.int64), kind="stable")
    paths = found.images.paths_of(rows[order])
    return tuple(map(ImageWithWord, paths, dequantise(tf[order]).tolist()))


def _read_words(
    images: Images, rows: Rows
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
    """Return the words of some rows and their stored tf, from full bags if there are any."""
    if images.full_bags is None:
        return images.index_bags(rows)
    return images.full_bags.read_words(rows)


def _compare_folders(view: View, word: int, df: int) -> tuple[FolderWithWord, ...]:
    all_counts = _count_by_name(view.count_folders(RowFilter()), view.statistics.n)
    with_word = _count_by_name(view.count_folders(RowFilter(must=(word,))), df)
    # While somebody writes, one count may be newer than the other.
    known = {name: n for name, n in with_word.items() if n <= all_counts[name]}
    return compare_folders(all_counts, Counter(known))


def _count_by_name(counts: Mapping[str, int], n_images: int) -> Counter[str]:
    """Return how many images are in folders of each name, but not below them.

    `counts` has each folder with everything below it; images in none of them have the name "".

    >>> sorted(_count_by_name({"": 5, "/p": 5, "/p/cat": 3, "shop": 1}, 7).items())
    [('', 1), ('cat', 3), ('p', 2), ('shop', 1)]
    """
    direct, without_folder = Counter(counts), n_images
    for folder, n in counts.items():
        parents = list_folders(folder)
        if parents:
            direct[parents[0]] -= n
        else:
            without_folder -= n
    names: Counter[str] = Counter({"": without_folder})
    for folder, n in direct.items():
        names[os.path.basename(folder)] += n
    return +names
