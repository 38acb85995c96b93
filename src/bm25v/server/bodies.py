"""The bodies of requests: JSON, or a form with images and the same JSON in its part `query`.

In: the bytes of a request. Out: a `SearchBody` with the uploaded images, or a `Problem`. Not this
module's job: what the ids in it stand for.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from bm25v.search.query import Mode
from bm25v.server.problems import Problem
from bm25v.server.slots import Slots

MAX_IMAGES = 16  # of one query, uploaded or by id

_MAX_JSON = 1_000_000  # bytes

ImageId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=20_000,
        description="The id of an image, as in all responses.",
        examples=["L3Bob3Rvcy9jYXQuanBn"],
    ),
]
WordInput = Annotated[int | Annotated[str, Field(max_length=200)], Field(examples=[4711])]
Ids = Annotated[list[ImageId], Field(max_length=MAX_IMAGES)]
Words = Annotated[list[WordInput], Field(max_length=256)]
Pixels = Annotated[int, Field(ge=1, le=1_000_000)]
Hits = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=1_000_000_000)]
MODE = "What orders the hits; by default hybrid, or what the query allows."
WORDS = "List at most this many words of the query and of each hit; a hit has up to 256."


class SearchBody(BaseModel):
    """What to search for: the options of `bm25v.Query`, with images by their ids."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={
            "examples": [
                {"images": ["L3Bob3Rvcy9jYXQuanBn"], "k": 5},
                {"must": [4711], "boost": {"12": 2.0}, "folder": ["*.png"], "mode": "words"},
            ]
        },
    )

    images: Ids = Field([], description="Images of the gallery to search with.")
    text: str | None = Field(None, max_length=1000, description="What to look for, in words.")
    region: tuple[float, float, float, float] | None = Field(
        None,
        description="Only this box of the image counts: x, y, width, height, in pixels or, if no "
        "number is above 1, in fractions of the image.",
    )
    must: Words = Field([], description="Words, by number or name, that hits must have.")
    without: Words = Field([], description="Words that hits must not have.")
    boost: dict[Annotated[str, Field(max_length=200)], float] = Field(
        {}, max_length=256, description="Factors for the weights of words, by number or name."
    )
    negative: Ids = Field([], description="Counter-examples.")
    like: Ids = Field([], description="Hits of which more are wanted.")
    unlike: Ids = Field([], description="Hits of which fewer are wanted.")
    query_words: int | None = Field(
        None, ge=1, le=100_000, description="Search with this many words of each image."
    )
    min_coverage: float = Field(
        0.0, ge=0, le=1, description="The smallest share of the query that a hit must match."
    )
    folder: list[Annotated[str, Field(max_length=4096)]] = Field(
        [], max_length=64, description="Only images in one of these folders, or of these patterns."
    )
    date: str | None = Field(
        None, max_length=100, description="Only images taken then.", examples=["2021..2023-06"]
    )
    min_size: Pixels | tuple[Pixels, Pixels] | None = Field(
        None, description="Only images of at least this size: pixels, or width and height."
    )
    max_size: Pixels | tuple[Pixels, Pixels] | None = Field(
        None, description="Only images of at most this size."
    )
    include_query: bool = Field(
        False, description="Also list the images of the query and their copies."
    )
    k: Hits = Field(10, description="The number of hits.")
    offset: Offset = Field(0, description="Skip this many hits, for the next page.")
    mode: Mode | None = Field(None, description=MODE)
    candidates: int | None = Field(
        None, ge=1, le=1_000_000, description="Images that the second stage orders."
    )
    words: int = Field(8, ge=0, le=256, description=WORDS)


class ExplainBody(SearchBody):
    """A search, and the image of the gallery whose match is to be explained."""

    hit: ImageId = Field(description="The image to explain.")


class HeatmapBody(BaseModel):
    """The words to be shown in an uploaded image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    words: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(
        max_length=64, description="The numbers of the words.", examples=[[557]]
    )


Body = TypeVar("Body", bound=BaseModel)
Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class Upload(Generic[Body]):
    """A body, and the images that were sent with it."""

    body: Body
    images: list[bytes] = field(default_factory=list)
    negative: list[bytes] = field(default_factory=list)


async def read_body(request: Request, model: type[Body], slots: Slots) -> Upload[Body]:
    """Return the body of a request; refuse images before they are read if `slots` are full."""
    if _media_type(request) != "multipart/form-data":
        return Upload(await read_json(request, model))
    slots.check()
    limits = {"max_files": MAX_IMAGES, "max_fields": 1, "max_part_size": _MAX_JSON}
    async with request.form(**limits) as form:
        query = form.get("query", "{}")
        if not isinstance(query, str):
            query = (await query.read()).decode(errors="replace")
        body = model.model_validate_json(query)
        upload = Upload(
            body,
            [await file.read() for file in _files(form, "image")],
            [await file.read() for file in _files(form, "negative")],
        )
        unknown = sorted({*form} - {"query", "image", "negative"})
    if unknown:
        raise Problem(422, "wrong-value", f"the form has unknown parts: {', '.join(unknown)}")
    return upload


async def read_json(request: Request, model: type[Model]) -> Model:
    """Return the body of a request that is JSON."""
    if _media_type(request) != "application/json":
        raise Problem(415, "wrong-type", "send application/json; images as multipart/form-data")
    content = await request.body()
    if len(content) > _MAX_JSON:
        raise Problem(413, "too-large", f"JSON has at most {_MAX_JSON:,} bytes")
    return model.model_validate_json(content)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _files(form: FormData, name: str) -> Iterator[UploadFile]:
    for part in form.getlist(name):
        if not isinstance(part, UploadFile):
            raise Problem(422, "wrong-value", f"the part {name!r} must be a file")
        yield part


def describe_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says about a body that `read_body` reads."""
    schema = model.model_json_schema()
    file = {"type": "array", "items": {"type": "string", "format": "binary"}}
    form = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "image": {**file, "description": "Images to search with."},
            "negative": {**file, "description": "Counter-examples."},
            "query": {"type": "string", "description": f"{model.__name__} as JSON."},
        },
    }
    content = {
        "application/json": {"schema": schema},
        "multipart/form-data": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}}
