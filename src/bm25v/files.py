"""The one way to write a file: complete and synced, or not at all.

In: a path and its new content. Out: the file on disk; a reader sees the old content or the new one,
never a part. Append-only row files are the exception: `gallery.rows` writes those. Not this
module's job: turning `OSError` into an error for users; callers know what the file is for.
"""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes | str) -> None:
    """Write a file, or replace it; text is UTF-8.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "names.tsv"
    >>> replace_file(path, "word, name")
    >>> path.read_bytes()
    b'word, name'
    """
    with replacing_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing_file(path: Path) -> Iterator[BinaryIO]:
    """Yield a file to write to; it replaces `path` once the block ends without error."""
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with scratch.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder's list of files, on systems that can open a folder."""
    if os.name == "nt":  # Windows: cannot open a folder
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
