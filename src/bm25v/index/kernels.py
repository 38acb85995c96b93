"""Compiled: the search of a block.

Sums of codes are never below the score that they stand for: they rule rows out, and decide nothing
else. How that works is told in docs/engine.md.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import compiled
from bm25v.index.scoring import Counts, Floats, Found, Places, Words, score_far

TILE = 65_536  # places in a tile, at most: their numbers fit into two bytes
COLUMNS = 4_096  # sums are looked through in lines of so many; a tile has an even number of lines
FULL_CODE = 127  # in a list, for a saturation of k1 + 1, the most there is
FULL_STRIP_CODE = 15  # in a strip, where two codes share a byte

_GROUPS = 256  # of columns
_LARGEST_SUM = 65_535
_LOW_BITS = 6  # of a sum, which do not matter where one is only needed roughly
_LATE_SHARE = 0.15  # of the guess: strips that can add no more are looked up where it matters

Flags = NDArray[np.bool_]


@compiled
def best_rows(
    words: NDArray[np.int64],
    most: float,
    starts: NDArray[np.uint32],
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
    usable_share: float,
) -> Found:
    """Return rows and scores that include the k best of those that score above 0.

    A word can add `most` times its gain. Steps times codes add up, in units, to at least what a row
    scores. Rows of high sums are collected, down to a guess. The k highest sums are scored, and
    their k-th score tells how low sums may be that still matter. If that is below the guess, rows
    are collected again.
    """
    lists = (starts, strips_vt, places, codes, strips_sb)
    helpful = gains[1:] > 0
    words = words[helpful]
    bounds = gains[1:][helpful] * most
    unit = bounds.sum() / (_LARGEST_SUM - FULL_CODE * len(words))
    steps = np.ceil(bounds / (unit * FULL_CODE)).astype(np.uint16)
    strip_steps = np.ceil(bounds / (unit * FULL_STRIP_CODE)).astype(np.uint16)
    asked = (words, steps, strip_steps)
    guess = 0
    while True:
        found, sums, guess = _collect(asked, lists, usable_n, first_row, guess, k, usable_share)
        if len(found) < k and guess > 1:
            guess = max(1, guess // 2)
            continue
        low = _reached(sums, k)
        is_high = sums >= low
        rows = found[is_high]
        scores = score_far(rows, words_nk, tf_nk, average, place_v, gains)
        least = 1
        if len(found) >= k:
            threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
            least = max(1, int(threshold / unit * (1 - 1e-9)))
        if least >= guess:
            break
        guess = least
    more = found[~is_high & (sums >= least)]
    more_scores = score_far(more, words_nk, tf_nk, average, place_v, gains)
    return np.concatenate((rows, more)), np.concatenate((scores, more_scores))


@compiled
def _collect(
    asked: Any,
    lists: Any,
    usable_n: Flags,
    first_row: int,
    guess: int,
    k: int,
    usable_share: float,
) -> tuple[NDArray[np.int64], Counts, int]:
    """Return the usable rows whose sums reach the guess, the sums, and the guess (0: make one).

    A guess of our own is first made from one tile, then raised by what was found so far.
    """
    n_tiles = lists[1].shape[1]
    is_given = guess > 0
    tile_sums = np.empty(2 * lists[4].shape[1], dtype=np.uint16)
    columns = np.empty(COLUMNS, dtype=np.uint16)
    groups = np.empty(_GROUPS, dtype=np.uint16)
    high = np.empty(len(tile_sums), dtype=np.uint16)
    found = np.empty(1024, dtype=np.int64)
    sums = np.empty(1024, dtype=np.uint16)
    late = np.zeros(len(asked[0]), dtype=np.bool_)
    n = 0
    for tile in range(n_tiles):
        most_late = _put_off(asked[2], guess, late)
        _add_up(asked, late, tile, lists, tile_sums)
        _find_highest(tile_sums, columns)
        _find_highest(columns, groups)
        if guess == 0:
            guess = _reached(columns, int(_expected(k, 1, n_tiles) / usable_share))
        n_high = _find_high(tile_sums, columns, groups, guess - most_late, high)
        _add_late(asked, late, tile, lists, high[:n_high], tile_sums)
        for place in high[:n_high]:
            row = first_row + place * n_tiles + tile
            if tile_sums[place] >= guess and usable_n[row]:
                if n == len(found):
                    found = np.concatenate((found, np.empty_like(found)))
                    sums = np.concatenate((sums, np.empty_like(sums)))
                found[n], sums[n] = row, tile_sums[place]
                n += 1
        is_time = tile & (tile + 1) == 0  # after 1, 2, 4, 8 … tiles
        if is_time and not is_given and n > _expected(k, tile + 1, n_tiles):
            guess = max(guess, _reached(sums[:n], _expected(k, tile + 1, n_tiles)))
    return found[:n], sums[:n], guess


@compiled
def _expected(k: int, tiles: int, n_tiles: int) -> int:
    """Return how many rows of some tiles may matter for the k best of all; more, for chance."""
    share = k * tiles / n_tiles
    return int(1.5 * share + 3 * share**0.5 + 3)


@compiled
def _reached(sums: Counts, k: int) -> int:
    """Return a sum that at least k reach, and not many more; 1 if there are no k above it."""
    counts = np.zeros((_LARGEST_SUM >> _LOW_BITS) + 1, dtype=np.int32)
    for value in sums:
        counts[value >> _LOW_BITS] += 1
    at = len(counts)
    n = 0
    while n < k and at > 0:
        at -= 1
        n += counts[at]
    return max(1, at << _LOW_BITS)


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
def _add_late(
    asked: Any, late: Flags, tile: int, lists: Any, high: NDArray[np.uint16], sums: Counts
) -> None:
    """Add the words that were put off, each in a loop of its own: memory is waited for once."""
    words, _, strip_steps = asked
    strips_vt, strips_sb = lists[1], lists[4]
    half = strips_sb.shape[1]
    for i in np.flatnonzero(late):
        strip = strips_vt[words[i], tile]
        if strip < 0:
            continue
        codes = strips_sb[strip]
        for place in high:
            code = (codes[place % half] >> (4 * (place // half))) & FULL_STRIP_CODE
            sums[place] += np.uint16(code) * strip_steps[i]


@compiled
def _add_up(asked: Any, late: Flags, tile: int, lists: Any, sums: Counts) -> None:
    """Add all words of a tile up but those put off. The first strips need nothing to add to."""
    words, steps, strip_steps = asked
    starts, strips_vt, places, codes, strips_sb = lists
    n_tiles = strips_vt.shape[1]
    strips = np.full(len(words) + 3, len(strips_sb) - 1)  # the last one is empty, for filling up
    their_steps = np.zeros(len(words) + 3, dtype=np.uint16)
    n = 0
    for i in range(len(words)):
        strip = strips_vt[words[i], tile]
        if strip >= 0 and not late[i]:
            strips[n], their_steps[n] = strip, strip_steps[i]
            n += 1
    _set_four(strips_sb, strips, their_steps, sums)
    for at in range(4, n, 2):
        _add_two(strips_sb, strips[at : at + 2], their_steps[at : at + 2], sums)
    for i in range(len(words)):
        slot = words[i] * n_tiles + tile
        start, stop = starts[slot], starts[slot + 1]
        _add_list(places[start:stop], codes[start:stop], steps[i], sums)


@compiled
def _add_list(
    places: NDArray[np.uint16], codes: NDArray[np.uint8], step: np.uint16, sums: Counts
) -> None:
    for slot in range(len(places)):
        sums[places[slot]] += np.uint16(codes[slot]) * step


@compiled
def _set_four(
    strips_sb: NDArray[np.uint8], strips: NDArray[np.int64], steps: Counts, sums: Counts
) -> None:
    first, second = strips_sb[strips[0]], strips_sb[strips[1]]
    third, fourth = strips_sb[strips[2]], strips_sb[strips[3]]
    a, b, c, d = steps[0], steps[1], steps[2], steps[3]
    half = len(first)
    later = sums[half:]
    for place in range(half):
        sums[place] = (
            np.uint16(first[place] & 15) * a
            + np.uint16(second[place] & 15) * b
            + np.uint16(third[place] & 15) * c
            + np.uint16(fourth[place] & 15) * d
        )
    for place in range(half):
        later[place] = (
            np.uint16(first[place] >> 4) * a
            + np.uint16(second[place] >> 4) * b
            + np.uint16(third[place] >> 4) * c
            + np.uint16(fourth[place] >> 4) * d
        )


@compiled
def _add_two(
    strips_sb: NDArray[np.uint8], strips: NDArray[np.int64], steps: Counts, sums: Counts
) -> None:
    first, second = strips_sb[strips[0]], strips_sb[strips[1]]
    a, b = steps[0], steps[1]
    half = len(first)
    later = sums[half:]
    for place in range(half):
        sums[place] += np.uint16(first[place] & 15) * a + np.uint16(second[place] & 15) * b
    for place in range(half):
        later[place] += np.uint16(first[place] >> 4) * a + np.uint16(second[place] >> 4) * b


@compiled
def _find_highest(values: Counts, highest: Counts) -> None:
    """Find the highest value of each column; written like this, it runs on whole vectors."""
    values_lc = values.reshape(-1, len(highest))
    highest[:] = 0
    for line in range(values_lc.shape[0]):
        for column in range(values_lc.shape[1]):
            highest[column] = max(highest[column], values_lc[line, column])


@compiled
def _find_high(
    sums: Counts, columns: Counts, groups: Counts, bar: int, high: NDArray[np.uint16]
) -> int:
    """Write down the places whose sums reach a bar; return how many they are."""
    n = 0
    for group in range(len(groups)):
        if groups[group] < bar:
            continue
        for column in range(group, len(columns), len(groups)):
            if columns[column] < bar:
                continue
            for place in range(column, len(sums), len(columns)):
                if sums[place] >= bar:
                    high[n] = place
                    n += 1
    return n
