"""The compiled loop that reads rows from texts, as `row_texts` describes them."""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import jit


@jit
def join_bits(
    codes: NDArray[np.uint32], lower: np.uint32, upper: np.uint32, parts: NDArray[np.uint32]
) -> None:
    """Write the three parts of each row, given its characters, four at a time."""
    for i in range(len(codes)):
        for part in range(3):
            shift = np.uint32(6 - 2 * part)
            for j in range(codes.shape[2]):
                parts[i, part, j] = (codes[i, part, j] & lower) | (
                    (codes[i, 3, j] << shift) & upper
                )
