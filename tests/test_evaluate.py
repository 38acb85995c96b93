"""Features, systems and figures: against the plain formula, brute force and outside tools."""

import csv
import io
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ir_measures
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import EvaluationError, MissingExtra, WrongUse
from bm25v.index import bm25
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import Ranked
from bm25v.research import datasets, features, metrics, significance
from bm25v.research.bags import BagTable, compute_codes, pool_bags
from bm25v.research.evaluate import evaluate
from bm25v.research.features import DatasetFeatures, ImagePart, extract_features
from bm25v.research.settings import PRESETS, RankingSettings
from bm25v.research.systems import (
    SYSTEMS,
    SystemRunner,
    classical,
    fusion,
    resolve_systems,
    sparse,
    vectors,
)
from bm25v.research.systems.sparse import WordRanker
from bm25v.sae.model import Codes
from bm25v.training.feature_store import ImageFeatures, ImageFeatureStore
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.test_cli import Outcome, Run

in_shell = test_cli.run

KS = ("R@1", "R@5", "R@10", "R@20", "R@50", "R@100", "R@200")


def save(path: Path, seed: int, label: int, *, side: int = 56) -> None:
    """Save a picture that resembles others of its label."""
    common = np.random.default_rng(label).integers(0, 256, (7, 7, 3))
    own = np.random.default_rng(1000 + seed).integers(-90, 91, (7, 7, 3))
    blocks = np.clip(common + own, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST).save(path)


def save_classes(folder: Path, labels: str, pictures: int) -> Path:
    """Save pictures by turns into class folders."""
    for number in range(pictures):
        label = number % len(labels)
        save(folder / labels[label] / f"{number}.png", number, label)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four classes of six pictures."""
    return save_classes(tmp_path / "data", "abcd", 24)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def toy() -> Vocabulary:
    return Vocabulary.load("toy")


@pytest.fixture
def pictures(data: Path, cache: Path, toy: Vocabulary) -> DatasetFeatures:
    return extract_features(datasets.load("folder", data), toy, cache=cache)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many pictures each call took through the backbone."""
    calls: list[int] = []
    original = ToyBackbone.forward_batch

    def counted(self: ToyBackbone, batch: list[Any]) -> Any:
        calls.append(len(batch))
        return original(self, batch)

    monkeypatch.setattr(ToyBackbone, "forward_batch", counted)
    return calls


@pytest.fixture
def run(data: Path, cache: Path, in_shell: Run) -> Run:
    """Run `bm25v evaluate` on the four classes with the toy vocabulary."""

    def call(*words: object, name: str = "folder", folder: Path = data) -> Outcome:
        fixed = ("--data", folder, "--vocabulary", "toy", "--cache", cache)
        return in_shell("evaluate", name, *fixed, *words)

    return call


def random_bags(n: int, seed: int, *, n_words: int = 30, most: int = 8) -> BagTable:
    rng = np.random.default_rng(seed)
    rows = []
    for size in rng.integers(0, most + 1, n):
        words = np.sort(rng.choice(n_words, size, replace=False))
        rows.append((words, rng.integers(1, 500, size) / 100))
    return BagTable.stack(rows)


def as_bag(pooled: tuple[NDArray[Any], NDArray[Any]]) -> Bag:
    words, tf = pooled
    return Bag(words.astype(np.int32), bags.quantise(tf))


# Features


def test_a_second_run_makes_no_forward_pass(
    data: Path, cache: Path, toy: Vocabulary, forwards: list[int]
) -> None:
    dataset = datasets.load("folder", data)
    first = evaluate(dataset, toy, cache=cache)
    assert sum(forwards) == 24
    second = evaluate(dataset, toy, cache=cache)
    assert sum(forwards) == 24
    assert first.to_dict() == second.to_dict()


def test_features_follow_the_content_of_pictures(
    data: Path, cache: Path, toy: Vocabulary, forwards: list[int]
) -> None:
    extract_features(datasets.load("folder", data), toy, cache=cache)
    (data / "a").rename(data / "moved")
    save(data / "b" / "new.png", 99, 1)
    (data / "c" / "copy.png").write_bytes((data / "c" / "2.png").read_bytes())
    again = extract_features(datasets.load("folder", data), toy, cache=cache)
    assert sum(forwards) == 25
    assert len(again.dataset.gallery) == 26
    assert len(again) == 25  # distinct ones
    copies = [row for row, item in enumerate(again.dataset.gallery) if item.path.stem in "2 copy"]
    assert len({int(again.gallery_index_n[row]) for row in copies}) == 1


def test_features_are_those_of_the_backbone(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    found = {
        int(row): patches
        for several, many in pictures.patches()
        for row, patches in zip(several, many, strict=True)
    }
    assert len(found) == 24
    for item, row in zip(pictures.dataset.gallery, pictures.gallery_index_n.tolist(), strict=True):
        expected = toy.backbone.forward(toy.prepare(item.path))
        np.testing.assert_array_equal(found[row], expected.patches_pd.astype(np.float16))
        np.testing.assert_allclose(pictures.dense_ue[row], toy.encode(item.path).dense_e, rtol=1e-6)


def test_what_was_extracted_is_not_extracted_again(
    pictures: DatasetFeatures, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ImagePart] = []
    monkeypatch.setattr(features, "hash_image", read.append)
    assert extract_features(pictures, toy) is pictures
    assert evaluate(pictures, toy, systems=["dense"]).dataset is pictures.dataset
    assert not read
    other = replace(toy, backbone_fingerprint="another")
    with pytest.raises(WrongUse, match="features of data come from another backbone than toy"):
        extract_features(pictures, other)


def test_an_interrupted_extraction_goes_on(
    data: Path, cache: Path, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "available_cpus", lambda: 1)
    original, seen = ToyBackbone.forward_batch, [0]

    def breaks(self: ToyBackbone, batch: list[Any]) -> Any:
        seen[0] += len(batch)
        if seen[0] == 12:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(ToyBackbone, "forward_batch", breaks)
    with pytest.raises(KeyboardInterrupt):
        extract_features(datasets.load("folder", data), toy, cache=cache)
    before, seen[0] = seen[0], 100
    assert len(extract_features(datasets.load("folder", data), toy, cache=cache)) == 24
    assert seen[0] - 100 == 24 - 8
    assert before >= 12


@pytest.mark.parametrize("part", ["features", "words"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_a_damaged_cache_is_made_again(
    part: str, harm: str, data: Path, cache: Path, toy: Vocabulary, caplog: Any
) -> None:
    dataset = datasets.load("folder", data)
    first = evaluate(dataset, toy, cache=cache).to_dict()
    for path in list((cache / part).rglob("*.npz")):
        content = bytearray(path.read_bytes())
        middle = len(content) // 2
        content[middle] ^= 0xFF
        path.write_bytes(content if harm == "flip" else content[:middle])
    if part == "features":  # else nobody looks at them
        for path in (cache / "words").glob("*.npz"):
            path.unlink()
    assert evaluate(dataset, toy, cache=cache).to_dict() == first
    assert "damaged" in caplog.text
    caplog.clear()
    assert evaluate(dataset, toy, cache=cache).to_dict() == first
    assert caplog.text == ""


def test_a_picture_that_is_lost_with_its_features_is_told(
    pictures: DatasetFeatures, data: Path, cache: Path
) -> None:
    for path in (cache / "features").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    (data / "a" / "0.png").unlink()
    with pytest.raises(EvaluationError, match=r"0\.png can no longer be read"):
        list(pictures.patches())


def test_a_folder_that_cannot_be_written_is_named(data: Path, tmp_path: Path, run: Run) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run("--cache", tmp_path / "file" / "in")
    assert (code, out) == (1, "")
    assert "name another folder with --cache" in err


# Words


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_bags_are_the_products(seed: int, k_post: int) -> None:
    rng = np.random.default_rng(seed)
    activations = np.maximum(rng.normal(0.3, 0.5, (5, 4, 3)), 0).round(2).astype(np.float32)
    codes_upk = Codes(rng.integers(0, 12, (5, 4, 3), dtype=np.int32), activations)
    found = pool_bags(codes_upk, RankingSettings.paper(), k_post=k_post)
    for row in range(5):
        expected = bags.pool_codes(Codes(codes_upk.words_pk[row], activations[row]), k_post=k_post)
        words, tf = found.row(row)
        assert words.tolist() == expected.words.tolist()
        assert tf.tolist() == expected.frequencies.tolist()


def test_pooling_takes_the_largest_or_three_of_them() -> None:
    codes_upk = Codes(
        np.array([[[1], [1], [1], [1], [2]]]), np.array([[[4.0], [1.0], [2.0], [3.0], [5.0]]])
    )
    found = {
        pooling: pool_bags(codes_upk, RankingSettings(pooling=pooling), k_post=9).tf_nk.tolist()
        for pooling in ("sum", "top3", "max")
    }
    assert found == {"sum": [[10, 5]], "top3": [[9, 5]], "max": [[4, 5]]}


def test_words_are_the_galleries(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    """Half precision of the patches changes next to nothing."""
    found = pool_bags(compute_codes(pictures, toy), RankingSettings.paper(), k_post=toy.k_post)
    same = 0
    for item, row in zip(pictures.dataset.gallery, pictures.gallery_index_n.tolist(), strict=True):
        same += len(np.intersect1d(found.row(row)[0], toy.bag(item.path).words))
    assert same >= 0.99 * 24 * toy.k_post


def test_quantisation_can_be_left_out() -> None:
    codes_upk = Codes(np.array([[[1, 2]]]), np.array([[[1.2345, 0.001]]]))
    exact = pool_bags(codes_upk, RankingSettings(quantised=False), k_post=9)
    assert exact.tf_nk.tolist() == [[1.2345, 0.001]]
    assert pool_bags(codes_upk, RankingSettings(), k_post=9).tf_nk.tolist() == [[1.23]]


# Ranking by words


def reference_search(gallery: BagTable, queries: BagTable, weigh: Any, k: int) -> list[list[int]]:
    stored = [as_bag(gallery.row(row)) for row in range(len(gallery.tf_nk))]
    found = []
    for row in range(len(queries.tf_nk)):
        words, tf = queries.row(row)
        hits = bm25.reference_search(
            stored, WeightedWords(words.astype(np.int32), weigh(tf), tf), k
        )
        found.append([number for number, _ in hits])
    return found


@given(st.integers(0, 2**32 - 1))
def test_paper_settings_rank_like_the_plain_formula(seed: int) -> None:
    gallery, queries = random_bags(15, seed), random_bags(4, seed + 1)
    words = WordRanker(gallery, queries, n_words=30, settings=RankingSettings.paper())
    assert RankingSettings.paper().fits_index
    found = [ranked.rows.tolist() for ranked in words.search(6)]
    assert found == reference_search(gallery, queries, np.ones_like, 6)


@pytest.mark.parametrize("query", ["presence", "tf", "sqrt-tf", "saturated"])
@pytest.mark.parametrize("changes", [{}, {"stop": 0.2}, {"k1": 0.9, "b": 0.3}])
def test_matrices_rank_like_the_index(
    query: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RankingSettings(query=query, **changes)
    words = WordRanker(random_bags(300, 1), random_bags(40, 2), n_words=30, settings=settings)
    by_engine = words.search(50)
    monkeypatch.setattr(sparse, "_INDEX_FROM", 0)
    for scanned, found in zip(by_engine, words.search(50), strict=True):
        assert scanned.rows.tolist() == found.rows.tolist()
        assert scanned.scores.tolist() == found.scores.tolist()
    monkeypatch.setattr(RankingSettings, "fits_index", False)
    monkeypatch.setattr(sparse, "_BLOCK_SCORES", 2_100)  # seven queries at a time
    by_matrix = words.search(50)
    assert any(len(ranked.rows) == 50 for ranked in by_engine)
    for engine, product in zip(by_engine, by_matrix, strict=True):
        assert engine.rows.tolist() == product.rows.tolist()
        np.testing.assert_allclose(engine.scores, product.scores, rtol=1e-12)


@pytest.mark.parametrize("scoring", ["bm25", "tfidf", "cosine", "dot", "idf", "binary"])
def test_scorings_are_what_they_say(scoring: Any) -> None:
    gallery, queries = random_bags(12, 3), random_bags(3, 4)
    settings = RankingSettings(scoring=scoring, tf="sqrt", k1=2.0, b=0.5)
    ranked = WordRanker(gallery, queries, n_words=30, settings=settings).search(12)

    def full(side: BagTable) -> NDArray[np.float64]:
        dense = np.zeros((len(side.tf_nk), 30))
        for row in range(len(dense)):
            words, tf = side.row(row)
            dense[row, words] = np.sqrt(tf)
        return dense

    def unit(x: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12))

    d, q = full(gallery), full(queries)
    df = (d > 0).sum(axis=0)
    idf = np.log(1 + (12 - df + 0.5) / (df + 0.5))
    length = d.sum(axis=1, keepdims=True)
    expected = {
        "bm25": (q > 0) * idf @ (d * 3 / (d + 2 * (0.5 + 0.5 * length / length.mean()))).T,
        "tfidf": unit(q * idf) @ unit(d * idf).T,
        "cosine": unit(q) @ unit(d).T,
        "dot": q @ d.T,
        "idf": (q > 0) * idf @ (d > 0).T,
        "binary": (q > 0).astype(float) @ (d > 0).T,
    }[scoring]
    assert any(len(one.rows) for one in ranked)
    for row, one in enumerate(ranked):
        assert sorted(one.rows.tolist()) == np.flatnonzero(expected[row]).tolist()
        np.testing.assert_allclose(one.scores, expected[row, one.rows])
        assert (np.diff(one.scores) <= 1e-12).all()


def test_queries_may_have_more_words_than_pictures(
    pictures: DatasetFeatures, toy: Vocabulary
) -> None:
    alike, more = contest(pictures, toy, k_post=4), contest(pictures, toy, k_post=4, k_query=12)
    assert alike.words.words_per_image == more.words.words_per_image == 4
    assert more.words.postings_per_query > alike.words.postings_per_query
    assert rows(more.run("bm25v").rankings) != rows(alike.run("bm25v").rankings)
    same = contest(pictures, toy, k_post=4, k_query=4)
    assert rows(same.run("bm25v").rankings) == rows(alike.run("bm25v").rankings)


def test_what_words_cost_is_counted() -> None:
    gallery = BagTable(np.array([[1, 2], [1, 3], [1, 0]]), np.array([[1.0, 1], [1, 1], [1, 0]]))
    queries = gallery.take(np.array([0, 2]))
    words = WordRanker(gallery, queries, n_words=9, settings=RankingSettings())
    assert words.words_per_image == pytest.approx(5 / 3)
    assert words.postings_per_query == (3 + 1 + 3) / 2
    fewer = WordRanker(gallery, queries, n_words=9, settings=RankingSettings(stop=0.5))
    assert fewer.postings_per_query == 0.5
    assert [len(ranked.rows) for ranked in fewer.search(9)] == [1, 0]


# Ranking by vectors


def some_vectors(n: int, dim: int, queries: int = 5) -> vectors.Vectors:
    rng = np.random.default_rng(n + dim)
    floats = rng.standard_normal((n + queries, dim)).astype(np.float32)
    floats /= np.linalg.norm(floats, axis=1, keepdims=True)
    return floats[:n].astype(np.float16), floats[n:]


@pytest.mark.parametrize("worth", [0, 10**9])
def test_dense_is_brute_force(worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "_COMPILE_FROM", worth)
    gallery, queries = some_vectors(50, 24)
    found = vectors.rank_dense((gallery, queries), 7)
    exact = gallery.astype(np.float64)
    cosines = queries @ (exact / np.linalg.norm(exact, axis=1, keepdims=True)).T
    for row, ranked in enumerate(found):
        assert ranked.rows.tolist() == np.argsort(-cosines[row])[:7].tolist()
        np.testing.assert_allclose(ranked.scores, np.sort(cosines[row])[::-1][:7], atol=1e-5)


def test_hnsw_has_the_papers_settings() -> None:
    import faiss

    both = some_vectors(60, 24)
    index = vectors.build_hnsw(vectors.to_unit_float32(both[0]))
    assert faiss.IndexHNSWFlat in type(index).mro()  # and stays untyped: faiss's types lack parts
    assert index.hnsw.nb_neighbors(1) == 32
    assert index.hnsw.nb_neighbors(0) == 64
    assert index.hnsw.efSearch == 100
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert index.ntotal == 60
    exact = [ranked.rows.tolist() for ranked in vectors.rank_dense(both, 5)]
    assert [ranked.rows.tolist() for ranked in vectors.search_faiss(index, both[1], 5)] == exact


@pytest.mark.parametrize(("n", "dim", "bits"), [(700, 96, 4), (5_000, 320, 7), (11, 12, 3)])
def test_ivfpq_has_the_papers_settings(n: int, dim: int, bits: int) -> None:
    import faiss

    both = some_vectors(n, dim)
    index = vectors.build_ivfpq(vectors.to_unit_float32(both[0]))
    assert isinstance(index, faiss.IndexIVFPQ)
    assert (index.pq.M, index.pq.nbits, index.nprobe) == (48, bits, 1)
    assert index.nlist == min(100, n)
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert index.d == 48 * -(-dim // 48)
    assert index.ntotal == n
    for ranked in vectors.search_faiss(index, both[1], 201):
        assert 1 <= len(ranked.rows) <= n
        assert (ranked.rows >= 0).all()


def test_bits_grow_with_what_there_is_to_learn_from() -> None:
    assert [vectors.pq_bits(n) for n in (1, 2, 16, 1_249, 10_000, 10**6)] == [1, 1, 4, 5, 8, 8]


@pytest.mark.parametrize("dim", [12, 48, 320, 1152])
def test_widened_vectors_have_the_same_products(dim: int) -> None:
    gallery, queries = some_vectors(9, dim)
    floats = gallery.astype(np.float32)
    wide, asked = vectors.pad_to_parts(floats), vectors.pad_to_parts(queries)
    np.testing.assert_allclose(asked @ wide.T, queries @ floats.T, atol=1e-5)
    used = (np.abs(wide).reshape(9, 48, -1).max(axis=0) > 0).sum(axis=1)
    assert used.max() - used.min() <= 1


# Both


def contest(
    pictures: DatasetFeatures, toy: Vocabulary, depth: int = 200, **changes: Any
) -> SystemRunner:
    return SystemRunner(pictures, toy, RankingSettings(**changes), depth=depth)


def rows(answers: Sequence[Ranked]) -> list[list[int]]:
    return [ranked.rows.tolist() for ranked in answers]


def test_candidates_are_counted_without_the_query(
    pictures: DatasetFeatures, toy: Vocabulary
) -> None:
    by_words = rows(contest(pictures, toy).run("bm25v").rankings)
    cosines = pictures.dense_ue @ pictures.dense_ue.T
    found = contest(pictures, toy).run("two-stage-5").rankings
    for own, (first, second) in enumerate(zip(by_words, found, strict=True)):
        others = [row for row in first if row != own][:5]
        assert own in first
        assert len(second.rows) == 5
        assert sorted(second.rows.tolist()) == sorted(others)
        scores = cosines[pictures.gallery_index_n[own], pictures.gallery_index_n[second.rows]]
        np.testing.assert_allclose(second.scores, scores, atol=1e-3)  # kept in half precision
        assert (np.diff(second.scores) <= 0).all()


def test_a_short_ranking_begins_a_long_one(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    """Systems share one search, whatever is asked first."""
    shared = contest(pictures, toy, depth=3)
    small = rows(shared.run("two-stage-2").rankings)
    large = rows(shared.run("two-stage-20").rankings)
    assert small == rows(contest(pictures, toy, depth=3).run("two-stage-2").rankings)
    assert large == rows(contest(pictures, toy, depth=50).run("two-stage-20").rankings)
    assert {len(row) for row in rows(shared.run("bm25v").rankings)} == {4}


def test_fusions_by_hand() -> None:
    dense = np.array([[1, 0], [0.8, 0.6], [0, 1]], np.float16)
    both = (dense, np.array([[1, 0]], np.float32))
    found = [Ranked(np.array([2, 1, 0]), np.array([8.0, 6.0, 2.0]))]
    scores = {}
    for kind in ("coverage", "convex", "rrf"):
        settings = RankingSettings(fusion=kind, weight=0.5)
        (ranked,) = fusion.fuse(found, both, np.array([10.0]), settings)
        scores[kind] = dict(zip(ranked.rows.tolist(), ranked.scores.tolist(), strict=True))
        assert (np.diff(ranked.scores) <= 0).all()
    expected = {
        "coverage": {0: 1 + 0.1, 1: 0.8 + 0.3, 2: 0 + 0.4},
        "convex": {0: 0.5, 1: 0.4 + 0.5 * 4 / 6, 2: 0.5},
        "rrf": {0: 1 / 61 + 1 / 63, 1: 1 / 62 + 1 / 62, 2: 1 / 63 + 1 / 61},
    }
    for kind, values in expected.items():
        assert scores[kind] == pytest.approx(values, abs=1e-3)
    assert fusion.fuse(
        [Ranked(np.empty(0, int), np.empty(0))], both, np.zeros(1), RankingSettings()
    )


def test_no_picture_can_score_more_than_the_most(
    pictures: DatasetFeatures, toy: Vocabulary
) -> None:
    one = contest(pictures, toy, query="sqrt-tf")
    best = np.array([ranked.scores[0] for ranked in one.run("bm25v").rankings])
    assert (best < one.words.max_score_q).all()
    assert (best > 0.2 * one.words.max_score_q).all()


def test_without_weight_a_fusion_is_two_stage(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    plain = rows(contest(pictures, toy).run("two-stage-9").rankings)
    assert plain == rows(contest(pictures, toy, candidates=9, weight=0.0).run("hybrid").rankings)
    assert plain != rows(contest(pictures, toy, candidates=9, weight=5.0).run("hybrid").rankings)


def test_coverage_is_of_bm25(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    with pytest.raises(WrongUse, match="fusion coverage needs scoring bm25, not dot"):
        contest(pictures, toy, scoring="dot").run("hybrid")
    assert contest(pictures, toy, scoring="dot", fusion="rrf").run("hybrid").rankings
    with pytest.raises(WrongUse, match="or leave out hybrid"):
        resolve_systems(["hybrid"], RankingSettings(scoring="dot"))


def test_dot_is_of_the_same_words(pictures: DatasetFeatures, toy: Vocabulary) -> None:
    dot = rows(contest(pictures, toy).run("dot").rankings)
    assert dot == rows(contest(pictures, toy, scoring="dot").run("bm25v").rankings)


def test_classical_words_are_scored_by_brute_force(pictures: DatasetFeatures) -> None:
    words_up = classical.cluster_patches(pictures)
    answers, n_words = classical.rank_bovw(pictures, 201)
    assert n_words == 24 * 49 // 8  # few patches make few words
    assert words_up.shape == (24, 49)
    counts = np.stack([np.bincount(words, minlength=n_words) for words in words_up])
    counts = counts[pictures.gallery_index_n]
    weighed = counts * np.log(24 / np.maximum((counts > 0).sum(axis=0), 1))
    weighed /= np.linalg.norm(weighed, axis=1, keepdims=True)
    for row, ranked in enumerate(answers):
        assert ranked.rows[0] == row
        np.testing.assert_allclose(ranked.scores, (weighed @ weighed[row])[ranked.rows], atol=1e-9)


def test_systems_have_names() -> None:
    assert resolve_systems(["two-stage", "dense", "dense"], RankingSettings()) == [
        "two-stage-200",
        "dense",
    ]
    with pytest.raises(WrongUse, match="there is no system 'bm25'; choose from dense, bm25v"):
        resolve_systems(["bm25"], RankingSettings())
    with pytest.raises(WrongUse, match="no system 'two-stage-0'"):
        resolve_systems(["two-stage-0"], RankingSettings())
    with pytest.raises(WrongUse, match="no systems are given"):
        resolve_systems([], RankingSettings())


# RankingSettings


def test_settings_refuse_nonsense() -> None:
    with pytest.raises(WrongUse, match="pooling = 'mean': choose one of sum, max, top3"):
        RankingSettings(pooling="mean")  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match=r"b = 1\.5: give a number from 0 to 1"):
        RankingSettings(b=1.5)
    with pytest.raises(WrongUse, match="k_post = 0: it must be at least 1"):
        RankingSettings(k_post=0)
    with pytest.raises(WrongUse, match="k1 = nan"):
        RankingSettings(k1=float("nan"))
    with pytest.raises(WrongUse, match="there is no setting 'kpost'; choose one of k_post"):
        RankingSettings().with_value("kpost", "1")
    with pytest.raises(WrongUse, match="quantised = 'maybe': it must be on or off"):
        RankingSettings().with_value("quantised", "maybe")
    assert RankingSettings().with_value("quantised", "off").with_value(
        "b", "0.5"
    ) == RankingSettings(quantised=False, b=0.5)


def test_the_paper_is_a_preset() -> None:
    paper = PRESETS["paper"]
    assert (paper.k_post, paper.k1, paper.b, paper.candidates) == (16, 1.5, 0.75, 200)
    assert (paper.pooling, paper.tf, paper.query, paper.scoring) == (
        "sum",
        "none",
        "presence",
        "bm25",
    )
    assert paper.quantised


# Results


def test_figures_come_with_intervals_and_a_test(data: Path, cache: Path, toy: Vocabulary) -> None:
    result = evaluate(
        datasets.load("folder", data), toy, systems=["dense", "dot"], cache=cache, per_class=True
    )
    dense, dot = result.systems["dense"], result.systems["dot"]
    assert list(dense.metrics) == [*KS, "mAP"]
    for one in (dense, dot):
        for interval in one.metrics.values():
            assert interval.low <= interval.mean <= interval.high
    assert not dense.against_dense
    compared = dot.against_dense["mAP"]
    assert compared.difference == pytest.approx(dot.metrics["mAP"].mean - dense.metrics["mAP"].mean)
    assert {label: one["queries"] for label, one in dense.classes.items()} == dict.fromkeys(
        "abcd", 6
    )
    means = [one["R@1"] for one in dense.classes.values()]
    assert np.mean(means) == pytest.approx(dense.metrics["R@1"].mean)


def test_several_intervals_are_those_of_each() -> None:
    values_qm = np.random.default_rng(0).random((50, 3))
    for column, found in zip(
        values_qm.T, significance.confidence_intervals(values_qm), strict=True
    ):
        assert found == pytest.approx(significance.confidence_interval(column))


def test_without_dense_nothing_is_compared_with_it(
    data: Path, cache: Path, toy: Vocabulary
) -> None:
    result = evaluate(datasets.load("folder", data), toy, systems=["bm25v"], cache=cache)
    assert list(result.systems) == ["bm25v"]
    assert result.systems["bm25v"].against_dense == {}


def test_sets_to_learn_from_are_refused(data: Path, tmp_path: Path, toy: Vocabulary) -> None:
    (tmp_path / "imagenet").mkdir()
    data.rename(tmp_path / "imagenet" / "train")
    with pytest.raises(EvaluationError, match="imagenet has no queries"):
        evaluate(datasets.load("imagenet", tmp_path), toy)


def landmarks(root: Path) -> None:
    """Eight pictures and two queries, each of which is a part of a larger picture."""
    for number in range(8):
        save(root / "jpg" / f"p{number}.jpg", number, number % 2)
    for label in range(2):
        save(root / "small.png", 50 + label, label)
        large = Image.new("RGB", (200, 100), "white")
        large.paste(Image.open(root / "small.png"), (100, 20))
        large.save(root / "jpg" / f"q{label}.jpg", quality=95)
    truth = [
        {"bbx": [100, 20, 156, 76], "easy": [0, 2], "hard": [4], "junk": [6]},
        {"bbx": [100, 20, 156, 76], "easy": [1, 3, 5, 7], "hard": [], "junk": []},
    ]
    content = {
        "imlist": [f"p{number}" for number in range(8)],
        "qimlist": ["q0", "q1"],
        "gnd": truth,
    }
    (root / "gnd_roxford5k.json").write_text(json.dumps(content))


def test_revisited_sets_have_their_own_protocol_and_queries_their_boxes(
    tmp_path: Path, cache: Path, toy: Vocabulary, run: Run
) -> None:
    landmarks(tmp_path / "r")
    dataset = datasets.load("roxford5k", tmp_path / "r")
    pictures = extract_features(dataset, toy, cache=cache)
    boxed = np.asarray(Image.open(tmp_path / "r/jpg/q0.jpg"))[20:76, 100:156]
    np.testing.assert_allclose(
        pictures.dense_ue[pictures.query_index_q[0]], toy.encode(boxed).dense_e, rtol=1e-5
    )
    result = evaluate(dataset, toy, systems=["dense", "bm25v"], cache=cache)
    ranked = vectors.rank_dense(
        (
            pictures.dense_ue[pictures.gallery_index_n].astype(np.float16),
            pictures.dense_ue[pictures.query_index_q],
        ),
        8,
    )
    expected = metrics.judge_revisited(rows(ranked), dataset.gallery, dataset.queries)
    figures = result.systems["dense"].metrics
    assert list(figures)[:3] == ["mAP easy", "mAP medium", "mAP hard"]
    for setup, one in expected.items():
        assert figures[f"mAP {setup}"].mean == pytest.approx(one.mean_ap)
        assert figures[f"mP@5 {setup}"].mean == pytest.approx(one.mean_precision[5])
    code, out, _ = run("--systems", "dense", name="roxford5k", folder=tmp_path / "r")
    assert code == 0
    assert "mAP easy" in out
    assert "R@1" not in out


def test_a_box_outside_its_picture_is_reported(
    tmp_path: Path, cache: Path, toy: Vocabulary
) -> None:
    landmarks(tmp_path / "r")
    path = tmp_path / "r" / "gnd_roxford5k.json"
    path.write_text(path.read_text().replace("[100, 20, 156, 76]", "[900, 20, 956, 76]", 1))
    result = evaluate(
        datasets.load("roxford5k", tmp_path / "r"), toy, systems=["dense"], cache=cache
    )
    assert len(result.dataset.queries) == 1
    assert any("lies outside the image of 200 × 100 pixels" in one for one in result.problems)


# The command


def test_json_has_the_promised_shape(run: Run) -> None:
    code, out, err = run("--json", "-")
    assert code == 0
    found = json.loads(out)
    assert (found["dataset"], found["queries"], found["gallery"]) == ("data", 24, 24)
    assert tuple(found["systems"]) == SYSTEMS
    for name, system in found["systems"].items():
        assert tuple(system)[:8] == (*KS, "mAP")
        assert all(0 <= system[figure] <= 1 for figure in KS)
        assert set(system["ci"]) == {*KS, "mAP"}
        assert ("against_dense" in system) == (name != "dense")
    assert found["systems"]["dense"]["R@1"] > 0.5
    assert found["vocabulary"]["backbone"] == "toy"
    assert found["vocabulary"]["learnt_from"] == "not stated"
    assert found["settings"]["k_post"] == 16
    assert "m 48" in found["systems"]["ivfpq"]["about"]
    assert found["problems"] == err.removeprefix("note: ").strip().split("\n")


def test_json_goes_to_a_file_beside_the_table(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--systems", "dense,bm25v", "--json", tmp_path / "r.json")
    assert code == 0
    assert list(json.loads((tmp_path / "r.json").read_text())["systems"]) == ["dense", "bm25v"]
    assert "two-stage" not in out
    assert "bm25v" in out


def test_the_table_says_what_it_is_of(run: Run) -> None:
    _, out, _ = run("--systems", "dense,two-stage,dot", "--per-class", "--set", "k_post=4")
    assert (
        "data: 24 queries, gallery of 24 images; leave-one-out; 0 queries without a possible match"
        in out
    )
    assert "vocabulary toy: 192 words of toy, k 8, k_post 4; trained on: not stated" in out
    assert "settings: k_post 4" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert len(lines["two-stage-200"]) > 10
    assert lines["a"][1] == "6"


def test_formats_tell_the_same(run: Run, tmp_path: Path) -> None:
    wanted = ("--systems", "dense,bm25v")
    found = json.loads(run(*wanted, "--json", "-")[1])["systems"]
    _, text, _ = run(*wanted, "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["system"] for line in lines] == ["dense", "bm25v"]
    assert float(lines[1]["R@5"]) == found["bm25v"]["R@5"]
    assert float(lines[1]["R@1 low"]) == found["bm25v"]["ci"]["R@1"][0]
    short = f"{found['bm25v']['mAP']:.3f}".lstrip("0")
    for name, start in (("t.md", "| bm25v | "), ("t.tex", "    bm25v & "), ("t.txt", "bm25v")):
        code, out, _ = run(*wanted, "-o", tmp_path / name)
        assert (code, out) == (0, "")
        written = (tmp_path / name).read_text()
        (line,) = (line for line in written.splitlines() if line.startswith(start))
        assert short in line
    assert run(*wanted, "--format", "markdown")[1] == (tmp_path / "t.md").read_text()
    latex = (tmp_path / "t.tex").read_text()
    assert latex.count(r"\\") == 3
    assert r"95 \%" in latex
    assert r"k\_post" in latex


def test_trec_files_give_other_tools_the_same_figures(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--systems", "dense,bm25v", "--run", tmp_path / "trec", "--json", "-")
    assert code == 0
    qrels = list(ir_measures.read_trec_qrels(str(tmp_path / "trec" / "qrels.txt")))
    measures = [ir_measures.Success @ 1, ir_measures.Success @ 5, ir_measures.AP]
    for name, system in json.loads(out)["systems"].items():
        answers = ir_measures.read_trec_run(str(tmp_path / "trec" / f"{name}.run"))
        outside = ir_measures.calc_aggregate(measures, qrels, answers)
        ours = [system["R@1"], system["R@5"], system["mAP"]]
        assert [outside[measure] for measure in measures] == pytest.approx(ours)


def test_bad_input_is_counted_and_said(run: Run, data: Path) -> None:
    save(data / "lonely" / "one.png", 7, 9)
    (data / "a" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and no more")
    (data / "b" / "twin.png").write_bytes((data / "c" / "2.png").read_bytes())
    code, out, err = run("--systems", "dense", "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert (found["gallery"], found["unanswerable"]) == (26, 1)
    for part in (
        "queries without another image of their class in the gallery: 1 (lonely/one.png)",
        "unreadable and left out: 1 (a/torn.png: ",
        "the same content in several classes: 1 (b/twin.png = c/2.png)",
        "R@50, R@100, R@200 cover the whole gallery: it has only 25 images to find",
    ):
        assert f"note: {part}" in err
        assert any(part in problem for problem in found["problems"])


def test_a_split_naming_missing_files_goes_on_without_them(
    run: Run, data: Path, tmp_path: Path
) -> None:
    lines = [f"{path.relative_to(data)}\tgallery" for path in sorted(data.rglob("*.png"))]
    lines[0], lines[6] = (line.replace("gallery", "query") for line in (lines[0], lines[6]))
    lines.append("a/gone.png\tgallery")
    (tmp_path / "split.tsv").write_text("\n".join(lines))
    code, out, err = run("--split", tmp_path / "split.tsv", "--systems", "dense", "--json", "-")
    assert code == 0
    found = json.loads(out)
    assert (found["queries"], found["gallery"]) == (2, 22)
    assert found["protocol"] == "by split.tsv"
    assert "note: missing and left out: 1 (a/gone.png)" in err


def failed(outcome: tuple[int, str, str], code: int, *parts: str) -> None:
    assert outcome[:2] == (code, "")
    (line,) = outcome[2].splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_wrong_use_is_one_line(run: Run, tmp_path: Path) -> None:
    failed(run(name="pets37"), 2, "there is no data set 'pets37'", "'folder' is any folder")
    failed(run("--systems", "bm25"), 2, "no system 'bm25'")
    failed(run("--set", "k_post"), 2, "write it like --set k_post=64")
    failed(run("--set", "query=log"), 2, "query = 'log': choose one of presence, tf")
    failed(run("--preset", "mine"), 2, "mine")
    failed(run(folder=tmp_path / "nowhere"), 1, "there is no such folder")
    failed(run(name="cub200"), 1, "classes.txt is missing; expected: ")
    failed(run("--split", tmp_path / "no.tsv"), 1, "no.tsv cannot be read")


def test_trec_files_of_revisited_sets_are_refused(run: Run, tmp_path: Path) -> None:
    landmarks(tmp_path / "r")
    outcome = run("--run", tmp_path / "t", name="roxford5k", folder=tmp_path / "r")
    assert outcome[0] == 2
    assert "cannot be written as TREC files" in outcome[2]


def test_a_missing_extra_names_the_command(
    run: Run, monkeypatch: pytest.MonkeyPatch, forwards: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    failed(run(), 1, "pip install 'bm25v[research]'")
    assert not forwards
    code, out, _ = run("--systems", "dense,bm25v,two-stage-100,hybrid", "--json", "-")
    assert code == 0
    assert len(json.loads(out)["systems"]) == 4
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    failed(run("--systems", "dot"), 1, "pip install 'bm25v[research]'")
    with pytest.raises(MissingExtra):
        resolve_systems(["bm25v"], replace(RankingSettings(), tf="sqrt"))
    assert run("--systems", "bm25v")[0] == 0


def test_stores_of_two_processes_add_up(cache: Path) -> None:
    def shard(key: bytes) -> ImageFeatures:
        return ImageFeatures([key], np.zeros((1, 2, 3), np.float16), np.ones((1, 3), np.float32))

    keys = {b"1" * 16, b"2" * 16}
    one, other = ImageFeatureStore(cache, keys), ImageFeatureStore(cache, keys)
    for store_of, key in zip((one, other), sorted(keys), strict=True):
        store_of.add(shard(key))
    assert set(ImageFeatureStore(cache, keys).dense) == keys
    assert set(ImageFeatureStore(cache, {b"1" * 16, b"3" * 16}).dense) == {b"1" * 16}
