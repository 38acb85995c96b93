"""Threads for one kind of work, and how many requests may wait for one.

In: work. Out: its result, or `Busy`. There are few threads: Python runs one at a time, so more
would only make every request slower, and each keeps the memory of the largest work that it did.
Requests that wait need no thread. Not this module's job: the work itself.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bm25v.server.problems import Busy

T = TypeVar("T")


class Slots:
    """Runs work in some threads, lets some requests wait, and refuses the others.

    >>> slots = Slots(1, waiting=8)
    >>> asyncio.run(slots.run(lambda: "done"))
    'done'
    """

    def __init__(self, working: int, *, waiting: int, seconds: float = 30.0) -> None:
        self._pool = ThreadPoolExecutor(working, thread_name_prefix="bm25v-slot")
        self._turn = asyncio.Semaphore(working)
        self._n_waiting = 0
        self._max_waiting, self._seconds = waiting, seconds

    def check(self) -> None:
        """Raise `Busy` if `run` would, before more work is done for a request."""
        if self._turn.locked() and self._n_waiting >= self._max_waiting:
            raise Busy

    async def run(self, work: Callable[[], T]) -> T:
        """Do work in a thread; raise `Busy` if too many wait already, or if it takes too long."""
        self.check()
        self._n_waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._turn.acquire()
        except TimeoutError:
            raise Busy from None
        finally:
            self._n_waiting -= 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
        finally:
            self._turn.release()
