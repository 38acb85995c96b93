"""How long searching by a text takes among many images, and what the index misses.

The test photos of Flickr8k are hidden among synthetic images, each a mixture of two training
photos; their captions are the texts. Times are of the CPU, on one thread, and the ways to search
alternate after ten texts, so that other work on the machine changes ratios little. Both exact
orders, by the hybrid score and by the dense vector alone, read all images.

Mixtures are not photos: among real photos alone the index loses more recall than here, perhaps
because the strongest words of a mixture are from two photos. 200 captions say R@10 to 2 points.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits
from workload import print_table

from bm25v.index.searcher import Searcher
from bm25v.research.systems.full_bags import MemoryView
from bm25v.search import encode as encoding
from bm25v.search.encode import encode
from bm25v.search.query import Query
from bm25v.search.rank import rank
from bm25v.search.scoring import MODES
from bm25v.search.text import NamedVocabulary
from bm25v.store.bags import RowArray, bag_layout
from bm25v.store.base import Filter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import LEVELS

HITS = 100
WORDS = (32, 64, 96)
CANDIDATES = (500, 1_000, 2_000, 5_000)

_SLICE = 10  # texts of a way to search before those of the next one
_BLOCK_ROWS = 8_192
_NOISE = 0.2  # of dense vectors, in standard deviations
_LOADING = """
import time
from bm25v.vocabulary import Vocabulary
vocabulary = Vocabulary.load("default")
start = time.perf_counter()
lexicon = vocabulary.lexicon
loaded = time.perf_counter()
lexicon.index.longest
print(1e3 * (loaded - start), 1e3 * (time.perf_counter() - start))
"""

Rankings = list[NDArray[np.int64]]


@dataclass(frozen=True)
class Figures:
    median_ms: float
    p95_ms: float
    speedup: float  # to the dense scan
    first_ms: float  # median of the first stage
    recall_10: float  # share of the captions that find their photo
    recall_100: float
    same_10: float  # share of the ten best by the hybrid score of everything
    same_10_dense: float  # share of the ten best by the dense vector
    exact_10: float  # recall of the order of everything by the hybrid score, same captions


@dataclass(frozen=True)
class ReadingTimes:
    n_texts: int
    median_ms: float
    p99_ms: float
    worst_ms: float
    worst: str
    load_ms: float  # the lexicon, in a new process
    load_and_index_ms: float


class PathlessView(MemoryView):
    """No text names the path of an image."""

    def count(self, condition: Filter) -> int:
        return 0


@dataclass(frozen=True)
class Photos:
    names: list[str]
    full_bags: RowArray
    dense_ne: NDArray[np.float32]

    @classmethod
    def read(cls, features: Path, bags: Path) -> "Photos":
        """Read shards of encoded photos, and of their full bags."""
        names, rows, dense = [], [], []
        for path in sorted(features.glob("shard-*.npz")):
            with np.load(path) as shard, np.load(bags / path.name) as bag_shard:
                names += shard["names"].tolist()
                dense.append(shard["dense"].astype(np.float32))
                rows.append(bag_shard["bags"])
        return cls(names, np.concatenate(rows), np.concatenate(dense))

    def select(self, names: Sequence[str]) -> "Photos":
        positions = {name: position for position, name in enumerate(self.names)}
        kept = [positions[name] for name in names if name in positions]
        return Photos([self.names[at] for at in kept], self.full_bags[kept], self.dense_ne[kept])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", type=Path, help="folder of shards: names, dense")
    parser.add_argument("bags", type=Path, help="folder of shards with full bags, in that order")
    parser.add_argument("texts", type=Path, help="folder of Flickr8k.token.txt and its lists")
    parser.add_argument("--n", type=int, default=100_000, help="synthetic images")
    parser.add_argument("--queries", type=int, default=200, help="captions that are timed")
    parser.add_argument("--words", type=int, nargs="+", default=[encoding.TEXT_FIRST_WORDS])
    parser.add_argument("--candidates", type=int, nargs="+", default=[MODES["hybrid"].candidates])
    parser.add_argument("--all", action="store_true", help="all numbers of words and candidates")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.all:
        options.words, options.candidates = WORDS, CANDIDATES
    vocabulary = Vocabulary.load("default")
    named = NamedVocabulary(vocabulary, {}, {})
    photos = Photos.read(options.features, options.bags)
    tests = photos.select(read_list(options.texts / "Flickr_8k.testImages.txt"))
    trains = photos.select(read_list(options.texts / "Flickr_8k.trainImages.txt"))
    captions = read_captions(options.texts / "Flickr8k.token.txt", tests.names)
    with threadpool_limits(1):
        view = make_view(tests, trains, options.n, vocabulary)
        reading = time_reading(captions, named, view)
        chosen = np.random.default_rng(1).permutation(len(captions))[: options.queries]
        figures = compare(
            [captions[at] for at in chosen], named, view, options.words, options.candidates
        )
    if options.json:
        ways = {name: asdict(way) for name, way in figures.items()}
        print(json.dumps({"n": options.n, "reading": asdict(reading), "ways": ways}, indent=2))
        return
    print(f"{view.statistics.n:,} images, {len(chosen)} captions")
    print_table(
        ("search", "median ms", "p95 ms", "× dense", "index ms", "R@10", "R@100", "same", "dense"),
        [
            (
                name,
                f"{way.median_ms:.2f}",
                f"{way.p95_ms:.2f}",
                f"{way.speedup:.1f}",
                f"{way.first_ms:.2f}",
                f"{way.recall_10:.1%}",
                f"{way.recall_100:.1%}",
                f"{way.same_10:.1%}",
                f"{way.same_10_dense:.1%}",
            )
            for name, way in figures.items()
        ],
    )
    print(
        f"reading a text: median {reading.median_ms:.2f} ms, 99 % {reading.p99_ms:.2f} ms, at most "
        f"{reading.worst_ms:.2f} ms ({reading.worst!r}); loading the lexicon: "
        f"{reading.load_ms:.0f} ms, with the first look-up {reading.load_and_index_ms:.0f} ms"
    )


def read_list(path: Path) -> list[str]:
    return [Path(line).stem for line in path.read_text().split()]


def read_captions(path: Path, names: Sequence[str]) -> list[tuple[str, int]]:
    """Return the captions of some photos, each with the number of its photo."""
    numbers = {name: number for number, name in enumerate(names)}
    lines = (line.split("\t") for line in path.read_text().splitlines())
    pairs = ((text, numbers.get(key.split(".")[0])) for key, text in lines)
    return [(text, number) for text, number in pairs if number is not None]


def make_view(tests: Photos, trains: Photos, n: int, vocabulary: Vocabulary) -> MemoryView:
    """Return a gallery of the test photos and n mixtures of two training photos."""
    first, size = len(tests.names), len(tests.names) + n
    full_bags = np.zeros(size, tests.full_bags.dtype)
    dense_ne = np.empty((size, tests.dense_ne.shape[1]), np.float16)
    bags = np.zeros(size, bag_layout(vocabulary.k_post, vocabulary.n_words))
    full_bags[:first], dense_ne[:first] = tests.full_bags, tests.dense_ne
    mean_e, deviation_e = trains.dense_ne.mean(axis=0), trains.dense_ne.std(axis=0)
    rng = np.random.default_rng(0)
    for start in range(first, size, _BLOCK_ROWS):
        block = slice(start, min(start + _BLOCK_ROWS, size))
        b = block.stop - start
        pairs_b2 = rng.integers(0, len(trains.names), (b, 2))
        full_bags[block] = mix_bags(rng, trains.full_bags, pairs_b2)
        sums_be = (trains.dense_ne[pairs_b2] - mean_e).sum(axis=1)
        noise_be = _NOISE * deviation_e * rng.standard_normal(sums_be.shape, np.float32)
        # As varied as photos: the mean of two would be closer to all others.
        dense_ne[block] = mean_e + (sums_be + np.sqrt(2) * noise_be) / np.sqrt(2 + 2 * _NOISE**2)
    for start in range(0, size, _BLOCK_ROWS):
        block = slice(start, min(start + _BLOCK_ROWS, size))
        bags["words"][block], bags["tf"][block] = strongest(full_bags[block], vocabulary.k_post)
    searcher = Searcher(bags["words"], bags["tf"], n_words=vocabulary.n_words)
    searcher.build_index()
    return PathlessView.of(searcher, full_bags, dense_ne)


def mix_bags(rng: np.random.Generator, photos: RowArray, pairs_b2: NDArray[np.int64]) -> RowArray:
    """Return full bags with half of the words of each of two photos, in ascending order."""
    stored = photos[pairs_b2]
    b, k = len(stored), stored["words"].shape[2]
    halves = rng.permuted(np.tile(np.arange(k), (2 * b, 1)), axis=1)[:, : k // 2]
    halves = halves.reshape(b, 2, k // 2)
    words, levels, patches = (
        np.take_along_axis(stored[name], halves, axis=2).reshape(b, -1).astype(np.uint32)
        for name in ("words", "levels", "patches")
    )
    keys = np.sort(words << 16 | levels << 8 | patches, axis=1)  # of a word twice: the stronger
    mixed = np.zeros(b, photos.dtype)
    mixed["words"], mixed["levels"], mixed["patches"] = keys >> 16, keys >> 8 & 255, keys & 255
    mixed["levels"][:, :-1][mixed["words"][:, 1:] == mixed["words"][:, :-1]] = 0
    return mixed


def strongest(full_bags: RowArray, k: int) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """Return the words and the tf of the bags that the index has."""
    order = np.argsort(-full_bags["levels"].astype(np.int16), axis=1, kind="stable")[:, :k]
    order.sort(axis=1)
    levels = np.take_along_axis(full_bags["levels"], order, axis=1)
    return np.take_along_axis(full_bags["words"], order, axis=1), LEVELS[levels]


def time_reading(
    captions: Sequence[tuple[str, int]], named: NamedVocabulary, view: MemoryView
) -> ReadingTimes:
    encode(Query(text="a dog"), view, named)  # loads the lexicon
    texts = [text for text, _ in captions]
    ms = np.array([time_ms(partial(encode, Query(text=text), view, named)) for text in texts])
    worst = int(np.argmax(ms))
    command = [sys.executable, "-c", _LOADING]
    runs = [
        list(map(float, subprocess.run(command, capture_output=True, check=True).stdout.split()))
        for _ in range(5)
    ]
    load_ms, load_and_index_ms = np.median(runs, axis=0).tolist()
    median, p99 = np.percentile(ms, (50, 99)).tolist()
    return ReadingTimes(
        len(texts), median, p99, float(ms[worst]), texts[worst], load_ms, load_and_index_ms
    )


def compare(
    captions: Sequence[tuple[str, int]],
    named: NamedVocabulary,
    view: MemoryView,
    words: Sequence[int],
    candidates: Sequence[int],
) -> dict[str, Figures]:
    targets = [number for _, number in captions]
    n = view.statistics.n

    def search(text: str, query: Query) -> tuple[NDArray[np.int64], float]:
        encoded = encode(replace(query, text=text), view, named)
        start = time.thread_time()
        images = view.candidates(encoded)
        first_ms = (time.thread_time() - start) * 1e3
        return rank(encoded, images, view).rows, first_ms

    query = Query(text="a dog", k=HITS)
    ways: dict[str, tuple[Query, int, int]] = {
        "hybrid, all": (replace(query, mode="hybrid", candidates=n), 1, n),
        "dense, all": (replace(query, mode="dense"), 1, n),
    }
    for count in candidates:
        for n_words in words:
            ways[f"{n_words} words, {count:,}"] = (replace(query, candidates=count), n_words, count)
    ms: dict[str, list[float]] = {name: [] for name in ways}
    first_ms: dict[str, list[float]] = {name: [] for name in ways}
    rows: dict[str, Rankings] = {name: [] for name in ways}
    for start in range(0, len(captions), _SLICE):
        texts = [text for text, _ in captions[start : start + _SLICE]]
        for name, (way, n_words, count) in ways.items():
            with first_words(n_words):
                if count < n:
                    search(texts[-1], way)  # not timed: the caches hold the data of another way
                for text in texts:
                    begun = time.thread_time()
                    hits, first = search(text, way)
                    ms[name].append((time.thread_time() - begun) * 1e3)
                    first_ms[name].append(first)
                    rows[name].append(hits)
    dense_ms = float(np.median(ms["dense, all"]))
    exact, dense = rows["hybrid, all"], rows["dense, all"]
    return {
        name: Figures(
            float(np.median(ms[name])),
            float(np.percentile(ms[name], 95)),
            dense_ms / float(np.median(ms[name])),
            float(np.median(first_ms[name])),
            recall(rows[name], targets, 10),
            recall(rows[name], targets, 100),
            agreement(rows[name], exact),
            agreement(rows[name], dense),
            recall(exact, targets, 10),
        )
        for name in ways
    }


@contextmanager
def first_words(n: int) -> Iterator[None]:
    """Search with another number of words that find candidates."""
    before, encoding.TEXT_FIRST_WORDS = encoding.TEXT_FIRST_WORDS, n
    try:
        yield
    finally:
        encoding.TEXT_FIRST_WORDS = before


def recall(rankings: Rankings, targets: Sequence[int], k: int) -> float:
    pairs = zip(rankings, targets, strict=True)
    return float(np.mean([target in rows[:k] for rows, target in pairs]))


def agreement(rankings: Rankings, others: Rankings) -> float:
    """Return the share of the ten best of others that are among the ten best."""
    pairs = zip(rankings, others, strict=True)
    return float(np.mean([np.isin(other[:10], rows[:10]).mean() for rows, other in pairs]))


def time_ms(action: Callable[[], object]) -> float:
    start = time.thread_time()
    action()
    return (time.thread_time() - start) * 1e3


if __name__ == "__main__":
    main()
