"""Compiled: which rows of a block have which words, added up."""

import numpy as np
from numpy.typing import NDArray

from bm25v.compiler import compiled

Floats = NDArray[np.float64]


@compiled
def sums(
    words: NDArray[np.int64],
    values: Floats,
    starts: NDArray[np.uint32],
    strips_vt: NDArray[np.int32],
    places: NDArray[np.uint16],
    strips_sb: NDArray[np.uint8],
    n_rows: int,
) -> Floats:
    """Return for each row the sum of the values of those words that it has, in their order."""
    n_tiles, half = strips_vt.shape[1], strips_sb.shape[1]
    found = np.empty(n_rows, dtype=np.float64)
    tile_sums = np.empty(2 * half, dtype=np.float64)
    for tile in range(n_tiles):
        tile_sums[:] = 0
        for i in range(len(words)):
            strip = strips_vt[words[i], tile]
            if strip >= 0:
                _add_strip(strips_sb[strip], values[i], tile_sums)
                continue
            slot = words[i] * n_tiles + tile
            for place in places[starts[slot] : starts[slot + 1]]:
                tile_sums[place] += values[i]
        own = found[tile::n_tiles]
        own[:] = tile_sums[: len(own)]
    return found


@compiled
def _add_strip(pairs: NDArray[np.uint8], value: float, sums: Floats) -> None:
    """Add the value wherever there is a code; written like this, it runs on whole vectors."""
    later = sums[len(pairs) :]
    for place in range(len(pairs)):
        sums[place] += value * ((pairs[place] & 15) > 0)
    for place in range(len(pairs)):
        later[place] += value * ((pairs[place] >> 4) > 0)
