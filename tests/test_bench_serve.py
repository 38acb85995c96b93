"""`bm25v bench serve`: both ways of a search are timed, and every client gets answers."""

import socket
from pathlib import Path

from bm25v import Gallery
from bm25v.research.bench.serve import make_gallery, time_server
from bm25v.server.run import bind


def test_the_bench_times_searches_and_a_load(tmp_path: Path) -> None:
    make_gallery(tmp_path / "gallery", 20)
    with Gallery.open(tmp_path / "gallery") as gallery:
        assert len(gallery) == 20
    times = time_server(tmp_path / "gallery", requests=5, clients=3, seconds=0.5)
    assert times.n_images == 20
    assert len(times.library_ms) == len(times.http_ms) == 5
    assert min(times.library_ms + times.http_ms) > 0
    assert set(times.statuses) == {200}
    assert len(times.load_ms) == times.statuses.total() >= 3


def test_responses_do_not_wait_for_the_client() -> None:
    """Without this option, a body that follows its headers is sent 40 ms later."""
    bound = bind("127.0.0.1", 0)
    with bound.socket, socket.create_connection((bound.address, bound.port)):
        connection, _ = bound.socket.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
