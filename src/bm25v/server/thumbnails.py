"""Small versions of images, made once and kept in the cache folder.

In: the content hash of an image, and a way to read it. Out: the bytes of a JPEG without metadata.
Files are named by content, so a moved or copied image needs no other thumbnail, and a changed one
gets its own. Not this module's job: reading the image.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bm25v.errors import StorageFull
from bm25v.files import read_limited, replace_file
from bm25v.images import make_thumbnail

_MAX_BYTES = 10_000_000
_END_OF_JPEG = b"\xff\xd9"


class Thumbnails:
    """The thumbnails in one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, content: bytes, side: int) -> bytes | None:
        """Return a thumbnail that was made before."""
        with suppress(OSError, ValueError):
            thumbnail = read_limited(self._path(content, side), _MAX_BYTES)
            if thumbnail.endswith(_END_OF_JPEG):
                return thumbnail
        return None

    def make(self, content: bytes, side: int, read: Callable[[], bytes]) -> bytes:
        """Make a thumbnail, and keep it if the disk allows."""
        thumbnail = make_thumbnail(read(), side=side)
        path = self._path(content, side)
        with suppress(OSError, StorageFull):  # it is a cache
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, thumbnail)
        return thumbnail

    def _path(self, content: bytes, side: int) -> Path:
        name = content.hex()
        return self._folder / name[:2] / f"{name}-{side}.jpg"
