"""Requests that change the gallery: only with `--writable`.

In: an uploaded image, an id, or a name for a word. Out: what was done. One request writes at a
time; another process that writes meanwhile makes it wait, then fail with 409. Not this module's
job: files on the server; only uploads are added, and no file is deleted.
"""

import threading
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from bm25v.errors import ImageError
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.bodies import ImageId, read_json
from bm25v.server.images import ImageFiles, to_id
from bm25v.server.problems import Problem
from bm25v.server.responses import ADDED, NAMED, PREFIX, REMOVED, describe_json, json_response
from bm25v.server.slots import Slots
from bm25v.server.words import WordNumber, find_word

_LOCK_SECONDS = 5.0  # to wait for another process that writes
_MAX_ID = 1000  # characters

_FORM = {
    "type": "object",
    "required": ["id", "image"],
    "additionalProperties": False,
    "properties": {
        "id": {
            "type": "string",
            "minLength": 1,
            "maxLength": _MAX_ID,
            "description": "Any text that is not an absolute path.",
            "examples": ["shop/cat-7"],
        },
        "image": {"type": "string", "format": "binary"},
    },
}


class NameBody(BaseModel):
    """A name for a word; null removes it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str | None = Field(max_length=1000, examples=["striped ear"])


def change_routes(gallery: Searchable, files: ImageFiles, encoding: Slots) -> APIRouter:
    """Return the routes that change the gallery."""
    router = APIRouter(
        prefix=PREFIX,
        tags=["changes"],
        responses=problems.describe(400, 401, 403, 404, 408, 409, 413, 415, 422, 503, 507),
    )
    one_writer = threading.Lock()

    async def read_image(request: Request) -> tuple[str, bytes]:
        encoding.check()
        return await _read_form(request)

    async def read_name(request: Request) -> NameBody:
        return await read_json(request, NameBody)

    @router.post(
        "/images",
        status_code=201,
        responses=describe_json(ADDED, 201),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"multipart/form-data": {"schema": _FORM}},
            }
        },
    )
    async def add_image(named: Annotated[tuple[str, bytes], Depends(read_image)]) -> Response:
        """Add an uploaded image, or replace the one that has its id.

        The gallery keeps its words and its dense vector, not the image itself: it has no file.
        """
        name, content = named

        def work() -> Response:
            with one_writer:
                report = gallery.add({name: content}, workers=1, timeout=_LOCK_SECONDS)
            for failure in report.failed:
                raise ImageError(failure.error)
            facts = {"id": to_id(name), "path": name}
            return json_response({**facts, "added": report.added, "updated": report.updated}, 201)

        return await encoding.run(work)

    @router.delete("/images/{id}", responses=describe_json(REMOVED))
    def remove_image(id: ImageId) -> Response:
        """Remove one image from the gallery; its file stays."""
        record = files.find(id)
        with one_writer:
            removed = gallery.remove(record.path, recursive=False, timeout=_LOCK_SECONDS)
        return json_response({"removed": removed})

    @router.put(
        "/words/{number}/name",
        responses=describe_json(NAMED),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": NameBody.model_json_schema()}},
            }
        },
    )
    def name_word(number: WordNumber, body: Annotated[NameBody, Depends(read_name)]) -> Response:
        """Name a word, or remove the name that it has in this gallery."""
        find_word(gallery, number)
        with one_writer:
            gallery.name_words({number: body.name})
        return json_response({"word": number, "name": gallery.word_names.get(number)})

    return router


async def _read_form(request: Request) -> tuple[str, bytes]:
    """Return the id and the image of a form."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise Problem(415, "wrong-type", "send multipart/form-data with the parts id and image")
    async with request.form(max_files=1, max_fields=1, max_part_size=4 * _MAX_ID) as form:
        name, image = form.get("id"), form.get("image")
        if not isinstance(name, str) or not isinstance(image, UploadFile) or len(form) != 2:
            raise Problem(422, "wrong-value", "the form must have a text id and a file image")
        if not 0 < len(name) <= _MAX_ID:
            raise Problem(422, "wrong-value", f"id: give 1 to {_MAX_ID} characters")
        return name, await image.read()
