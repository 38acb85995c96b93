"""EleutherAI's sparsify (`SparseCoder.save_to_disk`).

h = topk(relu((x - b_dec) Eᵀ + e))        x_hat = h W_dec + b_dec
"""

from pathlib import Path

from bm25v.sae.formats.reading import Format, read_json, read_safetensors
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Weights, refuse, take_tensors

_SETTINGS = "cfg.json"
_WEIGHTS = "sae.safetensors"
_NEEDED = {"activation": "topk", "signed": False, "skip_connection": False, "transcode": False}


def _find(path: Path) -> Path | None:
    file = path / _WEIGHTS if path.is_dir() else path
    is_complete = file.name == _WEIGHTS and file.is_file() and file.with_name(_SETTINGS).is_file()
    return file if is_complete else None


def _read(file: Path, k: int | None) -> SparseAutoEncoder:
    settings = read_json(file.with_name(_SETTINGS))
    for name, needed in _NEEDED.items():
        if settings.get(name, needed) != needed:
            refuse(
                file,
                f"was trained with {name} = {settings[name]!r}",
                f"only {needed!r} can be turned into a vocabulary",
            )
    names = ("encoder.weight", "encoder.bias", "W_dec", "b_dec")
    w_enc_vd, b_enc_v, w_dec_vd, b_dec_d = take_tensors(file, read_safetensors(file), *names)
    weights = Weights(file, w_enc_vd.T, b_enc_v, w_dec_vd, b_dec_d).with_input_centred()
    return weights.autoencoder(k, settings.get("k"), f"has no k in its {_SETTINGS}")


FORMAT = Format(f"{_SETTINGS} and {_WEIGHTS}", _find, _read)
