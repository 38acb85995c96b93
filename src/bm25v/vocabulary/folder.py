"""Reads and writes the files of a vocabulary.

Anybody may have written a folder: what is read agrees with itself, or a `VocabularyError` names the
file, the key, the value and what to do. Writing goes through the same checks.
"""

import json
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from bm25v.backbones import Backbone
from bm25v.backbones.onnx_spec import check_definition
from bm25v.display import first_line
from bm25v.errors import BackboneError, InvalidOption, VocabularyError
from bm25v.files import make_folder, read_limited, replace_file, sync_folder
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import (
    TENSORS,
    check_finite,
    check_shapes,
    refuse,
    take_tensors,
    to_float32,
)
from bm25v.schema import (
    TABLE,
    Rule,
    SchemaError,
    check_values,
    listing,
    nullable,
    parse_object,
    show_value,
    text,
    whole,
)
from bm25v.vocabulary import names
from bm25v.vocabulary.bag import FULL_WORDS, MAX_K_POST, SCALE

FORMAT = 1
MAX_WORDS = (1 << 31) - 1  # codes number words in four bytes
SETTINGS = "vocabulary.json"
WEIGHTS = "sae.safetensors"
NAMES = "words.tsv"
SUGGESTED = "suggested.tsv"

_MAX_SETTINGS_BYTES = 16_000_000
_MAX_LABEL = 5000  # characters
_REMEDY = "restore the folder, or download or train the vocabulary again"


def make_label(value: str) -> str:
    """Return a text that can be the name of a vocabulary: without control characters.

    >>> make_label("two\\nlines \\udce9")
    'two?lines ?'
    """
    return "".join("?" if unicodedata.category(c) in names.NOT_ALLOWED else c for c in value)


_LABEL = text(
    lambda value: 0 < len(value) <= _MAX_LABEL and value == make_label(value),
    f"a text of 1 to {_MAX_LABEL} characters without control characters",
)
_BACKBONE: Mapping[str, Rule] = {
    "name": _LABEL,
    "fingerprint": _LABEL,
    "definition": nullable(TABLE),
}
_BAGS: Mapping[str, Rule] = {
    "words": whole(1, MAX_WORDS),
    "k_post": whole(1, MAX_K_POST),
    "k_full": nullable(whole(1, FULL_WORDS)),
    "stop_words": listing(whole(0, MAX_WORDS)),
}


def check_settings(
    backbone: Backbone,
    *,
    k: int,
    n_words: int,
    k_post: int,
    k_full: int | None = None,
    stop_words: Sequence[int] = (),
) -> None:
    """Raise `InvalidOption` for settings that no vocabulary can have."""
    try:
        identity = {"name": backbone.name, "fingerprint": backbone.fingerprint, "definition": None}
        check_values(identity, _BACKBONE, within="backbone.")
        bags = {"words": n_words, "k_post": k_post, "k_full": k_full}
        _check_bags({**bags, "k": k, "stop_words": list(stop_words)})
    except SchemaError as error:
        raise InvalidOption(f"{error}: give another value") from error


def read_folder(folder: Path) -> tuple[dict[str, Any], SparseAutoEncoder]:
    """Return the settings of a vocabulary, as `write_folder` takes them, and its weights."""
    content = _read_settings(folder)
    settings = _parse_settings(folder, content)
    sae = _read_weights(folder, settings)
    if _read_settings(folder) != content:
        raise VocabularyError(f"{folder} was replaced while it was read: load it again")
    return settings, sae


def write_folder(
    folder: Path, settings: Mapping[str, Any], sae: SparseAutoEncoder, *, names_table: str | None
) -> None:
    """Write a vocabulary's files; `names_table` is the content of `words.tsv`.

    `vocabulary.json` is written last: until then, there is no vocabulary in the folder.
    """
    try:
        numbered = {"format": FORMAT, **settings}
        content = json.dumps(numbered, indent=2, ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:  # ValueError: also of UTF-8
        raise VocabularyError(
            f"{folder} was not written: its report or definition is not JSON ({error})"
        ) from error
    _parse_settings(folder, content)
    weights = _format_weights(folder, sae)
    make_folder(folder)
    (folder / SETTINGS).unlink(missing_ok=True)
    sync_folder(folder)  # before the weights are replaced: the old settings are not for them
    replace_file(folder / WEIGHTS, weights)
    (folder / NAMES).unlink(missing_ok=True)
    if names_table is not None:
        replace_file(folder / NAMES, names_table)
    replace_file(folder / SETTINGS, content)


def _read_settings(folder: Path) -> bytes:
    path = folder / SETTINGS
    try:
        return read_limited(path, _MAX_SETTINGS_BYTES)
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        _refuse(path, str(error))


def _parse_settings(folder: Path, content: bytes) -> dict[str, Any]:
    """Return the checked settings; what may be missing has its default."""
    path = folder / SETTINGS
    try:
        settings = {"k_full": None, "stop_words": [], **parse_object(content)}
        check_values(settings, {"format": whole(1)})
        if settings["format"] > FORMAT:
            raise VocabularyError(
                f"{folder} has vocabulary format {show_value(settings['format'])}, this bm25v "
                f"reads up to {FORMAT}: upgrade bm25v"
            )
        scale = Rule(str(SCALE), lambda value: type(value) is int and value == SCALE)
        check_values(settings, {"name": _LABEL, "backbone": TABLE, "report": TABLE, "scale": scale})
        settings["backbone"] = {"definition": None, **settings["backbone"]}
        check_values(settings["backbone"], _BACKBONE, within="backbone.")
        _check_bags(settings)
        if settings["backbone"]["definition"] is not None:
            source = f"{path}, backbone.definition"
            check_definition(settings["backbone"]["definition"], source=source)
    except SchemaError as error:
        _refuse(path, str(error))
    except BackboneError as error:
        raise VocabularyError(f"{error}; {_REMEDY}") from error
    return settings


def _check_bags(settings: Mapping[str, Any]) -> None:
    check_values(settings, _BAGS)
    n_words, stop_words = settings["words"], settings["stop_words"]
    check_values(settings, {"k": whole(1, n_words)})
    if any(word >= n_words for word in stop_words) or stop_words != sorted(set(stop_words)):
        raise SchemaError(f"stop_words are not numbers of words below {n_words:,}, ascending")


def _read_weights(folder: Path, settings: Mapping[str, Any]) -> SparseAutoEncoder:
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        _refuse(path, "it is missing, or not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            # Names, types and shapes are checked before any tensor is read.
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            tensors = take_tensors(path, slices, *TENSORS)
            for name, tensor in zip(TENSORS, tensors, strict=True):
                if tensor.get_dtype() not in ("F16", "F32", "F64"):
                    refuse(path, f"stores {name} as {tensor.get_dtype()}", "save it as float16")
            shapes = [tuple(tensor.get_shape()) for tensor in tensors]
            check_shapes(path, shapes)
            n_words = shapes[0][1]
            if n_words != settings["words"]:
                says = f"{SETTINGS} says {settings['words']:,}"
                _refuse(path, f"it has {n_words:,} words, and {says}")
            arrays = [to_float32(file.get_tensor(name)) for name in TENSORS]
            check_finite(path, arrays)
    except (OSError, MemoryError, SafetensorError) as error:
        reason = make_label(first_line(str(error)))[:200]
        _refuse(path, f"it cannot be read ({reason})")
    return SparseAutoEncoder.from_arrays(arrays, settings["k"])


def _format_weights(folder: Path, sae: SparseAutoEncoder) -> bytes:
    from safetensors.numpy import save

    with np.errstate(over="ignore"):  # the check refuses what becomes infinite
        halves = [array.astype(np.float16) for array in sae.arrays]
    check_finite(folder / WEIGHTS, halves)
    return save(dict(zip(TENSORS, halves, strict=True)))


def _refuse(path: Path, problem: str) -> NoReturn:
    raise VocabularyError(f"{path}: {problem}: {_REMEDY}")
