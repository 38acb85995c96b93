"""The systems "words" and "hybrid": an evaluation ranks as a search in a gallery does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.backbones import Features
from bm25v.backbones.toy import ToyBackbone
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Statistics, WeightedWords, reference_search
from bm25v.research import bags, datasets
from bm25v.research.bags import compute_codes, count_full_bags, pool_full_bags
from bm25v.research.evaluate import evaluate
from bm25v.research.features import DatasetFeatures
from bm25v.research.settings import ALL, RankingSettings, Weighting
from bm25v.research.systems import SystemRunner, sparse
from bm25v.sae.model import Codes
from bm25v.search import encode
from bm25v.search.scoring import Mode
from bm25v.store.bags import read_full_bag
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import LEVELS, pool_bags
from tests import test_evaluate
from tests.test_evaluate import rows

cache, toy, extracted = test_evaluate.cache, test_evaluate.toy, test_evaluate.extracted
data = test_evaluate.data
Floats = NDArray[np.float64]
MODES: tuple[Mode, ...] = ("words", "hybrid")


def runner(extracted: DatasetFeatures, toy: Vocabulary, **changes: Any) -> SystemRunner:
    return SystemRunner(extracted, toy, RankingSettings(**changes), depth=200)


@pytest.fixture
def half_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the backbone return what the cache of features stores: half precision."""
    original = ToyBackbone.forward

    def rounded(self: ToyBackbone, pixels: NDArray[np.float32]) -> Features:
        features = original(self, pixels)
        halves_pd = features.patches_pd.astype(np.float16)
        return features._replace(patches_pd=halves_pd.astype(np.float32))

    monkeypatch.setattr(ToyBackbone, "forward", rounded)


@pytest.mark.usefixtures("half_precision")
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("candidates", [7, 1000])
@pytest.mark.parametrize("mode", MODES)
def test_an_evaluation_ranks_as_a_search_in_a_gallery_does(
    mode: Mode,
    candidates: int,
    indexed: bool,
    data: Path,
    cache: Path,
    toy: Vocabulary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sparse, "INDEX_FROM", 0 if indexed else 10**9)
    settings = RankingSettings(candidates=candidates)
    result = evaluate(
        datasets.load("folder", data), toy, settings=settings, systems=[mode], cache=cache
    )
    paths = [item.path for item in result.dataset.gallery]
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(data)
        for query, ranked in zip(
            result.dataset.queries, result.systems[mode].rankings, strict=True
        ):
            hits = gallery.search(
                query.path, mode=mode, k=min(candidates, 23), candidates=candidates
            )
            assert [str(paths[row]) for row in ranked.rows] == [hit.path for hit in hits]
            assert ranked.scores.tolist() == pytest.approx([hit.score for hit in hits], rel=1e-6)
            assert len(hits) == min(candidates, 23)


def test_full_bags_are_those_of_indexing(extracted: DatasetFeatures, toy: Vocabulary) -> None:
    codes_upk = compute_codes(extracted, toy)
    table = pool_full_bags(codes_upk, RankingSettings(), k_full=toy.full_bag_words, n_words=192)
    for row, words_pk, activations_pk in zip(table, *codes_upk, strict=True):
        codes = Codes(words_pk, activations_pk)
        _, expected, _ = pool_bags(codes, k_post=16, k_full=toy.full_bag_words)
        full_bag = read_full_bag(row)
        assert full_bag.words.tolist() == expected.words.tolist()
        assert full_bag.levels.tolist() == expected.levels.tolist()


def test_full_bags_are_counted_in_parts(
    extracted: DatasetFeatures, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pool_full_bags(compute_codes(extracted, toy), RankingSettings(), k_full=20, n_words=192)
    expected = Statistics.count(table["words"], LEVELS[table["levels"]], 192)
    monkeypatch.setattr(bags, "CHUNK_ROWS", 5)
    counted = count_full_bags(table, 192)
    assert (counted.n, counted.total_length) == (24, expected.total_length)
    assert counted.df_v.tolist() == expected.df_v.tolist()
    assert counted.df_v.max() > 1


def rank(run: SystemRunner, name: str) -> list[list[int]]:
    return rows(run.run(name).rankings)


@pytest.mark.parametrize("weighting", ["presence", "tf", "sqrt-tf", "saturated"])
def test_words_are_scored_by_the_plain_formula_with_any_weights(
    weighting: Weighting, extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    weigh: dict[Weighting, Callable[[Floats], Floats]] = {
        "presence": np.ones_like,
        "tf": lambda tf: tf,
        "sqrt-tf": lambda tf: np.sqrt(tf / tf.max()),
        "saturated": lambda tf: 2.5 * tf / (tf + 1.5 * (0.25 + 0.75 * tf.sum() / average)),
    }
    system = runner(extracted, toy, query=weighting)
    stored = [read_full_bag(row).bag for row in system.full_bags.rows]
    average = np.mean([bag.frequencies.sum() for bag in stored])
    for own, ranked in enumerate(system.run("words-all").rankings):
        words, tf = system.full_bags.queries[own].words, system.full_bags.queries[own].frequencies
        assert set(words) >= set(stored[own].words)
        query = WeightedWords(words, weigh[weighting](tf), tf)
        expected = [hit for hit in reference_search(stored, query, 24) if hit[0] != own]
        assert ranked.rows.tolist() == [row for row, _ in expected]
        np.testing.assert_allclose(ranked.scores, [score for _, score in expected])


def test_other_weights_order_the_same_candidates(
    extracted: DatasetFeatures, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encode, "FIRST_WORDS", 5)
    by_strength = rank(runner(extracted, toy), "words-6")
    by_presence = rank(runner(extracted, toy, query="presence"), "words-6")
    assert by_strength != by_presence
    assert [sorted(found) for found in by_strength] == [sorted(found) for found in by_presence]


def test_settings_of_full_bags_change_what_they_name(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    default = runner(extracted, toy)
    affecting: list[dict[str, Any]] = [{"k_full": 4}, {"k_query": 3}, {"pooling": "max"}, {"k1": 0}]
    for changes in affecting:
        assert rank(runner(extracted, toy, **changes), "words") != rank(default, "words"), changes
    assert runner(extracted, toy, k_full=4).full_bags.words_per_image == 4
    assert runner(extracted, toy, k_full=ALL).full_bags.words_per_image > 16
    others: list[dict[str, Any]] = [{"scoring": "dot"}, {"tf": "sqrt"}, {"stop": 0.1}]
    for changes in (*others, {"quantised": False}):
        assert rank(runner(extracted, toy, **changes), "words-9") == rank(default, "words-9")


def test_the_weight_is_that_of_the_words_in_hybrid(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    dense = rank(runner(extracted, toy), "dense")
    without_own = [[row for row in found if row != own] for own, found in enumerate(dense)]
    assert rank(runner(extracted, toy, weight=0.0), "hybrid-all") == without_own
    assert rank(runner(extracted, toy, weight=1e6), "hybrid") == rank(
        runner(extracted, toy), "words"
    )
    scores = {}
    for weight in (0, 1, 2):
        ranked = runner(extracted, toy, weight=weight).run("hybrid-all").rankings[0]
        scores[weight] = ranked.scores[np.argsort(ranked.rows)]
    np.testing.assert_allclose(scores[2] - scores[1], scores[1] - scores[0], rtol=1e-9)


def test_candidates_come_from_the_name_or_from_the_settings(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    few = runner(extracted, toy, candidates=6)
    for mode in MODES:
        assert rank(few, mode) == rank(runner(extracted, toy), f"{mode}-6")
        assert {len(found) for found in rank(few, mode)} == {6}
        assert {len(found) for found in rank(few, f"{mode}-all")} == {23}
        assert rank(runner(extracted, toy), mode) == rank(few, f"{mode}-1000")
    assert "the best 6 by 32 words, ordered by BM25" in few.run("words").description
    assert few.run("hybrid-all").description.startswith("all images, ordered by cosine + 1.5 × the")
