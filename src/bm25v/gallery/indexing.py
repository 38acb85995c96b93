"""The way from files to rows: look, compare, encode side by side, commit in batches.

A file is unchanged if its size and time are; else its content decides. Content that has been seen
is not encoded again: it is a moved file if the old path is gone, else a copy.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bm25v import images
from bm25v.errors import ImageError, WrongUse
from bm25v.gallery.reading import Read, is_same_file, read_files
from bm25v.gallery.results import Failure, IndexReport
from bm25v.gallery.writer import Writer
from bm25v.vocabulary import Vocabulary

BATCH = 256  # pictures a commit
_BATCH_SECONDS = 10.0

Progress = Callable[[int, int], None]  # files done, files in all


@dataclass
class _Tally:
    added: int = 0
    updated: int = 0
    moved: int = 0
    unchanged: int = 0
    removed: int = 0
    failed: list[Failure] = field(default_factory=list)


def index(
    writer: Writer,
    vocabulary: Vocabulary,
    paths: list[str],
    *,
    remove_missing: bool,
    progress: Progress,
) -> IndexReport:
    """Bring the gallery in line with the files at the given paths, and say what was done."""
    start = time.perf_counter()
    refuse_empty(paths)
    tally = _Tally()
    todo = _changed_files(writer, paths, tally)
    progress(tally.unchanged, tally.unchanged + len(todo))
    _take_in(writer, vocabulary, todo, tally, progress)
    if remove_missing:
        _remove_missing(writer, paths, tally)
    writer.commit()
    failed = tuple(tally.failed)
    counts = (tally.added, tally.updated, tally.moved, tally.unchanged, tally.removed)
    return IndexReport(*counts, failed, time.perf_counter() - start)


def refuse_empty(paths: Iterable[str]) -> None:
    """Refuse paths that lead nowhere and folders without pictures: a drive may not be mounted."""
    for path in paths:
        if not os.path.lexists(path):
            raise WrongUse(f"{path} does not exist")
        if os.path.isdir(path) and next(images.find_images(path), None) is None:
            raise WrongUse(f"no pictures in {path}")


def _changed_files(writer: Writer, paths: list[str], tally: _Tally) -> list[str]:
    todo = []
    seen: set[str] = set()
    for path in _files(paths, tally):
        if len(paths) > 1:  # they may overlap
            if path in seen:
                continue
            seen.add(path)
        known = writer.catalog.at_path(path)
        if known is not None and is_same_file(path, known.size, known.mtime_ns):
            tally.unchanged += 1
        else:
            todo.append(path)
    return todo


def _files(paths: list[str], tally: _Tally) -> Iterator[str]:
    def note(path: Path, error: ImageError) -> None:
        tally.failed.append(Failure(str(path), str(error)))

    for path in paths:
        if os.path.isdir(path):
            yield from map(str, images.find_images(path, on_error=note))
        else:
            yield path


def _take_in(
    writer: Writer, vocabulary: Vocabulary, todo: list[str], tally: _Tally, progress: Progress
) -> None:
    if todo:
        vocabulary.backbone.load_weights()  # once, before the workers all try
    done = tally.unchanged
    total = done + len(todo)
    last_commit = time.monotonic()
    known = writer.catalog.with_content
    for path, result in read_files(todo, vocabulary, lambda content: known(content) is not None):
        if isinstance(result, ImageError):
            tally.failed.append(Failure(path, str(result)))
        else:
            _apply(writer, result, tally)
        if writer.n_pending >= BATCH or time.monotonic() - last_commit > _BATCH_SECONDS:
            writer.commit()
            last_commit = time.monotonic()
        done += 1
        progress(done, total)


def _apply(writer: Writer, result: Read, tally: _Tally) -> None:
    file = result.file
    here = writer.catalog.at_path(file.path)
    same = writer.catalog.with_content(file.content)
    if here is not None and here.content == file.content:
        writer.move(here.row, file)
        tally.unchanged += 1
        return
    if here is None and same is not None and same.live and _is_gone(same.path):
        writer.move(same.row, file)
        tally.moved += 1
        return
    if here is not None:
        writer.remove(here.row)
    if same is not None and not same.live:
        writer.move(same.row, file)
    elif same is not None:
        writer.put_copy(file, same.row)
    elif result.encoding is not None:
        writer.put(file, result.encoding.bag, result.encoding.dense_e)
    if here is None:
        tally.added += 1
    else:
        tally.updated += 1


def _remove_missing(writer: Writer, paths: list[str], tally: _Tally) -> None:
    for path in paths:
        for picture in writer.catalog.below(path):
            if _is_gone(picture.path):
                writer.remove(picture.row)
                tally.removed += 1


def _is_gone(path: str) -> bool:
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False
