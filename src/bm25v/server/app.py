"""The app: all routes of a gallery and the files of the web page, behind the guard.

What another process commits is visible to the next request, as each takes a new snapshot.
"""

import hashlib
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated

from anyio.to_thread import current_default_thread_limiter
from fastapi import APIRouter, FastAPI, Header
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

import bm25v
from bm25v.display import one_line
from bm25v.errors import Bm25vError
from bm25v.server import changes, images, problems, searches, words, zips
from bm25v.server.guard import Access, Guard
from bm25v.server.problems import RETRY, Problem
from bm25v.server.responses import PREFIX, READY, STATUS, json_response
from bm25v.server.service import Served, Service

_log = logging.getLogger(__name__)

MAX_BODY = 50_000_000  # bytes of a request

_DESCRIPTION = """
Image search that can say why. Every image is a bag of visual words; a hit lists what each word adds
to its score. An image has an `id` in all responses, which other requests accept. Errors are
`application/problem+json`.
"""

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

status = APIRouter(tags=["status"])
page = APIRouter(include_in_schema=False)  # no token is needed: they are the same for all


@status.get("/healthz", response_model=STATUS)
async def is_alive() -> Response:
    """Say that the server runs."""
    return json_response({"status": "ok"})


@status.get("/readyz", response_model=READY, responses=problems.describe(503))
def is_ready(service: Served) -> Response:
    """Say that the gallery can be searched; while code is compiled, searches take longer."""
    try:
        service.gallery.store.read(lambda view: view.statistics)
    except Bm25vError as error:  # its message may name paths, and this needs no token
        _log.error("the gallery cannot be read: %s", one_line(str(error)))
        detail = "the gallery cannot be read: the log of the server has the reason"
        raise Problem(503, "not-ready", detail, headers=RETRY) from None
    return json_response({"status": "ready", "preparing": service.is_preparing})


@status.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def show_metrics(service: Served) -> Response:
    """Return counts and durations of requests, in the text format of Prometheus."""
    return service.metrics.respond()


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


@page.get("/static/{name}")
async def show_file(name: str, if_none_match: Annotated[str, Header()] = "") -> Response:
    if name not in _FILES:
        raise Problem(404, "unknown-file", f"the page has no file {name!r}")
    content, headers = _FILES[name]
    if if_none_match == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)


@page.get("/")
async def show_page(if_none_match: Annotated[str, Header()] = "") -> Response:
    return await show_file("index.html", if_none_match)


async def show_missing(request: Request, error: Exception) -> Response:
    """Answer a request for what does not exist: people get a page, programs a problem."""
    is_page = not request.url.path.startswith((f"{PREFIX}/", "/static/"))
    if not is_page or "text/html" not in request.headers.get("accept", ""):
        return await problems.answer(request, error)
    content, headers = _FILES["index.html"]
    headers = {name: value for name, value in headers.items() if name != "ETag"}
    return Response(content, 404, headers)


def create_app(service: Service, access: Access, *, max_body: int = MAX_BODY) -> Guard:
    """Return the app of a gallery; the body of a request has at most `max_body` bytes."""

    @asynccontextmanager
    async def add_threads(app: FastAPI) -> AsyncIterator[None]:
        """Let requests without a slot have a thread even if all slots are taken."""
        current_default_thread_limiter().total_tokens += service.n_slots
        yield

    app = FastAPI(
        title="bm25v",
        version=bm25v.__version__,
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        lifespan=add_threads,
        exception_handlers={**problems.HANDLERS, 404: show_missing},
        # The environment could make FastAPI send addresses and durations of requests to others.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    routers = [searches.router, images.router, zips.router, words.router, page, status]
    if service.writable:
        routers.append(changes.router)
    else:
        for route in changes.router.routes:
            assert isinstance(route, APIRoute)
            methods = list(route.methods or ())
            app.add_api_route(route.path, changes.refuse, methods=methods, include_in_schema=False)
    for router in routers:
        app.include_router(router)
    app.state.service = service
    app.state.routes = [route for router in routers for route in router.routes]
    return Guard(app, access, service.metrics, max_body=max_body)
