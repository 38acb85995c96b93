"""Processes that search for the server: the same answers, whatever happens to them."""

import asyncio
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from bm25v import Gallery
from bm25v.errors import GalleryError, InvalidOption
from bm25v.server import workers as workers_module
from bm25v.server.problems import Problem
from bm25v.server.workers import Workers
from tests.http_server import Client, serving, wait_until
from tests.test_server import failed
from tests.test_server_access import run_serve

T = TypeVar("T")

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


def get_pid(collection: Gallery) -> int:
    """Return the process that this runs in."""
    return os.getpid()


def kill_itself(collection: Gallery) -> None:
    """End the process that this runs in."""
    os.kill(os.getpid(), signal.SIGKILL)


def open_without(obstacle: str, path: str) -> Gallery:
    """Open a gallery unless there is a file."""
    if os.path.exists(obstacle):
        raise InvalidOption("there is an obstacle")
    return Gallery.open(path)


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
    failed(client.post("/v1/search", json=body), 400, "invalid-option", "no such name")


def test_processes_follow_changes(client: Client) -> None:
    image_id = client.ids()[0]
    assert len(search(client, image_id)["hits"]) == 10  # type: ignore[arg-type]
    for image in client.ids()[1:]:
        assert client.delete(f"/v1/images/{image}").status_code == 200
    for _ in range(4):  # each process at least once
        assert search(client, image_id)["hits"] == []


def do(workers: Workers, task: Callable[[Gallery], T], n: int = 1) -> list[T]:
    """Return the results of a task that is done several times."""

    async def run() -> list[T]:
        return await asyncio.gather(*(workers.run(task) for _ in range(n)))

    return asyncio.run(run())


def test_a_killed_process_is_replaced(workers: Workers, client: Client) -> None:
    image_id = client.ids()[0]
    expected = search(client, image_id)
    (killed,) = do(workers, get_pid)
    os.kill(killed, signal.SIGKILL)
    answers = (client.get(f"/v1/images/{image_id}/similar") for _ in range(1000))
    interrupted = next(answer for answer in answers if answer.status_code != 200)
    failed(interrupted, 503, "interrupted", "send the request again")
    assert interrupted.headers["retry-after"] == "1"
    assert search(client, image_id) == expected
    assert not {*do(workers, get_pid, 4)} & {killed, os.getpid()}


def test_a_process_that_hangs_is_replaced(
    workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung = {process.pid for process in multiprocessing.active_children()}
    assert len(hung) == 2
    for process in hung:
        assert process is not None
        os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(workers_module, "TASK_SECONDS", 1.0)
    with pytest.raises(Problem, match="took more than 1 seconds"):
        do(workers, get_pid, 4)
    monkeypatch.setattr(workers_module, "TASK_SECONDS", 30.0)
    assert not hung & {*do(workers, get_pid, 4)}
    wait_until(lambda: not any(Path(f"/proc/{process}").exists() for process in hung))


def test_processes_open_the_gallery_again_if_that_failed(gallery: Gallery, tmp_path: Path) -> None:
    obstacle = tmp_path / "obstacle"
    reopen = partial(open_without, str(obstacle), str(gallery.path))
    with closing(Workers(reopen, 2)) as workers:
        wait_until(lambda: len({*do(workers, get_pid, 4)}) == 2)  # both have opened it
        obstacle.touch()
        for task, kind in ((kill_itself, "interrupted"), (get_pid, "invalid-option")):
            with pytest.raises(Problem) as problem:
                do(workers, task)
            assert problem.value.kind == kind
        obstacle.unlink()
        assert os.getpid() not in do(workers, get_pid, 4)


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
