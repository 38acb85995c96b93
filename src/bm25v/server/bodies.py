"""The bodies of requests: JSON, or a form with images and the same JSON in its part `query`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from bm25v.search.scoring import Mode
from bm25v.server.guard import MAX_JSON
from bm25v.server.problems import Problem
from bm25v.server.workers import Threads

MAX_IMAGES = 16  # of one query, uploaded or by id

ImageId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_-]+$",
        max_length=20_000,
        description="The id of an image, as in all responses.",
        examples=["L3Bob3Rvcy9jYXQuanBn"],
    ),
]
Ids = Annotated[list[ImageId], Field(max_length=MAX_IMAGES)]
_Word = Annotated[int | Annotated[str, Field(max_length=200)], Field(examples=[4711])]
Words = Annotated[list[_Word], Field(max_length=256)]
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
    like: Ids = Field([], description="Hits: find more like these.")
    unlike: Ids = Field([], description="Hits: find fewer like these.")
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

    @property
    def needs_pixels(self) -> bool:
        """Whether the stored words of its images are not enough."""
        return self.region is not None or self.query_words is not None


class ExplainBody(SearchBody):
    """A search, and the image of the gallery whose match is to be explained."""

    hit: ImageId = Field(description="The image to explain.")


class HeatmapBody(BaseModel):
    """The words to be shown in an uploaded image."""

    model_config = ConfigDict(extra="forbid", strict=True)

    words: list[Annotated[int, Field(ge=0, le=2**31)]] = Field(
        max_length=64, description="The numbers of the words.", examples=[[557]]
    )


class QueryForm(BaseModel):
    """A body with images."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: list[bytes] = Field([], description="Images to search with.")
    negative: list[bytes] = Field([], description="Counter-examples.")
    query: str = Field("{}", description="What is sent as JSON if there are no images.")


Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True)
class Upload(Generic[Body]):
    """A body, and the images that were sent with it."""

    body: Body
    images: list[bytes] = field(default_factory=list)
    negative: list[bytes] = field(default_factory=list)


def read_query(model: type[Body], slots: Threads) -> Callable[[Request], Awaitable[Upload[Body]]]:
    """Return a dependency that reads a body: JSON, or a form with images and a part `query`.

    Images are refused before they are read if `slots` are full.
    """

    async def read(request: Request) -> Upload[Body]:
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type == "application/json":
            return Upload(model.model_validate_json(await request.body()))
        if media_type != "multipart/form-data":
            raise Problem(415, "wrong-type", "send application/json; images as multipart/form-data")
        slots.check()
        limits = {"max_files": MAX_IMAGES, "max_fields": 1, "max_part_size": MAX_JSON}
        parts: dict[str, Any] = {}
        async with request.form(**limits) as form:
            for name, part in form.multi_items():
                if isinstance(part, str) != (name == "query"):  # only the size of texts is limited
                    kind = "text" if name == "query" else "file"
                    raise Problem(422, "wrong-value", f"the part {name[:200]!r} must be a {kind}")
                if isinstance(part, str):
                    parts[name] = part
                else:
                    parts.setdefault(name, []).append(await part.read())
        sent = QueryForm.model_validate(parts)
        return Upload(model.model_validate_json(sent.query), sent.image, sent.negative)

    return read


def describe_body(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says about a body that `read_query` reads."""
    content = {
        "application/json": {"schema": model.model_json_schema()},
        "multipart/form-data": {"schema": QueryForm.model_json_schema()},
    }
    return {"requestBody": {"required": True, "content": content}}
