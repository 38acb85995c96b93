"""Frozen vision models: images in, patch features and one dense vector per image out.

`load_backbone` takes the names below, or a Hugging Face model: `owner/name`, or a folder with one.
In: an upright RGB array. Out: `Features` (patches (P, D), dense (E,)) from one forward pass. `text`
turns texts into vectors that compare with dense vectors. Not this package's job: visual words, and
reading image files.

>>> sorted(backbone_names())
['dinov2-s', 'mobilenet-v2', 'tinyvit-5m', 'toy']
>>> load_backbone("toy").grid
(7, 7)
"""

from bm25v.backbones.protocol import Backbone, Features
from bm25v.errors import UnknownBackbone, WrongUse

__all__ = ["Backbone", "Features", "backbone_names", "load_backbone"]


def backbone_names() -> list[str]:
    """Return the names of the built-in backbones."""
    from bm25v.backbones.onnx import SPECS

    return [*SPECS, "toy"]


def load_backbone(name: str, *, layer: int | None = None, device: str | None = None) -> Backbone:
    """Return the backbone of that name; its weights are downloaded and loaded on first use.

    `layer` and `device` are for Hugging Face models: the block whose output becomes patch features
    (by default the last one), and cpu, cuda or mps (by default the fastest on this machine).
    """
    from bm25v.backbones import checkpoint
    from bm25v.backbones.onnx import SPECS, OnnxBackbone
    from bm25v.backbones.toy import ToyBackbone

    if name in backbone_names():
        if layer is not None or device not in (None, "cpu"):
            raise WrongUse(
                f"the backbone {name} has a fixed layer and runs on the CPU only: "
                "leave out the layer and the device"
            )
        return ToyBackbone() if name == "toy" else OnnxBackbone(SPECS[name])
    if checkpoint.is_model(name):
        from bm25v.backbones.huggingface import HuggingFaceBackbone

        return HuggingFaceBackbone(name, layer=layer, device=device)
    raise UnknownBackbone(
        f"no backbone {name!r}; known are: {', '.join(backbone_names())}, and Hugging Face models: "
        "owner/name, or a folder with a config.json"
    )
