"""What all formats need: reading the JSON, safetensors and torch files of other projects.

In: files. Out: settings and tensors, for `Weights`. A file cannot run code: torch files are read
with `weights_only`, which allows tensors and plain containers only.
"""

import io
import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v.errors import MissingExtra, VocabularyError
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Array, refuse, to_float32
from bm25v.schema import SchemaError, parse_object

Tensors = Mapping[str, Array]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Format(NamedTuple):
    """How one project's files are found and read."""

    layout: str  # a short description of its files
    find: Callable[[Path], Path | None]  # the file of weights, if the path is in this format
    read: Callable[[Path, int | None], SparseAutoEncoder]  # takes that file, and k or None


def read_bytes(path: Path) -> bytes:
    """Return a file's content."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read: {error.strerror}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return a file's JSON object."""
    return parse_json(read_bytes(path), path)


def parse_json(data: bytes, source: Path) -> dict[str, Any]:
    """Return the JSON object in some bytes of a file."""
    try:
        return parse_object(data, allow_nan=True)
    except SchemaError as error:
        refuse(source, f"is damaged: {error}", "download or save it again")


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file, also those in bfloat16, without torch."""
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(read_bytes(path))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged: {error}") from error
    return {name: _decode_tensor(name, tensor, path) for name, tensor in tensors}


def _decode_tensor(name: str, tensor: Mapping[str, Any], path: Path) -> Array:
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        values = (np.frombuffer(tensor["data"], "<u2").astype("<u4") << 16).view("<f4")
    elif tensor["dtype"] in _DTYPES:
        values = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
    else:
        refuse(path, f"stores {name} as {tensor['dtype']}", "save it as float32")
    return to_float32(values).reshape(tensor["shape"])


def read_torch(path: Path, data: bytes | None = None) -> dict[str, Array]:
    """Return the state dict of a torch file, or of its part `data`."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("reading .pt files", "train") from error
    stream = io.BytesIO(read_bytes(path) if data is None else data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many types
        if pickled := re.search(r"GLOBAL (\S+)", str(error)):
            refuse(
                path,
                f"contains a pickled Python object ({pickled[1]}), which could run code",
                "save the model's state_dict() instead of the model",
            )
        raise VocabularyError(f"{path} is damaged, or not a torch file") from error
    return _state_dict(value, path)


def _state_dict(value: Any, path: Path) -> dict[str, Array]:
    import torch

    is_dict = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    if not is_dict or not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        content = f"a dict of {', '.join(map(str, value))}" if is_dict else type(value).__name__
        refuse(path, f"contains {content}, not a state dict", "save the model's state_dict() alone")
    return {name: tensor.detach().to(torch.float32).numpy() for name, tensor in value.items()}
