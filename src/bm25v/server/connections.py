"""A connection that is closed if the next request does not begin in time.

In: bytes of a client. Out: requests for the app, by uvicorn. uvicorn waits for ever for the end of
a request's head, so that a client could keep a connection by sending a letter now and then. Not
this module's job: slow bodies (`guard`).
"""

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = (
    20.0  # from the start of a connection, or from the last response, to the next request
)


class Connection(H11Protocol):
    """A connection of one client."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._wait_for_request()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._wait_for_request()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop to wait."""
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def _wait_for_request(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _give_up(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self.transport.close()
