"""Every path to a score returns what the plain formula returns, to the last bit."""

from typing import Any

import bm25s
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.errors import InvalidOption
from bm25v.index import block
from bm25v.index import searcher as searchers
from bm25v.index.bm25 import (
    Bm25Parameters,
    Statistics,
    WeightedWords,
    contributions,
    reference_scores,
    reference_search,
)
from bm25v.index.searcher import Ranked, Searcher
from bm25v.vocabulary.bag import Bag

N_WORDS = 24
K_POST = 6

Matrix = NDArray[np.uint16]


def to_bag(words: dict[int, int]) -> Bag:
    pairs = sorted(words.items())
    return Bag(
        np.array([w for w, _ in pairs], np.int32), np.array([t for _, t in pairs], np.uint16)
    )


def to_rows(bags: list[Bag]) -> tuple[Matrix, Matrix]:
    words_nk = np.zeros((len(bags), K_POST), np.uint16)
    tf_nk = np.zeros((len(bags), K_POST), np.uint16)
    for i, bag in enumerate(bags):
        words_nk[i, : len(bag.words)] = bag.words
        tf_nk[i, : len(bag.tf)] = bag.tf
    return words_nk, tf_nk


# Few distinct values make ties, which is where orders go wrong.
bag_strategy = st.dictionaries(
    st.integers(0, N_WORDS - 1), st.sampled_from([1, 100, 250, 65535]), max_size=K_POST
).map(to_bag)
weights_strategy = st.dictionaries(
    st.integers(0, N_WORDS + 5), st.sampled_from([1.0, 1.0, 1.0, 0.0, -1.0, 2.5]), max_size=8
)


# k1 = 0 ignores tf, b = 0 ignores lengths; a large k1 makes every impact of the index the smallest.
parameters_strategy = st.builds(
    Bm25Parameters,
    k1=st.sampled_from([0, 0.0, 1.5, 2, 1e6]) | st.floats(0, 20),
    b=st.sampled_from([0, 0.75, 1]) | st.floats(0, 1),
)
SOME_PARAMETERS = [
    Bm25Parameters(k1, b)
    for k1, b in [(1.5, 0.75), (0, 0.5), (0.02, 1), (1.2, 0), (2, 1), (1e6, 1), (0, 0), (30, 0.4)]
]


def to_query(weights: dict[int, float]) -> WeightedWords:
    words = np.array(sorted(weights), dtype=np.int32)
    return WeightedWords(
        words, np.array([weights[w] for w in sorted(weights)]), np.ones(len(words))
    )


def assert_ranked(ranked: Ranked, expected: list[tuple[int, float]]) -> None:
    assert list(zip(ranked.rows.tolist(), ranked.scores.tolist(), strict=True)) == expected


@pytest.mark.parametrize("built", [False, True], ids=["scanned", "indexed"])
@given(
    bags=st.lists(bag_strategy, max_size=30),
    weights=weights_strategy,
    k=st.integers(1, 40),
    parameters=parameters_strategy,
)
def test_search_equals_the_reference(
    built: bool, bags: list[Bag], weights: dict[int, float], k: int, parameters: Bm25Parameters
) -> None:
    query = to_query(weights)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    if built:
        searcher.build_index()
    expected = reference_search(bags, query, k, parameters)
    assert_ranked(searcher.search(query, k), expected)
    for ranked in searcher.search_many([query, query], k, threads=2):
        assert_ranked(ranked, expected)


@pytest.mark.parametrize("seed", range(8))
def test_many_rows_equal_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting lists, impact arrays, several tiles, and thresholds estimated too high."""
    monkeypatch.setattr(block, "ARRAY_SHARE", 1e-4 if seed % 2 else 1e-2)
    monkeypatch.setattr(block, "MAX_TILE_ROWS", 500 if seed % 3 else 4000)
    bags, parameters = random_bags(3000, seed), SOME_PARAMETERS[seed]
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    searcher.build_index()
    rng = np.random.default_rng(seed)
    for k in (1, 10, 200, 5000):
        words = rng.choice(N_WORDS + 3, rng.integers(1, 9), replace=False).tolist()
        weights = {word: float(rng.choice([1.0, 1.0, 0.0, -1.0, 2.5])) for word in words}
        for query in (to_query(dict.fromkeys(words, 1.0)), to_query(weights)):
            expected = reference_search(bags, query, k, parameters)
            assert_ranked(searcher.search(query, k), expected)


@pytest.mark.parametrize("scale", [5e-324, 1e-310, 1e200, 6e307])
def test_tiny_and_huge_weights_are_searched_exactly(scale: float) -> None:
    """Sums of the index count in whole units, which would be 0 or infinite."""
    bags = random_bags(500, seed=3)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS)
    searcher.build_index()
    for query in (to_query({1: scale, 4: scale}), to_query({2: scale, 5: -1.0})):
        assert_ranked(searcher.search(query, 20), reference_search(bags, query, 20))


@pytest.mark.parametrize("built", [False, True], ids=["scanned", "indexed"])
@pytest.mark.parametrize("k1", [0, 1.5])
@pytest.mark.parametrize("weight", [1.0, -1.0, 0.0, -0.0, 1e308])
def test_an_empty_slot_adds_nothing(weight: float, k1: float, built: bool) -> None:
    """Its word is 0, which may be in the query; its saturation would be 0 / 0 if k1 is 0."""
    bags = [to_bag({3: 100}), to_bag({0: 200, 3: 100}), to_bag({5: 100}), to_bag({})]
    parameters, query = Bm25Parameters(k1), to_query({0: weight, 3: 1.0})
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    if built:
        searcher.build_index()
    ranked = searcher.search(query, 4)
    assert_ranked(ranked, reference_search(bags, query, 4, parameters))
    assert sorted(ranked.rows.tolist()) == [0, 1]
    assert not np.signbit(ranked.scores[ranked.scores == 0]).any()


history_strategy = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.lists(bag_strategy, max_size=6)),
        st.tuples(st.just("remove"), st.lists(st.integers(0, 60), max_size=5)),
        st.tuples(st.just("return"), st.lists(st.integers(0, 60), max_size=5)),
        st.tuples(st.just("build"), st.none()),
    ),
    max_size=12,
)


@given(
    history=history_strategy,
    weights=weights_strategy,
    k=st.integers(1, 40),
    parameters=parameters_strategy,
)
def test_any_history_equals_the_reference(
    history: list[tuple[str, list[Any] | None]],
    weights: dict[int, float],
    k: int,
    parameters: Bm25Parameters,
) -> None:
    """After any updates, results are those of a searcher built from the remaining bags."""
    bags: list[Bag] = []
    live: set[int] = set()
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    query = to_query(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searchers, "_UNINDEXED_ROWS", 4)
        for change, values in history:
            if change == "build":
                searcher.build_index()
                continue
            assert values is not None
            removed: list[int] = []
            returned: list[int] = []
            if change == "add":
                live |= set(range(len(bags), len(bags) + len(values)))
                bags += values
            elif change == "remove":
                removed = [row for row in values if row < len(bags)]
                live -= set(values)
            else:
                returned = [row for row in values if row < len(bags)]
                live |= set(returned)
            searcher = searcher.updated(*to_rows(bags), removed=removed, restored=returned)
            rows = sorted(live)
            hits = reference_search([bags[row] for row in rows], query, k, parameters)
            assert searcher.rows.tolist() == rows
            assert_ranked(searcher.search(query, k), [(rows[i], score) for i, score in hits])


@pytest.mark.parametrize("built", [False, True], ids=["scanned", "indexed"])
@pytest.mark.parametrize("n", [0, 1, 40, 1500, 2900])
def test_a_search_among_some_rows_is_exact(n: int, built: bool) -> None:
    bags = random_bags(3000, seed=9)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, removed=[3, 700])
    if built:
        searcher.build_index()
    among = np.random.default_rng(n).permutation(3000) < n
    for bag in bags[:10]:
        everything = searcher.search(WeightedWords.from_bag(bag), 3000)
        kept = among[everything.rows]
        ranked = searcher.search(WeightedWords.from_bag(bag), 50, among=among)
        assert ranked.rows.tolist() == everything.rows[kept][:50].tolist()
        assert ranked.scores.tolist() == everything.scores[kept][:50].tolist()


@pytest.mark.parametrize("tile_rows", [900, 65_536])
@pytest.mark.parametrize("array_share", [1e-4, 0.2, 2.0], ids=["arrays", "both", "lists"])
def test_sums_of_values_are_those_of_the_bags(
    array_share: float, tile_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scanned, from posting lists, from both halves of impact arrays, and of unindexed rows."""
    monkeypatch.setattr(block, "ARRAY_SHARE", array_share)
    monkeypatch.setattr(block, "MAX_TILE_ROWS", tile_rows)
    bags = random_bags(6000, seed=5)
    words, values = np.array([2, 3, 11, 20]), np.array([1.5, -2.0, 0.25, 7.0])
    value_of = dict(zip(words.tolist(), values.tolist(), strict=True))
    expected = [sum(value_of.get(word, 0.0) for word in bag.words.tolist()) for bag in bags]
    expected[4] = expected[5800] = -np.inf
    rows = to_rows(bags)
    np.minimum(rows[1][::3], 1, out=rows[1][::3])  # the smallest impacts there are
    scanned = Searcher(*rows, n_words=N_WORDS, removed=[4, 5800])
    indexed = Searcher(*(part[:5500] for part in rows), n_words=N_WORDS, removed=[4])
    indexed.build_index()
    indexed = indexed.updated(*rows, removed=[5800])
    for searcher in (scanned, indexed):
        assert searcher.sum_values(words, values).tolist() == expected


@pytest.mark.parametrize("k", [1, 20, 5000])
def test_a_batch_of_searches_returns_what_single_searches_return(
    k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several tiles and blocks, beside queries whose sums do not help, and with newer rows."""
    monkeypatch.setattr(block, "MAX_TILE_ROWS", 500)
    bags = random_bags(3000, seed=10)
    rows = to_rows(bags)
    searcher = Searcher(*(part[:2500] for part in rows), n_words=N_WORDS, removed=[7, 800])
    searcher.build_index()
    searcher = searcher.updated(*rows, removed=[2999])
    queries = [WeightedWords.from_bag(bag) for bag in bags[:60]]
    queries += [
        to_query({}),
        to_query({3: -1.0}),
        to_query({1: 1.0, 2: -1.0}),
        to_query({4: 1e300}),
    ]
    scanned = Searcher(*rows, n_words=N_WORDS, removed=[7, 800, 2999])
    for query, ranked in zip(queries, searcher.search_many(queries, k), strict=True):
        for alone in (searcher.search(query, k), scanned.search(query, k)):
            assert ranked.rows.tolist() == alone.rows.tolist()
            assert ranked.scores.tolist() == alone.scores.tolist()


def test_an_index_is_built_after_enough_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    bags = random_bags(300, seed=11)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS)
    monkeypatch.setattr(searchers, "SCANNED_ROWS_BEFORE_INDEX", 1000)
    query = WeightedWords.from_bag(bags[0])
    results = [searcher.search(query, 5).rows.tolist() for _ in range(3)]
    assert not searcher.has_index
    results.append(searcher.search(query, 5).rows.tolist())
    while not searcher.has_index:  # another process may have to compile first
        searcher.search(query, 5)
    results.append(searcher.search(query, 5).rows.tolist())
    assert results == [results[0]] * 5


@pytest.mark.parametrize("parameters", SOME_PARAMETERS[:4], ids=str)
def test_an_index_stays_exact_when_bags_get_longer(parameters: Bm25Parameters) -> None:
    """Impacts were computed with another average length: sums must still be upper bounds."""
    rng = np.random.default_rng(12)
    bags = [
        Bag(bag.words, rng.integers(1, 500, len(bag.tf)).astype(np.uint16))
        for bag in random_bags(1500, seed=12)
    ]
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    searcher.build_index()
    longer = [Bag(bag.words, bag.tf * 60) for bag in random_bags(1500, seed=13)]
    searcher = searcher.updated(*to_rows(bags + longer))
    indexed = np.arange(3000) < 1500  # the longer bags would outdo them
    for query in map(WeightedWords.from_bag, bags[:3]):
        hits = reference_search(bags + longer, query, 3000, parameters)
        expected = [(row, score) for row, score in hits if row < 1500]
        for k in (1, 5, 20):
            assert_ranked(searcher.search(query, k, among=indexed), expected[:k])


@pytest.mark.parametrize("weight", [float("nan"), float("inf")])
def test_weights_must_be_finite(weight: float) -> None:
    searcher = Searcher(*to_rows([to_bag({0: 100})]), n_words=2)
    with pytest.raises(InvalidOption, match="finite"):
        searcher.search(to_query({0: weight}), 1)


@pytest.mark.parametrize(
    "wrong", [{"k1": -0.1}, {"k1": float("nan")}, {"k1": float("inf")}, {"b": -0.1}, {"b": 1.01}]
)
def test_parameters_are_checked(wrong: dict[str, float]) -> None:
    (name,) = wrong
    with pytest.raises(InvalidOption, match=f"{name} = .*: give a number from 0 to"):
        Bm25Parameters(**wrong)


@given(
    bags=st.lists(bag_strategy, min_size=1, max_size=20),
    weights=weights_strategy,
    parameters=parameters_strategy,
)
def test_contributions_sum_to_the_score(
    bags: list[Bag], weights: dict[int, float], parameters: Bm25Parameters
) -> None:
    query = to_query(weights)
    statistics = Statistics.count(*to_rows(bags), N_WORDS)
    shared = contributions(query, *to_rows(bags), statistics, parameters)
    expected = reference_scores(bags, query, parameters)
    assert shared.sum_by_bag(shared.values, len(bags)).tolist() == [s or 0.0 for s in expected]
    assert set(shared.bags.tolist()) == {i for i, s in enumerate(expected) if s is not None}
    weight, idf = query.weights[shared.positions], statistics.idf(query.words[shared.positions])
    np.testing.assert_allclose(shared.values, weight * idf * shared.saturations)


def random_bags(n: int, seed: int) -> list[Bag]:
    rng = np.random.default_rng(seed)
    popularity = 1 / np.arange(1, N_WORDS + 1)
    popularity /= popularity.sum()
    bags = []
    for _ in range(n):
        words = rng.choice(N_WORDS, rng.integers(1, K_POST + 1), replace=False, p=popularity)
        tf = rng.integers(1, 5, len(words)) * 100
        bags.append(to_bag(dict(zip(words.tolist(), tf.tolist(), strict=True))))
    return bags


def test_scores_agree_with_bm25s() -> None:
    bags = random_bags(200, seed=5)
    # bm25s counts occurrences: a term frequency of 3.00 is a word that occurs three times.
    corpus = [np.repeat(bag.words, bag.tf // 100).tolist() for bag in bags]
    names = {str(word): word for word in range(N_WORDS)}
    parameters = Bm25Parameters(k1=0.9, b=0.4)
    other = bm25s.BM25(method="lucene", k1=parameters.k1, b=parameters.b)
    other.index(bm25s.tokenization.Tokenized(ids=corpus, vocab=names), show_progress=False)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, parameters=parameters)
    for bag in bags[:20]:
        ours = searcher.search(WeightedWords.from_bag(bag), len(bags))
        theirs = other.get_scores([str(word) for word in bag.words.tolist()])
        # Their variant leaves out the factor k1 + 1, which changes no order.
        expected = theirs[ours.rows] * parameters.largest_saturation
        np.testing.assert_allclose(ours.scores, expected, rtol=1e-4)


def test_scores_agree_with_a_sparse_matrix_product() -> None:
    bags = random_bags(300, seed=6)
    words_nk, tf_nk = to_rows(bags)
    rows, slots = np.nonzero(tf_nk)
    shape = (len(bags), N_WORDS)
    tf = scipy.sparse.csr_matrix((tf_nk[rows, slots] / 100, (rows, words_nk[rows, slots])), shape)
    lengths = np.asarray(tf.sum(axis=1)).ravel()
    df = np.asarray((tf > 0).sum(axis=0)).ravel()
    idf = np.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
    entries = tf.tocoo()
    norms = 1.5 * (0.25 + 0.75 * lengths[entries.row] / lengths.mean())
    values = idf[entries.col] * entries.data * 2.5 / (entries.data + norms)
    scores_nv = scipy.sparse.csr_matrix((values, (entries.row, entries.col)), shape)
    searcher = Searcher(words_nk, tf_nk, n_words=N_WORDS)
    for bag in bags[:20]:
        presence = np.zeros(N_WORDS)
        presence[bag.words] = 1
        ours = searcher.search(WeightedWords.from_bag(bag), len(bags))
        np.testing.assert_allclose(ours.scores, (scores_nv @ presence)[ours.rows], rtol=1e-9)


def test_the_formula_of_the_paper_by_hand() -> None:
    bags = [to_bag({0: 100, 1: 300}), to_bag({1: 200})]
    ranked = Searcher(*to_rows(bags), n_words=2).search(to_query({0: 1.0, 1: 1.0}), 2)
    # N = 2, df = (1, 2), |d| = (4, 2), average 3
    idf_0, idf_1 = np.log(1 + 1.5 / 1.5), np.log(1 + 0.5 / 2.5)
    norm_0, norm_1 = 1.5 * (0.25 + 0.75 * 4 / 3), 1.5 * (0.25 + 0.75 * 2 / 3)
    first = idf_0 * 2.5 / (1 + norm_0) + idf_1 * 7.5 / (3 + norm_0)
    second = idf_1 * 5 / (2 + norm_1)
    np.testing.assert_allclose(ranked.scores, [first, second])


def test_k_must_be_positive() -> None:
    searcher = Searcher(*to_rows([to_bag({0: 100})]), n_words=2)
    with pytest.raises(InvalidOption, match="k = 0"):
        searcher.search(to_query({0: 1.0}), 0)
