"""Candidates from torch are those of the index, to the last bit, also if memory is short."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bm25v.device import DeviceSearcher
from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Bm25Parameters, WeightedWords, reference_search
from bm25v.index.searcher import Ranked, Searcher, SearchRequest
from bm25v.search.query import Query
from bm25v.search.scoring import Mode
from bm25v.vocabulary.bag import Bag
from tests.children import run_python
from tests.conftest import make_pixels

torch = pytest.importorskip("torch")

N_WORDS = 30
K_POST = 6
MODES: tuple[Mode, ...] = ("hybrid", "words", "two-stage", "sparse", "dense")


def draw_bags(seed: int, n: int, n_distinct: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return bags of which only some are distinct, so that there are ties; some are empty."""
    rng = np.random.default_rng(seed)
    words_nk = np.sort(
        rng.permuted(np.tile(np.arange(N_WORDS), (n_distinct, 1)), axis=1)[:, :K_POST]
    )
    tf_nk = rng.integers(0, 900, (n_distinct, K_POST))
    chosen = rng.integers(0, n_distinct, n)
    return words_nk[chosen].astype(np.uint16), tf_nk[chosen].astype(np.uint16)


def draw_queries(seed: int, n_queries: int, n_rows: int) -> list[SearchRequest]:
    rng = np.random.default_rng(seed)
    requests = []
    for number in range(n_queries):
        words = np.sort(rng.permutation(N_WORDS + 5)[: rng.integers(0, 12)]).astype(np.int32)
        weights = rng.choice([1.0, 1.0, 1.0, 0.3, -0.7, 0.0, 1e-30, 1e30], len(words))
        allowed_n = rng.random(n_rows) < 0.7 if number % 3 == 0 else None
        query = WeightedWords(words, weights, np.ones(len(words)))
        requests.append(SearchRequest(query, int(rng.integers(1, 40)), allowed_n))
    return requests


def assert_same(results: list[Ranked], searcher: Searcher, requests: list[SearchRequest]) -> None:
    assert len(results) == len(requests)
    for ranked, (words, k, allowed_n) in zip(results, requests, strict=True):
        expected = searcher.search(words, k, among=allowed_n)
        assert ranked.rows.tolist() == expected.rows.tolist()
        assert ranked.scores.tolist() == expected.scores.tolist()


@given(
    seed=st.integers(0, 2**31),
    n=st.integers(1, 400),
    n_distinct=st.integers(1, 300),
    parameters=st.builds(
        Bm25Parameters, st.sampled_from([0, 1.5, 80]), st.sampled_from([0, 0.75, 1])
    ),
)
def test_torch_finds_what_the_index_finds(
    seed: int, n: int, n_distinct: int, parameters: Bm25Parameters
) -> None:
    bags = draw_bags(seed, n, n_distinct)
    removed = np.flatnonzero(np.random.default_rng(seed).random(n) < 0.2)
    searcher = Searcher(*bags, n_words=N_WORDS, removed=removed, parameters=parameters)
    requests = draw_queries(seed, 8, n)
    assert_same(DeviceSearcher(searcher, "cpu").search_many(requests), searcher, requests)


@pytest.mark.parametrize("n_distinct", [5, 900])  # ties of hundreds of rows, and few
def test_torch_finds_what_the_formula_says(n_distinct: int) -> None:
    words_nk, tf_nk = draw_bags(1, 1000, n_distinct)
    bags = [
        Bag(words[tf > 0].astype(np.int32), tf[tf > 0])
        for words, tf in zip(words_nk, tf_nk, strict=True)
    ]
    queries = [WeightedWords.from_bag(bag) for bag in bags[:5]]
    searcher = Searcher(words_nk, tf_nk, n_words=N_WORDS)
    results = DeviceSearcher(searcher, "cpu").search_many([SearchRequest(q, 20) for q in queries])
    for ranked, query in zip(results, queries, strict=True):
        hits = list(zip(ranked.rows.tolist(), ranked.scores.tolist(), strict=True))
        assert hits == reference_search(bags, query, 20)


def test_the_product_and_not_the_index_finds_the_candidates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searcher = Searcher(*draw_bags(2, 1000, 900), n_words=N_WORDS)
    requests = [
        SearchRequest(
            WeightedWords(np.arange(i, i + 4, dtype=np.int32), np.ones(4), np.ones(4)), 20
        )
        for i in range(9)
    ]
    expected = [searcher.search(words, k) for words, k, _ in requests]
    on_device = DeviceSearcher(searcher, "cpu")
    monkeypatch.delattr(Searcher, "search")
    results = on_device.search_many(requests)
    for ranked, other in zip(results, expected, strict=True):
        assert (ranked.rows.tolist(), ranked.scores.tolist()) == (
            other.rows.tolist(),
            other.scores.tolist(),
        )


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"),
    ],
)
def test_a_batch_that_does_not_fit_is_halved(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    searcher = Searcher(*draw_bags(3, 500, 400), n_words=N_WORDS)
    requests = draw_queries(3, 30, 500)
    on_device = DeviceSearcher(searcher, "cpu")
    sizes: list[int] = []
    topk = torch.topk

    def limited_topk(scores: Any, *arguments: Any, **options: Any) -> Any:
        sizes.append(len(scores))
        if len(scores) > limit:
            raise error
        return topk(scores, *arguments, **options)

    monkeypatch.setattr(torch, "topk", limited_topk)
    limit = 4
    assert_same(on_device.search_many(requests), searcher, requests)
    assert sizes == [30, 15, 7, *[3] * 10]
    limit = 0
    with pytest.raises(InvalidOption, match="cpu has not enough memory for 500 images"):
        on_device.search_many(requests)
    with pytest.raises(ZeroDivisionError):  # other errors are not hidden
        error = ZeroDivisionError()
        on_device.search_many(requests)


def test_real_memory_that_is_short_is_enough_for_smaller_batches(tmp_path: Path) -> None:
    pytest.importorskip("resource")
    script = """
import resource
import numpy as np, torch
from bm25v import device
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import Searcher, SearchRequest

torch.set_num_threads(1)
rng = np.random.default_rng(0)
words = np.sort(rng.integers(0, 500, (400_000, 1)).cumsum(1) % 500).astype(np.uint16)
searcher = Searcher(words, np.full((400_000, 1), 100, np.uint16), n_words=500)
on_device = device.DeviceSearcher(searcher, "cpu")
requests = [
    SearchRequest(WeightedWords(np.array([i]), np.ones(1), np.ones(1)), 10) for i in range(128)
]
expected = [searcher.search(request.words, 10) for request in requests]
on_device.search_many(requests[:1])  # starts threads and loads libraries
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
limit = used + 150_000_000  # a batch of 128 needs 400 MB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
sizes = []
topk = torch.topk
def count(scores, *arguments, **options):
    sizes.append(len(scores))
    return topk(scores, *arguments, **options)
torch.topk = count
results = on_device.search_many(requests)
for ranked, other in zip(results, expected, strict=True):
    assert ranked.rows.tolist() == other.rows.tolist()
    assert ranked.scores.tolist() == other.scores.tolist()
assert 0 < sizes[-1] < 128, sizes
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("needs /proc")
    run_python(script)


def test_searches_on_a_device_have_the_same_hits(
    gallery: Gallery, photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery.remove(photos / "2.png")
    queries: list[Any] = [photos / "0.png", make_pixels(3), make_pixels(77)]
    word = gallery.search(photos / "0.png", include_query=True)[0].words[0].word
    for mode in MODES:
        for options in ({}, {"candidates": 3, "k": 3}, {"folder": photos, "k": 2, "offset": 1}):
            requests = [Query.of(query, mode=mode, **options) for query in queries]
            if mode == "words":
                requests.append(Query.of(make_pixels(5), mode=mode, without=[word], k=2))
            for device in (None, "cpu", "cpu"):
                results = gallery.search_many(requests, device=device)
                hits = [result.to_dict() | {"ms": None} for result in results]
                if device is None:
                    expected = hits
                assert hits == expected
    assert gallery.search_many([], device="cpu") == []
    gallery.add({"new": make_pixels(77)})  # the device follows changes
    requests = [Query.of(make_pixels(77), candidates=2, k=2, include_query=True)]
    assert gallery.search_many(requests, device="cpu")[0][0].path == "new"
    assert make_gallery("empty").search_many([make_pixels(1)], device="cpu")[0].hits == ()


def test_devices_that_torch_does_not_have_are_refused(gallery: Gallery, photos: Path) -> None:
    for device in ("cuda:99", "quantum"):
        with pytest.raises(InvalidOption, match=f"device '{device}' cannot be used"):
            gallery.search_many([photos / "0.png"], device=device, candidates=2, k=2)
