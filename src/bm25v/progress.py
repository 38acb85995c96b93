"""The one shape of a progress callback: `progress(stage, done, total)`.

`stage` is a short text for people, such as "indexing"; `done` and `total` count its items, or the
bytes of a stage that starts with "downloading". A function that takes time accepts a callback as
`progress=` and calls it often. A download can start anywhere on first use, so `show_downloads`
registers a callback for a whole block.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]

DOWNLOADING = "downloading"

_listeners: list[Progress] = []


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing: the default."""


@contextmanager
def show_downloads(progress: Progress) -> Iterator[None]:
    """Report downloads inside the block; of nested blocks, the innermost callback gets them.

    >>> with show_downloads(lambda stage, done, total: print(stage, done, total)):
    ...     report_download("model.onnx", 3, 10)
    downloading model.onnx 3 10
    """
    added = [] if progress is no_progress else [progress]
    _listeners.extend(added)
    try:
        yield
    finally:
        for listener in added:
            _listeners.remove(listener)


def report_download(name: str, done: int, total: int) -> None:
    """Report how many bytes of a file have been downloaded."""
    for progress in _listeners[-1:]:
        progress(f"{DOWNLOADING} {name}", done, total)
