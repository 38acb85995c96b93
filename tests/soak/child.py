"""What all child processes of a run have in common: how they start and end, what they use.

A child ends when the journal says so, or when the process that started it is gone; then it removes
the temporary folder, because nobody else does.
"""

import faulthandler
import gc
import multiprocessing
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.soak.journal import Journal

_PROCESSES = Path("/proc")  # Linux: other systems do not have it, and report nothing


class Usage(NamedTuple):
    """What a process uses; 0 on systems without /proc."""

    memory_bytes: int  # without the pages of files
    open_files: int


NOTHING = Usage(0, 0)


def highest_usage(usages: Sequence[Usage]) -> Usage:
    memory_bytes, open_files = zip(NOTHING, *usages, strict=True)
    return Usage(max(memory_bytes), max(open_files))


class RunFolders(NamedTuple):
    gallery: Path
    scratch: Path

    @property
    def journal(self) -> Path:
        return self.scratch / "journal"

    def errors(self, name: str) -> Path:
        return self.scratch / f"{name}.stderr"

    def read_error(self, name: str) -> str:
        try:
            lines = (
                self.errors(name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            )
        except OSError:
            lines = []
        return lines[-1] if lines else "it printed no error"


@contextmanager
def join_run(folders: RunFolders) -> Iterator[Journal]:
    """Yield the journal to a child process; at the end, clean up if the run was killed."""
    errors = folders.errors(multiprocessing.current_process().name)
    sys.stderr = errors.open("w", buffering=1, encoding="utf-8")  # stays open: an error may end it
    faulthandler.enable()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Journal(folders.journal) as journal:
            yield journal
    finally:
        if is_abandoned():
            shutil.rmtree(folders.scratch, ignore_errors=True)


def is_abandoned() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and not parent.is_alive()


def measure_usage() -> Usage:
    gc.collect()
    descriptors = _PROCESSES / "self" / "fd"
    if not descriptors.is_dir():
        return NOTHING
    return Usage(measure_memory("self"), len(list(descriptors.iterdir())) - 1)  # 1: this listing


def measure_memory(process: int | str) -> int:
    status = _PROCESSES / str(process) / "status"
    if not status.is_file():
        return 0
    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    kilobytes = next((line.split()[1] for line in lines if line.startswith("RssAnon:")), "0")
    return int(kilobytes) * 1024
