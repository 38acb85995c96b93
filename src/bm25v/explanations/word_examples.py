"""Images of a gallery that show what a word is, and the patch where it is strongest in each.

In: a snapshot and word ids. Out: paths and patches, as stored in full bags: no image is read and
nothing is encoded. Not this module's job: cutting out the patches (`crops`).
"""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import ImageError
from bm25v.explanations.samples import PatchBox
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.bm25 import WeightedWords
from bm25v.vocabulary.bag import LEVELS

EXAMPLES = 4  # images of each word

_CONSIDERED = 24  # rows of each word, as some are copies, and some files are missing
_FIRST_WORDS = 6  # others prefer images that these have, as each image must be decoded
_SCANNED = 20_000  # full bags that are looked through for words that the index has in few images
_COPY_COSINE = 0.95  # of dense vectors: from there on, two images show the same

Rows = NDArray[np.int64]


class WordExample(NamedTuple):
    """An image that shows a word, and the patch where the word is strongest in it."""

    path: str
    patch: PatchBox


class DistinctImages:
    """Accepts images that are not copies of those accepted before: the same, or nearly."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._accepted: list[NDArray[np.float32]] = []

    def accept(self, row: int) -> bool:
        """Return whether the image in a row shows something else, and remember it."""
        dense_e = self._snapshot.dense_ne[row].astype(np.float32)
        dense_e /= max(float(np.linalg.norm(dense_e)), 1e-12)
        if any(float(dense_e @ other) >= _COPY_COSINE for other in self._accepted):
            return False
        self._accepted.append(dense_e)
        return True


def find_examples(
    store: GalleryStore,
    snapshot: Snapshot,
    words: Sequence[int],
    *,
    avoid: Collection[int] = (),
    n: int = EXAMPLES,
) -> dict[int, tuple[WordExample, ...]]:
    """Return for each word up to n images that show it best, without copies of one another.

    The rows to `avoid` are used only if there are no others.
    """
    ranked = {word: _rank_in_index(snapshot, word) for word in words}
    few = [word for word, rows in ranked.items() if len(rows) < 2 * n]
    for word, rows in _scan_full_bags(snapshot, few).items():
        ranked[word] = np.array(list(dict.fromkeys([*ranked[word].tolist(), *rows.tolist()])))
    usable: dict[int, str | None] = {}  # the path of each row; None if its file cannot be used
    used: set[int] = set()
    examples = {}
    for position, (word, rows) in enumerate(ranked.items()):
        preferred = used if position >= _FIRST_WORDS else ()
        order = sorted(rows.tolist(), key=lambda row: (row in avoid, row not in preferred))
        chosen = dict(_choose(store, snapshot, word, order, n, usable))
        examples[word] = tuple(chosen.values())
        used.update(chosen)
    return examples


def _rank_in_index(snapshot: Snapshot, word: int) -> Rows:
    query = WeightedWords(np.array([word], np.int32), np.ones(1), np.ones(1))
    rows, scores = snapshot.searcher.search(query, _CONSIDERED)
    return rows[scores > 0]


def _scan_full_bags(snapshot: Snapshot, words: Sequence[int]) -> dict[int, Rows]:
    """Return the rows with most of each word, among evenly chosen ones if there are many."""
    if snapshot.full_bags is None or not words:
        return {}
    rows = snapshot.rows[:: -(-len(snapshot.rows) // _SCANNED) or 1]
    full_rows = snapshot.full_bags.rows[rows]
    levels_nk = full_rows["levels"]
    is_wanted_v = np.zeros(snapshot.full_bags.statistics.n_words, dtype=bool)
    is_wanted_v[list(words)] = True
    positions, slots = np.nonzero(is_wanted_v[full_rows["words"]] & (levels_nk > 0))
    found, levels = full_rows["words"][positions, slots], levels_nk[positions, slots]
    order = np.argsort(-LEVELS[levels].astype(np.int64), kind="stable")
    positions, found = positions[order], found[order]
    return {word: rows[positions[found == word][:_CONSIDERED]] for word in words}


def _choose(
    store: GalleryStore,
    snapshot: Snapshot,
    word: int,
    rows: Sequence[int],
    n: int,
    usable: dict[int, str | None],
) -> Iterator[tuple[int, WordExample]]:
    """Yield the first n of the rows that can be used, each with the example in it."""
    distinct, n_chosen = DistinctImages(snapshot), 0
    for row in rows:
        if row not in usable:
            usable[row] = _usable_path(store, snapshot, row)
        path = usable[row]
        if path is not None and distinct.accept(row):
            n_chosen += 1
            yield row, WordExample(path, find_patch(store, snapshot, row, word))
        if n_chosen == n:
            return


def _usable_path(store: GalleryStore, snapshot: Snapshot, row: int) -> str | None:
    (path,) = store.catalog.paths_of([row], snapshot.state.generation)
    try:
        return None if store.has_changed(path) else path
    except ImageError:
        return None


def find_patch(store: GalleryStore, snapshot: Snapshot, row: int, word: int) -> PatchBox:
    """Return where a word is strongest; all of the image if that was not stored."""
    if snapshot.full_bags is None:
        return PatchBox(0, 0, 1, 1)
    full_bag = snapshot.full_bags.full_bag(row)
    patches = full_bag.patches[full_bag.words == word].tolist()
    if not patches:
        return PatchBox(0, 0, 1, 1)
    (patch,) = patches
    n_rows, n_columns = store.vocabulary.backbone.grid
    y, x = divmod(patch, n_columns)
    return PatchBox(x / n_columns, y / n_rows, 1 / n_columns, 1 / n_rows)
