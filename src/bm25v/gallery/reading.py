"""Reads and encodes files side by side, in order, a few ahead."""

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from threadpoolctl import threadpool_limits

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.errors import ImageError
from bm25v.gallery.writer import FileState
from bm25v.vocabulary import Encoding, Vocabulary


class Read(NamedTuple):
    """A file that was read; not encoded where its content is known already."""

    file: FileState
    encoding: Encoding | None


class _New(NamedTuple):
    """A file whose content is not known, ready for the backbone."""

    file: FileState
    pixels: Floats


Outcome = Read | ImageError


def read_files(
    paths: list[str], vocabulary: Vocabulary, is_known: Callable[[bytes], bool]
) -> Iterator[tuple[str, Outcome]]:
    """Give each path with what became of it; `is_known` is asked about content hashes."""
    if not paths:
        return  # and the backbone is never asked for
    workers = os.cpu_count() or 1
    size = vocabulary.backbone.batch_size
    chunks = (paths[start : start + size] for start in range(0, len(paths), size))
    ahead: deque[tuple[list[str], Future[list[Outcome]]]] = deque()
    pool = ThreadPoolExecutor(workers)
    # One thread a picture: threads inside the matrix products would only wait for each other.
    with threadpool_limits(1, user_api="blas"):
        try:
            for chunk in chunks:
                ahead.append((chunk, pool.submit(_read_chunk, chunk, vocabulary, is_known)))
                if len(ahead) > 2 * workers:
                    yield from _finished(*ahead.popleft())
            while ahead:
                yield from _finished(*ahead.popleft())
        finally:
            pool.shutdown(cancel_futures=True)


def _finished(chunk: list[str], future: Future[list[Outcome]]) -> Iterator[tuple[str, Outcome]]:
    return zip(chunk, future.result(), strict=True)


def _read_chunk(
    paths: list[str], vocabulary: Vocabulary, is_known: Callable[[bytes], bool]
) -> list[Outcome]:
    found = [_prepared(path, vocabulary, is_known) for path in paths]
    pixels = [one.pixels for one in found if isinstance(one, _New)]
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [Read(one.file, next(encodings)) if isinstance(one, _New) else one for one in found]


def _prepared(
    path: str, vocabulary: Vocabulary, is_known: Callable[[bytes], bool]
) -> _New | Outcome:
    try:
        file = read_state(path)
        if is_known(file.content):
            return Read(file, None)
        pixels = vocabulary.prepare(path)
        if not is_same_file(path, file.size, file.mtime_ns):
            raise ImageError("has changed while it was read: run the command again")
        return _New(file, pixels)
    except ImageError as error:
        return error


def read_state(path: str) -> FileState:
    """Return what tells this file from others: its content's hash, size and time."""
    with images.open_stream(path) as file:
        images.detect_format(
            file.read(images.HEAD_SIZE)
        )  # what is no picture is not read to its end
        file.seek(0)
        content = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
        found = os.fstat(file.fileno())
    return FileState(path, content, found.st_size, found.st_mtime_ns)


def is_same_file(path: str, size: int, mtime_ns: int) -> bool:
    """Say whether a file still has the size and time it had."""
    try:
        found = os.stat(path)
    except OSError:
        return False
    return found.st_size == size and found.st_mtime_ns == mtime_ns
