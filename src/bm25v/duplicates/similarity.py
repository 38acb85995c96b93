"""Two images in, how similar they are out: by words, by dense vector, by layout.

Words and vectors describe what is in an image, and two photos of one dog on one lawn agree in that.
The layout decides: a small grey version of one image agrees with that of the other only if one was
made from the other. It is compared as a whole, cropped and slightly rotated. The thresholds were
chosen on labelled pairs: docs/explanation/duplicates.md.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.errors import ImageError
from bm25v.gallery.snapshot import Snapshot
from bm25v.images import Source
from bm25v.index.bm25 import WeightedWords
from bm25v.progress import Progress
from bm25v.search.ranking import cosines
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import Bag

CANDIDATES = 32  # images that a search by words returns for each image
MIN_COSINE, MIN_WORDS, MIN_LAYOUT = 0.75, 0.2, 0.9
MIN_COSINE_NO_FILE, MIN_WORDS_NO_FILE = 0.95, 0.6  # where a file cannot be read
THUMBNAIL_SIDE = 48  # pixels

_QUERIES_AT_ONCE = 2_048
_VIEW_SIDE = 16  # pixels
_MIN_CONTRAST = 2.0 * _VIEW_SIDE  # norm of a view that is two grey levels away from its mean
_ROTATIONS = (-5.0, -2.5, 2.5, 5.0)  # degrees

Pair = tuple[int, int]  # two rows, the lower one first
Thumbnail = NDArray[np.uint8]
Views = NDArray[np.float32]


class Similarity(NamedTuple):
    """How similar two images are, in three ways; 1 is the most."""

    cosine: float  # of their dense vectors
    words: float  # shared: Σ min tf / Σ max tf
    layout: float | None  # None if a file cannot be read, or both images are of one grey

    @property
    def is_near(self) -> bool:
        """Whether the two are nearly the same image, and not only of the same thing."""
        if self.layout is None:
            return self.cosine >= MIN_COSINE_NO_FILE and self.words >= MIN_WORDS_NO_FILE
        return self.cosine >= MIN_COSINE and self.words >= MIN_WORDS and self.layout >= MIN_LAYOUT


def find_near_pairs(
    snapshot: Snapshot, paths: Mapping[int, str], progress: Progress
) -> dict[Pair, Similarity]:
    """Return the pairs that are nearly the same, among the rows whose paths are given."""
    pairs = find_candidate_pairs(snapshot, sorted(paths), progress)
    layouts = compare_layouts(pairs, paths, progress)
    compared = {pair: s._replace(layout=layouts.get(pair)) for pair, s in pairs.items()}
    return {pair: similarity for pair, similarity in compared.items() if similarity.is_near}


def find_candidate_pairs(
    snapshot: Snapshot, rows: list[int], progress: Progress
) -> dict[Pair, Similarity]:
    """Search with each row and return the pairs with similar words and vectors."""
    bags, searcher = snapshot.bags, snapshot.searcher
    left_out = np.setdiff1d(snapshot.rows, rows)
    if len(left_out):
        searcher = searcher.updated(bags["words"], bags["tf"], removed=left_out)
    searcher.prepare_for(len(rows))
    pairs: dict[Pair, Similarity] = {}
    for start in range(0, len(rows), _QUERIES_AT_ONCE):
        block = rows[start : start + _QUERIES_AT_ONCE]
        queries = [WeightedWords.from_bag(snapshot.bag(row)) for row in block]
        ranked = searcher.search_many(queries, CANDIDATES + 1)
        for row, (others, _) in zip(block, ranked, strict=True):
            dense_e = snapshot.dense_ne[row].astype(np.float32)
            is_compiled = searcher.has_index
            similarities = cosines(snapshot.dense_ne, dense_e, others, compiled=is_compiled)
            for other, cosine in zip(others.tolist(), similarities.tolist(), strict=True):
                pair = (min(row, other), max(row, other))
                if cosine >= MIN_COSINE and other != row and pair not in pairs:
                    words = compare_words(snapshot.bag(row), snapshot.bag(other))
                    pairs[pair] = Similarity(cosine, words, None)
        progress("searching for similar images", start + len(block), len(rows))
    return {pair: s for pair, s in pairs.items() if s.words >= MIN_WORDS}


def compare_words(bag: Bag, other: Bag) -> float:
    """Return the share of their words that two images have in common: Σ min tf / Σ max tf.

    >>> bag = Bag(np.array([3, 9], np.int32), np.array([100, 300], np.uint16))
    >>> other = Bag(np.array([9, 12], np.int32), np.array([200, 100], np.uint16))
    >>> compare_words(bag, other)
    0.4
    """
    _, in_bag, in_other = np.intersect1d(
        bag.words, other.words, assume_unique=True, return_indices=True
    )
    common = int(np.minimum(bag.tf[in_bag], other.tf[in_other]).sum(dtype=np.int64))
    union = int(bag.tf.sum(dtype=np.int64)) + int(other.tf.sum(dtype=np.int64)) - common
    return common / union if union else 0.0


def compare_layouts(
    pairs: Iterable[Pair], paths: Mapping[int, str], progress: Progress
) -> dict[Pair, float]:
    """Read the files of pairs, each once, and return how similar their layouts are.

    Pairs with a file that cannot be read, and pairs of two images of one grey, are left out.
    """
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for low, high in pairs:
        partners[low].append(high)
        partners[high].append(low)
    thumbnails = _read_thumbnails({row: paths[row] for row in sorted(partners)}, progress)
    whole_views = {row: view_whole(thumbnail) for row, thumbnail in thumbnails.items()}
    layouts: dict[Pair, float] = {}
    for row, thumbnail in thumbnails.items():
        views = view_parts(thumbnail)
        for other in partners[row]:
            other_view = whole_views.get(other)
            if other not in thumbnails or (other_view is None and whole_views[row] is None):
                continue
            pair = (min(row, other), max(row, other))
            layout = 0.0 if other_view is None else float((views @ other_view).max())
            layouts[pair] = max(layout, layouts.get(pair, 0.0))
    return layouts


def make_thumbnail(source: Source) -> Thumbnail:
    """Return an image in grey, scaled to a small square."""
    pixels = images.decode_image(source, short_side=2 * THUMBNAIL_SIDE)
    grey = Image.fromarray(pixels).convert("L")
    return np.asarray(grey.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX))


def view_whole(thumbnail: Thumbnail) -> Views | None:
    """Return the view of a whole image, with norm 1; None if it is all of one grey."""
    view = _view(Image.fromarray(thumbnail), (0, 0, 1, 1))
    norm = float(np.linalg.norm(view))
    return view / np.float32(norm) if norm >= _MIN_CONTRAST else None


def view_parts(thumbnail: Thumbnail) -> Views:
    """Return the views of an image as a whole, cropped and rotated, one per row."""
    grey = Image.fromarray(thumbnail)
    views = [_view(grey, box) for box in _crops()]
    for degrees in _ROTATIONS:
        rotated = grey.rotate(degrees, Image.Resampling.BILINEAR)
        angle = math.radians(abs(degrees))
        margin = (1 - 1 / (math.cos(angle) + math.sin(angle))) / 2  # without the empty corners
        views.append(_view(rotated, (margin, margin, 1 - margin, 1 - margin)))
    stacked = np.array(views)
    norms = np.linalg.norm(stacked, axis=1, keepdims=True)
    return np.asarray(stacked / np.maximum(norms, _MIN_CONTRAST), dtype=np.float32)


def _crops() -> Iterator[tuple[float, float, float, float]]:
    """Yield the whole, crops of 90 and 80 % of each side, and all but a margin at one side."""
    yield 0, 0, 1, 1
    for side in (0.9, 0.8):
        starts = (0, (1 - side) / 2, 1 - side)
        yield from ((x, y, x + side, y + side) for x in starts for y in starts)
    margin = 0.15
    yield from ((margin, 0, 1, 1), (0, margin, 1, 1), (0, 0, 1 - margin, 1), (0, 0, 1, 1 - margin))


def _view(grey: Image.Image, box: tuple[float, float, float, float]) -> Views:
    left, top, right, bottom = (THUMBNAIL_SIDE * share for share in box)
    size = (_VIEW_SIDE, _VIEW_SIDE)
    crop = grey.resize(size, Image.Resampling.BOX, box=(left, top, right, bottom))
    values = np.asarray(crop, dtype=np.float32).ravel()
    return np.asarray(values - values.mean(), dtype=np.float32)


def _read_thumbnails(paths: Mapping[int, str], progress: Progress) -> dict[int, Thumbnail]:
    def read(path: str) -> Thumbnail | None:
        try:
            return make_thumbnail(path)
        except ImageError:
            return None

    thumbnails = {}
    with ThreadPoolExecutor(available_cpus()) as pool:
        results = pool.map(read, paths.values())
        for done, (row, thumbnail) in enumerate(zip(paths, results, strict=True), start=1):
            if thumbnail is not None:
                thumbnails[row] = thumbnail
            progress("comparing files", done, len(paths))
    return thumbnails
