"""The app: all routes of a gallery behind the guard.

What another process commits is visible to the next request, as each takes a new snapshot.
"""

import logging
from pathlib import Path

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.responses import Response

import bm25v
from bm25v.display import one_line
from bm25v.errors import Bm25vError
from bm25v.privacy import cache_folder
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.access import Access
from bm25v.server.changes import change_routes
from bm25v.server.guard import Guard
from bm25v.server.images import ImageFiles, Thumbnails, image_routes
from bm25v.server.metrics import Metrics
from bm25v.server.page import page_routes
from bm25v.server.problems import RETRY, Problem, refuse_change
from bm25v.server.responses import PREFIX, STATUS, json_response
from bm25v.server.searches import search_routes
from bm25v.server.watch import Watcher
from bm25v.server.words import crop_routes, word_routes
from bm25v.server.workers import WAITING_SEARCHES, Threads, Workers
from bm25v.threads import available_cpus

_log = logging.getLogger(__name__)

MAX_BODY = 50_000_000  # bytes of a request

_WAITING_ENCODES = 8
_WAITING_THUMBNAILS = 64  # a page asks for many at once

_DESCRIPTION = """
Image search that can say why. Every image is a bag of visual words; a hit lists what each word adds
to its score. An image has an `id` in all responses, which other requests accept. Errors are
`application/problem+json`.
"""


def create_app(
    gallery: Searchable,
    access: Access,
    *,
    max_body: int = MAX_BODY,
    writable: bool = False,
    strip_metadata: bool = False,
    cache: Path | None = None,
    encoders: int | None = None,
    waiting: int = _WAITING_ENCODES,
    watcher: Watcher | None = None,
    workers: Workers | None = None,
) -> Guard:
    """Return the app of a gallery.

    Only if it is `writable`, requests may add and remove images and name words. With
    `strip_metadata`, files are sent without it. `encoders` images are encoded at a time, by default
    as many as there are CPUs, while `waiting` requests wait. Thumbnails are kept in `cache`, by
    default in the cache folder. `watcher` is what `/stats` and `/metrics` tell about; it is started
    elsewhere. `workers` search, if there are any.
    """
    n_encoders = encoders or available_cpus()
    encoding = Threads(n_encoders, waiting=waiting)
    thumbnailing = Threads(n_encoders, waiting=_WAITING_THUMBNAILS)
    searching = Threads(available_cpus(), waiting=WAITING_SEARCHES)
    watched = [] if watcher is None else watcher.folders
    metrics = Metrics(gallery, watched)
    app = FastAPI(
        title="bm25v",
        version=bm25v.__version__,
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
        # The environment could make FastAPI send addresses and durations of requests to others.
        telemetry={"auto_configure": False, "tracing": False, "metrics": False, "logs": False},
    )
    problems.handle_errors(app)
    files = ImageFiles(gallery)
    thumbnails = Thumbnails((cache or cache_folder()) / "thumbnails")
    routers = [
        search_routes(gallery, files, workers, searching, encoding),
        image_routes(
            gallery, files, searching, thumbnails, thumbnailing, without_metadata=strip_metadata
        ),
        word_routes(gallery, searching, watched, writable=writable),
        crop_routes(gallery, files, searching, thumbnailing),
        page_routes(),
        _status_routes(gallery, metrics),
    ]
    changes = change_routes(gallery, files)
    if writable:
        routers.append(changes)
    else:
        for route in changes.routes:
            assert isinstance(route, APIRoute)
            methods = list(route.methods or ())
            app.add_api_route(route.path, refuse_change, methods=methods, include_in_schema=False)
    for router in routers:
        app.include_router(router)
    app.state.routes = [route for router in routers for route in router.routes]
    return Guard(app, access, metrics, max_body=max_body)


def _status_routes(gallery: Searchable, metrics: Metrics) -> APIRouter:
    router = APIRouter(tags=["status"])

    @router.get("/healthz", response_model=STATUS)
    async def is_alive() -> Response:
        """Say that the server runs."""
        return json_response({"status": "ok"})

    @router.get(
        "/readyz",
        response_model=STATUS,
        responses=problems.describe(503),
    )
    def is_ready() -> Response:
        """Say that the gallery can be searched."""
        try:
            gallery.engine.read(lambda view: view.statistics)
        except Bm25vError as error:  # its message may name paths, and this needs no token
            _log.error("the gallery cannot be read: %s", one_line(str(error)))
            detail = "the gallery cannot be read: the log of the server has the reason"
            raise Problem(503, "not-ready", detail, headers=RETRY) from None
        return json_response({"status": "ready"})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    def show_metrics() -> Response:
        """Return counts and durations of requests, in the text format of Prometheus."""
        return metrics.respond()

    return router
