"""TREC files go out and come back, and an outside tool gets the same figures from them."""

from pathlib import Path

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, Success

from bm25v.errors import EvaluationError, WrongUse
from bm25v.research import metrics, trec
from bm25v.research.datasets import Box, Dataset, Item, Landmark

ROOT = Path("/data")


def make(labels: str, queries: str = "") -> Dataset:
    gallery = [Item(ROOT / one / f"{row} %20.jpg", one) for row, one in enumerate(labels)]
    asked = [Item(ROOT / "q" / f"{row}.jpg", one) for row, one in enumerate(queries)]
    return Dataset("folder", ROOT, "", gallery, asked or gallery, not queries)


@pytest.mark.parametrize("queries", ["", "aabbbcxacb"])
def test_ir_measures_gets_our_figures(tmp_path: Path, queries: str) -> None:
    rng = np.random.default_rng(len(queries))
    dataset = make("".join(rng.choice(list("aabbbcd"), 60)), queries)
    # Few distinct scores: ties must keep our order. Short rankings: not all is found.
    scores = [np.sort(rng.integers(0, 6, rng.integers(5, 50)))[::-1] / 7 for _ in dataset.queries]
    rankings = [rng.permutation(60)[: len(one)] for one in scores]
    trec.write_run(tmp_path / "run.txt", trec.run_of(dataset, rankings, scores))
    trec.write_qrels(tmp_path / "qrels.txt", trec.qrels_of(dataset))

    gallery_labels = [item.label for item in dataset.gallery]
    query_labels = [item.label for item in dataset.queries]
    judged = metrics.judge(rankings, gallery_labels, query_labels, dataset.own_rows)
    ids = [dataset.id_of(item.path) for item in dataset.queries]
    ours = {"AP": dict(zip(ids, metrics.average_precisions(judged).tolist(), strict=True))}
    for k in (1, 5, 10, 20):
        hits = metrics.successes(judged, k).astype(float).tolist()
        ours[f"Success@{k}"] = dict(zip(ids, hits, strict=True))

    outside = ir_measures.iter_calc(
        [AP, *(Success @ k for k in (1, 5, 10, 20))],
        ir_measures.read_trec_qrels(str(tmp_path / "qrels.txt")),
        ir_measures.read_trec_run(str(tmp_path / "run.txt")),
    )
    compared = 0
    for found in outside:
        mine = ours[str(found.measure)][found.query_id.replace("%20", " ").replace("%25", "%")]
        assert found.value == pytest.approx(mine), found
        compared += 1
    answerable = int((judged.relevant_q > 0).sum())
    assert compared == 5 * answerable > 0


def test_runs_and_qrels_survive_the_disk(tmp_path: Path) -> None:
    odd = "a b\t\u00a0%41é\udcff.jpg"
    run = {"q 1": [(odd, 3.5), ("plain", 3.25)], "q2": [("plain", -1.0)]}
    trec.write_run(tmp_path / "run", run, tag="my system")
    assert trec.read_run(tmp_path / "run") == run
    first = (tmp_path / "run").read_bytes().split(b"\n")[0].split()
    assert (first[1], first[3:]) == (b"Q0", [b"1", b"3.5", b"my%20system"])
    qrels = {"q 1": {odd: 1, "plain": 0}, "q2": {"plain": 2}}
    trec.write_qrels(tmp_path / "qrels", qrels)
    assert trec.read_qrels(tmp_path / "qrels") == qrels


def test_ties_keep_their_order_in_single_precision(tmp_path: Path) -> None:
    answers = [("b", 1.0), ("c", 1.0), ("a", 1.0 - 1e-12), ("d", 0.5)]
    trec.write_run(tmp_path / "run", {"q": answers})
    found = trec.read_run(tmp_path / "run")["q"]
    assert [name for name, _ in found] == ["b", "c", "a", "d"]
    assert len({np.float32(score) for _, score in found}) == 4
    for (_, score), (_, written) in zip(answers, found, strict=True):
        assert written == pytest.approx(score, abs=1e-6)


def test_foreign_runs_are_ordered_by_score(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("q Q0 a 1 0.5 x\r\nq Q0 b 2 0.7 x\n\nq Q0 c 3 0.5 x\n")
    assert trec.read_run(tmp_path / "run") == {"q": [("b", 0.7), ("c", 0.5), ("a", 0.5)]}


def test_a_query_is_no_answer_to_itself() -> None:
    dataset = make("aab")
    rows = [np.array([0, 1, 2])] * 3
    run = trec.run_of(dataset, rows, [np.array([3.0, 2.0, 1.0])] * 3)
    assert run["a/0 %20.jpg"] == [("a/1 %20.jpg", 2.0), ("b/2 %20.jpg", 1.0)]
    assert trec.qrels_of(dataset) == {
        "a/0 %20.jpg": {"a/1 %20.jpg": 1},
        "a/1 %20.jpg": {"a/0 %20.jpg": 1},
        "b/2 %20.jpg": {},
    }


def test_broken_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("q 0 a 1\nq 0 a\n")
    with pytest.raises(EvaluationError, match=r"line 2 of .*file has 3 columns, not 4: 'q 0 a'"):
        trec.read_qrels(file)
    file.write_text("q 0 a yes\n")
    with pytest.raises(EvaluationError, match=r"line 1 of .* has 'yes' in place of a number"):
        trec.read_qrels(file)
    with pytest.raises(EvaluationError, match="none cannot be read"):
        trec.read_run(tmp_path / "none")


def test_junk_cannot_be_written_as_qrels() -> None:
    nothing: frozenset[Path] = frozenset()
    landmark = Landmark(Box(0, 0, 1, 1), nothing, nothing, nothing)
    asked = [Item(ROOT / "q.jpg", "", landmark)]
    dataset = Dataset("roxford5k", ROOT, "", [Item(ROOT / "a.jpg", "")], asked)
    with pytest.raises(WrongUse, match="roxford5k cannot be written as qrels"):
        trec.qrels_of(dataset)
