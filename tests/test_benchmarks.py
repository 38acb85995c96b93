"""The benchmark scripts run, and their synthetic images are like real ones."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

if TYPE_CHECKING:
    import workload

SCRIPTS = Path(__file__).parent.parent / "benchmarks"


def run_script(name: str, *options: str) -> Any:
    command = [sys.executable, str(SCRIPTS / name), *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture
def synthetic(monkeypatch: pytest.MonkeyPatch) -> "workload.SyntheticImages":
    monkeypatch.syspath_prepend(SCRIPTS)
    import workload

    return workload.SyntheticImages(dim=64, seed=3)


def test_search_times_every_system_and_changes() -> None:
    pytest.importorskip("faiss")
    options = ("--dim", "48", "--queries", "3", "--k", "5", "50")
    (times,) = run_script("search.py", "--n", "2000", *options)
    assert (times["n"], times["k"], times["dim"]) == (2000, [5, 50], 48)
    installed = {"qdrant": "qdrant_edge", "tantivy": "tantivy", "seismic": "seismic"}
    others = {name for name, module in installed.items() if find_spec(module)}
    assert set(times["systems"]) == others | {
        "first-stage",
        "batch",
        "two-stage",
        "words",
        "hybrid",
        "scipy",
        "scipy-rows",
        "scipy-columns",
        "bm25s",
        "dense",
        "faiss-flat",
        "hnsw",
        "ivfpq",
    }
    for system in times["systems"].values():
        for k in ("5", "50"):
            assert 0 < system["median_ms"][k] <= system["p95_ms"][k]
    assert 0.9 < times["systems"]["hnsw"]["recall"]["5"] <= 1
    assert times["update"]["n_images"] == 2000


def test_encode_times_readable_images_only(photos: Path) -> None:
    (photos / "torn.png").write_bytes(b"not an image")
    times = run_script("encode.py", str(photos), "--rounds", "1", "--vocabulary", "toy")
    assert (times["n_images"], times["rounds"]) == (12, 1)
    seconds = times["seconds"]
    assert times["overhead"] == seconds["index"] / seconds["forward"] - 1


def test_serve_answers_every_client() -> None:
    pytest.importorskip("fastapi")
    options = ("--n", "20", "--requests", "3", "--clients", "3", "--seconds", "2", "--workers", "1")
    times = run_script("serve.py", *options)
    assert times["n_images"] == 20
    assert times["library"]["median_ms"] > 0 < times["http"]["median_ms"]
    assert times["searches"]["searches_per_second"] > 0
    assert times["mix"]["errors"] == 0
    assert {"similar", "change"} <= set(times["mix"]["kinds"])


def test_engines_times_every_mode() -> None:
    pytest.importorskip("qdrant_edge")
    times = run_script("engines.py", "--n", "2000", "--dim", "16", "--queries", "2")
    assert len(times["searches"]) == 5
    assert times["load_seconds"] > 0 < times["upsert_seconds"]


def test_synthetic_images_are_like_real_ones(synthetic: "workload.SyntheticImages") -> None:
    images, queries = synthetic.draw_images(20_000), synthetic.draw_queries(500)
    words_nk = images.bags["words"].astype(int)
    assert (np.diff(words_nk, axis=1) > 0).all()
    assert images.bags["tf"].min() > 0
    n_words = np.count_nonzero(images.full_bags["levels"], axis=1)
    assert 240 <= n_words.min() < n_words.max() <= 256
    df_v = np.bincount(words_nk.ravel(), minlength=images.n_words)
    read = df_v[queries.bags["words"]].sum(axis=1) / len(images)  # postings per query
    assert 1.5 < read.mean() < 1.9  # as in the paper
    assert ((read > 0.4) & (read < 2.4)).mean() > 0.85
    cosines = queries.dense_ne.astype(np.float32) @ images.dense_ne.astype(np.float32).T
    assert np.median(cosines.max(axis=1)) > 0.4 > 0.1 > abs(np.median(cosines))


def test_pointing_compares_maps_with_boxes(photos: Path, tmp_path: Path) -> None:
    boxes = tmp_path / "boxes.csv"
    boxes.write_text(
        "".join(
            f"{name}.png,{label},0,0,1,1\n" for name in range(4) for label in ("dog", "a photo")
        )
    )
    figures = run_script("pointing.py", str(photos), str(boxes), "--vocabulary", "toy")
    assert figures["image"]["n"] == 8
    for maps in ("middle", "one pass", "second pass"):
        assert figures["image"][maps] == 1, "every point is in such a box"
    assert figures["cpu"]["median_ms"] > 0
