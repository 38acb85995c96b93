"""Bags follow the paper: sum over patches, top k_post words, round(100 · v) as uint16."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bm25v.sae.model import Codes
from bm25v.vocabulary.bag import dequantise, pool_codes, quantise, word_activations


@given(
    seed=st.integers(0, 2**32 - 1),
    patches=st.integers(1, 30),
    k=st.integers(1, 8),
    k_post=st.integers(1, 20),
    scale=st.sampled_from([0.001, 1.0, 400.0]),
)
def test_a_bag_equals_that_of_a_plain_loop(
    seed: int, patches: int, k: int, k_post: int, scale: float
) -> None:
    rng = np.random.default_rng(seed)
    words_pk = rng.integers(0, 40, (patches, k)).astype(np.int32)
    activations_pk = (np.maximum(rng.standard_normal((patches, k)), 0) * scale).astype(np.float32)
    sums: dict[int, float] = {}
    for word, value in zip(words_pk.ravel().tolist(), activations_pk.ravel().tolist(), strict=True):
        sums[word] = sums.get(word, 0.0) + value
    top = sorted(((v, -w) for w, v in sums.items() if v > 0), reverse=True)[:k_post]
    expected = {-w: min(round(100 * v), 65535) for v, w in top}
    expected = {word: tf for word, tf in sorted(expected.items()) if tf > 0}
    bag = pool_codes(Codes(words_pk, activations_pk), k_post=k_post)
    assert dict(zip(bag.words.tolist(), bag.tf.tolist(), strict=True)) == expected
    assert bag.words.tolist() == sorted(bag.words.tolist())


@given(st.lists(st.floats(0, 655.35), min_size=1))
def test_quantisation_changes_a_value_by_half_a_step_at_most(values: list[float]) -> None:
    restored = dequantise(quantise(np.array(values)))
    np.testing.assert_allclose(restored, values, atol=0.005 + 1e-9)


def test_the_activations_of_a_word_over_all_patches_sum_to_its_tf() -> None:
    rng = np.random.default_rng(3)
    words_pk = np.array([rng.permutation(12)[:4] for _ in range(49)])
    codes = Codes(words_pk.astype(np.int32), rng.random((49, 4)).astype(np.float32))
    bag = pool_codes(codes, k_post=5)
    for word, frequency in zip(bag.words.tolist(), bag.frequencies.tolist(), strict=True):
        activations_p = word_activations(codes, word)
        assert activations_p.shape == (49,)
        assert abs(float(activations_p.sum()) - frequency) < 0.01
        assert ((activations_p > 0) == (words_pk == word).any(axis=1)).all()


def test_an_image_without_active_words_has_an_empty_bag() -> None:
    bag = pool_codes(Codes(np.zeros((4, 2), np.int32), np.zeros((4, 2), np.float32)), k_post=16)
    assert len(bag.words) == len(bag.tf) == 0
