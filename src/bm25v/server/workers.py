"""Processes that search: `bm25v serve --workers N`.

In: work, a function of an open collection that can be pickled. Out: its result, or the problem that
it ended with. Python runs one thread at a time, so that one process searches on one CPU; these use
the others. Each opens the collection itself, and follows what others change in it. A process that
is killed is replaced. Not this module's job: how many requests wait (`slots`).
"""

import asyncio
import logging
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from bm25v.errors import GalleryError
from bm25v.searchable import Searchable
from bm25v.server.problems import RETRY, Problem, to_problem
from bm25v.server.slots import Slots, Turns
from bm25v.threads import available_cpus

T = TypeVar("T")
Work = Callable[[Searchable], T]

SEARCHES = 10**9  # that a server expects: enough to justify an index

_PAUSE = 1.0  # seconds between two processes that cannot open the collection
_AT_A_TIME = 2  # works that a process is given, so that the next is there when one is done

_log = logging.getLogger(__name__)


class Workers:
    """Some processes with the same collection open."""

    def __init__(self, open_collection: Callable[[], Searchable], n: int) -> None:
        self._workers = [_Worker(open_collection) for _ in range(n)]
        try:
            for worker in self._workers:  # all of them start at the same time
                worker.wait()
        except Problem as problem:
            self.close()
            raise GalleryError(f"a search process does not start: {problem.detail}") from None
        for worker in self._workers:
            worker.answer()

    def __len__(self) -> int:
        return len(self._workers)

    def submit(self, work: Work[T]) -> "Future[T]":
        """Give work to the process that has least to do."""
        return min(self._workers, key=len).submit(work)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


class WorkSlots:
    """Does work of requests in processes, or without any in threads of this one."""

    def __init__(self, gallery: Searchable, workers: Workers | None, *, waiting: int) -> None:
        self._gallery, self._workers = gallery, workers
        self._threads = Slots(available_cpus(), waiting=waiting)
        self._turns = Turns(_AT_A_TIME * len(workers or ()) or 1, waiting=waiting)

    async def run(self, work: Work[T]) -> T:
        """Return the result of work; raise `Busy` if too many wait already."""
        if self._workers is None:
            return await self._threads.run(lambda: work(self._gallery))
        async with self._turns.take():
            return await asyncio.wrap_future(self._workers.submit(work))


class _Worker:
    """One process, which is started again if it ends; it does one work after the other."""

    def __init__(self, open_collection: Callable[[], Searchable]) -> None:
        self._open_collection = open_collection
        self._pending: deque[Future[Any]] = deque()
        self._mutex = threading.Lock()
        self._reader: threading.Thread | None = None
        self._is_closed = False
        self._start()

    def __len__(self) -> int:
        return len(self._pending)

    def _start(self) -> None:
        # Linux: would fork without threads. Other systems start processes like this anyway.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, self._open_collection)
        self._process = context.Process(target=_do_works, args=arguments, daemon=True)
        self._process.start()
        other.close()  # so that the end of the process is the end of the connection

    def wait(self) -> None:
        """Wait until the collection is open; raise the problem if it cannot be opened."""
        try:
            problem = self._connection.recv()
        except (EOFError, OSError):
            problem = _ended()
        if problem is not None:
            raise problem

    def answer(self) -> None:
        """Begin to pass results on, in a thread."""
        self._reader = threading.Thread(target=self._pass_results, daemon=True)
        self._reader.start()

    def submit(self, work: Work[T]) -> "Future[T]":
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # its result arrives, also if nobody waits any more
        with self._mutex:
            self._pending.append(future)
            with suppress(OSError):  # it has ended: the reader notices that too
                self._connection.send(work)
        return future

    def close(self) -> None:
        with self._mutex, suppress(OSError):
            self._is_closed = True
            self._connection.send(None)
        self._process.join()
        if self._reader is not None:
            self._reader.join()
        self._connection.close()

    def _pass_results(self) -> None:
        while True:
            try:
                result, problem = self._connection.recv()
            except (EOFError, OSError):
                self._give_up()
                if self._is_closed:
                    return
                continue
            future = self._pending.popleft()
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def _give_up(self) -> None:
        """End all works with a problem, and start another process if the server goes on."""
        with self._mutex:
            pending, self._pending = self._pending, deque()
            if not self._is_closed:
                _log.warning("search process %s ended: starting another", self._process.pid)
                self._connection.close()
                self._process.join()
                self._start()
        for future in pending:
            future.set_exception(_ended())
        if not self._is_closed:
            try:
                self.wait()
            except Problem:  # the process has ended again, which is noticed above
                time.sleep(_PAUSE)


def _do_works(connection: Connection, open_collection: Callable[[], Searchable]) -> None:
    """Do one work after the other, until there is none or the connection ends with the server."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with suppress(EOFError, OSError):
        try:
            collection = open_collection()
            collection.engine.prepare_for(SEARCHES)
        except Exception as error:
            connection.send(_describe(error))
            return
        connection.send(None)
        with collection:
            while (work := connection.recv()) is not None:
                connection.send(_attempt(work, collection))


def _attempt(work: Work[Any], collection: Searchable) -> tuple[Any, Problem | None]:
    try:
        return work(collection), None
    except Exception as error:
        return None, _describe(error)


def _describe(error: Exception) -> Problem:
    """Return an error as a problem; the process of the server has no traceback of it."""
    problem = to_problem(error)
    if problem.status_code == 500:
        _log.error("a search failed", exc_info=error)
    return problem


def _ended() -> Problem:
    detail = "the search process was killed, perhaps for lack of memory: send the request again"
    return Problem(503, "interrupted", detail, headers=RETRY)
