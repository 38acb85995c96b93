"""A process that reads: it searches through the public interface and checks every answer.

An answer must be that of a version between the last step that was complete before the search, or
that this reader has seen already, and the last step that had begun after it.
"""

import itertools
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NamedTuple

from bm25v.gallery import Gallery
from bm25v.search import Query
from bm25v.search.results import Results
from tests.soak.answers import (
    Reference,
    describe_difference,
    match_version,
    random_query,
)
from tests.soak.child import (
    RunFolders,
    Usage,
    highest_usage,
    is_abandoned,
    join_run,
    measure_usage,
)
from tests.soak.history import History, Images, Version, Versions
from tests.soak.journal import Journal
from tests.soak.report import Problem, ReaderReport

_ACTIONS = {"search": 80, "batch": 6, "count": 5, "index": 4, "verify": 2, "reopen": 3}  # weights
_BATCH = 12  # queries
_MEASURED = 50  # actions between two measurements of memory and open files


class Action(NamedTuple):
    kind: str
    queries: list[Query]


def random_action(seed: int, reader: int, number: int, n_images: int) -> Action:
    rng = random.Random(f"{seed} reader {reader} action {number}")
    (kind,) = rng.choices(list(_ACTIONS), list(_ACTIONS.values()))
    n_queries = {"search": 1, "batch": _BATCH}.get(kind, 0)
    return Action(kind, [random_query(rng, n_images) for _ in range(n_queries)])


def read(folders: RunFolders, history: History, number: int, pipe: Connection) -> None:
    """Search until the run ends, in a process of its own."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one
    with join_run(folders) as journal, pipe:
        reader = Reader(folders, history, number, journal)
        reader.run(pipe.send)
        pipe.send(reader.report)


class Reader:
    def __init__(
        self, folders: RunFolders, history: History, number: int, journal: Journal
    ) -> None:
        self.report = ReaderReport()
        self._folder = folders.gallery
        self._history = history
        self._number = number
        self._journal = journal
        self._reference = Reference(Images(history.n_images))
        self._versions = Versions(history)
        self._oldest_step = 0  # that the next answer may be of
        self._usage: list[Usage] = []

    def run(self, report_problem: Callable[[Problem], None]) -> None:
        seed, n_images = self._history.seed, self._history.n_images
        gallery = self._open()
        _build_index(gallery)
        rng = random.Random(self._number)
        for _ in range(n_images // 10):  # loads compiled loops, before anything is measured
            gallery.search(random_query(rng, n_images))
        self._journal.ready()
        for number in itertools.count():
            if self._journal.read().is_stopped or is_abandoned():
                break
            action = random_action(seed, self._number, number, n_images)
            try:
                if action.kind == "reopen" and self._number % 2:  # the others never close it
                    gallery.close()
                    gallery = self._open()
                problem = self._act(gallery, action)
            except Exception as error:
                problem = f"{action.kind} raises {type(error).__name__}: {error}"
            if problem:
                begun = self._journal.read().begun
                report_problem(Problem(problem, seed, begun, self._number, number))
            if number % _MEASURED == 0:
                self._usage.append(measure_usage())
        gallery.close()
        quarter = -(-len(self._usage) // 4)
        self.report.usage_at_start = highest_usage(self._usage[:quarter])
        self.report.usage_at_end = highest_usage(self._usage[-quarter:])

    def _act(self, gallery: Gallery, action: Action) -> str | None:
        low = max(self._journal.read().done, self._oldest_step)
        if action.queries:
            start = time.perf_counter()
            if action.kind == "search":
                answers = [gallery.search(action.queries[0])]
            else:
                answers = gallery.search_many(action.queries)
                self.report.batches += 1
            ms = (time.perf_counter() - start) * 1e3 / len(answers)
            self.report.slowest_ms = max(ms, self.report.slowest_ms)
            return self._check_results(action.queries, answers, self._possible(low))
        if action.kind == "count":
            n = len(gallery)
            counts = [len(version.live_rows) for version in self._possible(low)]
            return None if n in counts else f"{n} images instead of {counts[-1]}"
        if action.kind == "verify":
            self.report.verifications += 1
            return "; ".join(gallery.problems())
        if action.kind == "index":
            _build_index(gallery)
        return None

    def _check_results(
        self, queries: list[Query], answers: list[Results], versions: list[Version]
    ) -> str | None:
        for query, results in zip(queries, answers, strict=True):
            self.report.searches[results.mode] += 1
            expected = [self._reference.search(query, version) for version in versions]
            step = match_version(results, expected, versions)
            if step is None:
                steps = f"steps {versions[0].step} to {versions[-1].step}"
                difference = describe_difference(results, expected, versions)
                return f"{query.mode} search: not the answer of {steps}: {difference}"
            if (results.no_match is None) != bool(results.hits):
                return f"{len(results)} hits with no_match = {results.no_match!r}"
            self._oldest_step = max(step, self._oldest_step)
        return None

    def _possible(self, low: int) -> list[Version]:
        """Return the versions that an answer may be of; `low` was read before the search."""
        return self._versions.between(low, self._journal.read().begun)

    def _open(self) -> Gallery:
        self.report.opened += 1
        return Gallery.open(self._folder)


def _build_index(gallery: Gallery) -> None:
    gallery.local.snapshot().searcher.build_index()
