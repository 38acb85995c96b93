"""Errors as responses: `application/problem+json` (RFC 9457), with the id of the request."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from bm25v import errors
from bm25v.display import format_json

MEDIA_TYPE = "application/problem+json"

RETRY = {"Retry-After": "1"}
_MOST_LISTED = 100  # errors of a body: a list of all takes a second for 100,000
_STATUS: dict[type[errors.Bm25vError], tuple[int, str, Mapping[str, str]]] = {
    errors.InvalidOption: (400, "invalid-option", {}),
    errors.ImageNotFound: (404, "image-not-found", {}),
    errors.ImageError: (422, "unreadable-image", {}),
    errors.GalleryLocked: (409, "gallery-locked", RETRY),
    errors.StorageFull: (507, "disk-full", {}),
    errors.MissingExtra: (501, "missing-extra", {}),
    errors.ModelUnavailable: (503, "model-unavailable", {}),
    errors.TookTooLong: (503, "took-too-long", {}),
    errors.EngineError: (503, "engine-unavailable", {}),
    errors.Bm25vError: (500, "gallery-error", {}),
}


class Problem(HTTPException):
    """A request that cannot be answered: status, kind and reason."""

    def __init__(
        self, status: int, kind: str, detail: str, *, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind = kind


class ProblemModel(BaseModel):
    type: str = Field(examples=["urn:bm25v:unknown-image"])
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(description="What happened, and what to do.")
    request_id: str = Field(description="As in the header X-Request-ID.")


def describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says about responses with these statuses."""
    content = {MEDIA_TYPE: {"schema": ProblemModel.model_json_schema()}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


RESPONSES = describe(400, 401, 403, 404, 408, 413, 415, 422, 503)  # of nearly every route


def make_response(problem: Problem, request_id: str) -> Response:
    status = problem.status_code
    content = {
        "type": f"urn:bm25v:{problem.kind}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": problem.detail,
        "request_id": request_id,
    }
    headers = dict(problem.headers or {})
    return Response(format_json(content, indent=None), status, headers, media_type=MEDIA_TYPE)


async def answer(request: Request, error: Exception) -> Response:
    """Return an error as a response."""
    problem = to_problem(error)
    if problem.status_code == 405:  # the framework names the methods of one route only
        methods = {
            method
            for route in request.app.state.routes
            if route.matches(request.scope)[0] != Match.NONE
            for method in route.methods
        }
        problem.headers = {"Allow": ", ".join(sorted(methods))}
    return make_response(problem, request.scope["state"]["request_id"])


_HANDLED = (HTTPException, RequestValidationError, ValidationError, ClientDisconnect)
HANDLERS: dict[Any, Any] = dict.fromkeys((*_HANDLED, errors.Bm25vError, Exception), answer)


def to_problem(error: Exception) -> Problem:
    """Return what a client gets to know about an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):  # of the framework: no such route or method
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return Problem(error.status_code, kind, error.detail, headers=error.headers)
    if isinstance(error, ValidationError) and error.error_count() > _MOST_LISTED:
        return Problem(422, "wrong-value", f"{error.error_count():,} values are wrong or unknown")
    if isinstance(error, RequestValidationError | ValidationError):
        details = "; ".join(_describe_value(entry) for entry in error.errors()[:5])
        return Problem(422, "wrong-value", details)
    if isinstance(error, ClientDisconnect):
        return Problem(400, "incomplete", "the connection was closed before the request was read")
    for parent in type(error).__mro__:
        if parent in _STATUS:
            status, kind, headers = _STATUS[parent]
            reason = " ".join(str(error).split())
            is_image = isinstance(error, errors.ImageError)
            detail = f"an image cannot be used: {reason}" if is_image else reason
            return Problem(status, kind, detail, headers=headers)
    return Problem(500, "internal-error", "an error in bm25v: its log has the traceback")


def _describe_value(entry: Mapping[str, Any]) -> str:
    """Return where a value is wrong, and why, without the value itself."""
    where = ".".join(str(part) for part in entry["loc"] if part not in ("query", "path", "body"))
    return f"{where}: {entry['msg']}" if where else str(entry["msg"])
