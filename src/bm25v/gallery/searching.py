"""A wish and a snapshot in, rows in their order out.

By words, a picture is found if it scores above 0: what speaks for it outweighs what speaks against.
Filters leave the statistics alone: scores are those of an unfiltered search.
"""

import time
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import Statistics, WeightedWords
from bm25v.index.searcher import Ranked, Searcher, top_positions
from bm25v.search import EncodedQuery, ranking

Mode = Literal["two-stage", "sparse", "dense", "hybrid"]

HYBRID_WEIGHT = 0.1  # of BM25, as a share of the most that the query could score, beside the cosine

_ROUNDING = 1e-9  # of a sum of shares

Rows = NDArray[np.int64]
Flags = NDArray[np.bool_]  # one for each row


@dataclass(frozen=True)
class Settings:
    """How many hits, in which order, out of how many candidates, matching how much at least."""

    k: int = 10
    mode: Mode | None = None
    candidates: int = 200
    min_coverage: float = 0.0

    def __post_init__(self) -> None:
        if self.mode is not None and self.mode not in get_args(Mode):
            raise WrongUse(f"mode {self.mode!r}: choose one of {', '.join(get_args(Mode))}")
        if self.k < 1 or self.candidates < 1:
            raise WrongUse(f"k = {self.k}, candidates = {self.candidates}: both must be at least 1")
        if not 0 <= self.min_coverage <= 1:
            raise WrongUse(f"min_coverage = {self.min_coverage}: give a share between 0 and 1")

    def mode_for(self, wish: EncodedQuery) -> Mode:
        """Return the order that was asked for, or the usual one for a wish.

        That is two-stage, unless there is no dense vector, or there are boosted words, which the
        second stage would not look at. A text finds by its vector, as it has no words.
        """
        if self.mode is None:
            if wish.dense_e is None or wish.boosted:
                return "sparse"
            return "two-stage" if wish.text is None else "dense"
        if self.mode != "sparse" and wish.dense_e is None:
            raise WrongUse(f"mode {self.mode!r}: {wish.no_dense}; take mode 'sparse'")
        return self.mode


class Found(NamedTuple):
    """Rows, best first, with what ranks them."""

    mode: Mode
    rows: Rows
    scores: NDArray[np.floating]
    dense: NDArray[np.float32]  # not a number if the wish has no dense vector
    first_ranks: NDArray[np.int64]  # by BM25 alone; not of any use in dense mode
    sparse_factor: float | None
    ms: dict[str, float]


def search(snapshot: Snapshot, wish: EncodedQuery, settings: Settings) -> Found:
    """Return the best rows for a wish."""
    mode = settings.mode_for(wish)
    start = time.perf_counter()
    among = allowed(snapshot.searcher, wish, settings.min_coverage)
    if mode == "dense":
        rows = snapshot.rows if among is None else np.flatnonzero(among)
        by_words = np.full(len(rows), np.nan)
    else:
        wanted = settings.k if mode == "sparse" else max(settings.k, settings.candidates)
        rows, by_words = _by_words(snapshot.searcher, wish, wanted, among)
    found = time.perf_counter()
    dense = _cosines(snapshot, wish, rows)
    scores: NDArray[np.floating] = by_words if mode == "sparse" else dense
    factor = None
    if mode == "hybrid":
        factor = HYBRID_WEIGHT / (most(wish.wanted, snapshot.searcher) or 1.0)
        scores = dense + factor * by_words
    best = top_positions(rows, scores, settings.k)
    ms = {"sparse": (found - start) * 1e3, "rerank": (time.perf_counter() - found) * 1e3}
    return Found(mode, rows[best], scores[best], dense[best], best + 1, factor, ms)


def allowed(searcher: Searcher, wish: EncodedQuery, min_coverage: float = 0.0) -> Flags | None:
    """Return which rows a wish does not rule out; None for all."""
    flags = having(searcher, wish.must, wish.without) if wish.is_filtered else None
    if min_coverage <= 0:
        return flags
    is_enough = coverages(searcher, wish.wanted) >= min_coverage - _ROUNDING
    return is_enough if flags is None else flags & is_enough


def having(searcher: Searcher, must: tuple[int, ...], without: tuple[int, ...]) -> Flags:
    """Return which rows have all of some words and none of others."""
    values = np.array([1.0] * len(must) + [-1.0] * len(without))
    return searcher.sum_values(np.array([*must, *without], dtype=np.int64), values) >= len(must)


def coverages(searcher: Searcher, wanted: WeightedWords) -> NDArray[np.float64]:
    """Return which share of a query's IDF mass each row matches; below 0 if it is left out."""
    values = worth(wanted, searcher.statistics)
    return searcher.sum_values(wanted.words, values) / (float(values.sum()) or 1.0)


def worth(wanted: WeightedWords, statistics: Statistics) -> NDArray[np.float64]:
    """Return weight · idf of each word: together, a query's IDF mass."""
    return wanted.weights * statistics.idf(wanted.words)


def most(wanted: WeightedWords, searcher: Searcher) -> float:
    """Return what no picture can score more than: every word at full saturation."""
    largest = searcher.parameters.largest_saturation
    return largest * float(worth(wanted, searcher.statistics).sum())


def _by_words(searcher: Searcher, wish: EncodedQuery, k: int, among: Flags | None) -> Ranked:
    rows, scores = searcher.search(wish.query, k, among=among)
    is_match = scores > 0
    return Ranked(rows[is_match], scores[is_match])


def _cosines(snapshot: Snapshot, wish: EncodedQuery, rows: Rows) -> NDArray[np.float32]:
    if wish.dense_e is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    is_compiled = snapshot.searcher.has_index
    return ranking.cosines(snapshot.dense_ne, wish.dense_e, rows, compiled=is_compiled)
