"""The images of a query in, their words and dense vectors out.

Each image is resolved once: it is encoded, or read from the collection if it is stored there and
has no file, or is not to be read.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, ImageNotFound, InvalidQuery
from bm25v.images import ImageInput
from bm25v.sae.model import Codes
from bm25v.search import regions
from bm25v.search.query import Query, QueryImage, StoredImage, list_images, list_own_images
from bm25v.search.scoring import MODES, Mode
from bm25v.store.base import Candidates, View
from bm25v.store.files import has_size_and_time, hash_image, read_file_state
from bm25v.store.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import MAX_K_POST, Bag, pool_codes


class QueryPart(NamedTuple):
    """The words and the dense vector of one image of a query."""

    bag: Bag
    dense_e: NDArray[np.floating] | None
    no_dense: str = ""  # the reason, if there is no dense vector
    codes: Codes | None = None  # where its words are; None if only its words are known
    patches_pd: Floats | None = None


class ImageReader:
    """The images that a query names, each looked up once."""

    def __init__(self, query: Query, view: View, vocabulary: Vocabulary, mode: Mode) -> None:
        self._query, self._view, self._vocabulary = query, view, vocabulary
        self._full = MODES[mode].bags == "full"
        paths = [path for image in list_images(query) if (path := path_of(image)) is not None]
        self._records = view.find(list(dict.fromkeys(paths))) if paths else {}

    def list_own(self) -> tuple[tuple[str, ...], tuple[bytes, ...]]:
        """Return the paths and contents that hits must not have: those of the query itself."""
        if self._query.include_query:
            return (), ()
        own = list_own_images(self._query)
        contents = {content for image in own if (content := self._find_content(image)) is not None}
        named = (self._records.get(path) for image in own if (path := path_of(image)) is not None)
        paths = {record.path for record in named if record is not None}
        return tuple(sorted(paths)), tuple(sorted(contents))

    def _find_content(self, image: ImageInput | Encoding) -> bytes | None:
        """Return the hash of an image's file; it is not read if the collection knows it."""
        if isinstance(image, bytes | np.ndarray):
            return hash_image(image)
        path = path_of(image)
        if path is None:
            return None
        record = self._records.get(path)
        if record is not None and (
            isinstance(image, StoredImage)
            or has_size_and_time(record.path, record.size, record.mtime_ns)
        ):
            return record.content
        with suppress(ImageError):  # whoever needs the pixels reports it
            return read_file_state(path).content
        return None if record is None else record.content

    def read_stored(self, paths: Iterable[str]) -> list[QueryPart]:
        """Return what the collection has stored for some images; their files are not needed."""
        records = require_records(self._records, paths)
        if not records:
            return []
        stored = self._view.fetch(records)
        return [self._read_row(stored, row) for row in stored.rows.tolist()]

    def _read_row(self, stored: Candidates, row: int) -> QueryPart:
        n_words = self._query.query_words
        bag = stored.read_bag(row, full=self._full or n_words is not None)
        return QueryPart(bag.strongest(n_words), stored.dense_vectors(np.array([row]))[0])

    def read_image(
        self, image: QueryImage, given: Encoding | None = None, region: regions.Region | None = None
    ) -> QueryPart:
        """Return the words and the vector of an image or of its region, and where the words are.

        A `StoredImage`, and an image whose file no longer exists or that was added from memory, is
        searched with what is stored; where its words are is known by its encoding alone.
        """
        stored = None
        if given is None or isinstance(image, StoredImage):
            stored = find_without_file(image, self._records)
        if stored is not None:
            if region is not None:
                raise InvalidQuery(
                    f"cannot cut a region from the stored words of {stored}: give the image itself"
                )
            (part,) = self.read_stored([stored])
            if given is None:
                return part
            return part._replace(codes=given.codes, patches_pd=given.patches_pd)
        encoding = given or encode_image(self._vocabulary, image)
        codes, patches_pd = encoding.codes, encoding.patches_pd
        dense_e: NDArray[np.floating] | None = encoding.dense_e
        n_words, reason = self._query.query_words, ""
        if region is not None:
            backbone = self._vocabulary.backbone
            weights_p = regions.patch_weights(region, backbone.grid)
            codes = regions.weigh_codes(codes, weights_p)
            n_words = n_words or (MAX_K_POST if self._full else self._vocabulary.k_post)
            reason = f"{backbone.name} has dense vectors of whole images, not of regions"
            dense_e = None
            if patches_pd is not None:
                mean_d = np.average(patches_pd, axis=0, weights=weights_p)
                dense_e = backbone.pool_dense(mean_d.astype(np.float32))
        if n_words is not None:
            bag = pool_codes(codes, k_post=n_words)
        else:
            bag = (encoding.all_words or encoding.full_bag.bag) if self._full else encoding.bag
        return QueryPart(bag, dense_e, reason, codes, patches_pd)


def encode_batch(
    queries: Sequence[Query], vocabulary: Vocabulary, view: View
) -> list[Sequence[Encoding] | None]:
    """Encode the images of several queries at once.

    A query gets None if its images must be encoded alone: a region needs all features of an image,
    and an image without a file has none.
    """
    paths = {path for query in queries for i in query.images if (path := path_of(i)) is not None}
    missing = [path for path in paths if not os.path.exists(path)]
    records = view.find(missing) if missing else {}
    pixels: list[Floats] = []
    is_together = [
        query.region is None and not any(find_without_file(i, records) for i in query.images)
        for query in queries
    ]
    for query in compress(queries, is_together):
        for image in query.images:
            if not isinstance(image, Encoding):
                with error_prefix(image):
                    pixels.append(vocabulary.prepare(image))
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [
        [image if isinstance(image, Encoding) else next(encodings) for image in query.images]
        if together
        else None
        for query, together in zip(queries, is_together, strict=True)
    ]


def require_records(records: Mapping[str, ImageRecord], paths: Iterable[str]) -> list[ImageRecord]:
    """Return what is known about some images; raise `ImageNotFound` if one does not exist."""
    listed = []
    for path in paths:
        if path not in records:
            raise ImageNotFound(f"{path} is not in the gallery: index it first")
        listed.append(records[path])
    return listed


def path_of(image: object) -> str | None:
    """Return the path or id of an image; None if it is given by its content."""
    return os.fspath(image) if isinstance(image, str | os.PathLike) else None


def find_without_file(image: object, records: Mapping[str, ImageRecord]) -> str | None:
    """Return the path of an image that is searched with what is stored: its file is missing, or
    not to be read.
    """
    path = path_of(image)
    if path is None or isinstance(image, StoredImage):
        return path
    return path if path in records and not os.path.exists(path) else None


def resolve_region(query: Query) -> Query:
    """Return the query with its region in fractions of its image."""
    if query.region is None or not regions.is_in_pixels(query.region):
        return query
    (image,) = query.images
    if isinstance(image, Encoding):
        raise InvalidQuery("a region in pixels of an encoded image: give fractions between 0 and 1")
    if isinstance(image, np.ndarray):
        size = (image.shape[1], image.shape[0])
    else:
        with error_prefix(image):
            size = images.read_metadata(image)[:2]
    return replace(query, region=regions.to_fractions(query.region, size))


def encode_image(vocabulary: Vocabulary, image: QueryImage) -> Encoding:
    if isinstance(image, Encoding):
        return image
    with error_prefix(image):
        return vocabulary.encode(image)


@contextmanager
def error_prefix(image: ImageInput) -> Iterator[None]:
    """Make an `ImageError` within the block start with the path of the image, if it has one."""
    try:
        yield
    except ImageError as error:
        path = path_of(image)
        if path is not None:
            raise ImageError(f"{path}: {error}") from error
        raise
