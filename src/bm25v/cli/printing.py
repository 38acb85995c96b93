"""How commands print: tables and facts that fit the terminal, JSON, and notes.

A line is as wide as the terminal. In a pipe or a file nothing is shortened, so that scripts see
whole paths; `COLUMNS` sets a width there too.
"""

import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click
from rich.cells import cell_len

from bm25v.display import display_path, duration, format_json, one_line

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

    from bm25v.store.base import Failure, IndexReport

_UNLIMITED = 100_000  # cells: more than any line has
_GAP = 2  # cells between two columns
_LEAST_TEXT = 12  # cells of a column of texts, also in a terminal that is too narrow


def output_width() -> int:
    """Return how many cells a line of standard output may have."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _UNLIMITED


def console(*, least_width: int = 1) -> "Console":
    """Return a console for standard output; texts are printed by `echo` alone."""
    from rich.console import Console

    width = max(output_width(), least_width)
    # With a height, rich takes the width as it is given; else it is 80 if TERM is dumb.
    return Console(markup=False, emoji=False, highlight=False, width=width, height=25)


def accept_any_text() -> None:
    """Make the output show "?" for what its encoding does not have, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # Windows: a pipe or file is not UTF-8


def echo(line: str = "", *, err: bool = False) -> None:
    """Print one line; whatever it holds, it stays one line and sends no command to the terminal."""
    click.echo(one_line(line), err=err)  # noqa: TID251 - the one place


def echo_wrapped(text: str, *, style: str = "none") -> None:
    """Print a text, in a style of rich; it is divided between words if the terminal is narrow."""
    console().print(one_line(text), style=style)


def echo_text(text: str) -> None:
    """Print a text of several lines that bm25v has made, such as a table or a help text."""
    for line in text.removesuffix("\n").split("\n"):
        cells = map(one_line, line.split("\t"))
        click.echo("\t".join(cells))  # noqa: TID251 - the other place


def echo_bytes(content: bytes) -> None:
    """Print bytes as they are, such as paths that are not text; to a terminal, as `echo_text`."""
    if sys.stdout.isatty():
        echo_text(content.decode(errors="surrogateescape").replace("\r\n", "\n"))
    else:
        click.echo(content, nl=False)  # noqa: TID251 - no terminal


def emit(value: Any, as_json: bool, text: str | Callable[[], None]) -> None:
    """Print what a command has done: as JSON, or for people as a line or by a function.

    `value` has plain values, or is a function that returns them.
    """
    if as_json:
        echo_text(format_json(value() if callable(value) else value))
    elif isinstance(text, str):
        echo(text)
    else:
        text()


def print_report(report: "IndexReport", *, lists_known: bool = True) -> None:
    """Print what became of files: which are unreadable, to standard error, and counts."""
    listed = [failure for failure in report.failed if lists_known or not failure.known]
    n_known = len(report.failed) - len(listed)
    as_before = f" ({n_known:,} as before: list with -v)" if n_known else ""
    counts = [f"{report.added:,} added", f"{len(report.failed):,} unreadable{as_before}"]
    changes = {"updated": report.updated, "moved": report.moved, "removed": report.removed}
    counts += [f"{n:,} {change}" for change, n in changes.items() if n]
    counts.append(f"{report.unchanged:,} unchanged")
    print_notes(report.notes)
    print_failures(listed)
    echo(f"{', '.join(counts)} in {duration(report.seconds)}")


def print_failures(failures: Iterable["Failure"]) -> None:
    """Print which files could not be read to standard error."""
    for failure in failures:
        echo(f"unreadable: {display_path(failure.path)}: {failure.error}", err=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print what a reader should know about a result to standard error."""
    for note in notes:
        echo(f"note: {note}", err=True)


def shorten_path(path: str, width: int) -> str:
    """Leave out the first folders of a path that is too wide, then the middle of its name.

    >>> shorten_path("holiday/2023/rome/IMG_1234.jpg", 22)
    '…/rome/IMG_1234.jpg'
    >>> shorten_path("holiday/2023/rome/IMG_1234.jpg", 10)
    'IMG_12…jpg'
    """
    if cell_len(path) <= width:
        return path
    *folders, name = path.split(os.sep)
    for start in range(1, len(folders) + 1):
        shorter = os.sep.join(("…", *folders[start:], name))
        if cell_len(shorter) <= width:
            return shorter
    if cell_len(name) <= width:
        return name
    tail_width = (width - 1) // 3
    tail = next(name[i:] for i in range(len(name) + 1) if cell_len(name[i:]) <= tail_width)
    room = width - 1 - cell_len(tail)
    head = next(name[:i] for i in range(len(name), -1, -1) if cell_len(name[:i]) <= room)
    return f"{head}…{tail}"


def shorten_list(items: str, width: int) -> str:
    """Leave out the last items of a list that is too wide.

    >>> shorten_list("striped ear, whiskers, sofa", 24)
    'striped ear, whiskers'
    """
    while cell_len(items) > width and ", " in items:
        items = items.rpartition(", ")[0]
    return items


class Column(NamedTuple):
    """The head of a column: numbers are aligned to the right, and never shortened."""

    title: str
    kind: Literal["number", "text", "path", "list"] = "number"


class _Cell:
    """A cell of a table, which a function shortens to the width of its column."""

    def __init__(self, text: str, shorten: Callable[[str, int], str]) -> None:
        self._text, self._shorten = one_line(text), shorten

    def __rich_measure__(self, console: "Console", options: "ConsoleOptions") -> "Measurement":
        from rich.measure import Measurement

        return Measurement(1, cell_len(self._text))

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        text = self._shorten(self._text, options.max_width)
        yield Text(text, no_wrap=True, overflow="ellipsis")


def print_table(header: Iterable[str | Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, one line per row; if it is too wide, the widest texts are shortened.

    A title alone stands for a column of numbers.
    """
    from rich.table import Table
    from rich.text import Text

    def fit(text: str, style: str = "") -> Text:
        return Text(one_line(text), style=style, no_wrap=True, overflow="ellipsis")

    shorten = {"path": shorten_path, "list": shorten_list}
    columns = [Column(head) if isinstance(head, str) else head for head in header]
    table = Table(box=None, padding=(0, _GAP, 0, 0), pad_edge=False)
    least_width = _GAP * (len(columns) - 1)
    for (title, kind), *cells in zip(columns, *rows, strict=True):
        is_number = kind == "number"
        table.add_column(
            fit(title, "bold"), justify="right" if is_number else "left", no_wrap=is_number
        )
        least_width += _measure(title, *cells) if is_number else _LEAST_TEXT
    for row in rows:
        table.add_row(
            *(
                _Cell(text, shorten[column.kind]) if column.kind in shorten else fit(text)
                for text, column in zip(row, columns, strict=True)
            )
        )
    out = console(least_width=least_width)
    with out.capture() as captured:
        out.print(table)
    for line in captured.get().removesuffix("\n").split("\n"):
        click.echo(line.rstrip())  # noqa: TID251 - each cell is one line


def _measure(*cells: str) -> int:
    return max(map(cell_len, cells))


def print_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers whose first column is a name.

    If it is too wide, it is divided into tables below each other, each with the names.
    """
    names, *columns = zip(header, *rows, strict=True)
    blocks: list[list[tuple[str, ...]]] = []
    used = 0
    for column in columns:
        width = _GAP + _measure(*column)
        used += width
        if not blocks or used > output_width():
            blocks.append([names])
            used = _measure(*names) + width
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        if number:
            echo()
        (name, *titles), *cells = zip(*block, strict=True)
        print_table([Column(name, "text"), *titles], cells)


def print_facts(facts: Mapping[str, str | Sequence[str]], *, indent: str = "") -> None:
    """Print names and values; long values continue on further lines, lists after a comma."""
    names_width = max(map(len, facts)) + _GAP
    room = output_width() - len(indent) - names_width
    for name, value in facts.items():
        items, separator = (value.split(" "), " ") if isinstance(value, str) else (value, ", ")
        lines = _fill_lines(items, room, separator)
        for number, line in enumerate(lines):
            echo(f"{indent}{'' if number else name:<{names_width}}{line}")


def _fill_lines(items: Iterable[str], width: int, separator: str) -> list[str]:
    """Join items to lines of at most `width` cells; only an item that is wider makes one longer."""
    lines: list[str] = []
    for item in items:
        if lines and cell_len(lines[-1] + separator + item + separator.rstrip()) <= width:
            lines[-1] += separator + item
        else:
            lines.append(item)
    return [line + separator.rstrip() for line in lines[:-1]] + lines[-1:]


def choose_output(
    output: Path | None, suffixes: Collection[str], *, page: str, is_opened: bool
) -> Path | None:
    """Return the file to write, checked; a page to open that nobody named is a temporary file."""
    from bm25v.render.html import check_output

    if output is not None:
        check_output(output, suffixes)
    elif is_opened:
        return Path(tempfile.mkdtemp(prefix="bm25v-")) / f"{page}.html"
    return output


def report_written(output: Path | None, *, is_opened: bool, is_silent: bool) -> None:
    """Say where a command has written a file, if it has, and open it in the browser."""
    if output is None:
        return
    if not is_silent:
        echo(f"written: {display_path(str(output))}")
    if not is_opened:
        return
    import webbrowser  # slow to import

    if not webbrowser.open(output.absolute().as_uri()):
        echo("note: no browser could be started: open the page yourself", err=True)
