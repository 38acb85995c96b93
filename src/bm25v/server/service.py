"""What the routes work with, and the dependencies by which they get it: slots, and bodies.

A route that depends on `LISTING`, `ENCODING`, `CUTTING`, `COMPARING`, `WRITING` or `ZIPPING` works
in one of these slots, in the last one until its response is sent. A route that reads a body depends
on the body first, so that a slow client has no slot. The guard has limited how many bytes that has;
its values are checked here and not by FastAPI, which lists every mistake of it before it answers.
"""

import threading
from collections.abc import AsyncIterator, Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from fastapi import Depends
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from bm25v.gallery import Gallery
from bm25v.privacy import cache_folder
from bm25v.sae.model import Codes
from bm25v.server.guard import MAX_JSON, Metrics
from bm25v.server.problems import Problem
from bm25v.server.processes import Preparation
from bm25v.server.watch import Watcher
from bm25v.server.workers import WAITING_SEARCHES, Slots, Workers
from bm25v.threads import available_cpus

MAX_IMAGES = 16  # of one query, uploaded or by id

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

_WAITING_ENCODES = 8
_WAITING_LISTS = 64
_WAITING_THUMBNAILS = 64  # a page asks for many at once
_WAITING_COMPARISONS = 2  # each reads many files
_WAITING_CHANGES = 16
_ZIP_FILES, _WAITING_ZIP_FILES = 4, 4
_KEPT_CODES = 256  # images whose codes are kept for other words
_KEPT_BYTES = 50_000_000  # of crops


class Kept(Generic[T]):
    """The values that were made last, up to a total size.

    >>> kept = Kept[str](6, len)
    >>> [kept.get(key, lambda: "abc") for key in (1, 2, 3)]
    ['abc', 'abc', 'abc']
    >>> kept.get(3, lambda: "new"), kept.get(1, lambda: "new")
    ('abc', 'new')
    """

    def __init__(self, max_size: int, measure: Callable[[T], int]) -> None:
        self._max_size, self._measure = max_size, measure
        self._values: dict[Hashable, T] = {}
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        value = self._values.get(key)
        if value is None:
            value = make()
            with self._lock:
                if key not in self._values:
                    self._values[key] = value
                    self._size += self._measure(value)
                while self._size > self._max_size:
                    oldest = self._values.pop(next(iter(self._values)))
                    self._size -= self._measure(oldest)
        return value


class Service:
    """A gallery that is served, what may be done with it, and how much at a time.

    Only if it is `writable`, requests may add, remove, trash and name images, and name words. With
    `strip_metadata`, files are sent without it. `encoders` images are encoded at a time, by default
    as many as there are CPUs, while `waiting` requests wait. Thumbnails are kept in `cache`, by
    default in the cache folder. `watcher` is what `/stats` and `/metrics` tell about; it is started
    elsewhere. `workers` search, if there are any. `preparation` is what `/readyz` tells about.
    """

    def __init__(
        self,
        gallery: Gallery,
        *,
        writable: bool = False,
        strip_metadata: bool = False,
        cache: Path | None = None,
        encoders: int | None = None,
        waiting: int = _WAITING_ENCODES,
        watcher: Watcher | None = None,
        workers: Workers | None = None,
        preparation: Preparation | None = None,
    ) -> None:
        self.gallery, self.writable, self.strip_metadata = gallery, writable, strip_metadata
        self.watched = [] if watcher is None else watcher.folders
        self.metrics = Metrics(gallery, self.watched)
        self.workers, self._preparation = workers, preparation
        n_searches = available_cpus()
        n_encoders = encoders or n_searches
        self.searching = Slots(n_searches, waiting=WAITING_SEARCHES)
        # Apart from these, so that searches do not wait: lists and large searches, and encoding.
        self.listing = Slots(n_searches, waiting=_WAITING_LISTS)
        self.encoding = Slots(n_encoders, waiting=waiting)
        self.shrinking = Slots(n_encoders, waiting=_WAITING_THUMBNAILS)
        self.cutting = Slots(n_encoders, waiting=waiting)
        self.comparing = Slots(1, waiting=_WAITING_COMPARISONS)
        self.writing = Slots(1, waiting=_WAITING_CHANGES)
        self.zipping = Slots(_ZIP_FILES, waiting=_WAITING_ZIP_FILES)
        self.n_slots = 2 * n_searches + 3 * n_encoders + 2 + _ZIP_FILES
        self.thumbnails = (cache or cache_folder()) / "thumbnails"
        self.codes = Kept[Codes](_KEPT_CODES, lambda codes: 1)
        self.crops = Kept[NDArray[np.uint8]](_KEPT_BYTES, lambda crop: crop.nbytes)

    @property
    def is_preparing(self) -> bool:
        return self._preparation is not None and self._preparation.is_running


async def _get_service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


Served = Annotated[Service, Depends(_get_service)]


async def _get_gallery(service: Served) -> Gallery:
    return service.gallery


OpenGallery = Annotated[Gallery, Depends(_get_gallery)]


def _take(
    choose: Callable[[Service], Slots], scope: Literal["function", "request"] = "function"
) -> Any:
    async def take(service: Served) -> AsyncIterator[None]:
        async with choose(service).take():
            yield

    return Depends(take, scope=scope)  # of a function: not while the response is sent


LISTING = _take(lambda service: service.listing)
ENCODING = _take(lambda service: service.encoding)
CUTTING = _take(lambda service: service.cutting)
COMPARING = _take(lambda service: service.comparing)
WRITING = _take(lambda service: service.writing)
ZIPPING = _take(lambda service: service.zipping, "request")


class QueryForm(BaseModel):
    """A body with images."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: list[bytes] = Field([], description="Images to search with.")
    negative: list[bytes] = Field([], description="Counter-examples.")
    query: str = Field("{}", description="What is sent as JSON if there are no images.")


@dataclass(frozen=True)
class Upload(Generic[Body]):
    """A body, and the images that were sent with it."""

    body: Body
    images: list[bytes] = field(default_factory=list)
    negative: list[bytes] = field(default_factory=list)


def with_json(model: type[BaseModel], slot: Any) -> dict[str, Any]:
    """Return what a route has that reads a body of JSON, and then takes a slot."""
    return {"dependencies": [read_json(model), slot], "openapi_extra": describe_json(model)}


@cache
def read_json(model: type[Body]) -> Any:
    """Return a dependency that reads a body of JSON, the same one for the same model."""

    async def read(request: Request) -> Body:
        if _media_type(request) != "application/json":
            raise Problem(415, "wrong-type", "send application/json")
        return model.model_validate_json(await request.body())

    return Depends(read)


def read_query(model: type[Body]) -> Any:
    """Return a dependency that reads a body: JSON, or a form with images and a part `query`.

    Images are refused before they are read if too many others wait.
    """

    async def read(request: Request, service: Served) -> Upload[Body]:
        media_type = _media_type(request)
        if media_type == "application/json":
            return Upload(model.model_validate_json(await request.body()))
        if media_type != "multipart/form-data":
            raise Problem(415, "wrong-type", "send application/json; images as multipart/form-data")
        service.encoding.check()
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

    return Depends(read)


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def describe_json(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says about a body that `read_json` reads."""
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inline(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(schema: Any, models: Mapping[str, Any]) -> Any:
    """Return a schema with other models in place of references to them."""
    if isinstance(schema, list):
        return [_inline(part, models) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(models[schema["$ref"].rpartition("/")[2]], models)
    return {key: _inline(part, models) for key, part in schema.items()}


def describe_query(model: type[BaseModel]) -> dict[str, Any]:
    """Return what OpenAPI says about a body that `read_query` reads."""
    description = describe_json(model)
    form = {"schema": QueryForm.model_json_schema()}
    description["requestBody"]["content"]["multipart/form-data"] = form
    return description
