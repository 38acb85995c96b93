"""How many threads encode or decode images at the same time, and how many may wait for that.

In: work. Out: a turn, or `Busy`. What needs no model does not wait here. Not this module's job: the
work itself.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from bm25v.server.problems import Busy


class Slots:
    """Lets some threads work at a time and some wait; refuses the others.

    >>> slots = Slots(1, waiting=0)
    >>> with slots.take():
    ...     slots.check()
    Traceback (most recent call last):
    bm25v.server.problems.Busy: 503: too many images are being encoded: ...
    """

    def __init__(self, working: int, *, waiting: int, seconds: float = 30.0) -> None:
        self.n_free, self._n_waiting = working, 0
        self._max_waiting, self._seconds = waiting, seconds
        self._changed = threading.Condition()

    def check(self) -> None:
        """Raise `Busy` if `take` would, before more work is done for a request."""
        if self.n_free < 1 and self._n_waiting >= self._max_waiting:
            raise Busy

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for a turn; raise `Busy` if too many wait already, or if it takes too long."""
        with self._changed:
            self.check()
            self._n_waiting += 1
            try:
                has_turn = self._changed.wait_for(lambda: self.n_free > 0, self._seconds)
            finally:
                self._n_waiting -= 1
            if not has_turn:
                raise Busy
            self.n_free -= 1
        try:
            yield
        finally:
            with self._changed:
                self.n_free += 1
                self._changed.notify()
