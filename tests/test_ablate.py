"""Ablations: every trial equals an evaluation, and none is measured twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import InvalidOption
from bm25v.research import ablate as ablation
from bm25v.research import datasets
from bm25v.research.ablate import AXES, Trial, TrialResult, ablate, plan_trials
from bm25v.research.evaluate import evaluate
from bm25v.research.metrics import score_queries
from bm25v.research.settings import ALL, RankingSettings
from bm25v.research.systems import SystemRunner
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary import Vocabulary
from tests import test_cli, test_evaluate
from tests.test_cli import Run
from tests.test_evaluate import failed, save_classes

cache, toy, in_shell = test_evaluate.cache, test_evaluate.toy, test_cli.run


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_classes(tmp_path / "data", "abc", 15)


@pytest.fixture
def dataset(data: Path) -> datasets.Dataset:
    return datasets.load("folder", data)


@pytest.fixture
def ranked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The systems that were run."""
    names: list[str] = []
    original = SystemRunner.run

    def counted(self: SystemRunner, name: str) -> Any:
        names.append(name)
        return original(self, name)

    monkeypatch.setattr(SystemRunner, "run", counted)
    return names


@pytest.fixture
def run(data: Path, cache: Path, in_shell: Run) -> Run:
    """Run `bm25v evaluate ablate` on the three classes with the toy vocabulary."""
    fixed = ("--data", data, "--cache", cache, "--vocabulary", "toy")
    return lambda *words: in_shell("evaluate", "ablate", *words, *fixed)


def test_a_trial_equals_an_evaluation(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary
) -> None:
    result = ablate(
        dataset, plan_trials({"k_post": ["2", "16"]}, toy, RankingSettings()), cache=cache
    )
    names = ["dense", "bm25v", "two-stage", "words", "hybrid"]
    for trial in result.trials:
        settings = RankingSettings(k_post=int(trial.values["k_post"]))
        evaluated = evaluate(dataset, toy, settings=settings, systems=names, cache=cache)
        for name in ("bm25v", "words", "hybrid"):
            means = {figure: one.mean for figure, one in evaluated.systems[name].metrics.items()}
            assert trial.metrics[name] == pytest.approx(means)
        means = {figure: one.mean for figure, one in evaluated.systems["dense"].metrics.items()}
        assert result.dense == pytest.approx(means)
    assert [trial.words for trial in result.trials] == [2, 16]
    assert result.trials[0].postings < result.trials[1].postings
    assert result.trials[0].metrics["bm25v"] != result.trials[1].metrics["bm25v"]


def test_measured_trials_are_read_from_the_cache(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary, ranked: list[str]
) -> None:
    first = ablate(
        dataset, plan_trials({"query": ["presence", "tf"]}, toy, RankingSettings()), cache=cache
    )
    assert len(ranked) == 1 + 2 * 4
    assert [trial.is_new for trial in first.trials] == [True, True]
    more = plan_trials({"query": ["presence", "tf", "sqrt-tf"]}, toy, RankingSettings())
    second = ablate(dataset, more, cache=cache)
    assert len(ranked) == 1 + 3 * 4
    assert [trial.is_new for trial in second.trials] == [False, False, True]
    assert [trial.metrics for trial in second.trials[:2]] == [
        trial.metrics for trial in first.trials
    ]


def test_an_interrupted_ablation_continues(
    dataset: datasets.Dataset,
    cache: Path,
    toy: Vocabulary,
    ranked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planned = plan_trials({"pooling": []}, toy, RankingSettings())

    def interrupt(*arguments: Any) -> Any:
        if len(ranked) > 5:
            raise KeyboardInterrupt
        return score_queries(*arguments)

    monkeypatch.setattr(ablation, "score_queries", interrupt)
    with pytest.raises(KeyboardInterrupt):
        ablate(dataset, planned, cache=cache)
    monkeypatch.setattr(ablation, "score_queries", score_queries)
    result = ablate(dataset, planned, cache=cache)
    assert [trial.is_new for trial in result.trials] == [False, True, True]


def test_other_labels_are_measured_again(tmp_path: Path, cache: Path, toy: Vocabulary) -> None:
    planned = plan_trials({"tf": ["none"]}, toy, RankingSettings())
    data = save_classes(tmp_path / "data" / "train", "abc", 15).parent
    (data / "test" / "a").mkdir(parents=True)
    (data / "train" / "a" / "0.png").rename(data / "test" / "a" / "0.png")

    def measure() -> TrialResult:
        return ablate(datasets.load("folder", data), planned, cache=cache).trials[0]

    first = measure()
    assert first.metrics["bm25v"]["R@5"] == 1
    (data / "train" / "a").rename(data / "train" / "aa")
    second = measure()
    assert second.is_new
    assert second.metrics["bm25v"]["R@5"] == 0


def test_a_damaged_file_of_the_cache_is_measured_again(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary, ranked: list[str]
) -> None:
    planned = plan_trials({"b": ["0.5"]}, toy, RankingSettings())
    first = ablate(dataset, planned, cache=cache)
    for path in (cache / "trials").iterdir():
        path.write_bytes(path.read_bytes()[:-40])
    ranked.clear()
    second = ablate(dataset, planned, cache=cache)
    assert len(ranked) == 1 + 4
    assert second.trials[0].metrics == first.trials[0].metrics


def test_all_combinations_of_values_are_tried(toy: Vocabulary) -> None:
    planned = plan_trials(
        {"k_post": ["4", "all"], "tf": ["none", "sqrt"]}, toy, RankingSettings(b=0.5)
    )
    assert [tuple(trial.values.values()) for trial in planned] == [
        ("4", "none"),
        ("4", "sqrt"),
        ("all", "none"),
        ("all", "sqrt"),
    ]
    assert planned[3].settings == RankingSettings(k_post=ALL, tf="sqrt", b=0.5)


def test_the_default_values_of_every_axis_are_valid_and_distinct(toy: Vocabulary) -> None:
    for name, axis in AXES.items():
        if axis.values:
            planned = plan_trials({name: []}, toy, RankingSettings())
            assert len({(trial.settings, trial.vocabulary.sae.k) for trial in planned}) == len(
                planned
            )


def test_k_is_varied_with_the_same_weights(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary
) -> None:
    planned = plan_trials({"k": ["1", "8"]}, toy, RankingSettings(k_post=ALL))
    assert planned[1].vocabulary is toy
    assert planned[0].vocabulary.sae.w_enc_dv is toy.sae.w_enc_dv
    result = ablate(dataset, planned, cache=cache)
    one, eight = (trial.words for trial in result.trials)
    assert one <= 49
    assert eight > 2 * one


def wider(toy: Vocabulary) -> Vocabulary:
    rng = np.random.default_rng(5)
    w_dec_vd = rng.standard_normal((384, 12)).astype(np.float32)
    zeros = np.zeros(384, np.float32), np.zeros(12, np.float32)
    sae = SparseAutoEncoder(w_dec_vd.T.copy(), zeros[0], w_dec_vd, zeros[1], k=8)
    return Vocabulary.build("wide", backbone=toy.backbone, sae=sae)


def test_vocabularies_are_labelled_by_what_they_were_trained_with(toy: Vocabulary) -> None:
    wide = wider(toy)
    planned = plan_trials({"expansion": []}, toy, RankingSettings(), [toy, wide])
    assert [trial.values["expansion"] for trial in planned] == ["16", "32"]
    assert planned[1].vocabulary is wide
    same = plan_trials({"k": []}, toy, RankingSettings(), [toy, wide])
    assert [trial.values["k"] for trial in same] == ["8 (toy)", "8 (wide)"]
    early = replace(toy, backbone_name="owner/model#3")
    (trial,) = plan_trials({"layer": []}, toy, RankingSettings(), [early])
    assert trial == Trial({"layer": "3"}, early, RankingSettings())


def test_an_ablation_is_printed_plotted_and_written_as_json(run: Run, tmp_path: Path) -> None:
    code, out, err = run("k_post", "--values", "2,4,8", "-o", tmp_path / "plot.png")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[0] == "k_post"
    assert "bm25v R@100" in head
    assert [line.split()[0] for line in lines] == ["dense", "2", "4", "8"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = run("k_post", "--values", "2,4,8", "--json")
    assert (code, err) == (0, "3 of 3 were measured before\n")
    printed = json.loads(out)
    assert (printed["dataset"], printed["axes"]) == ("data", ["k_post"])
    assert [trial["k_post"] for trial in printed["trials"]] == ["2", "4", "8"]
    assert printed["trials"][0]["image_words"] == 2
    assert 0 < printed["trials"][0]["bm25v"]["R@1"] <= 1
    assert lines[1].split()[3] == f"{printed['trials'][0]['bm25v']['R@1']:.3f}".lstrip("0")


def test_each_part_of_a_wide_table_has_all_settings(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    code, out, _ = run("k_query", "query", "--values", "16,64", "--values", "presence,sqrt-tf")
    assert code == 0
    parts = [part.splitlines() for part in out.split("\n\n")]
    assert len(parts) > 1
    for header, dense, *rows in parts:
        assert header.startswith("k_query, query")
        assert dense.startswith("dense")
        settings = [tuple(row.split()[:2]) for row in rows]
        assert settings == [
            ("16,", "presence"),
            ("16,", "sqrt-tf"),
            ("64,", "presence"),
            ("64,", "sqrt-tf"),
        ]


def test_only_affected_systems_are_shown(run: Run) -> None:
    assert "bm25v" not in run("weight", "--values", "0,1")[1]
    assert "hybrid" not in run("scoring")[1]
    assert "two-stage" in run("candidates", "--values", "1,2")[1]
    head = run("k_full", "--values", "4,8")[1].splitlines()[0]
    assert "bm25v" not in head
    assert "words R@1" in head
    assert "hybrid R@1" in head


def test_the_command_takes_vocabularies(run: Run, toy: Vocabulary, tmp_path: Path) -> None:
    wider(toy).save(tmp_path / "wide")
    repeated = run("expansion", "--vocabularies", "toy", "--vocabularies", tmp_path / "wide")
    separated = run("expansion", "--vocabularies", f"toy,{tmp_path / 'wide'}")
    for code, out, _ in (repeated, separated):
        assert code == 0
        assert [line.split()[0] for line in out.splitlines()[2:]] == ["16", "32"]


def test_problems_of_the_data_set_are_printed(run: Run, data: Path) -> None:
    (data / "a" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, _, err = run("tf", "--values", "none")
    assert code == 0
    assert "note: unreadable and left out: 1 (a/torn.png: " in err


def test_an_error_is_one_line(run: Run, tmp_path: Path) -> None:
    failed(run("kpost"), 2, "'kpost' cannot be varied; choose from k, expansion")
    failed(run("k_post", "--values", "2,many"), 2, "k_post = 'many'")
    failed(
        run("k_post", "b", "--values", "2"),
        2,
        "--values was given 1 times for 2 settings (k_post, b)",
    )
    failed(run("k", "--values", "0"), 2, "k = '0': it must be a number from 1 to 192")
    failed(run("layer"), 2, "another layer needs another SAE", "--vocabularies")
    failed(run("b", "--vocabularies", "toy"), 2, "--vocabularies is for k, expansion and layer")
    failed(run("k", "--values", "4", "--vocabularies", "toy"), 2, "leave out --values")
    failed(run("k", "layer", "--vocabularies", "toy"), 2, "k and layer cannot vary at once")
    plot = tmp_path / "plot.png"
    failed(run("tf", "-o", plot), 2, "tf has values that are not numbers")
    failed(run("b", "k1", "-o", plot), 2, "not b and k1: vary one of them")
    failed(run("b", "-o", tmp_path / "plot"), 2, "must end in .png")


def test_an_axis_that_takes_no_values_is_an_error(toy: Vocabulary) -> None:
    with pytest.raises(InvalidOption, match="another expansion needs another SAE"):
        plan_trials({"expansion": ["4"]}, toy, RankingSettings())
