"""The outermost layer of the server: refuses requests, limits their bodies, adds headers.

In: every request. Out: the response of the app, or a problem. It is plain ASGI, so that bodies are
counted while they are read. Not this module's job: which requests are refused (`access`).
"""

import asyncio
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bm25v.server.access import Access
from bm25v.server.metrics import Metrics
from bm25v.server.problems import Problem, make_response

BODY_SECONDS = 60.0  # to receive a body

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


class Guard:
    """An ASGI app around another one."""

    def __init__(self, app: ASGIApp, access: Access, metrics: Metrics, *, max_body: int) -> None:
        self._app, self._access, self._metrics = app, access, metrics
        self._max_body = max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket, of which there are none
            await send({"type": "websocket.close", "code": 1008})
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
            self._check_length(headers)
        except Problem as problem:
            await make_response(problem, request_id)(scope, receive, send_with_headers)
            return
        body = _Body(receive, self._max_body)
        await self._app(scope, body.receive, send_with_headers)

    def _check_length(self, headers: Headers) -> None:
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > self._max_body:
            raise _too_large(self._max_body)


class _Body:
    """The body of a request, as long as it is small enough and arrives in time."""

    def __init__(self, receive: Receive, max_body: int) -> None:
        self._receive, self._max_body = receive, max_body
        self._n_bytes = 0
        self._is_complete = False
        self._deadline: float | None = None

    async def receive(self) -> Message:
        """Return the next part of the body, or that the client has gone."""
        if self._is_complete:
            return await self._receive()
        now = asyncio.get_running_loop().time()
        self._deadline = now + BODY_SECONDS if self._deadline is None else self._deadline
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            detail = f"the request was not complete after {BODY_SECONDS:g} seconds"
            raise Problem(408, "too-slow", detail, headers={"Connection": "close"}) from None
        self._is_complete = not message.get("more_body", False)
        self._n_bytes += len(message.get("body", b""))
        if self._n_bytes > self._max_body:
            raise _too_large(self._max_body)
        return message


def _too_large(max_body: int) -> Problem:
    detail = f"a request has at most {max_body / 1e6:,.0f} MB: send a smaller image"
    return Problem(413, "too-large", detail, headers={"Connection": "close"})
