"""A limit for the time of work that is done for somebody else: a request to the server.

What may take long calls `check_deadline` now and then; without a limit that does nothing.
"""

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bm25v.errors import TookTooLong

_end: ContextVar[float] = ContextVar("_end", default=math.inf)


@contextmanager
def limit_seconds(seconds: float) -> Iterator[None]:
    """Let work within the block, also in threads that copy its context, end after a time.

    >>> with limit_seconds(-1):
    ...     check_deadline()
    Traceback (most recent call last):
    bm25v.errors.TookTooLong: this takes too long for one request: ask for less
    """
    token = _end.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _end.reset(token)


def check_deadline() -> None:
    """Raise `TookTooLong` if the time is over."""
    if time.monotonic() > _end.get():
        raise TookTooLong("this takes too long for one request: ask for less")
