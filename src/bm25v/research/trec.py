"""Writes TREC run and qrels files, which other tools for measuring search read.

A document is a path inside the data set, with white space and "%" escaped as in a URL. A query
without a relevant image has no line in qrels, so other tools leave it out of their means.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import InvalidOption
from bm25v.files import make_folder, replacing_file
from bm25v.index.searcher import Ranked
from bm25v.research.datasets import Dataset


def write_trec(
    folder: Path, dataset: Dataset, rankings_by_system: Mapping[str, Sequence[Ranked]]
) -> None:
    """Write qrels.txt, and one run per system, into a folder.

    The revisited benchmarks are refused, as qrels cannot express their junk images.
    """
    if dataset.is_revisited:
        raise InvalidOption(
            f"{dataset.name} cannot be written as TREC files, because qrels cannot mark junk images"
        )
    make_folder(folder)
    _write_lines(folder / "qrels.txt", _qrels(dataset))
    for system, rankings in rankings_by_system.items():
        _write_lines(folder / f"{system}.run", _run(dataset, rankings, tag=system))


def _qrels(dataset: Dataset) -> Iterator[str]:
    by_label: dict[str, list[str]] = {}
    for item in dataset.gallery:
        by_label.setdefault(item.label, []).append(_name(dataset, item.path))
    for query in dataset.queries:
        name = _name(dataset, query.path)
        for document in by_label.get(query.label, []):
            if document != name:
                yield f"{name} 0 {document} 1"


def _run(dataset: Dataset, rankings: Sequence[Ranked], *, tag: str) -> Iterator[str]:
    names = [_name(dataset, item.path) for item in dataset.gallery]
    own_rows = dataset.own_rows.tolist()
    for query, own_row, ranked in zip(dataset.queries, own_rows, rankings, strict=True):
        others = ranked.rows != own_row
        scores = separate_ties(ranked.scores[others]).tolist()
        lines = zip(ranked.rows[others].tolist(), scores, strict=True)
        for rank, (row, score) in enumerate(lines, start=1):
            yield f"{_name(dataset, query.path)} Q0 {names[row]} {rank} {score!r} {_escape(tag)}"


def separate_ties(scores: NDArray[np.floating]) -> NDArray[np.float32]:
    """Lower scores as little as possible so that no two are equal in single precision.

    Other tools order by score alone and read it in single precision: a tie would lose our order.

    >>> separate_ties(np.array([1.0, 1.0, 0.5])).tolist()
    [1.0, 0.9999999403953552, 0.5]
    """
    separated = scores.astype(np.float32)
    highest = np.float32(np.inf)
    for rank, score in enumerate(separated):
        highest = min(score, np.nextafter(highest, np.float32(-np.inf)))
        separated[rank] = highest
    return separated


def _write_lines(path: Path, lines: Iterator[str]) -> None:
    with replacing_file(path) as file:
        for line in lines:
            file.write(line.encode(errors="surrogateescape") + b"\n")


def _name(dataset: Dataset, path: Path) -> str:
    return _escape(dataset.id_of(path))


def _escape(name: str) -> str:
    """Escape white space, which separates columns.

    >>> _escape("my cat.jpg"), _escape("100 %")
    ('my%20cat.jpg', '100%20%25')
    """
    return "".join(quote(char) if char.isspace() or char == "%" else char for char in name)
