"""The app: all routes of a gallery behind the guard.

In: an open gallery and the rules of access. Out: an ASGI app. Searches, images to encode and
thumbnails have a few threads each (`slots`); the gallery's snapshots make what another process
commits visible to the next request. Not this module's job: sockets and signals (`run`).
"""

from pathlib import Path

from fastapi import FastAPI
from starlette.responses import Response

import bm25v
from bm25v.privacy import cache_folder
from bm25v.searchable import Searchable
from bm25v.server import problems
from bm25v.server.access import Access
from bm25v.server.changes import change_routes
from bm25v.server.crops import crop_routes
from bm25v.server.guard import Guard
from bm25v.server.images import ImageFiles, image_routes
from bm25v.server.metrics import METRICS_TYPE, Metrics
from bm25v.server.page import page_routes
from bm25v.server.responses import PREFIX, STATUS, describe_json, json_response
from bm25v.server.searches import search_routes
from bm25v.server.slots import Slots
from bm25v.server.suggestions import suggestion_routes
from bm25v.server.thumbnails import Thumbnails
from bm25v.server.watch import Watcher
from bm25v.server.words import word_routes
from bm25v.server.workers import TaskSlots, Workers
from bm25v.threads import available_cpus

MAX_BODY = 50_000_000  # bytes of a request

_WAITING_ENCODES = 8
_WAITING_THUMBNAILS = 64  # a page asks for many at once
_WAITING_SEARCHES = 256

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
    encoding = Slots(n_encoders, waiting=waiting)
    thumbnailing = Slots(n_encoders, waiting=_WAITING_THUMBNAILS)
    searching = Slots(available_cpus(), waiting=_WAITING_SEARCHES)
    watched = [] if watcher is None else watcher.folders
    metrics = Metrics(gallery, watched)
    app = FastAPI(
        title="bm25v",
        version=bm25v.__version__,
        description=_DESCRIPTION,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,  # these pages would load scripts from the network
        redoc_url=None,
    )
    problems.handle_errors(app)
    files = ImageFiles(gallery)
    thumbnails = Thumbnails((cache or cache_folder()) / "thumbnails")
    routers = [
        search_routes(
            gallery, files, TaskSlots(gallery, workers, waiting=_WAITING_SEARCHES), encoding
        ),
        image_routes(
            gallery, files, searching, thumbnails, thumbnailing, without_metadata=strip_metadata
        ),
        word_routes(gallery, searching, watched, writable=writable),
        crop_routes(gallery, files, searching, thumbnailing),
        suggestion_routes(gallery, searching),
        page_routes(),
    ]
    if writable:
        routers.append(change_routes(gallery, files, encoding))
    for router in routers:
        app.include_router(router)
    _add_status_routes(app, gallery, metrics)
    return Guard(app, access, metrics, max_body=max_body)


def _add_status_routes(app: FastAPI, gallery: Searchable, metrics: Metrics) -> None:
    @app.get("/healthz", tags=["status"], responses=describe_json(STATUS))
    async def is_alive() -> Response:
        """Say that the server runs."""
        return json_response({"status": "ok"})

    @app.get(
        "/readyz",
        tags=["status"],
        responses={**describe_json(STATUS), **problems.describe(500, 503)},
    )
    def is_ready() -> Response:
        """Say that the gallery can be searched."""
        gallery.engine.read(lambda view: view.statistics)
        return json_response({"status": "ready"})

    @app.get(
        "/metrics",
        tags=["status"],
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}}},
    )
    def show_metrics() -> Response:
        """Return counts and durations of requests, in the text format of Prometheus."""
        return Response(metrics.format(), media_type=METRICS_TYPE)
