"""What is specific to one ONNX backbone: built in, or read from a TOML file of the user's.

Its keys: docs/how-to/own-backbone.md. A vocabulary stores the same table.
"""

import difflib
import hashlib
import os
import re
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from bm25v.backbones.downloads import PackagedFile, cached_path, models_folder, read_file
from bm25v.backbones.onnx_model import hash_model
from bm25v.display import printable
from bm25v.errors import BackboneError, ModelUnavailable
from bm25v.schema import number, show_value

Layout: TypeAlias = Literal["BDHW", "BHWD", "BND"]
Channels: TypeAlias = Literal["RGB", "BGR"]
Pool: TypeAlias = Literal["mean", "class"]
Numbers: TypeAlias = tuple[float, ...]  # one per channel

# Mean and standard deviation of pixels between 0 and 1.
PRESETS: dict[str, tuple[Numbers, Numbers]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "none": ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0)),
}
_MAX_NAME = 200
_MAX_SIZE = 4096  # pixels: an image of that size takes 200 MB
_LARGEST_NUMBER = 1e6  # of a mean or standard deviation, where pixels are between 0 and 1
_SMALLEST_STD = 1e-6
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_KINDS = {str: "a text", int: "a whole number", list: "a list of three numbers"}
_KEYS = {
    "name": str,
    "licence": str,
    "model": str,
    "sha256": str,
    "input.size": int,
    "input.preset": str,
    "input.mean": list,
    "input.std": list,
    "input.channels": str,
    "patches.output": str,
    "patches.layout": str,
    "patches.leading_tokens": int,
    "dense.output": str,
    "dense.pool": str,
}


class PixelInput(NamedTuple):
    size: int  # the side of the square, in pixels
    mean: Numbers
    std: Numbers
    channels: Channels = "RGB"


class PatchOutput(NamedTuple):
    tensor: str  # an output, or an inner tensor
    layout: Layout  # B: batch, D: width, H and W: rows and columns of the grid, N: tokens
    leading_tokens: int = 0  # class and register tokens, which come before the patches


class DenseOutput(NamedTuple):
    """Where the dense vector comes from: an output, or else the patch features."""

    tensor: str | None = None
    pool: Pool | None = None  # the mean of the patches, or the first leading token
    norm_of_mean: tuple[str, str] | None = None
    """Weight and bias of a layer norm: the output is this norm of the mean of the patches."""


class ModelShape(NamedTuple):
    grid: tuple[int, int]
    patch_dim: int
    dense_dim: int
    batch: int = 1  # the images that it takes at once


@dataclass(frozen=True, kw_only=True)
class OnnxSpec(ABC):
    """Everything that is specific to one ONNX backbone."""

    name: str
    fingerprint: str  # a hash of everything that decides its output
    pixels: PixelInput
    patches: PatchOutput
    dense: DenseOutput
    shape: ModelShape | None = None  # None: measured when the model is loaded
    definition: Mapping[str, Any] | None = None  # what a vocabulary stores; None if built in

    @abstractmethod
    def read_model(self) -> tuple[Path, bytes]: ...


@dataclass(frozen=True, kw_only=True)
class BuiltInSpec(OnnxSpec):
    """A backbone that bm25v knows by name, and downloads."""

    summary: str
    file: PackagedFile

    def read_model(self) -> tuple[Path, bytes]:
        return cached_path(self.file), read_file(self.file)


@dataclass(frozen=True, kw_only=True)
class OwnSpec(OnnxSpec):
    path: Path

    def read_model(self) -> tuple[Path, bytes]:
        with _report_unreadable(self.path):
            return self.path, self.path.read_bytes()


def read_spec(path: Path) -> OwnSpec:
    """Read a spec file; paths in it start at its folder."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BackboneError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise BackboneError(f"{path} is not a TOML file: {error}") from error
    return parse_spec(table, source=str(path), folder=path.absolute().parent)


def parse_spec(definition: Mapping[str, Any], *, source: str, folder: Path | None) -> OwnSpec:
    """Return the spec in a table; errors name its `source`, and its model may be in `folder`."""
    values = _Values(definition, source)
    name, pixels, patches, dense = _parse_parts(values)
    path, sha256 = _find_model(values, folder)
    if not _is_path(str(path)):
        raise values.error(
            "model", f"has a path that is not text, {show_value(str(path))}: rename it"
        )
    # Explicit, so that a later field does not change the fingerprints of existing vocabularies.
    identity = (sha256, tuple(pixels), tuple(patches), dense.tensor, dense.pool)
    return OwnSpec(
        name=name,
        fingerprint=hashlib.sha256(repr(identity).encode()).hexdigest()[:16],
        path=path,
        pixels=pixels,
        patches=patches,
        dense=dense,
        definition={**definition, "model": str(path), "sha256": sha256},
    )


def check_definition(definition: Mapping[str, Any], *, source: str) -> None:
    """Raise the errors of `parse_spec` that can be known without the model."""
    _parse_parts(_Values(definition, source))


def _parse_parts(values: "_Values") -> tuple[str, PixelInput, PatchOutput, DenseOutput]:
    """Return all parts of a spec that do not depend on the model's file."""
    name = values.take("name")
    if not _NAME.fullmatch(name) or len(name) > _MAX_NAME:
        raise values.error(
            "name",
            f"may have letters, digits and . _ - only, up to {_MAX_NAME}, not {show_value(name)}",
        )
    model = values.take("model")
    if not _is_path(model):
        raise values.error("model", f"must be the path of a file, not {show_value(model)}")
    layout = values.choose("patches.layout", get_args(Layout))
    leading_tokens = values.take("patches.leading_tokens", 0)
    if leading_tokens < 0 or (leading_tokens and layout != "BND"):
        raise values.error(
            "patches.leading_tokens", f"must be 0, or positive with the layout BND, not {layout}"
        )
    patches = PatchOutput(values.take("patches.output"), layout, leading_tokens)
    return name, _parse_pixels(values), patches, _parse_dense(values, leading_tokens)


def _parse_pixels(values: "_Values") -> PixelInput:
    size = values.take("input.size")
    if not 1 <= size <= _MAX_SIZE:
        raise values.error("input.size", f"must be from 1 to {_MAX_SIZE}, not {show_value(size)}")
    if "input.preset" in values.given:
        if {"input.mean", "input.std"} & set(values.given):
            raise values.error("input.preset", "contradicts input.mean and input.std: give one")
        mean, std = PRESETS[values.choose("input.preset", tuple(PRESETS))]
    else:
        mean, std = values.take_three("input.mean"), values.take_three("input.std")
    if not all(abs(value) >= _SMALLEST_STD for value in std):
        raise values.error("input.std", f"must not contain 0, or less than {_SMALLEST_STD}")
    return PixelInput(size, mean, std, values.choose("input.channels", get_args(Channels), "RGB"))


def _parse_dense(values: "_Values", leading_tokens: int) -> DenseOutput:
    has_output, has_pool = (key in values.given for key in ("dense.output", "dense.pool"))
    if has_output == has_pool:
        raise values.error("dense.output", "or dense.pool is needed, and not both")
    if has_output:
        return DenseOutput(tensor=values.take("dense.output"))
    pool = values.choose("dense.pool", get_args(Pool))
    if pool == "class" and not leading_tokens:
        raise values.error("dense.pool", "is 'class', which needs patches.leading_tokens")
    return DenseOutput(pool=pool)


def _find_model(values: "_Values", folder: Path | None) -> tuple[Path, str]:
    """Return the path and the hash of the model.

    A vocabulary may have been moved to another machine. So the model is looked for at its path,
    then by its name beside the spec or vocabulary, then in the folder of downloaded models.
    """
    model, expected = values.take("model"), values.take("sha256", "")
    name = PureWindowsPath(model).name  # knows the separators of every system
    folders = [models_folder()] if folder is None else [folder, models_folder()]
    given = folders[0] / os.path.expanduser(model)
    paths = dict.fromkeys([given, *(f / name for f in folders)])
    hashes = {}
    for path in paths:
        with _report_unreadable(path):
            if path.is_file():
                hashes[path] = hash_model(path)
    for path, sha256 in hashes.items():
        if expected in ("", sha256):
            return path, sha256
    for path, sha256 in hashes.items():
        raise ModelUnavailable(
            f"{path} is another model (SHA-256 {sha256[:16]}…) than the one in {values.source} "
            f"({expected[:16]}…): put that one back, or train a new vocabulary"
        )
    raise ModelUnavailable(
        f"the model of {values.source} is missing: copy {name} to one of these paths: "
        f"{', '.join(map(str, paths))}"
    )


@contextmanager
def _report_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read ({error.strerror})") from error


class _Values:
    """The values of a spec by their keys, such as "input.size"; keys and types are checked."""

    def __init__(self, definition: Mapping[str, Any], source: str) -> None:
        self.source = source
        self.given: dict[str, Any] = {}
        for key, value in definition.items():
            if isinstance(value, Mapping):
                self.given |= {f"{key}.{inner}": entry for inner, entry in value.items()}
            else:
                self.given[key] = value
        for key, value in self.given.items():
            if key not in _KEYS:
                close = difflib.get_close_matches(key, _KEYS, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(_KEYS)}"
                is_short = key.isprintable() and len(key) < 60
                shown = key if is_short else show_value(key)
                raise self.error(shown, f"is not a known key; {hint}")
            if not isinstance(value, _KEYS[key]) or isinstance(value, bool):
                raise self.error(key, f"must be {_KINDS[_KEYS[key]]}, not {show_value(value)}")

    def error(self, key: str, problem: str) -> BackboneError:
        return BackboneError(f"{self.source}: {key} {problem}")

    def take(self, key: str, default: Any = None) -> Any:
        """Return a value; without a default, the key is required."""
        value = self.given.get(key, default)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def choose(self, key: str, choices: tuple[str, ...], default: str | None = None) -> Any:
        value = self.take(key, default)
        if value not in choices:
            raise self.error(key, f"must be one of {', '.join(choices)}, not {show_value(value)}")
        return value

    def take_three(self, key: str) -> Numbers:
        value = self.take(key)
        is_number = number(-_LARGEST_NUMBER, _LARGEST_NUMBER).accepts
        if len(value) != 3 or not all(map(is_number, value)):
            raise self.error(key, f"must be {_KINDS[list]}, not {show_value(value)}")
        return tuple(map(float, value))


def _is_path(value: str) -> bool:
    """Return whether a text can be a path, and can be written into a vocabulary."""
    return 0 < len(value) <= 4096 and "\0" not in value and printable(value) == value
