"""The files of a vocabulary: what each must contain, reading, writing.

In: a folder that anybody may have written. Out: a `StoredVocabulary` whose values agree with each
other, or a `VocabularyError` that names the file, the key, the value and what to do. Writing goes
through the same checks, so that what is written can be read. Not this module's job: fingerprints,
`words.tsv`, backbones.
"""

import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from bm25v.backbones import Backbone
from bm25v.display import first_line
from bm25v.errors import BackboneError, VocabularyError, WrongUse
from bm25v.files import make_folder, read_limited, replace_file, sync_folder
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.weights import Array, Weights, check_shapes, refuse, take_tensors, to_float32
from bm25v.schema import (
    Rule,
    SchemaError,
    check_values,
    exactly,
    find_value,
    listing,
    optional,
    parse_object,
    show_value,
    table,
    text,
    whole,
)
from bm25v.vocabulary import names
from bm25v.vocabulary.bag import FULL_WORDS, SCALE

FORMAT = 2  # 1 has no full bags and no stop words
MAX_K_POST = (1 << 16) - 1  # the index numbers the words of a query in two bytes
MAX_WORDS = (1 << 31) - 1  # codes number words in four bytes
SETTINGS = "vocabulary.json"
WEIGHTS = "sae.safetensors"
NAMES = "words.tsv"
SUGGESTED = "suggested.tsv"

_MAX_SETTINGS_BYTES = 16_000_000
_MAX_LABEL = 5000  # characters
_MAX_REASON = 200
_TENSORS = ("W_enc", "b_enc", "W_dec", "b_dec")
_STORED_AS = ("F16", "F32", "F64")
_REMEDY = "restore the folder, or download or train the vocabulary again"


def _is_label(value: str) -> bool:
    return 0 < len(value) <= _MAX_LABEL and value == make_label(value)


_LABEL = text(_is_label, f"a text of 1 to {_MAX_LABEL} characters without control characters")
_SCHEMA: Mapping[str, Rule] = {
    "name": _LABEL,
    "backbone": table(),
    "backbone.name": _LABEL,
    "backbone.fingerprint": _LABEL,
    "backbone.definition": optional(table()),
    "words": whole(1, MAX_WORDS),
    "k": whole(1),
    "k_post": whole(1, MAX_K_POST),
    "k_full": optional(whole(0, FULL_WORDS)),
    "stop_words": optional(listing(whole(0, MAX_WORDS))),
    "scale": exactly(SCALE),
    "names": table(),
    "report": table(),
}


class StoredVocabulary(NamedTuple):
    """What the files of a vocabulary contain."""

    name: str
    backbone_name: str
    backbone_fingerprint: str
    backbone_definition: Mapping[str, Any] | None
    sae: SparseAutoEncoder
    k_post: int
    k_full: int | None
    stop_words: tuple[int, ...]
    word_names: Mapping[int, str]
    report: Mapping[str, Any]


def make_label(value: str) -> str:
    """Return a text that can be the name of a vocabulary: without control characters.

    >>> make_label("two\\nlines \\udce9")
    'two?lines ?'
    """
    is_allowed = (unicodedata.category(character) not in names.NOT_ALLOWED for character in value)
    return "".join(c if keep else "?" for c, keep in zip(value, is_allowed, strict=True))


def check_settings(
    backbone: Backbone,
    *,
    k: int,
    n_words: int,
    k_post: int,
    k_full: int | None = None,
    stop_words: Sequence[int] = (),
) -> None:
    """Raise `WrongUse` for settings that no vocabulary can have."""
    identity = {"name": backbone.name, "fingerprint": backbone.fingerprint}
    settings = {"backbone": identity, "words": n_words, "k": k, "k_post": k_post}
    settings |= _format_bag_settings(k_full, stop_words)
    bag_keys = ("words", "k", "k_post", "k_full", "stop_words")
    try:
        _check_schema(settings, ("backbone.name", "backbone.fingerprint", *bag_keys))
    except SchemaError as error:
        raise WrongUse(f"{error}: give another value") from error


def read_folder(folder: Path) -> StoredVocabulary:
    """Return what a vocabulary's files contain."""
    content = _read_settings(folder)
    settings = _parse_settings(folder, content)
    word_names = _parse_names(folder, settings)
    _check_definition(folder, settings)
    sae = _read_weights(folder, settings)
    if _read_settings(folder) != content:
        raise VocabularyError(f"{folder} was replaced while it was read: load it again")
    backbone = settings["backbone"]
    return StoredVocabulary(
        name=settings["name"],
        backbone_name=backbone["name"],
        backbone_fingerprint=backbone["fingerprint"],
        backbone_definition=backbone.get("definition"),
        sae=sae,
        k_post=settings["k_post"],
        k_full=settings.get("k_full"),
        stop_words=tuple(settings.get("stop_words", ())),
        word_names=word_names,
        report=settings["report"],
    )


def write_folder(folder: Path, stored: StoredVocabulary, *, names_table: str | None) -> None:
    """Write a vocabulary's files; `names_table` is the content of `words.tsv`.

    `vocabulary.json` is written last: until then, there is no vocabulary in the folder.
    """
    settings = _format_settings(folder, stored)
    weights = _format_weights(folder, stored.sae)
    make_folder(folder)
    (folder / SETTINGS).unlink(missing_ok=True)
    sync_folder(folder)  # before the weights are replaced: the old settings are not for them
    replace_file(folder / WEIGHTS, weights)
    (folder / NAMES).unlink(missing_ok=True)
    if names_table is not None:
        replace_file(folder / NAMES, names_table)
    replace_file(folder / SETTINGS, settings)


def _read_settings(folder: Path) -> bytes:
    path = folder / SETTINGS
    try:
        return read_limited(path, _MAX_SETTINGS_BYTES)
    except OSError as error:
        raise VocabularyError(f"{path} cannot be read ({error.strerror})") from error
    except ValueError as error:
        _refuse(path, str(error))


def _parse_settings(folder: Path, content: bytes) -> dict[str, Any]:
    path = folder / SETTINGS
    with _schema_errors(path):
        settings = parse_object(content)
        check_values(settings, {"format": whole(1)})
        if settings["format"] > FORMAT:
            raise VocabularyError(
                f"{folder} has vocabulary format {show_value(settings['format'])}, this bm25v "
                f"reads up to {FORMAT}: upgrade bm25v"
            )
        _check_schema(settings, _SCHEMA)
    return settings


def _check_schema(settings: Mapping[str, Any], keys: Iterable[str]) -> None:
    check_values(settings, {key: _SCHEMA[key] for key in keys})
    n_words = settings["words"]
    check_values(settings, {"k": whole(1, n_words)})
    stop_words = settings.get("stop_words", [])
    if any(word >= n_words for word in stop_words) or stop_words != sorted(set(stop_words)):
        raise SchemaError(f"stop_words are not numbers of words below {n_words:,}, ascending")


def _parse_names(folder: Path, settings: Mapping[str, Any]) -> dict[int, str]:
    """Return the names in the settings, where older versions wrote them."""
    path = folder / SETTINGS
    word_names: dict[int, str] = {}
    for word, name in settings["names"].items():
        try:
            number = names.parse_word(word, settings["words"])
            if number in word_names:
                raise WrongUse(f"word {number} is named twice")
            if not isinstance(name, str):
                raise WrongUse(f"{show_value(name)} is not a text")
            word_names[number] = names.check_name(name)
        except WrongUse as error:
            _refuse(path, f"names has the entry {show_value(word)}, but {error}")
    return word_names


def _check_definition(folder: Path, settings: Mapping[str, Any]) -> None:
    definition = find_value(settings, "backbone.definition")
    if definition is None:
        return
    from bm25v.backbones.onnx_spec import check_definition

    try:
        check_definition(definition, source=f"{folder / SETTINGS}, backbone.definition")
    except BackboneError as error:
        raise VocabularyError(f"{error}; {_REMEDY}") from error


def _read_weights(folder: Path, settings: Mapping[str, Any]) -> SparseAutoEncoder:
    from safetensors import SafetensorError, safe_open

    path = folder / WEIGHTS
    if not path.is_file():
        _refuse(path, "it is missing, or not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            weights = Weights(path, *_read_tensors(path, file))
    except (OSError, MemoryError, SafetensorError) as error:
        reason = make_label(first_line(str(error)))[:_MAX_REASON]
        _refuse(path, f"it cannot be read ({reason})")
    n_words = weights.w_enc_dv.shape[1]
    if n_words != settings["words"]:
        _refuse(path, f"it has {n_words:,} words, and {SETTINGS} says {settings['words']:,}")
    return weights.autoencoder(None, settings["k"], "has no k")


def _read_tensors(path: Path, file: Any) -> list[Array]:
    """Return the tensors in their order; names, types and shapes are checked before any is read."""
    slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
    tensors = take_tensors(path, slices, *_TENSORS)
    for name, tensor in zip(_TENSORS, tensors, strict=True):
        if tensor.get_dtype() not in _STORED_AS:
            refuse(path, f"stores {name} as {tensor.get_dtype()}", "save it as float16")
    check_shapes(path, [tuple(tensor.get_shape()) for tensor in tensors])
    return [to_float32(file.get_tensor(name)) for name in _TENSORS]


def _format_settings(folder: Path, stored: StoredVocabulary) -> bytes:
    definition = stored.backbone_definition
    backbone = {
        "name": stored.backbone_name,
        "fingerprint": stored.backbone_fingerprint,
        **({} if definition is None else {"definition": dict(definition)}),
    }
    settings = {
        "format": FORMAT,
        "name": stored.name,
        "backbone": backbone,
        "words": stored.sae.n_words,
        "k": stored.sae.k,
        "k_post": stored.k_post,
        **_format_bag_settings(stored.k_full, stored.stop_words),
        "scale": SCALE,
        "names": {},  # older versions look for names here
        "report": dict(stored.report),
    }
    try:
        content = json.dumps(settings, indent=2, ensure_ascii=False).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:  # ValueError: also of UTF-8
        raise VocabularyError(
            f"{folder} was not written: its report or definition is not JSON ({error})"
        ) from error
    _parse_settings(folder, content)
    return content


def _format_bag_settings(k_full: int | None, stop_words: Sequence[int]) -> dict[str, Any]:
    """Return the settings that may be missing."""
    return {
        **({} if k_full is None else {"k_full": k_full}),
        **({"stop_words": list(stop_words)} if stop_words else {}),
    }


def _format_weights(folder: Path, sae: SparseAutoEncoder) -> bytes:
    from safetensors.numpy import save

    arrays = (sae.w_enc_dv, sae.b_enc_v, sae.w_dec_vd, sae.b_dec_d)
    with np.errstate(over="ignore"):  # the check refuses what becomes infinite
        halves = [array.astype(np.float16) for array in arrays]
    Weights(folder / WEIGHTS, *(half.astype(np.float32) for half in halves))
    return save(dict(zip(_TENSORS, halves, strict=True)))


@contextmanager
def _schema_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except SchemaError as error:
        _refuse(path, str(error))


def _refuse(path: Path, problem: str) -> NoReturn:
    raise VocabularyError(f"{path}: {problem}: {_REMEDY}")
