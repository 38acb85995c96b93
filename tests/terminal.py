"""Runs the command line in a terminal of a given width (a pseudo-terminal: not on Windows)."""

import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

needs_terminal = pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")

_ESCAPES = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


class Shown(NamedTuple):
    """What a terminal received; `text` is without colours and other escape sequences."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        return _ESCAPES.sub("", self.raw).replace("\r\n", "\n")


def show(*words: object, folder: Path, columns: int, **environment: str) -> Shown:
    """Run `bm25v` in a terminal, and return what it shows."""
    import fcntl
    import pty
    import termios

    command = [sys.executable, "-m", "bm25v", *map(str, words)]
    inherited = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "NO_COLOR")}
    terminal, end_of_child = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    with subprocess.Popen(
        command,
        cwd=folder,
        env={**inherited, "TERM": "xterm", **environment},
        stdin=end_of_child,
        stdout=end_of_child,
        stderr=end_of_child,
    ) as child:
        os.close(end_of_child)
        received = b"".join(_read(terminal))
    return Shown(child.returncode, received.decode())


def _read(terminal: int) -> Iterator[bytes]:
    with os.fdopen(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):
        while part := file.read(65536):  # at the end, Linux raises an error
            yield part
