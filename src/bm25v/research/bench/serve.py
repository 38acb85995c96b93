"""`bm25v bench serve`: what HTTP adds to a search, and what many clients get at the same time.

In: a gallery, or a number of images to make one of. Out: times of searches by image id in this
process and over HTTP; then searches of many clients, and searches, thumbnails and explanations
mixed while images are added and removed, with the memory of the server. The server has processes of
its own, at a free port of this machine, with a copy of the gallery.
"""

import asyncio
import http.client
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

from bm25v.api import Gallery
from bm25v.errors import EvaluationError, WrongUse
from bm25v.research.bench.http_load import (
    Client,
    Load,
    Request,
    describe_times,
    percentile,
    run_clients,
)
from bm25v.research.bench.soak.child import measure_family
from bm25v.search.query import StoredImage
from bm25v.server.bodies import SearchBody, Upload
from bm25v.server.images import to_id
from bm25v.server.searches import search_as_json

K = 10  # hits of a search

_WARM_UP = 20  # searches before any is measured
_MIX = ("similar",) * 6 + ("search",) * 2 + ("thumbnail",) * 7 + ("explain",)
_SEARCHES = frozenset({"similar", "search"})
_SEARCH_SECONDS = 10.0  # of searches alone, at most
_WRITER_PAUSE = 0.25  # seconds between two changes


@dataclass
class ServeTimes:
    """Milliseconds of searches one after the other, and what many clients got."""

    n_images: int
    library_ms: list[float] = field(default_factory=list)
    json_ms: list[float] = field(default_factory=list)  # with the JSON of the response
    http_ms: list[float] = field(default_factory=list)
    searches: Load = field(default_factory=Load)
    mix: Load = field(default_factory=Load)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            "pictures": self.n_images,
            "library": describe_times(self.library_ms),
            "json": describe_times(self.json_ms),
            "http": describe_times(self.http_ms),
            "overhead_ms": self.overhead_ms,
            "searches_per_second": self.searches_per_second,
            "searches": self.searches.to_dict(),
            "mix": self.mix.to_dict(),
        }

    @property
    def overhead_ms(self) -> float:
        """How much longer 95 % of the searches take at most over HTTP."""
        return percentile(self.http_ms, 95) - percentile(self.library_ms, 95)

    @property
    def searches_per_second(self) -> dict[str, float]:
        """How many searches are done in a second, one after the other and by many clients."""
        in_turn = {"library": self.library_ms, "json": self.json_ms, "http": self.http_ms}
        many = {"clients": self.searches, "mix": self.mix}
        return {
            **{name: 1e3 * len(ms) / (sum(ms) or 1.0) for name, ms in in_turn.items()},
            **{name: load.count_per_second(_SEARCHES) for name, load in many.items()},
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
    path: Path,
    scratch: Path,
    *,
    requests: int,
    clients: int,
    seconds: float,
    workers: int = 1,
    seed: int = 0,
) -> ServeTimes:
    """Measure searches of a gallery with and without HTTP, then of many clients.

    The server gets a copy of the gallery in the folder `scratch`, and `workers` processes.
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
        with _running_server(copy, workers) as (address, process):
            _time_searches(gallery, address, [paths[row] for row in chosen], times)
            rows = np.random.default_rng(seed).permutation(len(paths))[:1000].tolist()
            load = _ClientLoad(address, process, [paths[row] for row in rows], words, clients)
            times.searches = load.run(("similar",), min(seconds, _SEARCH_SECONDS))
            times.mix = load.run(_MIX, seconds, with_writer=True)
    return times


def _time_searches(gallery: Gallery, address: str, paths: list[str], times: ServeTimes) -> None:
    """Search in turns, so that all ways meet the same machine."""
    connection = http.client.HTTPConnection(address, timeout=60)
    for number, path in enumerate(paths):
        image_id = to_id(path)
        upload = Upload(SearchBody.model_validate({"images": [image_id], "k": K}))
        moments = [time.perf_counter()]
        gallery.search(StoredImage(path), k=K)
        moments.append(time.perf_counter())
        search_as_json(upload, gallery)
        moments.append(time.perf_counter())
        connection.request("GET", f"/v1/images/{image_id}/similar?k={K}")
        response = connection.getresponse()
        response.read()
        moments.append(time.perf_counter())
        if response.status != 200:
            raise EvaluationError(f"the server answers {response.status} to a search")
        if number >= _WARM_UP:
            columns = (times.library_ms, times.json_ms, times.http_ms)
            for column, seconds in zip(columns, np.diff(moments).tolist(), strict=True):
                column.append(seconds * 1e3)
    connection.close()


class _ClientLoad:
    """Clients that send requests of several kinds at the same time, one after the other each."""

    def __init__(
        self, address: str, process: int, paths: list[str], words: list[int], n: int
    ) -> None:
        self._address, self._process, self._n = address, process, n
        self._ids, self._words = list(map(to_id, paths)), words

    def run(self, kinds: tuple[str, ...], seconds: float, *, with_writer: bool = False) -> Load:
        """Send requests of these kinds for some seconds; the writer is one more client."""
        return run_clients(
            self._address,
            self._n,
            seconds,
            lambda rng: self._make_request(kinds[int(rng.integers(len(kinds)))], rng),
            writer=_write if with_writer else None,
            measure_memory=lambda: measure_family(self._process),
        )

    def _make_request(self, kind: str, rng: np.random.Generator) -> Request:
        one, other = (self._ids[i] for i in rng.integers(len(self._ids), size=2).tolist())
        if kind == "search":
            word = self._words[int(rng.integers(len(self._words)))]
            body = f'{{"images": ["{one}"], "boost": {{"{word}": 2.0}}}}'
            return Request(kind, "POST", "/v1/search", body.encode())
        paths = {
            "similar": f"/v1/images/{one}/similar?k={K}",
            "thumbnail": f"/v1/images/{one}/thumbnail",
            "explain": f"/v1/explain?query={one}&hit={other}",
        }
        return Request(kind, "GET", paths[kind])


async def _write(client: Client, end: float) -> None:
    """Add a random image, then remove it, and so on."""
    rng, number, is_added = np.random.default_rng(0), 0, False
    while time.perf_counter() < end:
        name = f"bench-{number}"
        removal = Request("change", "DELETE", f"/v1/images/{to_id(name)}")
        status = await client.send(removal if is_added else _make_form(name, rng))
        number, is_added = number + is_added, status == 201
        await asyncio.sleep(_WRITER_PAUSE)
    client.close()


def _make_form(name: str, rng: np.random.Generator) -> Request:
    """Return a request that adds a random image."""
    pixels = np.kron(rng.integers(0, 256, (5, 5, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    head = '--b\r\nContent-Disposition: form-data; name="'
    start = f'{head}id"\r\n\r\n{name}\r\n{head}image"; filename="image"\r\n\r\nP6 40 40 255\n'
    form = start.encode() + pixels.tobytes() + b"\r\n--b--\r\n"
    return Request("change", "POST", "/v1/images", form, "multipart/form-data; boundary=b")


@contextmanager
def _running_server(path: Path, workers: int) -> Iterator[tuple[str, int]]:
    """Run `bm25v serve` in a process; yield its address and its process id."""
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(path), "--port", "0", "--writable"]
    command += ["--workers", str(workers)]
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
