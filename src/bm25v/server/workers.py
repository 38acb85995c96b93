"""Processes that search: `bm25v serve --workers N`.

In: work, a function of an open collection that can be pickled. Out: its result, or the problem that
it ended with. Python runs one thread at a time, so that one process searches on one CPU; these use
the others. Each opens the collection itself, and follows what others change in it. A process that
is killed is replaced. Not this module's job: how many requests wait (`slots`).
"""

import logging
import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, TypeVar

from bm25v.errors import GalleryError
from bm25v.searchable import Searchable
from bm25v.server.problems import RETRY, Problem, to_problem
from bm25v.server.slots import Slots
from bm25v.threads import available_cpus

T = TypeVar("T")
Work = Callable[[Searchable], T]

SEARCHES = 10**9  # that a server expects: enough to justify an index

_log = logging.getLogger(__name__)


class Workers:
    """Some processes with the same collection open."""

    def __init__(self, open_collection: Callable[[], Searchable], n: int) -> None:
        self._workers = [_Worker(open_collection) for _ in range(n)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        try:
            for worker in self._workers:  # all of them start at the same time
                worker.wait()
                self._free.put(worker)
        except Problem as problem:
            self.close()
            raise GalleryError(f"a search process does not start: {problem.detail}") from None

    def __len__(self) -> int:
        return len(self._workers)

    def run(self, work: Work[T]) -> T:
        """Return the result of work in a process; waits until one is free."""
        worker = self._free.get()
        try:
            return worker.run(work)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


class WorkSlots:
    """Does work of requests in processes, or without any in threads of this one."""

    def __init__(self, gallery: Searchable, workers: Workers | None, *, waiting: int) -> None:
        self._gallery, self._workers = gallery, workers
        self._slots = Slots(available_cpus() if workers is None else len(workers), waiting=waiting)

    async def run(self, work: Work[T]) -> T:
        """Return the result of work; raise `Busy` as `Slots` do."""
        if self._workers is None:
            return await self._slots.run(lambda: work(self._gallery))
        return await self._slots.run(partial(self._workers.run, work))


class _Worker:
    def __init__(self, open_collection: Callable[[], Searchable]) -> None:
        self._open_collection = open_collection
        self._start()

    def _start(self) -> None:
        # Linux: would fork without threads. Other systems start processes like this anyway.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, self._open_collection)
        self._process = context.Process(target=_answer_work, args=arguments, daemon=True)
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

    def run(self, work: Work[T]) -> T:
        try:
            self._connection.send(work)
            result, problem = self._connection.recv()
        except (EOFError, OSError):
            _log.warning("search process %s ended: starting another", self._process.pid)
            self.close()
            self._start()
            self.wait()
            raise _ended() from None
        if problem is not None:
            raise problem
        return result  # type: ignore[no-any-return]

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _answer_work(connection: Connection, open_collection: Callable[[], Searchable]) -> None:
    """Do one work after the other until the connection ends, which is when the server does."""
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
            while True:
                connection.send(_attempt(connection.recv(), collection))


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
