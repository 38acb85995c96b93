"""Where the work of requests is done: in a few threads, or in processes (`--workers N`).

Few requests work at once: Python runs one thread at a time, so more would only make every request
slower, and each thread keeps the memory of the largest work that it did. Requests that wait need no
thread.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager
from typing import TypeVar

from starlette.concurrency import run_in_threadpool

from bm25v.deadline import limit_seconds
from bm25v.errors import GalleryError
from bm25v.gallery import Gallery
from bm25v.server.problems import RETRY, Problem, to_problem
from bm25v.server.processes import CONTEXT, Preparation, belong_to_server

T = TypeVar("T")
Task = Callable[[Gallery], T]  # it can be pickled

WAITING_SEARCHES = 256
TASK_SECONDS = 60.0  # of work for a request; a process that needs longer is taken to hang

_AT_A_TIME = 2  # tasks per process, so that the next is there when one is done

_log = logging.getLogger(__name__)


class Busy(Problem):
    """All slots for a kind of request are in use, and enough requests wait for one."""

    def __init__(self) -> None:
        detail = "too many requests of this kind wait already: send it again a little later"
        super().__init__(503, "busy", detail, headers=RETRY)


class Slots:
    """Lets some requests work at a time and some wait, and refuses the others.

    >>> slots = Slots(1, waiting=8)
    >>> asyncio.run(slots.run(lambda: "done"))
    'done'
    """

    def __init__(self, working: int, *, waiting: int, seconds: float = 30.0) -> None:
        self._working = asyncio.Semaphore(working)
        self._n_waiting = 0
        self._max_waiting, self._seconds = waiting, seconds

    def check(self) -> None:
        """Raise `Busy` if `take` would, before more work is done for a request."""
        if self._working.locked() and self._n_waiting >= self._max_waiting:
            raise Busy

    @asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        """Work within the block; raise `Busy` if too many wait already, or if it takes too long."""
        self.check()
        self._n_waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._working.acquire()
        except TimeoutError:
            raise Busy from None
        finally:
            self._n_waiting -= 1
        try:
            with limit_seconds(TASK_SECONDS):
                yield
        finally:
            self._working.release()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what a function returns in a thread."""
        async with self.take():
            return await run_in_threadpool(work)


class Workers:
    """Processes that have the same gallery open and do tasks.

    If one of them is killed or hangs, all are replaced, and their tasks end with a problem.
    """

    def __init__(self, open_gallery: Callable[[], Gallery], n: int) -> None:
        self._open_gallery, self._n = open_gallery, n
        self._slots = Slots(_AT_A_TIME * n, waiting=WAITING_SEARCHES)
        self._start()
        try:
            for future in self._opened:
                future.result()
        except (Problem, BrokenProcessPool) as error:
            self.close()
            reason = error.detail if isinstance(error, Problem) else "it was killed"
            raise GalleryError(f"a search process does not start: {reason}") from None

    async def run(self, task: Task[T]) -> T:
        """Return the result of a task; raise its problem, or `Busy` if too many wait already."""
        async with self._slots.take():
            pool = self._pool
            try:
                if not all(future.done() for future in self._opened):
                    opened = map(asyncio.wrap_future, self._opened)
                    await asyncio.shield(asyncio.gather(*opened, return_exceptions=True))
                async with asyncio.timeout(TASK_SECONDS):
                    # A pool that breaks does not end its processes if a task was cancelled.
                    return await asyncio.shield(asyncio.wrap_future(pool.submit(_run, task)))
            except RuntimeError:  # it is broken, or was replaced meanwhile
                reason = "a search process was killed, perhaps for lack of memory"
            except TimeoutError:
                reason = f"the search took more than {TASK_SECONDS:g} seconds"
            if pool is self._pool:
                _log.warning("%s: starting others", reason)
                _end(pool, seconds=0)
                self._start()
            raise Problem(503, "interrupted", f"{reason}: send the request again", headers=RETRY)

    def close(self) -> None:
        _end(self._pool, seconds=5.0)

    def _start(self) -> None:
        self._pool = ProcessPoolExecutor(
            self._n, CONTEXT, initializer=_prepare, initargs=(self._open_gallery,)
        )
        # One task for each, as a process is started only when there is a task for it.
        self._opened = [self._pool.submit(_run, len) for _ in range(self._n)]


def _end(pool: ProcessPoolExecutor, *, seconds: float) -> None:
    """End the processes of a pool; kill those that need longer."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False)
    for process in processes:
        process.join(seconds)
        process.kill()


# What follows runs in the processes.

_open_gallery: Callable[[], Gallery]
_gallery: Gallery | None = None


def _prepare(open_gallery: Callable[[], Gallery]) -> None:
    global _open_gallery
    _open_gallery = open_gallery
    belong_to_server()


def _run(task: Task[T]) -> T:
    """Do a task; raise a problem in place of an error, as the server has no traceback of it."""
    global _gallery
    try:
        if _gallery is None:
            _gallery = _open_gallery()
            Preparation(_gallery)
        return task(_gallery)
    except Exception as error:
        problem = to_problem(error)
        if problem.status_code == 500:
            _log.error("a search failed", exc_info=error)
        raise problem from None
