"""Compiled: bags become the lists and strips of a block."""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import compiled
from bm25v.index.kernels import FULL_CODE, FULL_STRIP_CODE
from bm25v.index.scoring import Counts, Words, length_norm
from bm25v.vocabulary.bag import SCALE


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
    starts: NDArray[np.uint32],
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
        free_v[:] = starts[tile:-1:n_tiles]
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
