"""How many requests there were, and how long they took, for Prometheus.

Routes are counted, never paths: nothing about queries is kept.
"""

from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response
from starlette.types import Scope

from bm25v.errors import Bm25vError
from bm25v.gallery import Gallery
from bm25v.server.watch import WatchedFolder

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})


class Metrics(Collector):
    """Counts the requests of one server, and measures its gallery when it is read."""

    def __init__(self, gallery: Gallery, watched: Sequence[WatchedFolder] = ()) -> None:
        self._gallery, self._watched = gallery, watched
        self._registry = CollectorRegistry()
        self._registry.register(self)
        self._requests = Counter(
            "bm25v_requests",
            "Requests that were answered.",
            ("method", "route", "status"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "bm25v_request_seconds",
            "Time until the response begins.",
            ("route",),
            buckets=_BOUNDS,
            registry=self._registry,
        )

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a response; unknown routes and methods count as "other"."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._requests.labels(method, route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def respond(self) -> Response:
        encode, media_type = choose_encoder("text/plain")
        return Response(encode(self._registry), headers={"Content-Type": media_type})

    def collect(self) -> Iterator[Metric]:
        try:
            n_images = len(self._gallery)
        except Bm25vError:  # the other metrics are needed most when it cannot be read
            pass
        else:
            yield GaugeMetricFamily("bm25v_images", "Images in the gallery.", n_images)
        folders = self._watched
        if folders:
            oldest = min(f.last_scan.timestamp() if f.last_scan else 0.0 for f in folders)
            unreadable = sum(len(f.unreadable) for f in folders)
            for name, about, value in (
                ("last_scan_timestamp_seconds", "The oldest of the last scans.", oldest),
                ("pending", "Images that are still to be read.", sum(f.pending for f in folders)),
                ("unreadable", "Files that cannot be read.", unreadable),
                ("failed", "Folders with an error.", sum(f.error is not None for f in folders)),
            ):
                yield GaugeMetricFamily(f"bm25v_watch_{name}", about, value)
