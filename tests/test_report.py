"""The report: every figure on one page that needs nothing else, and all of them as JSON."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from bm25v.cli.analysis import report as command
from bm25v.errors import EvaluationError, WrongUse
from bm25v.pages.charts import format_share, log_axis, share_axis
from bm25v.pages.evaluation_page import N_CLASSES, render_evaluation, system_title
from bm25v.research import cost, datasets, features, report, tables, zipf
from bm25v.research.report import Report
from bm25v.research.settings import RankingSettings
from bm25v.research.significance import Comparison, Interval
from bm25v.research.systems import SYSTEMS
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags
from tests.conftest import make_image
from tests.html_page import HtmlPage

TOY = Vocabulary.load("toy")
CLASSES = ("cats & <dogs>", "flowers", "houses")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight images, and a file that is not an image."""
    folder = tmp_path_factory.mktemp("data") / "my pets"
    for number, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for seed in range(8):
            make_image(100 * number + seed // 2, side=40 + seed).save(folder / name / f"{seed}.png")
    (folder / "flowers" / "torn.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def found(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Report:
    cache = tmp_path_factory.mktemp("cache")
    dataset = datasets.load("folder", data)
    return report.measure_report(dataset, TOY, cache=cache)


def words_of_images(data: Path) -> list[set[int]]:
    paths = sorted(path for path in data.rglob("*.png") if path.name != "torn.png")
    encodings = [TOY.encode(path) for path in paths]
    return [
        set(bags.pool_codes(encoding.codes, k_post=16).words.tolist()) for encoding in encodings
    ]


def test_statistics_are_those_of_the_images(found: Report, data: Path) -> None:
    words = words_of_images(data)
    df_v = np.bincount([word for bag in words for word in bag], minlength=TOY.n_words)
    assert found.zipf.df_r.tolist() == sorted(df_v[df_v > 0].tolist(), reverse=True)
    assert found.zipf.alpha == zipf.fit_zipf(df_v, 24).alpha
    here, million, hundred_million = found.usages
    assert here.images == 24
    assert here.postings == pytest.approx(np.mean([df_v[list(bag)].sum() for bag in words]))
    assert (million.images, hundred_million.images) == (10**6, 10**8)
    assert found.growth == cost.measure_growth(df_v, 24)
    assert (found.dim, found.bag_bytes, found.dense_bytes) == (12, 64, 24)
    assert found.full_bag_bytes == 256 * 4


def test_ablations_have_the_metrics_of_the_systems(found: Report) -> None:
    k_post, k_query, scoring, k_full, weight = found.ablations
    assert [trial.values["k_post"] for trial in k_post.trials] == ["8", "16", "32", "64", "128"]
    systems = found.result.systems
    for ablation, value, name in (
        (k_post, "16", "bm25v"),
        (k_query, "16", "bm25v"),
        (scoring, "bm25", "bm25v"),
        (scoring, "dot", "dot"),
    ):
        (trial,) = [one for one in ablation.trials if one.values[ablation.axes[0]] == value]
        for metric, mean in trial.metrics["bm25v"].items():
            assert mean == pytest.approx(systems[name].metrics[metric].mean), (value, metric)
    for ablation, value, name in ((k_full, "256", "words"), (weight, "1.5", "hybrid")):
        (trial,) = [one for one in ablation.trials if one.values[ablation.axes[0]] == value]
        for metric, mean in trial.metrics[name].items():
            assert mean == pytest.approx(systems[name].metrics[metric].mean), (value, metric)
    chosen = re.findall(r'class="chosen"><th scope="row">(.*?)</th>', render_evaluation(found))
    assert chosen == ["16", "16", "bm25", "256", "1.5"]


def test_searches_are_timed(found: Report) -> None:
    assert found.latencies is not None
    assert found.latencies.queries == 24
    assert found.latencies.candidates == 24
    assert [one.system for one in found.latencies.systems] == list(report.TIMED_SYSTEMS)
    assert all(0 < one.median_ms <= one.p95_ms for one in found.latencies.systems)
    assert "How long a search takes" in render_evaluation(found)


def test_the_page_shows_every_system_and_figure(found: Report) -> None:
    text = render_evaluation(found)
    for name in SYSTEMS:
        system = found.result.systems[name]
        assert system_title(name) in text
        for figure, interval in system.metrics.items():
            assert f">{figure}<" in text
            assert format_share(interval.mean) in text
            assert f"{format_share(interval.low)}–{format_share(interval.high)}" in text
    for what in (
        f"{found.zipf.alpha:.2f}",
        f"{found.zipf.active_words:,}",
        f"{found.usages[0].postings:,.0f}",
        "leave-one-out",
        TOY.fingerprint,
        "torn.png",
        "k_post",
        "tfidf",
        "100 M",
    ):
        assert what in text, what


def test_names_are_escaped(found: Report) -> None:
    text = render_evaluation(found)
    assert "cats &amp; &lt;dogs&gt;" in text
    assert "<dogs>" not in text
    assert "--data &#39;" in text  # a path with a space is quoted for the shell


def test_the_page_needs_nothing_else_and_is_whole(found: Report) -> None:
    text = render_evaluation(found)
    assert not re.findall(r"https?://|<script|<link|<img|url\(|@import", text)
    HtmlPage(text)
    assert "nan" not in text.lower().replace("nano", "")
    assert text.count('<svg viewBox="0 0 520 300"') == 6  # recall, k_post, k_query, k_full, …


def test_json_has_the_same_figures(found: Report) -> None:
    figures = json.loads(json.dumps(found.to_dict()))
    assert figures["dataset"] == "my pets"
    assert set(figures["systems"]) == set(SYSTEMS)
    for name, system in found.result.systems.items():
        assert figures["systems"][name]["R@1"] == system.metrics["R@1"].mean
    assert figures["zipf"]["df_by_rank"] == found.zipf.df_r.tolist()
    assert [one["pictures"] for one in figures["cost"]] == [24, 10**6, 10**8]
    assert set(figures["ablations"]) == {"k_post", "k_query", "scoring", "k_full", "weight"}
    assert figures["ablations"]["scoring"][0]["scoring"] == "bm25"
    assert set(figures["milliseconds"]["systems"]["dense"]) == {"median", "p95"}
    assert len(figures["growth"]["sizes"]) == len(figures["growth"]["measured"])


def test_the_papers_systems_ours_and_dense_are_side_by_side(found: Report) -> None:
    means = {"bm25v": 0.6, "two-stage-200": 0.81, "words": 0.78, "hybrid": 0.82, "dense": 0.8}
    systems = {
        name: replace(
            found.result.systems[name],
            metrics={metric: Interval(mean, mean, mean) for metric in ("R@1", "mAP")},
        )
        for name, mean in means.items()
    }
    report = replace(found, result=replace(found.result, systems=systems), ablations=())
    owners = {name: row["owner"] for name, row in report.to_dict()["compared"].items()}
    paper, ours = "the paper", "ours"
    assert owners == {
        "bm25v": paper,
        "two-stage-200": paper,
        "words": ours,
        "hybrid": ours,
        "dense": "",
    }
    shares = {n: r["relative_to_dense"]["R@1"] for n, r in report.compared().items()}
    assert shares == pytest.approx({name: mean / 0.8 for name, mean in means.items()})
    _, rows = tables.comparison_table(report.result)
    assert rows[2] == ["ours", "words", ".780", "97.5 %"]
    assert rows[3] == ["ours", "hybrid", ".820", "102.5 %"]
    text = render_evaluation(report)
    assert text.index("75.0% of dense") < text.index("97.5% of dense") < text.index("102.5% of")
    alone = replace(found.result, systems={"words": systems["words"]})
    assert tables.comparison_table(alone)[1] == [["ours", "words", ".780", ""]]


def test_the_verdict_follows_p(found: Report) -> None:
    verdicts = {
        Comparison(-0.2, 1, 40, 0.0001): ("−.200", "&lt; .001", ">worse<"),
        Comparison(0.15, 40, 1, 0.03): ("+.150", ".030", ">better<"),
        Comparison(0.01, 3, 2, 0.8): ("+.010", ".800", ">no difference shown<"),
    }
    for comparison, expected in verdicts.items():
        systems = dict(found.result.systems)
        systems["bm25v"] = replace(systems["bm25v"], against_dense={"R@1": comparison})
        only = {name: systems[name] for name in ("dense", "bm25v")}
        text = render_evaluation(replace(found, result=replace(found.result, systems=only)))
        for part in expected:
            assert part in text


def test_best_and_worst_classes_are_chosen_by_words(found: Report) -> None:
    shares = np.linspace(0, 1, 37).round(3).tolist()
    labels = {f"class {n:02d}": {"queries": 7, "R@1": value} for n, value in enumerate(shares)}
    systems = {
        name: replace(system, classes=labels) for name, system in found.result.systems.items()
    }
    text = render_evaluation(replace(found, result=replace(found.result, systems=systems)))
    best, worst, everything = text.split('id="classes"')[1].split("R@1 by class")[1:]
    assert re.findall(r"class \d\d", best) == [
        f"class {n:02d}" for n in range(36, 36 - N_CLASSES, -1)
    ]
    assert re.findall(r"class \d\d", worst)[:N_CLASSES] == [
        f"class {n:02d}" for n in range(N_CLASSES)
    ]
    assert "All 37 classes" in worst
    assert len(set(re.findall(r"class \d\d", everything))) == 37


def test_landmarks_have_figures_of_their_own(found: Report) -> None:
    names = ("mAP easy", "mAP medium", "mAP hard")
    systems = {
        name: replace(
            system,
            metrics={one: Interval(0.5, 0.4, 0.6) for one in names},
            against_dense={one: Comparison(0.1, 3, 2, 0.6) for one in names},
            classes={},
        )
        for name, system in found.result.systems.items()
    }
    text = render_evaluation(
        replace(found, result=replace(found.result, systems=systems), ablations=())
    )
    assert "mAP medium and its uncertainty" in text
    assert "mAP medium against dense" in text
    assert "Recall at K" not in text
    assert "classes" not in text.split("<main>")[1].split("</main>")[0].lower()


def run(*arguments: object) -> Any:
    return CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)


def test_the_command_writes_a_page_and_its_numbers(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("--data", data, "--vocabulary", "toy", "--cache", tmp_path / "cache")
    printed = run(*options).stdout.splitlines()
    assert printed[0].split() == ["system", "R@1", "of", "dense"]
    assert [" ".join(line.split()[:-3]) for line in printed[1:5]] == [
        "the paper bm25v",
        "the paper two-stage-200",
        "ours words",
        "ours hybrid",
    ]
    assert printed[6:] == [
        "report/report.html: a page about my pets",
        "report/report.json: its figures",
    ]
    assert "<h1>my pets</h1>" in (tmp_path / "report" / "report.html").read_text()
    again = run("folder", *options, "-o", "again", "--json").stdout
    written = json.loads((tmp_path / "again" / "report.json").read_text())
    assert json.loads(again) == written
    assert set(written) >= {"systems", "zipf", "cost", "growth", "commands"}
    assert written["commands"][0] == f"bm25v report folder --data '{data}' --vocabulary toy"


def test_settings_and_a_split_are_used_for_all_measurements(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = tmp_path / "my split.tsv"
    names = sorted(str(path.relative_to(data)) for path in data.rglob("[0-7].png"))
    split.write_text("".join(f"{one}\t{'query' if '0' in one else 'gallery'}\n" for one in names))
    read: list[Path] = []
    original = features.hash_image

    def counted(part: features.ImagePart) -> Any:
        read.append(part.path)
        return original(part)

    monkeypatch.setattr(features, "hash_image", counted)
    options = ("--data", data, "--vocabulary", "toy", "--cache", tmp_path / "cache")
    changes = ("--preset", "paper", "--set", "k_query=24", "--set", "query=sqrt-tf")
    outcome = run(*options, "--split", split, *changes, "-o", tmp_path / "r", "--json")
    found = json.loads(outcome.stdout)
    assert len(read) == len(names)  # once
    assert (found["queries"], found["gallery"]) == (3, 21)
    assert found["settings"]["query"] == "sqrt-tf"
    assert found["cost"][0]["picture_words"] <= 16 < found["cost"][0]["query_words"] <= 24
    assert found["milliseconds"]["queries"] == 3
    html = (tmp_path / "r" / "report.html").read_text()
    assert "Settings changed: k_post 16, k_query 24, query sqrt-tf." in html
    end = f"--data '{data}' --split '{split}' --vocabulary toy --set k_query=24 --set query=sqrt-tf"
    assert found["commands"] == [
        f"bm25v report folder {end}",
        f"bm25v evaluate folder {end}",
        f"bm25v ablate k_post {end}",
        f"bm25v ablate k_query {end}",
        f"bm25v ablate scoring {end}",
        f"bm25v ablate k_full {end}",
        f"bm25v ablate weight {end}",
    ]


def test_searches_with_another_k1_are_not_timed(data: Path, tmp_path: Path) -> None:
    dataset = datasets.load("folder", data)
    settings = RankingSettings(k1=0.9)
    found = report.measure_report(dataset, TOY, settings=settings, cache=tmp_path)
    assert found.latencies is None
    assert "How long a search takes" not in render_evaluation(found)


def test_unknown_data_sets_and_missing_folders_are_errors(data: Path, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="there is no data set 'cats'"):
        run("cats", "--data", data)
    with pytest.raises(EvaluationError):
        run("--data", tmp_path / "nowhere", "--cache", tmp_path)


def test_axes_hold_their_values() -> None:
    axis = log_axis("pictures", 1, 100)
    assert [axis.share(value) for value in (1, 10, 100)] == pytest.approx([0, 0.5, 1])
    for low, high in ((0.0, 1.0), (0.985, 1.0), (0.5, 0.5), (0.123, 0.987), (1.0, 1.0)):
        axis = share_axis("recall", low, high)
        assert axis.low <= low + 1e-9
        assert axis.high >= high - 1e-9
        assert 2 <= len(axis.ticks) <= 8
        assert all(0 <= axis.share(value) <= 1 + 1e-9 for value in (low, high))
