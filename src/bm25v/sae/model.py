"""The TopK sparse auto-encoder: patch features → codes, and back."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.sae.product import multiply_add

BLOCK_VALUES = 16_000_000  # estimates held at once: 64 MB of float32
GATHERED_VALUES = 500_000  # weights copied at once: 2 MB, which stay in the cache

Floats = NDArray[np.float32]


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

    w_enc_dv: Floats
    b_enc_v: Floats
    w_dec_vd: Floats
    b_dec_d: Floats
    k: int

    @classmethod
    def from_arrays(cls, arrays: Iterable[Floats], k: int) -> "SparseAutoEncoder":
        """Return the auto-encoder of `W_enc`, `b_enc`, `W_dec` and `b_dec`, as files have them."""
        w_enc_dv, b_enc_v, w_dec_vd, b_dec_d = arrays
        return cls(w_enc_dv, b_enc_v, w_dec_vd, b_dec_d, k)

    @property
    def n_words(self) -> int:
        """V, the number of visual words."""
        return int(self.w_enc_dv.shape[1])

    @property
    def patch_dim(self) -> int:
        """D, the width of the patch features it takes."""
        return int(self.w_enc_dv.shape[0])

    @property
    def arrays(self) -> tuple[Floats, Floats, Floats, Floats]:
        """The weights as `from_arrays` takes them."""
        return self.w_enc_dv, self.b_enc_v, self.w_dec_vd, self.b_dec_d

    def encode(self, patches_pd: Floats) -> Codes:
        """Return each patch's k most active words, strongest first, ties to the lower word.

        A patch has the same codes, to the last bit, whatever other patches are encoded with it.
        The last bits of a matrix product depend on the number of its rows, so the product only
        finds the candidates: a word is left out if its error bound proves that it is not among
        the k most active. The activation of each candidate is one dot product of its own.
        """
        patches_pd = np.ascontiguousarray(patches_pd, dtype=np.float32)
        shape = (len(patches_pd), min(self.k, self.n_words))
        codes = Codes(np.empty(shape, np.int32), np.empty(shape, np.float32))
        rows = max(1, BLOCK_VALUES // self.n_words)
        for start in range(0, len(patches_pd), rows):
            block = slice(start, start + rows)
            codes.words_pk[block], codes.activations_pk[block] = self._encode(patches_pd[block])
        return codes

    def _encode(self, patches_pd: Floats) -> Codes:
        k = min(self.k, self.n_words)
        patch_n, word_n = self._candidates(patches_pd, k)
        value_n = self._activations(patches_pd, patch_n, word_n)
        order = np.lexsort((word_n, -value_n, patch_n))
        first_p = np.searchsorted(patch_n, np.arange(len(patches_pd)))
        top_pk = order[first_p[:, None] + np.arange(k)]
        return Codes(word_n[top_pk].astype(np.int32), np.maximum(value_n[top_pk], 0))

    def _candidates(self, patches_pd: Floats, k: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return pairs (patch, word), sorted by patch, that include every patch's k most active.

        Words are in at least k groups. The k-th largest of the groups' maxima is at most the k-th
        largest of all values, and finding it is cheap. Groups are strided, so that the pass for
        the maxima runs along memory.
        """
        n_patches = len(patches_pd)
        size = max(1, int(np.sqrt(self.n_words / k)))
        n_groups = -(-self.n_words // size)
        values_pc = np.empty((n_patches, size * n_groups), np.float32)
        values_pc[:, self.n_words :] = -np.inf  # the last group may have too few words
        values_pv = values_pc[:, : self.n_words]
        multiply_add(patches_pd, self.w_enc_dv, self.b_enc_v, out=values_pv)
        values_psg = values_pc.reshape(n_patches, size, n_groups)
        best_pg = values_psg.max(axis=1)
        kth_p = np.partition(best_pg, n_groups - k, axis=1)[:, n_groups - k]
        least_p = kth_p - self._error(patches_pd, kth_p)
        # Not `>=`: a value that is NaN rules nothing out.
        patch_m, group_m = np.nonzero(~(best_pg < least_p[:, None]))
        values_ms = values_psg[patch_m, :, group_m]
        at_n, member_n = np.nonzero(~(values_ms < least_p[patch_m][:, None]))
        patch_n, word_n = patch_m[at_n], member_n * n_groups + group_m[at_n]
        is_word_n = word_n < self.n_words
        return patch_n[is_word_n], word_n[is_word_n]

    def _error(self, patches_pd: Floats, kth_p: Floats) -> Floats:
        """Return by how much the estimate of one of the k most active words may be below `kth_p`.

        In float32 a sum of D products is off by at most about D/2²⁴ ‖z‖ ‖w‖, in whatever order it
        is computed. The estimate and the activation are two such sums, for the word and for the
        k-th one. Adding the bias rounds once more, relative to the result.
        """
        rounding = np.float32(4 * (self.patch_dim + 16) * 2.0**-24)
        norm_p = np.linalg.norm(patches_pd, axis=1)
        error_p: Floats = rounding * (self._largest_norm * norm_p + np.abs(kth_p))
        return error_p + np.finfo(np.float32).tiny

    @cached_property
    def _largest_norm(self) -> np.float32:
        squares_v = np.einsum("dv,dv->v", self.w_enc_dv, self.w_enc_dv)
        return np.float32(np.sqrt(squares_v.max()))

    def _activations(
        self, patches_pd: Floats, patch_n: NDArray[np.intp], word_n: NDArray[np.intp]
    ) -> Floats:
        """Return the activation of each pair of a patch and a word, before the ReLU."""
        if len(word_n) < self.n_words // 4:  # to transpose all weights would take longer
            distinct, at_n = np.unique(word_n, return_inverse=True)
            columns_vd = np.ascontiguousarray(self.w_enc_dv[:, distinct].T)
        else:
            columns_vd, at_n = self._columns_vd, word_n
        value_n = np.empty(len(word_n), np.float32)
        step = max(1, GATHERED_VALUES // self.patch_dim)
        for start in range(0, len(word_n), step):
            part = slice(start, start + step)
            # Each dot product of contiguous vectors is computed by itself.
            np.vecdot(columns_vd[at_n[part]], patches_pd[patch_n[part]], out=value_n[part])
        return value_n + self.b_enc_v[word_n]

    @cached_property
    def _columns_vd(self) -> Floats:
        return np.ascontiguousarray(self.w_enc_dv.T)

    def decode(self, codes: Codes) -> Floats:
        """Return the patch features that the codes stand for."""
        weighted_pkd = self.w_dec_vd[codes.words_pk] * codes.activations_pk[..., None]
        return np.asarray(weighted_pkd.sum(axis=1) + self.b_dec_d, dtype=np.float32)
