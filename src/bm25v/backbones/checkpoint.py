"""A model in the Hugging Face hub's format: its folder, its settings, its weights' hash.

In: `owner/name` or a folder. Out: the folder on this machine, a `Preparation`, a hash of the
weights. Nothing here imports torch or reads a weight file whole.
"""

import hashlib
import importlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow

from bm25v.backbones.protocol import Image
from bm25v.errors import BackboneError, MissingExtra, ModelUnavailable

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PREPROCESSOR = "preprocessor_config.json"
_PROCESSOR = "processor_config.json"  # newer checkpoints keep the same settings inside this file
_DESCRIPTION = ["config.json", _PREPROCESSOR, _PROCESSOR]
_SAFETENSORS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
_PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]
_TOKENIZER = ["tokenizer*", "special_tokens_map.json", "spiece.model", "vocab.json", "merges.txt"]
_HISTORY = {  # what a configuration says of how it was made, not of the model
    "_name_or_path",
    "architectures",
    "dtype",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
}
_SLICE = 1024  # bytes


def is_model(name: str) -> bool:
    """Tell whether a name is a model folder or could be a model on the hub.

    >>> is_model("google/siglip2-so400m-patch14-384"), is_model("tinyvit-5m")
    (True, False)
    """
    source, _ = split_layer(name)
    return is_folder(source) or _HUB_NAME.fullmatch(source) is not None


def is_folder(source: str) -> bool:
    """Tell whether a folder holds a model."""
    return (_path(source) / "config.json").is_file()


def split_layer(name: str) -> tuple[str, int | None]:
    """Take the chosen layer off a name.

    >>> split_layer("owner/name#20"), split_layer("owner/name")
    (('owner/name', 20), ('owner/name', None))
    """
    source, mark, layer = name.rpartition("#")
    return (source, int(layer)) if mark and layer.isdecimal() else (name, None)


def imported(module: str, name: str) -> Any:
    """Return a module of the `hf` extra, which the backbone of that name needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"the backbone {name}", "hf") from error


def find(source: str) -> Path:
    """Return the folder that describes a model, fetched from the hub unless it is a local one."""
    if is_folder(source):
        return _path(source).resolve()
    folder = _snapshot(source, _DESCRIPTION)
    if not (folder / "config.json").is_file():
        raise ModelUnavailable(_unreachable(source))
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read as JSON") from error
    if not isinstance(content, dict):
        raise BackboneError(f"{path} holds no JSON object")
    return content


def vision_settings(described: dict[str, Any]) -> str:
    """Return what a config.json says of the vision tower, in an order of its own.

    >>> vision_settings({"model_type": "vit", "dtype": "float32", "hidden_size": 8})
    '{"hidden_size": 8, "model_type": "vit"}'
    """
    tower = described.get("vision_config", described)
    return json.dumps({key: tower[key] for key in tower.keys() - _HISTORY}, sort_keys=True)


def weight_files(source: str, folder: Path) -> list[Path]:
    """Return the files of a model's weights, fetched from the hub unless they are here."""
    for patterns in (_SAFETENSORS, _PICKLES):
        if not is_folder(source):
            _snapshot(source, patterns, revision=folder.name)
        whole, _, shards = patterns
        files = sorted([*folder.glob(whole)] or [*folder.glob(shards)])
        if files:
            return files
    if is_folder(source):
        raise ModelUnavailable(f"{folder} holds no weights: model.safetensors is missing")
    raise ModelUnavailable(_unreachable(source))


def fetch_tokenizer(source: str, folder: Path) -> None:
    """Bring the files of a model's tokenizer here, unless it is a local model."""
    if not is_folder(source):
        _snapshot(source, _TOKENIZER, revision=folder.name)


def weights_hash(files: Iterable[Path]) -> str:
    """Return a hash of a model's weights that reads a few kilobytes of each tensor.

    Every tensor counts with its name, type, shape and three slices. Training moves next to all
    numbers of a tensor that it moves at all, so weights that agree in all of this are the same, on
    any machine, in one file or in several. Only old `.bin` files, which have no table of contents,
    are hashed whole.
    """
    lines: list[str] = []
    for path in files:
        if path.suffix == ".safetensors":
            lines += _tensor_lines(path)
        else:
            with path.open("rb") as file:
                lines.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True)
class Preparation:
    """How a model wants its pictures.

    Kernel, scale, mean and deviation are the model's own. The whole picture is squeezed to the
    model's square, also where the model's authors cut out the centre (CLIP, DINOv2): patches then
    cover all of it. DINOv3's authors resize floats where Pillow rounds to 8 bits: half a grey
    level apart.
    """

    side: int
    resample: int
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def pixels(self, image_hwc: Image) -> NDArray[np.float32]:
        """Return a picture as a normalised (1, 3, side, side) array."""
        kernel = Pillow.Resampling(self.resample)
        small = Pillow.fromarray(image_hwc).resize((self.side, self.side), kernel)
        pixels_hwc = np.asarray(small, dtype=np.float32) * np.float32(self.scale)
        pixels_hwc -= np.array(self.mean, dtype=np.float32)
        pixels_hwc /= np.array(self.deviation, dtype=np.float32)
        return np.ascontiguousarray(pixels_hwc.transpose(2, 0, 1)[None])


def preparation(folder: Path, *, image_size: int) -> Preparation:
    """Read how a model wants its pictures; `image_size` counts where the settings name no size."""
    if (folder / _PREPROCESSOR).is_file():
        settings = read_json(folder / _PREPROCESSOR)
    elif (folder / _PROCESSOR).is_file():
        settings = read_json(folder / _PROCESSOR).get("image_processor", {})
    else:
        raise ModelUnavailable(
            f"{folder} has no {_PREPROCESSOR}: it says how the model wants its pictures"
        )
    try:
        return _preparation(settings, image_size)
    except (KeyError, TypeError, ValueError) as error:
        raise BackboneError(f"{_PREPROCESSOR} in {folder} cannot be used: {error!r}") from error


def _preparation(settings: dict[str, Any], image_size: int) -> Preparation:
    normalised = settings.get("do_normalize", True)
    mean, deviation = (settings["image_mean"], settings["image_std"]) if normalised else (0.0, 1.0)
    rescaled = settings.get("do_rescale", True)
    return Preparation(
        side=_side(settings, image_size),
        resample=int(Pillow.Resampling(settings["resample"])),
        scale=float(settings.get("rescale_factor", 1 / 255)) if rescaled else 1.0,
        mean=tuple(np.broadcast_to(mean, 3).astype(float).tolist()),
        deviation=tuple(np.broadcast_to(deviation, 3).astype(float).tolist()),
    )


def _side(settings: dict[str, Any], image_size: int) -> int:
    if "max_num_patches" in settings:  # NaFlex: the largest square of so many patches
        return math.isqrt(settings["max_num_patches"]) * int(settings["patch_size"])
    size = settings.get("crop_size" if settings.get("do_center_crop") else "size")
    if size is None or settings.get("do_resize") is False:
        return image_size
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if size.get(key)}
        if len(sides) != 1:
            raise ValueError(f"pictures of size {size} are no squares")
        (size,) = sides
    return int(size)


def _path(source: str) -> Path:
    return Path(source).expanduser()


def _snapshot(source: str, patterns: list[str], revision: str | None = None) -> Path:
    hub = imported("huggingface_hub", source)
    try:
        return Path(hub.snapshot_download(source, revision=revision, allow_patterns=patterns))
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"the Hugging Face hub does not give out {source}: check the name; "
            "if it is right, accept its licence there and run: hf auth login"
        ) from error
    except Exception as error:  # the client lets its transport's own errors through
        raise ModelUnavailable(_unreachable(source)) from error


def _unreachable(source: str) -> str:
    return (
        f"{source} is not on this machine and could not be fetched from the Hugging Face hub: "
        "name a folder that holds it, set HF_HOME to a cache that has it, or run once with network"
    )


def _tensor_lines(path: Path) -> Iterator[str]:
    """Describe each tensor of a safetensors file: a length, a JSON table, then the bytes."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(min(length, path.stat().st_size)))
            table.pop("__metadata__", None)
            for name, entry in table.items():
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                digest = hashlib.sha256()
                for start in sorted({begin, (begin + end) // 2, max(begin, end - _SLICE)}):
                    file.seek(start)
                    digest.update(file.read(min(_SLICE, end - start)))
                yield f"{name} {entry['dtype']} {entry['shape']} {digest.hexdigest()}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BackboneError(f"{path} is no safetensors file, or a damaged one") from error
