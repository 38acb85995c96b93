"""Frozen vision models: pixels in, patch features and one dense vector out.

In: an upright RGB array. Out: `Features` (patches (P, D), dense (E,)) from one forward pass.
Not this room's job: visual words, and reading picture files.

>>> sorted(names())
['dinov2-s', 'mobilenet-v2', 'tinyvit-5m', 'toy']
>>> load("toy").grid
(7, 7)
"""

from bm25v.backbones.protocol import Backbone, Features
from bm25v.errors import UnknownBackbone

__all__ = ["Backbone", "Features", "load", "names"]


def names() -> list[str]:
    """Return the names `load` knows."""
    from bm25v.backbones.onnx import SPECS

    return [*SPECS, "toy"]


def load(name: str) -> Backbone:
    """Return the backbone of that name; weights are fetched when first used."""
    from bm25v.backbones.onnx import SPECS, OnnxBackbone
    from bm25v.backbones.toy import ToyBackbone

    if name == "toy":
        return ToyBackbone()
    if name in SPECS:
        return OnnxBackbone(SPECS[name])
    raise UnknownBackbone(f"no backbone {name!r}; there are: {', '.join(names())}")
