"""What the server and every process that it starts do first."""

import ctypes
import multiprocessing
import os
import signal
import threading
from contextlib import suppress

from bm25v.privacy import own_process

# Linux: the default is to fork, which copies a process without its threads.
CONTEXT = multiprocessing.get_context("spawn")


_ARENAS_MAX = -8  # M_ARENA_MAX of glibc's mallopt


def share_memory() -> None:
    """Let threads share what others have freed: by default each keeps its largest work (glibc)."""
    with suppress(OSError, AttributeError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_ARENAS_MAX, 2)


def belong_to_server() -> None:
    """Leave Ctrl-C to the server, and end when it does, however it ends."""
    own_process()
    share_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)
