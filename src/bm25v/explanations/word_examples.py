"""Images of a collection that show what a word is, and the patch where it is strongest in each.

In: an open collection and word ids. Out: paths and patches, as stored in full bags: no image is
decoded and nothing is encoded. Not this module's job: cutting out the patches (`crops`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import ImageError
from bm25v.explanations.samples import PatchBox
from bm25v.gallery.file_state import has_changed
from bm25v.gallery.records import ImageRecord
from bm25v.search.contract import FoundByWord, Images, SearchEngine, View

EXAMPLES = 4  # images of each word

_CONSIDERED = 24  # images of each word, as some are copies, and some files are missing
_FIRST_WORDS = 6  # others prefer images that these have, as each image must be decoded
_COPY_COSINE = 0.95  # of dense vectors: from there on, two images show the same
_WHOLE = PatchBox(0, 0, 1, 1)


class WordExample(NamedTuple):
    """An image that shows a word, and the patch where the word is strongest in it."""

    path: str
    patch: PatchBox


class DistinctImages:
    """Accepts images that are not copies of those accepted before: the same, or nearly."""

    def __init__(self) -> None:
        self._accepted: list[NDArray[np.float32]] = []

    def accept(self, dense_e: NDArray[np.floating]) -> bool:
        """Return whether an image shows something else, by its vector, and remember it."""
        dense_e = dense_e.astype(np.float32)
        dense_e /= max(float(np.linalg.norm(dense_e)), 1e-12)
        if any(float(dense_e @ other) >= _COPY_COSINE for other in self._accepted):
            return False
        self._accepted.append(dense_e)
        return True


def find_examples(
    engine: SearchEngine,
    words: Sequence[int],
    *,
    avoid: Collection[str] = (),
    n: int = EXAMPLES,
) -> dict[int, tuple[WordExample, ...]]:
    """Return for each word up to n images that show it best, without copies of one another.

    The paths to `avoid` are used only if there are no others.
    """

    def find(view: View) -> dict[int, tuple[WordExample, ...]]:
        found = view.find_with_words(words, _CONSIDERED, 2 * n)
        candidates = _Candidates(found, engine.vocabulary.backbone.grid)
        used: set[int] = set()
        examples = {}
        for position, (word, rows) in enumerate(found.rows.items()):
            preferred = used if position >= _FIRST_WORDS else ()
            order = candidates.order(rows.tolist(), avoid, preferred)
            chosen = dict(candidates.choose(word, order, n))
            examples[word] = tuple(chosen.values())
            used.update(chosen)
        return examples

    return engine.read(find)


def find_patch(engine: SearchEngine, path: str, word: int) -> PatchBox:
    """Return where a word is strongest in an image; all of the image if that was not stored."""

    def find(view: View) -> PatchBox:
        images, (row,), _ = view.find_image(path)
        return _read_patch(images, row, word, engine.vocabulary.backbone.grid)

    return engine.read(find)


class _Candidates:
    """The images that may be examples of some words."""

    def __init__(self, found: FoundByWord, grid: tuple[int, int]) -> None:
        self._images, self._grid = found.images, grid
        rows = np.unique(np.concatenate([np.empty(0, np.int64), *found.rows.values()]))
        self._records: Mapping[int, ImageRecord] = found.images.records_of(rows)
        self._vectors = dict(zip(rows.tolist(), found.images.dense_vectors(rows), strict=True))
        self._usable: dict[int, bool] = {}

    def order(
        self, rows: Sequence[int], avoid: Collection[str], preferred: Collection[int]
    ) -> list[int]:
        """Return rows in the order in which they are considered."""
        known = (row for row in rows if row in self._records)
        return sorted(
            known, key=lambda row: (self._records[row].path in avoid, row not in preferred)
        )

    def choose(self, word: int, rows: Sequence[int], n: int) -> Iterator[tuple[int, WordExample]]:
        """Yield the first n of the rows that can be used, each with the example in it."""
        distinct, n_chosen = DistinctImages(), 0
        for row in rows:
            if self._is_usable(row) and distinct.accept(self._vectors[row]):
                n_chosen += 1
                patch = _read_patch(self._images, row, word, self._grid)
                yield row, WordExample(self._records[row].path, patch)
            if n_chosen == n:
                return

    def _is_usable(self, row: int) -> bool:
        if row not in self._usable:
            record = self._records[row]
            try:
                self._usable[row] = not has_changed(record.path, record)
            except ImageError:
                self._usable[row] = False
        return self._usable[row]


def _read_patch(images: Images, row: int, word: int, grid: tuple[int, int]) -> PatchBox:
    if images.full_bags is None:
        return _WHOLE
    full_bag = images.full_bags.full_bag(row)
    patches = full_bag.patches[full_bag.words == word].tolist()
    if not patches:
        return _WHOLE
    (patch,) = patches
    n_rows, n_columns = grid
    y, x = divmod(patch, n_columns)
    return PatchBox(x / n_columns, y / n_rows, 1 / n_columns, 1 / n_rows)
