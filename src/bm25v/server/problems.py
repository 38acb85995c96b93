"""Errors as responses: `application/problem+json` (RFC 9457), with the id of the request.

In: an error of bm25v, of a route, or of the framework. Out: a response. Not this module's job:
deciding that something is wrong.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bm25v import errors
from bm25v.display import format_json

MEDIA_TYPE = "application/problem+json"

RETRY = {"Retry-After": "1"}
_STATUS: dict[type[errors.Bm25vError], tuple[int, str, Mapping[str, str]]] = {
    errors.WrongUse: (400, "wrong-use", {}),
    errors.ImageError: (422, "unreadable-image", {}),
    errors.GalleryLocked: (409, "gallery-locked", RETRY),
    errors.StorageFull: (507, "disk-full", {}),
    errors.MissingExtra: (501, "missing-extra", {}),
    errors.ModelUnavailable: (503, "model-unavailable", {}),
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


class Busy(Problem):
    """All threads for a kind of request are in use, and enough requests wait for one."""

    def __init__(self) -> None:
        detail = "too many requests of this kind wait already: send it again a little later"
        super().__init__(503, "busy", detail, headers=RETRY)


SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "request_id"],
    "properties": {
        "type": {"type": "string", "examples": ["urn:bm25v:unknown-image"]},
        "title": {"type": "string", "examples": ["Not Found"]},
        "status": {"type": "integer", "examples": [404]},
        "detail": {"type": "string", "description": "What happened, and what to do."},
        "request_id": {"type": "string", "description": "As in the header X-Request-ID."},
    },
}


def describe(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says about responses with these statuses."""
    content = {MEDIA_TYPE: {"schema": SCHEMA}}
    return {
        status: {"description": HTTPStatus(status).phrase, "content": content}
        for status in statuses
    }


def make_response(problem: Problem, request_id: str) -> Response:
    """Return the response for a problem."""
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


def handle_errors(app: FastAPI) -> None:
    """Make an app answer every error with a problem."""
    handled = (HTTPException, RequestValidationError, ValidationError, ClientDisconnect)
    for kind in (*handled, errors.Bm25vError, Exception):
        app.add_exception_handler(kind, _answer)


async def _answer(request: Request, error: Exception) -> Response:
    return make_response(to_problem(error), request.scope["state"]["request_id"])


def to_problem(error: Exception) -> Problem:
    """Return what a client is told about an error."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, HTTPException):  # of the framework: no such route or method
        kind = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return Problem(error.status_code, kind, error.detail, headers=error.headers)
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
