"""The compiled loop over dense vectors, straight from the bits of float16.

It adds in the order that `ranking._sum_rows` describes. Its loops add stretches of arrays to each
other; such loops are vectorised without a change of that order.
"""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import jit

# The bits of a float16, moved to where a float32 has them, are the number divided by this: the two
# formats count exponents from different points.
_EXPONENT = np.float32(2.0**112)
_MOVED_BITS = np.int32(-0x70002000)  # 0x8FFFE000: sign, exponent and mantissa after the move
_NOT_FINITE = np.int16(0x7C00)  # the exponent of infinity and NaN
_LARGEST = np.float32(2.0**32)  # their squares would be larger
_SHORTEST = np.float32(1e-12)  # as in `ranking`
_TAIL = 16  # as in `ranking`; passed as an argument, it would make the kernel slower


@jit
def cosines(
    halves_ne: NDArray[np.int16], query_e: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the cosine between a query of length 1 and each row, given as bits of float16."""
    width = halves_ne.shape[1]
    n = width // 4
    bits = np.empty(width, dtype=np.int32)
    row_e = bits.view(np.float32)
    dots = np.empty(n + 4, dtype=np.float32)
    squares = np.empty(n + 4, dtype=np.float32)
    cosines_c = np.empty(len(rows), dtype=np.float32)
    for i in range(len(rows)):
        halves = halves_ne[rows[i]]
        for j in range(width):
            bits[j] = (np.int32(halves[j]) << np.int32(13)) & _MOVED_BITS
        for j in range(n):
            a, b = row_e[j] * _EXPONENT, row_e[n + j] * _EXPONENT
            c, d = row_e[2 * n + j] * _EXPONENT, row_e[3 * n + j] * _EXPONENT
            dots[j] = (a * query_e[j] + b * query_e[n + j]) + (
                c * query_e[2 * n + j] + d * query_e[3 * n + j]
            )
            squares[j] = (a * a + b * b) + (c * c + d * d)
        left = n
        for j in range(4 * n, width):
            value = row_e[j] * _EXPONENT
            dots[left] = value * query_e[j]
            squares[left] = value * value
            left += 1
        while left > _TAIL:
            half = (left + 1) // 2
            for j in range(left - half):
                dots[j] += dots[half + j]
                squares[j] += squares[half + j]
            left = half
        dot, square = np.float32(0), np.float32(0)
        for j in range(left):
            dot += dots[j]
            square += squares[j]
        length = np.sqrt(square)
        if length < _SHORTEST:
            length = _SHORTEST
        cosine = dot / length
        if cosine > 1:  # by rounding
            cosine = np.float32(1)
        elif cosine < -1:
            cosine = np.float32(-1)
        if square >= _LARGEST:
            for j in range(width):
                if halves[j] & _NOT_FINITE == _NOT_FINITE:
                    cosine = np.float32(np.nan)
        cosines_c[i] = cosine
    return cosines_c
