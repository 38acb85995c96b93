"""OSU's saev (`saev.nn.dump`): a line of JSON, then a torch state dict.

    h = topk(x W_enc + b_enc)        x_hat = h W_dec + b_dec

Its top-k keeps negative values where fewer than k are positive; here they count as 0. Files of
schemas before 2 were written by a saev that subtracted b_dec from its inputs; today's does not.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bm25v.sae.formats.reading import Format, parse_json, read_bytes, read_torch
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Weights, refuse, take_tensors

_NEWEST_SCHEMA = 5
_OLD_CLASSES = ("Relu", "TopK", "BatchTopK")


def _find(path: Path) -> Path | None:
    candidates = (path / "sae.pt", path / "checkpoint" / "sae.pt") if path.is_dir() else (path,)
    return next((file for file in candidates if _starts_with_json(file)), None)


def _starts_with_json(file: Path) -> bool:
    if file.suffix != ".pt" or not file.is_file():
        return False
    with file.open("rb") as opened:
        return opened.read(1) == b"{"


def _read(file: Path, k: int | None) -> SparseAutoEncoder:
    line, _, rest = read_bytes(file).partition(b"\n")
    header = parse_json(line, file)
    schema = header.get("schema", 0)
    if schema not in range(_NEWEST_SCHEMA + 1):
        refuse(file, f"has the schema {schema!r}", f"bm25v reads up to {_NEWEST_SCHEMA}; upgrade")
    activation, stored_k = _activation(file, header)
    names = ("W_enc", "b_enc", "W_dec", "b_dec")
    weights = Weights(file, *take_tensors(file, read_torch(file, rest), *names))
    if schema == 0 or header.get("cls") in _OLD_CLASSES:
        weights = weights.with_input_centred()
    return weights.autoencoder(k, stored_k, f"has the activation {activation} and no k")


def _activation(file: Path, header: Mapping[str, Any]) -> tuple[str, object]:
    """Return the activation's name and its k, from any schema's header."""
    settings = _inner(header, "cfg")
    if "schema" not in header:
        name, options = "Relu", settings
    elif header.get("cls") in _OLD_CLASSES:
        name, options = header["cls"], settings
    else:
        activation = _inner(settings, "activation")
        name, options = str(activation.get("cls")), _inner(activation, "params")
    if name not in ("Relu", "TopK"):
        refuse(
            file,
            f"has the activation {name!r}",
            "only TopK, and Relu with a k, can be turned into a vocabulary",
        )
    return name, options.get("top_k") if name == "TopK" else None


def _inner(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = settings.get(name)
    return value if isinstance(value, dict) else {}


FORMAT = Format("sae.pt, a line of JSON before a state dict", _find, _read)
