"""`bm25v evaluate regions`: does a search with a region find what is in the region?

In: a data set with classes. Two images of different classes are joined side by side; the searches
use the joined image, and a region around either half. Out: how often a hit of the half's class is
among the first k hits. The joined image can be right about both halves.
"""

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.api import Gallery
from bm25v.errors import EvaluationError, ImageError
from bm25v.progress import Progress, no_progress
from bm25v.research.datasets.dataset import Dataset, Item
from bm25v.research.significance import Interval, confidence_interval
from bm25v.search import Mode, Results

HEIGHT = 400  # of a joined image, in pixels

_BOOTSTRAP_SAMPLES = 2_000


@dataclass(frozen=True)
class RegionRecall:
    """How often the right class is among the first k hits, over both halves of all pairs."""

    pairs: int
    k: int
    mode: str  # the search mode that was used
    whole: Interval  # with the joined image
    box: Interval  # with a region around one half
    gain: Interval  # box divided by whole


def measure_region_recall(
    dataset: Dataset,
    *,
    vocabulary: str = "default",
    pairs: int = 100,
    k: int = 5,
    mode: Mode | None = None,
    seed: int = 0,
    progress: Progress = no_progress,
) -> RegionRecall:
    """Draw pairs from a data set's queries, and search for them in all other images."""
    drawn = draw_class_pairs(dataset.queries, pairs, seed=seed)
    query_paths = {item.path for pair in drawn for item in pair}
    labels = {os.path.abspath(item.path): item.label for item in dataset.gallery}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        others = [item.path for item in dataset.gallery if item.path not in query_paths]
        gallery.add(others, progress=progress)
        return search_pairs(
            gallery,
            drawn,
            label_of=lambda path: labels[path],
            k=k,
            mode=mode,
            progress=progress,
        )


def draw_class_pairs(items: Sequence[Item], n: int, *, seed: int = 0) -> list[tuple[Item, Item]]:
    """Draw pairs of different classes, each image once; keep them out of the searched gallery.

    >>> items = [Item(Path(f"{n}.jpg"), "cat" if n % 2 else "dog") for n in range(6)]
    >>> [(a.label, b.label) for a, b in draw_class_pairs(items, 2)]
    [('cat', 'dog'), ('cat', 'dog')]
    """
    remaining = list(items)
    random.Random(seed).shuffle(remaining)
    pairs: list[tuple[Item, Item]] = []
    while len(pairs) < n:
        first = remaining.pop() if remaining else None
        partner = next(
            (i for i, item in enumerate(remaining) if first and item.label != first.label), None
        )
        if first is None or partner is None:
            raise EvaluationError(
                f"{len(items)} images give only {len(pairs)} pairs of different classes, not {n}: "
                f"add images, or lower the number of pairs"
            )
        pairs.append((first, remaining.pop(partner)))
    return pairs


def search_pairs(
    gallery: Gallery,
    pairs: Sequence[tuple[Item, Item]],
    *,
    label_of: Callable[[str], str] = lambda path: Path(path).parent.name,
    k: int = 5,
    mode: Mode | None = None,
    progress: Progress = no_progress,
) -> RegionRecall:
    """Search with the joined image of each pair, and with a region around either half."""
    whole: list[bool] = []
    box: list[bool] = []
    modes: set[str] = set()
    for done, pair in enumerate(pairs):
        progress("searching", done, len(pairs))
        joined, regions = join_side_by_side([_decode(item) for item in pair])
        encoding = gallery.vocabulary.encode(joined)
        whole_results = gallery.search(encoding, k=k, mode=mode)
        for item, region in zip(pair, regions, strict=True):
            box_results = gallery.search(encoding, region=region, k=k, mode=mode)
            modes.add(box_results.mode)
            whole.append(_has_class(whole_results, item, label_of))
            box.append(_has_class(box_results, item, label_of))
    return RegionRecall(
        len(pairs),
        k,
        " and ".join(sorted(modes)),
        confidence_interval(np.array(whole)),
        confidence_interval(np.array(box)),
        _ratio(np.reshape(box, (-1, 2)), np.reshape(whole, (-1, 2))),
    )


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
            array, width=max(1, round(array.shape[1] * HEIGHT / len(array))), height=HEIGHT
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


def _has_class(results: Results, item: Item, label_of: Callable[[str], str]) -> bool:
    return any(label_of(hit.path) == item.label for hit in results)
