"""Compiled loops over postings. Importing this loads numba: only large indexes do."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from bm25v.bags import SCALE
from bm25v.index.reference import K1


def _compiled(function: Callable[..., None]) -> Any:
    try:
        return numba.njit(nogil=True, cache=True)(function)
    except RuntimeError:  # there is no place where the compiled code could be kept
        return numba.njit(nogil=True)(function)


@_compiled
def accumulate(
    slots: NDArray[np.int64],
    gains: NDArray[np.float64],
    rows: NDArray[np.int32],
    tf: NDArray[np.uint16],
    norms: NDArray[np.float64],
    scores: NDArray[np.float64],
    touched: NDArray[np.bool_],
) -> None:
    """Add gain · saturation of every posting in the given (start, stop) slots to its row."""
    for i in range(len(gains)):
        for slot in range(slots[i, 0], slots[i, 1]):
            row = rows[slot]
            frequency = tf[slot] / SCALE
            scores[row] += gains[i] * (frequency * (K1 + 1) / (frequency + norms[row]))
            touched[row] = True
