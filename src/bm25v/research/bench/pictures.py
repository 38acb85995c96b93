"""What is searched and what is searched for: bags and dense vectors, of a gallery or made up."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.gallery import Gallery
from bm25v.gallery.rows import Rows
from bm25v.gallery.snapshot import read_bag
from bm25v.index.bm25 import WeightedWords
from bm25v.vocabulary.bag import Bag


class BenchQuery(NamedTuple):
    """A picture to search with."""

    query: WeightedWords
    dense_e: NDArray[np.float32]


@dataclass(frozen=True)
class Pictures:
    """Rows as in a gallery's files."""

    bags: Rows
    dense_ne: NDArray[np.float16]
    n_words: int

    def __len__(self) -> int:
        return len(self.bags)

    @property
    def dim(self) -> int:
        """Numbers in a dense vector."""
        return int(self.dense_ne.shape[1])

    def first(self, n: int) -> "Pictures":
        """Return some of the pictures."""
        return Pictures(self.bags[:n], self.dense_ne[:n], self.n_words)

    def bag(self, row: int) -> Bag:
        """Return one picture's bag."""
        return read_bag(self.bags[row])

    def queries(self) -> list[BenchQuery]:
        """Return each picture as one to search with."""
        dense_ne = self.dense_ne.astype(np.float32)
        return [
            BenchQuery(WeightedWords.from_bag(self.bag(row)), dense_ne[row])
            for row in range(len(self))
        ]


def of_gallery(path: Path, n_queries: int, seed: int) -> tuple[Pictures, Pictures]:
    """Return all pictures of a gallery, and some of them to search with."""
    with Gallery.open(path) as gallery:
        snapshot = gallery.snapshot()
        rows, n_words = snapshot.rows, snapshot.searcher.statistics.n_words
        with_words = rows[snapshot.bags["tf"][rows].any(axis=1)]
        if len(with_words) == 0:
            raise WrongUse(f"there are no pictures in {path}: index some first")
        chosen = np.random.default_rng(seed).choice(with_words, n_queries)
        whole, queries = (
            Pictures(snapshot.bags[which], snapshot.dense_ne[which], n_words)
            for which in (rows, chosen)
        )
    return whole, queries
