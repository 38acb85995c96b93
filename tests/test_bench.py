"""The benchmarks run, and they measure what they claim to measure."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bm25v.api import Gallery
from bm25v.cli.bench import bench as command
from bm25v.errors import MissingExtra, WrongUse
from bm25v.gallery.rows import read_full_bag
from bm25v.research.bags import count_full_bags
from bm25v.research.bench import search as bench
from bm25v.research.bench import search_systems
from bm25v.research.bench.encode import time_encoding
from bm25v.research.bench.workload import N_WORDS, SyntheticImages, read_gallery, write_gallery
from bm25v.research.cost import count_full_usage
from bm25v.research.systems import vectors
from bm25v.search.query import Mode
from bm25v.vocabulary.bag import to_levels

SYSTEMS = {
    "first-stage",
    "batch",
    "two-stage",
    "words",
    "hybrid",
    "words-first-stage",
    "words-rerank",
    "cosine-rerank",
    "words-1000",
    "hybrid-1000",
    "words-first-stage-1000",
    "words-rerank-1000",
    "cosine-rerank-1000",
    "scipy",
    "scipy-rows",
    "scipy-columns",
    "bm25s",
    "dense",
    "faiss-flat",
    "hnsw",
    "ivfpq",
}


MODES: tuple[Mode, ...] = ("words", "hybrid")


def run_bench(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=False)


def run_search(*arguments: str) -> Result:
    return run_bench("search", *arguments)


@pytest.fixture(scope="module")
def synthetic() -> SyntheticImages:
    return SyntheticImages(dim=8, seed=3)


def test_batches_on_a_device_are_timed_beside_the_others() -> None:
    pytest.importorskip("torch")
    sizes = ("--n", "300", "--dim", "8", "--queries", "3", "--ann-limit", "0")
    result = run_search(*sizes, "--device", "cpu", "--json")
    (times,) = json.loads(result.output)
    assert times["systems"]["batch-cpu"]["median_ms"] > 0
    assert times["systems"]["batch-cpu"]["bytes_per_vector"] > 16 * 8


def test_only_some_systems_are_timed_if_asked() -> None:
    result = run_search("--n", "300", "--dim", "8", "--queries", "3", "--only", "words", "--json")
    (times,) = json.loads(result.output)
    assert set(times["systems"]) == {"first-stage", "batch", "words"}
    assert times["update"] is None
    table = run_search("--n", "300", "--dim", "8", "--queries", "3", "--only", "words").output
    assert "words" in table and "added" not in table


def test_synthetic_bags_are_valid(synthetic: SyntheticImages) -> None:
    bags = synthetic.draw_images(20_000).bags
    assert (np.diff(bags["words"].astype(int), axis=1) > 0).all()
    assert bags["words"].max() < N_WORDS
    assert bags["tf"].min() > 0


def test_synthetic_full_bags_contain_the_bags(synthetic: SyntheticImages) -> None:
    images = synthetic.draw_images(3_000)
    assert images.full_bags is not None
    assert images.full_bags.dtype.itemsize == 1024
    sizes = (images.full_bags["levels"] > 0).sum(axis=1)
    assert 240 <= sizes.min() < sizes.max() <= 256
    for row in range(0, 3_000, 250):
        bag, full_bag = images.bag(row), read_full_bag(images.full_bags[row])
        assert (np.diff(full_bag.words) > 0).all()
        shared = np.isin(full_bag.words, bag.words)
        assert full_bag.words[shared].tolist() == bag.words.tolist()
        assert (full_bag.levels[shared] >= to_levels(bag.tf)).all()
        weaker = full_bag.bag.frequencies[~shared]
        assert np.median(weaker) < np.median(bag.frequencies)


def test_synthetic_full_bags_share_more_words_within_a_topic(synthetic: SyntheticImages) -> None:
    rows = synthetic.draw_images(2_000).full_bags
    assert rows is not None
    first, *others = ({*read_full_bag(row).words.tolist()} for row in rows)
    shared = np.array([len(first & other) for other in others])
    assert 20 < np.median(shared) < 200
    assert shared.max() > 230


def test_the_strongest_words_of_synthetic_queries_read_more_postings(
    synthetic: SyntheticImages,
) -> None:
    images, queries = synthetic.draw_images(20_000), synthetic.draw_queries(500)
    assert queries.full_bags is not None
    df_v = np.bincount(images.bags["words"].ravel(), minlength=N_WORDS)
    few = df_v[queries.bags["words"]].sum(axis=1).mean()
    many = count_full_usage(queries.full_bags, df_v).postings
    assert 1.1 < many / few < 2


def test_synthetic_galleries_store_full_bags(synthetic: SyntheticImages, tmp_path: Path) -> None:
    images = synthetic.draw_images(300)
    write_gallery(tmp_path, images)
    with Gallery.open(tmp_path) as gallery:
        stored = gallery.store.snapshot().full_bags
        assert stored is not None
        assert images.full_bags is not None
        assert stored.rows.tobytes() == images.full_bags.tobytes()
        expected = count_full_bags(images.full_bags, N_WORDS)
        assert stored.statistics.df_v.tolist() == expected.df_v.tolist()
        assert (stored.statistics.n, stored.statistics.total_length) == (300, expected.total_length)


def test_synthetic_queries_read_as_many_postings_as_in_the_paper(
    synthetic: SyntheticImages,
) -> None:
    n = 20_000
    df_v = np.bincount(synthetic.draw_images(n).bags["words"].ravel(), minlength=N_WORDS)
    read = df_v[synthetic.draw_queries(1000).bags["words"]].sum(axis=1) / n
    assert 1.5 < read.mean() < 1.9
    assert ((read > 0.4) & (read < 2.4)).mean() > 0.85


def test_synthetic_images_of_one_topic_have_similar_vectors() -> None:
    synthetic = SyntheticImages(dim=64, seed=3)
    images_ne = synthetic.draw_images(5000).dense_ne.astype(np.float32)
    queries_qe = synthetic.draw_queries(50).dense_ne.astype(np.float32)
    cosines = queries_qe @ images_ne.T
    np.testing.assert_allclose(np.linalg.norm(queries_qe, axis=1), 1, atol=2e-3)
    assert np.median(cosines.max(axis=1)) > 0.4 > 0.1 > abs(np.median(cosines))


def test_search_times_every_system(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    options = ("--n", "2000", "--dim", "48", "--queries", "4", "--threads", "2", "-o", str(plot))
    (times,) = json.loads(run_search(*options, "--json").stdout)
    assert list(times) == ["n", "k", "dim", "systems", "update"]
    assert (times["n"], times["k"], times["dim"]) == (2000, 200, 48)
    assert set(times["systems"]) == SYSTEMS
    keys = {"median_ms", "p95_ms", "build_s", "bytes_per_vector", "recall"}
    for name, system in times["systems"].items():
        assert set(system) == keys
        assert (system["recall"] is not None) == (name in {"hnsw", "ivfpq"})
        assert 0 < system["median_ms"] <= system["p95_ms"]
        assert system["bytes_per_vector"] >= 48
    assert 0.9 < times["systems"]["hnsw"]["recall"] <= 1
    assert set(times["update"]) == {"add_ms", "remove_ms", "refresh_ms"}
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_search_skips_systems_that_are_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in ("faiss", "scipy.sparse", "bm25s", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, package, None)
    outcome = run_search("--n", "300", "--dim", "8", "--queries", "2")
    assert "first-stage" in outcome.stdout
    assert "two-stage is" in outcome.stdout
    for ratio in (
        r"words is [\d.]+ times as fast as dense",
        r"hybrid-1000 is [\d.]+ times as fast as dense",
        r"words-rerank takes [\d.]+ times as long as cosine-rerank\n",
        r"words-rerank-1000 takes [\d.]+ times as long as cosine-rerank-1000\n",
    ):
        assert re.search(ratio, outcome.stdout)
    assert "scipy is skipped: scipy.sparse is not installed" in outcome.stderr
    for name in ("bm25s", "faiss-flat", "hnsw", "ivfpq"):
        assert f"{name} is skipped" in outcome.stderr
    with pytest.raises(MissingExtra, match=r"bm25v\[research\]"):
        run_search("--n", "300", "-o", str(tmp_path / "plot.png"))


def test_search_refuses_an_impossible_plot_before_it_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "time_search", pytest.fail)
    with pytest.raises(WrongUse, match=r"plot\.gif: a plot's name must end in \.png"):
        run_search("--n", "300", "-o", str(tmp_path / "plot.gif"))
    with pytest.raises(WrongUse, match=r"the folder .*missing does not exist: create it first"):
        run_search("--n", "300", "-o", str(tmp_path / "missing" / "plot.png"))


def test_approximate_systems_have_the_settings_of_evaluate(synthetic: SyntheticImages) -> None:
    faiss = pytest.importorskip("faiss")
    images, (query, *_) = synthetic.draw_images(300), synthetic.draw_queries(3).queries()
    floats_ne = images.dense_ne.astype(np.float32)
    for build_system, build_index in (
        (search_systems.hnsw, vectors.build_hnsw),
        (search_systems.ivfpq, vectors.build_ivfpq),
    ):
        system, index = build_system(floats_ne, 5), build_index(floats_ne)
        assert system.nbytes == faiss.serialize_index(index).nbytes
        (expected,) = vectors.search_faiss(index, query.dense_e[np.newaxis], 5)
        assert system.search(query).rows.tolist() == expected.rows.tolist()


def test_search_in_a_gallery_does_not_change_it(photos: Path, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        outcome = run_search("-g", str(tmp_path / "g"), "--queries", "2", "--json")
        (times,) = json.loads(outcome.stdout)
        assert times["n"] == times["k"] == len(gallery) == 12
        assert set(times["systems"]) == SYSTEMS


def test_searches_by_full_bags_are_those_of_a_gallery(photos: Path, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        images, _ = read_gallery(gallery.path, 1, seed=0)
        queries = images.queries()
        searcher, _ = search_systems.build_searcher(images)
        rows = {path: row for row, path in gallery.store.catalog.all_paths(0).items()}
        for candidates in (4, 1000):
            build = search_systems.FullBagSystems(searcher, images, queries, 4)
            for mode in MODES:
                system = build.search(mode, candidates)
                for row, query in enumerate(queries):
                    hits = gallery.search(
                        images.encoding(row), mode=mode, candidates=candidates, k=4
                    )
                    assert system.search(query).rows.tolist() == [rows[hit.path] for hit in hits]
            by_words, rerank = build.search("words", candidates), build.rerank_by_words(candidates)
            for query in queries:
                assert bench.same_ranking(by_words.search(query), rerank.search(query))


def test_both_second_stages_have_the_same_candidates(synthetic: SyntheticImages) -> None:
    images, queries = synthetic.draw_images(300), synthetic.draw_queries(3).queries()
    searcher, _ = search_systems.build_searcher(images)
    build = search_systems.FullBagSystems(searcher, images, queries, 20)
    by_words, by_cosine = build.rerank_by_words(20), build.rerank_by_cosine(20)
    for query in queries:
        words, cosine = by_words.search(query), by_cosine.search(query)
        assert sorted(words.rows.tolist()) == sorted(build.find(20).search(query).rows.tolist())
        assert sorted(words.rows.tolist()) == sorted(cosine.rows.tolist())
        assert words.rows.tolist() != cosine.rows.tolist()
        expected = images.dense_ne.astype(np.float32) @ query.dense_e
        np.testing.assert_allclose(cosine.scores, expected[cosine.rows], atol=2e-3)
        assert (np.diff(cosine.scores) <= 0).all()


def test_galleries_without_full_bags_are_searched_without_them(synthetic: SyntheticImages) -> None:
    older = replace(synthetic.draw_images(300), full_bags=None)
    queries = replace(synthetic.draw_queries(2), full_bags=None)
    warnings: list[str] = []
    times = bench.time_search(older, queries, k=10, ann_limit=0, warn=warnings.append)
    assert warnings == ["words and hybrid are skipped: the gallery has no full bags"]
    assert "two-stage" in times.systems
    assert not any("words" in name or "hybrid" in name for name in times.systems)
    assert times.ratio("words-rerank", "cosine-rerank") is None


def test_search_refuses_a_gallery_without_images(tmp_path: Path) -> None:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    with pytest.raises(WrongUse, match="has no images with words: index some first"):
        run_search("-g", str(tmp_path / "g"))


def test_systems_with_different_results_are_not_timed(
    synthetic: SyntheticImages, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "same_ranking", lambda ranked, other: False)
    images, queries = synthetic.draw_images(300), synthetic.draw_queries(2)
    with pytest.raises(RuntimeError, match="scipy and first-stage return different hits"):
        bench.time_search(images, queries, k=10, ann_limit=0)


def test_encode_times_readable_images_only(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.png").write_bytes(b"not an image")
    stages: list[tuple[str, int, int]] = []
    times = time_encoding(
        [photos / "0.png", photos / "1.png", tmp_path / "torn.png"],
        vocabulary="toy",
        rounds=2,
        progress=lambda *stage: stages.append(stage),
    )
    assert (times.images, times.rounds) == (2, 2)
    assert 0 < times.forward_seconds < times.index_seconds
    assert times.overhead == times.index_seconds / times.forward_seconds - 1
    assert stages == [("timing", 0, 2), ("timing", 1, 2)]
    options = ("encode", str(photos), "-n", "3", "--rounds", "1", "--vocabulary", "toy", "--json")
    printed = json.loads(run_bench(*options, "--dense", "toy").stdout)
    assert (printed["pictures"], printed["rounds"]) == (3, 1)
    seconds = printed["seconds"]
    assert printed["overhead"] == seconds["index"] / seconds["forward"] - 1
    with pytest.raises(WrongUse, match="none of the images can be read"):
        time_encoding([tmp_path / "torn.png"], vocabulary="toy")


def test_explain_times_hits_and_word_counts(photos: Path) -> None:
    options = ("explain", str(photos), "--vocabulary", "toy", "--hits", "3", "--n", "2000")
    times = json.loads(run_bench(*options, "--json").stdout)
    hit, words = times["hit"], times["words"]
    steps = ("forward_ms", "explain_ms", "page_ms", "sheet_ms")
    assert list(hit) == ["hits", *steps, "added_ms"]
    assert hit["hits"] == 3
    assert hit["added_ms"] == hit["explain_ms"] - hit["forward_ms"]
    assert min(hit[step] for step in steps) > 0
    assert list(words) == ["pictures", "words", "first_s", "again_s", "renewed_s", "word_s"]
    assert words["pictures"] == 2000
    assert 1000 < words["words"] < N_WORDS
    assert words["again_s"] < min(words["first_s"], words["renewed_s"])
    assert "words of 2,000 synthetic images" in run_bench(*options).stdout


def test_explain_needs_two_readable_images(photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "few"
    folder.mkdir()
    (folder / "0.png").write_bytes((photos / "0.png").read_bytes())
    with pytest.raises(WrongUse, match="a search needs at least 2 images, not 1"):
        run_bench("explain", str(folder), "--vocabulary", "toy")
    (folder / "1.png").write_bytes(b"not an image")
    with pytest.raises(WrongUse, match="none of the images can be read"):
        run_bench("explain", str(folder), "--vocabulary", "toy")
