"""Checks of the four arrays of an auto-encoder, as files have them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyError
from bm25v.schema import show_value

TENSORS = ("W_enc", "b_enc", "W_dec", "b_dec")  # their usual names in files
MAX_VALUES = 1 << 30  # of a matrix: 4 GB of float32

Array = NDArray[np.float32]
T = TypeVar("T")

_ARRAYS = ("encoder", "encoder bias", "decoder", "decoder bias")
_LISTED = 5


def refuse(source: Path, problem: str, remedy: str) -> NoReturn:
    """Raise an error that names the file, the problem and what to do."""
    raise VocabularyError(f"{source} {problem}: {remedy}")


def take_tensors(
    source: Path, tensors: Mapping[str, T], *names: str, ignored: Iterable[str] = ()
) -> list[T]:
    """Return the named tensors; raise an error if one is missing, or another one is there."""
    if missing := [name for name in names if name not in tensors]:
        present = list_names(sorted(tensors)) or "nothing"
        refuse(source, f"lacks {', '.join(missing)}", f"it contains {present}; save it again")
    if unknown := sorted(set(tensors) - set(names) - set(ignored)):
        refuse(
            source,
            f"contains {list_names(unknown)}, which a TopK auto-encoder does not have",
            "only plain TopK auto-encoders can be read",
        )
    return [tensors[name] for name in names]


def check_shapes(source: Path, shapes: Sequence[tuple[int, ...]]) -> None:
    """Raise an error if the arrays of an auto-encoder do not match, or are too large."""
    d, v = shapes[0] if len(shapes[0]) == 2 else (0, 0)
    if 0 in (d, v) or list(shapes) != [(d, v), (v,), (v, d), (d,)]:
        pairs = zip(_ARRAYS, shapes, strict=True)
        listed = ", ".join(f"{name} {show_value(shape)}" for name, shape in pairs)
        refuse(source, f"has shapes that do not match ({listed})", "save it again")
    if d * v > MAX_VALUES:
        refuse(
            source,
            f"has matrices of {d:,} × {v:,} values",
            f"at most {MAX_VALUES:,} can be read; train fewer words",
        )


def check_finite(source: Path, arrays: Sequence[NDArray[np.floating]]) -> None:
    """Raise an error if an array of an auto-encoder has NaN or infinite values."""
    for name, array in zip(_ARRAYS, arrays, strict=True):
        if not np.isfinite(array).all():
            refuse(source, f"has NaN or infinite values in its {name}", "train it again")


def to_float32(array: NDArray[np.floating]) -> Array:
    """Return an array as `SparseAutoEncoder` takes it; `check_finite` refuses an overflow."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def list_names(names: Sequence[str]) -> str:
    shown = [name if name.isprintable() and len(name) < 60 else show_value(name) for name in names]
    more = [f"{len(names) - _LISTED:,} more"] if len(names) > _LISTED else []
    return ", ".join(shown[:_LISTED] + more)
