"""The fast encoder equals the plain formula."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.sae import model
from bm25v.sae.model import SparseAutoEncoder


def random_sae(rng: np.random.Generator, dim: int, words: int, k: int) -> SparseAutoEncoder:
    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    return SparseAutoEncoder(normal(dim, words), normal(words), normal(words, dim), normal(dim), k)


def dense_codes(sae: SparseAutoEncoder, patches_pd: NDArray[np.float32]) -> NDArray[np.float32]:
    """topk(relu(z W + b), k), as it is written."""
    active_pv: NDArray[np.float32] = np.maximum(patches_pd @ sae.w_enc_dv + sae.b_enc_v, 0)
    for row in active_pv:
        row[np.argsort(-row, kind="stable")[sae.k :]] = 0
    return active_pv


@given(
    patches=st.integers(1, 20),
    dim=st.integers(1, 9),
    words=st.integers(1, 300),
    k=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_encode_equals_the_plain_formula(
    patches: int, dim: int, words: int, k: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    sae = random_sae(rng, dim, words, k)
    patches_pd = rng.standard_normal((patches, dim)).astype(np.float32)
    codes = sae.encode(patches_pd)
    found_pv = np.zeros((patches, words), dtype=np.float32)
    np.add.at(found_pv, (np.arange(patches)[:, None], codes.words_pk), codes.activations_pk)
    np.testing.assert_allclose(found_pv, dense_codes(sae, patches_pd), rtol=1e-6, atol=1e-6)
    assert (np.diff(codes.activations_pk, axis=1) <= 0).all()


def test_blocks_give_what_one_product_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    sae = random_sae(rng, 8, 64, 4)
    patches_pd = rng.standard_normal((50, 8)).astype(np.float32)
    whole = sae.encode(patches_pd)
    monkeypatch.setattr(model, "_BLOCK_VALUES", 64 * 7)
    blocks = sae.encode(patches_pd)
    np.testing.assert_array_equal(whole.words_pk, blocks.words_pk)
    np.testing.assert_allclose(whole.activations_pk, blocks.activations_pk, rtol=1e-6)


def test_fewer_positive_words_than_k_leave_empty_slots() -> None:
    eye = np.eye(4, dtype=np.float32)
    sae = SparseAutoEncoder(eye, np.zeros(4, np.float32), eye, np.zeros(4, np.float32), k=3)
    codes = sae.encode(np.array([[-1, 2, -3, -4]], dtype=np.float32))
    assert codes.words_pk[0, 0] == 1
    assert codes.activations_pk.tolist() == [[2, 0, 0]]


def test_decode_is_the_weighted_sum_of_decoder_rows() -> None:
    rng = np.random.default_rng(2)
    sae = random_sae(rng, 6, 40, 5)
    patches_pd = rng.standard_normal((3, 6)).astype(np.float32)
    expected_pd = dense_codes(sae, patches_pd) @ sae.w_dec_vd + sae.b_dec_d
    np.testing.assert_allclose(sae.decode(sae.encode(patches_pd)), expected_pd, rtol=1e-4)
