"""What HTTP adds to a search by image id, and what many clients get at the same time.

The server has processes of its own, at a free port of this machine. The last load is a mix of
searches, thumbnails and explanations while images are added and removed. Clients run in one thread,
so that they take little of the CPU.
"""

import argparse
import asyncio
import http.client
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from PIL import Image
from workload import print_table

from bm25v.client import to_id
from bm25v.gallery import Gallery
from bm25v.search.query import StoredImage
from bm25v.threads import available_cpus

K = 10  # hits of a search

_WARM_UP = 20  # searches before any is measured
_MIX = ("similar",) * 6 + ("search",) * 2 + ("thumbnail",) * 7 + ("explain",)
_SEARCHES = ("similar", "search")
_SEARCH_SECONDS = 10.0  # of searches alone, at most
_WRITER_PAUSE = 0.25  # seconds between two changes
_EXPECTED = {200, 201, 503}  # 503: too many requests wait already
_PATIENCE = 60.0  # seconds until an answer is given up


class Request(NamedTuple):
    kind: str
    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"

    def to_bytes(self, address: str) -> bytes:
        head = f"{self.method} {self.path} HTTP/1.1\r\nHost: {address}\r\n"
        if self.body:
            head += f"Content-Type: {self.content_type}\r\nContent-Length: {len(self.body)}\r\n"
        return f"{head}\r\n".encode() + self.body


@dataclass
class Load:
    """What clients got: milliseconds by kind of request, statuses, memory of the server."""

    seconds: float = 0.0
    times_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)  # at the start, in the middle, at the end

    @property
    def n_errors(self) -> int:
        """How many requests got neither an answer nor the advice to try again."""
        return sum(n for status, n in self.statuses.items() if status not in _EXPECTED)

    def to_dict(self) -> dict[str, Any]:
        n_searches = sum(len(self.times_ms[kind]) for kind in _SEARCHES)
        return {
            **describe_times([ms for times in self.times_ms.values() for ms in times]),
            "kinds": {kind: describe_times(ms) for kind, ms in sorted(self.times_ms.items())},
            "seconds": self.seconds,
            "searches_per_second": n_searches / self.seconds,
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            "errors": self.n_errors,
            "memory_bytes": self.memory,
        }


def describe_times(ms: list[float]) -> dict[str, float]:
    names = {"median_ms": 50, "p95_ms": 95, "p99_ms": 99}
    return {name: float(np.percentile(ms, q)) if ms else 0.0 for name, q in names.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=10_000, help="random images")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the mixed load")
    parser.add_argument("--workers", type=int, default=available_cpus())
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        make_gallery(Path(scratch), options.n)
        figures = time_server(Path(scratch) / "gallery", options)
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    titles = {
        "Gallery.search": figures["library"],
        "over HTTP": figures["http"],
        f"{options.clients} clients, searches": figures["searches"],
        f"{options.clients} clients, all kinds": figures["mix"],
        **{f"  {kind}": times for kind, times in figures["mix"]["kinds"].items()},
    }
    names = ("median_ms", "p95_ms", "p99_ms")
    rows = [(title, *(f"{times[name]:.2f}" for name in names)) for title, times in titles.items()]
    print_table((f"{options.n:,} images", "median ms", "p95 ms", "p99 ms"), rows)
    mix = figures["mix"]
    print(f"HTTP adds {figures['overhead_ms']:.2f} ms (p95)")
    print(
        f"{options.workers} workers: {figures['searches']['searches_per_second']:.0f} searches/s, "
        f"{mix['searches_per_second']:.0f} among all kinds"
    )
    megabytes = ", ".join(f"{size / 1e6:.0f}" for size in mix["memory_bytes"])
    print(f"{mix['errors']} errors; memory at start, middle and end: {megabytes} MB")


def make_gallery(folder: Path, n: int) -> None:
    """Make a gallery of random image files with the toy vocabulary."""
    rng = np.random.default_rng(0)
    files = folder / "images"
    files.mkdir()
    for number in range(n):
        blocks = rng.integers(0, 256, (5, 5, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((40, 40), Image.Resampling.NEAREST)
        image.save(files / f"{number}.png", compress_level=1)
    with Gallery.create(folder / "gallery", vocabulary="toy") as gallery:
        gallery.add(files)


def time_server(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    with Gallery.open(path) as gallery:
        paths = [image.path for image in gallery.images()]
        gallery.local.snapshot().searcher.build_index()
        words = [word.word for word in gallery.words(best=1)]
        rows = rng.choice(len(paths), options.requests + _WARM_UP).tolist()
        with run_server(path, options.workers) as (address, process):
            library_ms, http_ms = time_searches(gallery, address, [paths[row] for row in rows])
            ids = [to_id(paths[row]) for row in rng.permutation(len(paths))[:1000].tolist()]

            def load(kinds: tuple[str, ...], seconds: float, *, with_writer: bool) -> Load:
                return asyncio.run(
                    run_clients(
                        address,
                        options.clients,
                        seconds,
                        lambda rng: make_request(str(rng.choice(kinds)), ids, words, rng),
                        lambda: measure_memory(process),
                        with_writer=with_writer,
                    )
                )

            seconds = min(options.seconds, _SEARCH_SECONDS)
            searches = load(("similar",), seconds, with_writer=False)
            mix = load(_MIX, options.seconds, with_writer=True)
    library, over_http = describe_times(library_ms), describe_times(http_ms)
    return {
        "n_images": len(paths),
        "clients": options.clients,
        "workers": options.workers,
        "library": library,
        "http": over_http,
        "overhead_ms": over_http["p95_ms"] - library["p95_ms"],
        "searches": searches.to_dict(),
        "mix": mix.to_dict(),
    }


def time_searches(
    gallery: Gallery, address: str, paths: list[str]
) -> tuple[list[float], list[float]]:
    """Search with and without HTTP alternately, so that both meet the same machine."""
    library_ms, http_ms = [], []
    connection = http.client.HTTPConnection(address, timeout=60)
    for path in paths:
        start = time.perf_counter()
        gallery.search(StoredImage(path), k=K)
        middle = time.perf_counter()
        connection.request("GET", f"/v1/images/{to_id(path)}/similar?k={K}")
        response = connection.getresponse()
        response.read()
        end = time.perf_counter()
        if response.status != 200:
            sys.exit(f"the server answers {response.status} to a search")
        library_ms.append((middle - start) * 1e3)
        http_ms.append((end - middle) * 1e3)
    connection.close()
    return library_ms[_WARM_UP:], http_ms[_WARM_UP:]


def make_request(kind: str, ids: list[str], words: list[int], rng: np.random.Generator) -> Request:
    one, other = (ids[i] for i in rng.integers(len(ids), size=2).tolist())
    if kind == "search":
        body = {"images": [one], "boost": {str(rng.choice(words)): 2.0}}
        return Request(kind, "POST", "/v1/search", json.dumps(body).encode())
    paths = {
        "similar": f"/v1/images/{one}/similar?k={K}",
        "thumbnail": f"/v1/images/{one}/thumbnail",
        "explain": f"/v1/explain?query={one}&hit={other}",
    }
    return Request(kind, "GET", paths[kind])


class Client:
    """A connection to a server, with one request at a time."""

    def __init__(self, address: str, load: Load) -> None:
        self._address, self._load = address, load
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, request: Request) -> int:
        """Send a request, count the answer and return its status; 0 if there is none."""
        start = time.perf_counter()
        try:
            head = await self._exchange(request)
        except (OSError, EOFError, TimeoutError):
            self._load.statuses[0] += 1
            self.close()
            return 0
        status = int(head.split(b" ", 2)[1])
        self._load.statuses[status] += 1
        if status != 503:
            self._load.times_ms[request.kind].append((time.perf_counter() - start) * 1e3)
        if b"connection: close" in head:
            self.close()
        return status

    async def _exchange(self, request: Request) -> bytes:
        """Return the head of the answer, whose body is read too."""
        async with asyncio.timeout(_PATIENCE):
            if self._streams is None:
                host, _, port = self._address.rpartition(":")
                self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
            reader, writer = self._streams
            writer.write(request.to_bytes(self._address))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            _, _, rest = head.partition(b"\r\ncontent-length:")
            await reader.readexactly(int(rest.partition(b"\r\n")[0].strip() or b"0"))
        return head

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def run_clients(
    address: str,
    n: int,
    seconds: float,
    next_request: Callable[[np.random.Generator], Request],
    measure: Callable[[], int],
    *,
    with_writer: bool,
) -> Load:
    """Let n clients send one request after the other for some seconds; a writer is one more."""
    load = Load()
    start = time.perf_counter()
    end = start + seconds

    async def send_all(number: int) -> None:
        client, rng = Client(address, load), np.random.default_rng(number)
        while time.perf_counter() < end:
            await client.send(next_request(rng))
        client.close()

    async def measure_thrice() -> None:
        for moment in (start, (start + end) / 2, end):
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            load.memory.append(measure())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(measure_thrice())
        for number in range(n):
            tasks.create_task(send_all(number))
        if with_writer:
            tasks.create_task(write(Client(address, load), end))
    load.seconds = time.perf_counter() - start
    return load


async def write(client: Client, end: float) -> None:
    """Add a random image, then remove it, and so on."""
    rng, number, is_added = np.random.default_rng(0), 0, False
    while time.perf_counter() < end:
        name = f"bench-{number}"
        removal = Request("change", "DELETE", f"/v1/images/{to_id(name)}")
        status = await client.send(removal if is_added else make_form(name, rng))
        number, is_added = number + is_added, status == 201
        await asyncio.sleep(_WRITER_PAUSE)
    client.close()


def make_form(name: str, rng: np.random.Generator) -> Request:
    pixels = np.kron(rng.integers(0, 256, (5, 5, 3)), np.ones((8, 8, 1))).astype(np.uint8)
    head = '--b\r\nContent-Disposition: form-data; name="'
    start = f'{head}id"\r\n\r\n{name}\r\n{head}image"; filename="image"\r\n\r\nP6 40 40 255\n'
    form = start.encode() + pixels.tobytes() + b"\r\n--b--\r\n"
    return Request("change", "POST", "/v1/images", form, "multipart/form-data; boundary=b")


def measure_memory(process: int) -> int:
    """Return the memory of a process and of those that it has started, without pages of files.

    0 on systems without /proc.
    """
    folders = [Path(f"/proc/{process}")]
    for path in folders[0].glob("task/*/children"):
        with suppress(OSError):  # a thread that has ended meanwhile
            folders += [Path(f"/proc/{child}") for child in path.read_text().split()]
    kilobytes = 0
    for folder in folders:
        with suppress(OSError):
            lines = (folder / "status").read_text().splitlines()
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("RssAnon:"))
    return kilobytes * 1024


@contextmanager
def run_server(path: Path, workers: int) -> Iterator[tuple[str, int]]:
    """Run `bm25v serve` in a process; yield its address and its process id."""
    command = [sys.executable, "-m", "bm25v", "serve", "-g", str(path), "--port", "0", "--writable"]
    command += ["--workers", str(workers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            words = server.stdout.readline().split()
            urls = [word for word in words if word.startswith("http://")]
            if not urls:
                sys.exit("the server did not start: run `bm25v serve` to see why")
            yield urlsplit(urls[0]).netloc, server.pid
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
