"""The scores of the second stage: cosines, and BM25 over full bags.

Dense vectors are float16 and cosines float32; BM25 is in float64. There are two implementations of
each, in numpy and compiled (`second_stage_kernels`, for which numba must be imported). Both add in
the same order, so that they return the same bits, whatever the machine and wherever a row is.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords, saturation
from bm25v.index.searcher import QueryTerms
from bm25v.vocabulary.bag import LEVELS, SCALE, dequantise

# With these, every saturation is 1: a score is the IDF mass of the words that a bag shares.
PRESENCE = Bm25Parameters(k1=0.0)

_CHUNK_ROWS = 128  # converted to float32 at once: they fit into the cache
_TAIL = 16  # this many sums of a row are added one after the other
_SHORTEST = np.float32(1e-12)  # length of a vector; shorter ones get a cosine of about 0
_EXPONENT, _MOVED_BITS = np.float32(2.0**112), np.int32(-0x70002000)  # 0x8FFFE000
_LARGEST = np.float32(2.0**32)  # squares of what is not finite would be larger


def cosines(
    dense_ne: NDArray[np.floating],
    query_e: NDArray[np.float32],
    rows: NDArray[np.int64],
    *,
    compiled: bool = False,
) -> NDArray[np.float32]:
    """Return the cosine between the query and each of the given rows, from -1 to 1.

    A query that is shorter than the rows is compared with as many of their first values: those of
    the vocabulary's own backbone, if the gallery has dense vectors of two.
    `compiled` chooses the implementation: compiled is several times faster, once numba is imported.
    It is used only if the processor can convert float16.

    >>> dense = np.array([[3, 4], [0, 1]], dtype=np.float16)
    >>> cosines(dense, np.array([0, 1], dtype=np.float32), np.array([0, 1])).tolist()
    [0.800000011920929, 1.0]
    """
    query_e = normalise(query_e)
    dense_ne = dense_ne[:, : len(query_e)]
    if compiled:
        from bm25v.index import second_stage_kernels as kernels

        if kernels.CONVERTS_HALVES:
            compiled_c: NDArray[np.float32]
            compiled_c = kernels.cosines(dense_ne.view(np.int16), query_e, rows)
            return compiled_c
    cosines_c = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        stored_ne = dense_ne[rows[chunk]]
        chunk_ne = _to_float32(stored_ne)
        dots = _sum_rows(chunk_ne * query_e)
        squares = _sum_rows(np.square(chunk_ne, out=chunk_ne))
        cosines_c[chunk] = np.clip(dots / np.maximum(np.sqrt(squares), _SHORTEST), -1, 1)
        if squares.max() >= _LARGEST:  # a row with infinity or NaN gets NaN
            cosines_c[chunk][~np.isfinite(stored_ne).all(axis=1)] = np.nan
    return cosines_c


def _to_float32(halves_ne: NDArray[np.floating]) -> NDArray[np.float32]:
    """Return a copy; float16 several times as fast as by numpy, 2¹⁶ or more if not finite.

    The bits of a float16, moved to where a float32 has them, are the number divided by 2¹¹².
    """
    if halves_ne.dtype != np.float16:
        return halves_ne.astype(np.float32)
    bits_ne = halves_ne.view(np.int16).astype(np.int32)
    bits_ne <<= 13
    bits_ne &= _MOVED_BITS
    floats_ne = bits_ne.view(np.float32)
    floats_ne *= _EXPONENT
    return floats_ne


def _sum_rows(values_ne: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the sum of each row, added in the order of the compiled `cosines`; overwrites them.

    The four quarters of a row are added to each other, then halves until `_TAIL` sums are left,
    then those from left to right. numpy's own sums have an order that depends on the machine.
    """
    n = values_ne.shape[1] // 4
    first, second, third, fourth = (values_ne[:, i * n : (i + 1) * n] for i in range(4))
    first += second
    third += fourth
    first += third
    rest = values_ne[:, 4 * n :]  # if the width is not a multiple of 4
    sums_ne = np.hstack([first, rest]) if rest.size else first
    left = sums_ne.shape[1]
    while left > _TAIL:
        half = (left + 1) // 2
        sums_ne[:, : left - half] += sums_ne[:, half:left]
        left = half
    sums_n = np.zeros(len(values_ne), dtype=np.float32)
    for column in range(left):
        sums_n += sums_ne[:, column]
    return sums_n


def score_full_bags(
    full_bags: NDArray[Any],
    rows: NDArray[np.int64],
    query: WeightedWords,
    statistics: Statistics,
    parameters: Bm25Parameters,
    *,
    compiled: bool = False,
) -> NDArray[np.float64]:
    """Return the score of each of the given rows, that of `bm25.reference_scores` or 0.

    `full_bags` has the fields words and levels. `compiled` chooses the implementation, as in
    `cosines`.
    """
    if compiled:
        from bm25v.index import second_stage_kernels as kernels

        bags_nb = np.ascontiguousarray(full_bags).view((np.uint8, full_bags.dtype.itemsize))
        words = full_bags.dtype["words"]
        scores: NDArray[np.float64]
        scores = kernels.score_full_bags(
            bags_nb,
            rows,
            words.shape[0],
            np.empty(0, words.base),
            query.words,
            query.weights,
            statistics.idf_v,
            LEVELS,
            (parameters.k1, parameters.b, statistics.average_or_one, SCALE),
        )
        return scores
    words_nk, levels_nk = full_bags["words"], full_bags["levels"]
    scores = np.zeros(len(rows))
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        words_ck, tf_ck = words_nk[rows[chunk]], LEVELS[levels_nk[rows[chunk]]]
        scores[chunk] = score_bags(words_ck, tf_ck, query, statistics, parameters)
    return scores


def score_bags(
    words_ck: NDArray[np.unsignedinteger],
    tf_ck: NDArray[np.uint16],
    query: WeightedWords,
    statistics: Statistics,
    parameters: Bm25Parameters,
) -> NDArray[np.float64]:
    """Return the score of each of some bags; a slot with tf 0 is empty."""
    terms = QueryTerms.prepare(query, statistics)
    term_v = np.append(terms.term_v, np.uint16(0))  # the last is for words that do not exist
    kind = words_ck.dtype
    last = kind.type(min(statistics.n_words, np.iinfo(kind).max))
    term_ck = term_v[np.minimum(words_ck, last)]
    shared = np.flatnonzero((term_ck > 0) & (tf_ck > 0))
    at = shared // words_ck.shape[1]
    norms = statistics.length_norms(tf_ck.sum(axis=1, dtype=np.int64), parameters)
    weights = terms.term_weights[term_ck.ravel()[shared]]
    values = weights * saturation(dequantise(tf_ck.ravel()[shared]), norms[at], parameters)
    scores = np.bincount(at, values, minlength=len(words_ck))  # adds in this order
    return scores.astype(np.float64)
