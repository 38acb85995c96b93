"""The TopK sparse auto-encoder at search time, in numpy."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BLOCK_VALUES = 16_000_000  # activations held at once: 64 MB of float32


class Codes(NamedTuple):
    """The words active at each patch; a slot with activation 0 is empty."""

    words_pk: NDArray[np.int32]
    activations_pk: NDArray[np.float32]


@dataclass(frozen=True)
class SparseAutoEncoder:
    """`h = topk(relu(z W_enc + b_enc), k)`, `z_hat = h W_dec + b_dec` (paper, equations 3 and 4).

    >>> sae = SparseAutoEncoder(np.eye(3, 4, dtype=np.float32), np.zeros(4, np.float32),
    ...                         np.eye(4, 3, dtype=np.float32), np.zeros(3, np.float32), k=2)
    >>> codes = sae.encode(np.array([[1.0, 3.0, 2.0]], dtype=np.float32))
    >>> codes.words_pk.tolist(), codes.activations_pk.tolist()
    ([[1, 2]], [[3.0, 2.0]])
    """

    w_enc_dv: NDArray[np.float32]
    b_enc_v: NDArray[np.float32]
    w_dec_vd: NDArray[np.float32]
    b_dec_d: NDArray[np.float32]
    k: int

    @property
    def n_words(self) -> int:
        """V, the number of visual words."""
        return int(self.w_enc_dv.shape[1])

    @property
    def patch_dim(self) -> int:
        """D, the width of the patch features it takes."""
        return int(self.w_enc_dv.shape[0])

    def encode(self, patches_pd: NDArray[np.float32]) -> Codes:
        """Return each patch's k most active words, strongest first."""
        rows = max(1, _BLOCK_VALUES // self.n_words)
        blocks = [
            _top_k(self._activations(patches_pd[start : start + rows]), self.k)
            for start in range(0, len(patches_pd), rows)
        ]
        if len(blocks) == 1:
            return blocks[0]
        return Codes(
            np.concatenate([block.words_pk for block in blocks]),
            np.concatenate([block.activations_pk for block in blocks]),
        )

    def _activations(self, patches_pd: NDArray[np.float32]) -> NDArray[np.float32]:
        values_pv = patches_pd @ self.w_enc_dv
        values_pv += self.b_enc_v
        return values_pv

    def decode(self, codes: Codes) -> NDArray[np.float32]:
        """Return the patch features that the codes stand for."""
        weighted_pkd = self.w_dec_vd[codes.words_pk] * codes.activations_pk[..., None]
        return np.asarray(weighted_pkd.sum(axis=1) + self.b_dec_d, dtype=np.float32)


def _top_k(values_pv: NDArray[np.float32], k: int) -> Codes:
    """Keep the k largest positive values of each row, largest first."""
    words_pk = largest(values_pv, min(k, values_pv.shape[1]))
    return strongest(words_pk, np.take_along_axis(values_pv, words_pk, axis=1), k)


def strongest(words_pc: NDArray[np.intp], values_pc: NDArray[np.float32], k: int) -> Codes:
    """Keep each row's k words of the largest values, largest first; negative values become 0."""
    top_pk = np.argsort(-values_pc, axis=1)[:, :k]
    return Codes(
        np.take_along_axis(words_pc, top_pk, axis=1).astype(np.int32),
        np.maximum(np.take_along_axis(values_pc, top_pk, axis=1), 0),
    )


def largest(values_pv: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return where the k largest values of each row are, in no order."""
    words_pc = _candidates(values_pv, k)
    top_pk = _partition(np.take_along_axis(values_pv, words_pc, axis=1), k)
    return np.take_along_axis(words_pc, top_pk, axis=1)


def _candidates(values_pv: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return words of each row that include its k largest.

    The k largest values lie within the k groups of the largest maxima. Taking the maxima is one
    cheap pass, and only those groups are left to sort. Groups are strided, so that the pass runs
    along memory.
    """
    n_rows, n_words = values_pv.shape
    size = max(1, int(np.sqrt(n_words / k)))
    n_groups = n_words // size
    if n_groups <= k:
        return np.broadcast_to(np.arange(n_words), (n_rows, n_words))
    grouped_psg = values_pv[:, : size * n_groups].reshape(n_rows, size, n_groups)
    best_pk = _partition(grouped_psg.max(axis=1), k)
    members_pc = (best_pk[:, :, None] + np.arange(size) * n_groups).reshape(n_rows, -1)
    rest = np.arange(size * n_groups, n_words)
    return np.concatenate([members_pc, np.broadcast_to(rest, (n_rows, len(rest)))], axis=1)


def _partition(values: NDArray[np.float32], k: int) -> NDArray[np.intp]:
    """Return where the k largest of each row are, in no order."""
    return np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]
