"""Does a box find what is in it? Two pictures side by side, searched whole and by a box around one.

Pairs are of different classes. A search is right if one of its first hits is of the class of the
picture in question. The whole pair may be right about both.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.errors import EvaluationError
from bm25v.evaluate.datasets.dataset import Item
from bm25v.evaluate.statistics import Interval, interval
from bm25v.gallery import Gallery, Results
from bm25v.gallery.gallery import Mode

HEIGHT = 400  # of a pair, in pixels


@dataclass(frozen=True)
class RegionRecall:
    """How often the right class is among the first hits, over all pictures of all pairs."""

    pairs: int
    k: int
    mode: str  # in which boxes were searched
    whole: Interval
    box: Interval

    @property
    def gain(self) -> float:
        """How many times as often a box is right as the whole picture."""
        return self.box.mean / self.whole.mean if self.whole.mean else float("inf")


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
) -> RegionRecall:
    """Search with each pair whole, and by a box around either picture."""
    whole: list[bool] = []
    box: list[bool] = []
    modes: set[str] = set()
    for pair in pairs:
        picture, boxes = side_by_side([images.decode(item.path) for item in pair])
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
        images.resize(one, width=max(1, round(one.shape[1] * HEIGHT / len(one))), height=HEIGHT)
        for one in pictures
    ]
    widths = [one.shape[1] for one in scaled]
    starts, total = np.cumsum([0, *widths]).tolist(), sum(widths)
    boxes = [(starts[i] / total, 0.0, width / total, 1.0) for i, width in enumerate(widths)]
    return np.concatenate(scaled, axis=1), boxes


def _is_right(results: Results, item: Item, label_of: Callable[[str], str]) -> bool:
    return any(label_of(hit.path) == item.label for hit in results)
