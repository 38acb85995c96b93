"""Grids of settings: every cell is what an evaluation gives, and none is measured twice."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import WrongUse
from bm25v.research import ablate as ablation
from bm25v.research import datasets
from bm25v.research.ablate import AXES, Trial, TrialCache, TrialResult, ablate, plan_trials
from bm25v.research.evaluate import evaluate, score_queries
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
    """Which systems were asked for a ranking."""
    asked: list[str] = []
    original = SystemRunner.run

    def counted(self: SystemRunner, name: str) -> Any:
        asked.append(name)
        return original(self, name)

    monkeypatch.setattr(SystemRunner, "run", counted)
    return asked


@pytest.fixture
def run(data: Path, cache: Path, in_shell: Run) -> Run:
    """Run `bm25v ablate` on the three classes with the toy vocabulary."""
    fixed = ("--data", data, "--cache", cache, "--vocabulary", "toy")
    return lambda *words: in_shell("ablate", *words, *fixed)


def test_a_cell_is_an_evaluation(dataset: datasets.Dataset, cache: Path, toy: Vocabulary) -> None:
    grid = ablate(
        dataset, plan_trials({"k_post": ["2", "16"]}, toy, RankingSettings()), cache=cache
    )
    names = ["dense", "bm25v", "two-stage", "hybrid"]
    for cell in grid.trials:
        settings = RankingSettings(k_post=int(cell.values["k_post"]))
        result = evaluate(dataset, toy, settings=settings, systems=names, cache=cache)
        for name in ("bm25v", "hybrid"):
            means = {figure: one.mean for figure, one in result.systems[name].metrics.items()}
            assert cell.metrics[name] == pytest.approx(means)
        means = {figure: one.mean for figure, one in result.systems["dense"].metrics.items()}
        assert grid.dense == pytest.approx(means)
    assert [cell.words for cell in grid.trials] == [2, 16]
    assert grid.trials[0].postings < grid.trials[1].postings
    assert grid.trials[0].metrics["bm25v"] != grid.trials[1].metrics["bm25v"]


def test_what_is_done_is_not_done_again(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary, ranked: list[str]
) -> None:
    first = ablate(
        dataset, plan_trials({"query": ["presence", "tf"]}, toy, RankingSettings()), cache=cache
    )
    assert len(ranked) == 1 + 2 * 3
    assert [cell.is_new for cell in first.trials] == [True, True]
    more = plan_trials({"query": ["presence", "tf", "sqrt-tf"]}, toy, RankingSettings())
    second = ablate(dataset, more, cache=cache)
    assert len(ranked) == 1 + 3 * 3
    assert [cell.is_new for cell in second.trials] == [False, False, True]
    assert [cell.metrics for cell in second.trials[:2]] == [cell.metrics for cell in first.trials]


def test_an_interrupted_grid_goes_on(
    dataset: datasets.Dataset,
    cache: Path,
    toy: Vocabulary,
    ranked: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wanted = plan_trials({"pooling": []}, toy, RankingSettings())

    def breaks(*arguments: Any) -> Any:
        if len(ranked) > 5:
            raise KeyboardInterrupt
        return score_queries(*arguments)

    monkeypatch.setattr(ablation, "score_queries", breaks)
    with pytest.raises(KeyboardInterrupt):
        ablate(dataset, wanted, cache=cache)
    monkeypatch.setattr(ablation, "score_queries", score_queries)
    grid = ablate(dataset, wanted, cache=cache)
    assert [cell.is_new for cell in grid.trials] == [False, True, True]


def test_other_labels_are_another_grid(
    data: Path, cache: Path, toy: Vocabulary, tmp_path: Path
) -> None:
    wanted = plan_trials({"tf": ["none"]}, toy, RankingSettings())
    split = tmp_path / "split.tsv"

    def measured(label: str) -> TrialResult:
        """Let a picture ask for others of its class, which is called something else."""
        names = [f"{label}/{number}.png" for number in (3, 6, 9)] + ["b/1.png", "c/2.png"]
        split.write_text("".join(f"{name}\tgallery\n" for name in names) + "a/0.png\tquery")
        return ablate(datasets.load("folder", data, split=split), wanted, cache=cache).trials[0]

    first = measured("a")
    assert first.metrics["bm25v"]["R@5"] == 1
    (data / "d").mkdir()
    for number in (3, 6, 9):
        (data / "a" / f"{number}.png").rename(data / "d" / f"{number}.png")
    second = measured("d")
    assert second.is_new
    assert second.metrics["bm25v"]["R@5"] == 0


def test_torn_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    TrialCache(path).add("one", {"R@1": 0.5})
    with path.open("ab") as file:
        file.write(b'{"key": "two", "fou')
    cells = TrialCache(path)
    assert cells.get("two") is None
    cells.add("three", {"R@1": 1.0})
    assert TrialCache(path).get("one") == {"R@1": 0.5}
    assert TrialCache(path).get("three") == {"R@1": 1.0}


def test_axes_multiply(toy: Vocabulary) -> None:
    found = plan_trials(
        {"k_post": ["4", "all"], "tf": ["none", "sqrt"]}, toy, RankingSettings(b=0.5)
    )
    assert [tuple(trial.values.values()) for trial in found] == [
        ("4", "none"),
        ("4", "sqrt"),
        ("all", "none"),
        ("all", "sqrt"),
    ]
    assert found[3].settings == RankingSettings(k_post=ALL, tf="sqrt", b=0.5)


def test_every_axis_has_values_that_settings_take(toy: Vocabulary) -> None:
    for name, axis in AXES.items():
        if axis.values:
            found = plan_trials({name: []}, toy, RankingSettings())
            assert len({(trial.settings, trial.vocabulary.sae.k) for trial in found}) == len(found)


def test_k_is_changed_with_the_same_weights(
    dataset: datasets.Dataset, cache: Path, toy: Vocabulary
) -> None:
    found = plan_trials({"k": ["1", "8"]}, toy, RankingSettings(k_post=ALL))
    assert found[1].vocabulary is toy
    assert found[0].vocabulary.sae.w_enc_dv is toy.sae.w_enc_dv
    grid = ablate(dataset, found, cache=cache)
    one, eight = (cell.words for cell in grid.trials)
    assert one <= 49
    assert eight > 2 * one


def wider(toy: Vocabulary) -> Vocabulary:
    rng = np.random.default_rng(5)
    w_dec_vd = rng.standard_normal((384, 12)).astype(np.float32)
    zeros = np.zeros(384, np.float32), np.zeros(12, np.float32)
    sae = SparseAutoEncoder(w_dec_vd.T.copy(), zeros[0], w_dec_vd, zeros[1], k=8)
    return Vocabulary.build("wide", backbone=toy.backbone, sae=sae)


def test_vocabularies_are_told_by_what_they_were_trained_with(toy: Vocabulary) -> None:
    wide = wider(toy)
    found = plan_trials({"expansion": []}, toy, RankingSettings(), [toy, wide])
    assert [trial.values["expansion"] for trial in found] == ["16", "32"]
    assert found[1].vocabulary is wide
    same = plan_trials({"k": []}, toy, RankingSettings(), [toy, wide])
    assert [trial.values["k"] for trial in same] == ["8 (toy)", "8 (wide)"]
    early = replace(toy, backbone_name="owner/model#3")
    (trial,) = plan_trials({"layer": []}, toy, RankingSettings(), [early])
    assert trial == Trial({"layer": "3"}, early, RankingSettings())


def test_a_table_a_plot_and_json(run: Run, tmp_path: Path) -> None:
    code, out, err = run("k_post", "--values", "2,4,8", "-o", tmp_path / "plot.png")
    assert (code, err) == (0, "")
    head, *lines = out.splitlines()
    assert head.split()[0] == "k_post"
    assert "bm25v R@100" in head
    assert [line.split()[0] for line in lines] == ["dense", "2", "4", "8"]
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = run("k_post", "--values", "2,4,8", "--json")
    assert (code, err) == (0, "3 of 3 were measured before\n")
    found = json.loads(out)
    assert (found["dataset"], found["axes"]) == ("data", ["k_post"])
    assert [cell["k_post"] for cell in found["cells"]] == ["2", "4", "8"]
    assert found["cells"][0]["words"] == 2
    assert 0 < found["cells"][0]["bm25v"]["R@1"] <= 1
    assert lines[1].split()[3] == f"{found['cells'][0]['bm25v']['R@1']:.3f}".lstrip("0")


def test_markdown_of_several_axes(run: Run) -> None:
    code, out, _ = run("k_post", "query", "--values", "2,4", "--values", "tf", "--format=markdown")
    assert code == 0
    lines = out.splitlines()
    assert lines[0].startswith("| k_post | query | words | postings | bm25v R@1 |")
    assert [line.split(" | ")[:2] for line in lines[3:]] == [["| 2", "tf"], ["| 4", "tf"]]


def test_only_systems_that_are_affected_are_shown(run: Run) -> None:
    assert "bm25v" not in run("weight", "--values", "0,1")[1]
    assert "hybrid" not in run("scoring")[1]
    assert "two-stage" in run("candidates", "--values", "1,2")[1]


def test_vocabularies_through_the_command(run: Run, toy: Vocabulary, tmp_path: Path) -> None:
    wider(toy).save(tmp_path / "wide")
    code, out, _ = run("expansion", "--vocabularies", f"toy,{tmp_path / 'wide'}")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["16", "32"]


def test_notes_come_with_a_grid(run: Run, data: Path) -> None:
    (data / "a" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    code, _, err = run("tf", "--values", "none")
    assert code == 0
    assert "note: unreadable and left out: 1 (a/torn.png: " in err


def test_wrong_use_is_one_line(run: Run, tmp_path: Path) -> None:
    failed(run("kpost"), 2, "'kpost' cannot be varied; choose from k, expansion")
    failed(run("k_post", "--values", "2,many"), 2, "k_post = 'many'")
    failed(run("k_post", "b", "--values", "2"), 2, "--values is there 1 times for 2 of k_post, b")
    failed(run("k", "--values", "0"), 2, "k = '0': it must be a number from 1 to 192")
    failed(run("layer"), 2, "another layer needs another SAE", "--vocabularies")
    failed(run("b", "--vocabularies", "toy"), 2, "--vocabularies is for k, expansion and layer")
    failed(run("k", "--values", "4", "--vocabularies", "toy"), 2, "leave out --values")
    failed(run("k", "layer", "--vocabularies", "toy"), 2, "k and layer cannot vary at once")
    plot = tmp_path / "plot.png"
    failed(run("tf", "-o", plot), 2, "tf has values that are not numbers")
    failed(run("b", "k1", "-o", plot), 2, "not b and k1: vary one of them")
    failed(run("b", "-o", tmp_path / "plot"), 2, "must end in .png")


def test_an_axis_that_takes_no_values_is_refused(toy: Vocabulary) -> None:
    with pytest.raises(WrongUse, match="another expansion needs another SAE"):
        plan_trials({"expansion": ["4"]}, toy, RankingSettings())
