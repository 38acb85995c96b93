"""Starts the server, and stops it when it has finished the requests that it has begun."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing, nullcontext, suppress
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from bm25v.errors import Bm25vError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.server.app import MAX_BODY, create_app
from bm25v.server.guard import Access
from bm25v.server.processes import Preparation, share_memory
from bm25v.server.service import Service
from bm25v.server.watch import Watcher
from bm25v.server.workers import Workers

STOP_SECONDS = 10  # for requests that have begun
HEAD_SECONDS = 20.0  # from the start of a connection, or from a response, to the next request
MAX_CONNECTIONS = 500  # a process may often have 1,024 open files


class _Connection(H11Protocol):
    """A connection that is closed if the next request does not begin in time.

    uvicorn waits for ever for the end of a request's head, so that a client could keep all
    connections by sending a letter now and then. If there are too many, the one that has been idle
    for the longest time is closed, so that nobody can keep others out by doing nothing; if none is
    idle, uvicorn answers with 503.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)
        others: list[Any] = [other for other in self.connections if other is not self]
        idle = [other for other in others if other.is_idle]
        if len(others) + 1 >= MAX_CONNECTIONS and idle:
            min(idle, key=lambda other: other._timer.when()).transport.close()

    def on_response_complete(self) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._close_if_idle)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._timer.cancel()

    @property
    def is_idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        is_waiting = cycle is None or cycle.response_complete
        return is_waiting and not self.transport.is_closing()

    def _close_if_idle(self) -> None:
        if self.is_idle:
            self.transport.close()


def bind(host: str, port: int) -> socket.socket:
    """Listen at an address of this machine; port 0 takes a free one."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(address[:2], family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InvalidOption(
            f"cannot listen at {host}, port {port} ({reason}): choose another"
        ) from None
    # Connections inherit it; else the body of a response waits 40 ms for the client's next packet.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener


def make_url(listener: socket.socket) -> str:
    """Return the address to give to a browser."""
    address, port, *_ = listener.getsockname()
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def serve(
    gallery: Gallery,
    *,
    host: str,
    port: int,
    token: str | None = None,
    insecure: bool = False,
    writable: bool = False,
    strip_metadata: bool = False,
    allow_hosts: Iterable[str] = (),
    watcher: Watcher | None = None,
    start_workers: Callable[[], Workers] | None = None,
    announce: Callable[[str], None],
) -> None:
    """Answer requests until SIGINT or SIGTERM; `announce` gets the address first.

    `watcher` keeps the gallery current meanwhile. `start_workers` starts processes that search
    beside this one.
    """
    share_memory()
    # SIGTERM ends the process as Ctrl-C does, so that a scan is not cut off.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with bind(host, port) as listener:
        access = Access(
            *listener.getsockname()[:2],
            host=host,
            token=token,
            insecure=insecure,
            allow_hosts=allow_hosts,
        )
        gallery.store.read(lambda view: None)
        with suppress(Bm25vError):  # searches by id need no model
            gallery.vocabulary.backbone.load_weights()
        with ExitStack() as stack:
            server = make_server(
                gallery,
                access,
                writable=writable,
                strip_metadata=strip_metadata,
                watcher=watcher,
                workers=start_workers and stack.enter_context(closing(start_workers())),
                preparation=stack.enter_context(closing(Preparation(gallery))),
            )
            announce(make_url(listener))
            stack.enter_context(watcher or nullcontext())
            server.run(sockets=[listener])


def make_server(
    gallery: Gallery, access: Access, *, max_body: int = MAX_BODY, **options: Any
) -> uvicorn.Server:
    """Return a server that is not started yet; `options` are those of `Service`."""
    config = uvicorn.Config(
        create_app(Service(gallery, **options), access, max_body=max_body),
        http=_Connection,
        limit_concurrency=MAX_CONNECTIONS,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return uvicorn.Server(config)
