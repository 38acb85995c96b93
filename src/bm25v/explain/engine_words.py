"""The words of a collection in any engine: how many images have each, and where it is strongest.

Counts are exact. Images are those that the engine returns first for a word, so of a frequent word
these are some of the strongest, not all.
"""

import os
from collections import Counter
from collections.abc import Mapping

import numpy as np

from bm25v.explain.word_statistics import (
    ImageWithWord,
    WordInGallery,
    WordList,
    WordOrder,
    WordUse,
    compare_folders,
    find_companions,
    order_by_tf,
)
from bm25v.search.contract import Images, Rows, SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.store.local.selection import list_folders
from bm25v.vocabulary.names import check_word

_IMAGES_OF_ONE = 1_000  # that are looked at to describe a word
_IMAGES_OF_EACH = 24  # of a list of words


def list_words(
    engine: SearchEngine, *, best: int, sort: WordOrder, offset: int, limit: int | None
) -> WordList:
    """Return the words in use, or some of them, each with the `best` images that have it."""

    def read(view: View) -> WordList:
        statistics, names = view.full_statistics, engine.word_names
        words = np.flatnonzero(statistics.df_v)
        df = statistics.df_v[words]
        if sort != "word":
            words = words[np.argsort(-df if sort == "df" else df, kind="stable")]
        listed = words[offset : None if limit is None else offset + limit]
        images, rows = view.find_with_words(listed.tolist(), _IMAGES_OF_EACH, _IMAGES_OF_EACH)
        return WordList(
            WordInGallery(
                word,
                names.get(word),
                int(statistics.df_v[word]),
                idf,
                _order_images(images, rows[word], word)[:best],
            )
            for word, idf in zip(listed.tolist(), statistics.idf(listed).tolist(), strict=True)
        )

    return engine.read(read)


def describe_word(engine: SearchEngine, word: int) -> WordUse:
    check_word(word, engine.meta.n_words)

    def read(view: View) -> WordUse:
        statistics = view.full_statistics
        images, rows = view.find_with_words([word], _IMAGES_OF_ONE, _IMAGES_OF_ONE)
        uses, df = _order_images(images, rows[word], word), int(statistics.df_v[word])
        (idf,) = statistics.idf(np.array([word])).tolist()
        facts = WordInGallery(word, engine.word_names.get(word), df, idf, uses[:1])
        companions = find_companions(word, *images.full_bags.read_words(rows[word]), statistics)
        all_counts = _count_by_name(view.count_folders(RowFilter()), view.statistics.n)
        with_word = _count_by_name(view.count_folders(RowFilter(must=(word,))), df)
        # While somebody writes, one count may be newer than the other.
        known = Counter({name: n for name, n in with_word.items() if n <= all_counts[name]})
        folders = compare_folders(all_counts, known)
        return WordUse(facts, statistics.n, uses, companions, folders)

    return engine.read(read)


def _order_images(images: Images, rows: Rows, word: int) -> tuple[ImageWithWord, ...]:
    """Return the images of a word, those with the highest tf first."""
    rows = np.sort(rows)
    order, tf = order_by_tf(word, *images.full_bags.read_words(rows))
    return tuple(map(ImageWithWord, images.paths_of(rows[order]), tf))


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
