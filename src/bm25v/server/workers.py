"""Processes that search: `bm25v serve --workers N`.

In: tasks, functions of an open collection that can be pickled. Out: their results, or the problems
that they ended with. Python runs one thread at a time, so one process searches on one CPU; these
use the others. Each opens the collection itself, and follows what others change in it. A process
that is killed is replaced. Not this module's job: how many requests wait (`slots`).
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
from multiprocessing.reduction import ForkingPickler
from queue import SimpleQueue
from typing import Any, TypeVar

from bm25v.errors import GalleryError
from bm25v.searchable import Searchable
from bm25v.server.problems import RETRY, Problem, to_problem
from bm25v.server.slots import Slots, Turns
from bm25v.threads import available_cpus

T = TypeVar("T")
Task = Callable[[Searchable], T]

SEARCHES = 10**9  # that a server expects: enough to justify an index

_PAUSE = 1.0  # seconds until a process is started again that could not open the collection
_AT_A_TIME = 2  # tasks that a process is given, so that the next is there when one is done

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
            worker.run()

    def __len__(self) -> int:
        return len(self._workers)

    def submit(self, task: Task[T]) -> "Future[T]":
        """Give a task to the process that has least to do; it never waits."""
        return min(self._workers, key=lambda worker: (not worker.is_open, len(worker))).submit(task)

    def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            worker.close()


class TaskSlots:
    """Does tasks of requests in processes, or without any in threads of this one."""

    def __init__(self, gallery: Searchable, workers: Workers | None, *, waiting: int) -> None:
        self._gallery, self._workers = gallery, workers
        self._slots = (
            Slots(available_cpus(), waiting=waiting)
            if workers is None
            else Turns(_AT_A_TIME * len(workers), waiting=waiting)
        )

    async def run(self, task: Task[T]) -> T:
        """Return the result of a task; raise `Busy` if too many wait already."""
        if self._workers is None:
            assert isinstance(self._slots, Slots)
            return await self._slots.run(lambda: task(self._gallery))
        async with self._slots.take():
            return await asyncio.wrap_future(self._workers.submit(task))


class _Worker:
    """One process, which does one task after the other and is replaced if it ends.

    One thread sends tasks, as that waits while the process is busy with long ones; another passes
    results on.
    """

    def __init__(self, open_collection: Callable[[], Searchable]) -> None:
        self._open_collection = open_collection
        self._tasks: SimpleQueue[tuple[Any, Future[Any]] | None] = SimpleQueue()
        self._sent: deque[Future[Any]] = deque()  # their results are to come, in this order
        self._problem: Problem | None = None  # why it takes no tasks now
        self._is_closed = False
        self._mutex = threading.Lock()
        self._threads = [
            threading.Thread(target=function, daemon=True)
            for function in (self._send_tasks, self._pass_results)
        ]
        self._start()

    def __len__(self) -> int:
        return self._tasks.qsize() + len(self._sent)

    @property
    def is_open(self) -> bool:
        return self._problem is None

    def _start(self) -> None:
        # Linux: the default is to fork, which copies a process without its threads.
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        arguments = (other, self._open_collection)
        self._process = context.Process(target=_do_tasks, args=arguments, daemon=True)
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

    def run(self) -> None:
        """Begin to do tasks."""
        for thread in self._threads:
            thread.start()

    def submit(self, task: Task[T]) -> "Future[T]":
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # its result arrives, also if nobody waits any more
        self._tasks.put((ForkingPickler.dumps(task), future))
        return future

    def close(self) -> None:
        sender, reader = self._threads
        if sender.ident is not None:
            self._tasks.put(None)
            sender.join()
        with self._mutex, suppress(OSError):
            self._is_closed = True
            self._connection.send(None)
        self._process.join()
        if reader.ident is not None:
            reader.join()
        self._connection.close()

    def _send_tasks(self) -> None:
        while (item := self._tasks.get()) is not None:
            content, future = item
            with self._mutex:
                if self._problem is not None:
                    future.set_exception(self._problem)
                    continue
                self._sent.append(future)
                with suppress(OSError):  # it has ended: the other thread notices that too
                    self._connection.send_bytes(content)

    def _pass_results(self) -> None:
        while True:
            try:
                result, problem = self._connection.recv()
            except (EOFError, OSError):
                self._give_up()
                if not self._replace():
                    return
                continue
            future = self._sent.popleft()
            if problem is None:
                future.set_result(result)
            else:
                future.set_exception(problem)

    def _give_up(self) -> None:
        with self._mutex:
            self._problem = _ended()
            sent, self._sent = self._sent, deque()
        for future in sent:
            future.set_exception(_ended())

    def _replace(self) -> bool:
        """Start processes until one has the collection open; return False if none is needed."""
        while True:
            try:
                with self._mutex:
                    if self._is_closed:
                        return False
                    _log.warning("search process %s ended: starting another", self._process.pid)
                    self._connection.close()
                    self._process.join()
                    self._start()
                self.wait()
            except (OSError, Problem) as error:
                problem = to_problem(error)
                _log.error("a search process does not start: %s", problem.detail)
                self._problem = problem
                time.sleep(_PAUSE)
            else:
                self._problem = None
                return True


def _do_tasks(connection: Connection, open_collection: Callable[[], Searchable]) -> None:
    """Do one task after the other, until there is none or the connection ends with the server."""
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
            while (task := connection.recv()) is not None:
                connection.send(_attempt(task, collection))


def _attempt(task: Task[Any], collection: Searchable) -> tuple[Any, Problem | None]:
    try:
        return task(collection), None
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
