"""Two images in, how similar they are out: by words, by dense vector, by their pixels.

Words and vectors describe what is in an image, and two photos of one dog on one lawn agree in that.
The pixels decide. The layout of one image, a small grey version, is compared with that of the
other as a whole, cropped and slightly rotated. Where that agrees, detail and colours must agree
too: light flowers on black have one layout. The thresholds were chosen on labelled pairs:
docs/explanation/duplicates.md.
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
MIN_COSINE, MIN_WORDS = 0.75, 0.2
MIN_LAYOUT, MIN_DETAIL, MIN_COLOUR = 0.85, 0.8, 0.55
MIN_COSINE_NO_FILE, MIN_WORDS_NO_FILE = 0.95, 0.6  # where a file cannot be read
THUMBNAIL_SIDE, _COLOUR_SIDE = 48, 16  # pixels

_QUERIES_AT_ONCE = 2_048
_VIEW_SIDE = 16  # pixels
_MIN_CONTRAST = 2.0 * _VIEW_SIDE  # norm of a view that is two grey levels away from its mean
_ROTATIONS = (-5.0, -2.5, 2.5, 5.0)  # degrees
_DETAIL_SIDE, _DETAIL_RADIUS = 24, 2  # pixels; the radius of what is subtracted as coarse
_DETAIL_STEPS = (0.04, 0.02)  # of a side, by which a crop is adjusted
_MIN_CROP = 0.6  # of a side
_GREY = 0.5  # levels of colour: below, an image is grey
_COLOUR_NOISE = 4.0  # levels that compression may add

Pair = tuple[int, int]  # two rows, the lower one first
Box = tuple[float, float, float, float]  # left, top, right, bottom, as shares of the image
Views = NDArray[np.float32]


class Thumbnail(NamedTuple):
    """A small version of an image, scaled to squares."""

    grey: NDArray[np.uint8]
    colour: NDArray[np.uint8]  # (side, side, 2): blue and red against the brightness, 128 is none


class PixelSimilarity(NamedTuple):
    """How similar the files of two images are; detail and colour are 0 if the layouts differ."""

    layout: float
    detail: float = 0.0
    colour: float = 0.0


class Similarity(NamedTuple):
    """How similar two images are, in several ways; 1 is the most."""

    cosine: float  # of their dense vectors
    words: float  # shared: Σ min tf / Σ max tf
    layout: float | None = None  # None if a file cannot be read, or both images are of one grey
    detail: float | None = None
    colour: float | None = None

    @property
    def is_near(self) -> bool:
        """Whether the two are nearly the same image, and not only of the same thing."""
        if self.layout is None or self.detail is None or self.colour is None:
            return self.cosine >= MIN_COSINE_NO_FILE and self.words >= MIN_WORDS_NO_FILE
        is_same = self.layout >= MIN_LAYOUT and self.detail >= MIN_DETAIL
        is_same = is_same and self.colour >= MIN_COLOUR
        return is_same and self.cosine >= MIN_COSINE and self.words >= MIN_WORDS


def find_near_pairs(
    snapshot: Snapshot, paths: Mapping[int, str], progress: Progress
) -> dict[Pair, Similarity]:
    """Return the pairs that are nearly the same, among the rows whose paths are given."""
    pairs = find_candidate_pairs(snapshot, sorted(paths), progress)
    compared = compare_files(pairs, paths, progress)
    pairs |= {pair: pairs[pair]._replace(**c._asdict()) for pair, c in compared.items()}
    return {pair: similarity for pair, similarity in pairs.items() if similarity.is_near}


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
                    pairs[pair] = Similarity(cosine, words)
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


def compare_files(
    pairs: Iterable[Pair], paths: Mapping[int, str], progress: Progress
) -> dict[Pair, PixelSimilarity]:
    """Read the files of pairs, each once, and return how similar they are.

    Pairs with a file that cannot be read, and pairs of two images of one grey, are left out.
    """
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for low, high in pairs:
        partners[low].append(high)
        partners[high].append(low)
    thumbnails = _read_thumbnails({row: paths[row] for row in sorted(partners)}, progress)
    whole_views = {row: view_whole(thumbnail) for row, thumbnail in thumbnails.items()}
    best: dict[Pair, tuple[float, int, int]] = {}  # layout, which of the two was cropped, and how
    for row, thumbnail in thumbnails.items():
        views = view_parts(thumbnail)
        for other in partners[row]:
            other_view = whole_views.get(other)
            if other not in thumbnails or (other_view is None and whole_views[row] is None):
                continue
            pair = (min(row, other), max(row, other))
            layouts = np.zeros(1) if other_view is None else views @ other_view
            found = (float(layouts.max()), row, int(layouts.argmax()))
            best[pair] = max(found, best.get(pair, (0.0, row, 0)))
    return {pair: _compare_pixels(pair, *found, thumbnails) for pair, found in best.items()}


def make_thumbnail(source: Source) -> Thumbnail:
    """Return an image in grey, and its colours, scaled to small squares."""
    pixels = images.decode_image(source, short_side=2 * THUMBNAIL_SIDE)
    grey = Image.fromarray(pixels).convert("L")
    colour = Image.fromarray(pixels).resize((_COLOUR_SIDE, _COLOUR_SIDE), Image.Resampling.BOX)
    return Thumbnail(
        np.asarray(grey.resize((THUMBNAIL_SIDE, THUMBNAIL_SIDE), Image.Resampling.BOX)),
        np.asarray(colour.convert("YCbCr"))[..., 1:],
    )


def view_whole(thumbnail: Thumbnail) -> Views | None:
    """Return the view of a whole image, with norm 1; None if it is all of one grey."""
    view = _view(Image.fromarray(thumbnail.grey), (0, 0, 1, 1))
    norm = float(np.linalg.norm(view))
    return view / np.float32(norm) if norm >= _MIN_CONTRAST else None


def view_parts(thumbnail: Thumbnail) -> Views:
    """Return the views of an image as a whole, cropped and rotated, one per row."""
    views = [_view(_rotate(thumbnail, degrees), box) for degrees, box in _PARTS]
    stacked = np.array(views)
    norms = np.linalg.norm(stacked, axis=1, keepdims=True)
    return np.asarray(stacked / np.maximum(norms, _MIN_CONTRAST), dtype=np.float32)


def compare_detail(grey: Image.Image, box: Box, whole: Image.Image) -> float:
    """Return how similar a part of one image is to another one in what is small.

    The sides of the part are adjusted until the two are similar enough: a view of the layout is
    only near the crop that was made.
    """
    other = _view_detail(whole, (0, 0, 1, 1))
    best = float(np.vdot(_view_detail(grey, box), other))
    for step in _DETAIL_STEPS:
        for side, change in 2 * [(side, change) for side in range(4) for change in (-step, step)]:
            if best >= MIN_DETAIL:
                return best
            edges = list(box)
            edges[side] = min(1.0, max(0.0, edges[side] + change))
            left, top, right, bottom = edges
            if min(right - left, bottom - top) < _MIN_CROP:
                continue
            similarity = float(np.vdot(_view_detail(grey, (left, top, right, bottom)), other))
            if similarity > best:
                best, box = similarity, (left, top, right, bottom)
    return best


def compare_colour(colour: NDArray[np.uint8], box: Box, whole: NDArray[np.uint8]) -> float:
    """Return how similar the colours of a part of one image are to those of another one.

    A grey image has no colours to compare: 1.

    >>> red, blue = (np.full((16, 16, 2), levels, np.uint8) for levels in ((90, 240), (240, 110)))
    >>> compare_colour(red, (0, 0, 1, 1), red), compare_colour(red, (0, 0, 1, 1), blue) < 0
    (1.0, True)
    """
    size = (_COLOUR_SIDE // 2, _COLOUR_SIDE // 2)
    edges = (
        _COLOUR_SIDE * box[0],
        _COLOUR_SIDE * box[1],
        _COLOUR_SIDE * box[2],
        _COLOUR_SIDE * box[3],
    )
    levels = []
    for pixels, part in ((colour, edges), (whole, None)):
        channels = [Image.fromarray(np.ascontiguousarray(pixels[..., n])) for n in range(2)]
        resized = [channel.resize(size, Image.Resampling.BOX, box=part) for channel in channels]
        levels.append(np.array(resized, dtype=np.float32) - 128)
    amounts = [float(np.abs(level).mean()) for level in levels]
    if min(amounts) < _GREY:
        return 1.0
    difference = float(np.abs(levels[0] - levels[1]).mean())
    return 1 - difference / (max(amounts) + _COLOUR_NOISE)


def _compare_pixels(
    pair: Pair, layout: float, row: int, part: int, thumbnails: Mapping[int, Thumbnail]
) -> PixelSimilarity:
    if layout < MIN_LAYOUT:
        return PixelSimilarity(layout)
    cropped, whole = thumbnails[row], thumbnails[sum(pair) - row]
    degrees, box = _PARTS[part]
    detail = compare_detail(_rotate(cropped, degrees), box, Image.fromarray(whole.grey))
    return PixelSimilarity(layout, detail, compare_colour(cropped.colour, box, whole.colour))


def _list_parts() -> Iterator[tuple[float, Box]]:
    """Yield the whole, crops of 90 and 80 % of each side, all but a margin at one side, rotations.

    A part is an angle in degrees, and a box of the rotated image.
    """
    yield 0.0, (0, 0, 1, 1)
    for side in (0.9, 0.8):
        starts = (0, (1 - side) / 2, 1 - side)
        yield from ((0.0, (x, y, x + side, y + side)) for x in starts for y in starts)
    margin = 0.15
    for box in ((margin, 0, 1, 1), (0, margin, 1, 1), (0, 0, 1 - margin, 1), (0, 0, 1, 1 - margin)):
        yield 0.0, box
    for degrees in _ROTATIONS:
        angle = math.radians(abs(degrees))
        cut = (1 - 1 / (math.cos(angle) + math.sin(angle))) / 2  # the empty corners
        yield degrees, (cut, cut, 1 - cut, 1 - cut)


_PARTS = tuple(_list_parts())


def _rotate(thumbnail: Thumbnail, degrees: float) -> Image.Image:
    grey = Image.fromarray(thumbnail.grey)
    return grey.rotate(degrees, Image.Resampling.BILINEAR) if degrees else grey


def _view(grey: Image.Image, box: Box) -> Views:
    values = _resize(grey, box, _VIEW_SIDE, Image.Resampling.BOX).ravel()
    return np.asarray(values - values.mean(), dtype=np.float32)


def _view_detail(grey: Image.Image, box: Box) -> Views:
    """Return a view with norm 1 from which what is coarse was subtracted: the mean around."""
    view = _resize(grey, box, _DETAIL_SIDE, Image.Resampling.BILINEAR)
    radius = _DETAIL_RADIUS
    size = 2 * radius + 1
    sums = np.pad(view, radius, mode="edge").cumsum(axis=0).cumsum(axis=1)
    sums = np.pad(sums, ((1, 0), (1, 0)))
    means = sums[size:, size:] - sums[:-size, size:] - sums[size:, :-size] + sums[:-size, :-size]
    detail = view - means / size**2
    return np.asarray(detail / max(float(np.linalg.norm(detail)), 1e-6), dtype=np.float32)


def _resize(grey: Image.Image, box: Box, side: int, how: Image.Resampling) -> Views:
    left, top, right, bottom = (grey.width * share for share in box)
    resized = grey.resize((side, side), how, box=(left, top, right, bottom))
    return np.asarray(resized, dtype=np.float32)


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
