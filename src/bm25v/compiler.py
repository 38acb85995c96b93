"""numba's `njit` with the compiled code kept on disk. Importing this takes half a second.

numba recompiles a function only if the file that defines it changes. So compiled functions use no
constants and call no functions of other files: what is defined elsewhere is an argument.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numba


def jit(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the compiled code on disk.

    Divisions do not check for 0, as in numpy: loops with such a check are not vectorised.
    """
    compile_with = partial(numba.njit, nogil=True, error_model="numpy")
    try:
        return compile_with(cache=True)(function)
    except RuntimeError:  # numba finds no folder that it may write to
        return compile_with()(function)
