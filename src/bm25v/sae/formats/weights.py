"""The four arrays of an auto-encoder, and the steps that are folded into them."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import VocabularyError, WrongUse
from bm25v.sae.formats.files import Array, refuse
from bm25v.sae.model import SparseAutoEncoder


@dataclass(frozen=True)
class Weights:
    """Weights as a project applies them: shapes fit and all values are finite, at every step.

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
        arrays = {
            "encoder": self.w_enc_dv,
            "encoder bias": self.b_enc_v,
            "decoder": self.w_dec_vd,
            "decoder bias": self.b_dec_d,
        }
        d, v = self.w_enc_dv.shape if self.w_enc_dv.ndim == 2 else (0, 0)
        shapes = [array.shape for array in arrays.values()]
        if 0 in (d, v) or shapes != [(d, v), (v,), (v, d), (d,)]:
            found = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
            refuse(self.source, f"has shapes that do not fit together ({found})", "save it again")
        for name, array in arrays.items():
            if not np.isfinite(array).all():
                refuse(self.source, f"has values in its {name} that are not finite", "train again")

    def with_input_centred(self) -> "Weights":
        """Take b_dec from every input before encoding."""
        shift_v = self.b_dec_d.astype(np.float64) @ self.w_enc_dv
        return replace(self, b_enc_v=_single(self.b_enc_v - shift_v))

    def with_input_scaled(self, factor: float) -> "Weights":
        """Multiply every input by a factor before encoding, and divide what is decoded by it."""
        return replace(
            self,
            w_enc_dv=_single(self.w_enc_dv * np.float64(factor)),
            w_dec_vd=_single(self.w_dec_vd / np.float64(factor)),
            b_dec_d=_single(self.b_dec_d / np.float64(factor)),
        )

    def with_unit_decoder(self) -> "Weights":
        """Give every decoder row length 1 and its activations that length."""
        lengths_v = np.linalg.norm(self.w_dec_vd.astype(np.float64), axis=1)
        divisors_v = np.where(lengths_v > 0, lengths_v, 1)
        return replace(
            self,
            w_enc_dv=_single(self.w_enc_dv * lengths_v),
            b_enc_v=_single(self.b_enc_v * lengths_v),
            w_dec_vd=_single(self.w_dec_vd / divisors_v[:, None]),
        )

    def autoencoder(self, asked: int | None, stored: object, without: str) -> SparseAutoEncoder:
        """Return the encoder that search uses, with the k asked for, else the one stored."""
        k = stored if asked is None else asked
        if k is None:
            refuse(self.source, without, "give k (--k N)")
        n_words = self.w_enc_dv.shape[1]
        if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= n_words:
            error = VocabularyError if asked is None else WrongUse
            raise error(f"{self.source}: k = {k!r} is no number from 1 to {n_words}, its words")
        return SparseAutoEncoder(
            w_enc_dv=_single(self.w_enc_dv),
            b_enc_v=_single(self.b_enc_v),
            w_dec_vd=_single(self.w_dec_vd),
            b_dec_d=_single(self.b_dec_d),
            k=k,
        )


def _single(array: NDArray[np.floating]) -> Array:
    with np.errstate(over="ignore"):  # what does not fit is refused as infinite
        return np.ascontiguousarray(array, dtype=np.float32)
