"""`bm25v bench serve`: what HTTP adds to a search, and how many requests a server answers.

In: a gallery, or a number of images to make one of. Out: times of searches by image id in this
process and over HTTP, and of a mixed load of many clients. The server is a process of its own, at a
free port of this machine.
"""

import http.client
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from bm25v.api import Gallery
from bm25v.errors import EvaluationError, WrongUse
from bm25v.search.query import StoredImage
from bm25v.server.images import to_id

K = 10  # hits of a search

_WARM_UP = 20  # searches before any is measured
_ROUTES = ("similar", "similar", "similar", "search", "list", "word", "stats")  # of the mixed load


@dataclass
class ServeTimes:
    """Milliseconds of searches, and what the mixed load got."""

    n_images: int
    library_ms: list[float] = field(default_factory=list)
    http_ms: list[float] = field(default_factory=list)
    load_ms: list[float] = field(default_factory=list)
    load_seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def overhead_ms(self) -> float:
        """How much longer 95 % of the searches take at most over HTTP."""
        return percentile(self.http_ms, 95) - percentile(self.library_ms, 95)


def percentile(values: list[float], q: float) -> float:
    """Return a percentile of times."""
    return float(np.percentile(values, q)) if values else 0.0


def make_gallery(folder: Path, n: int) -> None:
    """Make a gallery of random images with the toy vocabulary."""
    rng = np.random.default_rng(0)
    pixels = (np.kron(rng.integers(0, 256, (5, 5, 3)), np.ones((8, 8, 1))) for _ in range(n))
    with Gallery.create(folder, vocabulary="toy") as gallery:
        gallery.add((f"{i}", image.astype(np.uint8)) for i, image in enumerate(pixels))


def time_server(
    path: Path, *, requests: int, clients: int, seconds: float, seed: int = 0
) -> ServeTimes:
    """Measure searches of a gallery with and without HTTP, then a mixed load."""
    with Gallery.open(path) as gallery:
        paths = [image.path for image in gallery.images()]
        if not paths:
            raise WrongUse(f"the gallery {path} has no images: index some first")
        gallery.store.snapshot().searcher.build_index()
        words = [word.word for word in gallery.words(best=1)]
        chosen = np.random.default_rng(seed).choice(len(paths), requests + _WARM_UP).tolist()
        times = ServeTimes(len(paths))
        with _running_server(path) as address:
            connection = http.client.HTTPConnection(address, timeout=60)
            for number, row in enumerate(chosen):  # in turns, so that both meet the same machine
                start = time.perf_counter()
                gallery.search(StoredImage(paths[row]), k=K)
                middle = time.perf_counter()
                status = _request(connection, f"/v1/images/{to_id(paths[row])}/similar?k={K}")
                end = time.perf_counter()
                if status != 200:
                    raise EvaluationError(f"the server answers {status} to a search")
                if number >= _WARM_UP:
                    times.library_ms.append((middle - start) * 1e3)
                    times.http_ms.append((end - middle) * 1e3)
            connection.close()
            _load_server(address, [paths[row] for row in chosen], words, clients, seconds, times)
    return times


def _load_server(
    address: str,
    paths: list[str],
    words: list[int],
    clients: int,
    seconds: float,
    times: ServeTimes,
) -> None:
    """Let clients send requests of several kinds, one after the other each."""
    start = time.perf_counter()

    def work(client: int) -> list[tuple[int, float]]:
        connection = http.client.HTTPConnection(address, timeout=60)
        answers = []
        number = client
        while time.perf_counter() - start < seconds:
            sent = time.perf_counter()
            path, word = paths[number % len(paths)], words[number % len(words)]
            kind = _ROUTES[number % len(_ROUTES)]
            status = _request(connection, *_make_request(kind, to_id(path), word))
            answers.append((status, (time.perf_counter() - sent) * 1e3))
            number += clients
        connection.close()
        return answers

    with ThreadPoolExecutor(clients) as pool:
        for status, ms in (pair for answers in pool.map(work, range(clients)) for pair in answers):
            times.statuses[status] += 1
            times.load_ms.append(ms)
    times.load_seconds = time.perf_counter() - start


def _make_request(kind: str, image_id: str, word: int) -> tuple[str, str | None]:
    """Return the path of a request, and its body if it has one."""
    if kind == "search":
        return "/v1/search", f'{{"images": ["{image_id}"], "boost": {{"{word}": 2.0}}}}'
    paths = {
        "similar": f"/v1/images/{image_id}/similar?k={K}",
        "list": "/v1/images?limit=50",
        "word": f"/v1/words/{word}",
        "stats": "/v1/stats",
    }
    return paths[kind], None


def _request(connection: http.client.HTTPConnection, path: str, body: str | None = None) -> int:
    headers = {} if body is None else {"Content-Type": "application/json"}
    connection.request("GET" if body is None else "POST", path, body, headers)
    response = connection.getresponse()
    response.read()
    return response.status


@contextmanager
def _running_server(path: Path) -> Iterator[str]:
    """Run `bm25v serve` in a process; yield its address."""
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(path), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            urls = [word for word in line.split() if word.startswith("http://")]
            if not urls:
                raise EvaluationError("the server did not start: run `bm25v serve` to see why")
            yield urlsplit(urls[0]).netloc
        finally:
            server.terminate()
