"""Candidates and dense vectors in, their order out.

Rows are float16 and dots are float32; `kernels` is the same loop compiled.
Not this room's job: finding candidates by words.
"""

import numpy as np
from numpy.typing import NDArray

_BLOCK_ROWS = 65_536


def cosines(
    dense_ne: NDArray[np.float16],
    query_e: NDArray[np.float32],
    rows: NDArray[np.int64],
    *,
    compiled: bool = False,
) -> NDArray[np.float32]:
    """Return the cosine between the query and each of the given rows.

    Row by row, so that equal vectors get equal scores wherever they stand: a matrix product would
    round them differently. Compiled it is several times faster, once the compiler is loaded.

    >>> dense = np.array([[3, 4], [0, 1]], dtype=np.float16)
    >>> cosines(dense, np.array([0, 1], dtype=np.float32), np.array([0, 1])).tolist()
    [0.800000011920929, 1.0]
    """
    query_e = query_e / np.float32(max(float(np.linalg.norm(query_e)), 1e-12))
    if compiled:
        from bm25v.ranking import kernels

        scores: NDArray[np.float32] = kernels.cosines(dense_ne.view(np.uint16), query_e, rows)
        return scores
    found = np.empty(len(rows), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK_ROWS):
        block = slice(start, start + _BLOCK_ROWS)
        block_ne = dense_ne[rows[block]].astype(np.float32)
        lengths = np.sqrt(np.vecdot(block_ne, block_ne))
        found[block] = np.vecdot(block_ne, query_e) / np.maximum(lengths, 1e-12)
    return found


def top(rows: NDArray[np.int64], scores: NDArray[np.floating], k: int) -> NDArray[np.intp]:
    """Return where the k best are, best first, ties to the lower row.

    >>> top(np.array([7, 8, 9]), np.array([0.5, 0.9, 0.5]), k=2).tolist()
    [1, 0]
    """
    if len(rows) <= 4 * k:  # to sort few is faster than to choose first
        return np.lexsort((rows, -scores))[:k]
    threshold = np.partition(scores, len(scores) - k)[len(scores) - k]
    places = np.flatnonzero(scores >= threshold)  # all that tie with the last one
    order = np.lexsort((rows[places], -scores[places]))[:k]
    return places[order]
