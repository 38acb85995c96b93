"""Reads the bodies of requests: JSON, or a form with images and JSON.

The guard has limited how many bytes a body has. Values are checked here and not by FastAPI, which
lists every mistake of a body before it answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Generic, TypeVar

from fastapi import Depends
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from bm25v.server.guard import MAX_JSON
from bm25v.server.problems import Problem
from bm25v.server.service import Served

MAX_IMAGES = 16  # of one query, uploaded or by id

Body = TypeVar("Body", bound=BaseModel)


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
