"""dictionary_learning (`trainSAE`, read there by `load_dictionary`).

    AutoEncoderTopK    h = topk(relu((x - b_dec) Eᵀ + e))      x_hat = h Dᵀ + b_dec
    AutoEncoder        h = relu((x - bias) Eᵀ + e)             x_hat = h Dᵀ + bias
    AutoEncoderNew     h = relu(x Eᵀ + e)                      x_hat = h Dᵀ + d

Loading an `AutoEncoder` scales its decoder columns to length 1, and its activations accordingly.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bm25v.sae.formats.reading import Format, Tensors, read_json, read_torch
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Weights, refuse, take_tensors

_SETTINGS = "config.json"
_DECODER_BIAS = {
    "AutoEncoderTopK": "b_dec",
    "AutoEncoder": "bias",
    "AutoEncoderNew": "decoder.bias",
}


def _find(path: Path) -> Path | None:
    file = path / "ae.pt" if path.is_dir() else path
    is_named = file.name.startswith("ae") and file.suffix == ".pt"
    has_both = file.is_file() and _settings_file(file).is_file()
    return file if is_named and has_both else None


def _settings_file(file: Path) -> Path:
    """Return the path of the settings: a checkpoint's are in the folder above."""
    folder = file.parent.parent if file.parent.name == "checkpoints" else file.parent
    return folder / _SETTINGS


def _read(file: Path, k: int | None) -> SparseAutoEncoder:
    settings = read_json(_settings_file(file)).get("trainer")
    settings = settings if isinstance(settings, dict) else {}
    kind = str(settings.get("dict_class"))
    if kind not in _DECODER_BIAS:
        refuse(
            file,
            f"has the dict_class {kind!r} in its {_SETTINGS}",
            f"only {', '.join(_DECODER_BIAS)} can be turned into a vocabulary",
        )
    tensors = read_torch(file)
    names = ("encoder.weight", "encoder.bias", "decoder.weight", _DECODER_BIAS[kind])
    has_k = kind == "AutoEncoderTopK"
    ignored = ("k", "threshold") if has_k else ()
    w_enc_vd, b_enc_v, w_dec_dv, b_dec_d = take_tensors(file, tensors, *names, ignored=ignored)
    weights = Weights(file, w_enc_vd.T, b_enc_v, w_dec_dv.T, b_dec_d)
    if kind == "AutoEncoder":
        weights = weights.with_unit_decoder()
    if kind != "AutoEncoderNew":
        weights = weights.with_input_centred()
    stored_k = _stored_k(file, tensors, settings) if k is None and has_k else None
    return weights.autoencoder(k, stored_k, f"has the dict_class {kind} and no k")


def _stored_k(file: Path, tensors: Tensors, settings: Mapping[str, Any]) -> object:
    in_settings = settings.get("k")
    if "k" not in tensors or tensors["k"].size != 1:
        return in_settings
    in_weights = int(tensors["k"].item())
    if in_settings not in (None, in_weights):
        refuse(
            file,
            f"says k = {in_weights}, its {_SETTINGS} says k = {in_settings!r}",
            "give k (--k N)",
        )
    return in_weights


FORMAT = Format(f"ae.pt and {_SETTINGS}", _find, _read)
