"""Cosines and scores are those of the plain formulas, the same bits whether compiled or not."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from bm25v.index import second_stage
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords, reference_scores
from bm25v.index.searcher import top_positions
from bm25v.store.bags import RowArray, write_full_bag
from bm25v.vocabulary.bag import LEVELS, Bag, word_bytes
from tests.children import run_python
from tests.conftest import expand_bag


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
    cosines = second_stage.cosines(stored, np.array(query, np.float32), rows, compiled=compiled)
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


@pytest.mark.parametrize("compiled", [False, True])
def test_a_shorter_query_is_compared_with_the_first_values_of_rows(compiled: bool) -> None:
    rng = np.random.default_rng(1)
    dense_ne = rng.standard_normal((300, 704)).astype(np.float16)
    query_e, rows = rng.standard_normal(320).astype(np.float32), np.arange(300)
    first_ne = np.ascontiguousarray(dense_ne[:, :320])
    expected = second_stage.cosines(first_ne, query_e, rows)
    cosines = second_stage.cosines(dense_ne, query_e, rows, compiled=compiled)
    assert cosines.tobytes() == expected.tobytes()


def assert_same_bits(dense_ne: NDArray[np.float16], query_e: NDArray[np.float32]) -> None:
    rows = np.arange(len(dense_ne))[::-1]
    plain = second_stage.cosines(dense_ne, query_e, rows)
    compiled = second_stage.cosines(dense_ne, query_e, rows, compiled=True)
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
        same, opposite = second_stage.cosines(
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
    cosines = second_stage.cosines(
        dense_ne, dense_ne[3].astype(np.float32), rows, compiled=compiled
    )
    assert len(set(cosines[np.isin(rows, [7, 50, 130, 299])].tolist())) == 1


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, -2.0]), max_size=60), st.integers(1, 70))
def test_the_best_come_first_and_ties_go_to_the_lower_row(scores: list[float], k: int) -> None:
    rows = np.random.default_rng(len(scores)).permutation(len(scores)) * 3
    best = top_positions(rows, np.array(scores, dtype=float), k)
    expected = sorted(range(len(scores)), key=lambda i: (-scores[i], rows[i]))[:k]
    assert best.tolist() == expected


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "planted",
    [
        [],
        [0.5, 0.5],
        [0.0, -0.0, 0.0],
        [np.nan],
        [np.nan, np.nan],
        [np.inf, -np.inf],
        [-np.inf] * 2,
    ],
    ids=str,
)
@pytest.mark.parametrize("k", [20, 150, 300])
def test_many_scores_are_ordered_as_few_are(k: int, planted: list[float], dtype: type) -> None:
    """Many are sorted by score alone, unless there are ties; NaN comes last, by row."""
    rng = np.random.default_rng(k)
    scores: NDArray[np.floating] = np.array([*(rng.permutation(200) - 99.5), *planted], dtype)
    rows = rng.permutation(len(scores)) * 3
    kept = np.flatnonzero(~np.isnan(scores)) if k == 20 else np.arange(len(scores))
    rows, scores = rows[kept], scores[kept]
    expected = sorted(
        range(len(scores)),
        key=lambda i: (bool(np.isnan(scores[i])), -np.nan_to_num(scores[i], nan=0.0), rows[i]),
    )
    assert top_positions(rows, scores, k).tolist() == expected[:k]


def make_full_bags(bags: list[Bag], n_words: int) -> tuple[RowArray, Statistics]:
    """Return stored full bags, whose levels stand for the tf of the bags, and their statistics."""
    word = f"<u{word_bytes(n_words)}"
    layout = [("words", word, (8,)), ("levels", "u1", (8,)), ("patches", "u1", (8,))]
    rows = np.zeros(len(bags), dtype=layout)
    for row, bag in zip(rows, bags, strict=True):
        write_full_bag(row, expand_bag(bag))
    words_nk, tf_nk = rows["words"], LEVELS[rows["levels"]]
    return rows, Statistics.count(words_nk, tf_nk, n_words)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("n_words", [12, 300, 1 << 16, (1 << 16) + 1])
@given(seed=st.integers(0, 999))
@settings(max_examples=15)
def test_scores_of_full_bags_are_those_of_the_reference(
    n_words: int, compiled: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    known = rng.choice(n_words, 10, replace=False)
    known[0] = n_words - 1
    known = np.unique(known)
    bags = []
    for _ in range(200):  # more than numpy scores at once
        words = np.sort(rng.choice(known, rng.integers(0, 8), replace=False)).astype(np.int32)
        bags.append(Bag(words, LEVELS[rng.integers(1, 256, len(words))]))
    words = np.sort(rng.choice(known, 6, replace=False)).astype(np.int32)
    query = WeightedWords(words, rng.normal(size=6), np.ones(6))
    parameters = Bm25Parameters(k1=float(rng.choice([0.0, 1.5])), b=0.4)
    (full_bags, statistics), rows = make_full_bags(bags, n_words), rng.permutation(200)[:150]
    formula = (query, statistics, parameters)
    scores = second_stage.score_full_bags(full_bags, rows, *formula, compiled=compiled)
    expected = [score or 0.0 for score in reference_scores(bags, query, parameters)]
    assert scores.tolist() == [expected[row] for row in rows.tolist()]
    presence = (query, statistics, second_stage.PRESENCE)
    shared_masses = second_stage.score_full_bags(full_bags, rows, *presence, compiled=compiled)
    masses = statistics.idf_masses(query)
    shared = [float(masses[np.isin(words, bags[row].words)].sum()) for row in rows.tolist()]
    np.testing.assert_allclose(shared_masses, shared, rtol=1e-12, atol=1e-12)


@given(seed=st.integers(0, 999))
@settings(max_examples=15)
def test_scores_of_index_bags_are_those_of_the_reference(seed: int) -> None:
    rng = np.random.default_rng(seed)
    words_nk = np.sort(
        rng.permuted(np.tile(np.arange(12, dtype=np.uint16), (60, 1)), axis=1)[:, :6]
    )
    tf_nk = rng.integers(1, 1 << 16, (60, 6)).astype(np.uint16)
    tf_nk[::3, 4:] = 0
    bags = [Bag(words[tf > 0], tf[tf > 0]) for words, tf in zip(words_nk, tf_nk, strict=True)]
    query = WeightedWords(np.arange(2, 9, dtype=np.int32), rng.normal(size=7), np.ones(7))
    statistics, parameters = Statistics.count(words_nk, tf_nk, 12), Bm25Parameters()
    scores = second_stage.score_bags(words_nk, tf_nk, query, statistics, parameters)
    assert scores.tolist() == [score or 0.0 for score in reference_scores(bags, query)]


@given(
    content=arrays.arrays(np.uint8, st.tuples(st.integers(1, 5), st.just(32))),
    seed=st.integers(0, 99),
)
def test_compiled_scores_of_damaged_full_bags_are_the_same_bits(
    content: NDArray[np.uint8], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    bag = Bag(np.array([3, 9], np.int32), np.array([5, 900], np.uint16))
    intact, statistics = make_full_bags([bag], 300)
    damaged = content.view(intact.dtype)[:, 0]
    query = WeightedWords(np.arange(300, dtype=np.int32), rng.normal(size=300), np.ones(300))
    rows = np.arange(len(content))
    for parameters in (Bm25Parameters(), second_stage.PRESENCE):
        plain, compiled = (
            second_stage.score_full_bags(
                damaged, rows, query, statistics, parameters, compiled=is_compiled
            )
            for is_compiled in (False, True)
        )
        assert plain.tobytes() == compiled.tobytes()


def test_cosines_are_the_same_bits_for_a_processor_that_cannot_read_halves() -> None:
    script = """
import os
os.environ["NUMBA_CPU_NAME"] = "generic"
import numpy as np
from bm25v.index import second_stage
rng = np.random.default_rng(0)
dense_ne, rows = rng.normal(size=(50, 70)).astype(np.float16), np.arange(50)
query_e = rng.normal(size=70).astype(np.float32)
plain, compiled = (
    second_stage.cosines(dense_ne, query_e, rows, compiled=compiled) for compiled in (False, True)
)
assert plain.any() and plain.tobytes() == compiled.tobytes()
"""
    run_python(script)
