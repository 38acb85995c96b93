"""Many clients of a server at the same time, in one thread, so that they take little of the CPU.

In: an address, and what each client sends next. Out: how long the answers took, and their statuses.
Not this module's job: what the requests mean (`serve`).
"""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

_EXPECTED = frozenset({200, 201, 503})  # 503: too many requests wait already
_SECONDS = 60.0  # until an answer is given up


class Request(NamedTuple):
    """One request, and its kind for the table of results."""

    kind: str
    method: str
    path: str
    body: bytes = b""
    content_type: str = "application/json"

    def to_bytes(self, address: str) -> bytes:
        """Return the request as it is sent."""
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
    def all_ms(self) -> list[float]:
        """The times of all requests."""
        return [ms for times in self.times_ms.values() for ms in times]

    @property
    def n_errors(self) -> int:
        """How many requests got neither an answer nor the advice to try again."""
        return sum(n for status, n in self.statuses.items() if status not in _EXPECTED)

    def count_per_second(self, kinds: frozenset[str]) -> float:
        """Return how many requests of some kinds were answered in a second."""
        n = sum(len(ms) for kind, ms in self.times_ms.items() if kind in kinds)
        return n / (self.seconds or 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            **describe_times(self.all_ms),
            "kinds": {kind: describe_times(ms) for kind, ms in sorted(self.times_ms.items())},
            "seconds": self.seconds,
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            "errors": self.n_errors,
            "memory_bytes": self.memory,
        }


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
        async with asyncio.timeout(_SECONDS):
            if self._streams is None:
                host, _, port = self._address.rpartition(":")
                self._streams = await asyncio.open_connection(host.strip("[]"), int(port))
            reader, writer = self._streams
            writer.write(request.to_bytes(self._address))
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(_read_header(head, b"content-length")))
        return head

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def run_clients(
    address: str,
    n: int,
    seconds: float,
    next_request: Callable[[np.random.Generator], Request],
    *,
    writer: "Callable[[Client, float], Any] | None" = None,
    measure_memory: Callable[[], int] = lambda: 0,
) -> Load:
    """Let n clients send one request after the other for some seconds.

    Each has random numbers of its own for `next_request`. `writer` is one more client: a coroutine
    that sends until a time.
    """
    return asyncio.run(_run(address, n, seconds, next_request, writer, measure_memory))


async def _run(
    address: str,
    n: int,
    seconds: float,
    next_request: Callable[[np.random.Generator], Request],
    writer: "Callable[[Client, float], Any] | None",
    measure_memory: Callable[[], int],
) -> Load:
    load = Load()
    start = time.perf_counter()
    end = start + seconds

    async def send_all(number: int) -> None:
        client, rng = Client(address, load), np.random.default_rng(number)
        while time.perf_counter() < end:
            await client.send(next_request(rng))
        client.close()

    async def measure() -> None:
        for moment in (start, (start + end) / 2, end):
            await asyncio.sleep(max(0.0, moment - time.perf_counter()))
            load.memory.append(measure_memory())

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(measure())
        for number in range(n):
            tasks.create_task(send_all(number))
        if writer is not None:
            tasks.create_task(writer(Client(address, load), end))
    load.seconds = time.perf_counter() - start
    return load


def _read_header(head: bytes, name: bytes) -> bytes:
    _, _, rest = head.partition(b"\r\n" + name + b":")
    return rest.partition(b"\r\n")[0].strip() or b"0"


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
