"""Compiled loops over bags and postings.

Scores are added in the order of `reference`, word after word, so they are the same floats.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.bags import SCALE
from bm25v.compiler import compiled
from bm25v.index.reference import K1, B

TILE = 65_536  # places in a tile, at most: their numbers fit into two bytes
COLUMNS = 4_096  # sums are looked through in lines of so many; a tile has an even number of lines
FULL_CODE = 127  # in a list, for a saturation of k1 + 1, the most there is
FULL_STRIP_CODE = 15  # in a strip, where two codes share a byte

_LARGEST_SUM = 65_535
_LATE_SHARE = 0.25  # of the guess: strips that can add no more are looked up where it matters

Words = NDArray[np.unsignedinteger]
Counts = NDArray[np.uint16]
Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Places = NDArray[np.uint16]  # of each word in the query, from 1 on; 0 if it is not asked for
Found = tuple[NDArray[np.int64], Floats]  # rows and their scores


@compiled
def length_norm(tf_nk: Counts, row: int, average: float) -> float:
    """Return k1 (1 - b + b |d| / average) of a row."""
    length = 0
    for slot in range(tf_nk.shape[1]):
        length += tf_nk[row, slot]
    return K1 * (1 - B + B * (length / SCALE) / average)


@compiled
def exact_score(
    words_nk: Words, tf_nk: Counts, row: int, average: float, place_v: Places, gains: Floats
) -> float:
    """Return a row's BM25 score; `gains` are weight · idf of each place."""
    norm = length_norm(tf_nk, row, average)
    score = 0.0
    for slot in range(tf_nk.shape[1]):
        place = place_v[words_nk[row, slot]]
        if place > 0:
            frequency = tf_nk[row, slot] / SCALE
            score += gains[place] * (frequency * (K1 + 1) / (frequency + norm))
    return score


@compiled
def first_place(words_nk: Words, tf_nk: Counts, row: int, place_v: Places) -> int:
    """Return the lowest place among the row's words, or 0 if none of them is asked for."""
    lowest = 0
    for slot in range(tf_nk.shape[1]):
        place = place_v[words_nk[row, slot]]
        if place > 0 and tf_nk[row, slot] > 0 and (lowest == 0 or place < lowest):
            lowest = place
    return lowest


@compiled
def scan(
    words_nk: Words,
    tf_nk: Counts,
    rows: NDArray[np.int64],
    average: float,
    place_v: Places,
    gains: Floats,
) -> Found:
    """Return those of the given rows that have a word that is asked for, and their scores."""
    found = np.empty(len(rows), dtype=np.int64)
    scores = np.empty(len(rows), dtype=np.float64)
    n = 0
    for row in rows:
        if first_place(words_nk, tf_nk, row, place_v) > 0:
            found[n] = row
            scores[n] = exact_score(words_nk, tf_nk, row, average, place_v, gains)
            n += 1
    return found[:n], scores[:n]


@compiled
def count_words(words_nk: Words, tf_nk: Counts, n_words: int, n_tiles: int) -> NDArray[np.int32]:
    """Return how many rows of each tile have each word."""
    count_tv = np.zeros((n_tiles, n_words), dtype=np.int32)
    for tile in range(n_tiles):
        for row in range(tile, len(words_nk), n_tiles):
            for slot in range(words_nk.shape[1]):
                if tf_nk[row, slot] > 0:
                    count_tv[tile, words_nk[row, slot]] += 1
    return count_tv


@compiled
def fill_postings(
    words_nk: Words,
    tf_nk: Counts,
    average: float,
    starts_vt: NDArray[np.uint32],
    strips_vt: NDArray[np.int32],
    places: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    strips_sb: NDArray[np.uint8],
) -> None:
    """Put every word of every row where its list or strip is; codes are rounded up."""
    n_words, n_tiles = strips_vt.shape
    half = strips_sb.shape[1]  # a byte holds the codes of a place and of the one half a tile on
    free_v = np.empty(n_words, dtype=np.int64)
    for tile in range(n_tiles):
        free_v[:] = starts_vt[:n_words, tile]
        for row in range(tile, len(words_nk), n_tiles):
            norm = length_norm(tf_nk, row, average)
            for slot in range(words_nk.shape[1]):
                if tf_nk[row, slot] == 0:
                    continue
                frequency = tf_nk[row, slot] / SCALE
                share = frequency / (frequency + norm)
                word, place = words_nk[row, slot], row // n_tiles
                strip = strips_vt[word, tile]
                if strip >= 0:
                    code = np.uint8(np.ceil(share * FULL_STRIP_CODE))
                    strips_sb[strip, place % half] |= code << (4 * (place // half))
                else:
                    places[free_v[word]] = place
                    codes[free_v[word]] = np.uint8(np.ceil(share * FULL_CODE))
                    free_v[word] += 1


@compiled
def best_rows(
    words: NDArray[np.int64],
    most: float,
    starts_vt: NDArray[np.uint32],
    strips_vt: NDArray[np.int32],
    places: NDArray[np.uint16],
    codes: NDArray[np.uint8],
    strips_sb: NDArray[np.uint8],
    usable_n: Flags,
    first_row: int,
    words_nk: Words,
    tf_nk: Counts,
    average: float,
    place_v: Places,
    gains: Floats,
    k: int,
    sample: int,
) -> Found:
    """Return rows and scores that include the k best of those that score above 0.

    A word can add `most` times its gain. Steps times codes add up, in units, to at least what a row
    scores. Rows of high sums are collected, down to a guess: the sum that so many (`sample`) of
    the first tile reach. The k highest sums are scored, and their k-th score tells how low sums
    may be that still matter. If that is below the guess, rows are collected again.
    """
    lists = (starts_vt, strips_vt, places, codes, strips_sb)
    helpful = gains[1:] > 0
    words = words[helpful]
    bounds = gains[1:][helpful] * most
    unit = bounds.sum() / (_LARGEST_SUM - FULL_CODE * len(words))
    steps = np.ceil(bounds / (unit * FULL_CODE)).astype(np.uint16)
    strip_steps = np.ceil(bounds / (unit * FULL_STRIP_CODE)).astype(np.uint16)
    guess = 0
    while True:
        found, sums, guess = _collect(
            words, steps, strip_steps, lists, usable_n, first_row, guess, sample
        )
        if len(found) < k and guess > 1:
            guess = max(1, guess // 2)
            continue
        low = 1
        if len(found) >= k:
            low = int(np.partition(sums, len(sums) - k)[len(sums) - k])
        is_high = sums >= low
        rows = found[is_high]
        scores = _scores(rows, words_nk, tf_nk, average, place_v, gains)
        least = 1
        if len(found) >= k:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            least = max(1, int(threshold / unit * (1 - 1e-9)))
        if least >= guess:
            break
        guess = least
    more = found[~is_high & (sums >= least)]
    more_scores = _scores(more, words_nk, tf_nk, average, place_v, gains)
    return np.concatenate((rows, more)), np.concatenate((scores, more_scores))


@compiled
def _collect(
    words: NDArray[np.int64],
    steps: Counts,
    strip_steps: Counts,
    lists: Any,
    usable_n: Flags,
    first_row: int,
    guess: int,
    sample: int,
) -> tuple[NDArray[np.int64], Counts, int]:
    """Return the usable rows whose sums reach the guess, the sums, and the guess (0: make one)."""
    n_tiles = lists[1].shape[1]
    tile_sums = np.empty(2 * lists[4].shape[1], dtype=np.uint16)
    highest = np.empty(COLUMNS, dtype=np.uint16)
    found = np.empty(1024, dtype=np.int64)
    sums = np.empty(1024, dtype=np.uint16)
    late = np.zeros(len(words), dtype=np.bool_)
    most_late = 0
    n = 0
    for tile in range(n_tiles):
        if guess > 0:
            most_late = _put_off(strip_steps, guess, late)
        _add_up(words, steps, strip_steps, late, tile, lists, tile_sums)
        _find_highest(tile_sums, highest)
        if guess == 0:
            last = max(0, COLUMNS - sample)
            guess = max(1, int(np.partition(highest, last)[last]))
        for column in range(COLUMNS):
            if highest[column] + most_late < guess:
                continue
            for place in range(column, len(tile_sums), COLUMNS):
                if tile_sums[place] + most_late < guess:
                    continue
                total = tile_sums[place] + _late_sum(words, strip_steps, late, tile, lists, place)
                row = first_row + place * n_tiles + tile
                if total < guess or not usable_n[row]:
                    continue
                if n == len(found):
                    found = np.concatenate((found, np.empty_like(found)))
                    sums = np.concatenate((sums, np.empty_like(sums)))
                found[n], sums[n] = row, total
                n += 1
    return found[:n], sums[:n], guess


@compiled
def _put_off(strip_steps: Counts, guess: int, late: Flags) -> int:
    """Choose words that may be added later, to few rows; return the most that they can add."""
    most = 0
    late[:] = False
    for i in np.argsort(strip_steps):
        if most + strip_steps[i] * FULL_STRIP_CODE > _LATE_SHARE * guess:
            break
        most += strip_steps[i] * FULL_STRIP_CODE
        late[i] = True
    return most


@compiled
def _late_sum(
    words: NDArray[np.int64], strip_steps: Counts, late: Flags, tile: int, lists: Any, place: int
) -> int:
    """Return what the strips that were put off add at one place."""
    strips_vt, strips_sb = lists[1], lists[4]
    half = strips_sb.shape[1]
    total = 0
    for i in range(len(words)):
        strip = strips_vt[words[i], tile]
        if late[i] and strip >= 0:
            code = (strips_sb[strip, place % half] >> (4 * (place // half))) & FULL_STRIP_CODE
            total += code * strip_steps[i]
    return total


@compiled
def _add_up(
    words: NDArray[np.int64],
    steps: Counts,
    strip_steps: Counts,
    late: Flags,
    tile: int,
    lists: Any,
    sums: Counts,
) -> None:
    """Add all words of a tile up, strips four at a time: that saves reading and writing sums."""
    starts_vt, strips_vt, places, codes, strips_sb = lists
    sums[:] = 0
    strips = np.full(len(words) + 3, len(strips_sb) - 1)  # the last one is empty, for filling up
    their_steps = np.zeros(len(words) + 3, dtype=np.uint16)
    n = 0
    for i in range(len(words)):
        strip = strips_vt[words[i], tile]
        if strip >= 0 and not late[i]:
            strips[n], their_steps[n] = strip, strip_steps[i]
            n += 1
        start, stop = starts_vt[words[i], tile], starts_vt[words[i] + 1, tile]
        _add_list(places[start:stop], codes[start:stop], steps[i], sums)
    for i in range(0, n, 4):
        _add_strips(
            strips_sb[strips[i]],
            strips_sb[strips[i + 1]],
            strips_sb[strips[i + 2]],
            strips_sb[strips[i + 3]],
            their_steps[i : i + 4],
            sums,
        )


@compiled
def _add_list(
    places: NDArray[np.uint16], codes: NDArray[np.uint8], step: np.uint16, sums: Counts
) -> None:
    for slot in range(len(places)):
        sums[places[slot]] += np.uint16(codes[slot]) * step


@compiled
def _add_strips(
    first: NDArray[np.uint8],
    second: NDArray[np.uint8],
    third: NDArray[np.uint8],
    fourth: NDArray[np.uint8],
    steps: Counts,
    sums: Counts,
) -> None:
    a, b, c, d = steps[0], steps[1], steps[2], steps[3]
    half = len(first)
    later = sums[half:]
    for place in range(half):
        sums[place] += (
            np.uint16(first[place] & 15) * a
            + np.uint16(second[place] & 15) * b
            + np.uint16(third[place] & 15) * c
            + np.uint16(fourth[place] & 15) * d
        )
    for place in range(half):
        later[place] += (
            np.uint16(first[place] >> 4) * a
            + np.uint16(second[place] >> 4) * b
            + np.uint16(third[place] >> 4) * c
            + np.uint16(fourth[place] >> 4) * d
        )


@compiled
def _find_highest(sums: Counts, highest: Counts) -> None:
    """Find the highest sum of each column; written like this, it runs on whole vectors."""
    sums_lc = sums.reshape(-1, COLUMNS)
    highest[:] = 0
    for line in range(sums_lc.shape[0]):
        for column in range(sums_lc.shape[1]):
            highest[column] = max(highest[column], sums_lc[line, column])


@compiled
def _scores(
    rows: NDArray[np.int64],
    words_nk: Words,
    tf_nk: Counts,
    average: float,
    place_v: Places,
    gains: Floats,
) -> Floats:
    """Score rows that are far apart in memory: touched first, they arrive side by side."""
    touched = 0
    for row in rows:
        touched += tf_nk[row, 0]
    scores = np.empty(len(rows), dtype=np.float64)
    for i in range(len(rows)):
        scores[i] = exact_score(words_nk, tf_nk, rows[i], average, place_v, gains)
    scores[touched:0] = 0  # changes nothing; unused, the sum would not be computed
    return scores
