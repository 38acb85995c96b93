"""The compiled loops of the second stage.

Dense vectors are read straight from the bits of float16, and added in the order that
`second_stage._sum_rows` describes: loops that add stretches of arrays to each other are vectorised
without a change of that order. The words of full bags are added one after the other.
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
_SHORTEST = np.float32(1e-12)  # as in `second_stage`
_TOGETHER = 16  # rows that are read ahead
_TAIL = 16  # as in `second_stage`; passed as an argument, it would make the kernel slower


@jit
def cosines(
    halves_ne: NDArray[np.int16], query_e: NDArray[np.float32], rows: NDArray[np.int64]
) -> tuple[NDArray[np.float32], int]:
    """Return the cosine between a query of length 1 and each row, given as bits of float16.

    The last value means nothing; without it, the compiler would leave out reading ahead.
    """
    width = halves_ne.shape[1]
    n = width // 4
    bits = np.empty(width, dtype=np.int32)
    row_e = bits.view(np.float32)
    dots = np.empty(n + 4, dtype=np.float32)
    squares = np.empty(n + 4, dtype=np.float32)
    cosines_c = np.empty(len(rows), dtype=np.float32)
    touched = 0
    for i in range(len(rows)):
        if i % _TOGETHER == 0:  # read all of these rows first: they wait for memory together
            for row in rows[i : i + _TOGETHER]:
                for j in range(0, width, 32):
                    touched += halves_ne[row, j]
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
    return cosines_c, touched


@jit
def score_bags(
    words_nk: NDArray[np.unsignedinteger],
    levels_nk: NDArray[np.unsignedinteger],
    rows: NDArray[np.int64],
    stored_tf: NDArray[np.uint16],
    frequencies: NDArray[np.float64],
    formula: tuple[float, float, float, int],
    is_term_v: NDArray[np.uint8],
    term_v: NDArray[np.uint16],
    term_weights: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
    """Return the BM25 score of each row, and the IDF mass of the words that it shares.

    `stored_tf` and `frequencies` are those of each level; `formula` has k1, b, the average length
    and what a stored tf is divided by. `is_term_v` is 1 for words of the query; its last entry, 0,
    is for words that do not exist.
    """
    k1, b, average, scale = formula
    last, k = np.uint32(len(term_v)), words_nk.shape[1]
    slots = np.empty(k + 1, dtype=np.int64)
    bm25, shared_mass = np.zeros(len(rows)), np.zeros(len(rows))
    touched = 0
    for i in range(len(rows)):
        if i % _TOGETHER == 0:  # read all of these rows first: they wait for memory together
            for row in rows[i : i + _TOGETHER]:
                for j in range(0, k, 32):
                    touched += words_nk[row, j] + levels_nk[row, j]
        words, levels = words_nk[rows[i]], levels_nk[rows[i]]
        length, n = 0, np.uint32(0)  # with a sign, indices would be checked for it
        for j in range(k):  # without a branch: shared words are listed by moving on
            length += stored_tf[levels[j]]
            slots[n] = j
            n += np.uint32(is_term_v[min(words[j], last)])
        norm = k1 * (1 - b + b * (length / scale) / average)
        score, mass = 0.0, 0.0
        for slot in slots[:n]:
            if levels[slot] > 0:
                tf, weight = frequencies[levels[slot]], term_weights[term_v[words[slot]]]
                score += weight * (tf * (k1 + 1) / (tf + norm))
                mass += max(weight, 0.0)
        bm25[i], shared_mass[i] = score, mass
    return bm25, shared_mass, touched
