"""The compiled loops of the second stage.

Dense vectors are read straight from the bits of float16, and added in the order that
`second_stage._sum_rows` describes: loops that add stretches of arrays to each other are vectorised
without a change of that order. The words of full bags are added one after the other.
"""

import platform
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba import types
from numba.core import cgutils, config
from numba.extending import intrinsic
from numpy.typing import NDArray

from bm25v.compiler import jit

# Without an instruction for float16, as of x86 processors older than 2012, LLVM would call a
# function that is missing. numba compiles for another processor if its settings say so.
_is_for_host = config.CPU_NAME is None and config.CPU_FEATURES is None
_has_instruction = binding.get_host_cpu_features().get("f16c", False)
_is_arm = platform.machine().lower() in ("aarch64", "arm64")
CONVERTS_HALVES = _is_for_host and (_has_instruction or _is_arm)

_NOT_FINITE = np.int16(0x7C00)  # the exponent of infinity and NaN
_LARGEST = np.float32(2.0**32)  # their squares would be larger
_SHORTEST = np.float32(1e-12)  # as in `second_stage`
_AHEAD = 4  # rows that are read while others are scored
_TAIL = 16  # as in `second_stage`; passed as an argument, it would make the kernel slower


@intrinsic  # type: ignore[untyped-decorator]
def _to_float(typing: Any, bits: Any) -> Any:
    """Return the number whose bits as a float16 are given."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.fpext(builder.bitcast(arguments[0], ir.HalfType()), ir.FloatType())

    return types.float32(types.int16), generate


@intrinsic  # type: ignore[untyped-decorator]
def _prefetch(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Start to read the cache line of an item, without a wait."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, *index = arguments
        made = context.make_array(array)(context, builder, values)
        item = cgutils.get_item_pointer(context, builder, array, made, index)
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch")
        # to read it, into all caches, as data
        builder.call(function, [builder.bitcast(item, byte), *map(number, (0, 3, 1))])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp), generate


@jit
def cosines(
    halves_ne: NDArray[np.int16], query_e: NDArray[np.float32], rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    """Return the cosine between a query of length 1 and each row, given as bits of float16."""
    width = halves_ne.shape[1]
    n = width // 4
    dots = np.empty(n + 4, dtype=np.float32)
    squares = np.empty(n + 4, dtype=np.float32)
    cosines_c = np.empty(len(rows), dtype=np.float32)
    for row in rows:  # so that the pages of all rows are looked up together
        _prefetch(halves_ne, row, 0)
    for i in range(-_AHEAD, len(rows)):
        if i + _AHEAD < len(rows):
            for j in range(0, width, 32):
                _prefetch(halves_ne, rows[i + _AHEAD], j)
        if i < 0:
            continue
        halves = halves_ne[rows[i]]
        for j in range(n):
            a, b = _to_float(halves[j]), _to_float(halves[n + j])
            c, d = _to_float(halves[2 * n + j]), _to_float(halves[3 * n + j])
            dots[j] = (a * query_e[j] + b * query_e[n + j]) + (
                c * query_e[2 * n + j] + d * query_e[3 * n + j]
            )
            squares[j] = (a * a + b * b) + (c * c + d * d)
        left = n
        for j in range(4 * n, width):
            value = _to_float(halves[j])
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


@jit
def score_full_bags(
    bags_nb: NDArray[np.uint8],
    rows: NDArray[np.int64],
    k: int,
    no_words: NDArray[np.unsignedinteger],
    query_words: NDArray[np.int32],
    weights: NDArray[np.float64],
    idf_v: NDArray[np.float64],
    stored_tf: NDArray[np.uint16],
    formula: tuple[float, float, float, int],
) -> NDArray[np.float64]:
    """Return the BM25 score of each of the given rows.

    `bags_nb` has the bytes of each row: k words, of the type of `no_words`, then k levels.
    `stored_tf` is that of each level; `formula` has k1, b, the average length and what a stored tf
    is divided by.
    """
    k1, b, average, scale = formula
    is_term_v = np.zeros(len(idf_v) + 1, dtype=np.uint8)  # the last: words that do not exist
    weight_v = np.empty(len(idf_v))
    for i in range(len(query_words)):
        if query_words[i] < len(idf_v):
            is_term_v[query_words[i]] = 1
            weight_v[query_words[i]] = weights[i] * idf_v[query_words[i]]
    frequencies = stored_tf / scale
    last, word_bytes = np.uint32(len(idf_v)), no_words.itemsize
    slots = np.empty(k + 1, dtype=np.uint32)  # with a sign, indices would be checked for it
    bm25 = np.empty(len(rows))
    for row in rows:  # as in `cosines`
        _prefetch(bags_nb, row, 0)
    for i in range(-_AHEAD, len(rows)):
        if i + _AHEAD < len(rows):
            for j in range(0, k * (word_bytes + 1), 64):
                _prefetch(bags_nb, rows[i + _AHEAD], j)
        if i < 0:
            continue
        words = bags_nb[rows[i], : k * word_bytes].view(no_words.dtype)
        levels = bags_nb[rows[i], k * word_bytes : k * (word_bytes + 1)]
        length, n = np.uint32(0), np.uint32(0)
        for j in range(k):  # without a branch: shared words are listed by moving on
            length += np.uint32(stored_tf[levels[j]])
            slots[n] = j
            n += np.uint32(is_term_v[min(words[j], last)])
        norm = k1 * (1 - b + b * (length / scale) / average)
        score = 0.0
        for slot in slots[:n]:
            if levels[slot] > 0:  # else the slot is empty
                tf = frequencies[levels[slot]]
                score += weight_v[words[slot]] * (tf * (k1 + 1) / (tf + norm))
        bm25[i] = score
    return bm25
