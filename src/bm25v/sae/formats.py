"""Reads sparse auto-encoders of SAELens and saev, and writes those of SAELens.

Each project has its own steps before and after the two matrices. They are folded into the weights,
so that the paper's formulas hold:

    h = topk(relu(z @ W_enc + b_enc), k)        z_hat = h @ W_dec + b_dec

What cannot be expressed so is refused: gates, thresholds, inputs normalised patch by patch. Pickled
code in files is never run. Only saev's `.pt` files need torch.
"""

import io
import json
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bm25v.errors import InvalidOption, MissingExtra, VocabularyError
from bm25v.files import is_unused, make_folder, replace_file
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import (
    TENSORS,
    Array,
    check_finite,
    check_shapes,
    list_names,
    refuse,
    take_tensors,
    to_float32,
)
from bm25v.schema import SchemaError, parse_object

_SAELENS_SETTINGS = "cfg.json"
_SAELENS_WEIGHTS = "sae_weights.safetensors"
_SAELENS_FINETUNED = ("scaling_factor", "finetuning_scaling_factor")
_SAEV_NEWEST_SCHEMA = 5
_SAEV_OLD_CLASSES = ("Relu", "TopK", "BatchTopK")
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class Format(NamedTuple):
    layout: str  # a short description of its files
    find: Callable[[Path], Path | None]  # the file of weights, if the path is in this format
    read: Callable[[Path, int | None], SparseAutoEncoder]  # takes that file, and k or None


def load(
    path: str | os.PathLike[str], *, format: str | None = None, k: int | None = None
) -> SparseAutoEncoder:
    """Read an auto-encoder in another project's format; by default its files decide which.

    `k` overrides the stored one, and is required where a project stores none.

    >>> import tempfile
    >>> sae = SparseAutoEncoder(np.eye(3, 4, dtype=np.float32), np.zeros(4, np.float32),
    ...                         np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), k=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_saelens(sae, folder)
    ...     recognise(folder), load(folder).k, load(folder, k=1).k
    ('saelens', 2, 1)
    """
    path = Path(path)
    if format is None:
        format = recognise(path)
    elif format not in FORMATS:
        raise InvalidOption(f"unknown format {format!r}: give one of {', '.join(FORMATS)}")
    file = FORMATS[format].find(path)
    if file is None:
        raise VocabularyError(
            f"{path} is not in the format {format} ({FORMATS[format].layout}); {_contents(path)}"
        )
    return FORMATS[format].read(file, k)


def recognise(path: str | os.PathLike[str]) -> str:
    """Return the name of the format that a folder or file is in."""
    path = Path(path)
    if (path / "vocabulary.json").is_file():
        raise VocabularyError(f"{path} is already a bm25v vocabulary: use it without importing it")
    for name, format in FORMATS.items():
        if format.find(path) is not None:
            return name
    known = "; ".join(f"{name} ({format.layout})" for name, format in FORMATS.items())
    raise VocabularyError(
        f"{path} has no auto-encoder in a known format; {_contents(path)}; known formats: {known}"
    )


def _contents(path: Path) -> str:
    if not path.exists():
        return "there is no such file or folder"
    if not path.is_dir():
        return "it is a file"
    names = sorted(entry.name for entry in path.iterdir())
    return f"the folder contains {list_names(names)}" if names else "the folder is empty"


# SAELens (`SAE.save_model`, versions 1 to 6):
#
#     sae_in = scale · x - b_dec          the scale constant, b_dec if `apply_b_dec_to_input`
#     h = relu(topk(sae_in W_enc + b_enc))
#     x_hat = (h W_dec + b_dec) / scale
#
# With `rescale_acts_by_decoder_norm` activations are multiplied by the lengths of the decoder's
# rows before the top-k, and divided by them again before decoding.


def _find_saelens(path: Path) -> Path | None:
    file = path / _SAELENS_WEIGHTS if path.is_dir() else path
    has_settings = file.with_name(_SAELENS_SETTINGS).is_file()
    return file if file.name == _SAELENS_WEIGHTS and file.is_file() and has_settings else None


def _read_saelens(file: Path, k: int | None) -> SparseAutoEncoder:
    settings = _read_json(file.with_name(_SAELENS_SETTINGS))
    architecture = settings.get("architecture", "standard")
    activation = settings.get("activation_fn", settings.get("activation_fn_str", "relu"))
    if architecture == "topk":  # before version 6, an activation of the standard architecture
        architecture, activation = "standard", "topk"
    if architecture != "standard" or activation not in ("topk", "relu"):
        refuse(
            file,
            f"has the architecture {architecture!r} with the activation {activation!r}",
            "only topk, and standard with topk or relu, can be turned into a vocabulary",
        )
    stored_k = None
    if activation == "topk":
        options = settings.get("activation_fn_kwargs")
        stored_k = settings.get("k", options.get("k") if isinstance(options, dict) else None)
    scale = _read_input_scale(file, settings)
    tensors = _read_safetensors(file)
    arrays = take_tensors(file, tensors, *TENSORS, ignored=_SAELENS_FINETUNED)
    sae = _make_autoencoder(file, arrays, activation, k, stored_k)
    with np.errstate(over="ignore", invalid="ignore"):  # the check at the end refuses it
        for name in _SAELENS_FINETUNED:
            if name in tensors:
                sae = _apply_finetuning(file, sae, tensors[name], settings)
        if activation == "topk" and settings.get("rescale_acts_by_decoder_norm"):
            lengths_v = np.linalg.norm(sae.w_dec_vd.astype(np.float64), axis=1)
            divisors_v = np.where(lengths_v > 0, lengths_v, 1)
            sae = replace(
                sae,
                w_enc_dv=to_float32(sae.w_enc_dv * lengths_v),
                b_enc_v=to_float32(sae.b_enc_v * lengths_v),
                w_dec_vd=to_float32(sae.w_dec_vd / divisors_v[:, None]),
            )
        if settings.get("apply_b_dec_to_input", True):
            sae = _centre_input(sae)
        if scale != 1:
            sae = replace(
                sae,
                w_enc_dv=to_float32(sae.w_enc_dv * np.float64(scale)),
                w_dec_vd=to_float32(sae.w_dec_vd / np.float64(scale)),
                b_dec_d=to_float32(sae.b_dec_d / np.float64(scale)),
            )
    check_finite(file, sae.arrays)
    return sae


def _read_input_scale(file: Path, settings: Mapping[str, Any]) -> float:
    """Return the factor of all inputs; a factor per patch is refused."""
    method = settings.get("normalize_activations")
    if method in (None, False, "none"):
        return 1.0
    if method not in (True, "expected_average_only_in"):
        refuse(
            file,
            f"normalises each patch by itself (normalize_activations = {method!r})",
            "this cannot be folded into the weights; use one that was trained without it",
        )
    checkpoint = file.with_name("activation_scaler.json")
    factor = _read_json(checkpoint).get("scaling_factor") if checkpoint.is_file() else None
    if not isinstance(factor, int | float) or not 0 < factor < np.inf:
        refuse(
            file,
            f"was trained on scaled inputs (normalize_activations = {method!r}), "
            "but the factor is not stored",
            "call fold_activation_norm_scaling_factor in SAELens and save it again",
        )
    return float(factor)


def _apply_finetuning(
    file: Path, sae: SparseAutoEncoder, factor_v: Array, settings: Mapping[str, Any]
) -> SparseAutoEncoder:
    """Scale decoder rows by the factors that fine-tuning applies to the activations."""
    if factor_v.shape != sae.b_enc_v.shape:
        refuse(file, f"has a scaling factor of shape {factor_v.shape}", "save it again")
    if settings.get("finetuning_scaling_factor"):
        return replace(sae, w_dec_vd=sae.w_dec_vd * factor_v[:, None])
    if not np.allclose(factor_v, 1):
        refuse(
            file,
            "has a scaling factor, but finetuning_scaling_factor is off",
            f"set it in {_SAELENS_SETTINGS} if the factor should be used",
        )
    return sae


def export_saelens(
    sae: SparseAutoEncoder,
    folder: str | os.PathLike[str],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write a folder that SAELens 6 reads with `SAE.load_from_disk`, and `load` reads back.

    `metadata` is stored with it, such as `{"model_name": …, "hook_name": …}`.
    """
    from safetensors.numpy import save

    folder = Path(folder)
    if not is_unused(folder, _SAELENS_WEIGHTS):
        raise VocabularyError(f"{folder} already exists: give another path")
    tensors = dict(zip(TENSORS, map(to_float32, sae.arrays), strict=True))
    settings = {
        "architecture": "topk",
        "d_in": sae.patch_dim,
        "d_sae": sae.n_words,
        "k": sae.k,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": False,
        "normalize_activations": "none",
        "reshape_activations": "none",
        "rescale_acts_by_decoder_norm": False,
        "metadata": {"sae_lens_version": "6.0.0", **(metadata or {})},
    }
    make_folder(folder)
    replace_file(folder / _SAELENS_WEIGHTS, save(tensors))
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / _SAELENS_SETTINGS, text)  # last: until then, there is no auto-encoder


# OSU's saev (`saev.nn.dump`): a line of JSON, then a torch state dict.
#
#     h = topk(x W_enc + b_enc)        x_hat = h W_dec + b_dec
#
# Its top-k keeps negative values where fewer than k are positive; here they count as 0. Files of
# schemas before 2 were written by a saev that subtracted b_dec from its inputs; today's does not.


def _find_saev(path: Path) -> Path | None:
    files = (path / "sae.pt", path / "checkpoint" / "sae.pt") if path.is_dir() else (path,)
    for file in files:
        if file.suffix == ".pt" and file.is_file():
            with file.open("rb") as opened:
                if opened.read(1) == b"{":
                    return file
    return None


def _read_saev(file: Path, k: int | None) -> SparseAutoEncoder:
    line, _, rest = _read_bytes(file).partition(b"\n")
    header = _parse_json(line, file)
    schema = header.get("schema", 0)
    if schema not in range(_SAEV_NEWEST_SCHEMA + 1):
        newest = f"bm25v reads up to {_SAEV_NEWEST_SCHEMA}; upgrade"
        refuse(file, f"has the schema {schema!r}", newest)
    name, stored_k = _read_saev_activation(header)
    if name not in ("Relu", "TopK"):
        refuse(
            file,
            f"has the activation {name!r}",
            "only TopK, and Relu with a k, can be turned into a vocabulary",
        )
    arrays = take_tensors(file, _load_state_dict(file, rest), *TENSORS)
    sae = _make_autoencoder(file, arrays, name, k, stored_k)
    if schema == 0 or header.get("cls") in _SAEV_OLD_CLASSES:
        sae = _centre_input(sae)
        check_finite(file, sae.arrays)
    return sae


def _read_saev_activation(header: Mapping[str, Any]) -> tuple[str, object]:
    """Return the activation's name and its k, from any schema's header."""

    def read_inner(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        value = settings.get(name)
        return value if isinstance(value, dict) else {}

    settings = read_inner(header, "cfg")
    if "schema" not in header:
        name, options = "Relu", settings
    elif header.get("cls") in _SAEV_OLD_CLASSES:
        name, options = header["cls"], settings
    else:
        activation = read_inner(settings, "activation")
        name, options = str(activation.get("cls")), read_inner(activation, "params")
    return name, options.get("top_k") if name == "TopK" else None


FORMATS = {
    "saelens": Format(f"{_SAELENS_SETTINGS} and {_SAELENS_WEIGHTS}", _find_saelens, _read_saelens),
    "saev": Format("sae.pt, a line of JSON before a state dict", _find_saev, _read_saev),
}


def _make_autoencoder(
    file: Path, arrays: Sequence[Array], activation: str, requested_k: int | None, stored_k: object
) -> SparseAutoEncoder:
    """Return the auto-encoder as it is stored, with the requested k, else the stored one."""
    check_shapes(file, [array.shape for array in arrays])
    check_finite(file, arrays)
    n_words = len(arrays[1])
    k = stored_k if requested_k is None else requested_k
    if k is None:
        refuse(file, f"has the activation {activation} and no k", "give k (--k N)")
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= n_words:
        error = VocabularyError if requested_k is None else InvalidOption
        raise error(f"{file}: k = {k!r} is not a number from 1 to {n_words}, the number of words")
    return SparseAutoEncoder.from_arrays(map(to_float32, arrays), k)


def _centre_input(sae: SparseAutoEncoder) -> SparseAutoEncoder:
    """Subtract b_dec from every input before encoding."""
    shift_v = sae.b_dec_d.astype(np.float64) @ sae.w_enc_dv
    return replace(sae, b_enc_v=to_float32(sae.b_enc_v - shift_v))


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read: {error.strerror}") from error


def _read_json(path: Path) -> dict[str, Any]:
    return _parse_json(_read_bytes(path), path)


def _parse_json(data: bytes, source: Path) -> dict[str, Any]:
    try:
        return parse_object(data, allow_nan=True)
    except SchemaError as error:
        refuse(source, f"is damaged: {error}", "download or save it again")


def _read_safetensors(path: Path) -> dict[str, Array]:
    """Return the tensors of a safetensors file, also those in bfloat16, without torch."""
    from safetensors import SafetensorError, deserialize

    try:
        tensors = deserialize(_read_bytes(path))  # type: ignore[no-untyped-call]
    except SafetensorError as error:
        raise VocabularyError(f"{path} is damaged: {error}") from error
    arrays = {}
    for name, tensor in tensors:
        if tensor["dtype"] == "BF16":  # the upper half of a float32
            values = (np.frombuffer(tensor["data"], "<u2").astype("<u4") << 16).view("<f4")
        elif tensor["dtype"] in _DTYPES:
            values = np.frombuffer(tensor["data"], _DTYPES[tensor["dtype"]])
        else:
            refuse(path, f"stores {name} as {tensor['dtype']}", "save it as float32")
        arrays[name] = to_float32(values).reshape(tensor["shape"])
    return arrays


def _load_state_dict(path: Path, data: bytes) -> dict[str, Array]:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("reading .pt files", "train") from error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files raise errors of many types
        if pickled := re.search(r"GLOBAL (\S+)", str(error)):
            refuse(
                path,
                f"contains a pickled Python object ({pickled[1]}), which could run code",
                "save the model's state_dict() instead of the model",
            )
        raise VocabularyError(f"{path} is damaged, or not a torch file") from error
    is_dict = isinstance(value, dict) and all(isinstance(name, str) for name in value)
    if not is_dict or not all(isinstance(tensor, torch.Tensor) for tensor in value.values()):
        content = f"a dict of {', '.join(map(str, value))}" if is_dict else type(value).__name__
        refuse(path, f"contains {content}, not a state dict", "save the model's state_dict() alone")
    return {name: tensor.detach().to(torch.float32).numpy() for name, tensor in value.items()}
