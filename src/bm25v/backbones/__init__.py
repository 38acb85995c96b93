"""Frozen vision models: pixels in, patch features and one dense vector out.

Besides the names below, `load` takes Hugging Face models: `owner/name`, or a folder with one.
In: an upright RGB array. Out: `Features` (patches (P, D), dense (E,)) from one forward pass.
Not this room's job: visual words, and reading picture files.

>>> sorted(names())
['dinov2-s', 'mobilenet-v2', 'tinyvit-5m', 'toy']
>>> load("toy").grid
(7, 7)
"""

from bm25v.backbones.protocol import Backbone, Features
from bm25v.errors import UnknownBackbone, WrongUse

__all__ = ["Backbone", "Features", "load", "names"]


def names() -> list[str]:
    """Return the names `load` knows."""
    from bm25v.backbones.onnx import SPECS

    return [*SPECS, "toy"]


def load(name: str, *, layer: int | None = None, device: str | None = None) -> Backbone:
    """Return the backbone of that name; weights are fetched when first used.

    `layer` and `device` are for Hugging Face models: the block whose output becomes patch features
    (the last one by default), and cpu, cuda or mps (the fastest there is by default).
    """
    from bm25v.backbones import checkpoint
    from bm25v.backbones.onnx import SPECS, OnnxBackbone
    from bm25v.backbones.toy import ToyBackbone

    if name in names():
        if layer is not None or device not in (None, "cpu"):
            raise WrongUse(f"backbone {name} has a layer of its own and runs on the cpu only")
        return ToyBackbone() if name == "toy" else OnnxBackbone(SPECS[name])
    if checkpoint.is_model(name):
        from bm25v.backbones.huggingface import HuggingFaceBackbone

        return HuggingFaceBackbone(name, layer=layer, device=device)
    raise UnknownBackbone(
        f"no backbone {name!r}; there are: {', '.join(names())}, and Hugging Face models: "
        "owner/name, or a folder with a config.json"
    )
