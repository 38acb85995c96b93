"""`bm25v bench serve`: both ways of a search are timed, and every client gets answers."""

import json
import socket
import subprocess
import sys
from pathlib import Path

from bm25v import Gallery
from bm25v.research.bench.serve import make_gallery, time_server
from bm25v.server.run import bind


def test_the_bench_times_searches_and_a_load(tmp_path: Path) -> None:
    make_gallery(tmp_path / "gallery", 20)
    times = time_server(tmp_path / "gallery", tmp_path, requests=5, clients=3, seconds=2, workers=2)
    assert times.n_images == 20
    columns = (times.library_ms, times.json_ms, times.http_ms)
    assert [len(column) for column in columns] == [5, 5, 5]
    assert min(map(min, columns)) > 0
    assert set(times.searches.statuses) == {200}
    assert min(times.searches_per_second.values()) > 0
    kinds = {"similar", "search", "thumbnail", "explain", "change"}
    assert set(times.mix.times_ms) <= kinds
    assert {"similar", "thumbnail", "change"} <= set(times.mix.times_ms)
    assert {200, 201} <= set(times.mix.statuses) <= {200, 201, 503}
    assert times.mix.n_errors == 0
    assert len(times.mix.memory) == 3
    with Gallery.open(tmp_path / "gallery") as gallery:
        assert len(gallery) == 20, "changes are made in a copy"


def test_the_command_prints_all_figures() -> None:
    command = [sys.executable, "-m", "bm25v", "bench", "serve", "--n", "10", "--requests", "3"]
    command += ["--clients", "2", "--seconds", "1"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for part in (
        "p99 ms",
        "HTTP adds",
        "in a loop",
        "/s by one client",
        "0 errors",
        "(start, middle, end)",
    ):
        assert part in text
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    figures = json.loads(done.stdout)
    assert figures["pictures"] == 10
    assert figures["mix"]["errors"] == 0
    assert figures["mix"]["p99_ms"] >= figures["mix"]["median_ms"] > 0


def test_responses_do_not_wait_for_the_client() -> None:
    """Without this option, a body that follows its headers is sent 40 ms later."""
    bound = bind("127.0.0.1", 0)
    with bound.socket, socket.create_connection((bound.address, bound.port)):
        connection, _ = bound.socket.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
