"""Finds images of a gallery that are the same or nearly the same, and which of them is the best.

Similar words and vectors are not enough, as two photos of one dog have these too: the pixels must
agree too. docs/how-to/find-duplicates.md says how.
"""

import hashlib
import math
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v import images
from bm25v.errors import ImageError
from bm25v.images import Source
from bm25v.index.bm25 import WeightedWords
from bm25v.index.second_stage import cosines
from bm25v.progress import Progress, no_progress
from bm25v.store.files import has_size_and_time
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.store import FolderStore
from bm25v.store.records import ImageRecord, to_gallery_image
from bm25v.threads import available_cpus
from bm25v.vocabulary.bag import Bag

CANDIDATES = 32  # images that a search by words returns for each image
MIN_COSINE, MIN_WORDS = 0.75, 0.2
MIN_LAYOUT, MIN_DETAIL, MIN_COLOUR = 0.85, 0.8, 0.55
MIN_COSINE_NO_FILE, MIN_WORDS_NO_FILE = 0.95, 0.6  # where a file cannot be read

_QUERIES_AT_ONCE = 2_048
_GREY_SIDE, _COLOUR_SIDE = 48, 16  # pixels
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

_WHOLE: Box = (0, 0, 1, 1)


class Similarity(NamedTuple):
    """How similar two images are, in several ways; 1 is the most."""

    cosine: float  # of their dense vectors
    words: float  # shared: Σ min tf / Σ max tf
    layout: float | None = None  # None if a file cannot be read, or both images are of one grey
    detail: float | None = None
    colour: float | None = None

    @property
    def is_near(self) -> bool:
        """Whether the two are nearly the same image, and not only of the same subject."""
        if self.layout is None or self.detail is None or self.colour is None:
            return self.cosine >= MIN_COSINE_NO_FILE and self.words >= MIN_WORDS_NO_FILE
        has_same_layout = self.layout >= MIN_LAYOUT and self.detail >= MIN_DETAIL
        is_same_subject = self.cosine >= MIN_COSINE and self.words >= MIN_WORDS
        return has_same_layout and self.colour >= MIN_COLOUR and is_same_subject


_IDENTICAL = Similarity(1.0, 1.0, 1.0, 1.0, 1.0)


class Duplicate(NamedTuple):
    """An image of a group."""

    path: str
    size: int  # of the file, in bytes
    width: int | None  # in pixels
    height: int | None
    date: datetime  # when it was taken, by its metadata, else the time of its file
    is_copy: bool  # an image listed before it has the same content
    similarity: Similarity  # to the first image of the group

    @property
    def pixels(self) -> str:
        """Its width and height, as a text."""
        return f"{self.width} × {self.height}" if self.width else "size unknown"


@dataclass(frozen=True)
class DuplicateGroup:
    """Images that are the same, or nearly the same. The first is the best.

    That is the one with most pixels; of those with as many, the largest file, then the oldest, then
    the one with the shortest path; never a symbolic link. All others are similar to it.
    """

    images: tuple[Duplicate, ...]

    def __repr__(self) -> str:
        return f"<DuplicateGroup: {len(self.images)} images ({self.kind}), {self.images[0].path} …>"

    @property
    def kind(self) -> str:
        """Return "exact" if all have the same content, else "near"."""
        return "exact" if all(image.is_copy for image in self.images[1:]) else "near"

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain values."""
        images = []
        for image in self.images:
            values = image._asdict()
            similarity, is_copy = values.pop("similarity"), values.pop("is_copy")
            values |= {"date": image.date.isoformat(), "copy": is_copy, **similarity._asdict()}
            images.append(values)
        return {"kind": self.kind, "images": images}


class FoundDuplicates(NamedTuple):
    """Groups of images, and how many images were left out."""

    groups: list[DuplicateGroup]
    n_left_out: int  # their files are missing or have changed since they were indexed


def find_duplicates(
    store: FolderStore, *, near: bool = True, progress: Progress = no_progress
) -> FoundDuplicates:
    """Return groups of the same and, with `near`, nearly the same images.

    Images whose files are missing or have changed are left out, and so are further names of one
    file: links. A group of nothing but links is left out too, as none of them is a file to keep.
    """
    return store.read(lambda snapshot: _find_groups(store, snapshot, near, progress))


def _find_groups(
    store: FolderStore, snapshot: Snapshot, near: bool, progress: Progress
) -> FoundDuplicates:
    with store.catalog.transaction(snapshot.state.generation):
        live = set(snapshot.rows.tolist())
        records = [record for record in store.catalog.records() if record.row in live]
    selected, n_left_out = _select_files(records)
    best_first = {record.row: record for record in sorted(selected, key=_rank)}

    def digest(row: int) -> bytes:
        if not near:
            return best_first[row].content
        bits = snapshot.bags[row].tobytes() + snapshot.dense_ne[row].tobytes()
        return hashlib.blake2b(bits, digest_size=16).digest()

    # Rows with the same bits are searched for and compared once: the best of them.
    by_digest: defaultdict[bytes, list[int]] = defaultdict(list)
    for row in best_first:
        by_digest[digest(row)].append(row)
    equal = {rows[0]: rows for rows in by_digest.values()}
    pairs: dict[Pair, Similarity] = {}
    if near:
        pairs = find_near_pairs(snapshot, {row: best_first[row].path for row in equal}, progress)
    partners: dict[int, dict[int, float]] = {row: {} for row in equal}
    for (low, high), similarity in pairs.items():
        partners[low][high] = partners[high][low] = similarity.cosine
    groups = []
    for first, *others in group_around_best(partners):
        members = [(row, _IDENTICAL) for row in equal[first]]
        for other in others:
            similarity = pairs[min(first, other), max(first, other)]
            members += [(row, similarity) for row in equal[other]]
        if len(members) > 1 and not os.path.islink(best_first[first].path):
            groups.append(members)
    groups.sort(key=lambda members: min(row for row, _ in members))
    return FoundDuplicates([_to_group(members, best_first) for members in groups], n_left_out)


def _select_files(records: Iterable[ImageRecord]) -> tuple[list[ImageRecord], int]:
    """Return one record for each file that is as it was indexed, and each image from memory.

    Also return how many records are of files that are not.
    """
    names: defaultdict[object, list[ImageRecord]] = defaultdict(list)
    n_left_out = 0
    for record in records:
        if not os.path.isabs(record.path):
            names[record.path].append(record)
        elif has_size_and_time(record.path, record.size, record.mtime_ns):
            names[_identify_file(record.path)].append(record)
        else:
            n_left_out += 1
    return [min(same, key=_rank) for same in names.values()], n_left_out


def _identify_file(path: str) -> object:
    """Return what all names of a file have in common; its path if the file system has nothing."""
    with suppress(OSError):  # it was deleted just now
        status = os.stat(path)
        if status.st_ino:
            return status.st_dev, status.st_ino
    return path


def _rank(record: ImageRecord) -> tuple[Any, ...]:
    """Return a key that sorts the best image first; one from memory, or a link, is no file."""
    n_pixels = (record.width or 0) * (record.height or 0)
    date, path = to_gallery_image(record).date, record.path
    is_no_file = 2 * os.path.islink(path) or not os.path.isabs(path)
    return is_no_file, -n_pixels, -record.size, date, len(path), path


def group_around_best(partners: Mapping[int, Mapping[int, float]]) -> list[list[int]]:
    """Put rows into groups: the first of each, and those of its partners that are in no group yet.

    `partners` has each row's similar rows and their similarity, the best row first. If only the
    first row of each group is kept, no two that are kept are similar, and each of the others is
    similar to one that is kept. Within a group, rows follow by similarity to the first.

    >>> group_around_best({1: {2: 0.9}, 2: {1: 0.9, 3: 0.8}, 3: {2: 0.8}})
    [[1, 2], [3]]
    >>> group_around_best({2: {1: 0.9, 3: 0.8}, 1: {2: 0.9}, 3: {2: 0.8}})
    [[2, 1, 3]]
    """
    groups: list[list[int]] = []
    grouped: set[int] = set()
    for row, similarity in partners.items():
        if row not in grouped:
            others = similarity.keys() - grouped
            groups.append([row, *sorted(others, key=lambda r: (-similarity[r], r))])
            grouped.update(groups[-1])
    return groups


def _to_group(
    members: Iterable[tuple[int, Similarity]], records: Mapping[int, ImageRecord]
) -> DuplicateGroup:
    duplicates, contents = [], set()
    for row, similarity in members:
        record = records[row]
        date = to_gallery_image(record).date
        is_copy = record.content in contents
        facts = (record.path, record.size, record.width, record.height, date)
        duplicates.append(Duplicate(*facts, is_copy, similarity))
        contents.add(record.content)
    return DuplicateGroup(tuple(duplicates))


class Thumbnail(NamedTuple):
    """An image, and its colours, scaled to small squares."""

    grey: Image.Image
    colour: NDArray[np.uint8]  # (side, side, 2): blue and red against the brightness, 128 is none


class PixelSimilarity(NamedTuple):
    """How similar the files of two images are; detail and colour are 0 if the layouts differ."""

    layout: float
    detail: float = 0.0
    colour: float = 0.0


def find_near_pairs(
    snapshot: Snapshot, paths: Mapping[int, str], progress: Progress
) -> dict[Pair, Similarity]:
    """Return the pairs of rows that are nearly the same; `paths` has all rows to compare."""
    pairs = find_candidate_pairs(snapshot, sorted(paths), progress)
    compared = compare_files(pairs, paths, progress)
    pairs |= {pair: pairs[pair]._replace(**c._asdict()) for pair, c in compared.items()}
    return {pair: similarity for pair, similarity in pairs.items() if similarity.is_near}


def find_candidate_pairs(
    snapshot: Snapshot, rows: list[int], progress: Progress
) -> dict[Pair, Similarity]:
    """Return the pairs with similar words and vectors that a search with each row finds."""
    bags, searcher = snapshot.bags, snapshot.searcher
    images = snapshot.images(snapshot.rows)
    left_out = np.setdiff1d(snapshot.rows, rows)
    if len(left_out):
        searcher = searcher.updated(bags["words"], bags["tf"], removed=left_out)
    searcher.prepare_for(len(rows))
    pairs: dict[Pair, Similarity] = {}
    for start in range(0, len(rows), _QUERIES_AT_ONCE):
        block = rows[start : start + _QUERIES_AT_ONCE]
        queries = [WeightedWords.from_bag(images.read_bag(row, full=False)) for row in block]
        ranked = searcher.search_many(queries, CANDIDATES + 1)
        for row, (others, _) in zip(block, ranked, strict=True):
            dense_ne, dense_e = snapshot.dense_ne, snapshot.dense_ne[row].astype(np.float32)
            similarities = cosines(dense_ne, dense_e, others, compiled=searcher.has_index)
            for other, cosine in zip(others.tolist(), similarities.tolist(), strict=True):
                pair = (min(row, other), max(row, other))
                if cosine >= MIN_COSINE and other != row and pair not in pairs:
                    own, others_bag = (images.read_bag(r, full=False) for r in (row, other))
                    pairs[pair] = Similarity(cosine, compare_words(own, others_bag))
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
    """Read each file once; leave out pairs with an unreadable file or two images of one grey."""
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
            layout = (float(layouts.max()), row, int(layouts.argmax()))
            best[pair] = max(layout, best.get(pair, (0.0, row, 0)))
    return {pair: _compare_pixels(pair, *layout, thumbnails) for pair, layout in best.items()}


def make_thumbnail(source: Source) -> Thumbnail:
    image = Image.fromarray(images.decode_image(source, short_side=2 * _GREY_SIDE))
    grey = image.convert("L").resize((_GREY_SIDE, _GREY_SIDE), Image.Resampling.BOX)
    colour = image.resize((_COLOUR_SIDE, _COLOUR_SIDE), Image.Resampling.BOX).convert("YCbCr")
    return Thumbnail(grey, np.asarray(colour)[..., 1:])


def view_whole(thumbnail: Thumbnail) -> Views | None:
    """Return the view of a whole image, with norm 1; None if it is all of one grey."""
    view = _view(thumbnail.grey, _WHOLE)
    norm = float(np.linalg.norm(view))
    return view / np.float32(norm) if norm >= _MIN_CONTRAST else None


def view_parts(thumbnail: Thumbnail) -> Views:
    views = np.array([_view(_rotate(thumbnail.grey, degrees), box) for degrees, box in _PARTS])
    norms = np.linalg.norm(views, axis=1, keepdims=True)
    return np.asarray(views / np.maximum(norms, _MIN_CONTRAST), dtype=np.float32)


def compare_detail(grey: Image.Image, box: Box, whole: Image.Image) -> float:
    """Return how similar a part of one image is to another one in what is small.

    The sides of the part are adjusted until the two are similar enough: a view of the layout is
    only near the crop that was made.
    """
    other = _view_detail(whole, _WHOLE)
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
    levels = []
    for pixels, part in ((colour, box), (whole, _WHOLE)):
        channels = [Image.fromarray(np.ascontiguousarray(pixels[..., n])) for n in range(2)]
        resized = [_resize(c, part, _COLOUR_SIDE // 2, Image.Resampling.BOX) for c in channels]
        levels.append(np.array(resized) - 128)
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
    detail = compare_detail(_rotate(cropped.grey, degrees), box, whole.grey)
    return PixelSimilarity(layout, detail, compare_colour(cropped.colour, box, whole.colour))


def _list_parts() -> Iterator[tuple[float, Box]]:
    """Yield angles in degrees and boxes of the rotated image: the whole, crops, rotations."""
    yield 0.0, _WHOLE
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


def _rotate(grey: Image.Image, degrees: float) -> Image.Image:
    return grey.rotate(degrees, Image.Resampling.BILINEAR) if degrees else grey


def _view(grey: Image.Image, box: Box) -> Views:
    values = _resize(grey, box, _VIEW_SIDE, Image.Resampling.BOX).ravel()
    return np.asarray(values - values.mean(), dtype=np.float32)


def _view_detail(grey: Image.Image, box: Box) -> Views:
    """Return a view with norm 1 from which what is coarse was subtracted: the mean around."""
    view = _resize(grey, box, _DETAIL_SIDE, Image.Resampling.BILINEAR)
    size = 2 * _DETAIL_RADIUS + 1
    sums = np.pad(view, _DETAIL_RADIUS, mode="edge").cumsum(axis=0).cumsum(axis=1)
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
    pool = ThreadPoolExecutor(available_cpus())
    try:
        results = pool.map(read, paths.values())
        for done, (row, thumbnail) in enumerate(zip(paths, results, strict=True), start=1):
            if thumbnail is not None:
                thumbnails[row] = thumbnail
            progress("comparing files", done, len(paths))
    finally:
        pool.shutdown(cancel_futures=True)  # `progress` may end it
    return thumbnails
