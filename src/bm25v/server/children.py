"""What every process that the server starts does first."""

import multiprocessing
import os
import signal
import threading

from bm25v.privacy import own_process

# Linux: the default is to fork, which copies a process without its threads.
CONTEXT = multiprocessing.get_context("spawn")


def belong_to_server() -> None:
    """Leave Ctrl-C to the server, and end when it does, however it ends."""
    own_process()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()


def _end_with_the_server() -> None:
    server = multiprocessing.parent_process()
    assert server is not None
    server.join()
    os._exit(1)
