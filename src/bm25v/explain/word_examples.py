"""Images that show what a word is, and the patch where it is strongest in each, as stored."""

from collections.abc import Collection, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dense import normalise
from bm25v.errors import ImageError
from bm25v.search.contract import Images, SearchEngine, View
from bm25v.store.local.file_state import has_changed
from bm25v.store.local.records import ImageRecord

_CONSIDERED = 24  # images of each word, as some are copies, and some files are missing
_FIRST_WORDS = 6  # others prefer images that these have, as each image must be decoded
_COPY_COSINE = 0.95  # of dense vectors: from there on, two images show the same


class PatchBox(NamedTuple):
    """Where a patch is in an image, as shares of its width and height."""

    left: float
    top: float
    width: float
    height: float


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
        unit_e = normalise(dense_e.astype(np.float32))
        if any(float(unit_e @ other) >= _COPY_COSINE for other in self._accepted):
            return False
        self._accepted.append(unit_e)
        return True


def find_examples(
    engine: SearchEngine,
    words: Sequence[int],
    *,
    avoid: Collection[str] = (),
    n: int = 4,
) -> dict[int, tuple[WordExample, ...]]:
    """Return for each word up to n images that show it best, without copies of one another.

    The paths to `avoid` are used only if there are no others.
    """

    def find(view: View) -> dict[int, tuple[WordExample, ...]]:
        images, rows_by_word = view.find_with_words(words, _CONSIDERED, 2 * n)
        all_rows = np.unique(np.concatenate([np.empty(0, np.int64), *rows_by_word.values()]))
        records = images.records_of(all_rows)
        vectors = dict(zip(all_rows.tolist(), images.dense_vectors(all_rows), strict=True))
        is_unchanged = cache(lambda row: _is_unchanged(records[row]))
        grid = engine.vocabulary.backbone.grid
        used: set[int] = set()
        examples = {}
        for position, (word, rows) in enumerate(rows_by_word.items()):
            preferred = used if position >= _FIRST_WORDS else set()
            order = sorted(
                (row for row in rows.tolist() if row in records),
                key=lambda row: (records[row].path in avoid, row not in preferred),
            )
            distinct = DistinctImages()
            usable = (r for r in order if is_unchanged(r) and distinct.accept(vectors[r]))
            chosen = list(islice(usable, n))
            examples[word] = tuple(
                WordExample(records[row].path, _read_patch(images, row, word, grid))
                for row in chosen
            )
            used.update(chosen)
        return examples

    return engine.read(find)


def find_patch(engine: SearchEngine, path: str, word: int) -> PatchBox:
    """Return where a word is strongest in an image; all of the image if that was not stored."""

    def find(view: View) -> PatchBox:
        images, (row,), _ = view.find_image(path)
        return _read_patch(images, row, word, engine.vocabulary.backbone.grid)

    return engine.read(find)


def _is_unchanged(record: ImageRecord) -> bool:
    try:
        return not has_changed(record.path, record)
    except ImageError:
        return False


def _read_patch(images: Images, row: int, word: int, grid: tuple[int, int]) -> PatchBox:
    full_bag = images.full_bags.full_bag(row)
    patches = full_bag.patches[full_bag.words == word].tolist()
    if not patches:
        return PatchBox(0, 0, 1, 1)
    (patch,) = patches
    n_rows, n_columns = grid
    y, x = divmod(patch, n_columns)
    return PatchBox(x / n_columns, y / n_rows, 1 / n_columns, 1 / n_rows)
