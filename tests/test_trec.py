"""TREC files: ir-measures reads them and computes the same metrics as we do."""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

import ir_measures
import numpy as np
import pytest
from ir_measures import AP, Success

from bm25v.errors import InvalidOption
from bm25v.index.searcher import Ranked
from bm25v.research import metrics
from bm25v.research.datasets import Dataset, Item, PixelBox, RevisitedTruth
from bm25v.research.tables import write_trec

ROOT = Path("/data")


def make_dataset(gallery_labels: str, query_labels: str = "") -> Dataset:
    gallery = [
        Item(ROOT / label / f"{row} %20.jpg", label) for row, label in enumerate(gallery_labels)
    ]
    queries = [Item(ROOT / "q" / f"{row}.jpg", label) for row, label in enumerate(query_labels)]
    return Dataset("folder", ROOT, "", gallery, queries or gallery)


def write_and_read(
    folder: Path, dataset: Dataset, rankings: Sequence[Ranked], system: str = "dense"
) -> tuple[list[ir_measures.Qrel], list[ir_measures.ScoredDoc]]:
    write_trec(folder, dataset, {system: rankings})
    qrels = ir_measures.read_trec_qrels(str(folder / "qrels.txt"))
    run = ir_measures.read_trec_run(str(folder / f"{system}.run"))
    return list(qrels), list(run)


@pytest.mark.parametrize("query_labels", ["", "aabbbcxacb"])
def test_ir_measures_computes_our_metrics(tmp_path: Path, query_labels: str) -> None:
    rng = np.random.default_rng(len(query_labels))
    dataset = make_dataset("".join(rng.choice(list("aabbbcd"), 60)), query_labels)
    # Few distinct scores: ties must keep our order. Short rankings: not everything is found.
    scores = [np.sort(rng.integers(0, 6, rng.integers(5, 50)))[::-1] / 7 for _ in dataset.queries]
    rankings = [Ranked(rng.permutation(60)[: len(one)], one) for one in scores]
    qrels, run = write_and_read(tmp_path, dataset, rankings)

    judgements = metrics.judge_rankings(
        [ranked.rows for ranked in rankings],
        [item.label for item in dataset.gallery],
        [item.label for item in dataset.queries],
        dataset.own_rows,
    )
    names = [dataset.id_of(item.path) for item in dataset.queries]
    ours = {"AP": dict(zip(names, metrics.average_precision(judgements).tolist(), strict=True))}
    for k in (1, 5, 10, 20):
        recall = metrics.recall_at(k, judgements).astype(float).tolist()
        ours[f"Success@{k}"] = dict(zip(names, recall, strict=True))
    compared = 0
    for metric in ir_measures.iter_calc([AP, *(Success @ k for k in (1, 5, 10, 20))], qrels, run):
        expected = ours[str(metric.measure)][unquote(metric.query_id)]
        assert metric.value == pytest.approx(expected), metric
        compared += 1
    answerable = int((judgements.n_relevant_q > 0).sum())
    assert compared == 5 * answerable > 0


def test_names_with_white_space_and_bytes_that_are_no_text_are_written(tmp_path: Path) -> None:
    odd = "a b\t\u00a0%41é\udcff.jpg"
    gallery = [Item(ROOT / odd, "cat"), Item(ROOT / "plain.jpg", "cat")]
    dataset = Dataset("folder", ROOT, "", gallery, gallery)
    rankings = [
        Ranked(np.array([0, 1]), np.array([4.0, 3.5])),
        Ranked(np.array([0]), np.array([-1.0])),
    ]
    write_trec(tmp_path, dataset, {"my system": rankings})
    lines = (tmp_path / "my system.run").read_bytes().splitlines()
    escaped = "a%20b%09%C2%A0%2541é".encode() + b"\xff.jpg"
    assert lines == [
        escaped + b" Q0 plain.jpg 1 3.5 my%20system",
        b"plain.jpg Q0 " + escaped + b" 1 -1.0 my%20system",
    ]
    assert (tmp_path / "qrels.txt").read_bytes().splitlines() == [
        escaped + b" 0 plain.jpg 1",
        b"plain.jpg 0 " + escaped + b" 1",
    ]


def test_ties_keep_their_order_in_single_precision(tmp_path: Path) -> None:
    scores = [1.0, 1.0, 1.0 - 1e-12, 0.5]
    dataset = make_dataset("abcd", "a")
    _, run = write_and_read(tmp_path, dataset, [Ranked(np.array([1, 2, 0, 3]), np.array(scores))])
    assert [line.doc_id[0] for line in run] == ["b", "c", "a", "d"]
    written = [np.float32(line.score) for line in run]
    assert (np.diff(written) < 0).all()
    assert written == pytest.approx(scores, abs=1e-6)


def test_a_query_is_not_in_its_own_ranking(tmp_path: Path) -> None:
    dataset = make_dataset("aab")
    rankings = [Ranked(np.array([0, 1, 2]), np.array([3.0, 2.0, 1.0]))] * 3
    qrels, run = write_and_read(tmp_path, dataset, rankings)
    documents = [(line.query_id[2], line.doc_id[2], line.score) for line in run]
    assert documents == [
        ("0", "1", 2.0),
        ("0", "2", 1.0),
        ("1", "0", 3.0),
        ("1", "2", 1.0),
        ("2", "0", 3.0),
        ("2", "1", 2.0),
    ]
    assert [(line.query_id[2], line.doc_id[2]) for line in qrels] == [("0", "1"), ("1", "0")]


def test_revisited_data_sets_cannot_be_written(tmp_path: Path) -> None:
    nothing: frozenset[Path] = frozenset()
    query = Item(
        ROOT / "q.jpg", "", RevisitedTruth(PixelBox(0, 0, 1, 1), nothing, nothing, nothing)
    )
    dataset = Dataset("roxford5k", ROOT, "", [Item(ROOT / "a.jpg", "")], [query])
    with pytest.raises(InvalidOption, match="roxford5k cannot be written as TREC files"):
        write_trec(tmp_path / "new", dataset, {})
    assert not (tmp_path / "new").exists()
