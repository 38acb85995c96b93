"""numba's `njit` with the compiled code kept on disk. Importing this takes half a second.

numba recompiles a function only if the file that defines it changes. So compiled functions use no
constants and call no functions of other files: what is defined elsewhere is an argument.
"""

from collections.abc import Callable
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the compiled code on disk."""
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return numba.njit(nogil=True)(function)
