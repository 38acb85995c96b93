"""Images of the gallery: ids, facts, months, files, thumbnails, duplicates.

An id is the path of the image, or the id that it was added with, in base64url. It is only looked up
in the gallery as it is, so that no id names a file that is not an image of the gallery. A file is
sent only if its content is what was indexed, also if another program overwrites it meanwhile.
"""

import base64
import binascii
import io
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from fastapi import APIRouter, Depends, Header, Query
from pydantic import Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from bm25v.client import to_id
from bm25v.deadline import check_deadline
from bm25v.duplicates import DuplicateGroup, find_duplicates
from bm25v.errors import ImageError, StorageFull, TookTooLong
from bm25v.files import read_limited, replace_file
from bm25v.gallery import Gallery
from bm25v.images import HEAD_SIZE, detect_format, make_thumbnail, open_stream
from bm25v.images.streams import Piece, Stream, stream_size
from bm25v.images.stripping import strip_metadata
from bm25v.render.commands import remove_command
from bm25v.search.query import OPTIONS
from bm25v.server import problems
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    DUPLICATE_PAGE,
    IMAGE_FACTS,
    IMAGE_PAGE,
    MONTHS,
    PREFIX,
    json_response,
)
from bm25v.server.service import COMPARING, LISTING, OpenGallery, Served
from bm25v.store.base import Filter
from bm25v.store.files import has_changed, hash_image, new_hash
from bm25v.store.filters import ImageFilter
from bm25v.store.records import ImageRecord, to_gallery_image

_MEDIA_TYPES = {  # those that are not called as the format
    "JPEG 2000": "image/jp2",
    "PNM": "image/x-portable-anymap",
}
_MAX_THUMBNAIL = 10_000_000  # bytes
_END_OF_JPEG = b"\xff\xd9"
_CHUNK = 2**18  # bytes of a file that are checked and sent at once
_CACHE_CONTROL = "private, max-age=300"  # then the browser asks whether the content has changed

ImageId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=20_000,
        description="The id of an image, as in all responses.",
        examples=["L3Bob3Rvcy9jYXQuanBn"],
    ),
]
Offset = Annotated[int, Field(ge=0, le=OPTIONS["offset"].most)]
Limit = Annotated[int, Query(ge=1, le=1000)]
SizeText = Annotated[str, Query(pattern=r"^[1-9][0-9]{0,5}(x[1-9][0-9]{0,5})?$")]
IfNoneMatch = Annotated[str, Header(include_in_schema=False)]
Side = Literal["64", "128", "256", "512", "1024"]


def from_id(image_id: str) -> str | None:
    """Return the path of an id; None if it is not written as `to_id` writes it.

    >>> from_id("L3Bob3Rvcy9jYXQuanBn"), from_id("../etc"), from_id("L3Bob3Rvcy9jYXQuanBn=")
    ('/photos/cat.jpg', None, None)
    """
    try:
        padding = "=" * (-len(image_id) % 4)
        path = os.fsdecode(base64.b64decode(image_id + padding, altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        return None
    return path if to_id(path) == image_id else None


def find_images(gallery: Gallery, image_ids: Iterable[str]) -> dict[str, ImageRecord]:
    """Return what is known about images, by id; raise a 404 `Problem` if there is none."""
    paths = {image_id: from_id(image_id) for image_id in image_ids}
    given = [path for path in paths.values() if path]
    records = gallery.store.read(lambda view: view.find(given)) if given else {}
    for image_id, path in paths.items():
        if not path or path not in records or records[path].path != path:
            raise Problem(404, "unknown-image", f"the gallery has no image with id {image_id!r}")
    return {image_id: records[path] for image_id, path in paths.items() if path}


def find_image(gallery: Gallery, image_id: str) -> ImageRecord:
    return find_images(gallery, [image_id])[image_id]


def read_file(record: ImageRecord) -> bytes:
    """Return the content of an image's file, which is what was indexed."""
    with ExitStack() as stack:
        content = _open_stream(record, stack).read(record.size)
    if hash_image(content) != record.content:
        raise _changed()
    return content


class OpenFile(NamedTuple):
    """The file of an image, and what of it is sent."""

    stream: Stream
    format: str
    pieces: list[Piece]

    @property
    def size(self) -> int:
        return sum(piece.end - piece.start for piece in self.pieces)


def open_file(record: ImageRecord, stack: ExitStack, *, strip: bool) -> OpenFile:
    """Open an image's file until `stack` is closed; raise a `Problem` if it cannot be sent.

    With `strip`, what is sent has no metadata. Reading raises a `Problem` if the file changes.
    """
    checked = _CheckedFile(_open_stream(record, stack))
    if checked.content != record.content:
        raise _changed()
    stream: Stream = io.BufferedReader(checked, _CHUNK)
    image_format = detect_format(stream.read(HEAD_SIZE))
    pieces = [Piece(0, record.size)]
    if strip:
        try:
            pieces = strip_metadata(stream, image_format)
        except ImageError as error:
            detail = f"{error}: use the thumbnail of the image"
            raise Problem(403, "has-metadata", detail) from None
    return OpenFile(stream, image_format, pieces)


def read_pieces(file: OpenFile) -> Iterator[bytes]:
    for piece in file.pieces:
        if piece.content is not None:
            yield piece.content
            continue
        file.stream.seek(piece.start)
        for start in range(piece.start, piece.end, _CHUNK):
            yield file.stream.read(min(_CHUNK, piece.end - start))


class _CheckedFile(io.RawIOBase):
    """A file that was hashed as a whole; each read of a part of it has the bytes of that time."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._position, self._size = stream, 0, stream_size(stream)
        self._hashes: list[bytes] = []
        whole = new_hash()
        for _ in range(0, self._size, _CHUNK):
            chunk = stream.read(_CHUNK)
            whole.update(chunk)
            self._hashes.append(hash_image(chunk))
        self.content = whole.digest()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        number, start = divmod(self._position, _CHUNK)
        if self._position >= self._size:
            return 0
        self._stream.seek(number * _CHUNK)
        chunk = self._stream.read(_CHUNK)
        if hash_image(chunk) != self._hashes[number]:
            raise _changed()
        part = chunk[start : start + len(buffer)]
        buffer[: len(part)] = part
        self._position += len(part)
        return len(part)


def _open_stream(record: ImageRecord, stack: ExitStack) -> Stream:
    """Open an image's file until `stack` is closed; raise a 404 `Problem` if there is none."""
    if not os.path.isabs(record.path):
        raise Problem(404, "no-file", "the image was added from memory: it has no file")
    try:
        stream = stack.enter_context(open_stream(record.path))
    except ImageError as error:
        detail = f"the file of the image cannot be read: {error}"
        raise Problem(404, "no-file", detail) from None
    if stream_size(stream) != record.size:
        raise _changed()
    return stream


def _changed() -> Problem:
    return Problem(404, "changed-file", "the file has changed since it was indexed: index it again")


def _describe(record: ImageRecord) -> dict[str, Any]:
    return {"id": to_id(record.path), **to_gallery_image(record).to_dict()}


router = APIRouter(prefix=PREFIX, tags=["images"], responses=problems.RESPONSES)


def _read_filter(
    folder: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006 - read, not changed
    date: Annotated[str | None, Query(max_length=100)] = None,
    min_size: SizeText | None = None,
    max_size: SizeText | None = None,
) -> ImageFilter:
    sizes = {"min_size": _to_size(min_size), "max_size": _to_size(max_size)}
    return ImageFilter.of(folder=folder, date=date, **sizes)


Selected = Annotated[ImageFilter, Depends(_read_filter)]


@router.get("/images", response_model=IMAGE_PAGE, dependencies=[LISTING])
def list_images(
    gallery: OpenGallery,
    images: Selected,
    order: Annotated[Literal["added", "date"], Query(description="date: newest first.")] = "added",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Response:
    """List images with their dates and sizes, in the order in which they were added, or by date.

    A collection of an engine has another order, which stays the same. The filters are those of
    a search. A size is a number of pixels, or `1920x1080`.
    """
    total, records = gallery.store.read(
        lambda view: (
            view.count(Filter(images)),
            view.page(images, offset, limit, newest_first=order == "date"),
        )
    )
    page = {"total": total, "offset": offset, "limit": limit}
    return json_response({**page, "images": list(map(_describe, records))})


@router.get("/months", response_model=MONTHS, dependencies=[LISTING])
def list_months(gallery: OpenGallery, images: Selected) -> Response:
    """List the months of images, newest first; the filters are those of `/images`.

    Of a collection of an engine, none are known.
    """
    counts = gallery.store.read(lambda view: view.count_by("month", Filter(images)))
    return json_response({"months": [{"month": m, "n_images": n} for m, n in counts.items()]})


@router.get("/duplicates", response_model=DUPLICATE_PAGE, dependencies=[COMPARING])
def list_duplicates(
    gallery: OpenGallery, near: bool = True, offset: Offset = 0, limit: Limit = 50
) -> Response:
    """List groups of images that are the same or, with `near`, nearly the same; the best first.

    Files are compared for each request, one request at a time.
    """
    try:
        groups, n_left_out = find_duplicates(
            gallery.local, near=near, progress=lambda *step: check_deadline()
        )
    except TookTooLong:
        detail = "too many images to compare for one request: run `bm25v duplicates` instead"
        raise Problem(503, "took-too-long", detail) from None
    page = {"total": len(groups), "offset": offset, "limit": limit, "n_left_out": n_left_out}
    shown = map(_describe_group, groups[offset : offset + limit])
    return json_response({**page, "groups": list(shown)})


def _describe_group(group: DuplicateGroup) -> dict[str, Any]:
    values = group.to_dict()
    for image in values["images"]:
        image["id"] = to_id(image["path"])
    return {**values, "best": values["images"][0]["id"]}


@router.get("/images/{id}", response_model=IMAGE_FACTS)
def get_image(gallery: OpenGallery, id: ImageId) -> Response:
    """Return the path, dates and sizes of an image, and whether its file is as it was indexed."""
    record = find_image(gallery, id)
    command = remove_command(gallery.location, record.path)
    facts = {"file": _check_file(record), "remove_command": command}
    return json_response({**_describe(record), **facts})


def _check_file(record: ImageRecord) -> str:
    if not os.path.isabs(record.path):
        return "none"
    try:
        return "changed" if has_changed(record.path, record) else "current"
    except ImageError:
        return "missing"


@router.get(
    "/images/{id}/thumbnail",
    response_class=Response,
    responses={200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not Modified"}},
)
async def get_thumbnail(
    service: Served, id: ImageId, size: Side = "256", if_none_match: IfNoneMatch = ""
) -> Response:
    """Return a JPEG of the upright image, no side longer than `size`, without metadata."""
    record = await run_in_threadpool(find_image, service.gallery, id)
    name = f"{record.content.hex()}-{size}"  # moved images keep theirs
    headers = _cache_headers(name)
    if _is_current(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    path = service.thumbnails / name[:2] / f"{name}.jpg"
    thumbnail = await run_in_threadpool(_read_thumbnail, path)
    if thumbnail is None:
        thumbnail = await service.shrinking.run(lambda: _write_thumbnail(path, record, int(size)))
    return Response(thumbnail, headers=headers, media_type="image/jpeg")


def _read_thumbnail(path: Path) -> bytes | None:
    with suppress(OSError, ValueError):
        thumbnail = read_limited(path, _MAX_THUMBNAIL)
        if thumbnail.endswith(_END_OF_JPEG):
            return thumbnail
    return None


def _write_thumbnail(path: Path, record: ImageRecord, side: int) -> bytes:
    thumbnail = make_thumbnail(read_file(record), side=side)
    with suppress(OSError, StorageFull):  # it is a cache
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, thumbnail)
    return thumbnail


@router.get(
    "/images/{id}/file",
    response_class=StreamingResponse,
    responses={200: {"content": {"image/*": {}}}, 304: {"description": "Not Modified"}},
)
def get_file(service: Served, id: ImageId, if_none_match: IfNoneMatch = "") -> Response:
    """Return the file of an image, if its content is what was indexed.

    It is sent as it is, or without metadata if the server was started so; then only JPEG, PNG
    and WebP are sent.
    """
    record = find_image(service.gallery, id)
    headers = _cache_headers(record.content.hex() + "-stripped" * service.strip_metadata)
    if _is_current(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    with ExitStack() as stack:
        file = open_file(record, stack, strip=service.strip_metadata)
        headers["Content-Length"] = str(file.size)
        content = _send_file(file, stack.pop_all())
        media_type = _MEDIA_TYPES.get(file.format, f"image/{file.format.lower()}")
        return StreamingResponse(content, headers=headers, media_type=media_type)


def _send_file(file: OpenFile, stack: ExitStack) -> Iterator[bytes]:
    with stack:
        yield from read_pieces(file)


def _to_size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    width, _, height = text.partition("x")
    return int(width), int(height or width)


def _cache_headers(tag: str) -> dict[str, str]:
    return {"ETag": f'"{tag}"', "Cache-Control": _CACHE_CONTROL}


def _is_current(if_none_match: str, tag: str) -> bool:
    known = if_none_match.split(",")
    return any(value.strip().removeprefix("W/") in (tag, "*") for value in known)
