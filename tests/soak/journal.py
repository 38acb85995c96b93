"""How far the writer is, known to all processes of a run: a file of small records.

A writer appends a record before and after each commit; the kernel keeps it if the writer is killed.
Reading it before and after a search gives the versions that the search may have seen.
"""

import struct
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

_RECORD = struct.Struct("<qq")  # kind, step; appended as a whole
_READY, _BEGIN, _DONE, _STOP = range(4)


class Status(NamedTuple):
    begun: int = 0  # the last step whose commit has begun
    done: int = 0  # the last step whose commit is complete
    n_begun: int = 0  # commits, with repeated steps
    n_done: int = 0
    n_ready: int = 0  # processes that have started
    is_stopped: bool = False


class Journal:
    def __init__(self, path: Path) -> None:
        with ExitStack() as files:
            self._appended = files.enter_context(path.open("ab", buffering=0))
            self._read = files.enter_context(path.open("rb", buffering=0))
            self._files = files.pop_all()
        self._status = Status()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def ready(self) -> None:
        self._append(_READY)

    def begin(self, step: int) -> None:
        """Report that the commit of a step begins: from now on readers may see it."""
        self._append(_BEGIN, step)

    def done(self, step: int) -> None:
        """Report that the commit of a step is complete: from now on readers must see it."""
        self._append(_DONE, step)

    def stop(self) -> None:
        self._append(_STOP)

    def read(self) -> Status:
        while records := self._read.read(4096 * _RECORD.size):
            for kind, step in _RECORD.iter_unpack(records):
                self._status = _follow(self._status, kind, step)
        return self._status

    def _append(self, kind: int, step: int = 0) -> None:
        self._appended.write(_RECORD.pack(kind, step))


def _follow(status: Status, kind: int, step: int) -> Status:
    if kind == _READY:
        return status._replace(n_ready=status.n_ready + 1)
    if kind == _BEGIN:
        return status._replace(begun=max(step, status.begun), n_begun=status.n_begun + 1)
    if kind == _DONE:
        return status._replace(done=max(step, status.done), n_done=status.n_done + 1)
    return status._replace(is_stopped=True)
