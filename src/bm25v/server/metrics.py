"""How many requests there were, and how long they took: the text format of Prometheus.

In: each response. Out: counters and histograms by route, and the number of images. Nothing about
queries is kept. Not this module's job: storing it.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate

from starlette.types import Scope

from bm25v.errors import Bm25vError
from bm25v.searchable import Searchable
from bm25v.server.watch import WatchedFolder

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})


class Metrics:
    """Counts the requests of one server."""

    def __init__(self, gallery: Searchable, watched: Sequence[WatchedFolder] = ()) -> None:
        self._gallery, self._watched = gallery, watched
        self._mutex = threading.Lock()
        self._counts: Counter[tuple[str, str, int]] = Counter()  # by method, route and status
        self._buckets: dict[str, list[int]] = {}  # by route: durations up to each bound, and above
        self._seconds: dict[str, float] = {}

    def count(self, scope: Scope, status: int, seconds: float) -> None:
        """Count a response; unknown routes and methods count as "other"."""
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in _METHODS else "other"
        with self._mutex:
            self._counts[method, route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(_BOUNDS) + 1))
            buckets[bisect_left(_BOUNDS, seconds)] += 1
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def format(self) -> str:
        """Return all metrics as text."""
        lines = [
            *self._format_images(),
            *self._format_watched(),
            "# HELP bm25v_requests_total Requests that were answered.",
            "# TYPE bm25v_requests_total counter",
        ]
        with self._mutex:
            for (method, route, status), n in sorted(self._counts.items()):
                labels = f'method="{method}",route="{route}",status="{status}"'
                lines.append(f"bm25v_requests_total{{{labels}}} {n}")
            lines.append("# HELP bm25v_request_seconds Time until the response begins.")
            lines.append("# TYPE bm25v_request_seconds histogram")
            for route, buckets in sorted(self._buckets.items()):
                bounds = (*map(str, _BOUNDS), "+Inf")
                for bound, n in zip(bounds, accumulate(buckets), strict=True):
                    labels = f'route="{route}",le="{bound}"'
                    lines.append(f"bm25v_request_seconds_bucket{{{labels}}} {n}")
                label = f'{{route="{route}"}}'
                lines.append(f"bm25v_request_seconds_sum{label} {self._seconds[route]:.6f}")
                lines.append(f"bm25v_request_seconds_count{label} {sum(buckets)}")
        return "\n".join(lines) + "\n"

    def _format_images(self) -> Iterator[str]:
        with suppress(Bm25vError):  # the other metrics are needed most when it cannot be read
            n_images = len(self._gallery)
            yield "# HELP bm25v_images Images in the gallery."
            yield "# TYPE bm25v_images gauge"
            yield f"bm25v_images {n_images}"

    def _format_watched(self) -> Iterator[str]:
        folders = self._watched
        ends = [0.0 if f.last_scan is None else f.last_scan.timestamp() for f in folders]
        for name, help_text, value in (
            (
                "last_scan_timestamp_seconds",
                "When each watched folder was last scanned.",
                min(ends, default=0),
            ),
            ("pending", "Images that are still to be read.", sum(f.pending for f in folders)),
            ("unreadable", "Files that cannot be read.", sum(len(f.unreadable) for f in folders)),
            (
                "failed",
                "Folders that cannot be scanned.",
                sum(f.error is not None for f in folders),
            ),
        ):
            if folders:
                yield f"# HELP bm25v_watch_{name} {help_text}"
                yield f"# TYPE bm25v_watch_{name} gauge"
                yield f"bm25v_watch_{name} {value}"
