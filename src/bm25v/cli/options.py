"""What several commands share: options, and how they print."""

import contextlib
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

DEFAULT_GALLERY = "gallery.bm25v"

gallery_option = click.option(
    "-g",
    "--gallery",
    "gallery_path",
    envvar="BM25V_GALLERY",
    default=DEFAULT_GALLERY,
    show_default=True,
    show_envvar=True,
    type=click.Path(path_type=Path),
    help="The gallery's folder.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def console() -> "Console":
    """Return a console that prints names as they are, and whole lines into a pipe."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else 200
    return Console(markup=False, emoji=False, highlight=False, width=width)


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    click.echo(json.dumps(value, indent=2))


def shown(path: str) -> str:
    """Return a path as a person would type it here.

    >>> shown("/somewhere/else/cat.jpg")
    '/somewhere/else/cat.jpg'
    """
    with contextlib.suppress(ValueError):
        path = str(Path(path).relative_to(Path.cwd()))
    return path.encode(errors="replace").decode()


def print_notes(problems: Iterable[str]) -> None:
    """Print what is wrong with a data set, beside the output."""
    for problem in problems:
        click.echo(f"note: {problem.encode(errors='replace').decode()}", err=True)


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(0.0312), duration(4.21), duration(131), duration(7265)
    ('0.03s', '4.2s', '2m 11s', '2h 01m')
    """
    if seconds < 1:
        return f"{seconds:.2f}s"
    if seconds < 60:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m {rest:02d}s" if minutes < 60 else f"{minutes // 60}h {minutes % 60:02d}m"
