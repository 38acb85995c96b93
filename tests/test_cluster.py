"""A cluster of three real nodes, of which some are killed: nothing is lost, double or wrong.

`make cluster` runs these tests; they change only what they have loaded themselves.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.synchronize import Barrier
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest

from bm25v.client import to_id
from bm25v.errors import EngineError, GalleryLocked
from bm25v.gallery import Gallery
from bm25v.search import Query
from bm25v.search.scoring import Mode
from bm25v.store.encoding import ImageBags
from bm25v.store.meta import Meta
from bm25v.store.qdrant import open_calls, parse_address
from bm25v.store.qdrant.calls import Calls
from bm25v.store.qdrant.points import read_path
from bm25v.store.qdrant.state import SUFFIX, read_state
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.qdrant.writer import QdrantWriter, load_gallery, load_images, reconcile
from tests.http_server import wait_until
from tests.qdrant_nodes import Cluster
from tests.test_benchmarks import run_script
from tests.test_engines import (
    MODES,
    N_IMAGES,
    PATHS,
    QUERIES,
    assert_close,
    check_same,
    make_encoding,
    make_file,
    make_source,
)

NODES = (0, 1, 2)  # the first one is that which the address has
STARTS = int(os.environ.get("BM25V_STARTS", "20"))  # of two writers, at the same instant
SHARDS, REPLICAS = 6, 2


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    """A gallery of all images."""
    with make_source(tmp_path_factory.mktemp("source")) as gallery:
        gallery.refresh()  # else every load does
        yield gallery


@pytest.fixture
def collection(cluster: Cluster) -> Iterator[str]:
    """The name of a collection that a test may make."""
    name = f"test-{uuid.uuid4().hex}"
    yield name
    with closing(connect(cluster, name)) as calls:
        for suffix in ("", SUFFIX):
            calls._client.delete_collection(name + suffix)


def connect(cluster: Cluster, collection: str, node: int = 0) -> Calls:
    return open_calls(parse_address(cluster.url(collection, node)))


def load(calls: Calls, source: Gallery, **options: Any) -> None:
    load_gallery(calls, source.local, shards=SHARDS, replicas=REPLICAS, **options)


def check_whole(cluster: Cluster, collection: str, source: Gallery) -> None:
    """Check what every node has: all images, their statistics, and the hits of the gallery."""
    for node in NODES:
        with closing(connect(cluster, collection, node)) as calls:
            records = [record for part in calls.scroll(None, ["path"]) for record in part]
            assert sorted(read_path(record.payload) for record in records) == PATHS
            store = QdrantStore(calls)
            for encoding in QUERIES[:5]:
                for mode in MODES:
                    query = Query.of(encoding, mode=mode, k=20, candidates=40)
                    check_same(Gallery(store).search(query), source.search(query))
    with closing(connect(cluster, collection)) as calls:
        check_statistics(calls, n_images=N_IMAGES)


def check_statistics(calls: Calls, n_images: int) -> None:
    kept = read_state(calls)
    assert kept.writer is None
    assert kept.statistics.n == n_images
    reconcile(calls)
    counted = read_state(calls)
    for own, other in (
        (kept.statistics, counted.statistics),
        (kept.full_statistics, counted.full_statistics),
    ):
        assert (own.n, own.total_length) == (other.n, other.total_length)
        np.testing.assert_array_equal(own.df_v, other.df_v)


def complete(calls: Calls, action: Callable[[], object]) -> None:
    """Repeat what has failed because a node was killed, as the errors say."""
    try:
        action()
    except GalleryLocked as error:
        assert "bags reconcile" in str(error)
        reconcile(calls)
        action()


class Killer:
    """Kills a node once, at the first progress that is reported after a number of steps."""

    def __init__(self, cluster: Cluster, node: int, after: int) -> None:
        self.node, self.after, self.is_done = cluster.nodes[node], after, False

    def __call__(self, phase: str, done: int, total: int) -> None:
        if done >= self.after and not self.is_done:
            self.is_done = True
            self.node.kill()


def fails_in_one_line(action: Callable[[], object]) -> bool:
    try:
        action()
    except (EngineError, GalleryLocked) as error:
        assert "\n" not in str(error)
        return True
    return False


@pytest.mark.parametrize("node", NODES)
def test_a_node_is_killed_during_a_load(
    cluster: Cluster,
    collection: str,
    source: Gallery,
    node: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bm25v.store.qdrant.writer.BATCH_IMAGES", 30)
    killer = Killer(cluster, node, after=N_IMAGES // 2)
    with closing(connect(cluster, collection)) as calls:
        fails = fails_in_one_line(lambda: load(calls, source, progress=killer))
        assert killer.is_done
        assert fails or node > 0
        cluster.restart(node)
        complete(calls, lambda: load_gallery(calls, source.local))
    check_whole(cluster, collection, source)


@pytest.mark.parametrize("node", NODES)
def test_a_node_is_killed_during_a_reconcile_and_stays_down_during_changes(
    cluster: Cluster, collection: str, source: Gallery, node: int
) -> None:
    def change() -> None:
        with QdrantWriter(calls) as writer:
            assert writer.remove(["/photos/2020"])
        load_gallery(calls, source.local)

    killer = Killer(cluster, node, after=1)
    with closing(connect(cluster, collection)) as calls:
        load(calls, source)
        fails = fails_in_one_line(lambda: reconcile(calls, killer))
        assert killer.is_done
        assert fails or node > 0
        assert fails_in_one_line(change) or not fails
        cluster.restart(node)
        complete(calls, lambda: load_gallery(calls, source.local))
        change()
    check_whole(cluster, collection, source)


def test_a_node_is_killed_during_searches(
    cluster: Cluster, collection: str, source: Gallery
) -> None:
    with closing(connect(cluster, collection)) as calls:
        load(calls, source)
        gallery = Gallery(QdrantStore(calls))
        for node in NODES[1:]:
            killing = Thread(target=cluster.nodes[node].kill)
            for number, encoding in enumerate(QUERIES[:40]):
                if number == 10:
                    killing.start()
                if number == 20:
                    killing.join()
                    cluster.nodes[node].start()
                for mode in MODES:
                    query = Query.of(encoding, mode=mode, k=20, candidates=40)
                    check_same(gallery.search(query), source.search(query))
            cluster.wait()
    check_whole(cluster, collection, source)


def test_nodes_are_killed_under_a_server(
    cluster: Cluster, collection: str, source: Gallery
) -> None:
    with closing(connect(cluster, collection)) as calls:
        load(calls, source)
    address = cluster.url(collection)
    command = [sys.executable, "-m", "bm25v", "serve", "-g", address, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as server:
        assert server.stdout is not None
        words = server.stdout.readline().split()
        url = next(word for word in words if word.startswith("http://127.0.0.1:"))

        def search(path: str, mode: Mode = "hybrid") -> int:
            similar = f"{url}v1/images/{to_id(path)}/similar"
            response = httpx.get(similar, params={"mode": mode, "k": 15}, timeout=60)
            if response.status_code == 200:
                expected = source.search(path, mode=mode, k=15)
                hits = [(hit["path"], hit["score"]) for hit in response.json()["hits"]]
                assert_close(hits, [(hit.path, hit.score) for hit in expected])
            return response.status_code

        try:
            for node in (1, 0):
                assert {search(path, mode) for path in PATHS[:4] for mode in MODES} == {200}
                cluster.nodes[node].kill()
                assert search(PATHS[0]) == (503 if node == 0 else 200)
                cluster.restart(node)
                wait_until(lambda: search(PATHS[0]) == 200)
            assert {search(path, mode) for path in PATHS[:4] for mode in MODES} == {200}
        finally:
            server.send_signal(signal.SIGINT)
            server.communicate(timeout=60)
    assert server.returncode == 0
    check_whole(cluster, collection, source)


def test_the_benchmark_has_the_hits_of_a_gallery(cluster: Cluster) -> None:
    figures = run_script("cluster.py", "--n", "500", "--queries", "2", "--nodes", "1")
    assert [search["same_hits"] for search in figures["searches"]] == [1.0] * len(MODES)
    assert figures["load_seconds"] > 0 < min(figures["node_bytes"])


def make_images(folder: str) -> list[ImageBags]:
    encodings = [(make_file(n, f"{folder}/{n}.jpg"), make_encoding(n)) for n in range(30)]
    return [
        ImageBags(file, encoding.bag, encoding.full_bag, encoding.dense_e.astype(np.float16))
        for file, encoding in encodings
    ]


def write(
    url: str, meta: Meta, is_first: bool, starts: int, barrier: Barrier, outcomes: Any
) -> None:
    """Write as often as another process, from the same instant on; report what happened."""
    with closing(open_calls(parse_address(url))) as calls:
        for start in range(starts):
            images = make_images(f"/{start}/{is_first}")
            barrier.wait()
            try:
                load_images(calls, meta, 100.0, images, len(images))
                outcomes.put("done")
            except GalleryLocked as error:
                outcomes.put(str(error))
            barrier.wait()


@pytest.mark.parametrize("exists", [True, False])
def test_two_processes_that_write_at_the_same_instant_are_not_both_admitted(
    cluster: Cluster, collection: str, source: Gallery, exists: bool
) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, outcomes = context.Barrier(3, timeout=60), context.Queue()
    starts, meta = STARTS if exists else 1, source.store.meta
    with closing(connect(cluster, collection)) as calls:
        if exists:
            load_images(calls, meta, 100.0, [], 0, shards=SHARDS, replicas=REPLICAS)
        processes = [
            context.Process(
                target=write,
                args=(cluster.url(collection, node), meta, node == 0, starts, barrier, outcomes),
                daemon=True,
            )
            for node in NODES[:2]
        ]
        for process in processes:
            process.start()
        n_done = 0
        for _ in range(starts):
            barrier.wait()
            first, second = sorted(outcomes.get(timeout=60) for _ in processes)
            assert first == "done"
            assert second == "done" or "is written to by " in second
            n_done += 1 + (second == "done")  # the other one may have begun after it
            check_statistics(calls, n_images=30 * n_done)
            barrier.wait()
        assert n_done < 2 * starts or not exists
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
