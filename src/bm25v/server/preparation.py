"""Compiles code while the server answers the first requests, which scan in numpy meanwhile."""

import logging
import os
import threading

from bm25v.display import one_line
from bm25v.errors import Bm25vError
from bm25v.gallery import Gallery
from bm25v.precompile import precompile
from bm25v.server.children import CONTEXT, belong_to_server

_SEARCHES = 10**9  # that a server expects: enough to justify an index
_NICENESS = 10  # of the process that compiles
_STOP_SECONDS = 10.0  # to load compiled code

_log = logging.getLogger(__name__)


class Preparation:
    """Compiles what searches need, then builds the index of a gallery.

    Python runs one thread at a time, and compiling would slow every request down. So another
    process compiles, and this one loads the compiled code.
    """

    def __init__(self, gallery: Gallery) -> None:
        self._gallery = gallery
        self._compiler = CONTEXT.Process(target=_compile, daemon=True)
        self._compiler.start()
        self._thread = threading.Thread(target=self._prepare, daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._compiler.kill()
        self._thread.join(_STOP_SECONDS)

    def _prepare(self) -> None:
        self._compiler.join()
        if self._compiler.exitcode != 0:
            return
        try:
            precompile()
            self._gallery.store.read(lambda view: None, searches=_SEARCHES)
        except (Bm25vError, OSError) as error:
            _log.warning("searches are not prepared: %s", one_line(str(error)))


def _compile() -> None:
    belong_to_server()
    if hasattr(os, "nice"):  # Windows: no such function
        os.nice(_NICENESS)
    precompile()
