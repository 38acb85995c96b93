"""The scores of the second stage: cosines, and BM25 over full bags.

Dense vectors are float16 and cosines float32; BM25 is in float64. There are two implementations of
each, in numpy and compiled (`second_stage_kernels`, for which numba must be imported). Both add in
the same order, so that they return the same bits, whatever the machine and wherever a row is.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.index.bm25 import Bm25Parameters, Statistics, WeightedWords, saturation
from bm25v.index.searcher import QueryTerms
from bm25v.vocabulary.bag import LEVELS, SCALE, dequantise

_CHUNK_ROWS = 128  # converted to float32 at once: they fit into the cache
_TAIL = 16  # this many sums of a row are added one after the other
_SHORTEST = np.float32(1e-12)  # length of a vector; shorter ones get a cosine of about 0
_EXPONENT, _MOVED_BITS = np.float32(2.0**112), np.int32(-0x70002000)  # as in the kernels
_LARGEST = np.float32(2.0**32)  # squares of what is not finite would be larger
_EVERY_TF = np.arange(1 << 16, dtype=np.uint16)  # the levels of bags that store tf themselves


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
    `compiled` chooses the implementation: compiled is several times faster, once numba is imported,
    and reads float16.

    >>> dense = np.array([[3, 4], [0, 1]], dtype=np.float16)
    >>> cosines(dense, np.array([0, 1], dtype=np.float32), np.array([0, 1])).tolist()
    [0.800000011920929, 1.0]
    """
    query_e = normalise(query_e)
    dense_ne = dense_ne[:, : len(query_e)]
    if compiled:
        from bm25v.index import second_stage_kernels

        halves_ne = dense_ne.view(np.int16)
        compiled_c: NDArray[np.float32] = second_stage_kernels.cosines(halves_ne, query_e, rows)[0]
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


class BagScores(NamedTuple):
    """How bags match a query: their BM25 scores, and the IDF mass of the words they share."""

    bm25: NDArray[np.float64]
    shared_mass: NDArray[np.float64]  # of the words with a weight above 0


def score_full_bags(
    full_bags: NDArray[Any],
    rows: NDArray[np.int64],
    query: WeightedWords,
    statistics: Statistics,
    parameters: Bm25Parameters,
    *,
    compiled: bool = False,
) -> BagScores:
    """Return the score of each of the given rows, that of `bm25.reference_scores` or 0.

    `full_bags` has the fields words and levels. `compiled` chooses the implementation, as in
    `cosines`.
    """
    terms = QueryTerms.prepare(query, statistics)
    words_nk, levels_nk = full_bags["words"], full_bags["levels"]
    if compiled:
        formula = (terms, statistics, parameters)
        return _score_compiled(words_nk, levels_nk, rows, LEVELS, *formula)
    bm25, shared_mass = np.zeros(len(rows)), np.zeros(len(rows))
    for start in range(0, len(rows), _CHUNK_ROWS):
        chunk = slice(start, start + _CHUNK_ROWS)
        words_ck, tf_ck = words_nk[rows[chunk]], LEVELS[levels_nk[rows[chunk]]]
        bm25[chunk], shared_mass[chunk] = score_bags(words_ck, tf_ck, terms, statistics, parameters)
    return BagScores(bm25, shared_mass)


def score_bags(
    words_ck: NDArray[np.unsignedinteger],
    tf_ck: NDArray[np.uint16],
    terms: QueryTerms,
    statistics: Statistics,
    parameters: Bm25Parameters,
    *,
    compiled: bool = False,
) -> BagScores:
    """Return the score of each of some bags; a slot with tf 0 is empty.

    `compiled` chooses the implementation, as in `cosines`.
    """
    if compiled:
        formula = (terms, statistics, parameters)
        return _score_compiled(words_ck, tf_ck, np.arange(len(words_ck)), _EVERY_TF, *formula)
    term_v = np.append(terms.term_v, np.uint16(0))  # the last is for words that do not exist
    kind = words_ck.dtype
    last = kind.type(min(statistics.n_words, np.iinfo(kind).max))
    term_ck = term_v[np.minimum(words_ck, last)]
    shared = np.flatnonzero((term_ck > 0) & (tf_ck > 0))
    at = shared // words_ck.shape[1]
    norms = statistics.length_norms(tf_ck.sum(axis=1, dtype=np.int64), parameters)
    weights = terms.term_weights[term_ck.ravel()[shared]]
    values = weights * saturation(dequantise(tf_ck.ravel()[shared]), norms[at], parameters)
    bm25 = np.bincount(at, values, minlength=len(words_ck))  # adds in this order
    shared_mass = np.bincount(at, np.maximum(weights, 0), minlength=len(words_ck))
    return BagScores(bm25.astype(np.float64), shared_mass.astype(np.float64))


def _score_compiled(
    words_nk: NDArray[np.unsignedinteger],
    levels_nk: NDArray[np.unsignedinteger],
    rows: NDArray[np.int64],
    stored_tf: NDArray[np.uint16],
    terms: QueryTerms,
    statistics: Statistics,
    parameters: Bm25Parameters,
) -> BagScores:
    from bm25v.index import second_stage_kernels

    formula = (parameters.k1, parameters.b, statistics.average_or_one, SCALE)
    is_term_v = np.zeros(statistics.n_words + 1, dtype=np.uint8)
    is_term_v[terms.words] = 1
    tables = (stored_tf, dequantise(stored_tf), formula, is_term_v, *terms[1:])
    scores = second_stage_kernels.score_bags(words_nk, levels_nk, rows, *tables)
    return BagScores(*scores[:2])
