"""The processes that the server starts, what each does first, and how it gets its index ready.

They import this module, so it imports no web framework.
"""

import ctypes
import logging
import multiprocessing
import os
import signal
import threading
from contextlib import suppress

from bm25v.display import one_line
from bm25v.errors import Bm25vError
from bm25v.gallery import Gallery
from bm25v.precompile import precompile
from bm25v.privacy import own_process

# Linux: the default is to fork, which copies a process without its threads.
CONTEXT = multiprocessing.get_context("spawn")

_SEARCHES = 10**9  # that a server expects: enough to justify an index
_POLL_SECONDS = 0.2  # until it is checked again whether everything is compiled
_STOP_SECONDS = 10.0  # to load compiled code
_ARENAS_MAX = -8  # M_ARENA_MAX of glibc's mallopt

_log = logging.getLogger(__name__)


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


class Preparation:
    """Waits until another process has compiled what searches need, then builds the index.

    Searches scan meanwhile. Python runs one thread at a time, so compiling in this process would
    slow every request down.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(_STOP_SECONDS)

    def _prepare(self) -> None:
        from bm25v.compiler import compile_elsewhere
        from bm25v.index.kernels import search_block

        while compile_elsewhere(search_block):
            if self._stopping.wait(_POLL_SECONDS):
                return
        try:
            precompile()
            self._gallery.store.read(lambda view: None, searches=_SEARCHES)
        except (Bm25vError, OSError) as error:
            _log.warning("searches are not prepared: %s", one_line(str(error)))
