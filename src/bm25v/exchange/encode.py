"""Encodes images to a folder of bags, without a gallery; a run that was interrupted continues.

The images of a run are divided into parts in their order, and a part becomes a file, complete or
not at all: what is in a file is not encoded again, unless the image has changed.
"""

import os
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

from bm25v.errors import ImageError, InvalidOption
from bm25v.exchange.parquet import (
    BagFolder,
    FailedImage,
    Row,
    find_parts,
    format_part,
    part_name,
    require_pyarrow,
)
from bm25v.files import make_folder, replace_file
from bm25v.progress import Progress
from bm25v.store.base import Failure, IndexReport
from bm25v.store.encoding import ImageBags, NamedImage, Outcome, encode_images
from bm25v.store.files import has_size_and_time, require_images, size_and_time, walk_files
from bm25v.store.local.database import locking
from bm25v.store.meta import Meta, check_same_bags, describe_vocabulary
from bm25v.vocabulary import Vocabulary


class Part(NamedTuple):
    """Images that become one file."""

    number: int
    paths: list[str]


# Parts in; the number and the content of each file out, in any order.
EncodeParts = Callable[[Sequence[Part], Progress], Generator[tuple[int, bytes]]]


@dataclass(frozen=True)
class EncodeReport:
    """What happened to the images that were given."""

    encoded: int
    unchanged: int  # in a file already
    failed: list[Failure]  # those of earlier runs are `known`
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "failed": [failure._asdict() for failure in self.failed]}


def encode_folder(
    inputs: Sequence[str],
    folder: Path,
    meta: Meta,
    encode_parts: EncodeParts,
    *,
    exclude: tuple[str, ...],
    images_per_file: int,
    retry: bool,
    progress: Progress,
) -> EncodeReport:
    """Add the images at some paths to a folder of bags.

    With `retry`, images that could not be read are read again, also if they have not changed.
    """
    start = time.perf_counter()
    require_pyarrow()
    walked = IndexReport()
    paths = _list_paths(inputs, exclude, walked)
    make_folder(folder)
    with locking(folder / "encode.lock", "writing to", timeout=0):
        done = _find_encoded(folder, meta, set(paths), retry)
        parts = _divide(paths, done, find_parts(folder), images_per_file)
        with closing(encode_parts(parts, progress)) as contents:
            for number, content in contents:
                replace_file(folder / part_name(number), content)
        failed = _find_failures(folder, set(paths), done)
    n_known = sum(failure.known for failure in failed)
    return EncodeReport(
        encoded=sum(len(part.paths) for part in parts) - (len(failed) - n_known),
        unchanged=len(done) - n_known,
        failed=walked.failed + failed,
        seconds=time.perf_counter() - start,
    )


def encode_here(vocabulary: Vocabulary, workers: int) -> EncodeParts:
    def encode_parts(parts: Sequence[Part], progress: Progress) -> Generator[tuple[int, bytes]]:
        meta = describe_vocabulary(vocabulary)
        named = (NamedImage(path) for part in parts for path in part.paths)
        total = sum(len(part.paths) for part in parts)
        done = count(1)
        encoded = encode_images(named, vocabulary, lambda content: None, workers, progress)
        with closing(encoded):
            for part in parts:
                rows = []
                for path, outcome in islice(encoded, len(part.paths)):
                    rows.append(_to_row(path, outcome))
                    progress("encoding", next(done), total)
                yield part.number, format_part(rows, meta)

    return encode_parts


def _to_row(path: str, outcome: Outcome) -> Row:
    if isinstance(outcome, ImageError):
        try:
            return FailedImage(path, *size_and_time(os.stat(path)), str(outcome))
        except OSError:
            return FailedImage(path, None, None, str(outcome))
    file, encoding = outcome
    assert encoding is not None  # no content was said to be known
    return ImageBags.of(file, encoding)


def _list_paths(inputs: Sequence[str], exclude: tuple[str, ...], report: IndexReport) -> list[str]:
    """Return the image files of folders and lists, absolute, each once, as they are indexed."""
    paths: dict[str, None] = {}
    for given in map(os.path.abspath, inputs):
        if not given.endswith(".txt") or os.path.isdir(given):
            require_images([given], exclude)
            paths |= dict.fromkeys(walk_files([given], exclude, report))
            continue
        try:
            lines = Path(given).read_bytes().splitlines()
        except OSError as error:
            raise InvalidOption(f"{given}: {error.strerror}") from error
        listed = (os.path.abspath(os.fsdecode(line)) for line in lines if line.strip())
        paths |= dict.fromkeys(listed)
    return list(paths)


def _find_encoded(folder: Path, meta: Meta, paths: set[str], retry: bool) -> set[str]:
    """Return which images are in the files as they are now; delete the rows of changed ones."""
    if not find_parts(folder):
        return set()
    bags = BagFolder(folder)
    check_same_bags(bags.meta, meta, str(folder), f"vocabulary {meta.vocabulary}")
    done: set[str] = set()
    stale: dict[int, set[str]] = {}
    for number, row in bags.states():
        if row.path in paths:
            if _is_unchanged(row) and not (retry and row.error):
                done.add(row.path)
            else:
                stale.setdefault(number, set()).add(row.path)
    for number, changed in stale.items():
        _delete_rows(bags, number, changed)
    return done


def _is_unchanged(row: FailedImage) -> bool:
    if row.size is None or row.mtime_ns is None:
        return not os.path.lexists(row.path)
    return has_size_and_time(row.path, row.size, row.mtime_ns)


def _delete_rows(bags: BagFolder, number: int, paths: set[str]) -> None:
    rows: list[Row] = []
    for batch in bags.read_part(number):
        rows += [image for image in batch.images if image.file.path not in paths]
        rows += [failed for failed in batch.failed if failed.path not in paths]
    if rows:
        replace_file(bags.parts[number], format_part(rows, bags.meta))
    else:
        bags.parts[number].unlink()


def _divide(
    paths: Sequence[str], done: set[str], taken: dict[int, Path], images_per_file: int
) -> list[Part]:
    """Divide all images into parts, and return what is left to encode of each.

    The same images are divided in the same way, so a run that continues another one writes the
    files that are missing. A number that is taken, because images were added, becomes a new one.
    """
    parts = []
    n_parts = -(-len(paths) // images_per_file)
    free = count(max([n_parts - 1, *taken]) + 1)
    for number in range(n_parts):
        images = paths[number * images_per_file : (number + 1) * images_per_file]
        missing = [path for path in images if path not in done]
        if missing:
            parts.append(Part(next(free) if number in taken else number, missing))
    return parts


def _find_failures(folder: Path, paths: set[str], known: set[str]) -> list[Failure]:
    if not find_parts(folder):
        return []
    return [
        Failure(row.path, row.error, known=row.path in known)
        for _, row in BagFolder(folder).states()
        if row.error and row.path in paths
    ]
