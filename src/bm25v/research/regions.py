"""Does a box find what is in it? Two pictures side by side, searched whole and by a box around one.

Pairs are of different classes. A search is right if one of its first hits is of the class of the
picture in question. The whole pair may be right about both.
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
from bm25v.errors import EvaluationError, ImageError
from bm25v.gallery import Gallery, Results
from bm25v.gallery.gallery import Mode
from bm25v.research.datasets.dataset import Dataset, Item
from bm25v.research.statistics import Interval, interval

HEIGHT = 400  # of a pair, in pixels

_DRAWS = 2_000

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class RegionRecall:
    """How often the right class is among the first hits, over all pictures of all pairs."""

    pairs: int
    k: int
    mode: str  # in which boxes were searched
    whole: Interval
    box: Interval
    gain: Interval  # how many times as often a box is right as the whole picture


def measure(
    dataset: Dataset,
    *,
    vocabulary: str = "default",
    pairs: int = 100,
    k: int = 5,
    mode: Mode | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> RegionRecall:
    """Make pairs of a data set's queries, and search for them among all other pictures."""
    drawn = held_out(dataset.queries, pairs, seed=seed)
    asked = {item.path for pair in drawn for item in pair}
    labels = {os.path.abspath(item.path): item.label for item in dataset.gallery}
    with (
        tempfile.TemporaryDirectory() as scratch,
        Gallery.create(Path(scratch) / "gallery", vocabulary=vocabulary) as gallery,
    ):
        others = [item.path for item in dataset.gallery if item.path not in asked]
        gallery.add(others, progress=lambda done, total: progress("indexing", done, total))
        return region_recall(
            gallery,
            drawn,
            label_of=lambda path: labels[path],
            k=k,
            mode=mode,
            progress=lambda done, total: progress("searching", done, total),
        )


def held_out(items: Sequence[Item], n: int, *, seed: int = 0) -> list[tuple[Item, Item]]:
    """Draw pairs of different classes, each picture once; they must not be in the gallery.

    >>> items = [Item(Path(f"{n}.jpg"), "cat" if n % 2 else "dog") for n in range(6)]
    >>> [(a.label, b.label) for a, b in held_out(items, 2)]
    [('cat', 'dog'), ('cat', 'dog')]
    """
    left = list(items)
    random.Random(seed).shuffle(left)
    pairs: list[tuple[Item, Item]] = []
    while len(pairs) < n:
        one = left.pop() if left else None
        place = next((i for i, other in enumerate(left) if one and other.label != one.label), None)
        if one is None or place is None:
            raise EvaluationError(
                f"{len(items)} pictures make {len(pairs)} pairs of different classes, not {n}"
            )
        pairs.append((one, left.pop(place)))
    return pairs


def region_recall(
    gallery: Gallery,
    pairs: Sequence[tuple[Item, Item]],
    *,
    label_of: Callable[[str], str] = lambda path: Path(path).parent.name,
    k: int = 5,
    mode: Mode | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> RegionRecall:
    """Search with each pair whole, and by a box around either picture."""
    whole: list[bool] = []
    box: list[bool] = []
    modes: set[str] = set()
    for done, pair in enumerate(pairs):
        progress(done, len(pairs))
        picture, boxes = side_by_side([_decoded(item) for item in pair])
        encoding = gallery.vocabulary.encode(picture)
        together = gallery.search(encoding, k=k, mode=mode)
        for item, region in zip(pair, boxes, strict=True):
            alone = gallery.search(encoding, region=region, k=k, mode=mode)
            modes.add(alone.mode)
            whole.append(_is_right(together, item, label_of))
            box.append(_is_right(alone, item, label_of))
    return RegionRecall(
        len(pairs),
        k,
        " and ".join(sorted(modes)),
        interval(np.array(whole)),
        interval(np.array(box)),
        _ratio(np.reshape(box, (-1, 2)), np.reshape(whole, (-1, 2))),
    )


def side_by_side(
    pictures: Sequence[NDArray[np.uint8]],
) -> tuple[NDArray[np.uint8], list[tuple[float, float, float, float]]]:
    """Return pictures in a row, equally high, and the box of each as fractions of the row.

    >>> square, wide = np.zeros((50, 50, 3), np.uint8), np.zeros((20, 60, 3), np.uint8)
    >>> row, boxes = side_by_side([square, wide])
    >>> row.shape, boxes
    ((400, 1600, 3), [(0.0, 0.0, 0.25, 1.0), (0.25, 0.0, 0.75, 1.0)])
    """
    scaled = [
        images.resize_image(
            one, width=max(1, round(one.shape[1] * HEIGHT / len(one))), height=HEIGHT
        )
        for one in pictures
    ]
    widths = [one.shape[1] for one in scaled]
    starts, total = np.cumsum([0, *widths]).tolist(), sum(widths)
    boxes = [(starts[i] / total, 0.0, width / total, 1.0) for i, width in enumerate(widths)]
    return np.concatenate(scaled, axis=1), boxes


def _decoded(item: Item) -> NDArray[np.uint8]:
    try:
        return images.decode_image(item.path)
    except ImageError as error:
        raise EvaluationError(f"{item.path}: {error}; take it out of the data set") from error


def _ratio(a_p2: NDArray[np.bool_], b_p2: NDArray[np.bool_]) -> Interval:
    """Return how many times as often a is right as b, from drawing whole pairs again.

    >>> _ratio(np.ones((50, 2), bool), np.tile([True, False], (50, 1)))
    Interval(mean=2.0, low=2.0, high=2.0)
    """
    drawn = np.random.default_rng(0).integers(len(a_p2), size=(_DRAWS, len(a_p2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        mean = np.divide(a_p2.mean(), b_p2.mean())
        ratios = a_p2[drawn].sum(axis=(1, 2)) / b_p2[drawn].sum(axis=(1, 2))
    low, high = np.quantile(ratios, [0.025, 0.975], method="nearest").tolist()
    return Interval(float(mean), low, high)


def _is_right(results: Results, item: Item, label_of: Callable[[str], str]) -> bool:
    return any(label_of(hit.path) == item.label for hit in results)
