"""How large an image may be: its pixels, and the memory that decoding takes.

It is estimated before decoding. All threads share one budget of memory, so that several large
images wait for each other.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from PIL import Image

from bm25v.errors import ImageError
from bm25v.images.pixels import reduction_factor
from bm25v.images.structure import Structure

MAX_PIXELS = 200_000_000
"""Larger images are refused before they are decoded; the largest phone cameras stay below."""

MAX_MEMORY = 650_000_000
"""Images whose decoding takes more bytes are refused before they are decoded."""

_TILE_BYTES = 40_000_000
_SMALL_BYTES = 40_000_000  # such images do not wait
_PIXEL_SIZES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16L": 2, "I;16B": 2, "I;16N": 2}  # others: 4


def check_pixels(size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(f"too large: {width} × {height} pixels; the limit is {MAX_PIXELS:,}")


def estimate_memory(image: Image.Image, structure: Structure, short_side: int | None) -> int:
    """Return how many bytes it takes at most to decode an opened image and to convert it to RGB."""
    factor = reduction_factor(image.size, short_side)
    n_halvings = structure.count_halvings(factor)
    n_pixels = image.width * image.height >> 2 * n_halvings
    reduced = 3 * image.width * image.height // factor**2
    per_pixel = structure.bytes_per_pixel + _PIXEL_SIZES.get(image.mode, 4)
    if structure.image_format in ("QOI", "PNM", "BMP"):  # collect all pixels once more
        per_pixel += 4
    working = int(n_pixels * per_pixel) + (structure.n_bytes >> 2 * n_halvings)
    return working + reduced + min(_TILE_BYTES, 12 * n_pixels)


def check_memory(n_bytes: int, description: str) -> None:
    if n_bytes > MAX_MEMORY:
        raise ImageError(
            f"too large: {description} take {n_bytes / 1e6:,.0f} MB to decode; "
            f"the limit is {MAX_MEMORY / 1e6:,.0f} MB"
        )


class Budget:
    """Bytes that threads reserve; a thread waits until there are enough."""

    def __init__(self, n_bytes: int) -> None:
        self._free = n_bytes
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, n_bytes: int) -> Iterator[None]:
        if n_bytes <= _SMALL_BYTES:
            yield
            return
        with self._changed:
            self._changed.wait_for(lambda: self._free >= n_bytes)
            self._free -= n_bytes
        try:
            yield
        finally:
            with self._changed:
                self._free += n_bytes
                self._changed.notify_all()


memory = Budget(MAX_MEMORY)
"""What all threads together may take to decode images."""
