"""numba's `njit` with the compiled code kept on disk. Importing this takes half a second.

So only modules of compiled loops import it, and only large galleries and long jobs import those.

numba recompiles a function only if the file that defines it changes. Compiled
functions therefore use no constants and call no functions of other files: what is defined elsewhere
is passed as an argument. A test checks it.
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
