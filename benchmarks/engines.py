"""What bm25v adds to the time of Qdrant's own engine, which runs in this process.

Synthetic images are loaded, beside bare upserts of the same points, and searched. No network is
measured. Needs the extra qdrant, and the package qdrant-edge-py.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from workload import N_PATCHES, EncodedImages, SyntheticImages, print_table, synthetic_file

from bm25v.index.bm25 import DEFAULT_PARAMETERS, Statistics
from bm25v.research.systems.full_bags import encode_bag
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import rank
from bm25v.search.scoring import Mode
from bm25v.store.base import View
from bm25v.store.encoding import ImageBags
from bm25v.store.meta import Meta
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import fill_rows, make_points
from bm25v.store.qdrant.state import read_state
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.qdrant.writer import BATCH_IMAGES, load_images
from bm25v.vocabulary import Encoding

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.edge_client import EdgeClient

MODES: tuple[Mode, ...] = ("sparse", "two-stage", "words", "hybrid", "dense")

_PART_IMAGES = 10_240  # read before they are loaded: reading is not timed
_COLLECTION = "images"


class SearchTimes(NamedTuple):
    """Milliseconds of a search in one mode, medians."""

    mode: str
    engine_ms: float  # within calls to Qdrant
    candidates_ms: float  # of finding candidates, outside of these calls
    second_stage_ms: float  # outside of these calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=20_000, help="synthetic images")
    parser.add_argument("--dim", type=int, default=128, help="of dense vectors")
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    synthetic = SyntheticImages(options.dim, seed=0)
    images, queries = synthetic.draw_images(options.n), synthetic.draw_queries(options.queries)
    upsert_seconds = time_upserts(images, options.shards)
    client = EdgeClient(shards=options.shards)
    try:
        load_seconds = time_loading(client, images)
        client.optimize()
        timed = TimedClient(client)
        store = QdrantStore(open_calls(timed))
        store.read(lambda view: None, searches=1_000)  # compiled loops, as in a service
        encodings = [queries.encoding(row) for row in range(len(queries))]
        searches = [time_searches(store, timed, encodings, mode) for mode in MODES]
    finally:
        client.close()
    load_ratio = upsert_seconds / load_seconds
    if options.json:
        figures = {
            "n_images": options.n,
            "n_shards": options.shards,
            "upsert_seconds": upsert_seconds,
            "load_seconds": load_seconds,
            "load_ratio": load_ratio,
            "searches": [search._asdict() for search in searches],
        }
        print(json.dumps(figures, indent=2))
        return
    print(f"bare upserts  {options.n / upsert_seconds:8,.0f} images/s")
    print(f"loading       {options.n / load_seconds:8,.0f} images/s ({load_ratio:.2f} of that)")
    header = ("mode", "in Qdrant's calls, ms", "finding candidates", "second stage")
    print_table(header, [(mode, *(f"{ms:.2f}" for ms in times)) for mode, *times in searches])


class TimedClient:
    """A client that adds up the time of its calls."""

    def __init__(self, client: Any) -> None:
        self._client, self.seconds = client, 0.0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**values: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(**values)
            finally:
                self.seconds += time.perf_counter() - start

        return call


def open_calls(client: Any) -> Calls:
    return Calls(client, _COLLECTION, _COLLECTION)


def time_loading(client: EdgeClient, images: EncodedImages) -> float:
    load = partial(load_images, open_calls(client), *describe(images), n_images=len(images))
    load(images=[])  # makes the collection
    seconds, left = 0.0, collect(images)
    while part := list(islice(left, _PART_IMAGES)):
        start = time.perf_counter()
        load(images=part)
        seconds += time.perf_counter() - start
    return seconds


def time_upserts(images: EncodedImages, shards: int) -> float:
    client = EdgeClient(shards=shards)
    calls = open_calls(client)
    load_images(calls, *describe(images), images=[], n_images=0)
    state, left, seconds = read_state(calls), collect(images), 0.0
    while batch := list(islice(left, BATCH_IMAGES)):
        points = make_points(batch, fill_rows(batch, state.layout), state)
        start = time.perf_counter()
        client.upsert(collection_name=_COLLECTION, points=points, wait=True)
        seconds += time.perf_counter() - start
    client.close()
    return seconds


def time_searches(
    store: QdrantStore, client: TimedClient, encodings: Sequence[Encoding], mode: Mode
) -> SearchTimes:
    columns = []
    for encoding in encodings:
        bag = encoding.full_bag.bag if mode in ("words", "hybrid") else encoding.bag
        encoded = encode_bag(bag, encoding.dense_e, mode)
        columns.append(store.read(partial(time_search, client, encoded)))
    engine_ms, candidates_ms, second_ms = (
        median(column) * 1e3 for column in zip(*columns, strict=True)
    )
    return SearchTimes(mode, engine_ms, candidates_ms, second_ms)


def time_search(
    client: TimedClient, encoded: EncodedQuery, view: View
) -> tuple[float, float, float]:
    """Return the seconds within calls, of finding candidates, and of the second stage."""
    client.seconds = 0.0
    start = time.perf_counter()
    images = view.candidates(encoded)
    finding = time.perf_counter() - start - client.seconds
    ranked = rank(encoded, images, view)
    assert len(ranked.rows)
    total = time.perf_counter() - start
    return client.seconds, finding, total - client.seconds - finding


def describe(images: EncodedImages) -> tuple[Meta, float]:
    """Return the facts of a collection, and the average length of bags."""
    statistics = Statistics.count(images.bags["words"], images.bags["tf"], images.n_words)
    k_post, k_full = (rows.dtype["words"].shape[0] for rows in (images.bags, images.full_bags))
    meta = Meta(
        vocabulary="none",
        vocabulary_fingerprint="none",
        backbone="none",
        backbone_fingerprint="none",
        n_words=images.n_words,
        k_post=k_post,
        k_full=k_full,
        n_patches=N_PATCHES,
        dense_dim=images.dim,
        k1=DEFAULT_PARAMETERS.k1,
        b=DEFAULT_PARAMETERS.b,
    )
    return meta, statistics.average_or_one


def collect(images: EncodedImages) -> Iterator[ImageBags]:
    for row in range(len(images)):
        encoding = images.encoding(row)
        dense_e = images.dense_ne[row]
        yield ImageBags(synthetic_file(row), encoding.bag, encoding.full_bag, dense_e)


if __name__ == "__main__":
    main()
