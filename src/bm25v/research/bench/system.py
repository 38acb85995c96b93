"""One way to search, ready to be timed."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import Ranked
from bm25v.research.bench.pictures import BenchQuery

Made = TypeVar("Made")


@dataclass(frozen=True)
class System:
    """A way to search, and what it took to get there."""

    search: Callable[[BenchQuery], Ranked]
    build_s: float
    nbytes: int


def timed(make: Callable[[], Made]) -> tuple[Made, float]:
    """Return what is made, and the seconds it took."""
    start = time.perf_counter()
    made = make()
    return made, time.perf_counter() - start


def best(scores_n: NDArray[np.float32], k: int) -> Ranked:
    """Return the k best rows as one does in numpy.

    >>> best(np.array([0.5, 0.9, 0.1], dtype=np.float32), k=2).rows.tolist()
    [1, 0]
    """
    rows = np.argpartition(scores_n, len(scores_n) - k)[len(scores_n) - k :]
    rows = rows[np.argsort(-scores_n[rows])]
    return Ranked(rows, scores_n[rows].astype(np.float64))
