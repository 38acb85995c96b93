"""Dense scores are those of the plain formula, compiled or not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v.index.searcher import top_positions
from bm25v.search import ranking


def plain(dense: list[list[float]], query: list[float]) -> list[float]:
    rows = np.array(dense, dtype=np.float16).astype(np.float64)
    wish = np.array(query, dtype=np.float32).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(wish)
    return [float(value) for value in rows @ wish / np.maximum(lengths, 1e-12)]


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
    found = ranking.cosines(stored, np.array(query, np.float32), rows, compiled=compiled)
    long_enough = np.linalg.norm(stored.astype(np.float64), axis=1) > 1e-6
    expected = np.array(plain(dense[1:], query))
    np.testing.assert_allclose(found[long_enough], expected[long_enough], atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_equal_vectors_get_equal_scores_wherever_they_stand(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    dense = rng.standard_normal((300, 1152)).astype(np.float16)
    dense[[7, 130, 299]] = dense[50]
    rows = rng.permutation(300)
    scores = ranking.cosines(dense, dense[3].astype(np.float32), rows, compiled=compiled)
    places = [int(np.flatnonzero(rows == row)[0]) for row in (7, 50, 130, 299)]
    assert len(set(scores[places].tolist())) == 1


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), max_size=60), st.integers(1, 70))
def test_the_best_come_first_and_ties_to_the_lower_row(scores: list[float], k: int) -> None:
    rows = np.random.default_rng(len(scores)).permutation(len(scores)) * 3
    best = top_positions(rows, np.array(scores, dtype=float), k)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], rows[i]))[:k]
    assert best.tolist() == expected
