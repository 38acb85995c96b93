"""What one word of a gallery looks like: images that have it, where it is in them, related words.

To find where a word is in an image, the image's file is encoded again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import ImageError, InvalidOption
from bm25v.explain.word_examples import DistinctImages
from bm25v.explain.word_statistics import ImageWithWord, WordInGallery, WordStatistics, WordUse
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import Codes
from bm25v.store.local.encoding import EncodedImage, NamedImage, encode_images
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import GalleryStore
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary, names
from bm25v.vocabulary import bag as bags

TOP = 12  # images with most of a word
MAX_BINS = 12  # of term frequencies

_MIDDLE, _RANDOM = 6, 6  # other images of a portrait
_AVERAGED = 32  # random images whose grids are averaged
_NEAREST = 8
_MIN_LIFT = 1.1  # a word that is almost everywhere comes with all others
_COMPARED = 200  # images of a word that are compared with each other
_MAX_CACHED = 2_000  # files whose codes are kept for the next portraits

Grid = NDArray[np.float32]  # (rows, columns): how active a word is in each patch


class WordInImage(NamedTuple):
    """An image that has a word, and where; `problem` is the reason if `grid` is None."""

    path: str
    tf: float
    grid: Grid | None
    problem: str | None = None


class RelatedWord(NamedTuple):
    """A word related to another one; `value` is a lift over chance, or a cosine of directions."""

    facts: WordInGallery
    value: float
    best: WordInImage


class TfBin(NamedTuple):
    """How many images have a term frequency from `low` to below `high`."""

    low: float
    high: float
    n_images: int


@dataclass(frozen=True)
class WordPortrait:
    """Everything that a word's page shows."""

    uses: WordUse
    gallery: str  # its folder
    top: tuple[WordInImage, ...]  # the images with most of it
    middle: tuple[WordInImage, ...]  # those around the median
    random: tuple[WordInImage, ...]
    companions: tuple[RelatedWord, ...]  # words in the same images
    neighbours: tuple[RelatedWord, ...]  # words with similar directions
    mean_grid: Grid  # where it is in an image, on average; each image counts the same
    n_averaged: int  # images in that average

    @property
    def tf_bins(self) -> list[TfBin]:
        return tf_bins([use.tf for use in self.uses.images])

    def to_dict(self) -> dict[str, Any]:
        """Return the portrait as plain values, without the grids of single images."""
        facts, uses = self.uses.facts, self.uses
        groups = {"top": self.top, "middle": self.middle, "random": self.random}
        together = {companion.word: companion.together for companion in uses.companions}
        return {
            "word": facts.word,
            "name": facts.name,
            "df": facts.df,
            "n_images": uses.n,
            "idf": facts.idf,
            "tf": [tf_bin._asdict() for tf_bin in self.tf_bins],
            **{
                kind: [{"path": i.path, "tf": i.tf, "problem": i.problem} for i in images]
                for kind, images in groups.items()
            },
            "companions": [
                {**_identify(word), "together": together[word.facts.word], "lift": word.value}
                for word in self.companions
            ],
            "neighbours": [{**_identify(word), "cosine": word.value} for word in self.neighbours],
            "mean_grid": self.mean_grid.tolist(),
            "purity": uses.purity,
            "folders": [folder._asdict() for folder in uses.folders],
        }


def make_portraits(
    store: GalleryStore,
    words: Sequence[int],
    *,
    progress: Progress = no_progress,
) -> Iterator[WordPortrait]:
    """Yield the portrait of each word; raise an error first for a word that no image has."""
    finder = _WordFinder(store, words, best=1)
    for done, word in enumerate(words):
        progress("encoding images", done, len(words))
        yield _make_portrait(store, finder, word)
    progress("encoding images", len(words), len(words))


def find_strongest(
    store: GalleryStore, words: Sequence[int], best: int
) -> Iterator[tuple[int, list[WordInImage]]]:
    finder = _WordFinder(store, words, best=best)
    for word in words:
        uses = finder.facts[word].best
        finder.encode(use.path for use in uses)
        yield word, [finder.find(use, word) for use in uses]


def _make_portrait(store: GalleryStore, finder: "_WordFinder", word: int) -> WordPortrait:
    uses = finder.statistics.word(word)
    chosen = _choose_images(_leave_out_copies(store, uses.images), seed=word)
    top, middle, random, averaged = chosen
    companions = [
        (finder.facts[companion.word], companion.lift)
        for companion in uses.companions
        if companion.lift >= _MIN_LIFT
    ]
    nearest = nearest_words(store.vocabulary, word, among=finder.facts)
    neighbours = [(finder.facts[other], cosine) for other, cosine in nearest]
    related = [facts.best[0] for facts, _ in (*companions, *neighbours)]
    finder.encode(use.path for use in chain(*chosen, related))
    grids = [grid for use in averaged if (grid := finder.find(use, word).grid) is not None]
    mean_grid = np.zeros(store.vocabulary.backbone.grid, dtype=np.float32)
    if grids:
        mean_grid = np.mean([grid / grid.sum() for grid in grids], axis=0, dtype=np.float32)

    def find(uses: Sequence[ImageWithWord]) -> tuple[WordInImage, ...]:
        return tuple(finder.find(use, word) for use in uses)

    def relate(facts: WordInGallery, value: float) -> RelatedWord:
        return RelatedWord(facts, value, finder.find(facts.best[0], facts.word))

    return WordPortrait(
        uses,
        str(store.path),
        find(top),
        find(middle),
        find(random),
        tuple(relate(*companion) for companion in companions),
        tuple(relate(*neighbour) for neighbour in neighbours),
        mean_grid,
        len(grids),
    )


class _WordFinder:
    """Finds words in a gallery's images; a file that several portraits show is encoded once."""

    def __init__(self, store: GalleryStore, words: Sequence[int], *, best: int) -> None:
        self._store = store
        self._codes: dict[str, Codes | str] = {}  # of each path, or why there are none
        self.statistics = WordStatistics(store)
        self.facts = {facts.word: facts for facts in self.statistics.all_words(best=best)}
        for word in words:
            if names.check_word(word, store.vocabulary.n_words) not in self.facts:
                raise InvalidOption(
                    f"word {word} is in no image of {store.path}: "
                    "`bm25v words list` lists the words in use"
                )

    def encode(self, paths: Iterable[str]) -> None:
        """Encode files, in parallel, for the calls of `find` that follow."""
        paths = set(paths)
        if len(self._codes) > _MAX_CACHED:
            self._codes.clear()
        new = map(NamedImage, sorted(paths - self._codes.keys()))
        for path, outcome in encode_images(
            new, self._store.vocabulary, lambda content: None, available_cpus()
        ):
            if not isinstance(outcome, EncodedImage) or outcome.encoding is None:
                self._codes[path] = str(outcome)
                continue
            try:
                has_changed = self._store.has_changed(path)
            except ImageError as error:
                self._codes[path] = str(error)
                continue
            changed = "has changed since it was indexed: index it again"
            self._codes[path] = changed if has_changed else outcome.encoding.codes

    def find(self, use: ImageWithWord, word: int) -> WordInImage:
        """Return where a word is in an image whose file was encoded."""
        codes = self._codes[use.path]
        if isinstance(codes, str):
            return WordInImage(*use, None, codes)
        grid = bags.word_activations(codes, word).reshape(self._store.vocabulary.backbone.grid)
        if not grid.any():  # rounding, or another processor than the one that indexed it
            return WordInImage(*use, None, "the word is too weak in it to be located")
        return WordInImage(*use, grid)


def _leave_out_copies(store: GalleryStore, uses: Sequence[ImageWithWord]) -> list[ImageWithWord]:
    """Return the images without copies of those before them, as far as a portrait looks at them.

    Further down the list there are too many to be compared.
    """

    def choose(snapshot: Snapshot) -> list[ImageWithWord]:
        distinct = DistinctImages()
        return [
            use
            for n, use in enumerate(uses)
            if n >= _COMPARED
            or distinct.accept(snapshot.dense_ne[store.find_image(use.path, snapshot).row])
        ]

    return store.read(choose)


def _choose_images(uses: Sequence[ImageWithWord], seed: int) -> tuple[Sequence[ImageWithWord], ...]:
    """Return the top, middle, random and averaged images; the same every time."""
    middle = range(TOP, len(uses))[max(0, len(uses) // 2 - _MIDDLE // 2 - TOP) :][:_MIDDLE]
    order = np.random.default_rng(seed).permutation(len(uses)).tolist()
    random = [n for n in order if n >= TOP and n not in middle][:_RANDOM]
    others = ([uses[n] for n in group] for group in (middle, sorted(random), order[:_AVERAGED]))
    return uses[:TOP], *others


def nearest_words(
    vocabulary: Vocabulary, word: int, among: Iterable[int]
) -> list[tuple[int, float]]:
    """Return the words among others whose decoder directions are most similar, with cosines."""
    others = np.array(sorted(set(among) - {word}), dtype=np.int64)
    unit_vd = normalise(vocabulary.sae.w_dec_vd[[word, *others]])
    cosines = unit_vd[1:] @ unit_vd[0]
    best = np.argsort(-cosines, kind="stable")[:_NEAREST]
    return [(int(others[i]), float(cosines[i])) for i in best]


def tf_bins(frequencies: Sequence[float]) -> list[TfBin]:
    """Sort term frequencies into at most `MAX_BINS` bins of one round width, starting at 0.

    >>> [(bin.low, bin.high, bin.n_images) for bin in tf_bins([0.4, 1.2, 1.9, 6.0])]
    [(0.0, 1.0, 1), (1.0, 2.0, 2), (2.0, 3.0, 0), (3.0, 4.0, 0), (4.0, 5.0, 0), (5.0, 6.0, 0),
     (6.0, 7.0, 1)]
    """
    highest = max(frequencies, default=0.0)
    widths = (step * 10.0**power for power in range(-3, 6) for step in (1, 2, 5))
    width = next(width for width in widths if highest < width * MAX_BINS)
    counts = np.bincount([int(value / width + 1e-9) for value in frequencies]).tolist()
    return [
        TfBin(round(n * width, 9), round((n + 1) * width, 9), count)
        for n, count in enumerate(counts)
    ]


def _identify(related: RelatedWord) -> dict[str, Any]:
    facts = related.facts
    return {"word": facts.word, "name": facts.name, "df": facts.df}
