"""A collection on real Qdrant nodes of this machine, beside the gallery that it was loaded from.

All nodes share the machine's cores with this process, and no network is measured. Searches end with
results, as in a program; their hits are compared. Needs npm, Linux x64 and the extra qdrant.
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

from workload import SyntheticImages, add_images, print_table

from bm25v.gallery import Gallery
from bm25v.search import Query, Results
from bm25v.search.scoring import Mode
from bm25v.store.qdrant import open_calls, parse_address
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.qdrant.writer import load_gallery
from bm25v.vocabulary import Encoding, Vocabulary

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.qdrant_nodes import fetch_binary, start_cluster

MODES: tuple[Mode, ...] = ("sparse", "two-stage", "words", "hybrid", "dense")

_WARM_UP = 60  # searches, until loops are compiled


class SearchTimes(NamedTuple):
    """Milliseconds of a search in one mode, medians."""

    mode: str
    gallery_ms: float
    cluster_ms: float
    same_hits: float  # the share of searches with the same hits in the same order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=100_000, help="synthetic images")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--shards", type=int, default=6)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    binary, vocabulary = fetch_binary(), Vocabulary.load("default")
    synthetic = SyntheticImages(vocabulary.backbone.dense_dim, 0, vocabulary.n_words)
    drawn = synthetic.draw_queries(options.queries)
    encodings = [drawn.encoding(row) for row in range(len(drawn))]
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "gallery"
        Gallery.create(path).close()
        images, start = synthetic.draw_images(options.n), time.perf_counter()
        add_images(path, images, range(options.n))
        gallery_seconds = time.perf_counter() - start
        folder = Path(scratch) / "nodes"
        folder.mkdir()
        with Gallery.open(path) as gallery, start_cluster(binary, folder, options.nodes) as cluster:
            gallery.refresh()
            with closing(open_calls(parse_address(cluster.url("images")))) as calls:
                start = time.perf_counter()
                placed = {"shards": options.shards, "replicas": options.replicas}
                load_gallery(calls, gallery.local, **placed)
                cluster_seconds = time.perf_counter() - start
                collection = Gallery(QdrantStore(calls))
                searches = [time_searches(gallery, collection, encodings, m) for m in MODES]
                memory = [read_memory(node.pid) for node in cluster.nodes]
    if options.json:
        figures = {
            "n_images": options.n,
            "gallery_seconds": gallery_seconds,
            "load_seconds": cluster_seconds,
            "node_bytes": memory,
            "searches": [search._asdict() for search in searches],
        }
        print(json.dumps(figures, indent=2))
        return
    print(f"into a gallery  {options.n / gallery_seconds:8,.0f} images/s")
    print(f"into the nodes  {options.n / cluster_seconds:8,.0f} images/s")
    print(f"memory of nodes {', '.join(f'{n / 1e6:,.0f}' for n in memory)} MB")
    header = ("mode", "gallery, ms", "cluster, ms", "same hits")
    rows = [
        (mode, f"{here:.2f}", f"{there:.2f}", f"{same:.0%}") for mode, here, there, same in searches
    ]
    print_table(header, rows)


def time_searches(
    gallery: Gallery, collection: Gallery, encodings: Sequence[Encoding], mode: Mode
) -> SearchTimes:
    """Alternate between both, so that other work on the machine slows them alike."""
    queries = [Query.of(encoding, mode=mode) for encoding in encodings]
    for number in range(_WARM_UP):
        time_search(gallery, queries[number % len(queries)])
        time_search(collection, queries[number % len(queries)])
    times, n_same = [], 0
    for query in queries:
        here_ms, here = time_search(gallery, query)
        there_ms, there = time_search(collection, query)
        times.append((here_ms, there_ms))
        n_same += [hit.path for hit in here] == [hit.path for hit in there]
    here_ms, there_ms = (median(column) for column in zip(*times, strict=True))
    return SearchTimes(mode, here_ms, there_ms, n_same / len(queries))


def time_search(gallery: Gallery, query: Query) -> tuple[float, Results]:
    start = time.perf_counter()
    results = gallery.search(query)
    assert len(results)
    return (time.perf_counter() - start) * 1e3, results


def read_memory(pid: int) -> int:
    """Return the bytes of a process in memory, without pages of files that the system may drop."""
    (kilobytes,) = re.findall(r"RssAnon:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    return 1024 * int(kilobytes)


if __name__ == "__main__":
    main()
