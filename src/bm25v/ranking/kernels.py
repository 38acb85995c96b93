"""The compiled loop over half-precision rows."""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import compiled_reordering_sums

# Bits of a float16, moved to where a float32 has them, stand for the number divided by this: the
# two kinds count exponents from different points.
_EXPONENT = np.float32(2.0**112)


@compiled_reordering_sums
def cosines(
    halves_ne: NDArray[np.uint16], query_e: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the cosine between a query of length 1 and each row, given as bits of float16."""
    dim = halves_ne.shape[1]
    bits = np.empty(dim, dtype=np.uint32)
    row_e = bits.view(np.float32)
    found = np.empty(len(rows), dtype=np.float32)
    for i in range(len(rows)):
        halves = halves_ne[rows[i]]
        for j in range(dim):
            half = np.uint32(halves[j])
            sign, rest = half & np.uint32(0x8000), half & np.uint32(0x7FFF)
            bits[j] = (sign << np.uint32(16)) | (rest << np.uint32(13))
        dot, square = np.float32(0), np.float32(0)
        for j in range(dim):
            value = row_e[j] * _EXPONENT
            dot += value * query_e[j]
            square += value * value
        found[i] = dot / max(np.sqrt(square), np.float32(1e-12))
    return found
