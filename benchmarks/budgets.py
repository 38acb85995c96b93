"""What the worst request of each route costs, and how long small searches wait beside it.

For each kind of request a few clients send the largest one that the rules allow, again and again,
while another client sends small searches. The table has the time of both and the memory of the
server. Of the gallery's images some are files; the others have the words of these, and no file.
"""

import argparse
import asyncio
import hashlib
import io
import json
import random
import string
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
from PIL import Image
from serve import Request, measure_memory, run_server
from workload import print_table

from bm25v.client import to_id
from bm25v.gallery import Gallery
from bm25v.images import Metadata
from bm25v.store.base import IndexReport
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.filters import ImageFilter
from bm25v.store.local.indexing import add_batch
from bm25v.store.local.writer import Writer

N_FILES = 64
_ATTACKERS = 4
_PAUSE = 0.02  # seconds between two small searches
_COMMIT_IMAGES = 16_384
_LONGEST_TEXT = 1_000
_PATIENCE = 300.0  # seconds until an answer is given up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000, help="images")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each kind of request")
    parser.add_argument("--workers", type=int, default=1, help="processes that search")
    parser.add_argument("--vocabulary", default="default")
    parser.add_argument("--only", default="", help="kinds of requests that contain this")
    parser.add_argument("--mix", action="store_true", help="all kinds at the same time")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        gallery = Path(scratch) / "gallery"
        paths = make_gallery(Path(scratch), options.n, options.vocabulary)
        with run_server(gallery, options.workers) as (address, process):
            small = Request("small", "GET", f"/v1/images/{to_id(paths[0])}/similar?k=10")
            warm_up(address, small)
            kinds = {k: make for k, make in make_requests(paths).items() if options.only in k}
            if options.mix:
                kinds = {"all kinds": mix(list(kinds.values()))}
            figures = {}
            for kind, make in kinds.items():
                load = asyncio.run(attack(address, process, small, make, options.seconds))
                figures[kind] = load.to_dict()
    if options.json:
        print(json.dumps({"n_images": options.n, "kinds": figures}, indent=2))
        return
    rows = [
        (
            kind,
            f"{row['worst_median_ms']:.0f}",
            f"{row['small_p99_ms']:.0f}",
            f"{row['small_max_ms']:.0f}",
            "  ".join(f"{size / 1e6:.0f}" for size in row["memory_bytes"].values()),
            " ".join(f"{status}×{n}" for status, n in row["statuses"].items()),
        )
        for kind, row in figures.items()
    ]
    memory = "MB at start, middle, end, most"
    header = (f"{options.n:,} images", "ms", "small p99 ms", "max ms", memory, "statuses")
    print_table(header, rows)


def make_gallery(folder: Path, n: int, vocabulary: str) -> list[str]:
    """Make a gallery; return the paths of all images, files first."""
    rng = np.random.default_rng(0)
    files = folder / "images"
    files.mkdir()
    for number in range(min(n, N_FILES)):
        blocks = rng.integers(0, 256, (9, 12, 3), dtype=np.uint8)
        image = Image.fromarray(blocks).resize((1200, 900), Image.Resampling.BICUBIC)
        image.save(files / f"{number:03}.jpg")
    with Gallery.create(folder / "gallery", vocabulary=vocabulary) as gallery:
        gallery.add(files)
        snapshot = gallery.local.snapshot()
        first = snapshot.page(ImageFilter(), 0, N_FILES)
        images = snapshot.fetch(first)
        known = [
            (
                images.read_bag(r.row, full=False),
                images.read_full_bag(r.row),
                snapshot.dense_ne[r.row],
            )
            for r in first
        ]
    paths = [record.path for record in first]
    names = np.random.default_rng(1).choice(list(string.ascii_lowercase), (n, 24))
    with Writer(folder / "gallery") as writer:
        batch = []
        for number in range(len(first), n):
            path = f"/p/{number % 100}/{number % 7}/{''.join(names[number])}.jpg"
            content = hashlib.sha256(path.encode()).digest()[: len(first[0].content)]
            file = FileState(path, content, 1, number * 10**13, Metadata(1200, 900, None))
            rows = writer.to_rows(ImageBags(file, *known[number % len(known)]))
            batch.append((file, rows))
            paths.append(path)
            if len(batch) == _COMMIT_IMAGES or number == n - 1:
                add_batch(writer, batch, IndexReport(), follow_moves=False)
                writer.commit()
                batch.clear()
    return paths


def warm_up(address: str, request: Request) -> None:
    while httpx.get(f"http://{address}/readyz").json()["preparing"]:
        time.sleep(0.1)
    httpx.get(f"http://{address}{request.path}", timeout=_PATIENCE)


Make = Callable[[int], Request]  # of a number, so that no cache knows the next request


def make_requests(paths: list[str]) -> dict[str, Make]:
    """Return how to make the largest request of each kind."""
    ids = list(map(to_id, paths))
    some, files = ids[-1000:], ids[: min(16, len(ids))]
    photo = make_photo()
    keys: dict[str, Any] = {str(key): 1 for key in range(80_000)}
    return {
        "search, most candidates": post(
            images=files, like=files, unlike=files, k=1000, words=25, candidates=20_000
        ),
        "search, small, all words": post(images=files, like=files, unlike=files, k=100, words=256),
        "search, deepest page": post(
            images=files[:1], mode="dense", k=1000, words=25, offset=len(ids) // 2
        ),
        "search, 256 boosts": post(
            images=files[:1], k=1000, boost={str(word): 2.0 for word in range(256)}
        ),
        "search, longest text": text("ä sunset quvz "),
        "search, text of names": text("holiday-img_1466 "),
        "search, wildcards": patterns("**/" * 6 + "*?" * 20 + "{}", n=1),
        "search, long patterns": patterns("*" + "{}" * 500, n=2),
        "search, 16 uploads": upload([photo] * 16),
        "search, 10,000 px": upload([make_photo(side=10_000)]),
        "remaining": post("/v1/remaining", images=files, word=1, folder=["**/a*b*c*"]),
        "explain": post("/v1/explain", images=files, hit=files[-1], words=256),
        "shows": get(f"/v1/images/{files[0]}/shows"),
        "heatmap": get("/v1/heatmap", image=files[0], word=list(range(64))),
        "heatmap of an upload": upload(
            [photo], "/v1/heatmap", groups=[[word % 2048] * 64 for word in range(128)]
        ),
        "images, wildcards": get(
            "/v1/images", folder=[f"*{a}*{b}*" for a in "abcd" for b in "ijklm"]
        ),
        "images, last page": get(
            "/v1/images", order="date", limit=1000, offset=max(0, len(ids) - 1000)
        ),
        "months": get("/v1/months", folder=["**/*a*b*c*"]),
        "folders": get("/v1/folders"),
        "topics": get("/v1/topics"),
        "names": get("/v1/names"),
        "terms": get("/v1/terms", prefix="s", limit=100),
        "stats": get("/v1/stats"),
        "metrics": get("/metrics"),
        "words": get("/v1/words", sort="name", best=10, limit=1000),
        "word": get("/v1/words/1", images=1000, sort="name"),
        "crops": post("/v1/crops", crops=[{"word": word} for word in range(256)], size=96),
        "large crops": post("/v1/crops", crops=[{"word": word} for word in range(36)], size=256),
        "zip": post("/v1/zip", ids=[*files, *some[: 1000 - len(files)]]),
        "thumbnail": get(f"/v1/images/{files[0]}/thumbnail", size=1024),
        "file": get(f"/v1/images/{files[0]}/file"),
        "duplicates": get("/v1/duplicates", limit=1000),
        "unknown keys": post("/v1/search", **keys),
        "unknown keys of crops": post("/v1/crops", **keys),
        "wrong ids": post("/v1/zip", ids=["!"] * 200_000),
        "add": lambda n: form("/v1/images", [("id", f"new-{n}".encode()), ("image", photo)]),
        "name images": post("/v1/names", "PUT", name="x", ids=some),
        "name a word": post("/v1/words/1/name", "PUT", name="x" * 1000),
    }


def post(path: str = "/v1/search", method: str = "POST", **options: Any) -> Make:
    request = Request("worst", method, path, json.dumps(options, separators=(",", ":")).encode())
    return lambda number: request


def get(path: str, **parameters: Any) -> Make:
    request = Request("worst", "GET", f"{path}?{urlencode(parameters, doseq=True)}")
    return lambda number: request


def text(part: str) -> Make:
    longest = part * (_LONGEST_TEXT // len(part))
    return lambda n: post(text=f"{n} {longest}"[:_LONGEST_TEXT], k=100, words=256)(n)


def patterns(form: str, n: int) -> Make:
    def make(number: int) -> Request:
        letters = (f"{number * n + at:x}" for at in range(n))
        return post(must=[1], folder=[form.replace("{}", part) for part in letters])(number)

    return make


def upload(images: list[bytes], path: str = "/v1/search", **options: Any) -> Make:
    fields = [("image", image) for image in images]
    request = form(path, [*fields, ("query", json.dumps(options).encode())])
    return lambda number: request


def form(path: str, fields: list[tuple[str, bytes]]) -> Request:
    body = b""
    for name, content in fields:
        file = '; filename="f"' if name == "image" else ""
        head = f'--b\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'
        body += head.encode() + content + b"\r\n"
    return Request("worst", "POST", path, body + b"--b--\r\n", "multipart/form-data; boundary=b")


def mix(kinds: list[Make]) -> Make:
    """Return a request of any kind."""
    return lambda number: random.Random(number).choice(kinds)(number)


def make_photo(side: int = 3000) -> bytes:
    """Return a progressive JPEG of noise, which takes long to decode."""
    noise = np.random.default_rng(0).integers(0, 256, (side // 8, side // 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize((side, side), Image.Resampling.NEAREST)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=60, progressive=True)
    return file.getvalue()


@dataclass
class Figures:
    """What clients got beside each other: milliseconds, statuses; the memory of the server."""

    small_ms: list[float] = field(default_factory=list)
    worst_ms: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    memory: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {
            "worst_median_ms": float(np.median(self.worst_ms)),
            "small_median_ms": float(np.median(self.small_ms)),
            "small_p99_ms": float(np.percentile(self.small_ms, 99)),
            "small_max_ms": max(self.small_ms),
            "n_small": len(self.small_ms),
            "statuses": {str(status): n for status, n in sorted(self.statuses.items())},
            "memory_bytes": {
                "start": self.memory[0],
                "middle": self.memory[len(self.memory) // 2],
                "end": self.memory[-1],
                "most": max(self.memory),
            },
        }


async def attack(address: str, process: int, small: Request, make: Make, seconds: float) -> Figures:
    figures, numbers = Figures(), count()
    end = time.perf_counter() + seconds

    async def send(client: httpx.AsyncClient, request: Request, times_ms: list[float]) -> None:
        start = time.perf_counter()
        headers = {"Content-Type": request.content_type} if request.body else {}
        try:
            response = await client.request(
                request.method, request.path, content=request.body, headers=headers
            )
        except httpx.TransportError:  # the server has closed the connection
            figures.statuses[0] += 1
            return
        times_ms.append((time.perf_counter() - start) * 1e3)
        figures.statuses[response.status_code] += 1

    async def send_worst() -> None:
        while time.perf_counter() < end:
            await send(client, make(next(numbers)), figures.worst_ms)

    async def send_small() -> None:
        while True:
            await send(client, small, figures.small_ms)
            figures.memory.append(measure_memory(process))
            await asyncio.sleep(_PAUSE)

    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=_PATIENCE) as client:
        other = asyncio.create_task(send_small())
        await asyncio.sleep(_PAUSE)
        await asyncio.gather(*(send_worst() for _ in range(_ATTACKERS)))
        other.cancel()
    return figures


if __name__ == "__main__":
    main()
