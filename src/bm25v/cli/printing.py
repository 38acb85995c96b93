"""How commands print: tables and lists that fit the terminal, JSON, notes.

A line is as wide as the terminal. Without a terminal (in a pipe or a file) lines are as long as
they need to be and nothing is shortened, so that scripts see whole paths; `COLUMNS` sets a width
there too. Widths are counted in cells: a Chinese character has two.
"""

import io
import os
import shutil
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bm25v.display import display_path, format_json, one_line

if TYPE_CHECKING:
    from rich.console import Console

_UNLIMITED = 100_000  # cells: more than any line has
_GAP = 2  # cells between two columns
_LEAST_ROOM = 12  # cells for texts and lists, also in a terminal that is too narrow for the table


def output_width() -> int:
    """Return how many cells a line of standard output may have."""
    if sys.stdout.isatty() or "COLUMNS" in os.environ:
        return shutil.get_terminal_size().columns
    return _UNLIMITED


def console() -> "Console":
    """Return a console for standard output; texts are printed by `echo` alone."""
    from rich.console import Console

    # With a height, rich takes the width as it is given; else it is 80 if TERM is dumb.
    return Console(markup=False, emoji=False, highlight=False, width=output_width(), height=25)


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


def cell_width(text: str) -> int:
    """Return how many cells of a terminal a text takes.

    >>> cell_width("cat"), cell_width("猫")
    (3, 2)
    """
    from rich.cells import cell_len

    return cell_len(text)


def shorten(text: str, width: int) -> str:
    """Leave out the middle of a text that is wider than `width` cells.

    >>> shorten("IMG_20231224_183045_HDR.jpg", 17)
    'IMG_2023122…R.jpg'
    """
    if cell_width(text) <= width:
        return text
    tail_width = max(width - 1, 0) // 3
    tail = next(text[i:] for i in range(len(text) + 1) if cell_width(text[i:]) <= tail_width)
    room = max(width - 1 - cell_width(tail), 0)
    head = next(text[:i] for i in range(len(text), -1, -1) if cell_width(text[:i]) <= room)
    return f"{head}…{tail}"


def shorten_path(path: str, width: int) -> str:
    """Leave out the first folders of a path that is too wide, then the middle of its name.

    >>> shorten_path("holiday/2023/rome/IMG_1234.jpg", 22)
    '…/rome/IMG_1234.jpg'
    >>> shorten_path("holiday/2023/rome/IMG_1234.jpg", 10)
    'IMG_12…jpg'
    """
    if cell_width(path) <= width:
        return path
    *folders, name = path.split(os.sep)
    for start in range(1, len(folders) + 1):
        shorter = os.sep.join(("…", *folders[start:], name))
        if cell_width(shorter) <= width:
            return shorter
    return shorten(name, width)


def fit_items(
    items: Sequence[str], width: int, shorten: Callable[[str, int], str] = shorten
) -> Sequence[str]:
    """Return as many items, from the first on, as fit into `width` cells, joined by ", ".

    >>> fit_items(["striped ear", "whiskers", "sofa"], 24)
    ['striped ear', 'whiskers']
    >>> fit_items(["striped ear", "sofa"], 9)
    ['stripe…ar']
    """
    for end in range(len(items), 1, -1):
        if cell_width(", ".join(items[:end])) <= width:
            return items[:end]
    return [shorten(item, width) for item in items[:1]]


def fill_lines(items: Iterable[str], width: int, separator: str = ", ") -> list[str]:
    """Join items to lines of at most `width` cells; only an item that is wider makes one longer.

    >>> fill_lines(["numpy 2.4", "numba 0.68", "pillow 13.0"], 23)
    ['numpy 2.4, numba 0.68,', 'pillow 13.0']
    """
    lines: list[str] = []
    for item in items:
        if lines and cell_width(lines[-1] + separator + item + separator.rstrip()) <= width:
            lines[-1] += separator + item
        else:
            lines.append(item)
    return [line + separator.rstrip() for line in lines[:-1]] + lines[-1:]


@dataclass(frozen=True)
class Column:
    """A column of a table: in each row a list of items, of which as many as fit are shown."""

    title: str
    rows: Sequence[Sequence[str]]
    is_number: bool = False  # aligned to the right, never shortened
    shorten: Callable[[str, int], str] = shorten

    def __post_init__(self) -> None:
        rows = [[one_line(item) for item in row] for row in self.rows]
        object.__setattr__(self, "rows", rows)  # so that widths are those of what is printed

    def full_width(self) -> int:
        """Return how many cells the column needs to show everything."""
        return max(map(cell_width, (self.title, *map(", ".join, self.rows))))

    def least_width(self) -> int:
        """Return how many cells it needs to show the first item of each row."""
        return max((cell_width(row[0]) for row in self.rows if row), default=0)

    def fit(self, width: int) -> list[str]:
        """Return the title and the rows, each exactly `width` cells wide."""
        rows = [", ".join(fit_items(row, width, self.shorten)) for row in self.rows]
        texts = [shorten(self.title, width), *rows]
        blanks = [" " * (width - cell_width(text)) for text in texts]
        pairs = zip(blanks, texts, strict=True)
        return [blank + text if self.is_number else text + blank for blank, text in pairs]


def make_columns(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, texts: Container[str] = ()
) -> list[Column]:
    """Return the columns of a table: `texts` are the titles of those that hold no numbers."""
    return [
        Column(title, [(cell,) for cell in cells], is_number=title not in texts)
        for title, *cells in zip(header, *rows, strict=True)
    ]


def path_column(title: str, paths: Iterable[str]) -> Column:
    """Return a column of paths, relative to the current folder."""
    return Column(title, [(display_path(path),) for path in paths], shorten=shorten_path)


def print_table(columns: Sequence[Column]) -> None:
    """Print a table, one line per row.

    If the terminal is too narrow, texts and lists are shortened, in the last columns first. Each
    column keeps what its first items need, or a third of the room for texts and lists.
    """
    texts = [column for column in columns if not column.is_number]
    numbers_width = sum(column.full_width() for column in columns if column.is_number)
    room = max(output_width() - numbers_width - _GAP * (len(columns) - 1), _LEAST_ROOM)
    kept = [min(column.least_width(), room // 3) for column in texts]
    cells = []
    for column in columns:
        width = column.full_width()
        if not column.is_number:
            kept.pop(0)
            width = min(width, room - sum(kept))
            room -= width
        cells.append(column.fit(width))
    header, *lines = [(" " * _GAP).join(row).rstrip() for row in zip(*cells, strict=True)]
    echo_wrapped(header, style="bold")
    for line in lines:
        echo(line)


def print_grid(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table of numbers whose first column is a name.

    If it is too wide, it is divided into tables below each other, each with the names.
    """
    names, *columns = make_columns(header, rows, texts=header[:1])
    room = output_width() - names.full_width()
    blocks: list[list[Column]] = []
    for column in columns:
        if not blocks or sum(c.full_width() + _GAP for c in (*blocks[-1], column)) > room:
            blocks.append([])
        blocks[-1].append(column)
    for number, block in enumerate(blocks):
        if number:
            echo()
        print_table([names, *block])


def print_facts(facts: Mapping[str, str | Sequence[str]], *, indent: str = "") -> None:
    """Print names and values; long values continue on further lines, lists after a comma."""
    names_width = max(map(len, facts)) + _GAP
    room = output_width() - len(indent) - names_width
    for name, value in facts.items():
        if isinstance(value, str):
            lines = fill_lines(value.split(" "), room, " ")
        else:
            lines = fill_lines(value, room)
        for number, line in enumerate(lines):
            echo(f"{indent}{'' if number else name:<{names_width}}{line}")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    echo_text(format_json(value))


def temporary_page(name: str) -> Path:
    """Return where to write a page that nobody named: in the folder for temporary files."""
    return Path(tempfile.mkdtemp(prefix="bm25v-")) / f"{name}.html"


def open_in_browser(page: Path) -> None:
    """Open a page in the browser; if there is none, say so."""
    if not webbrowser.open(page.absolute().as_uri()):
        echo("note: no browser could be started: open the page yourself", err=True)


def print_problems(problems: Iterable[str]) -> None:
    """Print what is wrong with a data set to standard error."""
    for problem in problems:
        echo(f"note: {problem}", err=True)
