"""One contract, every engine: the hits and scores of plain formulas, before and after deletes.

The engines are the embedded gallery, qdrant-client's own engine in memory, and four shards of
qdrant-edge, which is Qdrant's engine as a library, directly and over gRPC. A real server is tested
by `make cluster`, or if BM25V_QDRANT_URL has its address:
`BM25V_QDRANT_URL=qdrant://localhost:6334 pytest tests/test_engines.py -k server`.
"""

import json
import math
import os
import socket
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from bm25v.dense import normalise
from bm25v.errors import (
    EngineError,
    GalleryLocked,
    GalleryTooNew,
    ImageNotFound,
    InvalidOption,
    MissingExtra,
    VocabularyMismatch,
)
from bm25v.exchange.parquet import BagFolder
from bm25v.gallery import Gallery
from bm25v.images import Metadata
from bm25v.index.bm25 import DEFAULT_PARAMETERS, WeightedWords
from bm25v.sae.model import Codes
from bm25v.search import Query, Results
from bm25v.search.encode import EncodedQuery
from bm25v.search.encode import encode as encode_query
from bm25v.search.scoring import MODES as SCORINGS
from bm25v.search.scoring import Mode
from bm25v.store.base import View, WordImages
from bm25v.store.encoding import ImageBags
from bm25v.store.files import FileState
from bm25v.store.local.writer import Writer
from bm25v.store.qdrant import API_KEY, Address, open_calls, parse_address
from bm25v.store.qdrant import calls as calls_module
from bm25v.store.qdrant.calls import Calls, connect, read_api_key
from bm25v.store.qdrant.points import point_id
from bm25v.store.qdrant.state import FORMAT, LARGEST_DRIFT, SUFFIX, read_state
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.qdrant.writer import QdrantWriter, load_folder, load_gallery, reconcile
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import LEVELS, Bag, FullBag, to_levels
from tests import test_cli
from tests.conftest import make_image
from tests.edge_client import EdgeClient
from tests.edge_server import serve_edge
from tests.lexicons import save_vocabulary

pytestmark = [
    pytest.mark.filterwarnings("ignore:Payload indexes have no effect in the local Qdrant"),
    pytest.mark.filterwarnings("ignore:Local mode performs exact"),
]
run = test_cli.run

N_IMAGES = 300
N_QUERIES = 50
N_WORDS, K_POST, DIM = 192, 16, 12  # of the toy vocabulary
MODES: tuple[Mode, ...] = ("hybrid", "words", "two-stage", "sparse", "dense")
ENGINES = ("embedded", "memory", "edge", "grpc", "server")
SERVER = "BM25V_QDRANT_URL"
NO_CODES = Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # Linux: files that are not synced
IMAGES = Address("localhost", 6334, "images")


def make_edge() -> EdgeClient:
    """Return four shards of Qdrant's engine, in memory if the system has a folder there."""
    return EdgeClient(folder=MEMORY)


def make_encoding(seed: int) -> Encoding:
    """Return an image whose words have Zipf's frequencies: 40 in the full bag, 16 in the index."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, N_WORDS + 1) ** 0.8
    words = np.sort(rng.choice(N_WORDS, 40, replace=False, p=shares / shares.sum()))
    levels = to_levels((rng.gamma(1.0, 300, 40) + 1).clip(1, 60_000).astype(np.uint16))
    patches = rng.integers(0, 49, 40).astype(np.uint16)
    strongest = np.sort(np.argsort(-levels.astype(int), kind="stable")[:K_POST])
    bag = Bag(words[strongest].astype(np.int32), LEVELS[levels[strongest]])
    dense_e = rng.normal(size=DIM).astype(np.float16).astype(np.float32)
    return Encoding(
        bag, dense_e, NO_CODES, full_bag=FullBag(words.astype(np.int32), levels, patches)
    )


def to_bags(path: str, encoding: Encoding) -> ImageBags:
    """Return an image as a load has it."""
    dense_e = encoding.dense_e.astype(np.float16)
    return ImageBags(FILES[path], encoding.bag, encoding.full_bag, dense_e)


def make_file(number: int, path: str | None = None) -> FileState:
    """Return the file of an image: every third one has no EXIF date, but the time of its file."""
    taken = None if number % 3 == 0 else datetime(2019 + number % 4, 1 + number % 12, 5, 12)
    time = int(datetime(2021, 1 + number % 12, 3).timestamp()) * 10**9
    metadata = Metadata(100 + number, 400 - number, taken)
    path = path or f"/photos/{2019 + number % 4}/{number:04}.{'png' if number % 2 else 'jpg'}"
    return FileState(path, number.to_bytes(16, "big"), 10 + number, time, metadata)


def seed_of(number: int) -> int:
    """Return what an image is made from; some are copies, whose scores are equal."""
    return number - number % 10 if number % 10 in (3, 4) else number


ENCODINGS = {make_file(n).path: make_encoding(seed_of(n)) for n in range(N_IMAGES)}
FILES = {make_file(n).path: make_file(n) for n in range(N_IMAGES)}
PATHS = sorted(ENCODINGS)  # ties go to the lower path, as rows are in this order
REMOVED = PATHS[5::9]
QUERIES = [make_encoding(10_000 + seed) for seed in range(N_QUERIES)]
Bags = dict[str, dict[int, float]]  # for each path its words and their tf


def to_dict(bag: Bag) -> dict[int, float]:
    return dict(zip(bag.words.tolist(), (bag.tf / 100).tolist(), strict=True))


INDEX_BAGS: Bags = {path: to_dict(encoding.bag) for path, encoding in ENCODINGS.items()}
FULL_BAGS: Bags = {p: to_dict(e.full_bag.bag) for p, e in ENCODINGS.items()}
DENSE_NE = np.array([ENCODINGS[path].dense_e for path in PATHS], dtype=np.float64)


@dataclass
class Opened:
    """A collection in one of the engines."""

    collection: Gallery
    client: Any = None

    @property
    def calls(self) -> Calls:
        """The calls to Qdrant."""
        store = self.collection.store
        assert isinstance(store, QdrantStore)
        return store.calls

    @property
    def average_length(self) -> float:
        """The average length of the first stage."""
        return self.collection.store.read(lambda view: view.statistics.average_length)

    def remove(self, paths: list[str]) -> int:
        """Remove images."""
        return self.collection.remove(paths)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    """A gallery of all images, in the order of their paths."""
    with make_source(tmp_path_factory.mktemp("source")) as gallery:
        yield gallery


def make_source(folder: Path) -> Gallery:
    vocabulary = save_vocabulary(folder / "mine.vocab")
    gallery = Gallery.create(folder / "g", vocabulary=vocabulary)
    with Writer(gallery.path) as rows:
        for path in PATHS:
            rows.put(FILES[path], ENCODINGS[path])
        rows.commit()
    gallery.name_words({7: "striped ear", 30: "grass", 31: "Grass"})
    return gallery


@pytest.fixture(scope="module", params=ENGINES)
def opened(request: pytest.FixtureRequest, source: Gallery) -> Iterator[Opened]:
    """All images in an engine; tests of this collection do not change it."""
    yield from open_engine(request, source)


@pytest.fixture(scope="module", params=ENGINES)
def thinned(request: pytest.FixtureRequest, source: Gallery) -> Iterator[Opened]:
    """The same after some images were removed."""
    for opened in open_engine(request, source):
        assert opened.remove(REMOVED) == len(REMOVED)
        yield opened


@pytest.fixture(params=["memory", "edge", "grpc"])
def qdrant(request: pytest.FixtureRequest, source: Gallery) -> Iterator[Opened]:
    """The same, in Qdrant alone."""
    yield from open_engine(request, source)


def open_engine(request: pytest.FixtureRequest, source: Gallery) -> Iterator[Opened]:
    kind = request.param
    if kind == "embedded":
        folders: pytest.TempPathFactory = request.getfixturevalue("tmp_path_factory")
        with make_source(folders.mktemp("embedded")) as gallery:
            yield Opened(gallery)
        return
    if kind == "grpc":
        shards = make_edge()
        with closing(shards), serve_edge(shards) as port:
            yield from open_qdrant(IMAGES._replace(host="127.0.0.1", port=port), source)
        return
    if kind == "server":
        name = f"test-{uuid.uuid4().hex}"
        if SERVER in os.environ:
            address = parse_address(f"{os.environ[SERVER].rstrip('/')}/{name}")
        else:
            address = parse_address(request.getfixturevalue("cluster").url(name))
        yield from open_qdrant(address, source, shards=6, replicas=2)
        with closing(connect(address)) as client:
            for name in (address.collection, address.collection + SUFFIX):
                client.delete_collection(name)
        return
    yield from open_qdrant(
        IMAGES, source, client=QdrantClient(":memory:") if kind == "memory" else make_edge()
    )


def open_qdrant(
    address: Address, source: Gallery, client: Any = None, **options: Any
) -> Iterator[Opened]:
    client = client or connect(address)
    calls = Calls(client, address.collection, str(address))
    assert load_gallery(calls, source.local, **options) == (N_IMAGES, 0, 0)
    with Gallery(QdrantStore(calls)) as collection:
        yield Opened(collection, client)


# The reference


class Table:
    """Bags of some images, and for each word the images that have it."""

    def __init__(self, bags: Bags) -> None:
        self.n = len(bags)
        self.lengths = {path: sum(bag.values()) for path, bag in bags.items()}
        self.average = sum(self.lengths.values()) / self.n
        self.postings: dict[int, list[tuple[str, float]]] = {}
        for path, bag in bags.items():
            for word, tf in bag.items():
                self.postings.setdefault(word, []).append((path, tf))

    def idf(self, word: int) -> float:
        """Return the IDF of a word."""
        df = len(self.postings.get(word, ()))
        return math.log(1 + (self.n - df + 0.5) / (df + 0.5))

    def score(self, query: WeightedWords, average: float) -> dict[str, float]:
        """Return the score of each bag that shares a word, with a given average length."""
        k1, b = 1.5, 0.75
        scores: dict[str, float] = {}
        for word, weight in zip(query.words.tolist(), query.weights.tolist(), strict=True):
            value = weight * self.idf(word)
            for path, tf in self.postings.get(word, ()):
                norm = k1 * (1 - b + b * self.lengths[path] / average)
                scores[path] = scores.get(path, 0.0) + value * tf * (k1 + 1) / (tf + norm)
        return scores


@cache
def make_tables(alive: tuple[str, ...]) -> tuple[Table, Table]:
    """Return the index bags and the full bags of some images."""
    index, full = ({path: bags[path] for path in alive} for bags in (INDEX_BAGS, FULL_BAGS))
    return Table(index), Table(full)


def average_of(bags: Bags) -> float:
    return Table(bags).average


def expect(
    encoded: EncodedQuery,
    query: Query,
    alive: list[str],
    average: float,
    allows: Callable[[str], bool] = lambda path: True,
) -> list[tuple[str, float]]:
    """Return the hits of a query by the formulas as they are written."""
    index, full = make_tables(tuple(alive))
    allowed, mode = [path for path in alive if allows(path)], encoded.mode
    if mode in ("dense", "two-stage", "hybrid"):
        all_cosines = cosines_of_all(encoded)
        cosines = {path: all_cosines[path] for path in allowed}
    if mode == "dense":
        return cut(order(cosines), query)
    first = index.score(encoded.first_words, average)
    candidates = order({path: s for path, s in first.items() if s > 0 and allows(path)})
    if mode == "sparse":
        return cut(candidates, query)
    n = query.candidates or 200
    uses_all = len(allowed) <= n and mode in ("hybrid", "words")
    chosen = allowed if uses_all else [path for path, _ in candidates[:n]]
    if mode == "two-stage":
        return cut(order({path: cosines[path] for path in chosen}), query)
    by_words = full.score(encoded.words, full.average)
    if mode == "words":
        return cut(order({p: by_words[p] for p in chosen if by_words.get(p, 0.0) > 0}), query)
    mass = sum(
        weight * full.idf(word)
        for word, weight in zip(
            encoded.words.words.tolist(), encoded.words.weights.tolist(), strict=True
        )
        if weight > 0
    )
    factor = SCORINGS["hybrid"].words / (2.5 * mass)
    return cut(order({p: cosines[p] + factor * by_words.get(p, 0.0) for p in chosen}), query)


def cosines_of_all(encoded: EncodedQuery) -> dict[str, float]:
    assert encoded.dense_e is not None
    query_e = encoded.dense_e.astype(np.float64)
    lengths = np.linalg.norm(DENSE_NE, axis=1) * np.linalg.norm(query_e)
    return dict(zip(PATHS, (DENSE_NE @ query_e / lengths).tolist(), strict=True))


def cut(hits: list[tuple[str, float]], query: Query) -> list[tuple[str, float]]:
    return hits[query.offset : query.offset + query.k]


def order(scores: dict[str, float]) -> list[tuple[str, float]]:
    """Return the best first; of scores that rounding alone separates, the lower path."""
    return sorted(scores.items(), key=lambda item: (-round(item[1], 9), item[0]))


def check(results: Results, expected: list[tuple[str, float]]) -> None:
    assert [hit.path for hit in results] == [path for path, _ in expected]
    np.testing.assert_allclose(
        [hit.score for hit in results], [score for _, score in expected], atol=1e-5
    )
    for hit in results:
        assert abs(hit.score - sum(part.value for part in hit.parts)) < 1e-5


def encode(collection: Gallery, query: Query) -> EncodedQuery:
    named = collection._named_vocabulary
    return collection.store.read(lambda view: encode_query(query, view, named))


# Searching


@pytest.mark.parametrize("mode", MODES)
def test_hits_are_those_of_the_formulas(opened: Opened, mode: Mode) -> None:
    check_queries(opened, mode, alive=PATHS)


def check_queries(opened: Opened, mode: Mode, alive: list[str]) -> None:
    average = opened.average_length
    for encoding in QUERIES:
        query = Query.of(encoding, mode=mode, k=10, candidates=30)
        expected = expect(encode(opened.collection, query), query, alive, average)
        check(opened.collection.search(query), expected)


@pytest.mark.parametrize("mode", MODES)
def test_hits_after_deletes_are_those_of_the_formulas(thinned: Opened, mode: Mode) -> None:
    check_queries(thinned, mode, alive=[path for path in PATHS if path not in REMOVED])


@pytest.mark.parametrize("mode", MODES)
def test_pages_follow_one_another(opened: Opened, mode: Mode) -> None:
    image = make_encoding(1)
    whole = opened.collection.search(image, mode=mode, k=24, candidates=40)
    pages = [
        opened.collection.search(image, mode=mode, k=8, offset=n, candidates=40) for n in (0, 8, 16)
    ]
    assert [hit.path for page in pages for hit in page] == [hit.path for hit in whole]


SIZES = {path: file.metadata[:2] for path, file in FILES.items() if file.metadata}


def is_sized(path: str, low: int, high: int = 10**9) -> bool:
    return all(low <= side <= high for side in SIZES[path])


def is_dated(path: str, start: datetime, end: datetime) -> bool:
    return start <= date_of(path) < end


FILTERS: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "must": ({"must": [3]}, lambda p: 3 in FULL_BAGS[p]),
    "must by name": (
        {"must": ["grass", 1]},
        lambda p: 1 in FULL_BAGS[p] and bool({30, 31} & FULL_BAGS[p].keys()),
    ),
    "without": ({"without": [60, 75]}, lambda p: not {60, 75} & FULL_BAGS[p].keys()),
    "folder": ({"folder": "/photos/2020"}, lambda p: "/2020/" in p),
    "folders": (
        {"folder": ["/photos/2020", "/photos/2021/"]},
        lambda p: "/2020/" in p or "/2021/" in p,
    ),
    "file": ({"folder": PATHS[7]}, lambda p: p == PATHS[7]),
    "pattern": ({"folder": "*.png"}, lambda p: p.endswith("png")),
    "long pattern": (
        {"folder": "/photos/2020/*1.png"},
        lambda p: "/2020/" in p and p.endswith("1.png"),
    ),
    "size": (
        {"min_size": (150, 250)},
        lambda p: SIZES[p][0] >= 150 and SIZES[p][1] >= 250,
    ),
    "both sizes": ({"min_size": 120, "max_size": 380}, lambda p: is_sized(p, 120, 380)),
    "date": ({"date": "2021"}, lambda p: date_of(p).year == 2021),
    "range": (
        {"date": "2020-03..2021-02"},
        lambda p: is_dated(p, datetime(2020, 3, 1), datetime(2021, 3, 1)),
    ),
    "all": (
        {"must": [1], "folder": "/photos", "date": "2019..", "min_size": 110},
        lambda p: 1 in FULL_BAGS[p] and is_sized(p, 110),
    ),
}


def date_of(path: str) -> datetime:
    file = FILES[path]
    assert file.metadata is not None
    return file.metadata.taken or datetime.fromtimestamp(file.mtime_ns // 10**9)


@pytest.mark.parametrize("name", FILTERS)
def test_filters_allow_what_they_say(opened: Opened, name: str) -> None:
    options, allows = FILTERS[name]
    for mode in MODES:
        query = Query.of(make_encoding(77), mode=mode, k=10, candidates=25, **options)
        encoded = encode(opened.collection, query)
        expected = expect(encoded, query, PATHS, opened.average_length, allows)
        assert expected
        check(opened.collection.search(query), expected)


@pytest.mark.parametrize("mode", (*MODES, None))
@pytest.mark.parametrize(
    "options",
    [
        {"boost": {3: 4.0, 8: -2.0, 12: 0}},
        {"like": PATHS[4], "unlike": [PATHS[20], PATHS[31]]},
        {"negative": make_encoding(5)},
        {"min_coverage": 0.3},
        {"min_coverage": 0.2, "without": 11, "folder": "*.jpg"},
        {"query_words": 8},
        {"k": 400, "candidates": 400},
    ],
    ids=str,
)
def test_options_have_the_same_effect(
    opened: Opened, source: Gallery, mode: Any, options: dict[str, Any]
) -> None:
    query = Query.of(make_encoding(78), mode=mode, **{"candidates": 40, **options})
    check_same(opened.collection.search(query), source.search(query))


def check_same(results: Results, expected: Results, error: float = 1e-5) -> None:
    """Check that results are those of the gallery which the collection was loaded from."""
    own, other = results.to_dict(), expected.to_dict()
    del own["ms"], other["ms"]
    assert_close(own, other, error)


def assert_close(value: Any, expected: Any, error: float = 1e-5) -> None:
    if isinstance(expected, float):
        assert value == pytest.approx(expected, abs=error)
    elif isinstance(expected, dict):
        assert value.keys() == expected.keys()
        for key in expected:
            assert_close(value[key], expected[key], error)
    elif isinstance(expected, list | tuple):
        assert len(value) == len(expected)
        for one, other in zip(value, expected, strict=True):
            assert_close(one, other, error)
    else:
        assert value == expected


@pytest.mark.parametrize(
    "options",
    [
        {"text": "a cat"},
        {"text": "a cat without a dog, no knives"},
        {"text": "hot dog on a chair", "k": 25, "candidates": 40},
        {"text": "a bycicle", "folder": "/photos/2020", "offset": 5},
        {"text": "striped ear"},
        {"text": "a cat with a striped ear"},
        {"text": "cat without grass"},
        {"text": "without grass", "k": 7, "offset": 3},
        {"text": "cat", "must": 4, "boost": {9: 2.0}},
        {"text": "cat", "must": "grass", "min_coverage": 0.4},
        {"text": "cat on grass 0121"},
        {"text": "0121.png"},
        {"text": "cat june 2020"},
        {"text": "2021-03", "k": 400},
        {"text": "march 2021", "k": 5, "offset": 5},
        {"text": "december", "k": 30},
        {"text": "flurb 🐕"},
        {"text": "cat 1995"},
        {"text": "striped ear", "mode": "words"},
        {"text": "striped ear", "mode": "sparse"},
        {"images": make_encoding(6), "text": "dog"},
        {"images": make_encoding(6), "text": "striped ear without a dog"},
        *({"text": "cat -dog", "mode": mode, "k": 20, "candidates": 60} for mode in MODES),
        *({"text": "chair", "mode": mode, "images": make_encoding(7)} for mode in MODES),
        {"must": [7]},
    ],
    ids=str,
)
def test_texts_have_the_same_hits(opened: Opened, source: Gallery, options: dict[str, Any]) -> None:
    options = dict(options)
    query = Query.of(options.pop("images", None), **options)
    check_same(opened.collection.search(query), source.search(query))


def test_a_region_and_pixels_have_the_same_hits(opened: Opened, source: Gallery) -> None:
    query = Query.of(make_image(4), region=(0, 0, 0.5, 1))
    check_same(opened.collection.search(query), source.search(query))
    many = [Query.of(make_image(seed)) for seed in range(3)]
    for results, expected in zip(
        opened.collection.search_many(many), source.search_many(many), strict=True
    ):
        check_same(results, expected)


def test_a_stored_image_is_searched_without_itself_and_its_copies(
    opened: Opened, source: Gallery
) -> None:
    query = Query.of(PATHS[8])
    results = opened.collection.search(query)
    check_same(results, source.search(query))
    assert PATHS[8] not in [hit.path for hit in results]
    included = replace(query, include_query=True)
    assert opened.collection.search(included)[0].score >= results[0].score


@pytest.mark.parametrize(
    "options",
    [
        {"must": [7, 190, 191, 188]},
        {"folder": "/elsewhere"},
        {"offset": 1000},
        {"min_coverage": 1.0},
        {"min_coverage": 1.0, "mode": "sparse"},
    ],
    ids=str,
)
def test_no_match_has_the_same_reason(
    opened: Opened, source: Gallery, options: dict[str, Any]
) -> None:
    query = Query.of(make_encoding(12_345), **{"mode": "words", **options})
    expected = source.search(query).no_match
    assert expected is not None
    assert opened.collection.search(query).no_match == expected


def test_an_explanation_is_the_same(opened: Opened, source: Gallery) -> None:
    for mode in ("hybrid", "sparse", "dense"):
        query, path = Query.of(make_image(3), mode=mode), PATHS[12]
        explained = opened.collection.explain(query, path)
        assert_close(explained.to_dict(), source.explain(query, path).to_dict())
        assert abs(explained.match.score - sum(p.value for p in explained.match.parts)) < 1e-5
        match = opened.collection.match(query, path)
        assert match.score == pytest.approx(explained.match.score, abs=1e-5)
    with pytest.raises(ImageNotFound, match="is not in"):
        opened.collection.explain(make_image(3), "/elsewhere.png")


def test_many_equal_scores_go_to_the_lower_paths(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    names = [f"{n:03}" for n in range(60)]
    with Writer(gallery.path) as rows:
        for n, name in enumerate(reversed(names)):
            rows.put(make_file(n, name), make_encoding(1))
        rows.commit()
    calls = Calls(make_edge(), "images", str(IMAGES))
    load_gallery(calls, gallery.local)
    with Gallery(QdrantStore(calls)) as collection:
        for mode in MODES:
            results = collection.search(make_encoding(2), mode=mode, k=12, candidates=20)
            assert [hit.path for hit in results] == names[:12]


class CountingClient:
    """A client that counts its calls."""

    def __init__(self, client: Any) -> None:
        self._client, self.n_calls = client, 0

    def __getattr__(self, name: str) -> Any:
        self.n_calls += 1
        return getattr(self._client, name)


def test_a_page_of_words_takes_a_handful_of_calls(source: Gallery) -> None:
    client = CountingClient(make_edge())
    calls = Calls(client, "images", str(IMAGES))
    load_gallery(calls, source.local)
    store, words = QdrantStore(calls), list(range(100))

    def find(view: View) -> list[WordImages]:
        client.n_calls = 0
        examples = view.find_examples(words, 40, 40)
        assert client.n_calls <= 3
        strongest = view.find_strongest(words, 3)
        assert client.n_calls <= 6
        return [examples, strongest]

    for images, rows in store.read(find):
        assert list(rows) == words
        assert all(len(images.paths(rows[word])) >= 3 for word in words)
    store.close()


def test_a_collection_in_this_process_is_shared_by_those_who_name_it(source: Gallery) -> None:
    url = f"qdrant://:memory:/test-{uuid.uuid4().hex}"
    with pytest.raises(EngineError, match="does not exist"):
        Gallery.open(url)
    with closing(open_calls(parse_address(url))) as calls:
        load_gallery(calls, source.local)
    with Gallery.open(url) as first, Gallery.open(url) as second:
        assert first.location == url
        query = Query.of(make_encoding(79))
        check_same(first.search(query), source.search(query))
        second.add({"new": make_image(5)})
        assert len(first) == N_IMAGES + 1
        assert second.remove("new") == 1
        assert first.image_names == {}
        with pytest.raises(InvalidOption, match="needs a gallery in one"):
            first.name_images("Anna's birthday", [])
    with Gallery.open(url) as again:
        assert len(again) == N_IMAGES


def test_images_are_looked_up_by_path_or_id(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    names = [PATHS[3].removeprefix("/"), PATHS[3], PATHS[7], "elsewhere"]
    records = opened.collection.store.read(lambda view: view.find(names))
    assert {name: record.path for name, record in records.items()} == {
        names[0]: PATHS[3],
        PATHS[3]: PATHS[3],
        PATHS[7]: PATHS[7],
    }

    def fetch(view: View) -> list[str]:
        images = view.fetch([records[PATHS[7]], records[PATHS[3]], records[names[0]]])
        return images.paths(images.rows)

    assert opened.collection.store.read(fetch) == [PATHS[7], PATHS[3], PATHS[3]]


# Writing


def test_loading_again_changes_nothing(qdrant: Opened, source: Gallery) -> None:
    before = read_state(qdrant.calls)
    assert load_gallery(qdrant.calls, source.local) == (0, 0, N_IMAGES)
    after = read_state(qdrant.calls)
    assert after.statistics.n == before.statistics.n == N_IMAGES
    np.testing.assert_array_equal(after.statistics.df_v, before.statistics.df_v)


def test_statistics_follow_every_change(qdrant: Opened) -> None:
    changed = [to_bags(path, encoding) for path, encoding in replacements()]
    with QdrantWriter(qdrant.calls) as rows:
        assert rows.add(changed) == (5, 5, 0)
        assert rows.remove(["/photos/2022"]) > 0
        assert rows.remove([PATHS[0]]) == 1
        assert rows.remove(["/photos/2"]) == 0
        assert rows.remove(["/photos/2019"], recursive=False) == 0
        assert rows.remove([PATHS[1]], recursive=False) == 1
    kept = read_state(qdrant.calls)
    counted = reconcile(qdrant.calls)
    state = read_state(qdrant.calls)
    assert not counted.was_marked
    assert counted.n_before == counted.n_images
    for own, other in (
        (kept.statistics, state.statistics),
        (kept.full_statistics, state.full_statistics),
    ):
        assert (own.n, own.total_length) == (other.n, other.total_length)
        np.testing.assert_array_equal(own.df_v, other.df_v)


def replacements() -> list[tuple[str, Encoding]]:
    for n in range(5):
        FILES.setdefault(f"/photos/new/{n}.jpg", make_file(n, f"/photos/new/{n}.jpg"))
    paths = [*PATHS[10:15], *(f"/photos/new/{n}.jpg" for n in range(5))]
    return [(path, make_encoding(900 + i)) for i, path in enumerate(paths)]


class Killed(BaseException):
    """The process ends here."""


def test_a_writer_killed_before_the_statistics_is_noticed_and_mended(
    qdrant: Opened, source: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def upsert_and_die(self: Calls, points: Any) -> None:
        upsert(self, points)
        if self.collection == "images":
            raise Killed

    upsert = Calls.upsert
    images = [to_bags(path, encoding) for path, encoding in replacements()]
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Calls, "upsert", upsert_and_die)
        with QdrantWriter(qdrant.calls) as rows:
            rows.add(images)
    results = qdrant.collection.search(make_encoding(3))
    assert len(results) == 10
    assert any("reconcile" in note for note in results.notes)
    with pytest.raises(GalleryLocked, match="reconcile"):
        load_gallery(qdrant.calls, source.local)
    report = reconcile(qdrant.calls)
    assert (report.n_before, report.n_images, report.was_marked) == (300, 305, True)
    assert not qdrant.collection.search(make_encoding(3)).notes
    load_gallery(qdrant.calls, source.local)


def test_an_interrupted_writer_leaves_exact_statistics(qdrant: Opened) -> None:
    images = [to_bags(path, encoding) for path, encoding in replacements()]
    with pytest.raises(KeyboardInterrupt), QdrantWriter(qdrant.calls) as rows:
        rows.add(images)
        raise KeyboardInterrupt
    assert read_state(qdrant.calls).writer is None
    assert reconcile(qdrant.calls).n_before == 305


def test_values_are_written_again_when_the_average_length_has_moved(qdrant: Opened) -> None:
    frozen = qdrant.average_length
    longest = sorted(PATHS, key=lambda path: -int(ENCODINGS[path].bag.tf.sum(dtype=int)))
    qdrant.remove(longest[:4])
    assert qdrant.average_length == frozen
    qdrant.remove(longest[4:60])
    alive = sorted(longest[60:])
    live = average_of({path: INDEX_BAGS[path] for path in alive})
    assert abs(live / frozen - 1) > LARGEST_DRIFT
    assert qdrant.average_length == pytest.approx(live)
    query = Query.of(make_encoding(4), mode="sparse")
    expected = expect(encode(qdrant.collection, query), query, alive, live)
    check(qdrant.collection.search(query), expected)


def test_a_rewrite_that_was_killed_is_completed(
    qdrant: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = sorted(PATHS, key=lambda path: -int(ENCODINGS[path].bag.tf.sum(dtype=int)))

    def die(self: Calls, points: Any) -> None:
        replace_vectors(self, points[: len(points) // 2])
        raise Killed

    replace_vectors = Calls.replace_vectors
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Calls, "replace_vectors", die)
        qdrant.remove(longest[:60])
    assert read_state(qdrant.calls).writer is not None
    report = reconcile(qdrant.calls)
    assert report.rewritten
    assert report.n_images == N_IMAGES - 60
    alive = sorted(longest[60:])
    query = Query.of(make_encoding(4), mode="sparse")
    expected = expect(encode(qdrant.collection, query), query, alive, qdrant.average_length)
    check(qdrant.collection.search(query), expected)


def test_a_folder_of_bags_is_loaded_like_its_gallery(source: Gallery, tmp_path: Path) -> None:
    source.export_bags(tmp_path / "bags")
    client = make_edge()
    calls = Calls(client, "images", str(IMAGES))
    assert load_folder(calls, BagFolder(tmp_path / "bags")) == (N_IMAGES, 0, 0)
    assert load_gallery(calls, source.local) == (0, 0, N_IMAGES)
    live = average_of(INDEX_BAGS)
    assert read_state(calls).average_length == pytest.approx(live, rel=1e-12)
    client.close()


def test_paths_that_are_no_text_are_kept(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    path = os.fsdecode(b"/photos/caf\xe9.jpg")
    with Writer(gallery.path) as rows:
        rows.put(make_file(1, path), make_encoding(1))
        rows.commit()
    calls = Calls(make_edge(), "images", str(IMAGES))
    load_gallery(calls, gallery.local)
    with Gallery(QdrantStore(calls)) as collection:
        (hit,) = collection.search(make_encoding(2))
        assert hit.path == path
        assert collection.match(make_encoding(2), path).path == path
        assert len(collection.search(make_encoding(2), folder=path)) == 1
        assert collection.remove(path) == 1


# What can go wrong


class Flaky:
    """A client whose calls fail now and then, as a busy cluster's do."""

    def __init__(self, client: Any, *, every: int) -> None:
        self._client, self._every, self.n_calls, self.n_failed = client, every, 0, 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)

        def call(**values: Any) -> Any:
            self.n_calls += 1
            if self.n_calls % self._every == 0:
                self.n_failed += 1
                if self.n_failed % 2:
                    method(**values)  # it was done, but the answer is lost
                raise ConnectionError("connection reset by peer")
            return method(**values)

        return call if name != "close" else method


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "FIRST_PAUSE", 0.001)


@pytest.mark.parametrize("every", [2, 3, 4, 5])
def test_calls_that_fail_are_repeated_without_harm(
    source: Gallery, quick: None, every: int
) -> None:
    client = Flaky(make_edge(), every=every)
    calls = Calls(client, "images", str(IMAGES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bm25v.store.qdrant.writer.BATCH_IMAGES", 50)
        load_gallery(calls, source.local)
    with Gallery(QdrantStore(calls)) as collection:
        assert collection.remove(PATHS[:3]) == 3
        results = collection.search(make_encoding(3), mode="words")
        assert len(results) == 10
        assert client.n_failed > 5
        assert len(collection) == N_IMAGES - 3
        report = reconcile(calls)
        assert report.n_before == report.n_images == N_IMAGES - 3


def test_without_the_extra_its_name_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(MissingExtra, match=r"qdrant://host:6334/images needs .*\[qdrant\]"):
        Gallery.open("qdrant://host/images")


def test_a_server_that_does_not_answer_is_one_line(
    quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "ATTEMPTS", 2)
    with pytest.raises(EngineError, match=r"qdrant://127\.0\.0\.1:1/images failed 2 times: .*port"):
        Gallery.open("qdrant://127.0.0.1:1/images")


def test_a_shard_that_is_down_is_an_error_and_not_a_part_of_the_hits(
    qdrant: Opened, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise ConnectionError("The replica set for shard 2 has no active replica")

    monkeypatch.setattr(qdrant.client, "query_points", fail)
    with pytest.raises(EngineError, match="shard 2 has no active replica"):
        qdrant.collection.search(make_encoding(3))


def test_somebody_elses_collection_is_refused(source: Gallery) -> None:
    client = QdrantClient(":memory:")
    calls = Calls(client, "images", str(IMAGES))
    with pytest.raises(EngineError, match="does not exist: `bm25v bags load"):
        QdrantStore(calls)
    config = models.VectorParams(size=3, distance=models.Distance.DOT)
    client.create_collection("images", vectors_config={"v": config})
    for use in (lambda: load_gallery(calls, source.local), lambda: reconcile(calls)):
        with pytest.raises(EngineError, match="was not made by bm25v"):
            use()


def test_another_vocabulary_is_refused_by_name(qdrant: Opened, tmp_path: Path) -> None:
    other = Gallery.create(tmp_path / "g", vocabulary="default")
    with pytest.raises(VocabularyMismatch, match=r"has bags of vocabulary .* those of default"):
        load_gallery(qdrant.calls, other.local)
    collection = Gallery(QdrantStore(qdrant.calls), "default")
    with pytest.raises(VocabularyMismatch, match=r"not with default .*vocabulary=PATH"):
        collection.search(make_image(1))


def test_other_parameters_and_formats_are_refused(qdrant: Opened, tmp_path: Path) -> None:
    other = Gallery.create(tmp_path / "g", vocabulary="toy", k1=2)
    with pytest.raises(InvalidOption, match=f"has k1 = {DEFAULT_PARAMETERS.k1}"):
        load_gallery(qdrant.calls, other.local)
    with pytest.raises(InvalidOption, match="shards and replicas are chosen"):
        load_gallery(qdrant.calls, other.local, shards=2)
    beside = qdrant.calls.of("images" + SUFFIX)
    payload = beside.retrieve([point_id("state")], True)[0].payload
    changed = payload | {"format": FORMAT + 1}
    beside.upsert([models.PointStruct(id=point_id("state"), vector={}, payload=changed)])
    with pytest.raises(GalleryTooNew, match=f"format {FORMAT + 1}"):
        read_state(qdrant.calls)


def test_a_second_writer_is_refused(qdrant: Opened) -> None:
    with QdrantWriter(qdrant.calls), pytest.raises(GalleryLocked, match="is written to by process"):
        qdrant.remove(PATHS[:1])


class InterruptedClient:
    """The client of one process; before its n-th call, another one acts."""

    def __init__(self, client: Any, n: int, act: Callable[[], object]) -> None:
        self.client, self.n_left, self.act, self.is_other_admitted = client, n, act, False

    def __getattr__(self, name: str) -> Any:
        def call(**values: Any) -> Any:
            self.n_left -= 1
            if self.n_left == -1:
                with suppress(GalleryLocked):
                    self.act()
                    self.is_other_admitted = True
            return getattr(self.client, name)(**values)

        return call


def test_two_writers_that_begin_at_the_same_time_are_not_both_admitted(qdrant: Opened) -> None:
    outcomes = []
    for n in range(20):
        other = QdrantWriter(qdrant.calls)
        client = InterruptedClient(qdrant.client, n, other.__enter__)
        own = QdrantWriter(Calls(client, qdrant.calls.collection, qdrant.calls.where))
        is_admitted = False
        with suppress(GalleryLocked):
            own.__enter__()
            is_admitted = True
        if client.n_left >= 0:  # it had begun before
            break
        outcomes.append((is_admitted, client.is_other_admitted))
        for writer, is_inside in zip((own, other), outcomes[-1], strict=True):
            if is_inside:
                writer.__exit__(None, None, None)
        assert read_state(qdrant.calls).writer is None
    assert n > 3
    assert set(outcomes) == {(True, False), (False, True)}


@pytest.mark.parametrize("uses", ["write", "reconcile"])
def test_statistics_are_right_whenever_another_process_writes(qdrant: Opened, uses: str) -> None:
    images = [to_bags(path, encoding) for path, encoding in replacements()[5:]]

    def write(calls: Calls) -> None:
        with QdrantWriter(calls) as rows:
            rows.remove(["/photos/new"])
            rows.add(images[:3])

    def add(calls: Calls) -> None:
        with QdrantWriter(calls) as rows:
            rows.add(images[3:])

    outcomes = []
    for n in range(60):
        qdrant.remove(["/photos/new"])
        client = InterruptedClient(qdrant.client, n, lambda: add(qdrant.calls))
        own = Calls(client, qdrant.calls.collection, qdrant.calls.where)
        is_admitted = False
        with suppress(GalleryLocked):
            write(own) if uses == "write" else reconcile(own)
            is_admitted = True
        if client.n_left >= 0:
            break
        outcomes.append((is_admitted, client.is_other_admitted))
        state = read_state(qdrant.calls)
        assert state.writer is None
        assert state.statistics.n == qdrant.calls.count(None)
    assert n < 59
    assert {(True, False), (False, True)} <= set(outcomes)
    assert (False, False) not in outcomes


def test_a_load_killed_while_it_creates_the_collection_is_repeated(
    source: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def create_or_die(self: Calls, **options: Any) -> None:
        if self.collection == "images":
            raise Killed
        create(self, **options)

    create, calls = Calls.create, Calls(make_edge(), "images", str(IMAGES))
    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Calls, "create", create_or_die)
        load_gallery(calls, source.local)
    with pytest.raises(GalleryLocked, match=r"written to by process .*`bm25v bags reconcile"):
        load_gallery(calls, source.local)
    assert reconcile(calls).was_marked
    assert load_gallery(calls, source.local) == (N_IMAGES, 0, 0)
    calls.close()


def test_a_server_without_conditional_writes_is_refused(
    source: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_edge()
    upsert = client.upsert

    def ignore_conditions(update_filter: Any = None, **values: Any) -> None:
        upsert(**values)

    with closing(client), pytest.raises(EngineError, match=r"it needs Qdrant 1\.16"):
        monkeypatch.setattr(client, "upsert", ignore_conditions)
        load_gallery(Calls(client, "images", str(IMAGES)), source.local)


def test_points_of_others_are_refused(qdrant: Opened) -> None:
    stranger = models.PointStruct(id=str(uuid.uuid4()), vector={"dense": [1.0] * DIM}, payload={})
    qdrant.calls.upsert([stranger])
    with pytest.raises(EngineError, match="points that bm25v did not write"):
        reconcile(qdrant.calls)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host/images", "give an address such as qdrant://"),
        ("qdrant://host", "give an address such as qdrant://"),
        ("qdrant://host/a/b", "give an address such as qdrant://"),
        ("qdrant://:secret@host/images", API_KEY),
        ("qdrant://host/images?shards=3", "the only option is vocabulary"),
        ("qdrant://host:port/images", "engine 'qdrant://host:port/images'"),
    ],
)
def test_wrong_addresses_are_one_line(url: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        parse_address(url)


def test_a_key_is_not_sent_unencrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(API_KEY, "secret")
    with pytest.raises(InvalidOption, match="qdrants://"):
        read_api_key(parse_address("qdrant://example.org/images"))
    assert read_api_key(parse_address("qdrants://example.org/images")) == "secret"


def test_a_server_on_this_machine_is_reached_without_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (
        closing(make_edge()) as shards,
        serve_edge(shards) as port,
        socket.create_server(("127.0.0.1", 0)) as proxy,
    ):
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        with closing(connect(IMAGES._replace(port=port))) as client:
            assert client.collection_exists("images") is False
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


# The command line


@pytest.fixture
def at_edge(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An address at which four shards of qdrant-edge answer."""

    class Shared(EdgeClient):
        def close(self) -> None:
            pass

    client = Shared(folder=MEMORY)
    monkeypatch.setattr(calls_module, "connect", lambda address: client)
    yield "qdrant://localhost/images"
    EdgeClient.close(client)


def test_the_commands(run: Any, photos: Path, at_edge: str) -> None:
    run("index", photos, "--vocabulary", "toy")
    loaded = run("bags", "load", "--engine", at_edge, "--shards", 4, "--replicas", 2)
    assert (loaded.code, loaded.out[:31]) == (0, "12 added, 0 updated, 0 unchange")
    image = photos / "3.png"
    options = ("search", image, "--mode", "hybrid", "--json")
    here, there = (json.loads(run(*options, *more).out) for more in ((), ("-g", at_edge)))
    del here["ms"], there["ms"]
    assert_close(there, here)
    hit = here["hits"][0]["path"]
    assert "rank 1" in run("explain", image, hit, "-g", at_edge).out
    page = run("search", image, "-g", at_edge, "-o", "hits.html")
    assert page.code == 0
    command = "-g qdrant://localhost:6334/images --open"
    assert command in Path("hits.html").read_text(encoding="utf-8")
    assert run("remove", hit, "-g", at_edge).out == "1 removed\n"
    missing = run("remove", hit, "-g", at_edge)
    assert (missing.code, "has no image" in missing.err) == (1, True)
    assert run("bags", "reconcile", "--engine", at_edge).out == "11 images\n"
    assert json.loads(run("bags", "load", "--engine", at_edge, "--json").out)["added"] == 1
    wrong = run("search", image, "-g", "http://localhost")
    assert (wrong.code, wrong.err.count("\n")) == (2, 1)
    folder = run("compact", "-g", at_edge)
    assert (folder.code, "needs a gallery in a folder" in folder.err) == (2, True)


@pytest.fixture(scope="module")
def paired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Gallery, Gallery]]:
    """A gallery with dense vectors of two backbones, and the collection it was loaded into."""
    folder = tmp_path_factory.mktemp("paired")
    vocabulary = save_vocabulary(folder / "mine.vocab")
    rng = np.random.default_rng(0)
    with Gallery.create(folder / "g", vocabulary=vocabulary, dense="toy") as gallery:
        with Writer(gallery.path) as rows:
            for path in PATHS:
                halves = normalise(rng.normal(size=(2, DIM)).astype(np.float32))
                rows.put(FILES[path], ENCODINGS[path]._replace(dense_e=halves.ravel()))
            rows.commit()
        calls = Calls(make_edge(), "images", str(IMAGES))
        load_gallery(calls, gallery.local)
        with Gallery(QdrantStore(calls)) as collection:
            yield gallery, collection


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "dense", "region": None},
        {"mode": "dense"},
        {"mode": "dense", "k": 100},  # cosines of so many are those of Qdrant
        {"mode": "hybrid"},
        {"like": PATHS[8]},
        {"text": "a dog"},
        {"images": None, "text": "a cat"},
        {"images": None, "text": "a cat without a dog", "k": 100},
    ],
    ids=str,
)
def test_a_region_or_text_is_compared_with_the_first_of_two_backbones(
    paired: tuple[Gallery, Gallery], options: dict[str, Any]
) -> None:
    gallery, collection = paired
    assert gallery.store.meta.dense_dim == 2 * DIM
    region = {"images": make_image(4), "region": (0, 0, 0.5, 1)}
    options = {"k": 20, **({} if "images" in options else region), **options}
    query = Query.of(options.pop("images"), **options)
    results = collection.search(query)
    assert len(results) == query.k
    # Rounding to float16 has changed the length of each half.
    check_same(results, gallery.search(query), error=5e-4)
