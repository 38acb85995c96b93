"""Features, systems and metrics, compared with the plain formula, brute force and other tools."""

import csv
import io
import json
import pickle
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

from bm25v.backbones import Features
from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import EvaluationError, InvalidOption, MissingExtra
from bm25v.extras import install_command
from bm25v.index import bm25
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import Ranked
from bm25v.research import datasets, features, metrics
from bm25v.research.bags import BagTable, compute_codes, pool_bags
from bm25v.research.evaluate import evaluate
from bm25v.research.features import (
    DatasetFeatures,
    ImageFeatureStore,
    extract_features,
)
from bm25v.research.settings import ALL, RankingSettings
from bm25v.research.systems import (
    SYSTEMS,
    SystemRunner,
    resolve_systems,
    sparse,
    vectors,
)
from bm25v.research.systems.sparse import WordRanker
from bm25v.sae.model import Codes
from bm25v.training import patches
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.test_cli import Outcome, Run

in_shell = test_cli.run

KS = ("R@1", "R@5", "R@10", "R@20", "R@50", "R@100", "R@200")


def save(path: Path, seed: int, label: int, *, side: int = 56) -> None:
    """Save an image that resembles the others of its label."""
    common = np.random.default_rng(label).integers(0, 256, (7, 7, 3))
    own = np.random.default_rng(1000 + seed).integers(-90, 91, (7, 7, 3))
    blocks = np.clip(common + own, 0, 255).astype(np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST).save(path)


def save_classes(folder: Path, labels: str, n_images: int) -> Path:
    """Save images into class folders, in turn."""
    for number in range(n_images):
        label = number % len(labels)
        save(folder / labels[label] / f"{number}.png", number, label)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Four classes of six images."""
    return save_classes(tmp_path / "data", "abcd", 24)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def toy() -> Vocabulary:
    return Vocabulary.load("toy")


@pytest.fixture
def extracted(data: Path, cache: Path, toy: Vocabulary) -> DatasetFeatures:
    return extract_features(datasets.load("folder", data), toy, cache=cache)


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many images each call of the backbone encodes."""
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


def test_a_second_run_reads_features_from_the_cache(
    data: Path, cache: Path, toy: Vocabulary, forwards: list[int]
) -> None:
    dataset = datasets.load("folder", data)
    first = evaluate(dataset, toy, cache=cache)
    assert sum(forwards) == 24
    second = evaluate(dataset, toy, cache=cache)
    assert sum(forwards) == 24
    assert first.to_dict() == second.to_dict()


def test_features_are_cached_by_the_content_of_images(
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


def test_features_are_those_of_the_backbone(extracted: DatasetFeatures, toy: Vocabulary) -> None:
    patches_of_image = {
        int(row): patches
        for several, many in extracted.patches()
        for row, patches in zip(several, many, strict=True)
    }
    assert len(patches_of_image) == 24
    for item, row in zip(
        extracted.dataset.gallery, extracted.gallery_index_n.tolist(), strict=True
    ):
        expected = toy.backbone.forward(toy.prepare(item.path))
        np.testing.assert_array_equal(patches_of_image[row], expected.patches_pd.astype(np.float16))
        np.testing.assert_allclose(
            extracted.dense_ue[row], toy.encode(item.path).dense_e, rtol=1e-6
        )


def test_extracted_features_can_be_passed_instead_of_the_data_set(
    extracted: DatasetFeatures, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(features, "hash_file", read.append)
    assert extract_features(extracted, toy) is extracted
    assert evaluate(extracted, toy, systems=["dense"]).dataset is extracted.dataset
    assert not read
    other = replace(toy, backbone_fingerprint="another")
    with pytest.raises(InvalidOption, match="features of data come from another backbone than toy"):
        extract_features(extracted, other)


def test_an_interrupted_extraction_continues(
    data: Path, cache: Path, toy: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patches, "available_cpus", lambda: 1)
    original, seen = ToyBackbone.forward_batch, [0]

    def interrupt(self: ToyBackbone, batch: list[Any]) -> Any:
        seen[0] += len(batch)
        if seen[0] == 12:
            raise KeyboardInterrupt
        return original(self, batch)

    monkeypatch.setattr(ToyBackbone, "forward_batch", interrupt)
    with pytest.raises(KeyboardInterrupt):
        extract_features(datasets.load("folder", data), toy, cache=cache)
    seen[0] = 100
    assert len(extract_features(datasets.load("folder", data), toy, cache=cache)) == 24
    assert seen[0] - 100 == 24 - 8


@pytest.mark.parametrize("part", ["features", "words"])
@pytest.mark.parametrize("harm", ["flip", "cut"])
def test_damaged_files_in_the_cache_are_computed_again(
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


def test_an_error_names_an_image_that_disappeared_together_with_its_features(
    extracted: DatasetFeatures, data: Path, cache: Path
) -> None:
    for path in (cache / "features").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100] + bytes(100))
    (data / "a" / "0.png").unlink()
    with pytest.raises(EvaluationError, match=r"0\.png can no longer be read"):
        list(extracted.patches())


def test_an_error_names_a_cache_folder_that_cannot_be_written(
    data: Path, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "file").write_text("")
    code, out, err = run("--cache", tmp_path / "file" / "in")
    assert (code, out) == (1, "")
    assert "name another folder with --cache" in err


# Bags


@given(st.integers(0, 2**32 - 1), st.integers(1, 12))
def test_default_bags_are_those_of_indexing(seed: int, k_post: int) -> None:
    rng = np.random.default_rng(seed)
    activations = np.maximum(rng.normal(0.3, 0.5, (5, 4, 3)), 0).round(2).astype(np.float32)
    codes_upk = Codes(rng.integers(0, 12, (5, 4, 3), dtype=np.int32), activations)
    table = pool_bags(codes_upk, RankingSettings.paper(), k_post=k_post)
    for row in range(5):
        expected = bags.pool_codes(Codes(codes_upk.words_pk[row], activations[row]), k_post=k_post)
        words, tf = table.row(row)
        assert words.tolist() == expected.words.tolist()
        assert tf.tolist() == expected.frequencies.tolist()


def test_pooling_sums_all_the_largest_or_the_three_largest_activations() -> None:
    codes_upk = Codes(
        np.array([[[1], [1], [1], [1], [2]]]), np.array([[[4.0], [1.0], [2.0], [3.0], [5.0]]])
    )
    tf = {
        pooling: pool_bags(codes_upk, RankingSettings(pooling=pooling), k_post=9).tf_nk.tolist()
        for pooling in ("sum", "top3", "max")
    }
    assert tf == {"sum": [[10, 5]], "top3": [[9, 5]], "max": [[4, 5]]}


def test_half_precision_hardly_changes_the_words(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    table = pool_bags(compute_codes(extracted, toy), RankingSettings.paper(), k_post=toy.k_post)
    same = 0
    for item, row in zip(
        extracted.dataset.gallery, extracted.gallery_index_n.tolist(), strict=True
    ):
        same += len(np.intersect1d(table.row(row)[0], toy.bag(item.path).words))
    assert same >= 0.99 * 24 * toy.k_post


def test_quantisation_can_be_switched_off() -> None:
    codes_upk = Codes(np.array([[[1, 2]]]), np.array([[[1.2345, 0.001]]]))
    exact = pool_bags(codes_upk, RankingSettings(quantised=False), k_post=9)
    assert exact.tf_nk.tolist() == [[1.2345, 0.001]]
    assert pool_bags(codes_upk, RankingSettings(), k_post=9).tf_nk.tolist() == [[1.23]]


# Ranking by words


def reference_search(gallery: BagTable, queries: BagTable, weigh: Any, k: int) -> list[list[int]]:
    stored = [as_bag(gallery.row(row)) for row in range(len(gallery.tf_nk))]
    rankings = []
    for row in range(len(queries.tf_nk)):
        words, tf = queries.row(row)
        hits = bm25.reference_search(
            stored, WeightedWords(words.astype(np.int32), weigh(tf), tf), k
        )
        rankings.append([number for number, _ in hits])
    return rankings


@given(st.integers(0, 2**32 - 1))
def test_paper_settings_rank_like_the_plain_formula(seed: int) -> None:
    gallery, queries = random_bags(15, seed), random_bags(4, seed + 1)
    words = WordRanker(gallery, queries, n_words=30, settings=RankingSettings.paper())
    assert RankingSettings.paper().fits_index
    rankings = [ranked.rows.tolist() for ranked in words.search(6)]
    assert rankings == reference_search(gallery, queries, np.ones_like, 6)


@pytest.mark.parametrize("query", ["presence", "tf", "sqrt-tf", "saturated"])
@pytest.mark.parametrize("changes", [{}, {"stop": 0.2}, {"k1": 0.9, "b": 0.3}])
def test_matrices_rank_like_the_index(
    query: Any, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = RankingSettings(query=query, **changes)
    words = WordRanker(random_bags(300, 1), random_bags(40, 2), n_words=30, settings=settings)
    by_index = words.search(50)
    monkeypatch.setattr(sparse, "INDEX_FROM", 0)
    for scanned, indexed in zip(by_index, words.search(50), strict=True):
        assert scanned.rows.tolist() == indexed.rows.tolist()
        assert scanned.scores.tolist() == indexed.scores.tolist()
    monkeypatch.setattr(RankingSettings, "fits_index", False)
    monkeypatch.setattr(sparse, "BLOCK_SCORES", 2_100)  # seven queries at a time
    by_matrix = words.search(50)
    assert any(len(ranked.rows) == 50 for ranked in by_index)
    for engine, product in zip(by_index, by_matrix, strict=True):
        assert engine.rows.tolist() == product.rows.tolist()
        np.testing.assert_allclose(engine.scores, product.scores, rtol=1e-12)


@pytest.mark.parametrize("scoring", ["bm25", "tfidf", "cosine", "dot", "idf", "binary"])
def test_scorings_equal_their_definitions(scoring: Any) -> None:
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


def test_queries_can_have_more_words_than_images(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    alike, more = runner(extracted, toy, k_post=4), runner(extracted, toy, k_post=4, k_query=12)
    assert alike.words.words_per_image == more.words.words_per_image == 4
    assert more.words.postings_per_query > alike.words.postings_per_query
    assert rows(more.run("bm25v").rankings) != rows(alike.run("bm25v").rankings)
    same = runner(extracted, toy, k_post=4, k_query=4)
    assert rows(same.run("bm25v").rankings) == rows(alike.run("bm25v").rankings)


def test_words_and_postings_are_counted() -> None:
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
def test_dense_rankings_equal_brute_force(worth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vectors, "COMPILE_FROM", worth)
    gallery, queries = some_vectors(50, 24)
    rankings = vectors.rank_dense((gallery, queries), 7)
    exact = gallery.astype(np.float64)
    cosines = queries @ (exact / np.linalg.norm(exact, axis=1, keepdims=True)).T
    for row, ranked in enumerate(rankings):
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


@pytest.mark.parametrize(
    ("n", "dim", "bits", "lists", "probes"), [(624, 96, 4, 16, 4), (5_000, 320, 7, 71, 8)]
)
def test_ivfpq_has_trained_lists(n: int, dim: int, bits: int, lists: int, probes: int) -> None:
    import faiss

    both = some_vectors(n, dim)
    index = vectors.build_ivfpq(vectors.to_unit_float32(both[0]))
    assert isinstance(index, faiss.IndexIVFPQ)
    assert (index.pq.M, index.pq.nbits) == (48, bits)
    assert (index.nlist, index.nprobe) == (lists, probes)
    assert n >= 39 * lists  # as faiss asks for
    assert index.metric_type == faiss.METRIC_INNER_PRODUCT
    assert index.d == 48 * -(-dim // 48)
    assert index.ntotal == n
    for ranked in vectors.search_faiss(index, both[1], 201):
        assert 1 <= len(ranked.rows) <= n
        assert (ranked.rows >= 0).all()


def test_ivfpq_finds_most_neighbours() -> None:
    rng = np.random.default_rng(0)
    topics_te = rng.standard_normal((60, 96))
    images_ne = np.repeat(topics_te, 12, axis=0) + 0.5 * rng.standard_normal((720, 96))
    floats_ne = vectors.to_unit_float32(images_ne.astype(np.float16))
    exact = [
        ranked.rows for ranked in vectors.rank_dense((images_ne.astype(np.float16), floats_ne), 10)
    ]
    answers = vectors.search_faiss(vectors.build_ivfpq(floats_ne), floats_ne, 10)
    recall = np.mean(
        [np.isin(rows, answer.rows) for rows, answer in zip(exact, answers, strict=True)]
    )
    assert recall > 0.85


def test_a_folder_and_a_vocabulary_make_a_table(data: Path, cache: Path, tmp_path: Path) -> None:
    result = evaluate(data, "toy", systems=["dense", "bm25v"], cache=cache)
    assert [line.split()[0] for line in str(result).splitlines()[-2:]] == ["dense", "bm25v"]
    result.save(tmp_path / "table.md")
    assert "| bm25v |" in (tmp_path / "table.md").read_text()


def test_ivfpq_is_left_out_where_it_cannot_be_trained(run: Run) -> None:
    code, out, err = run("--systems", "dense,ivfpq")
    assert code == 0
    assert "ivfpq" not in out
    assert "ivfpq cannot be trained on 24 images: it needs 624, and is left out" in err
    failed(run("--systems", "ivfpq"), 1, "ivfpq cannot be trained on 24 images: it needs 624")


@pytest.mark.parametrize("dim", [12, 48, 320, 1152])
def test_padded_vectors_have_the_same_dot_products(dim: int) -> None:
    gallery, queries = some_vectors(9, dim)
    floats = gallery.astype(np.float32)
    padded, padded_queries = vectors.pad_to_parts(floats), vectors.pad_to_parts(queries)
    np.testing.assert_allclose(padded_queries @ padded.T, queries @ floats.T, atol=1e-5)
    used = (np.abs(padded).reshape(9, 48, -1).max(axis=0) > 0).sum(axis=1)
    assert used.max() - used.min() <= 1


# Systems


def runner(
    extracted: DatasetFeatures, toy: Vocabulary, depth: int = 200, **changes: Any
) -> SystemRunner:
    return SystemRunner(extracted, toy, RankingSettings(**changes), depth=depth)


def rows(answers: Sequence[Ranked]) -> list[list[int]]:
    return [ranked.rows.tolist() for ranked in answers]


def test_the_query_is_not_one_of_its_candidates(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    by_words = rows(runner(extracted, toy).run("bm25v").rankings)
    cosines = extracted.dense_ue @ extracted.dense_ue.T
    two_stage = runner(extracted, toy).run("two-stage-5").rankings
    for own, (first, second) in enumerate(zip(by_words, two_stage, strict=True)):
        others = [row for row in first if row != own][:5]
        assert own in first
        assert len(second.rows) == 5
        assert sorted(second.rows.tolist()) == sorted(others)
        scores = cosines[extracted.gallery_index_n[own], extracted.gallery_index_n[second.rows]]
        np.testing.assert_allclose(second.scores, scores, atol=1e-3)  # kept in half precision
        assert (np.diff(second.scores) <= 0).all()


def test_a_short_ranking_is_the_beginning_of_a_long_one(
    extracted: DatasetFeatures, toy: Vocabulary
) -> None:
    """Systems share one search, in whatever order they run."""
    shared = runner(extracted, toy, depth=3)
    small = rows(shared.run("two-stage-2").rankings)
    large = rows(shared.run("two-stage-20").rankings)
    assert small == rows(runner(extracted, toy, depth=3).run("two-stage-2").rankings)
    assert large == rows(runner(extracted, toy, depth=50).run("two-stage-20").rankings)
    assert {len(row) for row in rows(shared.run("bm25v").rankings)} == {4}


def test_the_system_dot_uses_the_same_words(extracted: DatasetFeatures, toy: Vocabulary) -> None:
    dot = rows(runner(extracted, toy).run("dot").rankings)
    assert dot == rows(runner(extracted, toy, scoring="dot").run("bm25v").rankings)


def test_classical_rankings_equal_brute_force(extracted: DatasetFeatures) -> None:
    words_up = sparse.cluster_patches(extracted)
    answers, n_words = sparse.rank_clusters(extracted, 201)
    assert n_words == 24 * 49 // 8  # few patches make few words
    assert words_up.shape == (24, 49)
    counts = np.stack([np.bincount(words, minlength=n_words) for words in words_up])
    counts = counts[extracted.gallery_index_n]
    weighed = counts * np.log(24 / np.maximum((counts > 0).sum(axis=0), 1))
    weighed /= np.linalg.norm(weighed, axis=1, keepdims=True)
    for row, ranked in enumerate(answers):
        assert ranked.rows[0] == row
        np.testing.assert_allclose(ranked.scores, (weighed @ weighed[row])[ranked.rows], atol=1e-9)


def test_system_names_are_completed_and_checked() -> None:
    assert resolve_systems(["two-stage", "dense", "dense"], RankingSettings()) == [
        "two-stage-200",
        "dense",
    ]
    with pytest.raises(InvalidOption, match="there is no system 'bm25'; choose from dense, bm25v"):
        resolve_systems(["bm25"], RankingSettings())
    with pytest.raises(InvalidOption, match="no system 'two-stage-0'"):
        resolve_systems(["two-stage-0"], RankingSettings())
    with pytest.raises(InvalidOption, match="no systems are given"):
        resolve_systems([], RankingSettings())
    staged = ["words", "hybrid-500", "words-all", "two-stage-all"]
    assert resolve_systems(staged, RankingSettings(candidates=50)) == staged
    assert resolve_systems(["two-stage"], RankingSettings(candidates=ALL)) == ["two-stage-all"]
    with pytest.raises(InvalidOption, match="no system 'dense-200'"):
        resolve_systems(["dense-200"], RankingSettings())


# RankingSettings


def test_invalid_settings_are_errors() -> None:
    with pytest.raises(InvalidOption, match="pooling = 'mean': choose one of sum, max, top3"):
        RankingSettings(pooling="mean")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"b = 1\.5: give a number from 0 to 1"):
        RankingSettings(b=1.5)
    with pytest.raises(InvalidOption, match="k_post = 0: it must be at least 1"):
        RankingSettings(k_post=0)
    with pytest.raises(InvalidOption, match="k1 = nan"):
        RankingSettings(k1=float("nan"))
    with pytest.raises(InvalidOption, match="there is no setting 'kpost'; choose one of k_post"):
        RankingSettings().with_value("kpost", "1")
    with pytest.raises(InvalidOption, match="quantised = 'maybe': it must be on or off"):
        RankingSettings().with_value("quantised", "maybe")
    assert RankingSettings().with_value("quantised", "off").with_value(
        "b", "0.5"
    ) == RankingSettings(quantised=False, b=0.5)


def test_the_preset_paper_has_the_papers_settings() -> None:
    paper = RankingSettings.paper()
    assert (paper.k_post, paper.k1, paper.b) == (16, 1.5, 0.75)
    assert paper.candidates_for("two-stage") == 200
    assert (paper.pooling, paper.tf, paper.index_weighting, paper.scoring) == (
        "sum",
        "none",
        "presence",
        "bm25",
    )
    assert paper.quantised


# Results


def test_metrics_have_intervals_and_are_compared_with_dense(
    data: Path, cache: Path, toy: Vocabulary
) -> None:
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


def test_several_intervals_equal_single_ones() -> None:
    values_qm = np.random.default_rng(0).random((50, 3))
    for column, interval in zip(values_qm.T, metrics.confidence_intervals(values_qm), strict=True):
        assert interval == pytest.approx(metrics.confidence_interval(column))


def test_without_dense_nothing_is_compared(data: Path, cache: Path, toy: Vocabulary) -> None:
    result = evaluate(datasets.load("folder", data), toy, systems=["bm25v"], cache=cache)
    assert list(result.systems) == ["bm25v"]
    assert result.systems["bm25v"].against_dense == {}


def landmarks(root: Path, *, box: Sequence[int] = (100, 20, 156, 76)) -> None:
    """Eight images and two queries, each of which is a part of a larger image."""
    for number in range(8):
        save(root / "jpg" / f"p{number}.jpg", number, number % 2)
    for label in range(2):
        save(root / "small.png", 50 + label, label)
        large = Image.new("RGB", (200, 100), "white")
        large.paste(Image.open(root / "small.png"), (100, 20))
        large.save(root / "jpg" / f"q{label}.jpg", quality=95)
    truth = [
        {"bbx": box, "easy": [0, 2], "hard": [4], "junk": [6]},
        {"bbx": [100, 20, 156, 76], "easy": [1, 3, 5, 7], "hard": [], "junk": []},
    ]
    content = {
        "imlist": [f"p{number}" for number in range(8)],
        "qimlist": ["q0", "q1"],
        "gnd": truth,
    }
    (root / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(content))


def test_revisited_data_sets_have_their_own_protocol_and_boxed_queries(
    tmp_path: Path, cache: Path, toy: Vocabulary, run: Run
) -> None:
    landmarks(tmp_path / "r")
    dataset = datasets.load("roxford5k", tmp_path / "r")
    extracted = extract_features(dataset, toy, cache=cache)
    boxed = np.asarray(Image.open(tmp_path / "r/jpg/q0.jpg"))[20:76, 100:156]
    np.testing.assert_allclose(
        extracted.dense_ue[extracted.query_index_q[0]], toy.encode(boxed).dense_e, rtol=1e-5
    )
    result = evaluate(dataset, toy, systems=["dense", "bm25v"], cache=cache)
    ranked = vectors.rank_dense(
        (
            extracted.dense_ue[extracted.gallery_index_n].astype(np.float16),
            extracted.dense_ue[extracted.query_index_q],
        ),
        8,
    )
    expected = metrics.judge_revisited(rows(ranked), dataset.gallery, dataset.queries)
    figures = result.systems["dense"].metrics
    assert list(figures)[:3] == ["mAP easy", "mAP medium", "mAP hard"]
    assert list(figures) == list(expected)
    for metric, values_q in expected.items():
        assert figures[metric].mean == pytest.approx(np.nanmean(values_q))
    code, out, _ = run("--systems", "dense", name="roxford5k", folder=tmp_path / "r")
    assert code == 0
    assert "mAP easy" in out
    assert "R@1" not in out


def test_a_box_outside_its_image_is_reported(tmp_path: Path, cache: Path, toy: Vocabulary) -> None:
    landmarks(tmp_path / "r", box=(900, 20, 956, 76))
    result = evaluate(
        datasets.load("roxford5k", tmp_path / "r"), toy, systems=["dense"], cache=cache
    )
    assert len(result.dataset.queries) == 1
    assert any("lies outside the image of 200 × 100 pixels" in one for one in result.problems)


# The command


def test_json_has_the_documented_keys(run: Run) -> None:
    code, out, err = run("--json")
    assert code == 0
    printed = json.loads(out)
    assert (printed["dataset"], printed["queries"], printed["gallery"]) == ("data", 24, 24)
    assert list(printed["systems"]) == [name for name in SYSTEMS if name != "ivfpq"]
    for name, system in printed["systems"].items():
        assert tuple(system)[:8] == (*KS, "mAP")
        assert all(0 <= system[figure] <= 1 for figure in KS)
        assert set(system["ci"]) == {*KS, "mAP"}
        assert ("against_dense" in system) == (name != "dense")
    assert printed["systems"]["dense"]["R@1"] > 0.5
    assert printed["vocabulary"]["backbone"] == "toy"
    assert printed["vocabulary"]["learnt_from"] == "not stated"
    assert printed["settings"]["k_post"] == 16
    assert "M 32" in printed["systems"]["hnsw"]["about"]
    assert [f"note: {problem}" for problem in printed["problems"]] == err.splitlines()


def test_json_is_printed_or_written_to_a_file(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--systems", "dense,bm25v", "-o", tmp_path / "r.json", "--json")
    assert code == 0
    assert (tmp_path / "r.json").read_text() == out
    assert list(json.loads(out)["systems"]) == ["dense", "bm25v"]


def test_a_second_backbone_changes_dense_vectors_alone(run: Run) -> None:
    """The same backbone twice changes nothing."""
    systems = ("--systems", "dense,words,hybrid", "--json")
    plain, same = (json.loads(run(*systems, *more)[1]) for more in ((), ("--dense", "toy")))
    assert same["systems"] == plain["systems"]
    assert (plain["vocabulary"]["backbone"], same["vocabulary"]["backbone"]) == ("toy", "toy+toy")
    other = json.loads(run(*systems, "--dense", "mobilenet-v2")[1])
    assert other["systems"]["words"]["mAP"] == plain["systems"]["words"]["mAP"]
    assert other["systems"]["dense"]["mAP"] != plain["systems"]["dense"]["mAP"]
    _, out, _ = run("--systems", "dense", "--dense", "toy")
    assert "192 words of toy+toy, k 8, k_post 16\n" in out


def test_the_table_is_described(run: Run) -> None:
    _, out, _ = run("--systems", "dense,two-stage,dot", "--per-class", "--set", "k_post=4")
    assert (
        "data: 24 queries, gallery of 24 images; leave-one-out; 0 queries without a possible match"
        in out
    )
    assert "vocabulary toy: 192 words of toy, k 8, k_post 4\n" in out
    assert "trained on: not stated\n" in out
    assert "settings: k_post 4" in out
    lines = {line.split()[0]: line.split() for line in out.splitlines() if line}
    assert len(lines["two-stage-200"]) > 10
    assert lines["a"][1] == "6"


def test_all_formats_have_the_same_values(run: Run, tmp_path: Path) -> None:
    options = ("--systems", "dense,bm25v")
    printed = json.loads(run(*options, "--json")[1])["systems"]
    _, text, _ = run(*options, "--format", "csv")
    lines = list(csv.DictReader(io.StringIO(text)))
    assert [line["system"] for line in lines] == ["dense", "bm25v"]
    assert float(lines[1]["R@5"]) == printed["bm25v"]["R@5"]
    assert float(lines[1]["R@1 low"]) == printed["bm25v"]["ci"]["R@1"][0]
    short = f"{printed['bm25v']['mAP']:.3f}".lstrip("0")
    for name, start in (("t.md", "| bm25v | "), ("t.tex", "    bm25v & "), ("t.txt", "bm25v")):
        code, out, _ = run(*options, "-o", tmp_path / name)
        assert (code, out) == (0, "")
        written = (tmp_path / name).read_text()
        (line,) = (line for line in written.splitlines() if line.startswith(start))
        assert short in line
    assert run(*options, "--format", "markdown")[1] == (tmp_path / "t.md").read_text()
    latex = (tmp_path / "t.tex").read_text()
    assert latex.count(r"\\") == 3
    assert r"95 \%" in latex
    assert r"k\_post" in latex
    assert "trained on" not in latex


def test_written_tables_have_the_classes_too(run: Run, tmp_path: Path) -> None:
    for name, start in (("t.md", "| a | 6 |"), ("t.txt", "a ")):
        for options, n in (((), 0), (("--per-class",), 1)):
            assert run("--systems", "dense", *options, "-o", tmp_path / name).code == 0
            lines = (tmp_path / name).read_text().splitlines()
            assert sum(line.startswith(start) for line in lines) == n


def test_ir_measures_computes_the_same_metrics_from_trec_files(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("--systems", "dense,bm25v", "--run", tmp_path / "trec", "--json")
    assert code == 0
    qrels = list(ir_measures.read_trec_qrels(str(tmp_path / "trec" / "qrels.txt")))
    measures = [ir_measures.Success @ 1, ir_measures.Success @ 5, ir_measures.AP]
    for name, system in json.loads(out)["systems"].items():
        answers = ir_measures.read_trec_run(str(tmp_path / "trec" / f"{name}.run"))
        outside = ir_measures.calc_aggregate(measures, qrels, answers)
        ours = [system["R@1"], system["R@5"], system["mAP"]]
        assert [outside[measure] for measure in measures] == pytest.approx(ours)


def test_problems_of_the_data_set_are_counted_and_printed(run: Run, data: Path) -> None:
    save(data / "lonely" / "one.png", 7, 9)
    (data / "a" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing else")
    (data / "b" / "twin.png").write_bytes((data / "c" / "2.png").read_bytes())
    code, out, err = run("--systems", "dense", "--json")
    assert code == 0
    printed = json.loads(out)
    assert (printed["gallery"], printed["unanswerable"]) == (26, 1)
    for part in (
        "queries without another image of their class in the gallery: 1 (lonely/one.png)",
        "unreadable and left out: 1 (a/torn.png: ",
        "the same content in several classes: 1 (b/twin.png = c/2.png)",
        "R@50, R@100, R@200 cover the whole gallery: it has only 25 images to find",
    ):
        assert f"note: {part}" in err
        assert any(part in problem for problem in printed["problems"])


def test_train_and_test_are_gallery_and_queries(run: Run, data: Path) -> None:
    for path in sorted(data.rglob("*.png")):
        part = "test" if path.stem in ("0", "6") else "train"
        (data / part / path.parent.name).mkdir(parents=True, exist_ok=True)
        path.rename(data / part / path.parent.name / path.name)
    printed = run("--systems", "dense", "--json").json
    assert (printed["queries"], printed["gallery"]) == (2, 22)
    assert printed["protocol"] == "gallery: train, queries: test"


def failed(outcome: tuple[int, str, str], code: int, *parts: str) -> None:
    assert outcome[:2] == (code, "")
    (line,) = outcome[2].splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_an_error_is_one_line(run: Run, tmp_path: Path) -> None:
    failed(run(name="pets37"), 2, "there is no data set 'pets37'", "'folder' is any folder")
    failed(run("--systems", "bm25"), 2, "no system 'bm25'")
    failed(run("--set", "k_post"), 2, "such as --set k_post=64")
    failed(run("--set", "query=log"), 2, "query = 'log': choose one of presence, tf")
    failed(run("--preset", "mine"), 2, "mine")
    failed(run(folder=tmp_path / "nowhere"), 1, "there is no such folder")
    failed(run(name="cub200"), 1, "classes.txt is missing; expected: ")


def test_files_that_cannot_be_written_are_refused_before_the_work(
    run: Run, tmp_path: Path, forwards: list[int]
) -> None:
    landmarks(tmp_path / "r")
    outcome = run("--run", tmp_path / "t", name="roxford5k", folder=tmp_path / "r")
    failed(outcome, 2, "cannot be written as TREC files")
    failed(run("-o", tmp_path / "none" / "t.md"), 2, "none does not exist: create it first")
    assert not forwards


def test_an_error_names_the_extra_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch, forwards: list[int]
) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    failed(run(), 1, install_command("research"))
    assert not forwards
    code, out, _ = run("--systems", "dense,two-stage-100,words,hybrid", "--json")
    assert code == 0
    assert len(json.loads(out)["systems"]) == 4
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    failed(run("--systems", "dot"), 1, install_command("research"))
    with pytest.raises(MissingExtra):
        resolve_systems(["bm25v"], replace(RankingSettings(), tf="sqrt"))
    assert run("--systems", "bm25v")[0] == 0


def test_two_stores_can_add_to_one_folder(cache: Path) -> None:
    image = Features(np.zeros((2, 3), np.float32), np.ones(3, np.float32))
    keys = {b"1" * 16, b"2" * 16}
    first, second = ImageFeatureStore(cache, keys), ImageFeatureStore(cache, keys)
    for store, key in zip((first, second), sorted(keys), strict=True):
        store.add({key: image})
    assert set(ImageFeatureStore(cache, keys).dense) == keys
    assert set(ImageFeatureStore(cache, {b"1" * 16, b"3" * 16}).dense) == {b"1" * 16}
