"""Metrics of rankings, compared with results by hand, brute force and scipy."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from bm25v.errors import EvaluationError
from bm25v.research import metrics
from bm25v.research.datasets import Item, PixelBox, RevisitedTruth
from bm25v.research.metrics import Judgements, QueryMetrics, judge_rankings, judge_revisited

GALLERY = ["cat", "cat", "dog", "dog", "emu"]


def recall(judged: Judgements, *ks: int) -> list[float]:
    return [float(metrics.recall_at(k, judged).mean()) for k in ks]


def count_queries(scores: QueryMetrics, setup: str) -> int:
    return int((~np.isnan(scores[f"mAP {setup}"])).sum())


def mean_ap(scores: QueryMetrics, setup: str) -> float:
    return float(np.nanmean(scores[f"mAP {setup}"]))


def mean_precision(scores: QueryMetrics, setup: str) -> dict[int, float]:
    return {k: float(np.nanmean(scores[f"mP@{k} {setup}"])) for k in metrics.REVISITED_KS}


def test_recall_is_1_if_any_of_the_first_k_images_has_the_class() -> None:
    judged = judge_rankings([[2, 0, 1], [0, 1, 4], [4]], GALLERY, ["cat", "dog", "emu"])
    assert recall(judged, 1, 2, 3, 200) == [1 / 3, 2 / 3, 2 / 3, 2 / 3]
    assert metrics.average_precision(judged).tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, 0, 1])


def test_the_papers_ks_are_measured() -> None:
    assert metrics.RECALL_KS == (1, 5, 10, 20, 50, 100, 200)


def test_the_query_itself_is_not_judged() -> None:
    # Without its own row, query 0 has dog, cat and query 4 has nothing but others.
    own = np.array([0, 4, -1])
    judged = judge_rankings([[0, 2, 1], [4, 0, 1], [2, 3]], GALLERY, ["cat", "emu", "dog"], own)
    assert judged.is_relevant_qk.tolist() == [
        [False, True, False],
        [False, False, False],
        [True, True, False],
    ]
    assert judged.n_relevant_q.tolist() == [1, 0, 2]
    assert recall(judged, 1, 2) == [1 / 3, 2 / 3]


def test_a_query_whose_class_is_not_in_the_gallery_is_missed() -> None:
    judged = judge_rankings([[0, 1], [0]], GALLERY, ["yak", "cat"])
    assert judged.n_relevant_q.tolist() == [0, 2]
    assert recall(judged, 1) == [0.5]
    assert metrics.average_precision(judged).tolist() == [0, 0.5]


def test_average_precision_divides_by_all_relevant_images_however_few_are_returned() -> None:
    labels = ["cat"] * 10 + ["dog"] * 10
    own = np.zeros(2, dtype=np.int64)
    whole, short = [*range(1, 10), *range(10, 20)], [1, 2, 3]
    judged = judge_rankings([whole, short], labels, ["cat", "cat"], own)
    assert metrics.average_precision(judged).tolist() == pytest.approx([1, 3 / 9])


def test_empty_rankings_and_galleries_find_nothing() -> None:
    assert recall(judge_rankings([[], []], GALLERY, ["cat", "dog"]), 1, 9) == [0, 0]
    assert metrics.average_precision(judge_rankings([[]], [], ["cat"])).tolist() == [0]


@given(
    labels=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    seed=st.integers(0, 99),
    k=st.integers(1, 15),
)
def test_metrics_equal_brute_force(labels: list[str], seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    n = len(labels)
    rankings = [rng.permutation(n)[: rng.integers(0, n + 1)] for _ in range(n)]
    judged = judge_rankings(rankings, labels, labels, np.arange(n))
    precisions = metrics.average_precision(judged)
    for query in range(n):
        others = [row for row in rankings[query].tolist() if row != query]
        hits = [labels[row] == labels[query] for row in others]
        relevant = labels.count(labels[query]) - 1
        assert metrics.recall_at(k, judged)[query] == any(hits[:k])
        total = sum(sum(hits[: at + 1]) / (at + 1) for at, hit in enumerate(hits) if hit)
        assert precisions[query] == pytest.approx(total / relevant if relevant else 0)


# The revisited protocol


def paths(rows: Sequence[int]) -> frozenset[Path]:
    return frozenset(Path(f"{row}.jpg") for row in rows)


def make_query(easy: Sequence[int], hard: Sequence[int], junk: Sequence[int]) -> Item:
    return Item(
        Path("q.jpg"),
        "",
        RevisitedTruth(PixelBox(0, 0, 1, 1), paths(easy), paths(hard), paths(junk)),
    )


IMAGES = [Item(Path(f"{row}.jpg"), "") for row in range(12)]


def test_setups_differ_in_relevant_images_and_junk() -> None:
    # ranking: junk 5, easy 0, wrong 9, hard 2, easy 1
    query = make_query(easy=[0, 1], hard=[2], junk=[5])
    scores = judge_revisited([[5, 0, 9, 2, 1]], IMAGES, [query])
    # Easy, without 5 and 2: relevant, wrong, relevant
    assert mean_ap(scores, "easy") == pytest.approx(((1 + 1) / 2 + (1 / 2 + 2 / 3) / 2) / 2)
    # Medium, without 5: relevant, wrong, relevant, relevant
    medium = (1 + 1) / 2 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 4) / 2
    assert mean_ap(scores, "medium") == pytest.approx(medium / 3)
    # Hard, without 5, 0 and 1: wrong, relevant
    assert mean_ap(scores, "hard") == pytest.approx((0 + 1 / 2) / 2)


def test_precision_stops_at_the_last_relevant_image() -> None:
    query = make_query(easy=[0, 1], hard=[2], junk=[])
    scores = judge_revisited([[0, 9, 1, 8, 7, 2, 3, 4, 5, 6, 10, 11]], IMAGES, [query])
    # Easy: without 2 the last is third, so beyond that the depth is 3.
    easy, medium = mean_precision(scores, "easy"), mean_precision(scores, "medium")
    assert easy == {1: 1, 5: pytest.approx(2 / 3), 10: pytest.approx(2 / 3)}
    assert medium == {1: 1, 5: 2 / 5, 10: 3 / 6}


def test_relevant_images_behind_the_end_of_a_ranking_count_as_missed() -> None:
    query = make_query(easy=[0, 1], hard=[], junk=[])
    scores = judge_revisited([[0]], IMAGES, [query])
    assert mean_ap(scores, "easy") == 0.5
    assert mean_precision(scores, "easy") == {1: 1, 5: 1 / 5, 10: 1 / 10}
    scores = judge_revisited([[]], IMAGES, [query])
    assert mean_ap(scores, "easy") == 0
    assert mean_precision(scores, "easy") == {1: 0, 5: 0, 10: 0}


def test_relevant_images_that_are_not_in_the_gallery_still_count() -> None:
    query = make_query(easy=[0, 99], hard=[], junk=[98])
    assert mean_ap(judge_revisited([[0]], IMAGES, [query]), "easy") == 0.5


def test_queries_without_relevant_images_are_left_out() -> None:
    queries = [make_query([0], [], []), make_query([], [1], [0])]
    scores = judge_revisited([[0, 1], [9, 1]], IMAGES, queries)
    assert [count_queries(scores, setup) for setup in metrics.SETUPS] == [1, 2, 1]
    assert mean_ap(scores, "easy") == 1
    assert mean_ap(scores, "hard") == 0.25
    assert np.isnan(scores["mAP easy"][1])
    empty = judge_revisited([[0]], IMAGES, [make_query([], [], [])])
    assert count_queries(empty, "medium") == 0


@given(st.lists(st.sampled_from(["easy", "hard", "junk", "wrong"]), min_size=1, max_size=12))
def test_average_precision_is_the_area_under_the_curve(kinds: list[str]) -> None:
    rows = {kind: [row for row, one in enumerate(kinds) if one == kind] for kind in set(kinds)}
    query = make_query(*(rows.get(kind, []) for kind in ("easy", "hard", "junk")))
    scores = judge_revisited([range(len(kinds))], IMAGES, [query])
    for setup, relevant, junk in (
        ("easy", {"easy"}, {"hard", "junk"}),
        ("medium", {"easy", "hard"}, {"junk"}),
        ("hard", {"hard"}, {"easy", "junk"}),
    ):
        kept = [kind in relevant for kind in kinds if kind not in junk]
        if not any(kept):
            assert count_queries(scores, setup) == 0
            continue
        recalls = [sum(kept[:n]) / sum(kept) for n in range(len(kept) + 1)]
        precisions = [1.0] + [sum(kept[:n]) / n for n in range(1, len(kept) + 1)]
        assert mean_ap(scores, setup) == pytest.approx(np.trapezoid(precisions, recalls))


def test_revisited_average_precision_differs_from_that_of_trec_eval() -> None:
    hits = np.array([[False, True]])
    assert metrics.average_precision(Judgements(hits, np.array([1]))).tolist() == [0.5]
    assert metrics.trapezoid_ap(np.array([1]), 1) == 0.25


# Significance


def test_intervals_contain_the_true_mean_in_95_percent_of_samples() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        low_high = metrics.confidence_interval(rng.random(150) < 0.7)
        covered += low_high.low <= 0.7 <= low_high.high
    assert 0.90 <= covered / 200 <= 0.99


def test_an_interval_of_many_queries_is_that_of_the_normal_distribution() -> None:
    values = np.random.default_rng(1).random(4_000)
    interval = metrics.confidence_interval(values)
    error = 1.96 * values.std() / np.sqrt(len(values))
    assert interval.mean == pytest.approx(values.mean())
    assert interval.high - interval.mean == pytest.approx(error, rel=0.1)
    assert interval.mean - interval.low == pytest.approx(error, rel=0.1)
    assert metrics.confidence_interval(values) == interval


def test_the_chunk_size_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    values, others = np.random.default_rng(2).random((2, 50))
    whole = metrics.confidence_interval(values), metrics.compare(values, others)
    monkeypatch.setattr(metrics, "CHUNK", 64 * 50)
    assert metrics.confidence_interval(values) == whole[0]
    assert metrics.compare(values, others).p == pytest.approx(whole[1].p, abs=0.02)


def test_without_queries_there_is_no_interval() -> None:
    with pytest.raises(EvaluationError, match="no queries"):
        metrics.confidence_interval(np.array([]))


@pytest.mark.parametrize(("wins", "losses"), [(5, 0), (12, 3), (7, 7), (0, 0), (600, 500), (0, 2)])
def test_p_values_of_hits_and_misses_are_those_of_mcnemars_test(wins: int, losses: int) -> None:
    a = np.array([True] * wins + [False] * losses + [True] * 30 + [False] * 20)
    b = np.array([False] * wins + [True] * losses + [True] * 30 + [False] * 20)
    comparison = metrics.compare(a, b)
    expected = scipy.stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1
    assert comparison.p == pytest.approx(expected)
    assert (comparison.wins, comparison.losses) == (wins, losses)
    assert comparison.difference == pytest.approx((wins - losses) / len(a))


@pytest.mark.parametrize("seed", range(4))
def test_other_p_values_are_those_of_scipys_permutation_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = rng.random(10)
    b = a + rng.normal(0.05, 0.25, 10)
    exact = scipy.stats.permutation_test(
        (a, b), lambda x, y: (x - y).mean(), permutation_type="samples", n_resamples=np.inf
    )
    comparison = metrics.compare(a, b)
    assert exact.pvalue > 0.1
    assert comparison.p == pytest.approx(exact.pvalue, abs=0.02)
    assert metrics.compare(b, a).difference == -comparison.difference


def test_a_large_difference_is_significant_and_noise_is_not() -> None:
    rng = np.random.default_rng(4)
    a = rng.random(300)
    assert metrics.compare(a + rng.normal(0.05, 0.1, 300), a).p == 1 / 10_001  # never 0
    assert metrics.compare(a + rng.normal(0, 0.1, 300), a).p > 0.05
    assert metrics.compare(a, a).p == 1
