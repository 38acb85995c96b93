"""Every compiled loop of the index: exact scores, building a block, searching a block.

Arrays in, arrays out. Whatever is defined in other files (k1, b, the scale of the stored tf) comes
as an argument, because numba's cache does not notice when other files change (see `compiler.py`).

Exact scores are the same floats as those of `bm25.reference_scores`: the same operations, words in
ascending order. Sums of impacts are upper bounds of scores: they rule rows out and decide nothing
else. docs/explanation/engine.md explains the search step by step.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import jit

TILE_ROWS = 65_536  # rows of a tile, at most: a position in it fits into two bytes
COLUMNS = 4_096  # a tile's sums are seen as a matrix of so many columns and an even number of lines
LARGEST_LIST_IMPACT = 127  # stands for a tf far above the length norm
LARGEST_ARRAY_IMPACT = 15  # the same in an impact array, where two impacts share a byte

_GROUPS = 256  # of columns
_LARGEST_SUM = 65_535
# Where the largest possible score is not in this range, units could be 0 or infinite.
_SMALLEST_SCORE, _LARGEST_SCORE = 1e-200, 1e200
_IGNORED_BITS = 6  # of a sum, where a rough threshold is enough
_NONESSENTIAL_SHARE = 0.15  # of the threshold, that nonessential words may add together
_SCAN_SHARE = 0.05  # searches among a smaller share of the rows scan them
_LARGEST_QUERY = 128  # words; for more, rounding up would make the upper bounds useless

Bags = tuple[NDArray[np.unsignedinteger], NDArray[np.uint16]]  # words_nk and tf_nk
Formula = tuple[float, float, float, float]  # k1, b, average length, scale of the stored tf
# For each word of the vocabulary the number of the query term, from 1 on, 0 if the query does not
# have it; and weight · idf of each term, with a 0 in front.
Terms = tuple[NDArray[np.uint16], NDArray[np.float64]]
# The words of several queries, one after the other: where those of each start, and the end; the
# words, each of which the vocabulary has; and their weights.
Queries = tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float64]]
# The arrays of a `Block`: starts, array_vt, positions, impacts, arrays_ab.
Postings = tuple[
    NDArray[np.uint32],
    NDArray[np.int32],
    NDArray[np.uint16],
    NDArray[np.uint8],
    NDArray[np.uint8],
]
RowScores = tuple[NDArray[np.int64], NDArray[np.float64]]
Flags = NDArray[np.bool_]
Sums = NDArray[np.uint16]


# Exact scores


@jit
def length_norm(length: int, formula: Formula) -> float:
    """Return k1 (1 - b + b |d| / average) for a sum of stored tf."""
    k1, b, average, scale = formula
    return k1 * (1 - b + b * (length / scale) / average)


@jit
def scan_rows(bags: Bags, rows: NDArray[np.int64], formula: Formula, terms: Terms) -> RowScores:
    """Return those of the given rows that share a word with the query, and their scores.

    Which words are shared is hard to predict. So they are collected without a branch: what does not
    count is overwritten by what comes next.
    """
    words_nk, tf_nk = bags
    term_v, weights = terms
    k1, _, _, scale = formula
    shared_weights = np.empty(tf_nk.shape[1], dtype=np.float64)
    shared_tf = np.empty(tf_nk.shape[1], dtype=np.uint16)
    hits = np.empty(len(rows), dtype=np.int64)
    scores = np.empty(len(rows), dtype=np.float64)
    n = 0
    for row in rows:
        length = 0
        n_shared = 0
        for slot in range(tf_nk.shape[1]):
            term, tf = term_v[words_nk[row, slot]], tf_nk[row, slot]
            length += tf
            shared_weights[n_shared] = weights[term]
            shared_tf[n_shared] = tf
            n_shared += (term > 0) & (tf > 0)  # a slot with tf 0 is empty
        norm = length_norm(length, formula)
        score = 0.0
        for i in range(n_shared):
            frequency = shared_tf[i] / scale
            score += shared_weights[i] * (frequency * (k1 + 1) / (frequency + norm))
        hits[n], scores[n] = row, score
        n += n_shared > 0
    return hits[:n], scores[:n]


@jit
def score_rows(
    bags: Bags, rows: NDArray[np.int64], formula: Formula, terms: Terms
) -> NDArray[np.float64]:
    """Score rows that share words with the query and are far apart in memory.

    All are read once before they are scored, so that waits for memory overlap.
    """
    words_nk, tf_nk = bags
    touched = 0
    for row in rows:  # a bag may reach into a second cache line
        touched += words_nk[row, 0] + tf_nk[row, -1]
    scores: NDArray[np.float64] = scan_rows(bags, rows, formula, terms)[1]
    scores[touched:0] = 0  # changes nothing; without a use, the compiler would drop the first loop
    return scores


# Building a block


@jit
def count_postings(bags: Bags, n_words: int, tile: int, n_tiles: int) -> NDArray[np.int32]:
    """Return how many rows of a tile have each word."""
    words_nk, tf_nk = bags
    count_v = np.zeros(n_words, dtype=np.int32)
    for row in range(tile, len(words_nk), n_tiles):
        for slot in range(words_nk.shape[1]):
            count_v[words_nk[row, slot]] += tf_nk[row, slot] > 0
    return count_v


@jit
def fill_postings(bags: Bags, formula: Formula, tile: int, postings: Postings) -> None:
    """Write every word of a tile's rows into its posting list or impact array, rounded up."""
    words_nk, tf_nk = bags
    starts, array_vt, positions, impacts, arrays_ab = postings
    scale = formula[3]
    n_tiles = array_vt.shape[1]
    half = arrays_ab.shape[1]  # a byte holds the impacts of positions p and p + half
    next_v = starts[tile:-1:n_tiles].astype(np.int64)
    for row in range(tile, len(words_nk), n_tiles):
        length = 0
        for slot in range(words_nk.shape[1]):
            length += tf_nk[row, slot]
        norm = length_norm(length, formula)
        for slot in range(words_nk.shape[1]):
            if tf_nk[row, slot] == 0:
                continue
            frequency = tf_nk[row, slot] / scale
            share = frequency / (frequency + norm)
            word, position = words_nk[row, slot], row // n_tiles
            array = array_vt[word, tile]
            if array >= 0:
                impact = np.uint8(np.ceil(share * LARGEST_ARRAY_IMPACT))
                arrays_ab[array, position % half] |= impact << (4 * (position // half))
            else:
                positions[next_v[word]] = position
                impacts[next_v[word]] = np.uint8(np.ceil(share * LARGEST_LIST_IMPACT))
                next_v[word] += 1


# Sums of values by row: filters and coverage


@jit
def sum_values(
    words: NDArray[np.int64], values: NDArray[np.float64], postings: Postings, n_rows: int
) -> NDArray[np.float64]:
    """Return for each row the sum of the values of those words that it has, in their order."""
    starts, array_vt, positions, _, arrays_ab = postings
    n_tiles, half = array_vt.shape[1], arrays_ab.shape[1]
    sums_n = np.empty(n_rows, dtype=np.float64)
    tile_sums = np.empty(2 * half, dtype=np.float64)
    for tile in range(n_tiles):
        tile_sums[:] = 0
        for i in range(len(words)):
            array = array_vt[words[i], tile]
            if array >= 0:
                _add_where_present(arrays_ab[array], values[i], tile_sums)
                continue
            entry = words[i] * n_tiles + tile
            for position in positions[starts[entry] : starts[entry + 1]]:
                tile_sums[position] += values[i]
        rows_of_tile = sums_n[tile::n_tiles]
        rows_of_tile[:] = tile_sums[: len(rows_of_tile)]
    return sums_n


@jit
def _add_where_present(pairs: NDArray[np.uint8], value: float, sums: NDArray[np.float64]) -> None:
    """Add the value wherever there is an impact; without a branch, the loops are vectorised."""
    second_half = sums[len(pairs) :]
    for i in range(len(pairs)):
        sums[i] += value * ((pairs[i] & 15) > 0)
    for i in range(len(pairs)):
        second_half[i] += value * ((pairs[i] >> 4) > 0)


# Searching a block


@jit
def search_block(
    queries: Queries,
    idf_v: NDArray[np.float64],
    largest_saturation: float,
    postings: Postings,
    allowed_n: Flags,
    allowed_share: float,
    first_row: int,
    n_rows: int,
    bags: Bags,
    formula: Formula,
    k: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """Return of each query how many rows were found, at most k, the rows, and their scores.

    A word adds at most `largest_saturation` times its weight · idf. An impact times the word's
    multiplier is that upper bound in whole units, so that a row's sum is never below its score.
    Rows whose sums reach an estimated threshold are collected. The k highest sums are scored
    exactly; rows with sums below their k-th score do not matter. If that is below the estimate,
    rows are collected again, with the k-th score as threshold.

    Where sums do not help, all allowed rows are scored.
    """
    n_queries = len(queries[0]) - 1
    bounded, units_q = _bound_words(queries, idf_v, largest_saturation)
    n_kept = min(k, n_rows)
    n_q = np.zeros(n_queries, dtype=np.int64)
    rows_qk = np.empty((n_queries, n_kept), dtype=np.int64)
    scores_qk = np.empty((n_queries, n_kept), dtype=np.float64)
    thresholds_q = np.zeros(n_queries, dtype=np.int64)
    is_pending_q = (units_q > 0) & (allowed_share >= _SCAN_SHARE)
    is_scanned_q = ~is_pending_q
    while is_pending_q.any():
        pending = np.flatnonzero(is_pending_q)
        collected_pn, sums_pn, n_p = _collect_rows(
            bounded, pending, thresholds_q, postings, allowed_n, allowed_share, first_row, k
        )
        for p, q in enumerate(pending):
            threshold = thresholds_q[q]
            if n_p[p] < k and threshold > 1:
                thresholds_q[q] = max(1, threshold // 2)
                continue
            collected, sums = collected_pn[p][: n_p[p]], sums_pn[p][: n_p[p]]
            terms = _number_words(queries, q, idf_v)
            is_high = sums >= _sum_reached_by(sums, k)
            rows = collected[is_high]
            scores = score_rows(bags, rows, formula, terms)
            needed = 1
            if len(collected) >= k:
                kth_score = np.partition(scores, len(scores) - k)[len(scores) - k]
                needed = max(1, int(kth_score / units_q[q] * (1 - 1e-9)))
            if needed < threshold:
                thresholds_q[q] = needed
                continue
            more = collected[~is_high & (sums >= needed)]
            more_scores = score_rows(bags, more, formula, terms)
            n_q[q] = _keep_best(
                np.concatenate((rows, more)),
                np.concatenate((scores, more_scores)),
                rows_qk[q],
                scores_qk[q],
            )
            is_pending_q[q] = False
            # Rows that only have words of weight 0 or less are not collected.
            is_complete = n_q[q] == n_kept and n_kept == k and scores_qk[q, -1] > 0
            is_scanned_q[q] = terms[1][1:].min() <= 0 and not is_complete
    allowed = np.empty(0, dtype=np.int64)
    for q in np.flatnonzero(is_scanned_q):
        if len(allowed) == 0:
            allowed = first_row + np.flatnonzero(allowed_n[first_row : first_row + n_rows])
        rows, scores = scan_rows(bags, allowed, formula, _number_words(queries, q, idf_v))
        n_q[q] = _keep_best(rows, scores, rows_qk[q], scores_qk[q])
    return n_q, rows_qk, scores_qk


@jit
def _number_words(queries: Queries, q: int, idf_v: NDArray[np.float64]) -> Terms:
    starts_q, words, weights = queries
    term_v = np.zeros(len(idf_v), dtype=np.uint16)
    term_weights = np.zeros(1 + starts_q[q + 1] - starts_q[q], dtype=np.float64)
    for i in range(starts_q[q], starts_q[q + 1]):
        term = 1 + i - starts_q[q]
        term_v[words[i]] = term
        term_weights[term] = weights[i] * idf_v[words[i]]
    return term_v, term_weights


@jit
def _bound_words(
    queries: Queries, idf_v: NDArray[np.float64], largest_saturation: float
) -> tuple[Any, NDArray[np.float64]]:
    """Return what rows are collected with, and the unit of each query's sums.

    The first are the words with positive weights, where those of each query start, and their
    multipliers in posting lists and in impact arrays. Where sums do not help, the unit is 0.
    """
    starts_q, words, weights = queries
    units_q = np.zeros(len(starts_q) - 1, dtype=np.float64)
    first_q = np.zeros(len(starts_q), dtype=np.int64)
    bounded_words = np.empty(len(words), dtype=np.int64)
    multipliers = np.empty(len(words), dtype=np.uint16)
    array_multipliers = np.empty(len(words), dtype=np.uint16)
    bounds = np.empty(len(words), dtype=np.float64)
    n = 0
    for q in range(len(units_q)):
        first = n
        for i in range(starts_q[q], starts_q[q + 1]):
            bounded_words[n] = words[i]
            bounds[n] = weights[i] * idf_v[words[i]] * largest_saturation
            n += bounds[n] > 0
        first_q[q + 1] = n
        largest_score = bounds[first:n].sum()
        is_few = n - first <= _LARGEST_QUERY
        if not is_few or not _SMALLEST_SCORE < largest_score < _LARGEST_SCORE:
            continue
        unit = largest_score / (_LARGEST_SUM - LARGEST_LIST_IMPACT * (n - first))
        multipliers[first:n] = np.ceil(bounds[first:n] / (unit * LARGEST_LIST_IMPACT))
        array_multipliers[first:n] = np.ceil(bounds[first:n] / (unit * LARGEST_ARRAY_IMPACT))
        units_q[q] = unit
    return (first_q, bounded_words[:n], multipliers[:n], array_multipliers[:n]), units_q


@jit
def _keep_best(
    rows: NDArray[np.int64],
    scores: NDArray[np.float64],
    best_rows: NDArray[np.int64],
    best_scores: NDArray[np.float64],
) -> int:
    """Write the best rows and their scores, best first, ties by row; return how many there are."""
    n = min(len(rows), len(best_rows))
    if len(rows) > 2 * n > 0:
        is_high = scores >= np.partition(scores, len(scores) - n)[len(scores) - n]
        rows, scores = rows[is_high], scores[is_high]
    order = np.argsort(-scores)
    for i in range(1, len(order)):
        if scores[order[i]] == scores[order[i - 1]]:
            by_row = np.argsort(rows)
            order = by_row[np.argsort(-scores[by_row], kind="mergesort")]
            break
    for i in range(n):
        best_rows[i], best_scores[i] = rows[order[i]], scores[order[i]]
    return n


@jit
def _collect_rows(
    bounded: Any,
    pending: NDArray[np.int64],
    thresholds_q: NDArray[np.int64],
    postings: Postings,
    allowed_n: Flags,
    allowed_share: float,
    first_row: int,
    k: int,
) -> tuple[NDArray[np.int64], Sums, NDArray[np.int64]]:
    """Return for each pending query the allowed rows whose sums reach its threshold, and the sums.

    The last value is how many they are. A threshold of 0 means: estimate one from the first tile,
    then raise it as rows are collected. A tile is searched for all queries while it is in the
    processor's cache.
    """
    first_q, words, multipliers, array_multipliers = bounded
    n_tiles, half = postings[1].shape[1], postings[4].shape[1]
    is_given_p = thresholds_q[pending] > 0
    tile_sums = np.empty(2 * half, dtype=np.uint16)
    columns = np.empty(COLUMNS, dtype=np.uint16)
    groups = np.empty(_GROUPS, dtype=np.uint16)
    all_groups = np.arange(_GROUPS).astype(np.uint16)
    high_groups = np.empty(_GROUPS, dtype=np.uint16)
    high_columns = np.empty(COLUMNS, dtype=np.uint16)
    high = np.empty(len(tile_sums), dtype=np.uint16)
    rows_pn = np.empty((len(pending), 1024), dtype=np.int64)
    sums_pn = np.empty((len(pending), 1024), dtype=np.uint16)
    n_p = np.zeros(len(pending), dtype=np.int64)
    is_nonessential = np.zeros(_LARGEST_QUERY, dtype=np.bool_)
    for tile in range(n_tiles):
        for p, q in enumerate(pending):
            part = slice(first_q[q], first_q[q + 1])
            query = (words[part], multipliers[part], array_multipliers[part])
            threshold, n = thresholds_q[q], n_p[p]
            left_out = _choose_nonessential(query[2], threshold, is_nonessential)
            _add_essential(query, is_nonessential, tile, postings, tile_sums)
            _find_maxima(tile_sums, columns)
            _find_maxima(columns, groups)
            if threshold == 0:
                expected = _expected_rows(k, 1, n_tiles) / allowed_share
                threshold = _sum_reached_by(columns, int(expected))
            needed = threshold - left_out
            candidates = _find_high(groups, all_groups, len(groups), needed, high_groups)
            candidates = _find_high(columns, candidates, len(groups), needed, high_columns)
            candidates = _find_high(tile_sums, candidates, len(columns), needed, high)
            _add_nonessential(query, is_nonessential, tile, postings, candidates, tile_sums)
            while n + len(candidates) > rows_pn.shape[1]:
                rows_pn = np.concatenate((rows_pn, np.empty_like(rows_pn)), axis=1)
                sums_pn = np.concatenate((sums_pn, np.empty_like(sums_pn)), axis=1)
            rows, sums = rows_pn[p], sums_pn[p]
            for position in candidates:
                row = first_row + position * n_tiles + tile
                rows[n], sums[n] = row, tile_sums[position]
                n += (tile_sums[position] >= threshold) & allowed_n[row]
            is_time = tile & (tile + 1) == 0  # after 1, 2, 4, 8 … tiles
            if is_time and not is_given_p[p] and n > _expected_rows(k, tile + 1, n_tiles):
                reached = _sum_reached_by(sums[:n], _expected_rows(k, tile + 1, n_tiles))
                threshold = max(threshold, reached)
            thresholds_q[q], n_p[p] = threshold, n
    return rows_pn, sums_pn, n_p


@jit
def _expected_rows(k: int, tiles: int, n_tiles: int) -> int:
    """Return how many of the k best rows to expect in some tiles, plus a margin for chance."""
    share = k * tiles / n_tiles
    return int(1.5 * share + 3 * share**0.5 + 3)


@jit
def _sum_reached_by(sums: Sums, k: int) -> int:
    """Return a value that at least k sums reach, and few more; 1 if fewer than k are above it."""
    counts = np.zeros((_LARGEST_SUM >> _IGNORED_BITS) + 1, dtype=np.int32)
    for value in sums:
        counts[value >> _IGNORED_BITS] += 1
    at = len(counts)
    n = 0
    while n < k and at > 0:
        at -= 1
        n += counts[at]
    return max(1, at << _IGNORED_BITS)


@jit
def _choose_nonessential(array_multipliers: Sums, threshold: int, is_nonessential: Flags) -> int:
    """Flag words that together add little; return the upper bound of what they add.

    As in MaxScore: their impact arrays are read only where the other words come near the threshold.
    """
    bound = 0
    is_nonessential[:] = False
    for i in np.argsort(array_multipliers):
        more = array_multipliers[i] * LARGEST_ARRAY_IMPACT
        if bound + more > _NONESSENTIAL_SHARE * threshold:
            break
        bound += more
        is_nonessential[i] = True
    return bound


@jit
def _add_nonessential(
    query: Any,
    is_nonessential: Flags,
    tile: int,
    postings: Postings,
    high: NDArray[np.uint16],
    sums: Sums,
) -> None:
    """Add nonessential words at some positions: word by word, so that waits for memory overlap."""
    words, _, array_multipliers = query
    array_vt, arrays_ab = postings[1], postings[4]
    half = arrays_ab.shape[1]
    for i in np.flatnonzero(is_nonessential):
        array = array_vt[words[i], tile]
        if array < 0:
            continue
        pairs = arrays_ab[array]
        for position in high:
            impact = (pairs[position % half] >> (4 * (position // half))) & LARGEST_ARRAY_IMPACT
            sums[position] += np.uint16(impact) * array_multipliers[i]


@jit
def _add_essential(
    query: Any, is_nonessential: Flags, tile: int, postings: Postings, sums: Sums
) -> None:
    """Set the sums of a tile: impact arrays of essential words, then all posting lists."""
    words, multipliers, array_multipliers = query
    starts, array_vt, positions, impacts, arrays_ab = postings
    n_tiles = array_vt.shape[1]
    arrays = np.full(len(words) + 3, len(arrays_ab) - 1)  # the last one is empty: padding
    factors = np.zeros(len(words) + 3, dtype=np.uint16)
    n = 0
    for i in range(len(words)):
        array = array_vt[words[i], tile]
        if array >= 0 and not is_nonessential[i]:
            arrays[n], factors[n] = array, array_multipliers[i]
            n += 1
    _set_to_four_arrays(arrays_ab, arrays, factors, sums)
    for at in range(4, n, 2):
        _add_two_arrays(arrays_ab, arrays[at : at + 2], factors[at : at + 2], sums)
    for i in range(len(words)):
        entry = words[i] * n_tiles + tile
        start, stop = starts[entry], starts[entry + 1]
        _add_list(positions[start:stop], impacts[start:stop], multipliers[i], sums)


@jit
def _add_list(
    positions: NDArray[np.uint16], impacts: NDArray[np.uint8], multiplier: np.uint16, sums: Sums
) -> None:
    for i in range(len(positions)):
        sums[positions[i]] += np.uint16(impacts[i]) * multiplier


@jit
def _set_to_four_arrays(
    arrays_ab: NDArray[np.uint8], arrays: NDArray[np.int64], factors: Sums, sums: Sums
) -> None:
    """Set the sums to those of four impact arrays, in one pass and without clearing them first."""
    first, second = arrays_ab[arrays[0]], arrays_ab[arrays[1]]
    third, fourth = arrays_ab[arrays[2]], arrays_ab[arrays[3]]
    a, b, c, d = factors[0], factors[1], factors[2], factors[3]
    half = len(first)
    second_half = sums[half:]
    for i in range(half):
        sums[i] = (
            np.uint16(first[i] & 15) * a
            + np.uint16(second[i] & 15) * b
            + np.uint16(third[i] & 15) * c
            + np.uint16(fourth[i] & 15) * d
        )
    for i in range(half):
        second_half[i] = (
            np.uint16(first[i] >> 4) * a
            + np.uint16(second[i] >> 4) * b
            + np.uint16(third[i] >> 4) * c
            + np.uint16(fourth[i] >> 4) * d
        )


@jit
def _add_two_arrays(
    arrays_ab: NDArray[np.uint8], arrays: NDArray[np.int64], factors: Sums, sums: Sums
) -> None:
    first, second = arrays_ab[arrays[0]], arrays_ab[arrays[1]]
    a, b = factors[0], factors[1]
    half = len(first)
    second_half = sums[half:]
    for i in range(half):
        sums[i] += np.uint16(first[i] & 15) * a + np.uint16(second[i] & 15) * b
    for i in range(half):
        second_half[i] += np.uint16(first[i] >> 4) * a + np.uint16(second[i] >> 4) * b


@jit
def _find_maxima(values: Sums, maxima: Sums) -> None:
    """Find the maximum of each column; line by line, so that the inner loop is vectorised."""
    values_lc = values.reshape(-1, len(maxima))
    maxima[:] = 0
    for line in range(values_lc.shape[0]):
        for column in range(values_lc.shape[1]):
            maxima[column] = max(maxima[column], values_lc[line, column])


@jit
def _find_high(
    values: Sums, candidates: NDArray[np.uint16], n_columns: int, threshold: int, high: Sums
) -> NDArray[np.uint16]:
    """Return the positions in the candidate columns whose values reach the threshold.

    They are written into `high` without a branch: what does not count is overwritten.
    """
    n_lines = len(values) // n_columns
    n = 0
    for column in candidates:
        for line in range(n_lines):
            position = line * n_columns + column
            high[n] = position
            n += values[position] >= threshold
    return high[:n]
