"""Pictures, or parts of them, told by their content and made ready for a backbone."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError
from bm25v.research.datasets import Box, Item


class Shot(NamedTuple):
    """A picture, or the part of one that asks."""

    path: Path
    box: Box | None

    @classmethod
    def of(cls, item: Item) -> "Shot":
        """Return what of an item's picture is looked at."""
        return cls(item.path, item.landmark.box if item.landmark else None)


class Content(NamedTuple):
    """What a file holds, told by hashes."""

    digest: bytes  # of the file
    key: bytes  # of what is looked at


def digest_of(*parts: bytes) -> bytes:
    """Return one hash of several values."""
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).digest()


def _key(digest: bytes, shot: Shot) -> bytes:
    return digest if shot.box is None else digest_of(digest, repr(tuple(shot.box)).encode())


def content(shot: Shot) -> Content | str:
    """Return the hashes of a picture, or why it cannot be read."""
    try:
        with images.open_stream(shot.path) as stream:
            digest = hashlib.blake2b(stream.read(), digest_size=16).digest()
    except (ImageError, OSError) as error:
        return str(error)
    return Content(digest, _key(digest, shot))


def prepared(key: bytes, shot: Shot, backbone: Backbone) -> Floats | str:
    """Return a picture as its backbone wants it, or why it cannot be had."""
    try:
        with images.open_stream(shot.path) as stream:
            data = stream.read()
        if shot.box is None:
            pixels = images.decode_image(data, short_side=2 * backbone.input_size)
        else:
            pixels = _cut(images.decode_image(data), shot.box)
    except (ImageError, OSError) as error:
        return str(error)
    digest = hashlib.blake2b(data, digest_size=16).digest()
    if key != _key(digest, shot):
        return "has changed while it was read: run the command again"
    return backbone.prepare(pixels)


def _cut(pixels_hwc: NDArray[np.uint8], box: Box) -> NDArray[np.uint8]:
    height, width, _ = pixels_hwc.shape
    left, top = max(0, round(box.left)), max(0, round(box.top))
    right, bottom = min(width, round(box.right)), min(height, round(box.bottom))
    if left >= right or top >= bottom:
        raise ImageError(f"has {width} × {height} pixels, and none of them in the box {tuple(box)}")
    return np.ascontiguousarray(pixels_hwc[top:bottom, left:right])
