"""What every request passes: who may send it, how large its body may be, headers of the response.

A browser can be made to send requests to this machine by any page that it shows, so names and
origins matter even where nobody else can connect. The guard is plain ASGI, so that bodies are
counted while they are read. Requests are counted by their route, never by their path: nothing about
queries is kept.
"""

import asyncio
import hmac
import ipaddress
import re
import socket
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from python_multipart.multipart import parse_options_header  # as starlette reads the header
from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bm25v.errors import Bm25vError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.server.problems import RETRY, Problem, make_response
from bm25v.server.watch import WatchedFolder

MAX_JSON = 1_000_000  # bytes of a body that is no form
BODY_SECONDS = 60.0  # to receive a body

_OPEN_PATHS = frozenset({"/healthz", "/readyz"})  # for programs that watch the server: no token
_PAGE = re.compile(r"/(static/[^/]*)?")  # the files of the web page, which are the same for all
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/@\[\]]+))(?::([0-9]{1,5}))?")
_BODIES_AT_A_TIME = 4  # of the largest size
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_CLOSE = {"Connection": "close"}
_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # seconds
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"})


class Access:
    """What a request must have to reach a server that is bound to an address.

    >>> Access("127.0.0.1", 8025).token is None
    True
    >>> Access("192.168.0.7", 8025)
    Traceback (most recent call last):
    bm25v.errors.InvalidOption: 192.168.0.7 can be reached by others: give --token-file, or ...
    """

    def __init__(
        self,
        address: str,
        port: int,
        *,
        host: str = "",
        token: str | None = None,
        insecure: bool = False,
        allow_hosts: Iterable[str] = (),
    ) -> None:
        bound = ipaddress.ip_address(address)
        if token is None and not insecure and not bound.is_loopback:
            raise InvalidOption(
                f"{host or address} can be reached by others: give --token-file, or --insecure if "
                "all of them may see the images"
            )
        self.token = token
        self._port = port
        self._names = {address, host.lower() or address}  # at its own port
        if bound.is_loopback or bound.is_unspecified:
            self._names |= _LOOPBACK_NAMES
        if bound.is_unspecified:
            self._names.add(socket.gethostname().lower())
        self._is_any_address = bound.is_unspecified
        self._proxy_names = {name.lower() for name in allow_hosts}

    def check(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise a `Problem` if a request must be refused; the names of headers are lower case."""
        host = headers.get("host", "")
        if not self._is_own(host):
            raise Problem(
                421,
                "wrong-host",
                f"requests to {host!r} are refused: use the address that the server printed, or "
                "start it with --allow-host",
            )
        is_page = _PAGE.fullmatch(path) is not None
        self._check_origin(headers, may_be_link=is_page)
        if self.token is not None and path not in _OPEN_PATHS and not is_page:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            is_bearer = scheme.lower() == "bearer"
            is_right = hmac.compare_digest(given.strip().encode(), self.token.encode())
            if not (is_bearer and is_right):
                raise Problem(
                    401,
                    "no-token",
                    "send the token of the server: Authorization: Bearer TOKEN",
                    headers={"WWW-Authenticate": "Bearer"},
                )

    def _check_origin(self, headers: Mapping[str, str], *, may_be_link: bool) -> None:
        """Refuse requests by pages of other sites, except that their links may lead to the page."""
        if may_be_link and headers.get("sec-fetch-mode") == "navigate" and "origin" not in headers:
            return
        origin = headers.get("origin")
        is_foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if origin is not None:
            scheme, _, netloc = origin.lower().partition("://")
            is_own = netloc in (headers.get("host", "").lower(), *self._proxy_names)
            is_foreign |= scheme not in ("http", "https") or not is_own
        if is_foreign:
            detail = f"requests by pages of other sites are refused: {origin or 'unknown site'}"
            raise Problem(403, "wrong-origin", detail)

    def _is_own(self, host: str) -> bool:
        parsed = _HOST.fullmatch(host)
        if parsed is None:
            return False
        name, port = (parsed[1] or parsed[2]).lower(), int(parsed[3] or 80)
        if name in self._proxy_names:
            return True
        if port != self._port:
            return False
        if name in self._names:
            return True
        try:  # a page of another site has a name of letters, not a number
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return self._is_any_address


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


class Guard:
    """An ASGI app around another one."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, *, max_body: int) -> None:
        self._app, self._access, self._metrics = app, access, metrics
        self._max_body = max_body
        self._n_bytes = 0  # of the bodies of all requests that are worked on

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        start = time.perf_counter()

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._metrics.count(scope, message["status"], time.perf_counter() - start)
                response = MutableHeaders(scope=message)
                response["X-Request-ID"] = request_id
                for name, value in _HEADERS.items():
                    response.setdefault(name, value)
                response.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self._access.check(scope["path"], headers)
            max_bytes = self._check_body(headers)
        except Problem as problem:
            await make_response(problem, request_id)(scope, receive, send_with_headers)
            return
        n_bytes, is_complete = 0, False
        deadline = asyncio.get_running_loop().time() + BODY_SECONDS

        async def receive_limited() -> Message:
            """Return the next part of a body that is small enough and arrives in time."""
            nonlocal n_bytes, is_complete
            if is_complete:
                return await receive()
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
            except TimeoutError:
                detail = f"the request was not complete after {BODY_SECONDS:g} seconds"
                raise Problem(408, "too-slow", detail, headers=_CLOSE) from None
            is_complete = not message.get("more_body", False)
            size = len(message.get("body", b""))
            n_bytes += size
            self._n_bytes += size
            if n_bytes > max_bytes:
                raise _too_large(max_bytes)
            if self._n_bytes > _BODIES_AT_A_TIME * self._max_body:
                detail = "too many large requests at a time: send it again a little later"
                raise Problem(503, "busy", detail, headers={**RETRY, **_CLOSE})
            return message

        try:
            await self._app(scope, receive_limited, send_with_headers)
        finally:
            self._n_bytes -= n_bytes

    def _check_body(self, headers: Headers) -> int:
        """Return how many bytes the body of a request may have; raise a `Problem` if it has more.

        A form decodes its fields by the charset that the client names, some of which take minutes.
        """
        if "content-length" in headers and "transfer-encoding" in headers:
            detail = "Content-Length beside Transfer-Encoding: send one of them"
            raise Problem(400, "two-lengths", detail, headers=_CLOSE)
        media_type, parameters = parse_options_header(headers.get("content-type"))
        charset = parameters.get(b"charset", b"utf-8").decode("latin-1")
        if charset.lower() not in ("utf-8", "utf8"):
            detail = f"charset {charset[:40]!r}: send UTF-8"
            raise Problem(415, "wrong-type", detail, headers=_CLOSE)
        if media_type == b"application/x-www-form-urlencoded":
            detail = "send application/json, or a form as multipart/form-data"
            raise Problem(415, "wrong-type", detail, headers=_CLOSE)
        is_form = media_type == b"multipart/form-data"
        max_bytes = self._max_body if is_form else min(MAX_JSON, self._max_body)
        if int(headers.get("content-length", "0")) > max_bytes:
            raise _too_large(max_bytes)
        return max_bytes


def _too_large(max_bytes: int) -> Problem:
    detail = f"JSON has at most {MAX_JSON:,} bytes"
    if max_bytes > MAX_JSON:
        detail = f"a request has at most {max_bytes / 1e6:,.0f} MB: send a smaller image"
    return Problem(413, "too-large", detail, headers=_CLOSE)
