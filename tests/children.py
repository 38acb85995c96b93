"""Work done in another process, forked from this one so that it starts at once."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from types import FrameType
from typing import Any

from bm25v.errors import Bm25vError

REFUSED = 3  # exit code of a child that has met an error that says what is wrong

# Calls that change something on the disk, or stand between two that do.
_DISK_CALLS = {"execute", "write", "fsync", "truncate", "unlink", "open", "close", "rollback"}

Report = Callable[[], object]


def start(work: Callable[[Report], None]) -> tuple[int, int]:
    """Do some work in a child that can report steps; return its number and a pipe to read.

    No catalogue may be open here: a database must not be carried into another process.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(lambda: os.write(writing, b"."))
            code = 0
        except Bm25vError:
            code = REFUSED
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    return child, reading


def finish(child: int, reading: int) -> tuple[int, int]:
    """Wait for a child's end; return how it ended and how many steps it has reported."""
    with os.fdopen(reading, "rb") as pipe:
        reported = len(pipe.read())
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), reported


def die_at_step(n: int) -> None:
    """Let this process be killed just before its n-th call, from 0 on, that changes the disk."""
    calls = count()

    def watch(frame: FrameType, event: str, called: Any) -> None:
        is_query = frame.f_code.co_name == "_all"  # of the catalogue
        is_step = event == "c_call" and called.__name__ in _DISK_CALLS and not is_query
        if is_step and next(calls) == n:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(watch)
