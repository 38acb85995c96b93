"""Keeps the decoders' warnings away, in the threads that decode and nowhere else."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_thread = threading.local()
_filter_lock = threading.Lock()


class _WhileDecoding(type):
    def __subclasscheck__(cls, subclass: type) -> bool:
        return getattr(_thread, "decoding", False)


class _AnyWarning(Warning, metaclass=_WhileDecoding):
    """The parent of every warning, but only in a thread that is decoding."""


@contextmanager
def no_warnings() -> Iterator[None]:
    """Ignore warnings in this thread alone, which `warnings.catch_warnings` cannot."""
    with _filter_lock:
        if not warnings.filters or warnings.filters[0][2] is not _AnyWarning:
            warnings.simplefilter("ignore", _AnyWarning)
    _thread.decoding = True
    try:
        yield
    finally:
        _thread.decoding = False
