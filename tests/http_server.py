"""Runs the HTTP server of a gallery in a thread, on a free port of this machine."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from bm25v.gallery import Gallery
from bm25v.server.guard import Access
from bm25v.server.run import bind, make_server, make_url

TOKEN = "a-token-of-the-tests"


class Client(httpx.Client):
    """An HTTP client of one server."""

    def __init__(self, url: str, server: uvicorn.Server) -> None:
        super().__init__(base_url=url, timeout=60)
        self.server = server

    def ids(self) -> list[str]:
        """Return the ids of all images, in the order in which they were added."""
        return [image["id"] for image in self.get("/v1/images?limit=1000").json()["images"]]

    def upload(self, *contents: bytes, query: str = "{}", path: str = "/v1/search") -> Any:
        """Send images as a form."""
        files = [("image", ("image", content)) for content in contents]
        return self.post(path, files=files, data={"query": query})


@contextmanager
def serving(
    gallery: Gallery, cache: Path, *, access: dict[str, Any] | None = None, **options: Any
) -> Iterator[Client]:
    """Serve a gallery within the block; `options` are those of `make_server`."""
    with bind("127.0.0.1", 0) as listener:
        rules = Access(*listener.getsockname(), **(access or {}))
        server = make_server(gallery, rules, cache=cache, **options)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started)
            with Client(make_url(listener), server) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(30)
    assert not thread.is_alive()


def wait_until(is_true: Any, seconds: float = 30) -> None:
    """Wait until a function returns something true."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
