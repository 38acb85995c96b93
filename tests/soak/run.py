"""Starts readers, starts and kills one writer after the other, and checks the gallery.

After each kill the gallery must have the version of the last step that was complete or of the one
that had begun, row by row. Children end with the run, whatever ends it.
"""

import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np

from bm25v.errors import Bm25vError
from bm25v.gallery import Gallery
from bm25v.store.local.rows import RowFiles
from bm25v.store.local.writer import Writer
from tests.soak.child import RunFolders
from tests.soak.history import EMPTY, History, Images, Version
from tests.soak.journal import Journal, Status
from tests.soak.reader import read
from tests.soak.report import Problem, ReaderReport, SoakReport, find_leaks
from tests.soak.writer import INTERRUPTED, write

# Children are forked from a small server, not from this process, which may have threads.
# Windows: cannot fork, and has one way to end a process.
_IS_WINDOWS = sys.platform == "win32"
START_METHOD = "spawn" if _IS_WINDOWS else "forkserver"
_SIGNALS = [signal.SIGTERM]
if not _IS_WINDOWS:
    _SIGNALS += [signal.SIGINT, signal.SIGKILL]  # Linux, macOS: also these
_MOMENTS = ("any", "commit", "compaction")  # when writers are killed
_START_PATIENCE = 180.0  # seconds until a process must have started, and have compiled its loops
_END_PATIENCE = 60.0  # seconds until a process must have ended
_SECOND_SIGNAL = 5.0  # seconds; Python drops a KeyboardInterrupt that is raised in a finaliser
_LONGEST_LIFE = 0.6  # seconds that a writer writes, until the moment to kill it is chosen
_LONGEST_WAIT = 3.0  # seconds until a commit or a compaction begins
_LONGEST_COMMITS = (0.002, 0.02, 0.2)  # seconds after it has begun; disks differ
_POLL = 0.01  # seconds between two looks at the journal
_SHORT_POLL = 0.0005
_RECEIVED = 0.05  # seconds between two looks at the pipes of readers


def run_soak(
    *,
    seconds: float,
    n_images: int = 500,
    n_readers: int = 2,
    seed: int = 0,
    folder: Path | None = None,
    max_problems: int = 10,
) -> SoakReport:
    """Write to a gallery, kill the writers, search meanwhile and check every answer.

    Ctrl-C and `max_problems` end the run early. The gallery is made in an empty `folder`, which is
    kept, or in a temporary one.
    """
    with tempfile.TemporaryDirectory(prefix="bm25v-soak-", ignore_cleanup_errors=True) as scratch:
        folders = RunFolders(folder or Path(scratch) / "gallery", Path(scratch))
        Gallery.create(folders.gallery, vocabulary="toy").close()
        with Journal(folders.journal) as journal:
            run = _Run(folders, History(seed, n_images), journal, seconds, max_problems)
            try:
                run.soak(n_readers)
            finally:
                run.kill_children()
        return run.report


class _Reader:
    def __init__(self, process: BaseProcess, pipe: Connection) -> None:
        self.process, self._pipe = process, pipe
        self.report: ReaderReport | None = None

    def receive(self) -> list[Problem]:
        problems = []
        while not self._pipe.closed and self._pipe.poll():
            try:
                message = self._pipe.recv()
            except EOFError:
                self._pipe.close()
                break
            if isinstance(message, ReaderReport):
                self.report = message
            else:
                problems.append(message)
        return problems


class _Run:
    def __init__(
        self,
        folders: RunFolders,
        history: History,
        journal: Journal,
        seconds: float,
        max_problems: int,
    ) -> None:
        self.report = SoakReport(history.seed, history.n_images)
        self._folders, self._history, self._journal = folders, history, journal
        self._seconds, self._max_problems = seconds, max_problems
        self._start: float | None = None  # when all readers have started
        self._received = 0.0
        self._rng = random.Random(f"{history.seed} kills")
        self._images = Images(history.n_images)
        self._version = EMPTY  # what the gallery contains, as far as this process knows
        self._is_lost = False  # the gallery has no version of the history, or a reader has ended
        self._writer: BaseProcess | None = None
        self._readers: list[_Reader] = []
        self._context = multiprocessing.get_context(START_METHOD)  # Windows: "spawn"
        if START_METHOD == "forkserver":
            self._context.set_forkserver_preload([read.__module__, write.__module__])

    def soak(self, n_readers: int) -> None:
        """Run until the time is over, something is badly wrong, or Ctrl-C."""
        try:
            self._version = fill_gallery(self._folders, self._history, self._journal)
            for number in range(n_readers):
                self._start_reader(number)
            self._wait(_START_PATIENCE, lambda status: status.n_ready == n_readers)
            if self._journal.read().n_ready < n_readers:
                self._add_problem("not every reader has started")
            self._start = time.monotonic()
            while not self._is_over():
                self._run_writer()
        except KeyboardInterrupt:
            self.report.is_interrupted = True
        self._journal.stop()
        self._end_writer()
        self._end_readers()
        self._check_end()
        self._sum_up()

    def kill_children(self) -> None:
        for process in (self._writer, *(reader.process for reader in self._readers)):
            if process is not None and process.is_alive():
                process.kill()
                process.join()

    def _start_process(
        self, name: str, function: Callable[..., None], *arguments: object
    ) -> BaseProcess:
        process: BaseProcess = self._context.Process(  # type: ignore[attr-defined]
            target=function, args=(self._folders, self._history, *arguments), name=name, daemon=True
        )
        process.start()
        return process

    def _start_reader(self, number: int) -> None:
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._start_process(f"reader {number}", read, number, sender)
        sender.close()
        self._readers.append(_Reader(process, receiver))

    def _run_writer(self) -> None:
        """Start a writer and kill it, at any moment or just after a commit has begun."""
        n_ready = self._journal.read().n_ready
        self._writer = self._start_process("the writer", write, self._version)
        self._wait(_START_PATIENCE, lambda status: status.n_ready > n_ready)
        number, moment = self._rng.choice(_SIGNALS), self._rng.choice(_MOMENTS)
        self._wait(self._rng.uniform(0, _LONGEST_LIFE), lambda status: False)
        if moment != "any":
            n_begun = self._journal.read().n_begun

            def is_reached(status: Status) -> bool:
                is_right = moment == "commit" or self._history.is_compaction(status.begun)
                return status.n_begun > n_begun and is_right

            self._wait(_LONGEST_WAIT, is_reached, poll=_SHORT_POLL)
            time.sleep(self._rng.uniform(0, self._rng.choice(_LONGEST_COMMITS)))
        if not self._is_over():
            self._kill_writer(self._writer, number)
            self._check_gallery(f"after {number.name}")

    def _kill_writer(self, writer: BaseProcess, number: signal.Signals) -> None:
        self.report.kills[number.name] += 1
        end = time.monotonic() + _END_PATIENCE
        while writer.is_alive() and time.monotonic() < end:
            if number == signal.SIGTERM:
                writer.terminate()
            else:
                with suppress(ProcessLookupError):
                    os.kill(writer.pid or 0, number)  # Windows: ends it at once
            writer.join(_SECOND_SIGNAL)
        self._expect_end(writer, {INTERRUPTED if number == signal.SIGINT else -number})
        self._writer = None

    def _check_gallery(self, when: str) -> None:
        """Check every row; find out whether a commit that was under way has taken effect."""
        status = self._journal.read()
        while self._version.step < status.done:
            self._version = self._history.next(self._version)
        versions = [self._version]
        if status.begun > status.done:
            versions.append(self._history.next(self._version))
        try:
            version = match_contents(self._folders.gallery, self._images, versions)
            with Gallery.open(self._folders.gallery) as gallery:
                damage = gallery.problems()
        except Bm25vError as error:
            version, damage = None, [str(error)]
        for problem in damage[: self._max_problems]:
            self._add_problem(f"{when}: {problem}")
        if version is None:
            steps = " nor ".join(f"step {version.step}" for version in versions)
            self._add_problem(f"{when}, the gallery does not have the contents of {steps}")
            self._is_lost = True
        elif version.step > status.done:
            self.report.kept_commits += 1
            self._version = version
            self._journal.done(version.step)

    def _end_writer(self) -> None:
        if self._writer is not None:
            codes = {0}
            if self.report.is_interrupted:  # Ctrl-C in a terminal is for all processes
                codes |= {INTERRUPTED, *(-number for number in _SIGNALS)}
            self._writer.join(_END_PATIENCE)
            self._expect_end(self._writer, codes)

    def _end_readers(self) -> None:
        end = time.monotonic() + _END_PATIENCE
        while any(r.process.is_alive() for r in self._readers) and time.monotonic() < end:
            self._receive()  # a reader cannot end while its pipe is full
            time.sleep(_POLL)
        for reader in self._readers:
            self._expect_end(reader.process, {0})
        self._receive()

    def _expect_end(self, process: BaseProcess, codes: set[int]) -> None:
        """Add a problem if a process has not ended, or not with one of these exit codes."""
        if process.is_alive():
            self._add_problem(f"{process.name} did not end within {_END_PATIENCE:g} s")
            process.kill()
            process.join()
        elif process.exitcode not in codes:
            error = self._folders.read_error(process.name)
            self._add_problem(f"{process.name} ended with exit code {process.exitcode}: {error}")

    def _check_end(self) -> None:
        self._check_gallery("at the end")
        try:
            with Writer(self._folders.gallery, timeout=_END_PATIENCE):
                pass  # a writer deletes what others have left
            for name in find_stray_files(self._folders.gallery):
                self._add_problem(f"at the end: {name} was left")
        except Bm25vError as error:
            self._add_problem(f"at the end: {error}")
        for reader in self._readers:
            if reader.report is not None:
                for leak in find_leaks(reader.report):
                    self._add_problem(f"{reader.process.name}: {leak}")

    def _sum_up(self) -> None:
        report, status = self.report, self._journal.read()
        report.seconds = self._elapsed()
        steps = range(1, self._version.step + 1)
        report.compactions = sum(self._history.is_compaction(step) for step in steps)
        report.commits = len(steps) - report.compactions
        report.interrupted_commits = status.n_begun - (status.n_done - report.kept_commits)
        report.repeated = status.n_begun - status.begun
        report.readers = [reader.report for reader in self._readers if reader.report is not None]

    def _elapsed(self) -> float:
        return 0.0 if self._start is None else time.monotonic() - self._start

    def _is_over(self) -> bool:
        is_late = self._elapsed() >= self._seconds
        return is_late or self._is_lost or len(self.report.problems) >= self._max_problems

    def _wait(
        self, seconds: float, is_reached: Callable[[Status], bool], *, poll: float = _POLL
    ) -> None:
        """Wait until the journal says something, the writer or the run ends, or time is over."""
        end = time.monotonic() + seconds
        while not is_reached(self._journal.read()):
            is_dead = self._writer is not None and not self._writer.is_alive()
            if is_dead or time.monotonic() > end or self._is_over():
                return
            if time.monotonic() > self._received + _RECEIVED:
                self._received = time.monotonic()
                self._receive()
            time.sleep(poll)

    def _receive(self) -> None:
        for reader in self._readers:
            self.report.problems += reader.receive()
            self._is_lost |= not reader.process.is_alive()

    def _add_problem(self, text: str) -> None:
        step = self._journal.read().begun
        self.report.problems.append(Problem(text, self._history.seed, step))


def fill_gallery(folders: RunFolders, history: History, journal: Journal) -> Version:
    """Commit the first step, so that no reader starts with an empty gallery."""
    changes, version = history.changes(EMPTY), history.next(EMPTY)
    journal.begin(version.step)
    with Writer(folders.gallery) as writer:
        for change in changes:
            change.write(writer)
        writer.commit()
    journal.done(version.step)
    return version


def match_contents(folder: Path, images: Images, versions: Sequence[Version]) -> Version | None:
    """Return the version that a gallery has: every catalogue entry, and every bit of every row."""
    with Gallery.open(folder) as gallery:
        return next((v for v in versions if _has_version(gallery, images, v)), None)


def find_stray_files(folder: Path) -> list[str]:
    """Return the names of row files that do not belong to the gallery any more."""
    with Gallery.open(folder) as gallery:
        store = gallery.local
        generation = store.snapshot().state.generation
        current = {file.path for file in RowFiles.of(folder, store.catalog.meta, generation)}
    return sorted(path.name for path in set(folder.glob("*.rows")) - current)


def _has_version(gallery: Gallery, images: Images, version: Version) -> bool:
    snapshot, numbers = gallery.local.snapshot(), version.numbers
    full_rows = snapshot.full_bags
    records = [
        (record.path, record.content, record.size, record.mtime_ns, record.live)
        for record in gallery.local.catalog.records()
    ]
    expected = [
        (file.path, file.content, file.size, file.mtime_ns, row.is_live)
        for row in version.rows
        for file in (row.file,)
    ]
    return (
        snapshot.state.generation == version.generation
        and records == expected
        and np.array_equal(snapshot.rows, version.live_rows)
        and np.array_equal(snapshot.bags["words"], images.words_nk[numbers])
        and np.array_equal(snapshot.bags["tf"], images.tf_nk[numbers])
        and np.array_equal(snapshot.dense_ne, images.dense_ne[numbers])
        and np.array_equal(full_rows["words"], images.full_words_nk[numbers])
        and np.array_equal(full_rows["levels"], images.full_levels_nk[numbers])
        and np.array_equal(full_rows["patches"], images.full_patches_nk[numbers])
    )
