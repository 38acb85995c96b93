"""Keeps decoders from writing to stderr and from raising warnings.

In: nothing. Out: nothing; what is wrong with a file is told by exceptions alone. Not this module's
job: decoding.
"""

import ctypes
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache

from PIL import _imaging

_thread = threading.local()
_filter_lock = threading.Lock()


class _MatchesWhileDecoding(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return getattr(_thread, "is_decoding", False)


class _AnyWarning(Warning, metaclass=_MatchesWhileDecoding):
    """The parent of every warning, but only in a thread that is decoding."""


@contextmanager
def ignore_warnings() -> Iterator[None]:
    """Ignore warnings in this thread only, which `warnings.catch_warnings` cannot do."""
    with _filter_lock:
        if not warnings.filters or warnings.filters[0][2] is not _AnyWarning:
            warnings.simplefilter("ignore", _AnyWarning)
    _thread.is_decoding = True
    try:
        yield
    finally:
        _thread.is_decoding = False


@cache
def silence_libtiff() -> None:
    """Switch off the messages of libtiff on stderr, where Pillow's copy of it allows that."""
    with suppress(AttributeError, OSError):
        library = ctypes.CDLL(_imaging.__file__)  # its symbols include those of its libraries
        for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
            getattr(library, name)(None)
