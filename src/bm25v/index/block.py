"""The inverted index of a range of rows: built once from their bags, never changed.

A posting says that a word is in a row. It holds the row's position and an *impact*: the word's
saturation in that row, rounded up to a few bits. Sums of impacts are upper bounds of scores. They
rule most rows out; the rows that remain are scored from their bags.

Rows are assigned to *tiles* round-robin, so that each tile is a fair sample of all rows. In each
tile a word has either a *posting list* (positions and impacts of the rows that have the word) or,
if many rows have it, an *impact array* (one impact for every position, 0 where the word is absent).
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v.index import kernels
from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import SCALE

# An impact array costs as much as a posting list with this share of the tile's rows.
ARRAY_SHARE = 1 / 24
MAX_TILE_ROWS = kernels.TILE_ROWS


@dataclass(frozen=True)
class Block:
    """Posting lists and impact arrays of `n_rows` rows from `first_row` on."""

    first_row: int
    n_rows: int
    parameters: Bm25Parameters
    average_length: float  # that the impacts were computed with
    starts: NDArray[np.uint32]  # of the posting list of each word in each tile, and the end
    array_vt: NDArray[np.int32]  # number of the word's impact array in a tile, or -1
    positions: NDArray[np.uint16]  # position p of tile t is row first_row + p · tiles + t
    impacts: NDArray[np.uint8]
    arrays_ab: NDArray[np.uint8]  # impact arrays, two positions per byte; the last one is empty

    @classmethod
    def build(
        cls,
        bags: kernels.Bags,
        first_row: int,
        statistics: Statistics,
        parameters: Bm25Parameters,
    ) -> "Block":
        """Invert the bags from `first_row` on; a slot with tf 0 is empty."""
        words_nk, tf_nk = (part[first_row:] for part in bags)
        n_words, n_tiles = statistics.n_words, max(1, -(-len(words_nk) // MAX_TILE_ROWS))
        lines = -(-len(words_nk) // (n_tiles * kernels.COLUMNS))
        half = max(1, -(-lines // 2)) * kernels.COLUMNS
        formula = formula_values(parameters, statistics.average_or_one)

        def count(tile: int) -> NDArray[np.int32]:
            counts: NDArray[np.int32]
            counts = kernels.count_postings((words_nk, tf_nk), n_words, tile, n_tiles)
            return counts

        def fill(tile: int) -> None:
            kernels.fill_postings((words_nk, tf_nk), formula, tile, block._postings)

        with ThreadPoolExecutor(available_cpus()) as pool:
            # A word's postings in one tile lie beside those in the next: a search reads forwards.
            count_vt = np.stack(list(pool.map(count, range(n_tiles))), axis=1)
            has_array_vt = count_vt > ARRAY_SHARE * 2 * half
            number_vt = np.cumsum(has_array_vt, dtype=np.int32).reshape(count_vt.shape) - 1
            listed_vt = np.where(has_array_vt, 0, count_vt)
            starts = np.zeros(listed_vt.size + 1, dtype=np.uint32)
            np.cumsum(listed_vt, out=starts[1:])
            n_listed, n_arrays = int(starts[-1]), int(has_array_vt.sum())
            block = cls(
                first_row,
                len(words_nk),
                parameters,
                statistics.average_or_one,
                starts,
                np.where(has_array_vt, number_vt, np.int32(-1)),
                np.empty(n_listed, dtype=np.uint16),
                np.empty(n_listed, dtype=np.uint8),
                np.zeros((n_arrays + 1, half), dtype=np.uint8),
            )
            list(pool.map(fill, range(n_tiles)))
        return block

    @property
    def end(self) -> int:
        return self.first_row + self.n_rows

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._postings)

    def search(
        self,
        bags: kernels.Bags,
        queries: kernels.Queries,
        statistics: Statistics,
        k: int,
        *,
        allowed_n: NDArray[np.bool_],
        allowed_share: float,
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Return the k best rows of each query and their scores, ties to the lower row."""
        average_length = statistics.average_or_one
        # If the average length has grown by a factor since the block was built, length norms have
        # shrunk by at most that factor, and saturations have grown by at most that factor.
        growth = max(1.0, average_length / self.average_length)
        n_q, rows_qk, scores_qk = kernels.search_block(
            queries,
            statistics.idf_v,
            self.parameters.largest_saturation * growth,
            self._postings,
            allowed_n,
            allowed_share,
            self.first_row,
            self.n_rows,
            bags,
            formula_values(self.parameters, average_length),
            k,
        )
        found = zip(n_q.tolist(), rows_qk, scores_qk, strict=True)
        return [(rows_k[:n], scores_k[:n]) for n, rows_k, scores_k in found]

    def sum_values(
        self, words: NDArray[np.int64], values: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Return for each row of the block the sum of the values of those words that it has."""
        sums: NDArray[np.float64] = kernels.sum_values(words, values, self._postings, self.n_rows)
        return sums

    @property
    def _postings(self) -> kernels.Postings:
        return self.starts, self.array_vt, self.positions, self.impacts, self.arrays_ab


def formula_values(parameters: Bm25Parameters, average_length: float) -> kernels.Formula:
    return float(parameters.k1), float(parameters.b), average_length, float(SCALE)
