"""What a gallery's own images reach when they search for each other.

A hit is strong, fair or weak in comparison with that. A score says little by itself: galleries of
one subject have higher scores than those of many. A sample of the stored images is searched for,
each without itself and its copies.
"""

import numpy as np

from bm25v.search.combine import combine_bags
from bm25v.search.embedded import GalleryView
from bm25v.search.encode import EncodedQuery
from bm25v.search.engine import rank_rows
from bm25v.search.filters import RowFilter
from bm25v.store.local.records import Calibration
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import GalleryStore

MIN_IMAGES = 30  # of a gallery; of fewer, nothing can be said
_SAMPLE = 200  # images that are searched for
CANDIDATES = 40  # the best hit is among them nearly always
_WEAK_QUANTILE = 0.03  # of the scores of best hits: below, a hit is weak
_STRONG_QUANTILE = 0.25  # from there on, it is strong
_CHANGED_SHARE = 0.1  # of the images: after so many changes, it is done again


def needs_calibration(snapshot: Snapshot) -> bool:
    """Return whether the gallery has changed much since it was calibrated."""
    n = snapshot.searcher.statistics.n
    return n >= MIN_IMAGES and has_changed(snapshot)


def has_changed(snapshot: Snapshot) -> bool:
    """Return whether the gallery has changed much since it was calibrated, or never was."""
    n, state = snapshot.searcher.statistics.n, snapshot.state
    if state.calibration is None:
        return True
    n_removed = state.last_change - state.calibration.last_change
    n_added = n - state.calibration.n_images + n_removed
    return n_added + n_removed > _CHANGED_SHARE * n


def calibrate(store: GalleryStore, snapshot: Snapshot) -> Calibration:
    """Search for a sample of the gallery's images; return which scores are weak and strong."""
    n = snapshot.searcher.statistics.n
    rows = np.random.default_rng(0).choice(snapshot.rows, min(n, _SAMPLE), replace=False)
    snapshot.searcher.prepare_for(len(rows))
    scores = [_best_score(store, snapshot, row) for row in rows.tolist()]
    weak_below, strong_from = np.quantile(scores, (_WEAK_QUANTILE, _STRONG_QUANTILE)).tolist()
    return Calibration(weak_below, strong_from, n, snapshot.state.last_change)


def _best_score(store: GalleryStore, snapshot: Snapshot, row: int) -> float:
    """Return the score of the best hit of a stored image, other than its copies."""
    full_bag = snapshot.full_bags.full_bag(row)
    copies = store.catalog.copies_of(row, snapshot.state.generation)
    encoded = EncodedQuery(
        combine_bags([full_bag.bag], by_strength=True),
        "hybrid",
        row_filter=RowFilter(own=tuple(copy for copy in copies if copy < len(snapshot.bags))),
        dense_e=snapshot.dense_ne[row].astype(np.float32),
        k=1,
        candidates=CANDIDATES,
    )
    return float(rank_rows(encoded, GalleryView(snapshot)).scores.max(initial=0))
