"""Requests that change the gallery: only with `--writable`.

One request writes at a time. Another process that writes meanwhile makes it wait, then fail with
409. Only uploads are added, and no file is deleted.
"""

from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from bm25v.client import to_id
from bm25v.errors import ImageError
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import ImageId
from bm25v.server.images import ImageFiles
from bm25v.server.responses import ADDED, NAMED, PREFIX, REMOVED, json_response
from bm25v.server.words import WordNumber, find_word
from bm25v.server.workers import Threads

LOCK_SECONDS = 5.0  # to wait for another process that writes
_WAITING = 16  # requests

ImageName = Annotated[
    str,
    Form(
        min_length=1,
        max_length=1000,
        description="Any text that is not an absolute path.",
        examples=["shop/cat-7"],
    ),
]


class NameBody(BaseModel):
    """A name for a word; null removes it."""

    model_config = ConfigDict(strict=True)

    name: str | None = Field(max_length=1000, examples=["striped ear"])


def change_routes(gallery: Searchable, files: ImageFiles) -> APIRouter:
    router = APIRouter(
        prefix=PREFIX,
        tags=["changes"],
        responses=problems.describe(400, 401, 403, 404, 408, 409, 413, 415, 422, 503, 507),
    )
    writing = Threads(1, waiting=_WAITING)  # those who wait need no thread

    @router.post("/images", status_code=201, response_model=ADDED)
    async def add_image(id: ImageName, image: Annotated[UploadFile, File()]) -> Response:
        """Add an uploaded image, or replace the one that has its id.

        The gallery keeps its words and its dense vector, not the image itself: it has no file.
        """
        writing.check()
        content = await image.read()

        def work() -> Response:
            report = gallery.add({id: content}, workers=1, timeout=LOCK_SECONDS)
            for failure in report.failed:
                raise ImageError(failure.error)
            facts = {"id": to_id(id), "path": id}
            return json_response({**facts, "added": report.added, "updated": report.updated}, 201)

        return await writing.run(work)

    @router.delete("/images/{id}", response_model=REMOVED)
    async def remove_image(id: ImageId) -> Response:
        """Remove one image from the gallery; its file stays."""

        def work() -> Response:
            path = files.find(id).path
            removed = gallery.remove(path, recursive=False, timeout=LOCK_SECONDS)
            return json_response({"removed": removed})

        return await writing.run(work)

    @router.put("/words/{number}/name", response_model=NAMED)
    async def name_word(number: WordNumber, body: NameBody) -> Response:
        """Name a word, or remove the name that it has in this gallery."""

        def work() -> Response:
            find_word(gallery, number)
            gallery.name_words({number: body.name})
            return json_response({"word": number, "name": gallery.word_names.get(number)})

        return await writing.run(work)

    return router
