"""How large an image may be: its pixels, and the memory that decoding takes.

In: the header of an image. Out: an estimate in bytes before it is decoded, or an `ImageError` with
the limit. All threads share one budget of memory, so that several large images wait for each other.
Not this module's job: reading headers (`structure`).
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

_TOTAL_MEMORY = 1_000_000_000
_TILE_BYTES = 40_000_000
_SMALL_BYTES = 40_000_000  # such images do not wait
_PYTHON_DECODERS = frozenset({"QOI", "PNM", "BMP"})  # collect all pixels once more


def check_pixels(size: tuple[int, int]) -> None:
    """Refuse more than `MAX_PIXELS` pixels."""
    width, height = size
    if width * height > MAX_PIXELS:
        raise ImageError(f"too large: {width} × {height} pixels; the limit is {MAX_PIXELS:,}")


def estimate_memory(image: Image.Image, structure: Structure, short_side: int | None) -> int:
    """Return how many bytes it takes at most to decode an opened image and to convert it to RGB."""
    factor = reduction_factor(image.size, short_side)
    n_halvings = structure.count_halvings(factor)
    n_pixels = image.width * image.height >> 2 * n_halvings
    reduced = 3 * image.width * image.height // factor**2
    per_pixel = structure.bytes_per_pixel + pixel_size(image.mode)
    if structure.image_format in _PYTHON_DECODERS:
        per_pixel += 4
    working = 0 if structure.image_format == "WebP" else int(n_pixels * per_pixel)
    working += structure.n_bytes >> 2 * n_halvings
    return working + reduced + min(_TILE_BYTES, 12 * n_pixels)


def check_memory(n_bytes: int, description: str) -> None:
    """Refuse what takes more than `MAX_MEMORY`."""
    if n_bytes > MAX_MEMORY:
        raise ImageError(
            f"too large: {description} take {n_bytes / 1e6:,.0f} MB to decode; "
            f"the limit is {MAX_MEMORY / 1e6:,.0f} MB"
        )


def pixel_size(mode: str) -> int:
    """Return how many bytes Pillow takes for a pixel."""
    if mode in ("1", "L", "P"):
        return 1
    return 2 if mode.startswith("I;16") else 4


class _Budget:
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


memory = _Budget(_TOTAL_MEMORY)
"""What all threads together may take to decode images."""
