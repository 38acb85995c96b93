"""A model in the format of the Hugging Face hub: its files, preprocessing, weights and hash.

torch and transformers are imported only when a config or a tower is read.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bm25v.backbones.protocol import Floats, ImageArray
from bm25v.display import first_line
from bm25v.errors import BackboneError, MissingExtra, ModelUnavailable
from bm25v.privacy import import_quietly

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")
_PREPROCESSOR = "preprocessor_config.json"
_PROCESSOR = "processor_config.json"  # newer checkpoints keep the same settings inside this file
_SAFETENSORS = ["model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"]
_PICKLES = ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"]
_TOKENIZER = ["tokenizer*", "special_tokens_map.json", "spiece.model", "vocab.json", "merges.txt"]
_DESCRIPTION = ["config.json", _PREPROCESSOR, _PROCESSOR, *_TOKENIZER]
_SLICE_BYTES = 1024


def is_model(name: str) -> bool:
    """Return whether a name is a model folder or could be a model on the hub.

    >>> is_model("google/siglip2-so400m-patch14-384"), is_model("tinyvit-5m")
    (True, False)
    """
    source, _ = split_layer(name)
    return is_model_folder(source) or _HUB_NAME.fullmatch(source) is not None


def is_model_folder(source: str) -> bool:
    return (Path(source).expanduser() / "config.json").is_file()


def split_layer(name: str) -> tuple[str, int | None]:
    """Split a name into the model and the chosen layer.

    >>> split_layer("owner/name#20"), split_layer("owner/name")
    (('owner/name', 20), ('owner/name', None))
    """
    source, mark, layer = name.rpartition("#")
    return (source, int(layer)) if mark and layer.isdecimal() else (name, None)


def import_extra(module: str, name: str) -> Any:
    """Import a module of the `hf` extra, which the backbone of that name needs."""
    try:
        return import_quietly(module)
    except ImportError as error:
        raise MissingExtra(f"the backbone {name}", "hf") from error


def find_model(source: str, *, download: bool = False) -> Path:
    """Return the folder that describes a model: its own one, or that of the hub's cache.

    Only names that the user gives are downloaded: those in files of others reach no network.
    """
    if is_model_folder(source):
        return Path(source).expanduser().resolve()
    folder = _find_snapshot(source, _DESCRIPTION, download=download)
    if not (folder / "config.json").is_file():
        raise _unavailable(source, download)
    return folder


def find_weight_files(source: str, folder: Path, *, download: bool = False) -> list[Path]:
    """Return the files of a model's weights, in the folder that `find_model` returned."""
    for patterns in (_SAFETENSORS, _PICKLES):
        if not is_model_folder(source):
            _find_snapshot(source, patterns, revision=folder.name, download=download)
        single, _, shards = patterns
        files = sorted([*folder.glob(single)] or [*folder.glob(shards)])
        if files:
            return files
    if is_model_folder(source):
        raise ModelUnavailable(f"{folder} has no weights: model.safetensors is missing")
    raise _unavailable(source, download)


def read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise BackboneError(f"{path} cannot be read as JSON") from error
    if not isinstance(content, dict):
        raise BackboneError(f"{path} is not a JSON object")
    return content


def hash_weights(files: Iterable[Path]) -> str:
    """Return a hash of a model's weights that reads only a few kilobytes of each tensor.

    It covers the name, type and shape of every tensor and three slices of its values. Training
    changes nearly all values of a tensor if it changes any, so these slices are enough to tell two
    models apart. The hash is the same for one weight file and for several. Old `.bin` files have no
    table of contents: they are hashed completely.
    """
    lines: list[str] = []
    for path in files:
        if path.suffix == ".safetensors":
            lines += _describe_tensors(path)
        else:
            with path.open("rb") as file:
                lines.append(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}")
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


@dataclass(frozen=True)
class Preparation:
    """How a model's input is made from an image. Its repr is part of the backbone's fingerprint.

    Kernel, scale, mean and deviation are the model's own. The whole image is squeezed to the
    model's square, also where the model's authors crop the centre (CLIP, DINOv2), so that the
    patches cover all of it. DINOv3's authors resize floats where Pillow rounds to 8 bits: a
    difference of at most half a grey level.
    """

    side: int
    resample: int
    scale: float
    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    def prepare_image(self, image_hwc: ImageArray) -> Floats:
        kernel = Image.Resampling(self.resample)
        small = Image.fromarray(image_hwc).resize((self.side, self.side), kernel)
        pixels_hwc = np.asarray(small, dtype=np.float32) * np.float32(self.scale)
        pixels_hwc -= np.array(self.mean, dtype=np.float32)
        pixels_hwc /= np.array(self.deviation, dtype=np.float32)
        return np.ascontiguousarray(pixels_hwc.transpose(2, 0, 1)[None])


def read_preparation(folder: Path, *, image_size: int) -> Preparation:
    """Read a model's preprocessing; `image_size` is used if the settings give no size."""
    if (folder / _PREPROCESSOR).is_file():
        settings = read_json(folder / _PREPROCESSOR)
    elif (folder / _PROCESSOR).is_file():
        settings = read_json(folder / _PROCESSOR).get("image_processor", {})
    else:
        raise ModelUnavailable(
            f"{folder} has no {_PREPROCESSOR}, the file with the size and scale of input images: "
            "copy it from the model's page"
        )
    try:
        is_normalised = settings.get("do_normalize", True)
        is_rescaled = settings.get("do_rescale", True)
        mean = settings["image_mean"] if is_normalised else 0.0
        deviation = settings["image_std"] if is_normalised else 1.0
        return Preparation(
            side=_parse_side(settings, image_size),
            resample=int(Image.Resampling(settings["resample"])),
            scale=float(settings.get("rescale_factor", 1 / 255)) if is_rescaled else 1.0,
            mean=tuple(np.broadcast_to(mean, 3).astype(float).tolist()),
            deviation=tuple(np.broadcast_to(deviation, 3).astype(float).tolist()),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise BackboneError(f"{_PREPROCESSOR} in {folder} cannot be used: {error!r}") from error


def read_tower_config(name: str, folder: Path, tower: str) -> Any:
    """Return the part of a model's config.json for one tower, checked by transformers."""
    with _use_transformers(name, f"config.json in {folder} cannot be used") as transformers:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    tower_config = getattr(config, tower, config)
    if hasattr(config, "projection_dim"):  # CLIP keeps it for both towers in the outer config
        tower_config.projection_dim = config.projection_dim
    return tower_config


def load_tower(name: str, folder: Path, architecture: str, config: Any, **options: Any) -> Any:
    """Return one tower of a model with its weights, in single precision; the other is not read."""
    torch = import_extra("torch", name)
    with _use_transformers(name, f"{name} cannot be read") as transformers:
        model, report = getattr(transformers, architecture).from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            local_files_only=True,
            output_loading_info=True,
            **options,
        )
    missing = sorted(report["missing_keys"])
    if missing:  # transformers would fill them with random numbers
        raise BackboneError(f"{name} lacks {len(missing)} of its weights: {missing[0]} …")
    return model.eval()


def load_tokenizer(name: str, folder: Path) -> Any:
    with _use_transformers(name, f"{name} has no usable tokenizer") as transformers:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)


def _parse_side(settings: dict[str, Any], image_size: int) -> int:
    if "max_num_patches" in settings:  # NaFlex: the largest square with at most this many patches
        return math.isqrt(settings["max_num_patches"]) * int(settings["patch_size"])
    size = settings.get("crop_size" if settings.get("do_center_crop") else "size")
    if size is None or settings.get("do_resize") is False:
        return image_size
    if isinstance(size, dict):
        sides = {size[key] for key in ("height", "width", "shortest_edge") if size.get(key)}
        if len(sides) != 1:
            raise ValueError(f"images of size {size} are not square")
        (size,) = sides
    return int(size)


def _find_snapshot(
    source: str, patterns: list[str], *, download: bool, revision: str | None = None
) -> Path:
    hub = import_extra("huggingface_hub", source)
    try:
        folder = hub.snapshot_download(
            source, revision=revision, allow_patterns=patterns, local_files_only=not download
        )
        return Path(folder)
    except hub.errors.RepositoryNotFoundError as error:
        raise ModelUnavailable(
            f"the Hugging Face hub has no public model {source}: check the name; "
            "if it is right, accept its licence there and run: hf auth login"
        ) from error
    except Exception as error:  # the client passes on the errors of its transport
        raise _unavailable(source, download) from error


def _unavailable(source: str, download: bool) -> ModelUnavailable:
    if not download:
        return ModelUnavailable(
            f"the model {source} is not on this machine; to download it: bm25v models get {source}"
        )
    return ModelUnavailable(
        f"{source} is not on this machine and could not be downloaded from the Hugging Face hub: "
        "give a folder that has it, set HF_HOME to a cache that has it, or connect to a network"
    )


def _describe_tensors(path: Path) -> Iterator[str]:
    """Describe each tensor of a safetensors file: a length, a JSON table, then the bytes."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(min(length, path.stat().st_size)))
            table.pop("__metadata__", None)
            for name, entry in table.items():
                begin, end = (8 + length + offset for offset in entry["data_offsets"])
                digest = hashlib.sha256()
                for start in sorted({begin, (begin + end) // 2, max(begin, end - _SLICE_BYTES)}):
                    file.seek(start)
                    digest.update(file.read(min(_SLICE_BYTES, end - start)))
                yield f"{name} {entry['dtype']} {entry['shape']} {digest.hexdigest()}"
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BackboneError(f"{path} is not a safetensors file, or it is damaged") from error


@contextmanager
def _use_transformers(name: str, problem: str) -> Iterator[Any]:
    """Yield transformers, silent: it would warn about the tower that is not read."""
    transformers = import_extra("transformers", name)
    logging = transformers.utils.logging
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    except Exception as error:  # readers of many formats, each with its own errors
        raise BackboneError(f"{problem}: {first_line(str(error))}") from error
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()
