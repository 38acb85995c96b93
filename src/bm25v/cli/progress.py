"""Shows the progress of a command on standard error."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bm25v import progress
from bm25v.display import display_path, file_size, one_line

if TYPE_CHECKING:
    from rich.console import Console

    from bm25v.errors import ImageError
    from bm25v.training import Listener
    from bm25v.training.trainer import StepFigures

LOG_SECONDS = 10.0  # between two lines in a file


@contextmanager
def progress_bar() -> Iterator[progress.Progress]:
    """Yield a progress callback that shows a bar, also for downloads on first use."""
    with open_bar() as show, progress.show_downloads(show):
        yield show


@contextmanager
def open_bar() -> Iterator[progress.Progress]:
    """Yield a progress callback that shows a bar; silent if standard error is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[amount]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("", amount="", visible=False)

        def show(stage: str, done: int, total: int) -> None:
            amount = _format_amount(stage, done, total)
            if stage != bar.tasks[0].description:
                bar.reset(task, description=stage, total=total, visible=True, amount=amount)
            bar.update(task, completed=done, total=total, amount=amount)

        yield show


def _format_amount(stage: str, done: int, total: int) -> str:
    if stage.startswith(progress.DOWNLOADING):
        return f"{file_size(done)} of {file_size(total)}"
    return f"{done:,} of {total:,}"


@contextmanager
def live_line(console: "Console") -> Iterator[Callable[[str, int, int, str], None]]:
    """Yield a function (label, done, total, unit) that shows progress and speed.

    On a terminal one line is updated; into a file, a line is written every few seconds.
    """
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    with Progress(
        TextColumn("{task.description}", markup=False),
        TextColumn("{task.fields[speed]}", table_column=Column(no_wrap=True)),
        BarColumn(bar_width=None),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
        disable=console.quiet or not console.is_terminal,
        speed_estimate_period=60.0,
    ) as bar:
        task_id = bar.add_task("", total=None, speed="")
        (task,) = bar.tasks
        last = time.monotonic()

        def show(label: str, done: int, total: int, unit: str) -> None:
            nonlocal last
            if done < task.completed:  # a new stage counts from 0
                bar.reset(task_id, description=label, total=total)
            bar.update(task_id, description=label, completed=done, total=total)
            speed = task.speed or 0
            shown = f"{speed:,.{1 if speed < 100 else 0}f} {unit}/s" if speed else ""
            bar.update(task_id, speed=shown)
            if not console.is_terminal and time.monotonic() - last >= LOG_SECONDS:
                last = time.monotonic()
                left = timedelta(seconds=task.time_remaining) if task.time_remaining else None
                parts = (label, shown, f"{left} left" if left else "")
                _print_line(console, "  ".join(filter(None, parts)))

        yield show


@contextmanager
def training_display(*, is_silent: bool = False) -> "Iterator[Listener]":
    """Yield a listener that shows the progress of a training run."""
    from rich.console import Console

    from bm25v.training import Listener

    console = Console(stderr=True, highlight=False, markup=False, quiet=is_silent)
    with live_line(console) as show:

        def show_stage(stage: str, done: int, total: int) -> None:
            unit = "bytes" if stage.startswith(progress.DOWNLOADING) else "images"
            counted = "" if unit == "bytes" else "image "
            label = f"{stage}: {counted}{_format_amount(stage, done, total)}"
            show(label, done, total, unit)

        def on_step(figures: "StepFigures", steps: int) -> None:
            label = (
                f"step {figures.step:,} of {steps:,}  FVU {figures.fvu:.3f}  "
                f"L0 {figures.l0:.1f}  dead {figures.dead_share:.1%}"
            )
            show(label, figures.step, steps, "steps")

        def on_error(path: Path, error: "ImageError") -> None:
            _print_line(console, f"left out: {display_path(str(path))}: {error}")

        with progress.show_downloads(show_stage):
            yield Listener(
                progress=show_stage,
                on_step=on_step,
                on_error=on_error,
                on_message=partial(_print_line, console),
            )


def _print_line(console: "Console", line: str) -> None:
    console.print(one_line(line), soft_wrap=True)
