"""Images of the gallery: ids, facts, files, thumbnails.

An id is the path of the image, or the id that it was added with, in base64url. It is only looked up
in the gallery as it is, so that no id names a file that is not an image of the gallery. A file is
sent only if its content is what was indexed.
"""

import base64
import binascii
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from bm25v.client import to_id
from bm25v.errors import ImageError, StorageFull
from bm25v.files import read_limited, replace_file
from bm25v.images import HEAD_SIZE, detect_format, make_thumbnail, open_stream
from bm25v.images.streams import Piece, Stream
from bm25v.images.stripping import strip_metadata
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import ImageId, Offset
from bm25v.server.problems import Problem
from bm25v.server.responses import IMAGE, IMAGE_PAGE, PREFIX, json_response
from bm25v.server.workers import Threads
from bm25v.store.local.file_state import hash_file
from bm25v.store.local.records import ImageRecord
from bm25v.store.local.selection import ImageFilter, to_gallery_image

_MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WebP": "image/webp",
    "GIF": "image/gif",
    "BMP": "image/bmp",
    "TIFF": "image/tiff",
    "AVIF": "image/avif",
    "HEIC": "image/heic",
    "JPEG 2000": "image/jp2",
    "PNM": "image/x-portable-anymap",
    "QOI": "image/qoi",
    "ICO": "image/x-icon",
}
_MAX_THUMBNAIL = 10_000_000  # bytes
_END_OF_JPEG = b"\xff\xd9"
_CHUNK = 2**18  # bytes of a file that are sent at once
CACHE_CONTROL = "private, max-age=300"  # then the browser asks whether the content has changed

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


class ImageFiles:
    """The images of one gallery, by their ids."""

    def __init__(self, gallery: Searchable) -> None:
        self._engine = gallery.engine

    def find(self, image_id: str) -> ImageRecord:
        """Return what is known about an image; raise a 404 `Problem` if there is none."""
        path = from_id(image_id)
        record = self._engine.find_record(path) if path else None
        if record is None or record.path != path:
            raise Problem(404, "unknown-image", f"the gallery has no image with id {image_id!r}")
        return record

    def read(self, record: ImageRecord) -> bytes:
        """Return the content of an image's file, which is what was indexed."""
        with ExitStack() as stack:
            return self.open(record, stack).read()

    def open(self, record: ImageRecord, stack: ExitStack) -> Stream:
        """Open an image's file until `stack` is closed; raise a 404 `Problem` if it is another."""
        if not os.path.isabs(record.path):
            raise Problem(404, "no-file", "the image was added from memory: it has no file")
        try:
            stream = stack.enter_context(open_stream(record.path))
        except ImageError as error:
            raise Problem(
                404, "no-file", f"the file of the image cannot be read: {error}"
            ) from None
        if hash_file(stream) != record.content:
            detail = "the file has changed since it was indexed: index it again"
            raise Problem(404, "changed-file", detail)
        stream.seek(0)
        return stream


class Thumbnails:
    """Small versions of images in the cache folder, named by content: moved images keep theirs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, content: bytes, side: int) -> bytes | None:
        with suppress(OSError, ValueError):
            thumbnail = read_limited(self._path(content, side), _MAX_THUMBNAIL)
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


def describe_image(record: ImageRecord) -> dict[str, Any]:
    return {"id": to_id(record.path), **to_gallery_image(record).to_dict()}


def image_routes(
    gallery: Searchable,
    files: ImageFiles,
    searching: Threads,
    thumbnails: Thumbnails,
    thumbnailing: Threads,
    *,
    without_metadata: bool = False,
) -> APIRouter:
    router = APIRouter(
        prefix=PREFIX, tags=["images"], responses=problems.describe(400, 401, 403, 404, 422, 503)
    )

    @router.get("/images", response_model=IMAGE_PAGE)
    async def list_images(
        folder: Annotated[list[str], Query(max_length=64)] = [],  # noqa: B006 - read, not changed
        date: Annotated[str | None, Query(max_length=100)] = None,
        min_size: SizeText | None = None,
        max_size: SizeText | None = None,
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> Response:
        """List images with their dates and sizes, in the order in which they were added.

        A collection of an engine has another order, which stays the same. The filters are those of
        a search. A size is a number of pixels, or `1920x1080`.
        """
        image_filter = ImageFilter.of(
            folder=folder, date=date, min_size=_to_size(min_size), max_size=_to_size(max_size)
        )

        def work() -> Response:
            page = gallery.engine.read(lambda view: view.page_images(image_filter, offset, limit))
            images = [describe_image(record) for record in page.records]
            facts = {"total": page.total, "offset": offset, "limit": limit}
            return json_response({**facts, "images": images})

        return await searching.run(work)

    @router.get("/images/{id}", response_model=IMAGE)
    def get_image(id: ImageId) -> Response:
        """Return the path, dates and sizes of an image."""
        return json_response(describe_image(files.find(id)))

    @router.get(
        "/images/{id}/thumbnail",
        response_class=Response,
        responses={200: {"content": {"image/jpeg": {}}}, 304: {"description": "Not Modified"}},
    )
    async def get_thumbnail(
        id: ImageId, size: Side = "256", if_none_match: IfNoneMatch = ""
    ) -> Response:
        """Return a JPEG of the upright image, no side longer than `size`, without metadata."""
        record = await run_in_threadpool(files.find, id)
        headers = _cache_headers(f"{record.content.hex()}-{size}")
        if _is_current(if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        thumbnail = await run_in_threadpool(thumbnails.find, record.content, int(size))
        if thumbnail is None:
            thumbnail = await thumbnailing.run(
                lambda: thumbnails.make(record.content, int(size), lambda: files.read(record))
            )
        return Response(thumbnail, headers=headers, media_type="image/jpeg")

    @router.get(
        "/images/{id}/file",
        response_class=StreamingResponse,
        responses={200: {"content": {"image/*": {}}}, 304: {"description": "Not Modified"}},
    )
    def get_file(id: ImageId, if_none_match: IfNoneMatch = "") -> Response:
        """Return the file of an image, if its content is what was indexed.

        It is sent as it is, or without metadata if the server was started so; then only JPEG, PNG
        and WebP are sent.
        """
        record = files.find(id)
        headers = _cache_headers(record.content.hex() + "-stripped" * without_metadata)
        if _is_current(if_none_match, headers["ETag"]):
            return Response(status_code=304, headers=headers)
        with ExitStack() as stack:
            stream = files.open(record, stack)
            image_format = detect_format(stream.read(HEAD_SIZE))
            pieces = [Piece(0, record.size)]
            if without_metadata:
                try:
                    pieces = strip_metadata(stream, image_format)
                except ImageError as error:
                    detail = f"{error}: use the thumbnail of the image"
                    raise Problem(403, "has-metadata", detail) from None
            headers["Content-Length"] = str(sum(piece.end - piece.start for piece in pieces))
            content = _send_file(stream, pieces, stack.pop_all())
            media_type = _MEDIA_TYPES[image_format]
            return StreamingResponse(content, headers=headers, media_type=media_type)

    return router


def _send_file(stream: Stream, pieces: list[Piece], stack: ExitStack) -> Iterator[bytes]:
    with stack:
        for piece in pieces:
            if piece.content is not None:
                yield piece.content
                continue
            stream.seek(piece.start)
            for start in range(piece.start, piece.end, _CHUNK):
                yield stream.read(min(_CHUNK, piece.end - start))


def _to_size(text: str | None) -> int | tuple[int, int] | None:
    if text is None:
        return None
    width, _, height = text.partition("x")
    return (int(width), int(height)) if height else int(width)


def _cache_headers(tag: str) -> dict[str, str]:
    return {"ETag": f'"{tag}"', "Cache-Control": CACHE_CONTROL}


def _is_current(if_none_match: str, tag: str) -> bool:
    known = if_none_match.split(",")
    return any(value.strip().removeprefix("W/") in (tag, "*") for value in known)
