"""Opens what may be a picture, and refuses at once what cannot be one."""

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from bm25v.errors import ImageError
from bm25v.images.reasons import system_reason

Source = str | os.PathLike[str] | bytes
"""A picture: the path of a file, or the bytes of one."""

Stream = io.BufferedReader | io.BytesIO

MAX_BYTES = 2**31
"""Larger files are refused before they are read: some decoders read them whole."""


@contextmanager
def opened(source: Source) -> Iterator[Stream]:
    """Give a stream of a file, or of bytes, that is regular, not empty and not far too large."""
    if isinstance(source, bytes):
        if not source:
            raise ImageError("has no content: 0 bytes")
        yield io.BytesIO(source)
        return
    try:
        file = open(source, "rb", opener=open_unblocked)  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise ImageError(system_reason(error)) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("is not a regular file")
        if status.st_size == 0:
            raise ImageError("has no content: 0 bytes")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"too large: {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        yield file


def open_unblocked(path: str, flags: int) -> int:
    """Open like `os.open`, but do not wait for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
