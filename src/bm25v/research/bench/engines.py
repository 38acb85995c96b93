"""`bm25v bench engines`: what bm25v adds to the time of Qdrant's own engine.

In: synthetic images. Out: the time of loading them beside that of bare upserts of the same points,
and of each search the time within Qdrant's calls and outside of them. Qdrant's engine runs in this
process (`edge_client`), so that no network is measured.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

from bm25v.engines.address import Address
from bm25v.engines.calls import Calls
from bm25v.engines.loading import BATCH_IMAGES, Origin, load_images
from bm25v.engines.points import fill_rows, make_points
from bm25v.engines.qdrant import QdrantEngine
from bm25v.engines.state import read_state
from bm25v.exchange.bags import BagSettings, ImageBags
from bm25v.gallery.records import FullBagState, Meta
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Statistics
from bm25v.progress import Progress, no_progress
from bm25v.research.bench.edge_client import EdgeClient
from bm25v.research.bench.workload import Collection, SyntheticImages, synthetic_file
from bm25v.research.memory_gallery import encode_bag
from bm25v.search.contract import View
from bm25v.search.encode import EncodedQuery
from bm25v.search.engine import rank_rows
from bm25v.search.matching import hybrid_factor
from bm25v.search.query import Mode, Query
from bm25v.vocabulary import Encoding

MODES: tuple[Mode, ...] = ("sparse", "two-stage", "words", "hybrid", "dense")

_PATCHES = 196  # of a synthetic image
_PART_IMAGES = 10_240  # read before they are loaded: reading is not timed
_ADDRESS = Address("localhost", 6334, "images")


class SearchTimes(NamedTuple):
    """Milliseconds of a search in one mode, medians."""

    mode: str
    engine_ms: float  # within calls to Qdrant
    candidates_ms: float  # of finding candidates, outside of these calls
    second_stage_ms: float  # outside of these calls


@dataclass(frozen=True)
class EngineTimes:
    """Seconds of loading, and the times of searches."""

    n_images: int
    n_shards: int
    upsert_seconds: float  # of the same points, made before
    load_seconds: float
    searches: list[SearchTimes]

    @property
    def load_ratio(self) -> float:
        """The speed of loading as a share of that of bare upserts."""
        return self.upsert_seconds / self.load_seconds


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


def time_engines(
    n: int, *, dim: int, shards: int, n_queries: int, progress: Progress = no_progress
) -> EngineTimes:
    """Load synthetic images into Qdrant's engine and search them."""
    synthetic = SyntheticImages(dim, seed=0)
    images, queries = synthetic.draw_images(n), synthetic.draw_queries(n_queries)
    encodings = [queries.encoding(row) for row in range(n_queries)]
    origin = _describe(images)
    n_done = 0
    upsert_seconds = _time_upserts(images, origin, shards, progress)
    client = EdgeClient(shards=shards)
    try:
        calls = Calls(client, _ADDRESS.collection, str(_ADDRESS))
        load_images(calls, origin, [])  # makes the collection
        load_seconds = 0.0
        left = _collect(images)
        while part := list(islice(left, _PART_IMAGES)):
            start = time.perf_counter()
            load_images(calls, origin, part)
            load_seconds += time.perf_counter() - start
            n_done += len(part)
            progress("loading", n_done, n)
        client.optimize()
        timed = TimedClient(client)
        engine = QdrantEngine(_ADDRESS, client=timed)
        engine.prepare_for(1_000)  # compiled loops, as in a service
        searches = [_time_searches(engine, timed, encodings, mode) for mode in MODES]
    finally:
        client.close()
    return EngineTimes(n, shards, upsert_seconds, load_seconds, searches)


def _time_upserts(images: Collection, origin: Origin, shards: int, progress: Progress) -> float:
    client = EdgeClient(shards=shards)
    calls = Calls(client, _ADDRESS.collection, str(_ADDRESS))
    load_images(calls, origin, [])
    state, left, seconds, n_done = read_state(calls), _collect(images), 0.0, 0
    while batch := list(islice(left, BATCH_IMAGES)):
        points = make_points(batch, fill_rows(batch, state.layout), state)
        start = time.perf_counter()
        client.upsert(collection_name=_ADDRESS.collection, points=points, wait=True)
        seconds += time.perf_counter() - start
        n_done += len(batch)
        progress("upserts", n_done, len(images))
    client.close()
    return seconds


def _time_searches(
    engine: QdrantEngine, client: TimedClient, encodings: Sequence[Encoding], mode: Mode
) -> SearchTimes:
    columns = []
    query = Query(must=(0,), mode=mode)  # its words are encoded already
    for encoding in encodings:
        bag = encoding.full_bag.bag if encoding.full_bag and mode in ("words", "hybrid") else None
        encoded = encode_bag(bag or encoding.bag, encoding.dense_e, mode)
        columns.append(engine.read(partial(_time_search, client, encoded, query)))
    engine_ms, candidates_ms, second_ms = (
        median(column) * 1e3 for column in zip(*columns, strict=True)
    )
    return SearchTimes(mode, engine_ms, candidates_ms, second_ms)


def _time_search(
    client: TimedClient, encoded: EncodedQuery, query: Query, view: View
) -> tuple[float, float, float]:
    """Return the seconds within calls, of finding candidates, and of the second stage."""
    statistics = view.full_statistics or view.statistics
    factor = 1.0
    if encoded.mode == "hybrid":
        factor = hybrid_factor(encoded, statistics, view.parameters)
    client.seconds = 0.0
    start = time.perf_counter()
    ranked = rank_rows(encoded, query, view, factor)
    total, in_calls = time.perf_counter() - start, client.seconds
    client.seconds = 0.0
    start = time.perf_counter()
    view.find_candidates(encoded, query, factor)
    finding = time.perf_counter() - start - client.seconds
    assert len(ranked.rows)
    return in_calls, finding, total - in_calls - finding


def _describe(images: Collection) -> Origin:
    statistics = Statistics.count(images.bags["words"], images.bags["tf"], images.n_words)
    assert images.full_bags is not None
    k_post, k_full = (rows.dtype["words"].shape[0] for rows in (images.bags, images.full_bags))
    meta = Meta(
        vocabulary="none",
        vocabulary_fingerprint="none",
        backbone="none",
        n_words=images.n_words,
        k_post=k_post,
        dense_dim=images.dim,
        k1=DEFAULT_PARAMETERS.k1,
        b=DEFAULT_PARAMETERS.b,
    )
    full_bags = FullBagState(k_full, _PATCHES, 0)
    settings = BagSettings(meta, full_bags)
    return Origin(settings, images.dim, statistics.average_or_one, len(images))


def _collect(images: Collection) -> Iterator[ImageBags]:
    for row in range(len(images)):
        encoding = images.encoding(row)
        dense_e = images.dense_ne[row]
        yield ImageBags(synthetic_file(row), encoding.bag, encoding.full_bag, dense_e)
