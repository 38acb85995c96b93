"""Read the files that other projects write: JSON, safetensors, torch state dicts.

Files are data here. Torch files are read with `weights_only`, which refuses everything but tensors
and plain containers, so that a file cannot run code.
"""

import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra, VocabularyError
from bm25v.sae.model import SparseAutoEncoder

Array = NDArray[np.float32]
Tensors = Mapping[str, Array]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Format(NamedTuple):
    """How one project's files are found and read."""

    layout: str  # its files, in a few words
    find: Callable[[Path], Path | None]  # the weights' file, if the path is in this format
    read: Callable[[Path, int | None], SparseAutoEncoder]  # that file, and the k asked for


def refuse(source: Path, found: str, remedy: str) -> NoReturn:
    """Say what was found where, and what to do."""
    raise VocabularyError(f"{source} {found}: {remedy}")


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
    """Return the JSON object that some bytes of a file are."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{source} is damaged: its JSON cannot be read: {error}") from error
    if not isinstance(value, dict):
        refuse(source, f"holds {type(value).__name__}, not an object", "fetch or save it again")
    return value


def read_safetensors(path: Path) -> dict[str, Array]:
    """Return a safetensors file's tensors, bfloat16 included, without torch."""
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(read_bytes(path))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged: {error}") from error
    return {name: _array(name, tensor, path) for name, tensor in tensors}


def _array(name: str, tensor: Mapping[str, Any], path: Path) -> Array:
    if tensor["dtype"] == "BF16":  # the upper half of a float32
        values = (np.frombuffer(tensor["data"], "<u2").astype("<u4") << 16).view("<f4")
    elif tensor["dtype"] in _DTYPES:
        values = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
    else:
        refuse(path, f"stores {name} as {tensor['dtype']}", "save it as float32")
    with np.errstate(over="ignore"):  # what does not fit is refused as infinite
        return values.astype(np.float32).reshape(tensor["shape"])


def read_torch(path: Path, data: bytes | None = None) -> dict[str, Array]:
    """Return the state dict of a torch file, or of the part of it that is given."""
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("reading .pt files", "train") from error
    stream = io.BytesIO(read_bytes(path) if data is None else data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of all kinds
        if pickled := re.search(r"GLOBAL (\S+)", str(error)):
            refuse(
                path,
                f"holds a pickled Python object ({pickled[1]}), which could run code when loaded",
                "save the model's state_dict() instead of the model",
            )
        raise VocabularyError(f"{path} is damaged, or no torch file") from error
    return _arrays(value, path)


def _arrays(value: Any, path: Path) -> dict[str, Array]:
    import torch

    is_dict = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    if not is_dict or not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        held = f"a dict of {', '.join(map(str, value))}" if is_dict else type(value).__name__
        refuse(path, f"holds {held}, not a state dict", "save the model's state_dict() alone")
    return {name: tensor.detach().to(torch.float32).numpy() for name, tensor in value.items()}


def take(source: Path, tensors: Tensors, *names: str, beside: Iterable[str] = ()) -> list[Array]:
    """Return the named tensors; one that is missing, or one nobody knows, is refused.

    >>> take(Path("sae.pt"), {"b_dec": np.zeros(2)}, "b_dec")
    [array([0., 0.])]
    """
    if missing := [name for name in names if name not in tensors]:
        there = ", ".join(sorted(tensors)) or "nothing"
        refuse(source, f"lacks {', '.join(missing)}", f"it holds {there}; save it again")
    if unknown := sorted(set(tensors) - set(names) - set(beside)):
        refuse(
            source,
            f"holds {', '.join(unknown)}, which a TopK auto-encoder does not have",
            "give a plain TopK one",
        )
    return [tensors[name] for name in names]
