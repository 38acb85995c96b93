"""Reads, hashes, decodes and encodes images in parallel, in the order given.

Known content is not encoded again.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError
from bm25v.images import Source
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.store.local.file_state import FileState, has_size_and_time, hash_image, read_file_state
from bm25v.store.local.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary


class NamedImage(NamedTuple):
    """An image to index: a file, or an image from memory with an id."""

    path: str  # or the id
    image: Source | NDArray[np.uint8] | None = None  # None: the file at the path


class EncodedImage(NamedTuple):
    """An image that was read; it has no encoding if its content is known."""

    file: FileState
    encoding: Encoding | None


class _PreparedImage(NamedTuple):
    """An image with new content, ready for the backbone."""

    file: FileState
    pixels: Floats


Outcome = EncodedImage | ImageError
FindKnown = Callable[[bytes], ImageRecord | None]  # an image with this content hash


def encode_images(
    named: Iterator[NamedImage],
    vocabulary: Vocabulary,
    find_known: FindKnown,
    workers: int,
    progress: Progress = no_progress,
) -> Generator[tuple[str, Outcome]]:
    """Read and encode images in parallel; yield each path with its outcome, in order.

    What `find_known` returns an image for is not encoded again.
    """
    pending: deque[tuple[list[NamedImage], Future[list[Outcome]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for chunk in _split_in_batches(named, vocabulary, progress):
            pending.append((chunk, pool.submit(_encode_chunk, chunk, vocabulary, find_known)))
            if len(pending) > 2 * workers:
                yield from _wait_for(*pending.popleft())
        while pending:
            yield from _wait_for(*pending.popleft())
    finally:
        # After Ctrl-C nobody waits for images that are being decoded: one can take seconds.
        pool.shutdown(wait=False, cancel_futures=True)


def _split_in_batches(
    named: Iterator[NamedImage], vocabulary: Vocabulary, progress: Progress
) -> Iterator[list[NamedImage]]:
    """Yield as many images as the backbone takes at once; it is loaded if there is an image."""
    first = list(islice(named, 1))
    if first:
        with show_downloads(progress):
            vocabulary.backbone.load_weights()  # once, before all workers need it
    named = chain(first, named)
    while first and (batch := list(islice(named, vocabulary.backbone.batch_size))):
        yield batch


def _wait_for(
    chunk: list[NamedImage], future: Future[list[Outcome]]
) -> Iterator[tuple[str, Outcome]]:
    return zip((named.path for named in chunk), future.result(), strict=True)


def _encode_chunk(
    chunk: list[NamedImage], vocabulary: Vocabulary, find_known: FindKnown
) -> list[Outcome]:
    prepared = [_prepare_image(named, vocabulary, find_known) for named in chunk]
    pixels = [image.pixels for image in prepared if isinstance(image, _PreparedImage)]
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [
        EncodedImage(image.file, next(encodings)) if isinstance(image, _PreparedImage) else image
        for image in prepared
    ]


def _prepare_image(
    named: NamedImage, vocabulary: Vocabulary, find_known: FindKnown
) -> _PreparedImage | Outcome:
    try:
        image = named.path if named.image is None else named.image
        if isinstance(image, bytes | np.ndarray):
            n_bytes = image.nbytes if isinstance(image, np.ndarray) else len(image)
            file = FileState(named.path, hash_image(image), n_bytes, time.time_ns())
        else:
            file = read_file_state(os.fspath(image))._replace(path=named.path)
        known = find_known(file.content)
        if known is not None:
            return EncodedImage(file._replace(metadata=known.metadata), None)
        pixels_hwc, metadata = vocabulary.decode_with_metadata(image)
        pixels = vocabulary.backbone.prepare_image(pixels_hwc)
        if isinstance(image, str | os.PathLike) and not has_size_and_time(
            os.fspath(image), file.size, file.mtime_ns
        ):
            raise ImageError("the file changed while it was read: run the command again")
        return _PreparedImage(file._replace(metadata=metadata), pixels)
    except ImageError as error:
        return error
