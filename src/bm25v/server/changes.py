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
from bm25v.server import problems
from bm25v.server.images import ImageId, find_image
from bm25v.server.problems import Problem
from bm25v.server.responses import ADDED, NAMED, PREFIX, REMOVED, json_response
from bm25v.server.service import WRITING, OpenGallery
from bm25v.server.words import WordNumber, check_number

LOCK_SECONDS = 5.0  # to wait for another process that writes

router = APIRouter(
    prefix=PREFIX,
    tags=["changes"],
    dependencies=[WRITING],
    responses=problems.describe(400, 401, 403, 404, 408, 409, 413, 415, 422, 503, 507),
)


def refuse() -> None:
    """Answer a request to a server that only reads."""
    detail = "requests cannot change this gallery: start the server with --writable"
    raise Problem(405, "read-only", detail)


@router.post("/images", status_code=201, response_model=ADDED)
def add_image(
    gallery: OpenGallery,
    id: Annotated[
        str,
        Form(
            min_length=1,
            max_length=1000,
            description="Any text that is not an absolute path.",
            examples=["shop/cat-7"],
        ),
    ],
    image: Annotated[UploadFile, File()],
) -> Response:
    """Add an uploaded image, or replace the one that has its id.

    The gallery keeps its words and its dense vector, not the image itself: it has no file.
    """
    report = gallery.add({id: image.file.read()}, workers=1, timeout=LOCK_SECONDS)
    for failure in report.failed:
        raise ImageError(failure.error)
    counts = {"added": report.added, "updated": report.updated}
    return json_response({"id": to_id(id), "path": id, **counts}, 201)


@router.delete("/images/{id}", response_model=REMOVED)
def remove_image(gallery: OpenGallery, id: ImageId) -> Response:
    """Remove one image from the gallery; its file stays."""
    path = find_image(gallery, id).path
    removed = gallery.remove(path, recursive=False, timeout=LOCK_SECONDS)
    return json_response({"removed": removed})


class NameBody(BaseModel):
    """A name for a word; null removes it."""

    model_config = ConfigDict(strict=True)

    name: str | None = Field(max_length=1000, examples=["striped ear"])


@router.put("/words/{number}/name", response_model=NAMED)
def name_word(gallery: OpenGallery, number: WordNumber, body: NameBody) -> Response:
    """Name a word, or remove the name that it has in this gallery."""
    check_number(gallery, number)
    gallery.name_words({number: body.name})
    return json_response({"word": number, "name": gallery.word_names.get(number)})
