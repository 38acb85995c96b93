"""The bodies of requests: JSON, or a form with images and the same JSON in its part `query`."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.requests import Request

from bm25v.search.query import OPTIONS, Kind, Option
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
Hits = Annotated[int, Field(ge=1, le=OPTIONS["k"].most)]
Offset = Annotated[int, Field(ge=0, le=OPTIONS["offset"].most)]
MODE = OPTIONS["mode"].description
WORDS = "List at most this many words of the query and of each hit; a hit has up to 256."

_Ids = Annotated[list[ImageId], Field(max_length=MAX_IMAGES)]
_Name = Annotated[str, Field(max_length=200)]
_Word = Annotated[int | _Name, Field(description="A number or name.", examples=[4711])]
_Pattern = Annotated[str, Field(max_length=4096)]
_Pixels = Annotated[int, Field(ge=1, le=1_000_000)]
_TYPES: dict[Kind, Any] = {
    "text": Annotated[str, Field(max_length=1000)],
    "date": Annotated[str, Field(max_length=100, examples=["2021..2023-06"])],
    "flag": bool,
    "mode": Mode,
    "count": int,
    "share": Annotated[float, Field(ge=0, le=1)],
    "size": _Pixels | tuple[_Pixels, _Pixels],
    "box": tuple[float, float, float, float],
    "word": Annotated[list[_Word], Field(max_length=256)],
    "factor": Annotated[dict[_Name, float], Field(max_length=256)],
    "folder": Annotated[list[_Pattern], Field(max_length=64)],
    "hit": _Ids,
    "image": _Ids,
}


def _describe_option(option: Option) -> Any:
    """Return the type of an option in JSON, and what is known about its value."""
    default, type_ = option.default, _TYPES[option.kind]
    if option.is_list:
        default = {} if option.kind == "factor" else []
    elif default is None:
        type_ = type_ | None
    limits: Any = {"ge": option.least, "le": option.most} if option.kind == "count" else {}
    return type_, Field(default, description=option.description or option.help, **limits)


_Options: Any = create_model(
    "_Options", **{name: _describe_option(option) for name, option in OPTIONS.items()}
)


class SearchBody(_Options):  # type: ignore[misc]  # it has the fields of `Query`
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
        limits: Any = {"max_files": MAX_IMAGES, "max_fields": 1, "max_part_size": MAX_JSON}
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
