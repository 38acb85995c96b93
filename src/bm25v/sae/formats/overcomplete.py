"""overcomplete's TopKSAE, from the state dict of the model.

    h = topk(relu(norm(x Eᵀ + e)))        x_hat = h D · exp(multiplier), rows of D of length 1

The norm is none (`linear`, the default) or a batch norm, which is constant after training. An
encoder may be tied to the dictionary. Whole models are pickled Python objects and are never loaded;
`torch.save(model.eval().state_dict(), "sae.pt")` writes what is read here.
"""

from pathlib import Path

import numpy as np

from bm25v.sae.formats.reading import Format, Tensors, read_safetensors, read_torch
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Array, Weights, refuse, take_tensors

_SUFFIXES = (".pt", ".pth", ".safetensors")
_DICTIONARY = ("dictionary._weights", "dictionary.multiplier")
_LINEAR = ("encoder.final_block.0.weight", "encoder.final_block.0.bias")
_NORM = "encoder.final_block.1."
_NORM_PARTS = ("weight", "bias", "running_mean", "running_var")
_BATCHES = _NORM + "num_batches_tracked"
_NORM_EPSILON = 1e-5  # torch's default, which overcomplete does not change
_MAX_DRIFT = 0.1  # of a row's length from 1: one step of training changes it


def _find(path: Path) -> Path | None:
    inside = path.iterdir() if path.is_dir() else (path,)
    files = [file for file in inside if file.suffix in _SUFFIXES and file.is_file()]
    if len(files) != 1:
        return None
    has_dictionary = any(name.startswith("dictionary.") for name in _tensors(files[0]))
    return files[0] if has_dictionary else None


def _tensors(file: Path) -> Tensors:
    return read_safetensors(file) if file.suffix == ".safetensors" else read_torch(file)


def _read(file: Path, k: int | None) -> SparseAutoEncoder:
    tensors = _tensors(file)
    if "thresholds" in tensors or "dictionary.C" in tensors:
        kind = "JumpSAE" if "thresholds" in tensors else "archetypal dictionary"
        refuse(file, f"is a {kind}", "only a TopKSAE with a plain dictionary can be read")
    if any(name.startswith("encoder.mlp_blocks.") for name in tensors):
        refuse(file, "has hidden layers in its encoder", "only a linear encoder can be read")
    d_vd, multiplier = take_tensors(file, tensors, *_DICTIONARY, ignored=tensors)
    if d_vd.ndim != 2 or multiplier.ndim != 0:
        refuse(
            file, f"has a dictionary of shape {d_vd.shape} by {multiplier.shape}", "save it again"
        )
    with np.errstate(over="ignore"):  # `Weights` refuses values that become infinite
        w_dec_vd = _unit_rows(file, d_vd) * np.exp(multiplier)
    w_enc_dv, b_enc_v = _encoder(file, tensors, w_dec_vd)
    weights = Weights(file, w_enc_dv, b_enc_v, w_dec_vd, np.zeros(d_vd.shape[1], np.float32))
    return weights.autoencoder(k, None, "does not say which top_k its model had")


def _unit_rows(file: Path, d_vd: Array) -> Array:
    """Normalise the rows, as the model does when it is switched to evaluation."""
    lengths_v = np.linalg.norm(d_vd.astype(np.float64), axis=1)
    if (np.abs(lengths_v - 1) > _MAX_DRIFT).any():
        refuse(
            file,
            "has dictionary rows that are not of length 1",
            "only normalization='l2' can be read; save model.eval().state_dict()",
        )
    return np.asarray(d_vd / (lengths_v[:, None] + 1e-8), dtype=np.float32)


def _encoder(file: Path, tensors: Tensors, w_dec_vd: Array) -> tuple[Array, Array]:
    """Return the weights and bias of the encoder, of whichever kind it is."""
    no_bias_v = np.zeros(len(w_dec_vd), np.float32)
    bias_v = tensors.get("encoder.bias", no_bias_v)
    if "encoder.tied_to._weights" in tensors:
        tied = [name for name in tensors if name.startswith("encoder.tied_to.")]
        take_tensors(file, tensors, *_DICTIONARY, *tied, ignored=("encoder.bias",))
        return w_dec_vd.T, bias_v
    if "encoder.weight" in tensors:
        names = ("encoder.weight", *_DICTIONARY)
        return take_tensors(file, tensors, *names, ignored=("encoder.bias",))[0].T, bias_v
    if not any(name.startswith(_NORM) for name in tensors):
        w_enc_vd, bias_v, *_ = take_tensors(file, tensors, *_LINEAR, *_DICTIONARY)
        return w_enc_vd.T, bias_v
    return _batch_normed(file, tensors)


def _batch_normed(file: Path, tensors: Tensors) -> tuple[Array, Array]:
    if _NORM + "running_mean" not in tensors:
        refuse(
            file,
            "normalises the activations of each patch (LayerNorm)",
            "this cannot be folded into the weights; use one with the encoder 'linear'",
        )
    parts = tuple(_NORM + part for part in _NORM_PARTS)
    names = (*_LINEAR, *parts, *_DICTIONARY)
    w_enc_vd, bias_v, *norm, _, _ = take_tensors(file, tensors, *names, ignored=(_BATCHES,))
    if any(part.shape != w_enc_vd.shape[:1] for part in (bias_v, *norm)):
        refuse(file, "has a batch norm whose shape does not fit its encoder", "save it again")
    gain_v, shift_v, mean_v, var_v = norm
    spread_v = np.sqrt(np.maximum(var_v, 0) + _NORM_EPSILON)
    scale_v = np.asarray(gain_v / spread_v, dtype=np.float32)
    return w_enc_vd.T * scale_v, (bias_v - mean_v) * scale_v + shift_v


FORMAT = Format("one .pt, .pth or .safetensors file, a TopKSAE's state dict", _find, _read)
