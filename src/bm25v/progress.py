"""The one shape of a progress callback: `progress(stage, done, total)`.

`stage` is a short text for people, such as "indexing"; `done` and `total` count its items. A
function that takes time accepts one as `progress=` and calls it often.
"""

from collections.abc import Callable
from typing import TypeAlias

Progress: TypeAlias = Callable[[str, int, int], None]


def no_progress(stage: str, done: int, total: int) -> None:
    """Report nothing: the default."""
