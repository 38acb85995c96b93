"""Writes evaluations: as text, Markdown, CSV, LaTeX and JSON, and as TREC files.

The columns of an evaluation are the same in all formats: all metrics, the 95 % confidence interval
of the first one, and how it compares with dense vectors.

Other tools for measuring search read TREC files. There, a document is a path inside the data set,
with white space and "%" escaped as in a URL. A query without a relevant image has no line in qrels,
so other tools leave it out of their means.
"""

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from bm25v.display import format_json
from bm25v.errors import InvalidOption
from bm25v.files import make_folder, replacing_file
from bm25v.index.searcher import Ranked
from bm25v.research.dataset import Dataset
from bm25v.research.metrics import Interval
from bm25v.research.settings import format_setting

if TYPE_CHECKING:
    from bm25v.research.evaluate import EvaluationResult

Cells = tuple[list[str], list[list[str]]]  # column names and rows


def result_table(result: "EvaluationResult") -> Cells:
    first, *others = result.metrics
    rows = []
    for name, system in result.systems.items():
        interval, comparison = system.metrics[first], system.against_dense.get(first)
        compared = ""
        if comparison:
            sign = "+" if comparison.difference > 0 else ""
            compared = f"{sign}{format_share(comparison.difference)} ({format_p(comparison.p)})"
        means = [format_share(system.metrics[metric].mean) for metric in others]
        rows.append([name, *format_interval(interval), *means, compared])
    return ["system", first, "95 % CI", *others, "vs. dense"], rows


def list_tables(result: "EvaluationResult") -> list[Cells]:
    """Return the table of systems, and that of classes if they were measured."""
    has_classes = any(system.classes for system in result.systems.values())
    return [result_table(result), *([class_table(result)] if has_classes else [])]


def to_text(result: "EvaluationResult") -> str:
    tables = [_align(*table) for table in list_tables(result)]
    return "\n".join([*describe(result), "", *tables])


def describe(result: "EvaluationResult") -> list[str]:
    """Return the data set, the vocabulary, its training and the settings, one line each."""
    words = result.vocabulary
    queries, gallery = len(result.dataset.queries), len(result.dataset.gallery)
    changed = result.settings.non_default.items()
    settings = ", ".join(f"{name} {format_setting(value)}" for name, value in changed)
    return [
        f"{result.name}: {queries:,} queries, gallery of {gallery:,} images; "
        f"{result.dataset.protocol}; {result.unanswerable:,} queries without a possible match",
        f"vocabulary {words['name']}: {words['words']:,} words of {words['backbone']}, k "
        f"{words['k']}, k_post {format_setting(words['k_post'])}",
        f"trained on: {words['learnt_from']}",
        f"settings: {settings or 'default'}",
    ]


def to_markdown(result: "EvaluationResult") -> str:
    """Return Markdown tables, below a description and above the problems of the data set."""
    systems = [f"- {name}: {system.description}" for name, system in result.systems.items()]
    problems = [f"- {problem}" for problem in result.problems]
    tables = [markdown_table(*table) for table in list_tables(result)]
    return "\n\n".join([*describe(result), *tables, "\n".join([*systems, *problems])]) + "\n"


def to_csv(result: "EvaluationResult") -> str:
    """Return one line per system, with the intervals of all metrics, in full precision."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{metric}{end}" for metric in result.metrics for end in ("", " low", " high")]
    writer.writerow(["dataset", "system", *columns, "difference", "p"])
    for name, system in result.systems.items():
        numbers = [value for interval in system.metrics.values() for value in interval]
        comparison = system.against_dense.get(result.metrics[0])
        compared = [comparison.difference, comparison.p] if comparison else ["", ""]
        writer.writerow([result.name, name, *numbers, *compared])
    return file.getvalue()


def to_latex(result: "EvaluationResult") -> str:
    """Return a LaTeX table in the paper's style, for the package booktabs."""
    head, rows = result_table(result)
    lines = [" & ".join(map(_escape_latex, row)) + r" \\" for row in [head, *rows]]
    caption = _escape_latex(" ".join(describe(result)[:2]))
    return "\n".join(
        [
            r"\begin{table}[tb]",
            rf"  \caption{{{caption}.}}",
            r"  \centering",
            rf"  \begin{{tabular}}{{@{{}}l{'c' * (len(head) - 1)}@{{}}}}",
            r"    \toprule",
            f"    {lines[0]}",
            r"    \midrule",
            *(f"    {line}" for line in lines[1:]),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


FORMATS: dict[str, Callable[["EvaluationResult"], str]] = {
    "table": to_text,
    "markdown": to_markdown,
    "csv": to_csv,
    "latex": to_latex,
    "json": lambda result: format_json(result.to_dict()) + "\n",
}
SUFFIXES = {".md": "markdown", ".csv": "csv", ".tex": "latex", ".json": "json"}


def comparison_table(result: "EvaluationResult") -> Cells:
    """Return the paper's systems, ours and dense side by side: the first metric, relative to dense.

    Systems that were not measured are left out. Of two-stage search, it is the one with the number
    of candidates in the settings.
    """
    metric, two_stage = result.metrics[0], result.settings.candidates_for("two-stage")
    owners = {
        "bm25v": "the paper",
        f"two-stage-{format_setting(two_stage)}": "the paper",
        "words": "ours",
        "hybrid": "ours",
        "dense": "",
    }
    means = {name: system.metrics[metric].mean for name, system in result.systems.items()}
    dense = means.get("dense", 0.0)
    rows = []
    for name, owner in owners.items():
        if name in means:
            of_dense = f"{means[name] / dense:.1%}".replace("%", " %") if dense > 0 else ""
            rows.append([owner, name, format_share(means[name]), of_dense])
    return ["", "system", metric, "of dense"], rows


def class_table(result: "EvaluationResult") -> Cells:
    """Return the first metric of every class and system, the worst classes first."""
    metric, systems = result.metrics[0], result.systems
    classes = next(iter(systems.values())).classes
    values = {
        label: [system.classes[label][metric] for system in systems.values()] for label in classes
    }
    rows = [
        [label, f"{classes[label]['queries']:.0f}", *map(format_share, values[label])]
        for label in sorted(classes, key=lambda label: sum(values[label]))
    ]
    return [f"{metric} by class", "queries", *systems], rows


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown_table(["k", "R@1"], [["a|b", ".5"]]))
    | k | R@1 |
    | --- | ---: |
    | a\\|b | .5 |
    """
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines
    )


def format_share(value: float) -> str:
    """Return a value between -1 and 1 as papers print it.

    >>> format_share(0.8449), format_share(1.0), format_share(-0.012), format_share(float("nan"))
    ('.845', '1.000', '-.012', '–')
    """
    if value != value:
        return "–"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


def format_p(p: float) -> str:
    """Return a p-value as papers print it.

    >>> format_p(0.0421), format_p(0.0001)
    ('p = .042', 'p < .001')
    """
    return "p < .001" if p < 0.001 else f"p = {format_share(p)}"


def format_interval(interval: Interval) -> tuple[str, str]:
    """Return the mean, and the ends of the interval."""
    return (
        format_share(interval.mean),
        f"{format_share(interval.low)}–{format_share(interval.high)}",
    )


def _align(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return lines in which the first column is aligned to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    form = "  ".join(["{:<%d}", *["{:>%d}"] * (len(header) - 1)]) % tuple(widths)
    return "".join(form.format(*row).rstrip() + "\n" for row in (header, *rows))


def _escape_latex(cell: str) -> str:
    """Escape the characters that LaTeX would interpret.

    >>> print(_escape_latex("a_b, 95 %"))
    a\\_b, 95 \\%
    """
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in cell)


# TREC


def check_trec(dataset: Dataset) -> None:
    """Refuse the revisited benchmarks, as qrels cannot express their junk images."""
    if dataset.is_revisited:
        raise InvalidOption(
            f"{dataset.name} cannot be written as TREC files, because qrels cannot mark junk images"
        )


def write_trec(
    folder: Path, dataset: Dataset, rankings_by_system: Mapping[str, Sequence[Ranked]]
) -> None:
    """Write qrels.txt, and one run per system, into a folder."""
    check_trec(dataset)
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
