"""What all formats need: reading JSON, safetensors and torch files, and folding steps into weights.

In: the files of another project. Out: a `SparseAutoEncoder`, by way of `Weights`. A file cannot run
code: torch files are read with `weights_only`, which allows tensors and plain containers only.
"""

import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra, VocabularyError, WrongUse
from bm25v.sae.model import SparseAutoEncoder

Array = NDArray[np.float32]
Tensors = Mapping[str, Array]

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Format(NamedTuple):
    """How one project's files are found and read."""

    layout: str  # a short description of its files
    find: Callable[[Path], Path | None]  # the file of weights, if the path is in this format
    read: Callable[[Path, int | None], SparseAutoEncoder]  # takes that file, and k or None


def refuse(source: Path, problem: str, remedy: str) -> NoReturn:
    """Raise an error that names the file, the problem and what to do."""
    raise VocabularyError(f"{source} {problem}: {remedy}")


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
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise VocabularyError(f"{source} is damaged: its JSON cannot be read: {error}") from error
    if not isinstance(value, dict):
        refuse(
            source, f"contains a {type(value).__name__}, not an object", "download or save it again"
        )
    return value


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
    return _to_float32(values).reshape(tensor["shape"])


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


def take_tensors(
    source: Path, tensors: Tensors, *names: str, ignored: Iterable[str] = ()
) -> list[Array]:
    """Return the named tensors; raise an error if one is missing, or another one is there.

    >>> take_tensors(Path("sae.pt"), {"b_dec": np.zeros(2)}, "b_dec")
    [array([0., 0.])]
    """
    if missing := [name for name in names if name not in tensors]:
        present = ", ".join(sorted(tensors)) or "nothing"
        refuse(source, f"lacks {', '.join(missing)}", f"it contains {present}; save it again")
    if unknown := sorted(set(tensors) - set(names) - set(ignored)):
        refuse(
            source,
            f"contains {', '.join(unknown)}, which a TopK auto-encoder does not have",
            "only plain TopK auto-encoders can be read",
        )
    return [tensors[name] for name in names]


@dataclass(frozen=True)
class Weights:
    """The four arrays of an auto-encoder: their shapes match, and all values are finite.

    Each `with_…` method folds a step of another project's formula into the arrays.

    >>> bias = np.ones(2, np.float32)
    >>> weights = Weights(Path("sae.pt"), 3 * np.eye(2), bias, np.eye(2), bias)
    >>> weights.with_input_centred().b_enc_v
    array([-2., -2.], dtype=float32)
    """

    source: Path
    w_enc_dv: Array
    b_enc_v: Array
    w_dec_vd: Array
    b_dec_d: Array

    def __post_init__(self) -> None:
        arrays = {
            "encoder": self.w_enc_dv,
            "encoder bias": self.b_enc_v,
            "decoder": self.w_dec_vd,
            "decoder bias": self.b_dec_d,
        }
        d, v = self.w_enc_dv.shape if self.w_enc_dv.ndim == 2 else (0, 0)
        shapes = [array.shape for array in arrays.values()]
        if 0 in (d, v) or shapes != [(d, v), (v,), (v, d), (d,)]:
            listed = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            refuse(self.source, f"has shapes that do not match ({listed})", "save it again")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                refuse(self.source, f"has NaN or infinite values in its {name}", "train it again")

    def with_input_centred(self) -> "Weights":
        """Subtract b_dec from every input before encoding."""
        shift_v = self.b_dec_d.astype(np.float64) @ self.w_enc_dv
        return replace(self, b_enc_v=_to_float32(self.b_enc_v - shift_v))

    def with_input_scaled(self, factor: float) -> "Weights":
        """Multiply every input by a factor before encoding; divide the decoder's output by it."""
        return replace(
            self,
            w_enc_dv=_to_float32(self.w_enc_dv * np.float64(factor)),
            w_dec_vd=_to_float32(self.w_dec_vd / np.float64(factor)),
            b_dec_d=_to_float32(self.b_dec_d / np.float64(factor)),
        )

    def with_unit_decoder(self) -> "Weights":
        """Scale every decoder row to length 1, and its activations by the length it had."""
        lengths_v = np.linalg.norm(self.w_dec_vd.astype(np.float64), axis=1)
        divisors_v = np.where(lengths_v > 0, lengths_v, 1)
        return replace(
            self,
            w_enc_dv=_to_float32(self.w_enc_dv * lengths_v),
            b_enc_v=_to_float32(self.b_enc_v * lengths_v),
            w_dec_vd=_to_float32(self.w_dec_vd / divisors_v[:, None]),
        )

    def autoencoder(
        self, requested_k: int | None, stored_k: object, problem: str
    ) -> SparseAutoEncoder:
        """Return the auto-encoder with the requested k, else the stored one.

        `problem` describes the file if there is neither.
        """
        k = stored_k if requested_k is None else requested_k
        if k is None:
            refuse(self.source, problem, "give k (--k N)")
        n_words = self.w_enc_dv.shape[1]
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= n_words:
            error = VocabularyError if requested_k is None else WrongUse
            raise error(
                f"{self.source}: k = {k!r} is not a number from 1 to {n_words}, the number of words"
            )
        return SparseAutoEncoder(
            w_enc_dv=_to_float32(self.w_enc_dv),
            b_enc_v=_to_float32(self.b_enc_v),
            w_dec_vd=_to_float32(self.w_dec_vd),
            b_dec_d=_to_float32(self.b_dec_d),
            k=k,
        )


def _to_float32(array: NDArray[np.floating]) -> Array:
    with np.errstate(over="ignore"):  # `Weights` refuses values that become infinite
        return np.ascontiguousarray(array, dtype=np.float32)
