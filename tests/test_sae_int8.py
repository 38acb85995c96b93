"""The int8 encoder finds the words that the plain one finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.sae import int8
from bm25v.sae.int8 import Int8Encoder
from bm25v.sae.model import Codes, SparseAutoEncoder
from bm25v.vocabulary import Vocabulary

Floats = NDArray[np.float32]


def planted(
    rng: np.random.Generator, n: int, dim: int, words: int
) -> tuple[SparseAutoEncoder, Floats]:
    """Return an SAE and patches that are sums of a few of its words, small ones and large ones."""
    atoms_vd = rng.standard_normal((words, dim)).astype(np.float32)
    atoms_vd /= np.linalg.norm(atoms_vd, axis=1, keepdims=True)
    bias_v, mean_d = (0.1 * rng.standard_normal(size) for size in (words, dim))
    sae = SparseAutoEncoder(
        np.ascontiguousarray(atoms_vd.T),
        bias_v.astype(np.float32),
        atoms_vd,
        mean_d.astype(np.float32),
        k=8,
    )
    mixed_nd = atoms_vd[rng.integers(0, words, (n, 6))].sum(axis=1)
    noise_nd = 0.3 * rng.standard_normal((n, dim)) / np.sqrt(dim)
    sizes_n1 = rng.lognormal(sigma=1.5, size=(n, 1))
    return sae, ((mixed_nd + noise_nd) * sizes_n1 + mean_d).astype(np.float32)


def assert_same_codes(found: Codes, expected: Codes) -> None:
    """Allow words to trade places only where floats cannot tell them apart."""
    np.testing.assert_allclose(found.activations_pk, expected.activations_pk, rtol=1e-4, atol=1e-5)
    pairs = (found.words_pk, expected.words_pk)
    agreement = np.mean([np.isin(*rows).mean() for rows in zip(*pairs, strict=True)])
    assert agreement > 0.9995


def test_finds_the_plain_encoders_words() -> None:
    sae, patches_pd = planted(np.random.default_rng(0), n=1000, dim=96, words=1536)
    assert_same_codes(Int8Encoder(sae).encode(patches_pd), sae.encode(patches_pd))


@settings(deadline=None, max_examples=30)
@given(
    patches=st.integers(1, 40),
    dim=st.integers(1, 9),
    words=st.integers(1, 300),
    k=st.integers(1, 20),
    offset=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_random_weights(
    patches: int, dim: int, words: int, k: int, offset: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    w_enc_dv, b_enc_v, w_dec_vd = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((dim, words), words, (words, dim))
    )
    sae = SparseAutoEncoder(w_enc_dv, b_enc_v, w_dec_vd, np.full(dim, offset, np.float32), k)
    patches_pd = rng.standard_normal((patches, dim)).astype(np.float32)
    found, expected = Int8Encoder(sae).encode(patches_pd), sae.encode(patches_pd)
    np.testing.assert_allclose(found.activations_pk, expected.activations_pk, rtol=1e-4, atol=1e-4)


def test_doubtful_patches_go_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one bit for a weight the rough values say little: all that is left is the plain way."""
    monkeypatch.setattr(int8, "_LARGEST", 1)
    sae, patches_pd = planted(np.random.default_rng(1), n=300, dim=48, words=768)
    assert_same_codes(Int8Encoder(sae).encode(patches_pd), sae.encode(patches_pd))


def test_words_without_weights_and_patches_of_zeros() -> None:
    sae, patches_pd = planted(np.random.default_rng(2), n=40, dim=24, words=512)
    sae.w_enc_dv[:, ::3] = 0
    patches_pd[:7] = 0
    patches_pd[7:9] = sae.b_dec_d
    assert_same_codes(Int8Encoder(sae).encode(patches_pd), sae.encode(patches_pd))


def test_no_patches_give_no_codes() -> None:
    sae, patches_pd = planted(np.random.default_rng(3), n=1, dim=24, words=512)
    assert Int8Encoder(sae).encode(patches_pd[:0]).words_pk.shape == (0, 8)


def test_the_default_vocabulary_gives_the_same_codes() -> None:
    sae = Vocabulary.load("default").sae
    rng = np.random.default_rng(4)
    words_nk = rng.integers(0, sae.n_words, (800, 16))
    patches_pd = (sae.w_dec_vd[words_nk] * rng.exponential(size=(800, 16, 1))).sum(axis=1)
    patches_pd = (patches_pd + sae.b_dec_d).astype(np.float32)
    assert_same_codes(Int8Encoder(sae).encode(patches_pd), sae.encode(patches_pd))
