"""Cosines are those of the plain formula, and the same bits whether compiled or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bm25v.index.searcher import top_positions
from bm25v.search import ranking


def exact_cosines(dense: list[list[float]], query: list[float]) -> list[float]:
    rows_ne = np.array(dense, dtype=np.float16).astype(np.float64)
    query_e = np.array(query, dtype=np.float32).astype(np.float64)
    lengths = np.linalg.norm(rows_ne, axis=1) * np.linalg.norm(query_e)
    return [float(value) for value in rows_ne @ query_e / np.maximum(lengths, 1e-12)]


halves = st.floats(-1000, 1000, width=16) | st.sampled_from([0.0, -0.0, 6e-8, -3e-5, 65504.0])


@pytest.mark.parametrize("compiled", [False, True])
@given(
    st.integers(1, 40).flatmap(
        lambda d: st.lists(st.lists(halves, min_size=d, max_size=d), min_size=2, max_size=6)
    )
)
def test_cosines_equal_the_plain_formula(compiled: bool, dense: list[list[float]]) -> None:
    query, rows = dense[0], np.arange(len(dense) - 1)
    if not 1e-3 < np.linalg.norm(query) < 1e6:
        return
    stored = np.array(dense[1:], dtype=np.float16)
    cosines = ranking.cosines(stored, np.array(query, np.float32), rows, compiled=compiled)
    long_enough = np.linalg.norm(stored.astype(np.float64), axis=1) > 1e-6
    expected = np.array(exact_cosines(dense[1:], query))
    np.testing.assert_allclose(cosines[long_enough], expected[long_enough], atol=1e-5)


# Any bits: zeros of both signs, subnormal and largest numbers, infinity and NaN.
any_halves = st.integers(0, 150).flatmap(
    lambda width: arrays.arrays(np.uint16, st.tuples(st.integers(1, 4), st.just(width)))
)


@given(bits_ne=any_halves, seed=st.integers(0, 99), spread=st.sampled_from([0.0, 1.0, 30.0]))
def test_compiled_cosines_are_the_same_bits(
    bits_ne: NDArray[np.uint16], seed: int, spread: float
) -> None:
    rng = np.random.default_rng(seed)
    signs_e = rng.choice([-1, 1], bits_ne.shape[1])
    query_e = (signs_e * np.exp(-spread * rng.random(bits_ne.shape[1]))).astype(np.float32)
    assert_same_bits(bits_ne.view(np.float16), query_e)


@pytest.mark.parametrize("width", [1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 384, 767, 768, 1152, 1536])
def test_compiled_cosines_of_real_widths_are_the_same_bits(width: int) -> None:
    rng = np.random.default_rng(width)
    dense_ne = rng.standard_normal((600, width)).astype(np.float16)
    dense_ne[5], dense_ne[6, ::2] = 0, 6e-8
    assert_same_bits(dense_ne, rng.standard_normal(width).astype(np.float32))
    assert_same_bits(dense_ne, np.zeros(width, dtype=np.float32))


def assert_same_bits(dense_ne: NDArray[np.float16], query_e: NDArray[np.float32]) -> None:
    rows = np.arange(len(dense_ne))[::-1]
    plain = ranking.cosines(dense_ne, query_e, rows)
    compiled = ranking.cosines(dense_ne, query_e, rows, compiled=True)
    is_number = np.isfinite(dense_ne[rows]).all(axis=1)
    assert plain[is_number].tobytes() == compiled[is_number].tobytes()
    assert np.isnan(plain[~is_number]).all() and np.isnan(compiled[~is_number]).all()


@pytest.mark.parametrize("compiled", [False, True])
def test_cosines_are_never_above_1(compiled: bool) -> None:
    """Rounding would show the cosine of an image with itself as 1.000000238."""
    rng = np.random.default_rng(0)
    dense_ne = rng.standard_normal((300, 1152)).astype(np.float16)
    dense_ne[150:] = -dense_ne[:150]
    for row in range(150):
        rows = np.array([row, 150 + row])
        same, opposite = ranking.cosines(
            dense_ne, dense_ne[row].astype(np.float32), rows, compiled=compiled
        ).tolist()
        assert 1 - 1e-6 < same <= 1
        assert -1 <= opposite < -1 + 1e-6


@pytest.mark.parametrize("compiled", [False, True])
def test_equal_vectors_get_equal_scores_in_any_row(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    dense_ne = rng.standard_normal((300, 1152)).astype(np.float16)
    dense_ne[[7, 130, 299]] = dense_ne[50]
    rows = rng.permutation(300)
    cosines = ranking.cosines(dense_ne, dense_ne[3].astype(np.float32), rows, compiled=compiled)
    assert len(set(cosines[np.isin(rows, [7, 50, 130, 299])].tolist())) == 1


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), max_size=60), st.integers(1, 70))
def test_the_best_come_first_and_ties_go_to_the_lower_row(scores: list[float], k: int) -> None:
    rows = np.random.default_rng(len(scores)).permutation(len(scores)) * 3
    best = top_positions(rows, np.array(scores, dtype=float), k)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], rows[i]))[:k]
    assert best.tolist() == expected
