"""The four arrays of an auto-encoder, as files have them: checked, and folded into one formula."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import InvalidOption, VocabularyError
from bm25v.sae.model import SparseAutoEncoder
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


def to_float32(array: NDArray[np.floating]) -> Array:
    """Return an array as `SparseAutoEncoder` takes it; `Weights` refuses what becomes infinite."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


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
        arrays = (self.w_enc_dv, self.b_enc_v, self.w_dec_vd, self.b_dec_d)
        check_shapes(self.source, [array.shape for array in arrays])
        for name, array in zip(_ARRAYS, arrays, strict=True):
            if not np.isfinite(array).all():
                refuse(self.source, f"has NaN or infinite values in its {name}", "train it again")

    def with_input_centred(self) -> "Weights":
        """Subtract b_dec from every input before encoding."""
        shift_v = self.b_dec_d.astype(np.float64) @ self.w_enc_dv
        return replace(self, b_enc_v=to_float32(self.b_enc_v - shift_v))

    def with_input_scaled(self, factor: float) -> "Weights":
        """Multiply every input by a factor before encoding; divide the decoder's output by it."""
        return replace(
            self,
            w_enc_dv=to_float32(self.w_enc_dv * np.float64(factor)),
            w_dec_vd=to_float32(self.w_dec_vd / np.float64(factor)),
            b_dec_d=to_float32(self.b_dec_d / np.float64(factor)),
        )

    def with_unit_decoder(self) -> "Weights":
        """Scale every decoder row to length 1, and its activations by the length it had."""
        lengths_v = np.linalg.norm(self.w_dec_vd.astype(np.float64), axis=1)
        divisors_v = np.where(lengths_v > 0, lengths_v, 1)
        return replace(
            self,
            w_enc_dv=to_float32(self.w_enc_dv * lengths_v),
            b_enc_v=to_float32(self.b_enc_v * lengths_v),
            w_dec_vd=to_float32(self.w_dec_vd / divisors_v[:, None]),
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
            error = VocabularyError if requested_k is None else InvalidOption
            raise error(
                f"{self.source}: k = {k!r} is not a number from 1 to {n_words}, the number of words"
            )
        return SparseAutoEncoder(
            w_enc_dv=to_float32(self.w_enc_dv),
            b_enc_v=to_float32(self.b_enc_v),
            w_dec_vd=to_float32(self.w_dec_vd),
            b_dec_d=to_float32(self.b_dec_d),
            k=k,
        )


def list_names(names: Sequence[str]) -> str:
    shown = [name if name.isprintable() and len(name) < 60 else show_value(name) for name in names]
    more = [f"{len(names) - _LISTED:,} more"] if len(names) > _LISTED else []
    return ", ".join(shown[:_LISTED] + more)
