"""Measures searches of a gallery: by regions, by text, and with nothing to find."""

import os
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.errors import EvaluationError, ImageError, InvalidOption
from bm25v.files import read_limited
from bm25v.gallery import Gallery
from bm25v.progress import Progress, no_progress
from bm25v.research.datasets import Dataset, Item, find_class_images
from bm25v.research.metrics import (
    Interval,
    Judgements,
    average_precision,
    confidence_interval,
    ratio_interval,
)
from bm25v.search import Mode, Query, Results
from bm25v.search.calibrate import MIN_IMAGES
from bm25v.search.results import Strength
from bm25v.vocabulary.phrases import SMALL_WORDS, list_singulars, split_text

STRENGTHS: tuple[Strength, ...] = ("strong", "fair", "weak")
PRECISIONS = {"P@10": 10, "P@100": 100}
RECALLS = (1, 5, 10)
SENTENCE_PHOTOS = 1_000  # that captions are searched among

_BATCH = 64  # queries between two reports of progress
_HEIGHT = 400  # of a joined image, in pixels
_WORDS = 150  # of captions that are searched for
_WORD_PHOTOS = 12  # that such a word has at least
_MAX_BYTES = 256_000_000  # of a file with captions


@contextmanager
def _index(
    paths: Sequence[Path] | Mapping[str, Path], vocabulary: str, progress: Progress
) -> Iterator[Gallery]:
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        gallery.add(paths, progress=progress)
        yield gallery


# Regions


@dataclass(frozen=True)
class RegionRecall:
    """How often the right class is among the first k hits, over both halves of all pairs."""

    pairs: int
    k: int
    mode: str  # the search mode that was used
    whole: Interval  # with the joined image
    box: Interval  # with a region around one half
    gain: Interval  # box divided by whole

    def to_dict(self) -> dict[str, Any]:
        intervals = {"whole": self.whole, "box": self.box, "gain": self.gain}
        return {**vars(self), **{kind: value._asdict() for kind, value in intervals.items()}}


def measure_region_recall(
    dataset: Dataset,
    *,
    vocabulary: str = "default",
    pairs: int = 100,
    k: int = 5,
    mode: Mode | None = None,
    progress: Progress = no_progress,
) -> RegionRecall:
    """Draw pairs from a data set's queries, and search for them in all other images.

    Two images of different classes are joined side by side. The searches use the joined image,
    which can be right about both halves, and a region around either half.
    """
    drawn = draw_class_pairs(dataset.queries, pairs)
    query_paths = {item.path for pair in drawn for item in pair}
    labels = {os.path.abspath(item.path): item.label for item in dataset.gallery}
    others = [item.path for item in dataset.gallery if item.path not in query_paths]

    def has_class(results: Results, item: Item) -> bool:
        return any(labels[hit.path] == item.label for hit in results)

    whole: list[bool] = []
    box: list[bool] = []
    modes: set[str] = set()
    with _index(others, vocabulary, progress) as gallery:
        for done, pair in enumerate(drawn):
            progress("searching", done, pairs)
            joined, regions = join_side_by_side([_decode(item) for item in pair])
            encoding = gallery.vocabulary.encode(joined)
            whole_results = gallery.search(encoding, k=k, mode=mode)
            for item, region in zip(pair, regions, strict=True):
                box_results = gallery.search(encoding, region=region, k=k, mode=mode)
                modes.add(box_results.mode)
                whole.append(has_class(whole_results, item))
                box.append(has_class(box_results, item))
    return RegionRecall(
        pairs,
        k,
        " and ".join(sorted(modes)),
        confidence_interval(np.array(whole)),
        confidence_interval(np.array(box)),
        ratio_interval(*(np.reshape(halves, (-1, 2)).mean(axis=1) for halves in (box, whole))),
    )


def draw_class_pairs(items: Sequence[Item], n: int) -> list[tuple[Item, Item]]:
    """Draw pairs of different classes, each image once; keep them out of the searched gallery.

    >>> items = [Item(Path(f"{n}.jpg"), "cat" if n % 2 else "dog") for n in range(6)]
    >>> [(a.label, b.label) for a, b in draw_class_pairs(items, 2)]
    [('cat', 'dog'), ('cat', 'dog')]
    """
    remaining = list(items)
    random.Random(0).shuffle(remaining)
    pairs: list[tuple[Item, Item]] = []
    while len(pairs) < n:
        first = remaining.pop() if remaining else None
        partner = next(
            (i for i, item in enumerate(remaining) if first and item.label != first.label), None
        )
        if first is None or partner is None:
            raise EvaluationError(
                f"{len(items)} images give only {len(pairs)} pairs of different classes, not {n}: "
                f"add images, or lower --pairs"
            )
        pairs.append((first, remaining.pop(partner)))
    return pairs


def join_side_by_side(
    arrays: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], list[tuple[float, float, float, float]]]:
    """Return images joined in a row with one height, and each one's region as shares of the row.

    >>> square, wide = np.zeros((50, 50, 3), np.uint8), np.zeros((20, 60, 3), np.uint8)
    >>> row, regions = join_side_by_side([square, wide])
    >>> row.shape, regions
    ((400, 1600, 3), [(0.0, 0.0, 0.25, 1.0), (0.25, 0.0, 0.75, 1.0)])
    """
    scaled = [
        images.resize_image(
            array, width=max(1, round(array.shape[1] * _HEIGHT / len(array))), height=_HEIGHT
        )
        for array in arrays
    ]
    widths = [array.shape[1] for array in scaled]
    starts, total = np.cumsum([0, *widths]).tolist(), sum(widths)
    regions = [(starts[i] / total, 0.0, width / total, 1.0) for i, width in enumerate(widths)]
    return np.concatenate(scaled, axis=1), regions


def _decode(item: Item) -> NDArray[np.uint8]:
    try:
        return images.decode_image(item.path)
    except ImageError as error:
        raise EvaluationError(f"{item.path}: {error}; remove it from the data set") from error


# Text


class NameResult(NamedTuple):
    """How a search by the name of a class, or by a word of captions, does.

    Precisions are those of the first 10 and 100 hits, or of as many as the class has images.
    """

    name: str
    n_images: int
    is_known: bool  # every word of the name is understood
    understood: tuple[str, ...]
    precision: Mapping[str, float]
    average_precision: float
    strength: Strength | None  # of the best hit


def _summarize(results: Sequence[NameResult]) -> dict[str, float]:
    n = max(len(results), 1)
    means = {key: sum(result.precision[key] for result in results) / n for key in PRECISIONS}
    return {**means, "mAP": sum(result.average_precision for result in results) / n}


@dataclass(frozen=True)
class TextResult:
    n_images: int
    classes: tuple[NameResult, ...]

    def summarize(self, *, is_known: bool) -> dict[str, float]:
        """Return the means over the classes whose names are fully understood, or are not."""
        results = [result for result in self.classes if result.is_known is is_known]
        return {"classes": len(results), **_summarize(results)}

    def to_dict(self) -> dict[str, Any]:
        return {
            "n_images": self.n_images,
            "known": self.summarize(is_known=True),
            "unknown": self.summarize(is_known=False),
            "classes": [result._asdict() for result in self.classes],
        }


def measure_text(
    folder: Path, *, vocabulary: str = "default", progress: Progress = no_progress
) -> TextResult:
    """Index the images of class folders, and search for the name of each folder.

    A text also finds folders by their names, so images are indexed under numbers.
    """
    items = _list_class_images(folder)
    numbered = _number([item.path for item in items])
    labels = {number: item.label for number, item in zip(numbered, items, strict=True)}
    classes: defaultdict[str, set[str]] = defaultdict(set)
    with _index(numbered, vocabulary, progress) as gallery:
        for image in gallery:
            classes[labels[image.path]].add(image.path)
        measured = _measure_names(gallery, dict(sorted(classes.items())), progress)
        return TextResult(len(gallery), measured)


def _number(paths: Iterable[Path]) -> dict[str, Path]:
    return {f"{number:06}": path for number, path in enumerate(paths)}


def _measure_names(
    gallery: Gallery, names: Mapping[str, Set[str]], progress: Progress
) -> tuple[NameResult, ...]:
    """Search for each name, whose images are known."""
    measured = []
    for done, (name, relevant) in enumerate(names.items()):
        progress("searching", done, len(names))
        results = gallery.search(text=name.replace("_", " "), k=len(gallery))
        is_right = np.array([hit.path in relevant for hit in results], dtype=bool)
        n = len(relevant)
        (precision,) = average_precision(Judgements(is_right[None], np.array([n])))
        measured.append(
            NameResult(
                name,
                n,
                bool(results.understood) and not results.not_understood,
                results.understood,
                {
                    key: float(is_right[: min(k, n)].sum() / min(k, n))
                    for key, k in PRECISIONS.items()
                },
                float(precision),
                results[0].strength if results else None,
            )
        )
    return tuple(measured)


class SentenceResult(NamedTuple):
    """How a search by one caption of a photo does."""

    rank: int | None  # of the photo, behind others with its score; None: not among the first 11
    is_understood: bool  # a part of the caption, at least
    strength: Strength | None  # of the best hit


@dataclass(frozen=True)
class CaptionResult:
    n_images: int
    n_missing: int  # photos that have captions and no file
    n_searched: int  # photos that sentences were searched among
    sentences: tuple[SentenceResult, ...]
    words: tuple[NameResult, ...]

    def to_dict(self) -> dict[str, Any]:
        ranks = [sentence.rank or 0 for sentence in self.sentences]
        n = len(ranks)
        return {
            "n_missing": self.n_missing,
            "sentences": {
                "photos": self.n_searched,
                "n": n,
                "not_understood": sum(not result.is_understood for result in self.sentences),
                **{f"R@{k}": sum(0 < rank <= k for rank in ranks) / max(n, 1) for k in RECALLS},
            },
            "strength": {
                strength or "unknown": self._judge_best(strength) for strength in (*STRENGTHS, None)
            },
            "words": {
                "photos": self.n_images,
                "n": len(self.words),
                "not_understood": sum(not word.understood for word in self.words),
                **_summarize(self.words),
            },
            "by_word": [word._asdict() for word in self.words],
        }

    def _judge_best(self, strength: Strength | None) -> dict[str, float]:
        """Return how often the best hit is so strong, and how often it is the photo then."""
        ranks = [result.rank for result in self.sentences if result.strength == strength]
        return {"n": len(ranks), "R@1": ranks.count(1) / max(len(ranks), 1)}


def measure_captions(
    folder: Path,
    captions: Path,
    *,
    photos: Path | None = None,
    vocabulary: str = "default",
    progress: Progress = no_progress,
) -> CaptionResult:
    """Search for photos by their captions, and by the most frequent words of all captions."""
    listed = read_captions(captions, photos)
    files = {path.name: path for path in _find_images(folder)}
    names = [name for name in listed if name in files]
    if not names:
        raise EvaluationError(f"{folder} has none of the photos that {captions} names")
    numbered = _number([files[name] for name in names])
    texts = {number: listed[name] for number, name in zip(numbered, names, strict=True)}
    first = dict(islice(numbered.items(), SENTENCE_PHOTOS))
    with _index(first, vocabulary, progress) as gallery:
        n_searched = len(gallery)
        sentences = _measure_sentences(
            gallery, [(text, i.path) for i in gallery for text in texts[i.path]], progress
        )
        gallery.add(numbered, progress=progress)
        words = list_caption_words({image.path: texts[image.path] for image in gallery})
        measured = _measure_names(gallery, words, progress)
        return CaptionResult(
            len(gallery), len(listed) - len(names), n_searched, sentences, measured
        )


def _measure_sentences(
    gallery: Gallery, captions: Sequence[tuple[str, str]], progress: Progress
) -> tuple[SentenceResult, ...]:
    """Search for each caption, whose photo is known."""
    measured = []
    for start in range(0, len(captions), _BATCH):
        progress("searching for sentences", start, len(captions))
        batch = captions[start : start + _BATCH]
        queries = [Query(text=text, k=max(RECALLS) + 1) for text, _ in batch]
        for results, (_, photo) in zip(gallery.search_many(queries), batch, strict=True):
            scores = {hit.path: hit.score for hit in results}
            own = scores.get(photo)
            rank = None if own is None else sum(score >= own for score in scores.values())
            strength = results[0].strength if results else None
            measured.append(SentenceResult(rank, bool(results.understood), strength))
    return tuple(measured)


def read_captions(path: Path, photos: Path | None = None) -> dict[str, list[str]]:
    """Return the captions of photos by name, of all or of those in a list, in its order.

    A line is `photo<TAB>caption`; the photo's name may end in a number: `1.jpg#0`.
    """
    names = None if photos is None else dict.fromkeys(_read_lines(photos))
    captions: dict[str, list[str]] = {name: [] for name in names or ()}
    for line in _read_lines(path):
        photo, tab, caption = line.partition("\t")
        if not tab:
            raise EvaluationError(
                f"{path} has the line {line[:60]!r}: write a photo, a tab and its caption"
            )
        name = re.sub(r"#\d+$", "", photo)
        if names is None or name in names:
            captions.setdefault(name, []).append(caption)
    return {name: texts for name, texts in captions.items() if texts}


def _read_lines(path: Path) -> list[str]:
    try:
        text = read_limited(path, _MAX_BYTES).decode()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise EvaluationError(f"{path} cannot be read: {reason}") from error
    return [line.strip() for line in text.split("\n") if line.strip()]


def list_caption_words(captions: Mapping[str, Sequence[str]]) -> dict[str, set[str]]:
    """Return the most frequent words of captions, each with its photos.

    Two captions of a photo must have the word, which may be in the plural.
    """
    keys = {
        photo: [{token.key for token in split_text(text)} for text in texts]
        for photo, texts in captions.items()
    }
    known = set().union(*(words for texts in keys.values() for words in texts))

    def to_singular(key: str) -> str:
        return next((singular for singular in list_singulars(key) if singular in known), key)

    frequencies: Counter[str] = Counter()
    photos: defaultdict[str, set[str]] = defaultdict(set)
    for photo, texts in keys.items():
        counts = Counter(word for words in texts for word in set(map(to_singular, words)))
        frequencies.update(counts)
        for word, n in counts.items():
            if n > 1 and len(word) > 1 and word.isalpha() and word not in SMALL_WORDS:
                photos[word].add(photo)
    frequent = [word for word in photos if len(photos[word]) >= _WORD_PHOTOS]
    frequent.sort(key=lambda word: (-frequencies[word], word))
    return {word: photos[word] for word in frequent[:_WORDS]}


# Nothing to find


@dataclass(frozen=True)
class NoMatchResult:
    n_images: int  # of the gallery
    counts: dict[str, Counter[Strength]]  # by folder, how strong the best hits of its queries are

    def to_dict(self) -> dict[str, Any]:
        queries = {name: {"n": c.total(), **c} for name, c in self.counts.items()}
        return {"n_images": self.n_images, "queries": queries}


def measure_no_match(
    inside: Path,
    outside: Sequence[Path],
    *,
    vocabulary: str = "default",
    progress: Progress = no_progress,
) -> NoMatchResult:
    """Index half of the images of each class folder, and search for all other images."""
    indexed, held_out = split_classes(inside)
    if len(indexed) < MIN_IMAGES:
        raise EvaluationError(
            f"{inside} gives a gallery of {len(indexed)} images: {MIN_IMAGES} are needed"
        )
    queries = {f"in {inside.name}": held_out}
    queries |= {f"out {folder.name}": _find_images(folder) for folder in outside}
    counts: defaultdict[str, Counter[Strength]] = defaultdict(Counter)
    with _index(indexed, vocabulary, progress) as gallery:
        for name, paths in queries.items():
            for start in range(0, len(paths), _BATCH):
                for results in gallery.search_many(paths[start : start + _BATCH], k=1):
                    counts[name][(results.hits[0].strength if results else None) or "weak"] += 1
                progress(f"searching: {name}", min(start + _BATCH, len(paths)), len(paths))
        return NoMatchResult(len(gallery), dict(counts))


def split_classes(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return every second image of each class folder, and the others."""
    by_class: defaultdict[str, list[Path]] = defaultdict(list)
    for item in _list_class_images(folder):
        by_class[item.label].append(item.path)
    first = [path for paths in by_class.values() for path in paths[::2]]
    return first, [path for paths in by_class.values() for path in paths[1::2]]


def _list_class_images(folder: Path) -> list[Item]:
    items, _ = find_class_images(folder)
    if len({item.label for item in items}) < 2:
        raise EvaluationError(f"{folder} has no class folders: give one folder for each class")
    return sorted(items, key=lambda item: item.path)


def _find_images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder: give a folder of images")
    paths = sorted(images.find_images(folder))
    if not paths:
        raise InvalidOption(f"no images in {folder}")
    return paths
