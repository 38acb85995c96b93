"""The files of the web page, with the rules that a browser must keep for them."""

import hashlib
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import Response

from bm25v.server import problems
from bm25v.server.problems import Problem
from bm25v.server.responses import PREFIX

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


def _read_files() -> dict[str, tuple[bytes, dict[str, str]]]:
    """Return contents and headers by name."""
    own = files("bm25v.server").joinpath("static").iterdir()
    shared = files("bm25v.render").joinpath("static", "style.css")  # that of all pages
    known = {}
    for entry in (*own, shared):
        media_type = _TYPES.get(f".{entry.name.rpartition('.')[2]}")
        if media_type is not None:
            content = entry.read_bytes()
            headers = {
                "Content-Security-Policy": _POLICY,
                "Content-Type": media_type,
                "Cache-Control": "no-cache",  # the browser asks whether it has changed
                "ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"',
            }
            known[entry.name] = content, headers
    return known


_FILES = _read_files()
router = APIRouter(include_in_schema=False)  # no token is needed: they are the same for all


@router.get("/static/{name}")
async def show_file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
    if name not in _FILES:
        raise Problem(404, "unknown-file", f"the page has no file {name!r}")
    content, headers = _FILES[name]
    if if_none_match == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


@router.get("/")
async def show_page(if_none_match: Annotated[str, Header()] = "") -> Response:
    return await show_file("index.html", if_none_match)


async def show_missing(request: Request, error: Exception) -> Response:
    """Answer a request for what does not exist: people get a page, programs a problem."""
    is_page = not request.url.path.startswith((f"{PREFIX}/", "/static/"))
    if not is_page or "text/html" not in request.headers.get("accept", ""):
        return await problems.answer(request, error)
    content, headers = _FILES["missing.html"]
    headers = {name: value for name, value in headers.items() if name != "ETag"}
    return Response(content, 404, headers)
