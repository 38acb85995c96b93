"""What a gallery's own images reach when they search for each other.

A hit is strong, fair or weak in comparison with that. A score says little by itself: galleries of
one subject have higher scores than those of many. A sample of the stored images is searched for,
each without itself and its copies.
"""

import numpy as np

from bm25v.search.combine import combine_bags
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import rank
from bm25v.store.base import Filter
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.records import Calibration

MIN_IMAGES = 30  # of a gallery; of fewer, nothing can be said
_SAMPLE = 200  # images that are searched for
CANDIDATES = 40  # the best hit is among them nearly always
_WEAK_QUANTILE = 0.03  # of the scores of best hits: below, a hit is weak
_STRONG_QUANTILE = 0.25  # from there on, it is strong
_CHANGED_SHARE = 0.1  # of the images: after so many changes, it is done again


def needs_calibration(snapshot: Snapshot) -> bool:
    """Return whether the gallery has changed much since it was calibrated."""
    return snapshot.statistics.n >= MIN_IMAGES and is_outdated(snapshot.calibration, snapshot)


def is_outdated(calibration: Calibration | None, snapshot: Snapshot) -> bool:
    """Return whether the gallery has changed much since a calibration, or there is none."""
    if calibration is None:
        return True
    n = snapshot.statistics.n
    n_removed = snapshot.state.last_change - calibration.last_change
    n_added = n - calibration.n_images + n_removed
    return n_added + n_removed > _CHANGED_SHARE * n


def calibrate(snapshot: Snapshot) -> Calibration:
    """Search for a sample of the gallery's images; return which scores are weak and strong."""
    n = snapshot.statistics.n
    rows = np.random.default_rng(0).choice(snapshot.rows, min(n, _SAMPLE), replace=False)
    snapshot.searcher.prepare_for(len(rows))
    contents = snapshot.catalog.contents_of(rows.tolist(), snapshot.state.generation)
    scores = [_best_score(snapshot, row, content) for row, content in contents.items()]
    weak_below, strong_from = np.quantile(scores, (_WEAK_QUANTILE, _STRONG_QUANTILE)).tolist()
    return Calibration(weak_below, strong_from, n, snapshot.state.last_change)


def _best_score(snapshot: Snapshot, row: int, content: bytes) -> float:
    """Return the score of the best hit of a stored image, other than its copies."""
    bag = snapshot.images(np.array([row])).read_bag(row, full=True)
    encoded = EncodedQuery(
        combine_bags([bag], by_strength=True),
        "hybrid",
        Filter(own_contents=(content,)),
        dense_e=snapshot.dense_ne[row].astype(np.float32),
        k=1,
        candidates=CANDIDATES,
    )
    return float(rank(encoded, snapshot.candidates(encoded), snapshot).scores.max(initial=0))
