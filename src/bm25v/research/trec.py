"""TREC run and qrels files, which other tools for measuring search read and write.

A run has a line "query Q0 document rank score tag" for each answer, qrels a line "query 0 document
relevance" for each judgement. Names are paths inside the data set, white space in them written as
in a URL. A query that cannot be answered has no line in qrels, so other tools leave it out of
their means. Not this room's job: the revisited benchmarks, as qrels cannot say what is junk.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import EvaluationError, WrongUse
from bm25v.research.datasets import Dataset

Run = Mapping[str, Sequence[tuple[str, float]]]
"""For each query its answers with their scores, best first."""

Qrels = Mapping[str, Mapping[str, int]]
"""For each query the relevance of documents; what is not there is not relevant."""


def run_of(
    dataset: Dataset,
    rankings: Sequence[NDArray[np.integer]],
    scores: Sequence[NDArray[np.floating]],
) -> dict[str, list[tuple[str, float]]]:
    """Name the pictures in rankings of gallery rows; a query is no answer to itself."""
    names = [dataset.id_of(item.path) for item in dataset.gallery]
    answered = zip(dataset.queries, dataset.own_rows.tolist(), rankings, scores, strict=True)
    return {
        dataset.id_of(query.path): [
            (names[row], score)
            for row, score in zip(rows.tolist(), values.tolist(), strict=True)
            if row != own
        ]
        for query, own, rows, values in answered
    }


def qrels_of(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Judge every picture of a query's class, without the query itself, as relevant."""
    if any(query.landmark for query in dataset.queries):
        raise WrongUse(f"{dataset.name} cannot be written as qrels, which know no junk")
    by_label: dict[str, list[str]] = {}
    for item in dataset.gallery:
        by_label.setdefault(item.label, []).append(dataset.id_of(item.path))
    found = {}
    for query in dataset.queries:
        own = dataset.id_of(query.path)
        found[own] = {name: 1 for name in by_label.get(query.label, []) if name != own}
    return found


def write_run(path: Path, run: Run, *, tag: str = "bm25v") -> None:
    """Write a run.

    Other tools order by score alone and read scores in single precision, so a score that would
    tie with the one above it is lowered by the least that keeps the order.
    """
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for query, answers in run.items():
            highest = np.float32(np.inf)
            for rank, (document, score) in enumerate(answers, start=1):
                highest = min(np.float32(score), np.nextafter(highest, np.float32(-np.inf)))
                names = f"{_quoted(query)} Q0 {_quoted(document)}"
                file.write(f"{names} {rank} {float(highest)!r} {_quoted(tag)}\n")


def read_run(path: Path) -> dict[str, list[tuple[str, float]]]:
    """Read a run; as everywhere, scores decide the order, and of equal ones the later name."""
    run: dict[str, list[tuple[str, float]]] = {}
    for place, (query, _, document, _, score, _) in _fields(path, 6):
        run.setdefault(unquote(query), []).append((unquote(document), _number(score, place)))
    for answers in run.values():
        answers.sort(key=lambda answer: (answer[1], answer[0]), reverse=True)
    return run


def write_qrels(path: Path, qrels: Qrels) -> None:
    """Write qrels."""
    with path.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for query, judged in qrels.items():
            for document, relevance in judged.items():
                file.write(f"{_quoted(query)} 0 {_quoted(document)} {relevance}\n")


def read_qrels(path: Path) -> dict[str, dict[str, int]]:
    """Read qrels."""
    qrels: dict[str, dict[str, int]] = {}
    for place, (query, _, document, relevance) in _fields(path, 4):
        judged = qrels.setdefault(unquote(query), {})
        judged[unquote(document)] = int(_number(relevance, place))
    return qrels


def _fields(path: Path, columns: int) -> Iterator[tuple[str, list[str]]]:
    try:
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError as error:
        raise EvaluationError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(text.split("\n"), start=1):
        fields = line.split()
        if fields and len(fields) != columns:
            raise EvaluationError(
                f"line {number} of {path} has {len(fields)} columns, not {columns}: {line!r}"
            )
        if fields:
            yield f"line {number} of {path}", fields


def _number(text: str, place: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise EvaluationError(f"{place} has {text!r} in place of a number") from error


def _quoted(name: str) -> str:
    return "".join(quote(one) if one.isspace() or one == "%" else one for one in name)
