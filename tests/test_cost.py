"""`bm25v zipf` and `bm25v cost`: results of real galleries as tables, JSON and plots."""

import json
import re
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from bm25v.cli.measures import cost as cost_command
from bm25v.cli.measures import zipf as zipf_command
from bm25v.errors import EvaluationError, GalleryNotFound, InvalidOption, MissingExtra
from bm25v.gallery import Gallery
from bm25v.research import cost
from bm25v.research.zipf import fit_zipf
from bm25v.vocabulary import Vocabulary
from tests.conftest import make_image, stored_bag, stored_full_bag


def run(command: click.Command, *arguments: object) -> str:
    result = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def run_json(command: click.Command, *arguments: object) -> Any:
    return json.loads(run(command, *arguments, "--json"))


def words_of_images(gallery: Gallery) -> list[set[int]]:
    snapshot = gallery.local.snapshot()
    return [set(stored_bag(snapshot, row).words.tolist()) for row in snapshot.rows]


def frequencies(gallery: Gallery) -> NDArray[np.int64]:
    words = [word for image in words_of_images(gallery) for word in image]
    return np.bincount(words, minlength=gallery.info().words)


@pytest.fixture
def other(gallery: Gallery, tmp_path: Path) -> Gallery:
    """A second, smaller gallery."""
    other = Gallery.create(tmp_path / "other.bm25v", vocabulary="toy")
    for seed in range(100, 105):
        make_image(seed).save(tmp_path / f"{seed}.png")
        other.add(tmp_path / f"{seed}.png")
    return other


def test_zipf_counts_the_words_of_the_bags(gallery: Gallery, photos: Path) -> None:
    gallery.remove(photos / "3.png")
    df_v = frequencies(gallery)
    (printed,) = run_json(zipf_command, "-g", gallery.path)
    expected = fit_zipf(df_v, 11)
    assert printed == {
        **expected.to_dict(),
        "gallery": str(gallery.path),
        "n_images": 11,
        "words": 192,
        "active": int((df_v > 0).sum()),
        "alpha": expected.alpha,
        "r2": expected.r2,
        "head": float((df_v[df_v > 0] > 5.5).mean()),
        "tail": float((df_v[df_v > 0] < 1.1).mean()),
        "share_idf_above_2": expected.high_idf,
    }


def test_zipf_prints_one_row_per_gallery_and_draws(
    gallery: Gallery, other: Gallery, tmp_path: Path
) -> None:
    plot = tmp_path / "zipf.png"
    out = run(zipf_command, "-g", gallery.path, "-g", other.path, "-g", gallery.path, "-o", plot)
    head, first, second, paper, drawn = out.splitlines()
    assert " ".join(head.split()) == "gallery images active words α R² head tail IDF > 2"
    assert first.split()[:2] == ["gallery", "12"]
    assert second.split()[:2] == ["other", "5"]
    assert paper.startswith("the paper's seven sets  ") and "  1.20–2.32  " in paper
    assert drawn == f"{plot}: words by rank"
    assert plot.read_bytes().startswith(b"\x89PNG")
    plot.unlink()
    run(zipf_command, "-g", gallery.path, "-o", plot)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_zipf_uses_the_default_gallery(
    gallery: Gallery, other: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(gallery.path.parent)
    monkeypatch.delenv("BM25V_GALLERY", raising=False)
    assert run_json(zipf_command)[0]["n_images"] == 12
    monkeypatch.setenv("BM25V_GALLERY", str(other.path))
    assert run_json(zipf_command)[0]["n_images"] == 5


def test_cost_counts_the_postings_that_queries_read(gallery: Gallery, photos: Path) -> None:
    gallery.remove(photos / "3.png")
    gallery.compact()
    printed = run_json(cost_command, "-g", gallery.path, "--project", 1_000_000)
    bags, df_v = words_of_images(gallery), frequencies(gallery)
    read = [sum(len(query & bag) for bag in bags) for query in bags]
    active, length = int((df_v > 0).sum()), df_v.sum() / 11
    here, projected = printed["sizes"]
    assert (printed["words"], printed["dim"]) == (192, 12)
    assert (here["n_images"], here["active"]) == (11, active)
    assert here["image_words"] == pytest.approx(length)
    assert here["postings"] == pytest.approx(np.mean(read))
    assert here["expected_postings"] == pytest.approx(length * length * 11 / active)
    lines = {line["system"]: line for line in here["systems"]}
    assert list(lines) == ["Dense", "HNSW", "IVF+PQ", "BM25-V", "Two-stage", "Words", "Hybrid"]
    assert lines["Dense"] == {
        "system": "Dense",
        "bytes_per_image": 48,
        "compression": 1,
        "operations": 2 * 12 * 11,
        "counted": None,
    }
    assert lines["BM25-V"]["counted"] == pytest.approx(5 * np.mean(read))
    assert lines["BM25-V"]["bytes_per_image"] == pytest.approx(6 * length)
    assert projected["n_images"] == 1_000_000
    assert projected["postings"] == pytest.approx(np.mean(read) / 11 * 1_000_000)
    assert projected["active"] == pytest.approx(192)
    growth = printed["growth"]
    assert growth["sizes"] == [1, 2, 5, 10, 11]
    assert growth["measured"][0] == pytest.approx(length)
    assert growth["measured"][-1] == active
    expected = cost.expected_active_words(np.array(growth["sizes"]), length, 192)
    assert growth["expected"] == pytest.approx(expected.tolist())
    on_disk = printed["bytes_on_disk"]
    for file, part in {"bags": "bags", "full": "full_bags", "dense": "dense"}.items():
        assert on_disk[part] * 11 == (gallery.path / f"{file}.1.rows").stat().st_size - 64


def test_cost_counts_full_bags_and_the_words_of_candidates(gallery: Gallery) -> None:
    printed = run_json(cost_command, "-g", gallery.path, "--project", 1_000_000)
    df_v, snapshot = frequencies(gallery), gallery.local.snapshot()
    assert snapshot.full_bags is not None
    full_bags = [stored_full_bag(snapshot, row) for row in snapshot.rows.tolist()]
    strongest = [bag.words[np.argsort(-bag.levels.astype(int), kind="stable")] for bag in full_bags]
    read = np.mean([df_v[words[:32]].sum() for words in strongest])
    words, length = np.mean([len(bag.words) for bag in full_bags]), df_v.sum() / 12
    assert words > 32
    here, projected = printed["sizes"]
    row_bytes = snapshot.full_bags.dtype.itemsize
    assert here["full_bags"] == pytest.approx(
        {"bytes_per_image": row_bytes, "image_words": words, "query_words": 32, "postings": read}
    )
    lines = {line["system"]: line for line in here["systems"]}
    assert lines["Words"]["bytes_per_image"] == pytest.approx(6 * length + row_bytes)
    assert lines["Hybrid"]["bytes_per_image"] == pytest.approx(6 * length + row_bytes + 48)
    assert lines["Words"]["counted"] == pytest.approx(5 * read + 12 * words * 5)
    assert lines["Hybrid"]["counted"] == pytest.approx(5 * read + 12 * (words * 5 + 12))
    expected = 5 * 32 * length * 12 / int((df_v > 0).sum())
    assert lines["Words"]["operations"] == pytest.approx(expected + 12 * words * 5)
    lines = {line["system"]: line for line in projected["systems"]}
    assert lines["Words"]["counted"] == pytest.approx(5 * read / 12 * 1e6 + 1_000 * words * 5)


def test_cost_prints_tables_and_draws(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    plot = tmp_path / "growth.svg"
    gallery.remove(photos / "3.png")
    out = run(cost_command, "-g", gallery.path, "--project", 1_000, "--project", 10**8, "-o", plot)
    assert "\n11 images, " in f"\n{out}"
    assert "\nprojected: 1,000 images, " in out
    assert "\nprojected: 100,000,000 images, 192 of 192 words expected to be active" in out
    assert out.count("Two-stage") == 3
    assert "words in use  if equally frequent" in out
    sizes = r"on disk: \d+ for the bag, [\d,]+ for the full bag and \d+ for the dense vector"
    assert re.search(sizes, " ".join(out.split()))
    assert "this includes 1 removed image: run bm25v compact" in out
    assert f"{plot}: words in use" in out
    assert "<svg" in plot.read_text()


def test_an_empty_or_missing_gallery_is_refused(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "empty", vocabulary="toy") as empty:
        for command in (zipf_command, cost_command):
            with pytest.raises(InvalidOption, match=r"empty has no images: index some first"):
                run(command, "-g", empty.path)
    with pytest.raises(GalleryNotFound):
        run(zipf_command, "-g", tmp_path / "nowhere")


def test_a_power_law_needs_two_active_words(tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    Vocabulary.build("single", backbone=toy.backbone, sae=toy.sae, k_post=1).save(tmp_path / "v")
    make_image(1).save(tmp_path / "1.png")
    with Gallery.create(tmp_path / "g", vocabulary=tmp_path / "v") as gallery:
        gallery.add(tmp_path / "1.png")
    with pytest.raises(
        EvaluationError, match=r"/g: a power law needs at least 2 active words, not 1"
    ):
        run(zipf_command, "-g", tmp_path / "g")
    assert run_json(cost_command, "-g", tmp_path / "g")["sizes"][0]["active"] == 1


def test_plots_need_matplotlib_and_a_known_suffix(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for command in (zipf_command, cost_command):
        with pytest.raises(InvalidOption, match=r"plot\.txt: a plot's name must end in \.png"):
            run(command, "-g", gallery.path, "-o", tmp_path / "plot.txt")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    for command in (zipf_command, cost_command):
        run(command, "-g", gallery.path)
        with pytest.raises(MissingExtra, match=r"install .*\[research\]"):
            run(command, "-g", gallery.path, "-o", tmp_path / "plot.png")
