"""The web page: its files as they are, read once.

In: the name of a file. Out: the file, with the rules that a browser must keep: scripts, styles and
requests of this server only, nothing inline. Not this module's job: what the page does
(`static/main.js`).
"""

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from bm25v.server.problems import Problem

# Reads by the page's own scripts only; strings cannot become markup.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'"
)
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_START = "index.html"


class _File(NamedTuple):
    content: bytes
    headers: dict[str, str]


def page_routes() -> APIRouter:
    """Return the routes of the page's files; they need no token, as they are the same for all."""
    router = APIRouter(include_in_schema=False)
    own = files("bm25v.server").joinpath("static").iterdir()
    entries = (*own, files("bm25v.pages").joinpath("static", "style.css"))  # that of all pages
    known = {entry.name: _make_file(entry) for entry in entries if _suffix(entry) in _TYPES}

    @router.get("/")
    async def show_page(request: Request) -> Response:
        return _send(request, known[_START])

    @router.get("/static/{name}")
    async def show_file(request: Request, name: str) -> Response:
        if name not in known:
            raise Problem(404, "unknown-file", f"the page has no file {name!r}")
        return _send(request, known[name])

    return router


def _suffix(entry: Traversable) -> str:
    return f".{entry.name.rpartition('.')[2]}"


def _make_file(entry: Traversable) -> _File:
    content = entry.read_bytes()
    return _File(
        content,
        {
            "Content-Security-Policy": _POLICY,
            "Content-Type": _TYPES[_suffix(entry)],
            "Cache-Control": "no-cache",  # the browser asks whether it has changed
            "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
        },
    )


def _send(request: Request, file: _File) -> Response:
    if request.headers.get("if-none-match") == file.headers["ETag"]:
        return Response(status_code=304, headers=file.headers)
    return Response(file.content, headers=file.headers)
