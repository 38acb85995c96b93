"""SAELens (`SAE.save_model`, versions 1 to 6), read and written.

    sae_in = scale · x - b_dec          the scale constant, b_dec if `apply_b_dec_to_input`
    h = relu(topk(sae_in W_enc + b_enc))
    x_hat = (h W_dec + b_dec) / scale

With `rescale_acts_by_decoder_norm` activations are multiplied by the lengths of the decoder's rows
before the top-k, and divided by them again before decoding.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bm25v.errors import VocabularyError
from bm25v.files import is_unused, make_folder, replace_file
from bm25v.sae.formats.reading import Format, read_json, read_safetensors
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Array, Weights, refuse, take_tensors

_SETTINGS = "cfg.json"
_WEIGHTS = "sae_weights.safetensors"
_NAMES = ("W_enc", "b_enc", "W_dec", "b_dec")
_FINETUNED = ("scaling_factor", "finetuning_scaling_factor")
_LAYOUT_VERSION = "6.0.0"


def _find(path: Path) -> Path | None:
    file = path / _WEIGHTS if path.is_dir() else path
    is_complete = file.name == _WEIGHTS and file.is_file() and file.with_name(_SETTINGS).is_file()
    return file if is_complete else None


def _read(file: Path, k: int | None) -> SparseAutoEncoder:
    settings = read_json(file.with_name(_SETTINGS))
    activation = _activation(file, settings)
    scale = _input_scale(file, settings)
    tensors = read_safetensors(file)
    weights = Weights(file, *take_tensors(file, tensors, *_NAMES, ignored=_FINETUNED))
    for name in _FINETUNED:
        if name in tensors:
            weights = _apply_finetuning(weights, tensors[name], settings)
    if activation == "topk" and settings.get("rescale_acts_by_decoder_norm"):
        weights = weights.with_unit_decoder()
    if settings.get("apply_b_dec_to_input", True):
        weights = weights.with_input_centred()
    if scale != 1:
        weights = weights.with_input_scaled(scale)
    stored_k = _stored_k(settings) if activation == "topk" else None
    return weights.autoencoder(k, stored_k, f"has the activation {activation} and no k")


def _activation(file: Path, settings: Mapping[str, Any]) -> str:
    """Return topk or relu; before version 6, topk was an activation of the standard kind."""
    architecture = settings.get("architecture", "standard")
    if architecture == "topk":
        return "topk"
    activation = settings.get("activation_fn", settings.get("activation_fn_str", "relu"))
    if architecture != "standard" or activation not in ("topk", "relu"):
        refuse(
            file,
            f"has the architecture {architecture!r} with the activation {activation!r}",
            "only topk, and standard with topk or relu, can be turned into a vocabulary",
        )
    return str(activation)


def _stored_k(settings: Mapping[str, Any]) -> object:
    options = settings.get("activation_fn_kwargs") or {}
    return settings.get("k", options.get("k") if isinstance(options, dict) else None)


def _input_scale(file: Path, settings: Mapping[str, Any]) -> float:
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
    factor = read_json(checkpoint).get("scaling_factor") if checkpoint.is_file() else None
    if not isinstance(factor, int | float) or not 0 < factor < np.inf:
        refuse(
            file,
            f"was trained on scaled inputs (normalize_activations = {method!r}), "
            "but the factor is not stored",
            "call fold_activation_norm_scaling_factor in SAELens and save it again",
        )
    return float(factor)


def _apply_finetuning(weights: Weights, factor_v: Array, settings: Mapping[str, Any]) -> Weights:
    """Scale decoder rows by the factors that fine-tuning applies to the activations."""
    if factor_v.shape != weights.b_enc_v.shape:
        refuse(weights.source, f"has a scaling factor of shape {factor_v.shape}", "save it again")
    if not settings.get("finetuning_scaling_factor"):
        if np.allclose(factor_v, 1):
            return weights
        refuse(
            weights.source,
            "has a scaling factor, but finetuning_scaling_factor is off",
            f"set it in {_SETTINGS} if the factor should be used",
        )
    return replace(weights, w_dec_vd=weights.w_dec_vd * factor_v[:, None])


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
    if not is_unused(folder, _WEIGHTS):
        raise VocabularyError(f"{folder} already exists: give another path")
    arrays = (sae.w_enc_dv, sae.b_enc_v, sae.w_dec_vd, sae.b_dec_d)
    tensors = {
        name: np.ascontiguousarray(array, dtype=np.float32)
        for name, array in zip(_NAMES, arrays, strict=True)
    }
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
        "metadata": {"sae_lens_version": _LAYOUT_VERSION, **(metadata or {})},
    }
    make_folder(folder)
    replace_file(folder / _WEIGHTS, save(tensors))
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    replace_file(folder / _SETTINGS, text)  # last: until then, there is no auto-encoder


FORMAT = Format(f"{_SETTINGS} and {_WEIGHTS}", _find, _read)
