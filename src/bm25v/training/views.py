"""The ways in which one picture is shown to a vocabulary in training."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

ABOUT = "whole, mirrored, then random parts of 25 to 70 % of the area, mirrored half of the time"


def views(image_hwc: Pixels, n: int, rng: np.random.Generator) -> Iterator[Pixels]:
    """Give a picture whole, then mirrored, then in random parts, `n` views in all.

    >>> image = np.zeros((60, 80, 3), dtype=np.uint8)
    >>> [view.shape for view in views(image, 2, np.random.default_rng(0))]
    [(60, 80, 3), (60, 80, 3)]
    """
    yield from (image_hwc, image_hwc[:, ::-1])[:n]
    height, width = image_hwc.shape[:2]
    for _ in range(n - 2):
        side = np.sqrt(rng.uniform(0.25, 0.7))
        h, w = max(1, round(height * side)), max(1, round(width * side))
        y, x = rng.integers(height - h + 1), rng.integers(width - w + 1)
        part = image_hwc[y : y + h, x : x + w]
        yield part[:, ::-1] if rng.random() < 0.5 else part
