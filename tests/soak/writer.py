"""The process that writes: it commits one step after the other, until it is killed."""

import os
import random
import signal
import time

from bm25v.store.local.writer import Writer
from tests.soak.child import RunFolders, is_abandoned, join_run
from tests.soak.history import History, Version
from tests.soak.journal import Journal

INTERRUPTED = 130  # exit code after SIGINT

_COMMITS = 25  # at most, until the gallery is opened again
_LONGEST_PAUSE = 0.03  # seconds


def write(folders: RunFolders, history: History, version: Version) -> None:
    """Write until the run ends, in a process of its own."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with join_run(folders) as journal:
            journal.ready()
            rng = random.Random(version.step)
            while not (journal.read().is_stopped or is_abandoned()):
                version = _run_session(folders, history, version, journal, rng)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


def _run_session(
    folders: RunFolders, history: History, version: Version, journal: Journal, rng: random.Random
) -> Version:
    """Open the gallery, commit a few steps and close it; return the version that it has then."""
    with Writer(folders.gallery) as writer:
        for _ in range(rng.randint(1, _COMMITS)):
            if journal.read().is_stopped or is_abandoned():
                break
            step, is_compaction = version.step + 1, history.is_compaction(version.step + 1)
            for change in history.changes(version):
                change.write(writer)
            version = history.next(version)
            journal.begin(step)
            if is_compaction:
                writer.compact()
            else:
                writer.commit()
            journal.done(step)
            if is_compaction:
                break  # this writer has the old row files
            time.sleep(rng.choice((0, rng.uniform(0, _LONGEST_PAUSE))))
    return version
