"""The images of a query in, the words and the dense vector of each out.

An image is encoded, or read from the collection if it is stored there and has no file, or is not to
be read; a region selects patches. Not this module's job: combining several (`combine`).
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, InvalidQuery
from bm25v.images import ImageInput
from bm25v.sae.model import Codes
from bm25v.search import regions
from bm25v.search.contract import SearchEngine, View
from bm25v.search.query import Query, QueryImage, StoredImage
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import Bag, pool_codes
from bm25v.vocabulary.folder import MAX_K_POST


class QueryPart(NamedTuple):
    """The words and the dense vector of one image or text of a query."""

    bag: Bag
    dense_e: NDArray[np.floating] | None
    no_dense: str = ""  # the reason, if there is no dense vector


def encode_images(
    query: Query,
    engine: SearchEngine,
    view: View,
    encodings: Sequence[Encoding] | None,
    full: bool,
) -> tuple[list[QueryPart], list[Codes]]:
    """Return the parts of the query's images, and where their words are.

    A `StoredImage`, and an image of the gallery whose file no longer exists or that was added from
    memory, is searched with what is stored; where its words are is known by its encoding alone.
    """
    parts, codes = [], []
    for number, image in enumerate(query.images):
        is_stored = encodings is None or isinstance(image, StoredImage)
        stored = find_without_file(image, engine) if is_stored else None
        if stored is not None:
            if query.region is not None:
                raise InvalidQuery(f"a region of {stored}: there is no file; give the image itself")
            parts.append(read_stored_image(stored, view, full, query.query_words))
            codes += [] if encodings is None else [encodings[number].codes]
            continue
        encoding = (
            encode_image(engine.vocabulary, image) if encodings is None else encodings[number]
        )
        if query.region is None:
            parts.append(to_part(encoding, query.query_words, full))
            codes.append(encoding.codes)
        else:
            part, part_codes = _cut_region(engine.vocabulary, encoding, query, full)
            parts.append(part)
            codes.append(part_codes)
    return parts, codes


def encode_batch(queries: Sequence[Query], engine: SearchEngine) -> list[Sequence[Encoding] | None]:
    """Encode the images of several queries at once.

    A query gets None if its images must be encoded alone: a region needs all features of an image,
    and an image without a file has none.
    """
    vocabulary = engine.vocabulary
    pixels: list[Floats] = []
    is_together = [
        query.region is None and not any(find_without_file(image, engine) for image in query.images)
        for query in queries
    ]
    for query in compress(queries, is_together):
        for image in query.images:
            if not isinstance(image, Encoding):
                with naming_image(image):
                    pixels.append(vocabulary.prepare(image))
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [
        [image if isinstance(image, Encoding) else next(encodings) for image in query.images]
        if together
        else None
        for query, together in zip(queries, is_together, strict=True)
    ]


def find_without_file(image: QueryImage, engine: SearchEngine) -> str | None:
    """Return the path or id of an image of the gallery whose file is missing or not to be read."""
    if isinstance(image, StoredImage):
        return image.path
    if not isinstance(image, str | os.PathLike) or os.path.exists(image):
        return None
    record = engine.find_record(os.fspath(image))
    return None if record is None else record.path


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
        with naming_image(image):
            size = images.read_metadata(image)[:2]
    return replace(query, region=regions.to_fractions(query.region, size))


def encode_image(vocabulary: Vocabulary, image: QueryImage) -> Encoding:
    if isinstance(image, Encoding):
        return image
    with naming_image(image):
        return vocabulary.encode(image)


@contextmanager
def naming_image(image: ImageInput) -> Iterator[None]:
    """Make an `ImageError` within the block start with the path of the image, if it has one."""
    try:
        yield
    except ImageError as error:
        if isinstance(image, str | os.PathLike):
            raise ImageError(f"{os.fspath(image)}: {error}") from error
        raise


def read_stored_image(
    path: str, view: View, full: bool, query_words: int | None = None
) -> QueryPart:
    """Return what the gallery has stored for an image; its file is not needed."""
    images, (row,), _ = view.find_image(path)
    bags = images.full_bags if full or query_words is not None else images
    bag = bags.bag(row).strongest(query_words)
    return QueryPart(bag, images.dense_vectors(np.array([row]))[0])


def to_part(encoding: Encoding, query_words: int | None, full: bool) -> QueryPart:
    """Return as many words of an encoded image as a search by full bags, or by the index, takes."""
    if query_words is not None or (full and encoding.codes.words_pk.size):
        bag = pool_codes(encoding.codes, k_post=query_words or MAX_K_POST)
    elif full:
        bag = encoding.full_bag.bag
    else:
        bag = encoding.bag
    return QueryPart(bag, encoding.dense_e)


def _cut_region(
    vocabulary: Vocabulary, encoding: Encoding, query: Query, full: bool
) -> tuple[QueryPart, Codes]:
    """Return the words and the vector of a region, from the whole image's features."""
    backbone = vocabulary.backbone
    assert query.region is not None
    weights_p = regions.patch_weights(query.region, backbone.grid)
    codes = regions.weigh_codes(encoding.codes, weights_p)
    n_words = MAX_K_POST if full else vocabulary.k_post
    bag = pool_codes(codes, k_post=query.query_words or n_words)
    dense_e = None
    if encoding.patches_pd is not None:
        mean_d = np.average(encoding.patches_pd, axis=0, weights=weights_p)
        dense_e = backbone.pool_dense(mean_d.astype(np.float32))
    reason = f"{backbone.name} has dense vectors of whole images, not of regions"
    return QueryPart(bag, dense_e, reason), codes
