"""Plain loops in, machine code out. Importing this loads numba, which takes half a second.

Only modules of compiled loops import it, and only large galleries or many searches load those.
"""

from collections.abc import Callable
from typing import Any

import numba


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called, and keep the result on disk."""
    return _compiled(function)


def compiled_reordering_sums(function: Callable[..., Any]) -> Any:
    """The same, but sums of floats may be added up in any order, several at a time."""
    return _compiled(function, fastmath={"reassoc", "contract"})


def _compiled(function: Callable[..., Any], **options: Any) -> Any:
    try:
        return numba.njit(nogil=True, cache=True, **options)(function)
    except RuntimeError:  # there is no place where the compiled code could be kept
        return numba.njit(nogil=True, **options)(function)
