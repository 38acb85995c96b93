"""The words of a gallery: how many images have each, how rare it is, where it is strongest."""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, NamedTuple, SupportsIndex, overload

import numpy as np
from numpy.typing import NDArray

from bm25v.dataframes import make_frame
from bm25v.display import count, identify_word, word_label
from bm25v.index.bm25 import Statistics
from bm25v.search.text import SharedWord, find_shared_words
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import GalleryStore
from bm25v.vocabulary.bag import SCALE, dequantise
from bm25v.vocabulary.names import check_word

if TYPE_CHECKING:
    import pandas

_USUAL_IMAGES = 3  # that are added to each folder for comparison with others
_CHUNK_ROWS = 4_096  # looked at once
_ENTRY = np.dtype([("word", np.int32), ("row", np.int64), ("tf", np.int32)])
_SHOWN = 10  # words of a list in a REPL
_COLUMNS = {  # of WordList.to_pandas()
    "word": "int",
    "name": "object",
    "df": "int",
    "idf": "float",
    "best": "object",
}

WordOrder = Literal["word", "df", "idf"]  # by number, most images first, fewest first


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


@dataclass(frozen=True)
class WordUse:
    """Everything that a gallery knows about one word."""

    facts: WordInGallery
    n: int  # images in the gallery
    images: tuple[ImageWithWord, ...]  # that have it, strongest first; of an engine, the first ones
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
        return max(folder.has_word for folder in self.folders) / self.facts.df


class _Listing(NamedTuple):
    """All words, as of one snapshot and its names."""

    snapshot: Snapshot
    names: Mapping[int, str]
    best: int
    words: list[WordInGallery]


class WordStatistics:
    """Counts the words of one gallery; the list is kept until it, or a name, changes."""

    def __init__(self, store: GalleryStore) -> None:
        self._store = store
        self._listing: _Listing | None = None

    def all_words(self, *, best: int = 3, sort: WordOrder = "word") -> WordList:
        words = self._store.read(lambda snapshot: self._list_words(snapshot, best))
        if sort != "word":
            words = sorted(words, key=lambda word: -word.df if sort == "df" else word.df)
        return WordList(words)

    def word(self, word: int) -> WordUse:
        check_word(word, self._store.catalog.meta.n_words)
        return self._store.read(lambda snapshot: self._describe_word(snapshot, word))

    def _list_words(self, snapshot: Snapshot, best: int) -> list[WordInGallery]:
        names = self._store.word_names
        last = self._listing
        if last and last.snapshot is snapshot and last.names is names and last.best == best:
            return last.words
        statistics = snapshot.full_bags.statistics
        words = np.flatnonzero(statistics.df_v)
        paths = self._store.catalog.all_paths(snapshot.state.generation)
        strongest = _find_strongest_rows(snapshot, best)
        listed = [
            WordInGallery(
                word,
                names.get(word),
                int(statistics.df_v[word]),
                idf,
                tuple(ImageWithWord(paths[row], tf) for row, tf in strongest[word]),
            )
            for word, idf in zip(words.tolist(), statistics.idf(words).tolist(), strict=True)
        ]
        self._listing = _Listing(snapshot, names, best, listed)
        return listed

    def _describe_word(self, snapshot: Snapshot, word: int) -> WordUse:
        paths = self._store.catalog.all_paths(snapshot.state.generation)
        statistics = snapshot.full_bags.statistics
        rows = snapshot.rows[snapshot.full_bags.have_word(word, snapshot.rows)]
        bags = snapshot.full_bags.read_words(rows)
        order, tf = order_by_tf(word, *bags)
        images = tuple(map(ImageWithWord, (paths[row] for row in rows[order].tolist()), tf))
        (idf,) = statistics.idf(np.array([word]))
        name = self._store.word_names.get(word)
        facts = WordInGallery(word, name, len(images), float(idf), images[:1])
        companions = find_companions(word, *bags, statistics)
        all_paths = [paths[row] for row in snapshot.rows.tolist()]
        folders = count_folders(all_paths, [image.path for image in images])
        return WordUse(facts, statistics.n, images, companions, folders)


def order_by_tf(
    word: int, words_nk: NDArray[np.integer], tf_nk: NDArray[np.uint16]
) -> tuple[NDArray[np.int64], list[float]]:
    """Return the positions of bags, those with most of a word first, and its tf in each."""
    tf = np.where(words_nk == word, tf_nk, 0).max(axis=1, initial=0)  # empty slots have tf 0
    order = np.argsort(-tf.astype(np.int64), kind="stable")
    return order, dequantise(tf[order]).tolist()


def find_companions(
    word: int, words_nk: NDArray[np.integer], tf_nk: NDArray[np.uint16], statistics: Statistics
) -> tuple[SharedWord, ...]:
    """Return other words that the bags with a word have more often than all images do."""
    shared = find_shared_words(words_nk, tf_nk, statistics)
    return tuple(islice((other for other in shared if other.word != word), 8))


def count_folders(paths: Sequence[str], with_word: Sequence[str]) -> tuple[FolderWithWord, ...]:
    """Return for each parent folder how many images it has and how many of them have a word.

    >>> paths = ["/p/cat/1.jpg", "/p/cat/2.jpg", "/p/dog/1.jpg", "/p/dog/2.jpg"]
    >>> for folder in count_folders(paths, with_word=paths[1:]):
    ...     print(folder)
    FolderWithWord(name='dog', n_images=2, has_word=2, lift=1.3333333333333333)
    FolderWithWord(name='cat', n_images=2, has_word=1, lift=0.6666666666666666)
    >>> count_folders(paths[:2], with_word=paths[:1])
    ()
    """
    return compare_folders(_count_by_folder(paths), _count_by_folder(with_word))


def compare_folders(
    all_counts: Counter[str], word_counts: Counter[str]
) -> tuple[FolderWithWord, ...]:
    """Return how frequent a word is in each folder; both count images by a folder's name."""
    if len(all_counts) < 2:
        return ()
    share = word_counts.total() / all_counts.total()
    folders = [
        FolderWithWord(name, all_counts[name], n, n / all_counts[name] / share)
        for name, n in word_counts.items()
    ]

    def careful_share(folder: FolderWithWord) -> float:
        """Add a few usual images, so that a folder with a single image is not the first."""
        n_with_word = folder.has_word + share * _USUAL_IMAGES
        return n_with_word / (folder.n_images + _USUAL_IMAGES)

    return tuple(sorted(folders, key=lambda f: (-careful_share(f), -f.has_word, f.name)))


def _count_by_folder(paths: Sequence[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for folder, n in Counter(path.rpartition(os.sep)[0] for path in paths).items():
        counts[os.path.basename(folder)] += n
    return counts


def _find_strongest_rows(snapshot: Snapshot, best: int) -> dict[int, list[tuple[int, float]]]:
    """Return each word's rows with the highest tf, ties to the lower row."""
    strongest = np.empty(0, dtype=_ENTRY)
    n_words = snapshot.full_bags.statistics.n_words
    needed_v = np.ones(n_words, dtype=np.int32)  # tf, to be among them
    for start in range(0, len(snapshot.rows), _CHUNK_ROWS):
        chunk = snapshot.rows[start : start + _CHUNK_ROWS]
        words_nk, tf_nk = snapshot.full_bags.read_words(chunk)
        positions, slots = np.nonzero(tf_nk >= needed_v[words_nk])
        new = np.empty(len(positions), dtype=_ENTRY)
        new["word"], new["tf"] = words_nk[positions, slots], tf_nk[positions, slots]
        new["row"] = chunk[positions]
        strongest = np.concatenate([strongest, new])
        strongest = strongest[np.lexsort((-strongest["tf"], strongest["word"]))]  # stable
        ranks = _rank_by_word(strongest["word"])
        last = strongest[ranks == best - 1]
        needed_v[last["word"]] = last["tf"] + 1
        strongest = strongest[ranks < best]
    rows_by_word: dict[int, list[tuple[int, float]]] = {}
    for word, row, tf in strongest.tolist():
        rows_by_word.setdefault(word, []).append((row, tf / SCALE))
    return rows_by_word


def _rank_by_word(words: NDArray[np.int32]) -> NDArray[np.int64]:
    """Return the position of each entry among those of the same word, which are neighbours."""
    starts = np.flatnonzero(np.diff(words, prepend=-1))
    sizes = np.diff(np.append(starts, len(words)))
    return np.arange(len(words)) - np.repeat(starts, sizes)
