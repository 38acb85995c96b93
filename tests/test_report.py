"""The report: every figure as Markdown, plots and JSON."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bm25v.research import cost, datasets, report, tables, zipf
from bm25v.research.metrics import Interval
from bm25v.research.report import Report
from bm25v.research.systems import SYSTEMS
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from tests import test_cli
from tests.conftest import make_image
from tests.test_cli import Run

run = test_cli.run

TOY = Vocabulary.load("toy")
CLASSES = ("cats", "flowers", "houses")
MEASURED = [name for name in SYSTEMS if name != "ivfpq"]  # the gallery is too small for it


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight images, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("data") / "my pets"
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for seed in range(8):
            make_image(100 * number + seed // 2, side=40 + seed).save(folder / name / f"{seed}.png")
    (folder / "flowers" / "torn.png").write_bytes(b"no image")
    return folder


@pytest.fixture(scope="module")
def measured(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    cache = tmp_path_factory.mktemp("cache")
    return report.measure_report(datasets.load("folder", data), TOY, cache=cache)


def test_statistics_are_those_of_the_images(measured: Report, data: Path) -> None:
    paths = sorted(path for path in data.rglob("*.png") if path.name != "torn.png")
    words = [
        set(bags.pool_codes(TOY.encode(path).codes, k_post=16).words.tolist()) for path in paths
    ]
    df_v = np.bincount([word for bag in words for word in bag], minlength=TOY.n_words)
    assert measured.zipf.df_r.tolist() == sorted(df_v[df_v > 0].tolist(), reverse=True)
    assert measured.zipf.alpha == zipf.fit_zipf(df_v, 24).alpha
    here, million, hundred_million = measured.usages
    assert here.n_images == 24
    assert here.postings == pytest.approx(np.mean([df_v[list(bag)].sum() for bag in words]))
    assert (million.n_images, hundred_million.n_images) == (10**6, 10**8)
    assert measured.growth == cost.measure_growth(df_v, 24)


def test_ablations_have_the_metrics_of_the_systems(measured: Report) -> None:
    k_post, k_query, scoring, k_full, weight = measured.ablations
    assert [trial.values["k_post"] for trial in k_post.trials] == ["8", "16", "32", "64", "128"]
    for ablation, value, axis_system, system in (
        (k_post, "16", "bm25v", "bm25v"),
        (k_query, "16", "bm25v", "bm25v"),
        (scoring, "bm25", "bm25v", "bm25v"),
        (scoring, "dot", "bm25v", "dot"),
        (k_full, "256", "words", "words"),
        (weight, "1.5", "hybrid", "hybrid"),
    ):
        (trial,) = [one for one in ablation.trials if one.values[ablation.axes[0]] == value]
        for metric, mean in trial.metrics[axis_system].items():
            assert mean == pytest.approx(measured.result.systems[system].metrics[metric].mean)


def test_the_papers_systems_ours_and_dense_are_side_by_side(measured: Report) -> None:
    means = {"bm25v": 0.6, "two-stage-200": 0.81, "words": 0.78, "hybrid": 0.82, "dense": 0.8}
    systems = {
        name: replace(measured.result.systems[name], metrics={"R@1": Interval(mean, mean, mean)})
        for name, mean in means.items()
    }
    _, rows = tables.comparison_table(replace(measured.result, systems=systems))
    assert rows == [
        ["the paper", "bm25v", ".600", "75.0 %"],
        ["the paper", "two-stage-200", ".810", "101.2 %"],
        ["ours", "words", ".780", "97.5 %"],
        ["ours", "hybrid", ".820", "102.5 %"],
        ["", "dense", ".800", "100.0 %"],
    ]
    alone = replace(measured.result, systems={"words": systems["words"]})
    assert tables.comparison_table(alone)[1] == [["ours", "words", ".780", ""]]


def test_the_text_has_every_system_figure_and_plot(measured: Report, tmp_path: Path) -> None:
    report.write_report(measured, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# my pets\n")
    for name in MEASURED:
        assert f"| {name} |" in text
        mean = measured.result.systems[name].metrics["R@1"].mean
        assert tables.format_share(mean) in text
    for part in (*CLASSES, "k_post", "tfidf", f"{measured.zipf.alpha:.2f}", "100,000,000 images"):
        assert part in text
    assert "torn.png" in text
    assert "ivfpq cannot be trained on 24 images" in text
    plots = re.findall(r"!\[.+\]\((.+\.png)\)", text)
    names = ("recall", "k_post", "k_query", "k_full", "weight", "zipf", "growth")
    assert plots == [f"{name}.png" for name in names]
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in plots)
    assert json.loads((tmp_path / "report.json").read_text()) == measured.to_dict()


def test_landmarks_have_figures_of_their_own(measured: Report, tmp_path: Path) -> None:
    systems = {
        name: replace(system, metrics={"mAP easy": Interval(0.5, 0.4, 0.6)}, classes={})
        for name, system in measured.result.systems.items()
    }
    landmarks = replace(measured, result=replace(measured.result, systems=systems), ablations=())
    report.write_report(landmarks, tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert "mAP easy" in text
    assert "recall.png" not in text
    assert not (tmp_path / "recall.png").exists()


def test_the_command_writes_a_report_for_a_split_and_settings(
    run: Run, data: Path, tmp_path: Path
) -> None:
    parted = tmp_path / "my pets"
    for path in sorted(data.rglob("[0-7].png")):
        part = "test" if path.name == "0.png" else "train"
        (parted / part / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copy(path, parted / part / path.parent.name)
    options = ("--data", parted, "--vocabulary", "toy", "--set", "k_query=24")
    cache = ("--cache", tmp_path / "cache")
    code, out, _ = run("evaluate", "report", *options, *cache, "-o", tmp_path / "r")
    assert code == 0
    assert out.splitlines()[0].split() == ["system", "R@1", "of", "dense"]
    assert out.endswith("report.json: its figures\n")
    printed = run("evaluate", "report", *options, *cache, "-o", tmp_path / "r", "--json").json
    assert printed == json.loads((tmp_path / "r" / "report.json").read_text())
    assert (printed["queries"], printed["gallery"]) == (3, 21)
    assert printed["cost"][0]["image_words"] <= 16 < printed["cost"][0]["query_words"] <= 24
    end = f"--data '{parted}' --vocabulary toy --set k_query=24"
    assert printed["commands"][:3] == [
        f"bm25v evaluate folder {end}",
        f"bm25v evaluate report {end}",
        f"bm25v evaluate ablate k_post {end}",
    ]


def test_the_papers_report_has_no_full_bags(run: Run, data: Path, tmp_path: Path) -> None:
    options = ("--data", data, "--vocabulary", "toy", "--preset", "paper")
    cache = ("--cache", tmp_path / "cache", "-o", tmp_path / "r")
    printed = run("evaluate", "report", *options, *cache, "--json").json
    assert set(printed["ablations"]) == {"k_post", "k_query", "scoring"}
    assert not {"words", "hybrid"} & {*printed["systems"]}
    assert printed["cost"][0]["full_bags"] is None


def test_unknown_data_sets_and_missing_folders_are_errors(
    run: Run, data: Path, tmp_path: Path
) -> None:
    output = ("-o", tmp_path / "r")
    wrong = run("evaluate", "report", "--data", data, "--dataset", "cats", *output)
    assert (wrong.code, "there is no data set 'cats'" in wrong.err) == (2, True)
    assert run("evaluate", "report", "--data", tmp_path / "nowhere", *output).code == 1
