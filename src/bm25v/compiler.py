"""numba's `njit` with the compiled code kept on disk. Importing this takes half a second.

numba recompiles a function only if the file that defines it changes. So compiled functions use no
constants and call no functions of other files: what is defined elsewhere is an argument.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numba

_PROGRAM = "import sys; sys.path[:] = sys.argv[1:]; import bm25v.precompile as p; p.main()"

_starting = threading.Lock()
_process: subprocess.Popen[bytes] | None = None


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the compiled code on disk.

    Divisions do not check for 0, as in numpy: loops with such a check are not vectorised.
    """
    compile_with = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return compile_with()(function)


def compile_elsewhere(function: Any) -> bool:
    """Let another process compile all functions, if that is needed; return whether it is at work.

    `function` is one of them. The process goes on if this one ends.
    """
    global _process
    stamp = _stamp_file(function)
    # In an application that embeds Python, this is the application: it must not be started again.
    is_interpreter = "python" in os.path.basename(sys.executable or "").lower()
    if stamp is None or not is_interpreter:
        return False
    with _starting:
        if _process is None and not _is_current(stamp, function):
            with suppress(OSError):  # such as a limit of processes
                _process = subprocess.Popen(
                    [sys.executable, "-c", _PROGRAM, *sys.path],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
        return _process is not None and _process.poll() is None


def note_compiled(function: Any) -> None:
    """Note that the code of `function` and all others is on disk."""
    stamp = _stamp_file(function)
    if stamp is not None:
        stamp.touch()


def _stamp_file(function: Any) -> Path | None:
    """Return the file whose time says when everything was compiled; None if nothing is kept."""
    folder = function.stats.cache_path
    return None if folder is None else Path(folder) / f"compiled-by-numba-{numba.__version__}"


def _is_current(stamp: Path, function: Any) -> bool:
    sources = Path(function.py_func.__code__.co_filename).parent.glob("*.py")
    newest = max(source.stat().st_mtime for source in sources)
    return stamp.exists() and stamp.stat().st_mtime >= newest
