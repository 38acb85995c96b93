"""Runs scripts in other processes, and functions in children forked from this one.

Windows has no fork: tests that fork are marked with `needs_fork`.
"""

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from bm25v.errors import Bm25vError
from bm25v.store.local.catalog import Catalog

REFUSED = 3  # exit code of a child that ended with a `Bm25vError`

# Calls that change something on the disk, or stand between two that do.
_DISK_CALLS = {"execute", "write", "fsync", "truncate", "unlink", "open", "close", "rollback"}

Report = Callable[[], object]

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")


def run_python(
    script: str, *words: object, cwd: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run a script in another Python; with `check`, it must end with the exit code 0."""
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, words)], cwd=cwd, capture_output=True, text=True
    )
    assert not check or done.returncode == 0, done.stderr
    return done


def start(function: Callable[[Report], None]) -> tuple[int, int]:
    """Run a function in a child, which may report steps; return its process id and a pipe to read.

    No other thread may use a gallery meanwhile: the child would wait for its locks.
    """
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            function(lambda: os.write(write_end, b"."))
            code = 0
        except Bm25vError:
            code = REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    return child, read_end


def finish(child: int, read_end: int) -> tuple[int, int]:
    """Wait for a child to end; return its exit code and how many steps it has reported."""
    with os.fdopen(read_end, "rb") as pipe:
        reported = len(pipe.read())
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), reported


def die_at_step(n: int) -> None:
    """Kill this process just before its n-th call, from 0 on, that changes the disk."""
    calls = count()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        is_step = event == "c_call" and called.__name__ in _DISK_CALLS
        if is_step and frame.f_code is Catalog.execute.__code__:
            is_step = not frame.f_locals["statement"].startswith(("SELECT", "PRAGMA"))
        if is_step and next(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
