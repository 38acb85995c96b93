"""Adds postings up in numpy; `kernels.accumulate` does the same, compiled."""

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import dequantise
from bm25v.index.statistics import saturation


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
    for (start, stop), gain in zip(slots.tolist(), gains.tolist(), strict=True):
        found = rows[start:stop]
        scores[found] += gain * saturation(dequantise(tf[start:stop]), norms[found])
        touched[found] = True
