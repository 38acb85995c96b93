"""Processes that search for the server: the same answers, whatever happens to them."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from bm25v import Gallery
from bm25v.errors import GalleryError
from bm25v.searchable import Searchable
from bm25v.server import workers as workers_module
from bm25v.server.workers import Workers, _Worker
from tests.http_server import Client, serving, wait_until
from tests.test_server import failed
from tests.test_server_access import run_serve

pytestmark = pytest.mark.skipif(os.name != "posix", reason="processes are killed by signals")


@pytest.fixture
def workers(gallery: Gallery) -> Iterator[Workers]:
    """Two processes with the gallery of twelve images."""
    with closing(Workers(partial(Gallery.open, str(gallery.path)), 2)) as workers:
        yield workers


@pytest.fixture
def client(gallery: Gallery, workers: Workers, tmp_path: Path) -> Iterator[Client]:
    """A client of a server that searches in these processes."""
    with serving(gallery, tmp_path / "cache", writable=True, workers=workers) as client:
        yield client


def get_pid(collection: Searchable) -> int:
    """Return the process that this runs in."""
    return os.getpid()


def sleep(seconds: float, collection: Searchable) -> None:
    """Take some time."""
    time.sleep(seconds)


def measure(content: bytes, collection: Searchable) -> int:
    """Return how many bytes have arrived."""
    return len(content)


def list_children(process: int) -> list[int]:
    """Return the processes that another has started."""
    lists = Path(f"/proc/{process}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def search(client: Client, image_id: str) -> dict[str, object]:
    results: dict[str, object] = client.get(f"/v1/images/{image_id}/similar").json()
    del results["ms"]
    return results


def test_processes_answer_as_one_does(gallery: Gallery, client: Client, tmp_path: Path) -> None:
    first, second, *_ = client.ids()
    bodies = [{"images": [first, second], "k": 3, "mode": "words"}, {"like": [first]}]
    with serving(gallery, tmp_path / "other") as plain:
        assert search(client, first) == search(plain, first)
        for body in bodies:
            answers = [c.post("/v1/search", json=body).json() for c in (client, plain)]
            assert answers[0]["hits"] == answers[1]["hits"] != []


def test_problems_are_those_of_one_process(client: Client) -> None:
    failed(client.get("/v1/images/none/similar"), 404, "unknown-image", "'none'")
    body = {"images": client.ids()[:1], "must": ["no such name"]}
    failed(client.post("/v1/search", json=body), 400, "wrong-use", "no such name")


def test_processes_follow_changes(client: Client) -> None:
    image_id = client.ids()[0]
    assert len(search(client, image_id)["hits"]) == 10  # type: ignore[arg-type]
    for image in client.ids()[1:]:
        assert client.delete(f"/v1/images/{image}").status_code == 200
    for _ in range(4):  # each process at least once
        assert search(client, image_id)["hits"] == []


def test_a_killed_process_is_replaced(workers: Workers, client: Client) -> None:
    image_id = client.ids()[0]
    expected = search(client, image_id)
    killed = workers.submit(get_pid).result(60)
    os.kill(killed, signal.SIGKILL)
    answers = [client.get(f"/v1/images/{image_id}/similar") for _ in range(4)]
    for answer in answers:
        if answer.status_code != 200:
            failed(answer, 503, "interrupted", "send the request again")
            assert answer.headers["retry-after"] == "1"
    assert answers[-1].status_code == 200
    wait_until(lambda: all(worker.is_open for worker in workers._workers))
    alive = [workers.submit(get_pid) for _ in range(4)]  # each process does some of them
    pids = {future.result(60) for future in alive}
    assert len(pids) == 2
    assert not pids & {killed, os.getpid()}
    assert search(client, image_id) == expected


def test_a_process_that_does_not_start_is_started_again(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, failures = _Worker._start, count()

    def fail_once(worker: _Worker) -> None:
        if next(failures) == 0:
            raise OSError("no memory")
        start(worker)

    monkeypatch.setattr(_Worker, "_start", fail_once)
    monkeypatch.setattr(workers_module, "_PAUSE", 0.01)
    killed = workers.submit(get_pid).result(60)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: next(failures) > 4)  # it was tried, and again
    wait_until(lambda: all(worker.is_open for worker in workers._workers))
    pids = {future.result(60) for future in [workers.submit(get_pid) for _ in range(4)]}
    assert len(pids) == 2
    assert killed not in pids


def test_a_large_task_for_a_busy_process_does_not_wait_here(workers: Workers) -> None:
    busy = [workers.submit(partial(sleep, 1.0)) for _ in range(2)]
    start = time.monotonic()
    large = [workers.submit(partial(measure, b"x" * 5_000_000)) for _ in range(2)]
    assert not any(future.done() for future in busy)
    assert time.monotonic() - start < 0.9
    assert [future.result(60) for future in large] == [5_000_000] * 2


def test_a_task_that_cannot_be_sent_disturbs_no_other(workers: Workers) -> None:
    with pytest.raises(Exception, match="pickle"):
        workers.submit(lambda gallery: 1)
    results = [workers.submit(partial(measure, b"x" * n)) for n in range(6)]
    assert [future.result(60) for future in results] == list(range(6))


def test_a_gallery_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GalleryError, match="does not start: no gallery at"):
        Workers(partial(Gallery.open, str(tmp_path / "none")), 2)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_processes_end_with_the_server(gallery: Gallery, stop: signal.Signals) -> None:
    with run_serve(gallery, "--port", "0", "--workers", "2") as server:
        assert server.stdout is not None
        assert "serving" in server.stdout.readline()
        children = list_children(server.pid)
        assert len(children) >= 2
        server.send_signal(stop)
        server.wait(30)
    wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
