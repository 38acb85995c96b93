"""What every request passes: who may send it, how large its body may be, headers of the response.

It is plain ASGI, so that bodies are counted while they are read.
"""

import asyncio
import re
import time
import uuid

from python_multipart.multipart import parse_options_header  # as starlette reads the header
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bm25v.server.access import Access
from bm25v.server.metrics import Metrics
from bm25v.server.problems import RETRY, Problem, make_response

MAX_JSON = 1_000_000  # bytes of a body that is no form
BODY_SECONDS = 60.0  # to receive a body

_BODIES_AT_A_TIME = 10  # of the largest size, in memory and in temporary files
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
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit() or int(length) > max_bytes:
            raise _too_large(max_bytes)
        return max_bytes


def _too_large(max_bytes: int) -> Problem:
    detail = f"JSON has at most {MAX_JSON:,} bytes"
    if max_bytes > MAX_JSON:
        detail = f"a request has at most {max_bytes / 1e6:,.0f} MB: send a smaller image"
    return Problem(413, "too-large", detail, headers=_CLOSE)
