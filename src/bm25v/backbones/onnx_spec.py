"""What is specific to one ONNX backbone: built in, or read from a TOML file of the user's.

Its keys: docs/how-to/own-backbone.md. A vocabulary stores the same table.
"""

import difflib
import hashlib
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from bm25v.backbones.downloads import PackagedFile, cached_path, models_folder, read_file
from bm25v.backbones.onnx_model import hash_model
from bm25v.display import printable
from bm25v.errors import BackboneError, ModelUnavailable
from bm25v.schema import Rule, SchemaError, check_values, number, show_value, text, whole

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
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,199}")
_LARGEST_NUMBER = 1e6  # of a mean or standard deviation, where pixels are between 0 and 1
_SMALLEST_STD = 1e-6


def _one_of(*choices: str) -> Rule:
    return text(lambda value: value in choices, f"one of {', '.join(choices)}")


def _three_numbers(smallest: float) -> Rule:
    one = number(-_LARGEST_NUMBER, _LARGEST_NUMBER)
    return Rule(
        "a list of three numbers" + ", of which none is close to 0" * (smallest > 0),
        lambda value: (
            isinstance(value, list)
            and len(value) == 3
            and all(one.accepts(v) and abs(v) >= smallest for v in value)
        ),
    )


def _is_path(value: str) -> bool:
    """Return whether a text can be a path, and can be written into a vocabulary."""
    return 0 < len(value) <= 4096 and "\0" not in value and printable(value) == value


_REQUIRED = {
    "name": text(
        lambda value: _NAME.fullmatch(value) is not None,
        "a name of letters, digits and . _ - only, up to 200",
    ),
    "model": text(_is_path, "the path of a file"),
    "input.size": whole(1, 4096),  # pixels: an image of the largest size takes 200 MB
    "patches.layout": _one_of(*get_args(Layout)),
    "patches.output": text(),
}
_SCALE = {"input.mean": _three_numbers(0), "input.std": _three_numbers(_SMALLEST_STD)}
_OPTIONAL = {
    "licence": text(),
    "sha256": text(),
    "input.preset": _one_of(*PRESETS),
    "input.channels": _one_of(*get_args(Channels)),
    "patches.leading_tokens": whole(0),
    "dense.output": text(),
    "dense.pool": _one_of(*get_args(Pool)),
}
_RULES = _REQUIRED | _SCALE | _OPTIONAL


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
    batch_axis: str | None = None  # its name, if fixing it to one image changes no bit
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
    import tomllib

    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BackboneError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:  # of TOML, or of UTF-8
        raise BackboneError(f"{path} is not a TOML file: {error}") from error
    return parse_spec(table, source=str(path), folder=path.absolute().parent)


def parse_spec(definition: Mapping[str, Any], *, source: str, folder: Path | None) -> OwnSpec:
    """Return the spec in a table; errors name its `source`, and its model may be in `folder`."""
    values = check_definition(definition, source=source)
    path, sha256 = _find_model(values, source, folder)
    if not _is_path(str(path)):
        raise BackboneError(
            f"{source}: model has a path that is not text, {show_value(str(path))}: rename it"
        )
    if "input.preset" in values:
        mean, std = PRESETS[values["input.preset"]]
    else:
        mean, std = values["input.mean"], values["input.std"]
    pixels = PixelInput(
        values["input.size"],
        tuple(map(float, mean)),
        tuple(map(float, std)),
        values.get("input.channels", "RGB"),
    )
    patches = PatchOutput(
        values["patches.output"], values["patches.layout"], values.get("patches.leading_tokens", 0)
    )
    dense = DenseOutput(values.get("dense.output"), values.get("dense.pool"))
    # Explicit, so that a later field does not change the fingerprints of existing vocabularies.
    identity = (sha256, tuple(pixels), tuple(patches), dense.tensor, dense.pool)
    return OwnSpec(
        name=values["name"],
        fingerprint=hashlib.sha256(repr(identity).encode()).hexdigest()[:16],
        path=path,
        pixels=pixels,
        patches=patches,
        dense=dense,
        definition={**definition, "model": str(path), "sha256": sha256},
    )


def check_definition(definition: Mapping[str, Any], *, source: str) -> dict[str, Any]:
    """Return the values of a spec by their keys, such as "input.size"; the model is not read."""
    values: dict[str, Any] = {}
    for key, value in definition.items():
        if isinstance(value, Mapping):
            values |= {f"{key}.{name}": entry for name, entry in value.items()}
        else:
            values[key] = value
    try:
        _check_keys(values)
        has_preset = "input.preset" in values
        required = _REQUIRED if has_preset else _REQUIRED | _SCALE
        check_values(values, {k: r for k, r in _RULES.items() if k in required or k in values})
        if has_preset and not _SCALE.keys().isdisjoint(values):
            raise SchemaError("input.preset contradicts input.mean and input.std: give one")
        layout, n_tokens = values["patches.layout"], values.get("patches.leading_tokens", 0)
        if n_tokens and layout != "BND":
            shown = show_value(n_tokens)
            raise SchemaError(f"patches.leading_tokens is {shown}, and {layout} has none")
        if ("dense.output" in values) == ("dense.pool" in values):
            raise SchemaError("dense.output or dense.pool is needed, and not both")
        if values.get("dense.pool") == "class" and not n_tokens:
            raise SchemaError("dense.pool is 'class', which needs patches.leading_tokens")
    except SchemaError as error:
        raise BackboneError(f"{source}: {error}") from error
    return values


def _check_keys(keys: Iterable[str]) -> None:
    for key in keys:
        if key not in _RULES:
            close = difflib.get_close_matches(key, _RULES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(_RULES)}"
            is_short = key.isprintable() and len(key) < 60
            raise SchemaError(f"{key if is_short else show_value(key)} is not a known key; {hint}")


def _find_model(values: Mapping[str, Any], source: str, folder: Path | None) -> tuple[Path, str]:
    """Return the path and the hash of the model.

    A vocabulary may have been moved to another machine. So the model is looked for at its path,
    then by its name beside the spec or vocabulary, then in the folder of downloaded models.
    """
    model, expected = values["model"], values.get("sha256", "")
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
            f"{path} is another model (SHA-256 {sha256[:16]}…) than the one in {source} "
            f"({expected[:16]}…): put that one back, or train a new vocabulary"
        )
    raise ModelUnavailable(
        f"the model of {source} is missing: copy {name} to one of these paths: "
        f"{', '.join(map(str, paths))}"
    )


@contextmanager
def _report_unreadable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ModelUnavailable(f"{path} cannot be read ({error.strerror})") from error
