"""Measures searches of a gallery: by regions, by text, and with nothing to find."""

import os
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.errors import EvaluationError, ImageError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.progress import Progress, no_progress
from bm25v.research.datasets.dataset import Dataset, Item
from bm25v.research.metrics import Judgements, average_precision
from bm25v.research.significance import Interval, confidence_interval
from bm25v.search import Mode, Results
from bm25v.search.calibrate import MIN_IMAGES
from bm25v.search.results import Strength

STRENGTHS: tuple[Strength, ...] = ("strong", "fair", "weak")
PRECISIONS = (10, 100)

_BATCH = 64  # queries between two reports of progress
_HEIGHT = 400  # of a joined image, in pixels
_BOOTSTRAP_SAMPLES = 2_000


@contextmanager
def _index(paths: Sequence[Path], vocabulary: str, progress: Progress) -> Iterator[Gallery]:
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
        _ratio(np.reshape(box, (-1, 2)), np.reshape(whole, (-1, 2))),
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


def _ratio(a_p2: NDArray[np.bool_], b_p2: NDArray[np.bool_]) -> Interval:
    """Return the mean of a divided by the mean of b, with a bootstrap over pairs.

    >>> _ratio(np.ones((50, 2), bool), np.tile([True, False], (50, 1)))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    shape = (_BOOTSTRAP_SAMPLES, len(a_p2))
    samples = np.random.default_rng(0).integers(len(a_p2), size=shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.divide(a_p2.mean(), b_p2.mean())
        ratios = a_p2[samples].sum(axis=(1, 2)) / b_p2[samples].sum(axis=(1, 2))
    low, high = np.quantile(ratios, [0.025, 0.975], method="nearest").tolist()
    return Interval(float(mean), low, high)


# Text


class ClassResult(NamedTuple):
    """How a search by the name of a class does.

    Precisions are those of the first 10 and 100 hits, or of as many as the class has images. All
    figures are 0 if nothing of the name is understood.
    """

    name: str
    n_images: int
    is_known: bool  # every word of the name is understood
    understood: tuple[str, ...]
    precision: Mapping[int, float]
    average_precision: float
    strength: Strength | None  # of the best hit


@dataclass(frozen=True)
class TextResult:
    n_images: int
    classes: tuple[ClassResult, ...]

    def summarize(self, *, is_known: bool) -> dict[str, float]:
        """Return the means over the classes whose names are fully understood, or are not."""
        results = [result for result in self.classes if result.is_known is is_known]
        n = max(len(results), 1)
        return {
            "classes": len(results),
            **{f"P@{k}": sum(r.precision[k] for r in results) / n for k in PRECISIONS},
            "mAP": sum(result.average_precision for result in results) / n,
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "n_images": self.n_images,
            "known": self.summarize(is_known=True),
            "unknown": self.summarize(is_known=False),
            "classes": [
                {
                    **result._asdict(),
                    "precision": {f"P@{k}": value for k, value in result.precision.items()},
                }
                for result in self.classes
            ],
        }


def measure_text(
    folder: Path, *, vocabulary: str = "default", progress: Progress = no_progress
) -> TextResult:
    """Index the images of class folders, and search for the name of each folder."""
    paths = sorted(images.find_images(folder)) if folder.is_dir() else []
    if len({_class_of(path, folder) for path in paths} - {None}) < 2:
        raise EvaluationError(f"{folder} has no class folders: give one folder for each class")
    in_classes = [path for path in paths if _class_of(path, folder)]
    with _index(in_classes, vocabulary, progress) as gallery:
        labels = {image.path: _class_of(Path(image.path), folder) for image in gallery.images()}
        counts = Counter(label for label in labels.values() if label is not None)
        results = []
        for number, (name, n_images) in enumerate(sorted(counts.items()), start=1):
            results.append(_measure_class(gallery, name, n_images, labels))
            progress("searching", number, len(counts))
    return TextResult(len(labels), tuple(results))


def _measure_class(
    gallery: Gallery, name: str, n_images: int, labels: Mapping[str, str | None]
) -> ClassResult:
    try:
        results = gallery.search(text=name.replace("_", " "), k=len(labels))
    except InvalidOption:  # nothing of the name is understood
        return ClassResult(name, n_images, False, (), dict.fromkeys(PRECISIONS, 0.0), 0.0, None)
    is_right = np.array([labels[hit.path] == name for hit in results], dtype=bool)
    (precision,) = average_precision(Judgements(is_right[None], np.array([n_images])))
    return ClassResult(
        name,
        n_images,
        not results.not_understood,
        results.understood,
        {k: float(is_right[: min(k, n_images)].sum() / min(k, n_images)) for k in PRECISIONS},
        float(precision),
        results.hits[0].strength if results else None,
    )


def _class_of(path: Path, folder: Path) -> str | None:
    relative = path.resolve().relative_to(folder.resolve())
    return relative.parts[0] if len(relative.parts) > 1 else None


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
    by_class: defaultdict[Path, list[Path]] = defaultdict(list)
    for path in _find_images(folder):
        by_class[path.parent].append(path)
    if len(by_class) < 2:
        raise EvaluationError(f"{folder} has no class folders: give one folder for each class")
    first = [path for paths in by_class.values() for path in paths[::2]]
    return first, [path for paths in by_class.values() for path in paths[1::2]]


def _find_images(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise InvalidOption(f"{folder} is not a folder: give a folder of images")
    paths = sorted(images.find_images(folder))
    if not paths:
        raise InvalidOption(f"no images in {folder}")
    return paths
