"""The words of a gallery: how many images have each, how rare it is, and which images show it.

Counts are exact. Images are those with most of a word; of a frequent word in Qdrant, some of them.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from bm25v.dataframes import make_frame
from bm25v.display import count, identify_word, word_label
from bm25v.errors import GalleryDamaged, ImageError
from bm25v.index.bm25 import Statistics
from bm25v.search.query_images import require_records
from bm25v.store.base import Candidates, Filter, Rows, View, WordImages
from bm25v.store.files import has_changed
from bm25v.store.filters import list_folders
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import dequantise
from bm25v.vocabulary.names import check_word
from bm25v.vocabulary.phrases import fold

if TYPE_CHECKING:
    import pandas

_COMPANIONS = 8
_USUAL_IMAGES = 3  # that are added to each folder for comparison with others
_CHUNK_ROWS = 4_096  # bags that are read together
_CONSIDERED = 24  # images of an example, as some files are missing
_SHOWN = 10  # words of a list in a REPL
_COLUMNS = {  # of WordList.to_pandas()
    "word": "int",
    "name": "object",
    "df": "int",
    "idf": "float",
    "best": "object",
}

# By number, most images first, fewest first, named words first and of these most images first.
WordOrder = Literal["word", "df", "idf", "name"]


class ImageWithWord(NamedTuple):
    """An image that has a word, and the word's tf in it."""

    path: str
    tf: float


@dataclass(frozen=True)
class WordInGallery:
    """One word of a gallery, with the images where it is strongest."""

    word: int
    name: str | None
    df: int  # how many images have it
    idf: float
    best: tuple[ImageWithWord, ...]  # strongest first

    def __repr__(self) -> str:
        word, images = identify_word(self.word, self.name), count(self.df, "image")
        return f"<WordInGallery {word}: in {images}, idf {self.idf:.2f}>"

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import word_fragment

        return word_fragment(self)

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


class WordList(list[WordInGallery]):
    """The words of a gallery: a list that a notebook shows with images."""

    @overload
    def __getitem__(self, position: SupportsIndex, /) -> WordInGallery: ...
    @overload
    def __getitem__(self, position: slice, /) -> "WordList": ...
    def __getitem__(self, position: SupportsIndex | slice, /) -> "WordInGallery | WordList":
        chosen = super().__getitem__(position)
        return WordList(chosen) if isinstance(chosen, list) else chosen

    def __repr__(self) -> str:
        shown = "".join(f"\n {word!r}," for word in self[:_SHOWN])
        n_more = len(self) - _SHOWN
        return f"[{shown[2:-1]}]" if n_more <= 0 else f"[{shown[2:]}\n ... {n_more:,} more]"

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import words_fragment

        return words_fragment(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row per word; `best` holds the paths of the images where it is strongest."""
        rows = ({**vars(word), "best": [image.path for image in word.best]} for word in self)
        return make_frame(rows, _COLUMNS)


class FolderWithWord(NamedTuple):
    """A folder, how many images it has, and how many of them have a word.

    `lift` is how many times as frequent the word is there as in the whole gallery.
    """

    name: str
    n_images: int
    has_word: int
    lift: float


class SharedWord(NamedTuple):
    """A word that some images have more often than all images do."""

    word: int
    together: int  # how many of these images have it
    lift: float  # how many times as often as all images


@dataclass(frozen=True)
class WordUse:
    """Everything that a gallery knows about one word."""

    facts: WordInGallery
    n: int  # images in the gallery
    images: tuple[ImageWithWord, ...]  # that have it, strongest first; of Qdrant, some
    companions: tuple[SharedWord, ...]  # words that are often in the same images
    folders: tuple[FolderWithWord, ...]  # where it is most frequent first; none if all are in one

    def __repr__(self) -> str:
        word = identify_word(self.facts.word, self.facts.name)
        images = f"{self.facts.df:,} of {count(self.n, 'image')}"
        return f"<WordUse {word}: in {images}, idf {self.facts.idf:.2f}>"

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import word_use_fragment

        return word_use_fragment(self)

    @property
    def purity(self) -> float | None:
        """The share of the images with the word that are in the folder with most of them."""
        if not self.folders:
            return None
        counts = [folder.has_word for folder in self.folders]
        return max(counts) / sum(counts)


class PatchBox(NamedTuple):
    """Where a patch is in an image, as shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


class WordExample(NamedTuple):
    """An image that shows a word, and the patch where the word is strongest in it."""

    path: str
    patch: PatchBox


def order_words(view: View, names: Mapping[int, str], sort: WordOrder, name: str = "") -> list[int]:
    """Return the words in use; with a `name`, those whose names contain it."""
    df_v = view.full_statistics.df_v
    words: list[int] = np.flatnonzero(df_v).tolist()
    if name:
        words = [word for word in words if fold(name) in fold(names.get(word, ""))]
    if sort == "name":
        words.sort(key=lambda word: (word not in names, -df_v[word]))
    elif sort != "word":
        words.sort(key=lambda word: -df_v[word] if sort == "df" else df_v[word])
    return words


def describe_words(
    view: View, names: Mapping[int, str], words: Sequence[int], best: int
) -> list[WordInGallery]:
    """Return facts about some words, each with the `best` images that have it."""
    df_v, idf_v = view.full_statistics.df_v, view.full_statistics.idf_v
    images, rows = _find_strongest(view, words, best)
    words_n = np.repeat(np.array(words, dtype=np.int64), [len(rows[word]) for word in words])
    rows_n = np.concatenate([np.empty(0, dtype=np.int64), *(rows[word] for word in words)])
    uses = _list_images(images, rows_n, words_n, *_read_full_bags(images, rows_n))
    return [
        WordInGallery(
            word,
            names.get(word),
            int(df_v[word]),
            float(idf_v[word]),
            tuple(islice(uses, len(rows[word]))),
        )
        for word in words
    ]


def find_shared_words(
    words_nk: NDArray[np.integer], tf_nk: NDArray[np.uint16], statistics: Statistics
) -> list[SharedWord]:
    """Return the words that some bags have more often than all images do, best first.

    A rare word that occurs by chance has a large lift and means little. So words are ordered by
    images · ln(lift), and a word must be in at least two of the bags.
    """
    together_v = np.bincount(words_nk[tf_nk > 0], minlength=statistics.n_words)
    candidates = np.flatnonzero(together_v >= 2)
    together = together_v[candidates]
    lift = together * statistics.n / (len(words_nk) * statistics.df_v[candidates])
    order = np.lexsort((candidates, -together * np.log(lift)))
    return [
        SharedWord(int(candidates[i]), int(together[i]), float(lift[i]))
        for i in order
        if lift[i] > 1
    ]


def describe_word(view: View, names: Mapping[int, str], word: int) -> WordUse:
    """Return everything that is known about one word."""
    check_word(word, view.meta.n_words)
    statistics = view.full_statistics
    images, rows = _find_strongest(view, [word], None)
    full_bags = _read_full_bags(images, rows[word])
    uses = tuple(_list_images(images, rows[word], np.array([word]), *full_bags))
    df, idf = int(statistics.df_v[word]), float(statistics.idf_v[word])
    facts = WordInGallery(word, names.get(word), df, idf, uses[:1])
    shared = find_shared_words(*full_bags, statistics)
    companions = islice((other for other in shared if other.word != word), _COMPANIONS)
    all_counts = _count_by_name(view.count_by("folder", Filter()), statistics.n)
    word_counts = _count_by_name(view.count_by("folder", Filter(must=((word,),))), df)
    folders = compare_folders(all_counts, word_counts)
    return WordUse(facts, statistics.n, uses, tuple(companions), folders)


def _find_strongest(view: View, words: Sequence[int], n: int | None) -> WordImages:
    """Return for each word the n images with most of it, or all.

    If that is too few, an image may be damaged, which is an error; Qdrant returns only the first.
    """
    images, rows = view.find_strongest(words, n)
    df_v = view.full_statistics.df_v
    if any(len(rows[word]) < min(df_v[word], n or df_v[word]) for word in words):
        _read_full_bags(images, images.rows)
    return WordImages(images, rows)


def _list_images(
    images: Candidates,
    rows_n: Rows,
    words_n: NDArray[np.int64],
    words_nk: NDArray[np.unsignedinteger],
    tf_nk: NDArray[np.uint16],
) -> Iterator[ImageWithWord]:
    """Return the images in some rows, by their full bags, each with the tf of one word."""
    tf_n = np.where(words_nk == words_n[:, None], tf_nk, 0).max(axis=1, initial=0)
    different, at_n = np.unique(rows_n, return_inverse=True)
    paths = images.paths(different)
    return map(ImageWithWord, (paths[i] for i in at_n.tolist()), dequantise(tf_n).tolist())


def _read_full_bags(
    images: Candidates, rows: Rows
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]:
    """Return the words and stored tf of full bags, which may be very many."""
    starts = range(0, max(len(rows), 1), _CHUNK_ROWS)
    parts = [images.read_bags(rows[start : start + _CHUNK_ROWS], full=True) for start in starts]
    words_nk, tf_nk = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return words_nk, tf_nk


def compare_folders(
    all_counts: Counter[str], word_counts: Counter[str]
) -> tuple[FolderWithWord, ...]:
    """Return how frequent a word is in each folder; both count images by a folder's name.

    >>> for folder in compare_folders(Counter(cat=2, dog=2), Counter(cat=1, dog=2)):
    ...     print(folder)
    FolderWithWord(name='dog', n_images=2, has_word=2, lift=1.3333333333333333)
    FolderWithWord(name='cat', n_images=2, has_word=1, lift=0.6666666666666666)
    >>> compare_folders(Counter(cat=2), Counter(cat=1))
    ()
    """
    if len(all_counts) < 2:
        return ()
    # While somebody writes to Qdrant, one count may be newer than the other.
    known = Counter({name: n for name, n in word_counts.items() if n <= all_counts[name]})
    share = known.total() / all_counts.total()

    def order(folder: FolderWithWord) -> tuple[float, int, str]:
        name, n_images, n, _ = folder
        # With a few usual images, so that a folder with a single image is not the first.
        return -(n + share * _USUAL_IMAGES) / (n_images + _USUAL_IMAGES), -n, name

    folders = (
        FolderWithWord(name, all_counts[name], n, n / all_counts[name] / share)
        for name, n in known.items()
    )
    return tuple(sorted(folders, key=order))


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


def find_examples(
    view: View, vocabulary: Vocabulary, words: Sequence[int]
) -> dict[int, WordExample]:
    """Return for each word the image that shows it best, if it can be read; none is encoded."""
    images, rows_by_word = view.find_examples(words, _CONSIDERED, 2)
    different = {row for rows in rows_by_word.values() for row in rows.tolist()}
    records = images.records(np.array(sorted(different), dtype=np.int64))

    @cache
    def is_usable(row: int) -> bool:
        with suppress(ImageError):
            return row in records and not has_changed(records[row].path, records[row])
        return False

    best = {
        word: next(filter(is_usable, rows.tolist()), None) for word, rows in rows_by_word.items()
    }
    return {
        word: WordExample(records[row].path, _read_patch(images, row, word, vocabulary))
        for word, row in best.items()
        if row is not None
    }


def find_parts(
    view: View, vocabulary: Vocabulary, pairs: Sequence[tuple[int, str | None]]
) -> list[WordExample | None]:
    """Return where each word is strongest in the image with it; None if no image shows it.

    A word without an image gets the one that shows it best. The whole image is returned if it does
    not have the word.
    """
    words = list(dict.fromkeys(word for word, path in pairs if path is None))
    best = find_examples(view, vocabulary, words)
    given = list(dict.fromkeys(path for _, path in pairs if path is not None))
    images = view.fetch(require_records(view.find(given), given))
    rows = dict(zip(images.paths(images.rows), images.rows.tolist(), strict=True))

    def locate(word: int, path: str | None) -> WordExample | None:
        if path is None:
            return best.get(word)
        if path not in rows:  # it was removed meanwhile
            return None
        return WordExample(path, _read_patch(images, rows[path], word, vocabulary))

    return [locate(word, path) for word, path in pairs]


def _read_patch(images: Candidates, row: int, word: int, vocabulary: Vocabulary) -> PatchBox:
    words_nk, tf_nk = images.read_bags(np.array([row]), full=True)
    has_word_k = (words_nk[0] == word) & (tf_nk[0] > 0)
    if not has_word_k.any():
        return PatchBox(0, 0, 1, 1)
    (patch,) = images.full_bags[row]["patches"][has_word_k].tolist()
    n_rows, n_columns = vocabulary.backbone.grid
    y, x = divmod(patch, n_columns)
    if y >= n_rows:
        raise GalleryDamaged("an image has a word in no patch of it: run bm25v verify")
    return PatchBox(x / n_columns, y / n_rows, 1 / n_columns, 1 / n_rows)
