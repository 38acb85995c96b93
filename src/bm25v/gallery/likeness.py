"""Which pictures are nearly the same: found by words, compared by words, vectors and pixels.

The thresholds were chosen on labelled pairs: docs/duplicates.md has the figures.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from bm25v.errors import ImageError
from bm25v.gallery import layout
from bm25v.gallery.snapshot import Snapshot
from bm25v.index.bm25 import WeightedWords
from bm25v.search import ranking
from bm25v.vocabulary.bag import Bag

CANDIDATES = 32  # that a search by words gives
COSINE, WORDS, LAYOUT = 0.75, 0.2, 0.9  # least
UNSEEN_COSINE, UNSEEN_WORDS = 0.95, 0.6  # least, where no file can be looked at

_BLOCK = 2_048  # searches at once

Progress = Callable[[int, int], None]
Pair = tuple[int, int]  # of rows, the lower one first


class Likeness(NamedTuple):
    """How much two pictures are alike, in three ways; 1 is the most."""

    cosine: float  # of their dense vectors
    words: float  # in common: Σ min tf / Σ max tf
    layout: float | None  # of light and dark; None if a file is gone, or both are of one grey

    @property
    def is_near(self) -> bool:
        """Whether the two are nearly the same, not merely similar."""
        if self.layout is None:
            return self.cosine >= UNSEEN_COSINE and self.words >= UNSEEN_WORDS
        return self.cosine >= COSINE and self.words >= WORDS and self.layout >= LAYOUT


def near_pairs(
    snapshot: Snapshot, paths: Mapping[int, str], progress: Progress
) -> dict[Pair, Likeness]:
    """Return the pairs that are nearly the same, among the rows whose paths are given."""
    alike = shortlist(snapshot, sorted(paths), progress)
    layouts = compare_files(alike, paths, progress)
    found = {pair: one._replace(layout=layouts.get(pair)) for pair, one in alike.items()}
    return {pair: one for pair, one in found.items() if one.is_near}


def shortlist(snapshot: Snapshot, rows: list[int], progress: Progress) -> dict[Pair, Likeness]:
    """Search with each row and return the pairs whose words and vectors are alike."""
    bags, searcher = snapshot.bags, snapshot.searcher
    left_out = np.setdiff1d(snapshot.rows, rows)
    if len(left_out):
        searcher = searcher.updated(bags["words"], bags["tf"], removed=left_out)
    searcher.prepare_for(len(rows))
    found: dict[Pair, Likeness] = {}
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        queries = [WeightedWords.from_bag(snapshot.bag(row)) for row in block]
        ranked = searcher.search_many(queries, CANDIDATES + 1)
        for row, (others, _) in zip(block, ranked, strict=True):
            dense_e = snapshot.dense_ne[row].astype(np.float32)
            is_compiled = searcher.has_index
            cosines = ranking.cosines(snapshot.dense_ne, dense_e, others, compiled=is_compiled)
            for other, cosine in zip(others.tolist(), cosines.tolist(), strict=True):
                pair = (min(row, other), max(row, other))
                if cosine >= COSINE and other != row and pair not in found:
                    words = shared_words(snapshot.bag(row), snapshot.bag(other))
                    found[pair] = Likeness(cosine, words, None)
        progress(start + len(block), len(rows))
    return {pair: one for pair, one in found.items() if one.words >= WORDS}


def shared_words(one: Bag, other: Bag) -> float:
    """Return which share of their words two pictures have in common: Σ min tf / Σ max tf.

    >>> one = Bag(np.array([3, 9], np.int32), np.array([100, 300], np.uint16))
    >>> other = Bag(np.array([9, 12], np.int32), np.array([200, 100], np.uint16))
    >>> shared_words(one, other)
    0.4
    """
    _, in_one, in_other = np.intersect1d(
        one.words, other.words, assume_unique=True, return_indices=True
    )
    common = int(np.minimum(one.tf[in_one], other.tf[in_other]).sum(dtype=np.int64))
    whole = int(one.tf.sum(dtype=np.int64)) + int(other.tf.sum(dtype=np.int64)) - common
    return common / whole if whole else 0.0


def compare_files(
    pairs: Iterable[Pair], paths: Mapping[int, str], progress: Progress
) -> dict[Pair, float]:
    """Look at the files of pairs, each once, and return how alike light and dark lie in them.

    Pairs of which a file cannot be read, or of which both are of one grey, are left out.
    """
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for low, high in pairs:
        partners[low].append(high)
        partners[high].append(low)
    small = _read({row: paths[row] for row in sorted(partners)}, progress)
    whole = {row: layout.whole(picture) for row, picture in small.items()}
    found: dict[Pair, float] = {}
    for row, picture in small.items():
        parts_wp = layout.parts(picture)
        for other in partners[row]:
            view = whole.get(other)
            if other not in small or (view is None and whole[row] is None):
                continue
            pair = (min(row, other), max(row, other))
            likeness = 0.0 if view is None else float((parts_wp @ view).max())
            found[pair] = max(likeness, found.get(pair, 0.0))
    return found


def _read(paths: Mapping[int, str], progress: Progress) -> dict[int, layout.Small]:
    def read(path: str) -> layout.Small | None:
        try:
            return layout.small(path)
        except ImageError:
            return None

    found = {}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        read_files = pool.map(read, paths.values())
        for done, (row, picture) in enumerate(zip(paths, read_files, strict=True), start=1):
            if picture is not None:
                found[row] = picture
            progress(done, len(paths))
    return found
