"""The encoder equals the plain formula, and treats each patch by itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.sae import model
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.vocabulary import Vocabulary


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


def assert_same_bits(codes: Codes, expected: Codes) -> None:
    np.testing.assert_array_equal(codes.words_pk, expected.words_pk)
    assert codes.activations_pk.tobytes() == expected.activations_pk.tobytes()


def exact_codes(sae: SparseAutoEncoder, patches_pd: NDArray[np.float32]) -> Codes:
    """Score every word at every patch by one dot product, and sort."""
    columns_vd = np.ascontiguousarray(sae.w_enc_dv.T)
    values_pv = np.vecdot(columns_vd[None], patches_pd[:, None]) + sae.b_enc_v
    words_pk = np.argsort(-values_pv, axis=1, kind="stable")[:, : sae.k].astype(np.int32)
    return Codes(words_pk, np.maximum(np.take_along_axis(values_pv, words_pk, axis=1), 0))


def default_patches(n: int) -> tuple[SparseAutoEncoder, NDArray[np.float32]]:
    """Return the shipped auto-encoder, and patches that are sums of some of its words."""
    sae = Vocabulary.load().sae
    rng = np.random.default_rng(4)
    words_nk = rng.integers(0, sae.n_words, (n, 16))
    patches_nd = (sae.w_dec_vd[words_nk] * rng.exponential(size=(n, 16, 1))).sum(axis=1)
    return sae, (patches_nd + sae.b_dec_d).astype(np.float32)


@given(
    patches=st.integers(1, 20),
    dim=st.integers(1, 40),
    words=st.integers(1, 300),
    k=st.integers(1, 20),
    decimals=st.sampled_from([0, 1, 8]),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_word_of_the_k_most_active_is_missed(
    patches: int, dim: int, words: int, k: int, decimals: int, scale: float, seed: int
) -> None:
    """Rounded weights make many words equally active, or nearly so."""
    rng = np.random.default_rng(seed)
    sae = random_sae(rng, dim, words, min(k, words))
    for weights in (sae.w_enc_dv, sae.b_enc_v):
        np.round(weights, decimals, out=weights)
    patches_pd = np.round(rng.standard_normal((patches, dim)), decimals).astype(np.float32)
    patches_pd *= np.float32(scale)
    assert_same_bits(sae.encode(patches_pd), exact_codes(sae, patches_pd))


def test_the_default_vocabulary_is_encoded_exactly() -> None:
    sae, patches_pd = default_patches(100)
    assert_same_bits(sae.encode(patches_pd), exact_codes(sae, patches_pd))


@pytest.mark.parametrize("size", [1, 3, 64])
def test_codes_do_not_depend_on_the_batch(size: int) -> None:
    sae, patches_pd = default_patches(200)
    together = sae.encode(patches_pd)
    shuffled = np.random.default_rng(size).permutation(len(patches_pd))
    for start in range(0, len(shuffled), size):
        rows = shuffled[start : start + size]
        alone = sae.encode(patches_pd[rows])
        assert_same_bits(alone, Codes(together.words_pk[rows], together.activations_pk[rows]))


def test_blocks_give_what_one_product_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    sae, patches_pd = default_patches(50)
    whole = sae.encode(patches_pd)
    monkeypatch.setattr(model, "BLOCK_VALUES", 7 * sae.n_words)
    monkeypatch.setattr(model, "GATHERED_VALUES", 11 * sae.patch_dim)
    assert_same_bits(sae.encode(patches_pd), whole)


def test_patches_of_zeros_and_words_without_weights() -> None:
    rng = np.random.default_rng(2)
    sae = random_sae(rng, 24, 512, 8)
    sae.w_enc_dv[:, ::3] = 0
    sae.b_enc_v[1::2] = 0
    patches_pd = rng.standard_normal((9, 24)).astype(np.float32)
    patches_pd[:4] = 0
    assert_same_bits(sae.encode(patches_pd), exact_codes(sae, patches_pd))
    assert sae.encode(patches_pd[:0]).words_pk.shape == (0, 8)


def test_a_patch_that_is_not_finite_spoils_no_other() -> None:
    sae, patches_pd = default_patches(5)
    expected = sae.encode(patches_pd)
    patches_pd[2, 7] = np.nan
    codes = sae.encode(patches_pd)
    others = [0, 1, 3, 4]
    assert_same_bits(
        *(Codes(c.words_pk[others], c.activations_pk[others]) for c in (codes, expected))
    )


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
