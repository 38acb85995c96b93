"""Requests that change the gallery: only with `--writable`.

One request writes at a time. Another process that writes meanwhile makes it wait, then fail with
409. Only uploads are added, and no file is deleted: the trash is a folder beside the gallery.
"""

from typing import Annotated

from fastapi import APIRouter, File, Form, UploadFile
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from bm25v.client import to_id
from bm25v.errors import ImageError
from bm25v.server import problems
from bm25v.server.images import ImageId, find_image, find_images
from bm25v.server.problems import Problem
from bm25v.server.responses import (
    ADDED,
    IMAGE_NAME,
    NAMED,
    PREFIX,
    REMOVED,
    TRASHED,
    json_response,
)
from bm25v.server.service import WRITING, OpenGallery, read_json, with_json
from bm25v.server.words import WordNumber, check_number
from bm25v.store.local.trash import move_to_trash

LOCK_SECONDS = 5.0  # to wait for another process that writes
_MAX_IMAGES = 1_000  # of one request

router = APIRouter(
    prefix=PREFIX,
    tags=["changes"],
    responses={**problems.RESPONSES, **problems.describe(409, 507)},
)


def refuse() -> None:
    """Answer a request to a server that only reads."""
    detail = "requests cannot change this gallery: start the server with --writable"
    raise Problem(405, "read-only", detail)


@router.post("/images", status_code=201, response_model=ADDED, dependencies=[WRITING])
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


@router.delete("/images/{id}", response_model=REMOVED, dependencies=[WRITING])
def remove_image(gallery: OpenGallery, id: ImageId) -> Response:
    """Remove one image from the gallery; its file stays."""
    path = find_image(gallery, id).path
    removed = gallery.remove(path, recursive=False, timeout=LOCK_SECONDS)
    return json_response({"removed": removed})


class TrashBody(BaseModel):
    """Images whose files are to be moved into the trash."""

    model_config = ConfigDict(extra="forbid", strict=True)

    ids: list[ImageId] = Field(min_length=1, max_length=_MAX_IMAGES)


@router.post("/trash", response_model=TRASHED, **with_json(TrashBody, WRITING))
def trash_images(
    gallery: OpenGallery, body: Annotated[TrashBody, read_json(TrashBody)]
) -> Response:
    """Move files into the folder `.bm25v-trash` beside the gallery, and remove their images.

    Nothing is moved if a file is missing, has changed since it was indexed, or is a link.
    """
    paths = [record.path for record in find_images(gallery, body.ids).values()]
    try:
        moved = move_to_trash(gallery.path, paths, timeout=LOCK_SECONDS)
    except ImageError as error:
        raise Problem(409, "not-trashed", str(error)) from error
    return json_response(
        {"images": [{"id": to_id(image.path), **image._asdict()} for image in moved]}
    )


class ImageNameBody(BaseModel):
    """A name for images."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: str = Field(max_length=1000, examples=["Anna's birthday"])
    ids: list[ImageId] = Field(max_length=_MAX_IMAGES, description="None: the name is removed.")
    add: bool = Field(False, description="Whether other images keep this name.")


@router.put("/names", response_model=IMAGE_NAME, **with_json(ImageNameBody, WRITING))
def name_images(
    gallery: OpenGallery, body: Annotated[ImageNameBody, read_json(ImageNameBody)]
) -> Response:
    """Give images a name, which texts find.

    Case, accents and plurals make no other name, and copies of a file have its names, too.
    """
    paths = [record.path for record in find_images(gallery, body.ids).values()]
    n_images = gallery.name_images(body.name, paths, add=body.add)
    return json_response({"name": body.name.strip(), "n_images": n_images})


class NameBody(BaseModel):
    """A name for a word; null removes it."""

    model_config = ConfigDict(strict=True)

    name: str | None = Field(max_length=1000, examples=["striped ear"])


@router.put("/words/{number}/name", response_model=NAMED, **with_json(NameBody, WRITING))
def name_word(
    gallery: OpenGallery, number: WordNumber, body: Annotated[NameBody, read_json(NameBody)]
) -> Response:
    """Name a word, or remove the name that it has in this gallery."""
    check_number(gallery, number)
    gallery.name_words({number: body.name})
    return json_response({"word": number, "name": gallery.word_names.get(number)})
