"""Opens files and bytes for decoders, which read only the parts they need, for a limited time.

A stream can be made of pieces of another one, so that huge metadata is never read; it stops a
decoder that takes too long at its next read.
"""

import errno
import io
import os
import stat
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NamedTuple

from bm25v.errors import ImageError

Source = str | os.PathLike[str] | bytes
"""An image: the path of a file, or the bytes of one."""

Stream = io.BufferedReader | io.BytesIO

MAX_BYTES = 2**31
"""Larger files are refused before they are read."""

MAX_SECONDS = 10.0
"""An image is given up when a thread has spent this much CPU time on it."""

_BUFFER_SIZE = 2**16

_SYSTEM_REASONS = {
    errno.ENOENT: "does not exist",
    errno.EACCES: "permission denied",
    errno.EISDIR: "is a folder, not a file",
    errno.ENOTDIR: "is not a folder",
    errno.ENXIO: "is not a regular file",  # a socket
    errno.ELOOP: "is a link in a circle of links",
}


class Piece(NamedTuple):
    """A part of a file: from `start` to before `end`; or bytes that are in no file."""

    start: int
    end: int
    content: bytes | None = None

    @classmethod
    def from_bytes(cls, content: bytes) -> "Piece":
        return cls(0, len(content), content)


class _Pieces(io.RawIOBase):
    """The pieces of a file one after the other; a read after the time limit raises."""

    def __init__(self, stream: Stream, pieces: Sequence[Piece]) -> None:
        self._stream, self._pieces = stream, pieces
        self._starts = [0, *accumulate(piece.end - piece.start for piece in pieces)]
        self._position = 0
        self._start_time = time.thread_time()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._starts[-1]}[whence]
        if base + offset < 0:
            raise ValueError("seeks before the start of the file")
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        if time.thread_time() - self._start_time > MAX_SECONDS:
            raise ImageError(f"takes too long to decode: more than {MAX_SECONDS:g} s of CPU time")
        index = bisect_right(self._starts, self._position) - 1
        if index >= len(self._pieces):
            return 0
        piece = self._pieces[index]
        start = piece.start + self._position - self._starts[index]
        view = memoryview(buffer)[: piece.end - start]
        if piece.content is not None:
            view[:] = piece.content[start : start + len(view)]
            n_read = len(view)
        else:
            self._stream.seek(start)
            n_read = self._stream.readinto(view)
        self._position += n_read
        return n_read

    def fileno(self) -> int:
        if self._pieces != [Piece(0, stream_size(self._stream))]:
            raise io.UnsupportedOperation("pieces of a file have no descriptor")
        return self._stream.fileno()


def join_pieces(stream: Stream, pieces: Sequence[Piece] | None = None) -> Stream:
    """Return a stream of pieces of another one, by default of all, with its own limit of time.

    >>> join_pieces(io.BytesIO(b"a large file"), [Piece(0, 2), Piece(8, 12)]).read()
    b'a file'
    """
    pieces = [Piece(0, stream_size(stream))] if pieces is None else pieces
    return io.BufferedReader(_Pieces(stream, pieces), _BUFFER_SIZE)


def stream_size(stream: Stream) -> int:
    """Return how many bytes a stream has; its position becomes the start."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    return size


@contextmanager
def open_stream(source: Source) -> Iterator[Stream]:
    """Open a file or bytes for reading; refuse what is not a regular file, empty or too large."""
    if isinstance(source, bytes):
        if not source:
            raise ImageError("is empty (0 bytes)")
        yield io.BytesIO(source)
        return
    try:
        file = open(source, "rb", opener=open_nonblocking)  # noqa: SIM115
    except (OSError, ValueError) as error:
        raise ImageError(system_reason(error)) from error
    with file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ImageError("is not a regular file")
        if status.st_size == 0:
            raise ImageError("is empty (0 bytes)")
        if status.st_size > MAX_BYTES:
            raise ImageError(f"too large: {status.st_size:,} bytes; the limit is {MAX_BYTES:,}")
        yield file


def open_nonblocking(path: str, flags: int) -> int:
    """Open like `os.open`, but do not wait for the other end of a FIFO."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # Windows: no such flag, no FIFOs


def system_reason(error: OSError | ValueError) -> str:
    known = isinstance(error, OSError) and _SYSTEM_REASONS.get(error.errno or 0)
    return known or getattr(error, "strerror", None) or str(error)
