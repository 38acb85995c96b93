"""Images to add, as they are given, and their encoding in parallel, in the order given."""

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError, InvalidOption
from bm25v.images import Source
from bm25v.progress import Progress, no_progress, show_downloads
from bm25v.store.base import AddOptions
from bm25v.store.files import FileState, check_path, check_unchanged, hash_image, read_file
from bm25v.store.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import Bag, FullBag


class NamedImage(NamedTuple):
    """An image to index: a file, or an image from memory with an id."""

    path: str  # or the id
    image: Source | NDArray[np.uint8] | None = None  # None: the file at the path


class EncodedImage(NamedTuple):
    """An image that was read; it has no encoding if its content is known."""

    file: FileState
    encoding: Encoding | None


@dataclass(frozen=True)
class ImageBags:
    """What is stored of one image: its file, its bags, its dense vector."""

    file: FileState  # its path is the key: a path, or the id of an image from memory
    bag: Bag
    full_bag: FullBag
    dense_e: NDArray[np.float16]

    @classmethod
    def of(cls, file: FileState, encoding: Encoding) -> "ImageBags":
        return cls(file, encoding.bag, encoding.full_bag, encoding.dense_e.astype("float16"))


Outcome = EncodedImage | ImageError
FindKnown = Callable[[bytes], ImageRecord | None]  # an image with this content hash
Pending = deque[Future[list[tuple[str, Outcome]]]]


def parse_images(given: Any) -> list[str] | Iterator[tuple[Any, Any]]:
    """Return what to add: absolute paths, or pairs of an id and an image from memory.

    >>> list(parse_images({"cat": b"bytes of a file"}))
    [('cat', b'bytes of a file')]
    """
    if isinstance(given, str | os.PathLike):
        given = [given]
    is_image = isinstance(given, bytes | np.ndarray) or hasattr(given, "read")
    if is_image or not isinstance(given, Iterable):
        raise InvalidOption(
            f"a {type(given).__name__} in place of paths: give paths, or images from memory with "
            "ids, such as add({'cat-7': image})"
        )
    items = iter(given.items() if isinstance(given, Mapping) else given)
    first = next(items, None)
    if isinstance(first, tuple):
        return chain([first], items)
    paths = [] if first is None else [first, *items]
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise InvalidOption(
                f"a {type(path).__name__} among paths: give images from memory with ids, such as "
                "add({'cat-7': image})"
            )
    return [os.path.abspath(check_path(path)) for path in paths]


def check_named_images(pairs: Iterable[Any]) -> Iterator[NamedImage]:
    """Yield images from memory; raise `InvalidOption` for an id or an image that is none."""
    known: set[str] = set()
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise InvalidOption(
                f"a {type(pair).__name__} among pairs: give (id, image) for each image"
            )
        name, image = pair
        if not isinstance(name, str) or not name.strip():
            raise InvalidOption(f"{name!r} is not an id: give each image a text that identifies it")
        if os.path.isabs(name):
            raise InvalidOption(
                f"the id {name!r} is an absolute path: add files by their paths alone"
            )
        if name.endswith(("/", os.sep)):
            raise InvalidOption(f"the id {name!r} ends in a slash, as a folder does: leave it out")
        if name in known:
            raise InvalidOption(f"the id {name!r} occurs twice: give each image its own")
        known.add(name)
        try:
            yield NamedImage(name, images.read_input(image))
        except InvalidOption as error:
            raise InvalidOption(f"image {name!r}: {error}") from None


def check_options(given: list[str] | Iterator[Any], options: AddOptions) -> None:
    """Raise `InvalidOption` for options that have no meaning for what is added."""
    workers, is_memory = options["workers"], not isinstance(given, list)
    if is_memory and (options["exclude"] or options["remove_missing"]):
        raise InvalidOption("exclude and remove_missing are for files, not for images from memory")
    if workers is not None and workers < 1:
        raise InvalidOption(f"workers = {workers}: give at least 1")


def encode_images(
    named: Iterator[NamedImage],
    vocabulary: Vocabulary,
    find_known: FindKnown,
    workers: int,
    progress: Progress = no_progress,
    pending: Pending | None = None,
) -> Generator[tuple[str, Outcome]]:
    """Read and encode images in parallel; yield each path with its outcome, in order.

    What `find_known` returns an image for is not encoded again. `pending` gets what was begun and
    not yet yielded, for `list_finished`.
    """
    pending = deque() if pending is None else pending
    pool = ThreadPoolExecutor(workers)
    try:
        for chunk in _split_in_batches(named, vocabulary, progress):
            pending.append(pool.submit(_encode_chunk, chunk, vocabulary, find_known))
            if len(pending) > 2 * workers:
                yield from _wait_for(pending[0])
                pending.popleft()
        while pending:
            yield from _wait_for(pending[0])
            pending.popleft()
    finally:
        # After Ctrl-C nobody waits for images that are being decoded: one can take seconds.
        pool.shutdown(wait=False, cancel_futures=True)


def _wait_for(future: Future[list[tuple[str, Outcome]]]) -> list[tuple[str, Outcome]]:
    # Ctrl-C just before a wait begins takes effect only after it, so no single wait is long.
    while not wait([future], timeout=1).done:
        pass
    return future.result()


def list_finished(pending: Pending) -> Iterator[tuple[str, Outcome]]:
    """Yield what is encoded although `encode_images` was interrupted; some may be known already."""
    for future in pending:
        if future.done() and not future.cancelled() and future.exception() is None:
            yield from future.result()


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


def _encode_chunk(
    chunk: list[NamedImage], vocabulary: Vocabulary, find_known: FindKnown
) -> list[tuple[str, Outcome]]:
    prepared = [_prepare_image(named, vocabulary, find_known) for named in chunk]
    pixels = [pixels for _, pixels in prepared if pixels is not None]
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    outcomes = (
        outcome
        if isinstance(outcome, ImageError) or pixels is None
        else outcome._replace(encoding=next(encodings))
        for outcome, pixels in prepared
    )
    return list(zip((named.path for named in chunk), outcomes, strict=True))


def _prepare_image(
    named: NamedImage, vocabulary: Vocabulary, find_known: FindKnown
) -> tuple[Outcome, Floats | None]:
    """Return an image without its encoding, and the pixels to encode if its content is new."""
    try:
        image = named.path if named.image is None else named.image
        if isinstance(image, bytes | np.ndarray):
            n_bytes = image.nbytes if isinstance(image, np.ndarray) else len(image)
            file = FileState(named.path, hash_image(image), n_bytes, time.time_ns())
        else:
            file, image = read_file(os.fspath(image))
        known = find_known(file.content)
        if known is not None:
            state = file._replace(path=named.path, metadata=known.metadata)
            return EncodedImage(state, None), None
        pixels_hwc, metadata = vocabulary.decode_with_metadata(image)
        pixels = vocabulary.backbone.prepare_image(pixels_hwc)
        if isinstance(image, str):
            check_unchanged(file)
        return EncodedImage(file._replace(path=named.path, metadata=metadata), None), pixels
    except ImageError as error:
        return error, None
