"""What one word of a gallery looks like: images that have it, where it is in them, related words.

To find where a word is in an image, the image's file is encoded again.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import ImageError, InvalidOption
from bm25v.explain.words import (
    ImageWithWord,
    WordInGallery,
    WordUse,
    describe_words,
)
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import Codes
from bm25v.store.base import View
from bm25v.store.encoding import EncodedImage, NamedImage, encode_images
from bm25v.store.files import has_changed
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary.names import check_word

if TYPE_CHECKING:
    from bm25v.gallery import Gallery

TOP = 12  # images with most of a word
MAX_BINS = 12  # of term frequencies

_MIDDLE, _RANDOM = 6, 6  # other images of a portrait
_AVERAGED = 32  # random images whose grids are averaged
_NEAREST = 8
_MIN_LIFT = 1.1  # a word that is almost everywhere comes with all others
_COMPARED = 200  # images of a word that are compared with each other
_COPY_COSINE = 0.95  # of dense vectors: from there on, two images show the same
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
    gallery: str  # its folder or address
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

        def identify(related: RelatedWord) -> dict[str, Any]:
            return {name: getattr(related.facts, name) for name in ("word", "name", "df")}

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
                {**identify(word), "together": together[word.facts.word], "lift": word.value}
                for word in self.companions
            ],
            "neighbours": [{**identify(word), "cosine": word.value} for word in self.neighbours],
            "mean_grid": self.mean_grid.tolist(),
            "purity": uses.purity,
            "folders": [folder._asdict() for folder in uses.folders],
        }


def make_portraits(
    gallery: "Gallery",
    words: Sequence[int],
    *,
    progress: Progress = no_progress,
) -> Iterator[WordPortrait]:
    """Yield the portrait of each word; raise an error first for a word that no image has."""
    in_use = _find_words_in_use(gallery, words)
    finder = _WordFinder(gallery)
    for done, word in enumerate(words):
        progress("encoding images", done, len(words))
        yield _make_portrait(gallery, finder, word, in_use)
    progress("encoding images", len(words), len(words))


def find_strongest(
    gallery: "Gallery", words: Sequence[int], best: int
) -> Iterator[tuple[int, list[WordInImage]]]:
    """Yield for each word the images with most of it, and where it is in them."""
    _find_words_in_use(gallery, words)
    finder = _WordFinder(gallery)
    for facts in _describe_words(gallery, words, best):
        finder.encode(use.path for use in facts.best)
        yield facts.word, [finder.find(use, facts.word) for use in facts.best]


def _find_words_in_use(gallery: "Gallery", words: Sequence[int]) -> list[int]:
    """Return all words that images have; raise an error if one of those given is not among them."""
    df_v = gallery.store.read(lambda view: view.full_statistics.df_v)
    for word in words:
        if not df_v[check_word(word, len(df_v))]:
            raise InvalidOption(
                f"word {word} is in no image of {gallery.location}: "
                "`bm25v words list` lists the words in use"
            )
    in_use: list[int] = np.flatnonzero(df_v).tolist()
    return in_use


def _describe_words(gallery: "Gallery", words: Sequence[int], best: int) -> list[WordInGallery]:
    names = gallery.word_names
    return gallery.store.read(lambda view: describe_words(view, names, words, best))


def _make_portrait(
    gallery: "Gallery", finder: "_WordFinder", word: int, in_use: Sequence[int]
) -> WordPortrait:
    uses, vocabulary = gallery.word(word), gallery.vocabulary
    distinct = gallery.store.read(lambda view: _leave_out_copies(view, uses.images))
    top, middle, random, averaged = chosen = _choose_images(distinct, seed=word)
    companions = [(c.word, c.lift) for c in uses.companions if c.lift >= _MIN_LIFT]
    neighbours = nearest_words(vocabulary, word, among=in_use)
    related = {other for other, _ in (*companions, *neighbours)}
    described = _describe_words(gallery, sorted(related), best=1)
    facts = {other.word: other for other in described if other.best}
    strongest = [other.best[0] for other in facts.values()]
    finder.encode(use.path for use in chain(*chosen, strongest))
    grids = [grid for use in averaged if (grid := finder.find(use, word).grid) is not None]
    mean_grid = np.zeros(vocabulary.backbone.grid, dtype=np.float32)
    if grids:
        mean_grid = np.mean([grid / grid.sum() for grid in grids], axis=0, dtype=np.float32)

    def find(uses: Sequence[ImageWithWord]) -> tuple[WordInImage, ...]:
        return tuple(finder.find(use, word) for use in uses)

    def relate(others: Sequence[tuple[int, float]]) -> tuple[RelatedWord, ...]:
        return tuple(
            RelatedWord(facts[other], value, finder.find(facts[other].best[0], other))
            for other, value in others
            if other in facts
        )

    return WordPortrait(
        uses,
        gallery.location,
        find(top),
        find(middle),
        find(random),
        relate(companions),
        relate(neighbours),
        mean_grid,
        len(grids),
    )


class _WordFinder:
    """Finds words in a gallery's images; a file that several portraits show is encoded once."""

    def __init__(self, gallery: "Gallery") -> None:
        self._gallery = gallery
        self._codes: dict[str, Codes | str] = {}  # of each path, or why there are none

    def encode(self, paths: Iterable[str]) -> None:
        """Encode files, in parallel, for the calls of `find` that follow."""
        if len(self._codes) > _MAX_CACHED:
            self._codes.clear()
        new = sorted(set(paths) - self._codes.keys())
        records = self._gallery.store.read(lambda view: view.find(new))
        vocabulary, workers = self._gallery.vocabulary, available_cpus()
        for path, outcome in encode_images(
            map(NamedImage, new), vocabulary, lambda content: None, workers
        ):
            if not isinstance(outcome, EncodedImage) or outcome.encoding is None:
                self._codes[path] = str(outcome)
                continue
            try:
                is_changed = has_changed(path, records.get(path))
            except ImageError as error:
                self._codes[path] = str(error)
                continue
            changed = "has changed since it was indexed: index it again"
            self._codes[path] = changed if is_changed else outcome.encoding.codes

    def find(self, use: ImageWithWord, word: int) -> WordInImage:
        """Return where a word is in an image whose file was encoded."""
        codes = self._codes[use.path]
        if isinstance(codes, str):
            return WordInImage(*use, None, codes)
        grid = bags.word_activations(codes, word).reshape(self._gallery.vocabulary.backbone.grid)
        if not grid.any():  # rounding, or another processor than the one that indexed it
            return WordInImage(*use, None, "the word is too weak in it to be located")
        return WordInImage(*use, grid)


def _leave_out_copies(view: View, uses: Sequence[ImageWithWord]) -> list[ImageWithWord]:
    """Return the images without copies of those before them, as far as a portrait looks at them.

    Further down the list there are too many to be compared.
    """
    records = view.find([use.path for use in uses[:_COMPARED]])
    compared = [use for use in uses[:_COMPARED] if use.path in records]
    images = view.fetch([records[use.path] for use in compared])
    vectors = images.dense_vectors(images.rows)
    kept: list[ImageWithWord] = []
    units_ne = np.empty_like(vectors)
    for use, unit_e in zip(compared, normalise(vectors.astype(np.float32)), strict=True):
        if not (units_ne[: len(kept)] @ unit_e >= _COPY_COSINE).any():
            units_ne[len(kept)] = unit_e
            kept.append(use)
    return [*kept, *uses[_COMPARED:]]


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
