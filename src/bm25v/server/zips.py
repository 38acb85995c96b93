"""Files of several images as one zip file, which is sent while it is made.

A file that cannot be sent is left out, and `missing.txt` in the zip file says why: what was sent
already cannot be taken back. One that changes while it is sent ends the connection. The slot is
taken until the last byte is sent, and a thread only while the next part is made, so that slow
readers delay nothing but other zip files.
"""

import os
import re
import time
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from io import RawIOBase
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response, StreamingResponse

from bm25v.server import problems
from bm25v.server.images import ImageId, from_id, open_file, read_pieces
from bm25v.server.problems import Problem
from bm25v.server.responses import PREFIX
from bm25v.server.service import ZIPPING, Served, read_json, with_json
from bm25v.store.records import ImageRecord

MAX_BYTES = 2_000_000_000  # of all files together, so that a zip file needs no 64-bit sizes
MAX_IDS = 1_000
MISSING = "missing.txt"

_NOT_IN_NAMES = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*]')  # in names of files on any system
_EARLIEST, _LATEST = 315_532_800 + 86_400, 4_354_819_199 - 86_400  # seconds of dates in zip files


class ZipBody(BaseModel):
    """Images whose files are to be in a zip file."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[ImageId] = Field(min_length=1, max_length=MAX_IDS)


router = APIRouter(prefix=PREFIX, tags=["images"], responses=problems.RESPONSES)


@router.post(
    "/zip",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/zip": {}}}},
    **with_json(ZipBody, ZIPPING),
)
def zip_files(service: Served, body: Annotated[ZipBody, read_json(ZipBody)]) -> Response:
    """Return the files of images as a zip file, of at most 2 GB.

    They are in no folders; a number is added to a name that another file has. A file that cannot
    be read, or has changed since it was indexed, is left out and listed in `missing.txt`.
    """
    paths = [from_id(image_id) or image_id for image_id in dict.fromkeys(body.ids)]
    known = service.gallery.store.read(lambda view: view.find(paths))
    records = {path: record for path, record in known.items() if record.path == path}
    size = sum(record.size for record in records.values())
    if size > MAX_BYTES:
        detail = f"the files have {size / 1e9:.1f} GB, a zip file has at most 2 GB: choose fewer"
        raise Problem(400, "too-many-bytes", detail)
    images = {path: records.get(path) for path in paths}
    return StreamingResponse(
        _zip(images, strip=service.strip_metadata),
        headers={"Content-Disposition": 'attachment; filename="images.zip"'},
        media_type="application/zip",
    )


class _Parts(RawIOBase):
    """A stream of what was written since it was last read."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, part: Any) -> int:
        self._parts.append(bytes(part))
        return len(part)

    def take(self) -> bytes:
        content = b"".join(self._parts)
        self._parts.clear()
        return content


def _zip(images: dict[str, ImageRecord | None], *, strip: bool) -> Iterator[bytes]:
    parts, missing, used = _Parts(), [], {MISSING}
    with zipfile.ZipFile(parts, "w") as archive:
        for path, record in images.items():
            with ExitStack() as stack:
                try:
                    if record is None:
                        raise Problem(
                            404, "unknown-image", "the gallery has no such image any more"
                        )
                    file = open_file(record, stack, strip=strip)
                except Problem as problem:
                    missing.append(f"{_to_text(path)}: {problem.detail}\n")
                    continue
                date = _to_date(0 if strip else record.mtime_ns // 10**9)
                info = zipfile.ZipInfo(_choose_name(os.path.basename(path), used), date)
                info.file_size = file.size
                with archive.open(info, mode="w") as entry:
                    for part in read_pieces(file):
                        entry.write(part)
                        yield parts.take()
        if missing:
            archive.writestr(zipfile.ZipInfo(MISSING), "".join(missing))
    yield parts.take()


def _choose_name(name: str, used: set[str]) -> str:
    """Return a name that no other file has, whatever the case, and add it to those used.

    >>> used = {"cat.jpg"}
    >>> _choose_name("Cat.jpg", used), _choose_name("cat.jpg", used), _choose_name(":", used)
    ('Cat-2.jpg', 'cat-3.jpg', '_')
    """
    name = _NOT_IN_NAMES.sub("_", _to_text(name))
    stem, suffix = os.path.splitext(name)
    number = 1
    while name.lower() in used:
        number += 1
        name = f"{stem}-{number}{suffix}"
    used.add(name.lower())
    return name


def _to_text(path: str) -> str:
    """Return a path as text that can be written; its bytes may be none."""
    return os.fsencode(path).decode(errors="replace")


def _to_date(seconds: int) -> tuple[int, int, int, int, int, int]:
    date = time.localtime(min(max(seconds, _EARLIEST), _LATEST))
    return date.tm_year, date.tm_mon, date.tm_mday, date.tm_hour, date.tm_min, date.tm_sec
