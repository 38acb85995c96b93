"""How many requests of one kind are worked on at a time, and how many wait for their turn.

In: work. Out: its result, or `Busy`. There are few threads: Python runs one at a time, so more
would only make every request slower, and each keeps the memory of the largest work that it did.
Requests that wait need no thread. Not this module's job: the work itself.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from bm25v.server.problems import Busy

T = TypeVar("T")


class Turns:
    """Lets some requests work at a time and some wait, and refuses the others."""

    def __init__(self, working: int, *, waiting: int, seconds: float = 30.0) -> None:
        self._turn = asyncio.Semaphore(working)
        self._n_waiting = 0
        self._max_waiting, self._seconds = waiting, seconds

    def check(self) -> None:
        """Raise `Busy` if `take` would, before more work is done for a request."""
        if self._turn.locked() and self._n_waiting >= self._max_waiting:
            raise Busy

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Work within the block; raise `Busy` if too many wait already, or if it takes too long."""
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
            yield
        finally:
            self._turn.release()


class Slots(Turns):
    """Runs work in some threads, lets some requests wait, and refuses the others.

    >>> slots = Slots(1, waiting=8)
    >>> asyncio.run(slots.run(lambda: "done"))
    'done'
    """

    def __init__(self, working: int, *, waiting: int, seconds: float = 30.0) -> None:
        super().__init__(working, waiting=waiting, seconds=seconds)
        self._pool = ThreadPoolExecutor(working, thread_name_prefix="bm25v-slot")

    async def run(self, work: Callable[[], T]) -> T:
        """Do work in a thread when it is its turn."""
        async with self.take():
            return await asyncio.get_running_loop().run_in_executor(self._pool, work)
