"""A result as a table: for the terminal, Markdown, CSV, LaTeX, JSON.

The columns are the same everywhere: what was measured, with the 95 % interval of the first figure,
and how the first figure compares with dense vectors.
"""

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bm25v.research.ablations import Grid
from bm25v.research.result import Measured, Result
from bm25v.research.settings import typed

if TYPE_CHECKING:
    from rich.table import Table

_SHOWN_OF_GRIDS = (("R@1", "R@100", "mAP"), ("R@1", "R@10", "R@100", "R@200", "mAP"))
_WIDE = 1_000  # letters: no table is cut off


def table(result: Result) -> "Table":
    """Return a table for the terminal."""
    return rich_table(_head(result), _rows(result))


def text(result: Result) -> str:
    """Return the terminal's table as plain text, with what it is of above it."""
    return "\n".join([*about(result), "", _plain(table(result))])


def about(result: Result) -> list[str]:
    """Return what the figures are of, in a few lines."""
    words = result.vocabulary
    queries, gallery = len(result.dataset.queries), len(result.dataset.gallery)
    changes = ", ".join(f"{name} {typed(value)}" for name, value in result.settings.changes.items())
    return [
        f"{result.name}: {queries:,} queries, {gallery:,} pictures to search; "
        f"{result.dataset.protocol}; {result.unanswerable:,} cannot be answered",
        f"vocabulary {words['name']}: {words['words']:,} words of {words['backbone']}, k "
        f"{words['k']}, k_post {typed(words['k_post'])}; learnt from: {words['learnt_from']}",
        f"settings: {changes or 'as they are'}",
    ]


def markdown(result: Result) -> str:
    """Return a Markdown table, with what it is of above it and all problems below."""
    systems = [f"- {name}: {system.about}" for name, system in result.systems.items()]
    problems = [f"- {problem}" for problem in result.problems]
    found = markdown_table(_head(result), _rows(result))
    return "\n\n".join([*about(result), found, "\n".join([*systems, *problems])]) + "\n"


def comma_separated(result: Result) -> str:
    """Return one line a system, with the intervals of all figures and full precision."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [f"{figure}{end}" for figure in result.figures for end in ("", " low", " high")]
    writer.writerow(["dataset", "system", *columns, "difference", "p"])
    for name, system in result.systems.items():
        numbers = [value for interval in system.figures.values() for value in interval]
        compared = system.against_dense.get(result.figures[0])
        against = [compared.difference, compared.p] if compared else ["", ""]
        writer.writerow([result.name, name, *numbers, *against])
    return file.getvalue()


def latex(result: Result) -> str:
    """Return a LaTeX table in the paper's style, for the package booktabs."""
    head, rows = _head(result), _rows(result)
    lines = [" & ".join(map(_escaped, row)) + r" \\" for row in [head, *rows]]
    caption = _escaped(" ".join(about(result)[:2]))
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


def as_json(result: Result) -> str:
    """Return everything as JSON."""
    return json.dumps(result.to_dict(), indent=2) + "\n"


FORMATS: dict[str, Callable[[Result], str]] = {
    "table": text,
    "markdown": markdown,
    "csv": comma_separated,
    "latex": latex,
    "json": as_json,
}


def classes(result: Result) -> "Table":
    """Return the first figure of every class and system, classes that do worst first."""
    first, systems = result.figures[0], result.systems
    labels = next(iter(systems.values())).classes
    by_label = {
        label: [system.classes[label][first] for system in systems.values()] for label in labels
    }
    rows = [
        [label, f"{labels[label]['queries']:.0f}", *map(decimals, values)]
        for label, values in sorted(by_label.items(), key=lambda one: sum(one[1]))
    ]
    return rich_table([f"{first} by class", "queries", *systems], rows)


def grid(found: Grid) -> tuple[list[str], list[list[str]]]:
    """Return the head and the rows of a table of cells, below a row of dense vectors alone."""
    shown = [
        (system, figure)
        for system, figures in found.cells[0].figures.items()
        for figure in figures
        if figure in _SHOWN_OF_GRIDS[system == "bm25v"] or "R@1" not in figures
    ]
    head = [*found.axes, "words", "postings", *(f"{system} {figure}" for system, figure in shown)]
    figures = [decimals(found.dense[figure]) for _, figure in shown]
    rows = [["dense", *[""] * (len(found.axes) + 1), *figures]]
    for cell in found.cells:
        figures = [decimals(cell.figures[system][figure]) for system, figure in shown]
        sizes = [f"{cell.words:.1f}", f"{cell.postings:,.0f}"]
        rows.append([*(cell.values[axis] for axis in found.axes), *sizes, *figures])
    return head, rows


def rich_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> "Table":
    """Return a table for the terminal."""
    from rich.table import Table

    found = Table(box=None, pad_edge=False, header_style="bold")
    for number, name in enumerate(head):
        found.add_column(name, justify="right" if number else "left", no_wrap=True)
    for cells in rows:
        found.add_row(*cells)
    return found


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> print(markdown_table(["k", "R@1"], [["a|b", ".5"]]))
    | k | R@1 |
    | --- | ---: |
    | a\\|b | .5 |
    """
    ruled = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in ruled
    )


def decimals(value: float) -> str:
    """Return a share as papers print it.

    >>> decimals(0.8449), decimals(1.0), decimals(-0.012), decimals(float("nan"))
    ('.845', '1.000', '-.012', '–')
    """
    if value != value:
        return "–"
    return f"{value:.3f}".replace("0.", ".", 1) if abs(value) < 0.9995 else f"{value:.3f}"


def chance(p: float) -> str:
    """Return how likely chance alone makes a difference as large.

    >>> chance(0.0421), chance(0.0001)
    ('p = .042', 'p < .001')
    """
    return "p < .001" if p < 0.001 else f"p = {decimals(p)}"


def _head(result: Result) -> list[str]:
    first, *others = result.figures
    return ["system", first, "95 %", *others, "against dense"]


def _rows(result: Result) -> list[list[str]]:
    return [[name, *_cells(result, system)] for name, system in result.systems.items()]


def _cells(result: Result, system: Measured) -> list[str]:
    first, *others = system.figures.values()
    compared = system.against_dense.get(result.figures[0])
    against = ""
    if compared:
        sign = "+" if compared.difference > 0 else ""
        against = f"{sign}{decimals(compared.difference)} ({chance(compared.p)})"
    interval = f"{decimals(first.low)}–{decimals(first.high)}"
    return [decimals(first.mean), interval, *(decimals(one.mean) for one in others), against]


def _plain(table: "Table") -> str:
    from rich.console import Console

    file = io.StringIO()
    Console(file=file, width=_WIDE).print(table)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def _escaped(cell: str) -> str:
    """Return text that LaTeX prints as it is.

    >>> print(_escaped("a_b, 95 %"))
    a\\_b, 95 \\%
    """
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in cell)
