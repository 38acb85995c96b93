"""Frozen vision models: one forward pass gives patch features and a dense vector of an image.

`load_backbone` takes the names below, the path of a spec file for an ONNX model of one's own, or a
Hugging Face model: `owner/name`, a short name of `HUB_NAMES`, or a folder with one; or two names
with a plus: the patches of the first, and the dense vectors of both.

>>> sorted(backbone_names())
['dinov2-s', 'mobilenet-v2', 'tinyvit-5m', 'toy']
>>> load_backbone("toy").grid
(7, 7)
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

from bm25v.backbones import checkpoint
from bm25v.backbones.downloads import cached_path
from bm25v.backbones.onnx import SPECS, OnnxBackbone
from bm25v.backbones.onnx_spec import parse_spec, read_spec
from bm25v.backbones.paired import PairedBackbone
from bm25v.backbones.protocol import Backbone, Features
from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import InvalidOption, UnknownBackbone

__all__ = [
    "HUB_NAMES",
    "Backbone",
    "Features",
    "backbone_names",
    "has_device",
    "load_backbone",
    "restore_backbone",
    "start_loading",
]


HUB_NAMES = {  # short names of models on the Hugging Face hub
    "siglip2-base": "google/siglip2-base-patch16-224",
    "siglip2-large": "google/siglip2-large-patch16-256",
    "siglip2-so400m": "google/siglip2-so400m-patch14-384",
    "dinov2-base": "facebook/dinov2-base",
    "dinov2-large": "facebook/dinov2-large",
    "dinov3-base": "facebook/dinov3-vitb16-pretrain-lvd1689m",
    "clip-b32": "openai/clip-vit-base-patch32",
    "clip-b16": "openai/clip-vit-base-patch16",
    "clip-l14": "openai/clip-vit-large-patch14",
}


_started: dict[str, OnnxBackbone] = {}  # by `start_loading`


def backbone_names() -> list[str]:
    return [*SPECS, "toy"]


def has_device(name: str) -> bool:
    """Return whether a backbone runs on any device, and has layers to choose from.

    >>> has_device("tinyvit-5m"), has_device("my-model.toml"), has_device("owner/name")
    (False, False, True)
    """
    return name not in backbone_names() and not name.endswith(".toml")


def split_pair(name: str) -> tuple[str, str | None]:
    """Return the names of both backbones of a pair; the second is a built-in one, or None.

    >>> split_pair("tinyvit-5m+toy"), split_pair("toy"), split_pair("models/a+b.toml")
    (('tinyvit-5m', 'toy'), ('toy', None), ('models/a+b.toml', None))
    """
    first, _, second = name.rpartition("+")
    return (first, second) if first and second in backbone_names() else (name, None)


def load_backbone(
    name: str, *, layer: int | None = None, device: str | None = None, download: bool = True
) -> Backbone:
    """Return the backbone of that name; its weights are downloaded and loaded on first use.

    `layer`, `device` and `download` are for Hugging Face models: the block whose output becomes
    patch features (by default the last one), cpu, cuda or mps (by default the fastest on this
    machine), and whether a model that is not in the cache is downloaded. Built-in ones always are.
    """
    first, second = split_pair(name)
    if second is not None:
        first_backbone = load_backbone(first, layer=layer, device=device, download=download)
        return PairedBackbone(first_backbone, load_backbone(second))
    if not has_device(name):
        if layer is not None or device not in (None, "cpu"):
            raise InvalidOption(
                f"the backbone {name} has a fixed layer and runs on the CPU only: "
                "leave out the layer and the device"
            )
        if name == "toy":
            return ToyBackbone()
        if name in SPECS:
            return _started.get(name) or OnnxBackbone(SPECS[name])
        return OnnxBackbone(read_spec(Path(name).expanduser()))
    model, mark, number = name.partition("#")
    full_name = f"{HUB_NAMES.get(model, model)}{mark}{number}"
    if checkpoint.is_model(full_name):
        from bm25v.backbones.huggingface import HuggingFaceBackbone

        return HuggingFaceBackbone(full_name, layer=layer, device=device, download=download)
    raise UnknownBackbone(
        f"no backbone {name!r}; known are: {', '.join(backbone_names())}, spec files (.toml), and "
        f"Hugging Face models: {', '.join(HUB_NAMES)}, owner/name, or a folder with a config.json"
    )


def start_loading(name: str) -> None:
    """Load the weights of a built-in backbone in a thread, for `load_backbone` in this process.

    Whoever needs them first waits for the thread, or downloads a file that is not here.
    """
    for part in split_pair(name):
        if part in SPECS and cached_path(SPECS[part].file).is_file():
            _started[part] = OnnxBackbone(SPECS[part])
            Thread(target=_load_weights, args=(_started[part],)).start()


def _load_weights(backbone: OnnxBackbone) -> None:
    with suppress(Exception):  # the first use raises it again
        backbone.load_weights()


def restore_backbone(
    name: str, definition: Mapping[str, Any] | None, folder: Path | None
) -> Backbone:
    """Return the backbone that a vocabulary in `folder` was made with, by what it has stored.

    A vocabulary may come from others, so the model that it names is not downloaded.
    """
    if definition is None:
        return load_backbone(name, download=False)
    first, second = split_pair(name)
    if second is not None:
        return PairedBackbone(restore_backbone(first, definition, folder), load_backbone(second))
    source = f"vocabulary {folder}" if folder else f"backbone {name}"
    return OnnxBackbone(parse_spec(definition, source=source, folder=folder))
