"""`bm25v bench serve`: what HTTP adds to a search, and what many clients get at the same time.

In: a gallery, or a number of images to make one of. Out: times of searches by image id in this
process and over HTTP; then searches of many clients, and searches, thumbnails and explanations
mixed while images are added and removed, with the memory of the server. The server is a process of
its own, at a free port of this machine, with a copy of the gallery.
"""

import http.client
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from bm25v.api import Gallery
from bm25v.errors import EvaluationError, WrongUse
from bm25v.research.bench.soak.child import measure_memory
from bm25v.search.query import StoredImage
from bm25v.server.images import to_id

K = 10  # hits of a search

_WARM_UP = 20  # searches before any is measured
_MIX = ("similar",) * 6 + ("search",) * 2 + ("thumbnail",) * 7 + ("explain",)
_SEARCHES = frozenset({"similar", "search"})
_WRITER_PAUSE = 0.25  # seconds between two changes
_EXPECTED = frozenset({200, 201, 503})  # 503: too many requests wait already


class _Request(NamedTuple):
    method: str
    path: str
    body: bytes | None = None
    content_type: str = "application/json"


@dataclass
class Load:
    """What clients got: milliseconds by kind of request, statuses, memory of the server."""

    seconds: float = 0.0
    times_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)  # at the start, in the middle, at the end

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            **describe_times(self.all_ms),
            "kinds": {kind: describe_times(ms) for kind, ms in sorted(self.times_ms.items())},
            "seconds": self.seconds,
            "searches_per_second": self.searches_per_second,
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            "errors": self.n_errors,
            "memory_bytes": self.memory,
        }

    @property
    def searches_per_second(self) -> float:
        """How many searches were answered in a second."""
        n = sum(len(ms) for kind, ms in self.times_ms.items() if kind in _SEARCHES)
        return n / (self.seconds or 1.0)

    @property
    def all_ms(self) -> list[float]:
        """The times of all requests."""
        return [ms for times in self.times_ms.values() for ms in times]

    @property
    def n_errors(self) -> int:
        """How many requests got neither an answer nor the advice to try again."""
        return sum(n for status, n in self.statuses.items() if status not in _EXPECTED)


@dataclass
class ServeTimes:
    """Milliseconds of searches one after the other, and what many clients got."""

    n_images: int
    library_ms: list[float] = field(default_factory=list)
    http_ms: list[float] = field(default_factory=list)
    searches: Load = field(default_factory=Load)
    mix: Load = field(default_factory=Load)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            "pictures": self.n_images,
            "library": describe_times(self.library_ms),
            "http": describe_times(self.http_ms),
            "overhead_ms": self.overhead_ms,
            "loop_per_second": self.loop_per_second,
            "searches": self.searches.to_dict(),
            "mix": self.mix.to_dict(),
        }

    @property
    def overhead_ms(self) -> float:
        """How much longer 95 % of the searches take at most over HTTP."""
        return percentile(self.http_ms, 95) - percentile(self.library_ms, 95)

    @property
    def loop_per_second(self) -> float:
        """How many searches one process does in a second, one after the other."""
        return 1e3 * len(self.library_ms) / (sum(self.library_ms) or 1.0)


def percentile(values: list[float], q: float) -> float:
    """Return a percentile of times."""
    return float(np.percentile(values, q)) if values else 0.0


def describe_times(ms: list[float]) -> dict[str, float]:
    """Return the percentiles that people compare."""
    return {
        "median_ms": percentile(ms, 50),
        "p95_ms": percentile(ms, 95),
        "p99_ms": percentile(ms, 99),
    }


def make_gallery(folder: Path, n: int) -> None:
    """Make a gallery of random image files with the toy vocabulary; the files are beside it."""
    rng = np.random.default_rng(0)
    files = folder.parent / "images"
    files.mkdir()
    for number in range(n):
        blocks = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((40, 40), Image.Resampling.NEAREST)
        image.save(files / f"{number}.png", compress_level=1)
    with Gallery.create(folder, vocabulary="toy") as gallery:
        gallery.add(files)


def time_server(
    path: Path, scratch: Path, *, requests: int, clients: int, seconds: float, seed: int = 0
) -> ServeTimes:
    """Measure searches of a gallery with and without HTTP, then of many clients.

    The server gets a copy of the gallery in the folder `scratch`.
    """
    with Gallery.open(path) as gallery:
        paths = [image.path for image in gallery.images()]
        if not paths:
            raise WrongUse(f"the gallery {path} has no images: index some first")
        gallery.store.snapshot().searcher.build_index()
        words = [word.word for word in gallery.words(best=1)]
        chosen = np.random.default_rng(seed).choice(len(paths), requests + _WARM_UP).tolist()
        times = ServeTimes(len(paths))
        copy = scratch / "copy.bm25v"
        shutil.copytree(path, copy)
        with _running_server(copy) as (address, process):
            _time_searches(gallery, address, [paths[row] for row in chosen], times)
            rows = np.random.default_rng(seed).permutation(len(paths))[:1000].tolist()
            load = _Clients(address, process, [paths[row] for row in rows], words, clients)
            times.searches = load.run(["similar"], min(seconds, 10.0))
            times.mix = load.run(_MIX, seconds, with_writer=True)
    return times


def _time_searches(gallery: Gallery, address: str, paths: list[str], times: ServeTimes) -> None:
    """Search in turns, so that both ways meet the same machine."""
    connection = http.client.HTTPConnection(address, timeout=60)
    for number, path in enumerate(paths):
        request = _Request("GET", f"/v1/images/{to_id(path)}/similar?k={K}")
        start = time.perf_counter()
        gallery.search(StoredImage(path), k=K)
        middle = time.perf_counter()
        status = _send(connection, request)
        end = time.perf_counter()
        if status != 200:
            raise EvaluationError(f"the server answers {status} to a search")
        if number >= _WARM_UP:
            times.library_ms.append((middle - start) * 1e3)
            times.http_ms.append((end - middle) * 1e3)
    connection.close()


class _Clients:
    """Clients that send requests of several kinds at the same time, one after the other each."""

    def __init__(
        self, address: str, process: int, paths: list[str], words: list[int], n: int
    ) -> None:
        self._address, self._process, self._n = address, process, n
        self._paths, self._words = paths, words

    def run(self, kinds: Sequence[str], seconds: float, *, with_writer: bool = False) -> Load:
        """Send requests of these kinds for some seconds; the writer is one more client."""
        load, mutex = Load(), threading.Lock()
        start = time.perf_counter()
        end = start + seconds

        def work(client: int) -> None:
            connection = http.client.HTTPConnection(self._address, timeout=60)
            rng = np.random.default_rng(client)
            while (sent := time.perf_counter()) < end:
                kind = kinds[int(rng.integers(len(kinds)))]
                status = _send(connection, self._make_request(kind, rng))
                with mutex:
                    load.statuses[status] += 1
                    if status != 503:
                        load.times_ms[kind].append((time.perf_counter() - sent) * 1e3)
            connection.close()

        def write() -> None:
            connection = http.client.HTTPConnection(self._address, timeout=60)
            rng, number, is_added = np.random.default_rng(0), 0, False
            while (sent := time.perf_counter()) < end:
                name = f"bench-{number}"
                request = _Request("DELETE", f"/v1/images/{to_id(name)}")
                status = _send(connection, request if is_added else _make_form(name, rng))
                with mutex:
                    load.statuses[status] += 1
                    load.times_ms["change"].append((time.perf_counter() - sent) * 1e3)
                number, is_added = number + is_added, status == 201
                time.sleep(_WRITER_PAUSE)
            connection.close()

        def measure() -> None:
            for moment in (start, (start + end) / 2, end):
                time.sleep(max(0.0, moment - time.perf_counter()))
                load.memory.append(measure_memory(self._process))

        with ThreadPoolExecutor(self._n + 2) as pool:
            tasks = [pool.submit(measure), *(pool.submit(work, n) for n in range(self._n))]
            if with_writer:
                tasks.append(pool.submit(write))
            for task in tasks:
                task.result()
        load.seconds = time.perf_counter() - start
        return load

    def _make_request(self, kind: str, rng: np.random.Generator) -> _Request:
        one, other = (to_id(self._paths[i]) for i in rng.integers(len(self._paths), size=2))
        word = self._words[rng.integers(len(self._words))]
        if kind == "search":
            body = f'{{"images": ["{one}"], "boost": {{"{word}": 2.0}}}}'
            return _Request("POST", "/v1/search", body.encode())
        paths = {
            "similar": f"/v1/images/{one}/similar?k={K}",
            "thumbnail": f"/v1/images/{one}/thumbnail",
            "explain": f"/v1/explain?query={one}&hit={other}",
        }
        return _Request("GET", paths[kind])


def _make_form(name: str, rng: np.random.Generator) -> _Request:
    """Return a request that adds a random image."""
    pixels = np.kron(rng.integers(0, 256, (5, 5, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    head = '--b\r\nContent-Disposition: form-data; name="'
    start = f'{head}id"\r\n\r\n{name}\r\n{head}image"; filename="image"\r\n\r\nP6 40 40 255\n'
    form = start.encode() + pixels.tobytes() + b"\r\n--b--\r\n"
    return _Request("POST", "/v1/images", form, "multipart/form-data; boundary=b")


def _send(connection: http.client.HTTPConnection, request: _Request) -> int:
    headers = {} if request.body is None else {"Content-Type": request.content_type}
    connection.request(request.method, request.path, request.body, headers)
    response = connection.getresponse()
    response.read()
    return response.status


@contextmanager
def _running_server(path: Path) -> Iterator[tuple[str, int]]:
    """Run `bm25v serve` in a process; yield its address and its process id."""
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(path), "--port", "0", "--writable"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            urls = [word for word in line.split() if word.startswith("http://")]
            if not urls:
                raise EvaluationError("the server did not start: run `bm25v serve` to see why")
            yield urlsplit(urls[0]).netloc, server.pid
        finally:
            server.terminate()
