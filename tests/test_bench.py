"""The benches run, and what they time is what they say."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from bm25v.cli.bench import command
from bm25v.errors import MissingExtra, WrongUse
from bm25v.gallery import Gallery
from bm25v.research.bench import by_vectors
from bm25v.research.bench import search as bench
from bm25v.research.bench.synthetic import N_WORDS, World
from bm25v.research.systems import vectors

SYSTEMS = {
    "first-stage",
    "batch",
    "two-stage",
    "scipy",
    "scipy-rows",
    "scipy-columns",
    "bm25s",
    "dense",
    "faiss-flat",
    "hnsw",
    "ivfpq",
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["search", *arguments], catch_exceptions=False)


@pytest.fixture(scope="module")
def world() -> World:
    return World(dim=8, seed=3)


def test_bags_are_those_of_a_gallery(world: World) -> None:
    bags = world.pictures(20_000).bags
    assert (np.diff(bags["words"].astype(int), axis=1) > 0).all()
    assert bags["words"].max() < N_WORDS
    assert bags["tf"].min() > 0


def test_queries_touch_as_many_postings_as_in_the_paper(world: World) -> None:
    n = 20_000
    df_v = np.bincount(world.pictures(n).bags["words"].ravel(), minlength=N_WORDS)
    touched = df_v[world.queries(1000).bags["words"]].sum(axis=1) / n
    assert 1.5 < touched.mean() < 1.9
    assert ((touched > 0.4) & (touched < 2.4)).mean() > 0.85


def test_pictures_of_a_topic_are_near_each_other(world: World) -> None:
    pictures, queries = World(dim=64, seed=3).pictures(5000), World(dim=64, seed=3).queries(50)
    cosines = queries.dense_ne.astype(np.float32) @ pictures.dense_ne.astype(np.float32).T
    np.testing.assert_allclose(np.linalg.norm(queries.dense_ne.astype(float), axis=1), 1, atol=2e-3)
    assert np.median(cosines.max(axis=1)) > 0.4 > 0.1 > abs(np.median(cosines))


def test_every_system_is_timed(tmp_path: Path) -> None:
    plot = tmp_path / "plot.png"
    options = ("--n", "2000", "--dim", "48", "--queries", "4", "--threads", "2", "-o", str(plot))
    (times,) = json.loads(run(*options, "--json").stdout)
    assert {name: times[name] for name in ("n", "k", "dim")} == {"n": 2000, "k": 200, "dim": 48}
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


def test_what_is_not_installed_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("faiss", "scipy.sparse", "bm25s", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, package, None)
    outcome = run("--n", "300", "--dim", "8", "--queries", "2")
    assert "first-stage" in outcome.stdout
    assert "two-stage is" in outcome.stdout
    assert "scipy is left out: scipy.sparse is not installed" in outcome.stderr
    for name in ("bm25s", "faiss-flat", "hnsw", "ivfpq"):
        assert f"{name} is left out" in outcome.stderr
    with pytest.raises(MissingExtra, match=r"bm25v\[research\]"):
        run("--n", "300", "-o", str(tmp_path / "plot.png"))


def test_approximate_systems_are_those_that_are_evaluated(world: World) -> None:
    faiss = pytest.importorskip("faiss")
    pictures, (wish, *_) = world.pictures(300), world.queries(3).queries()
    floats_ne = pictures.dense_ne.astype(np.float32)
    for bench_of, build in (
        (by_vectors.by_hnsw, vectors.hnsw),
        (by_vectors.by_ivfpq, vectors.ivfpq),
    ):
        system, index = bench_of(floats_ne, 5), build(floats_ne)
        assert system.nbytes == faiss.serialize_index(index).nbytes
        (expected,) = vectors.search(index, wish.dense_e[np.newaxis], 5)
        assert system.search(wish).rows.tolist() == expected.rows.tolist()


def test_a_gallery_is_timed_and_left_alone(photos: Path, tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(photos)
        (times,) = json.loads(run("-g", str(tmp_path / "g"), "--queries", "2", "--json").stdout)
        assert times["n"] == times["k"] == len(gallery) == 12
        assert set(times["systems"]) == SYSTEMS


def test_systems_that_disagree_are_not_timed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "agree", lambda ranked, other: False)
    with pytest.raises(RuntimeError, match="scipy and first-stage disagree"):
        bench.time_search(world.pictures(300), world.queries(2), k=10, ann_limit=0)


def test_saying_why_is_timed(photos: Path) -> None:
    options = ("explain", str(photos), "--vocabulary", "toy", "--hits", "3", "--n", "2000")
    outcome = CliRunner().invoke(command, [*options, "--json"], catch_exceptions=False)
    times = json.loads(outcome.stdout)
    hit, words = times["hit"], times["words"]
    assert hit["hits"] == 3
    assert hit["added_ms"] == hit["explain_ms"] - hit["forward_ms"]
    assert min(hit[f"{way}_ms"] for way in ("forward", "explain", "page", "sheet")) > 0
    assert words["pictures"] == 2000
    assert 1000 < words["words"] < N_WORDS
    assert words["again_s"] < min(words["first_s"], words["renewed_s"])
    shown = CliRunner().invoke(command, options, catch_exceptions=False).stdout
    assert "the words of 2,000 made-up pictures" in shown


def test_there_must_be_something_to_explain(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "few").mkdir()
    for content, reason in ((None, "1 pictures: give a folder"), (b"no", "no readable pictures")):
        (tmp_path / "few" / "0.png").write_bytes((photos / "0.png").read_bytes())
        if content is not None:
            (tmp_path / "few" / "1.png").write_bytes(content)
        with pytest.raises(WrongUse, match=reason):
            CliRunner().invoke(
                command,
                ["explain", str(tmp_path / "few"), "--vocabulary", "toy"],
                catch_exceptions=False,
            )
