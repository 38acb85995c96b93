"""Every path to a score gives what the plain formula gives."""

import bm25s
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.bags import Bag
from bm25v.errors import WrongUse
from bm25v.index import reference
from bm25v.index.contributions import contributions
from bm25v.index.searcher import Searcher
from bm25v.index.statistics import Statistics
from bm25v.query import Query, from_bag

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


def to_query(weights: dict[int, float]) -> Query:
    words = np.array(sorted(weights), dtype=np.int32)
    return Query(words, np.array([weights[w] for w in sorted(weights)]), np.ones(len(words)))


@pytest.mark.parametrize("compiled", [False, True])
@given(bags=st.lists(bag_strategy, max_size=30), weights=weights_strategy, k=st.integers(1, 40))
def test_search_equals_the_reference(
    compiled: bool, bags: list[Bag], weights: dict[int, float], k: int
) -> None:
    query = to_query(weights)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS, compiled=compiled)
    ranked = searcher.search(query, k)
    expected = reference.search(bags, query, k)
    assert ranked.rows.tolist() == [row for row, _ in expected]
    np.testing.assert_allclose(ranked.scores, [score for _, score in expected], rtol=1e-12)


@given(bags=st.lists(bag_strategy, min_size=1, max_size=20), weights=weights_strategy)
def test_contributions_sum_to_the_score(bags: list[Bag], weights: dict[int, float]) -> None:
    query = to_query(weights)
    statistics = Statistics.of(*to_rows(bags), N_WORDS)
    for bag, score in zip(bags, reference.scores(bags, query), strict=True):
        parts = contributions(query, bag, statistics)
        assert sum(part.value for part in parts) == pytest.approx(score or 0.0, abs=1e-9)
        assert (score is None) == (not parts)
        for part in parts:
            weight = weights[part.word]
            assert part.value == pytest.approx(weight * part.idf * part.saturation)


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
    # bm25s counts occurrences: a term frequency of 3.00 is a word said three times.
    corpus = [np.repeat(bag.words, bag.tf // 100).tolist() for bag in bags]
    names = {str(word): word for word in range(N_WORDS)}
    outside = bm25s.BM25(method="lucene", k1=reference.K1, b=reference.B)
    outside.index(bm25s.tokenization.Tokenized(ids=corpus, vocab=names), show_progress=False)
    searcher = Searcher(*to_rows(bags), n_words=N_WORDS)
    for bag in bags[:20]:
        ours = searcher.search(from_bag(bag), len(bags))
        theirs = outside.get_scores([str(word) for word in bag.words.tolist()])
        # Their variant leaves out the factor k1 + 1, which changes no order.
        np.testing.assert_allclose(ours.scores, theirs[ours.rows] * (reference.K1 + 1), rtol=1e-4)


def test_scores_agree_with_a_sparse_matrix_product() -> None:
    bags = random_bags(300, seed=6)
    words_nk, tf_nk = to_rows(bags)
    rows, slots = np.nonzero(tf_nk)
    shape = (len(bags), N_WORDS)
    tf = scipy.sparse.csr_matrix((tf_nk[rows, slots] / 100, (rows, words_nk[rows, slots])), shape)
    lengths = np.asarray(tf.sum(axis=1)).ravel()
    df = np.asarray((tf > 0).sum(axis=0)).ravel()
    idf = np.log(1 + (len(bags) - df + 0.5) / (df + 0.5))
    found = tf.tocoo()
    norms = 1.5 * (0.25 + 0.75 * lengths[found.row] / lengths.mean())
    values = idf[found.col] * found.data * 2.5 / (found.data + norms)
    baked = scipy.sparse.csr_matrix((values, (found.row, found.col)), shape)
    searcher = Searcher(words_nk, tf_nk, n_words=N_WORDS)
    for bag in bags[:20]:
        presence = np.zeros(N_WORDS)
        presence[bag.words] = 1
        ours = searcher.search(from_bag(bag), len(bags))
        np.testing.assert_allclose(ours.scores, (baked @ presence)[ours.rows], rtol=1e-9)


def test_the_papers_formula_by_hand() -> None:
    bags = [to_bag({0: 100, 1: 300}), to_bag({1: 200})]
    ranked = Searcher(*to_rows(bags), n_words=2).search(to_query({0: 1.0, 1: 1.0}), 2)
    # N = 2, df = (1, 2), |d| = (4, 2), average 3
    idf_0, idf_1 = np.log(1 + 1.5 / 1.5), np.log(1 + 0.5 / 2.5)
    norm_0, norm_1 = 1.5 * (0.25 + 0.75 * 4 / 3), 1.5 * (0.25 + 0.75 * 2 / 3)
    first = idf_0 * 2.5 / (1 + norm_0) + idf_1 * 7.5 / (3 + norm_0)
    second = idf_1 * 5 / (2 + norm_1)
    np.testing.assert_allclose(ranked.scores, [first, second])


def test_asking_for_nothing_is_wrong_use() -> None:
    searcher = Searcher(*to_rows([to_bag({0: 100})]), n_words=2)
    with pytest.raises(WrongUse, match="k = 0"):
        searcher.search(to_query({0: 1.0}), 0)
