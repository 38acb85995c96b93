"""Searches with all options: scores, filters, modes, feedback and the reasons for no hits."""

import math
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache, cached_property
from itertools import chain, combinations, cycle, islice
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bm25v.errors import ImageError, ImageNotFound, InvalidOption
from bm25v.gallery import Gallery
from bm25v.images import ImageInput
from bm25v.index import bm25
from bm25v.index.bm25 import WeightedWords
from bm25v.index.searcher import top_positions
from bm25v.sae.model import Codes
from bm25v.search import Hit, Mode, Results, rank
from bm25v.search.regions import patch_weights, weigh_codes
from bm25v.search.scoring import MODES
from bm25v.store.base import Filter
from bm25v.store.files import FileState
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import Bag, pool_bags, pool_codes
from tests import histories
from tests.conftest import encode, expand_bag, make_image
from tests.histories import Contents
from tests.soak.history import get_full_bag

NAMES = {word: f"name{word}" for word in range(192)}
Options = dict[str, Any]


@cache
def query_image(number: int) -> Encoding:
    """Return the encoding of a query image: words of stored images, spread over patches."""
    rng = np.random.default_rng(1000 + number)
    known = np.concatenate([histories.make_encoding((number + i) % 40).bag.words for i in range(3)])
    words_pk = rng.choice(known, (49, 3))
    codes = Codes(words_pk.astype(np.int32), rng.random((49, 3)).astype(np.float32))
    patches_pd = rng.normal(size=(49, 12)).astype(np.float32)
    bag, full_bag, all_words = pool_bags(codes, k_post=16, k_full=256)
    return Encoding(bag, patches_pd.mean(axis=0), codes, full_bag, patches_pd, all_words)


def region_words(encoding: Encoding, box: tuple[float, float, float, float]) -> set[int]:
    """Return the 16 strongest words in a box, by a plain loop; the toy grid is 7 by 7."""
    x, y, width, height = box
    shares = {}
    for patch in range(49):
        row, column = divmod(patch, 7)
        wide = min((column + 1) / 7, x + width) - max(column / 7, x)
        high = min((row + 1) / 7, y + height) - max(row / 7, y)
        shares[patch] = max(0, wide) * max(0, high)
    largest, sums = max(shares.values()), dict[int, float]()
    for patch, share in shares.items():
        words_k, active_k = (part[patch].tolist() for part in encoding.codes)
        for word, activation in zip(words_k, active_k, strict=True):
            sums[word] = sums.get(word, 0) + activation * share / largest
    best = sorted(sums, key=lambda word: (-sums[word], word))[:16]
    return {word for word in best if round(100 * sums[word])}


def image_bag(image: Encoding, options: Options, full: bool) -> Bag:
    """Return the words of a query image, or of a region of it."""
    if options["region"] is not None:
        codes = weigh_codes(image.codes, patch_weights(options["region"], (7, 7)))
        strongest = pool_codes(codes, k_post=16)
        assert set(strongest.words.tolist()) == region_words(image, options["region"])
        return pool_codes(codes, k_post=256) if full else strongest
    if not full:
        return image.bag
    has_codes = image.codes.words_pk.size > 0
    return pool_codes(image.codes, k_post=192) if has_codes else get_full_bag(image).bag


def expected_weights(options: Options, stored: dict[str, Bag], full: bool) -> dict[int, float]:
    """Return the weight of each word of a query, as the documentation defines it."""
    images = [strengths(image_bag(image, options, full), full) for image in options["images"]]
    liked = [strengths(stored[path], full) for path in options["like"]]
    others = {**options, "region": None}
    negative = [strengths(stored[path], full) for path in options["unlike"]]
    negative += [strengths(image_bag(image, others, full), full) for image in options["negative"]]

    def share(word: int, bags: list[dict[int, float]]) -> float:
        return sum(bag.get(word, 0.0) for bag in bags) / max(len(bags), 1)

    weights = {
        word: share(word, images) + 0.75 * share(word, liked) - 0.5 * share(word, negative)
        for word in sorted({word for bag in (*images, *liked, *negative) for word in bag})
    }
    weights |= dict.fromkeys(text_words(options), 0.5)
    for word in (*options["must"], *options["boost"]):
        weights.setdefault(word, 1.0)
    for word, factor in options["boost"].items():
        weights[word] *= factor
    return {w: x for w, x in weights.items() if abs(x) > 1e-12 and w not in options["without"]}


def text_words(options: Options) -> set[int]:
    """Return the words that a text names, which hits must have."""
    names = (options["text"] or "").split()
    return {word for word, name in NAMES.items() if name in names}


def strengths(bag: Bag, full: bool) -> dict[int, float]:
    """Return how much each word of a bag counts in a query."""
    tf = dict(zip(bag.words.tolist(), bag.tf.tolist(), strict=True))
    return {word: math.sqrt(n / max(tf.values())) if full else 1.0 for word, n in tf.items()}


def to_query(weights: dict[int, float]) -> WeightedWords:
    words = np.array(sorted(weights), dtype=np.int32)
    values = np.array([weights[word] for word in words.tolist()], dtype=np.float64)
    return WeightedWords(words, values, np.ones(len(words)))


class Expected:
    """What the reference formula returns for the contents of a gallery, by one kind of bags.

    `rows` has the row of each path: of equal scores, that of the lower row comes first.
    """

    def __init__(self, contents: Contents, rows: dict[str, int], options: Options, full: bool):
        self.rows, self.options, self.full = rows, options, full
        self.index = {path: histories.make_encoding(n).bag for path, n in contents.items()}
        full_bags = {path: histories.full_bag(n) for path, n in contents.items()}
        self.bags = full_bags if full else self.index
        self.words = {path: set(bag.words.tolist()) for path, bag in self.bags.items()}
        self.lengths = {path: float(bag.frequencies.sum()) for path, bag in self.bags.items()}
        self.n = len(self.bags)
        self.df = Counter(word for words in self.words.values() for word in words)
        self.weights = expected_weights(options, self.bags, self.full)
        self.scores = self.score(self.bags, self.weights)
        own = {contents[path] for path in options["unlike"]}
        self.allowed = {
            path
            for path, bag in full_bags.items()
            if text_words(options).union(options["must"]) <= set(bag.words.tolist())
            if not set(options["without"]) & set(bag.words.tolist())
            if options["include_query"] or contents[path] not in own
            if FOLDERS[options["folder"]](path)
            if DATES[options["date"]](histories.image_date(contents[path]))
            if SIZES[options["min_size"]](histories.image_size(contents[path]))
        }
        self.masses = {w: x * self.idf(w) for w, x in self.weights.items() if x > 0}

    def score(self, bags: dict[str, Bag], weights: dict[int, float]) -> dict[str, float]:
        scores = bm25.reference_scores(list(bags.values()), to_query(weights))
        return {path: score or 0.0 for path, score in zip(bags, scores, strict=True)}

    @cached_property
    def first_scores(self) -> dict[str, float]:
        """The scores of the first stage."""
        if not self.full:
            return self.scores
        by_weight = sorted(self.weights, key=lambda word: (-abs(self.weights[word]), word))
        return self.score(self.index, {word: self.weights[word] for word in by_weight[:32]})

    def candidates(self, mode: str) -> list[str] | None:
        """Return the candidates of the first stage, best first; None without a first stage."""
        n = self.options["candidates"]
        if mode == "dense" or (self.full and len(self.allowed) <= n):
            return None
        allowed = self.allowed if self.full else self.covered_paths()
        scored = [path for path in allowed if self.first_scores[path] > 0]
        best = sorted(scored, key=lambda path: (-self.first_scores[path], self.rows[path]))
        return best if mode == "sparse" else best[:n]

    def idf(self, word: int) -> float:
        return math.log(1 + (self.n - self.df[word] + 0.5) / (self.df[word] + 0.5))

    def coverage(self, path: str) -> float:
        total = sum(self.masses.values())
        matched = sum(mass for word, mass in self.masses.items() if word in self.words[path])
        return matched / total if total else 0.0

    def covered_paths(self) -> set[str]:
        min_coverage = self.options["min_coverage"]
        return {path for path in self.allowed if self.coverage(path) >= min_coverage - 1e-9}

    def check(self, results: Results) -> None:
        candidates, paths = self.candidates(results.mode), self.covered_paths()
        if candidates is not None:
            paths &= set(candidates)
        if results.mode == "words":
            paths = {path for path in paths if self.scores[path] > 0}
        assert {hit.path for hit in results} == paths
        for hit in results:
            self.check_hit(hit)
            self.check_score(hit, results)
            if candidates is None:
                assert (hit.first_rank, results.candidates) == (None, None)
            else:
                assert candidates[(hit.first_rank or 0) - 1] == hit.path
        order = [(-hit.score, self.rows[hit.path]) for hit in results]
        assert order == sorted(order)
        assert [hit.rank for hit in results] == list(range(1, len(results) + 1))
        assert {word.word: word.weight for word in results.query} == self.weights
        assert (results.no_match is None) == bool(results.hits)

    def check_hit(self, hit: Hit) -> None:
        bag = self.bags[hit.path]
        assert hit.length == pytest.approx(self.lengths[hit.path])
        assert hit.average_length == pytest.approx(sum(self.lengths.values()) / self.n)
        assert hit.n_images == self.n
        assert hit.coverage == pytest.approx(self.coverage(hit.path), abs=1e-9)
        assert hit.sparse == self.scores[hit.path]
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)
        tf = dict(zip(bag.words.tolist(), bag.frequencies.tolist(), strict=True))
        assert {word.word for word in hit.words} == set(tf) & set(self.weights)
        norm = 1.5 * (0.25 + 0.75 * hit.length / hit.average_length)
        for word in hit.words:
            assert word.df == self.df[word.word]
            assert word.idf == pytest.approx(self.idf(word.word))
            assert word.tf == tf[word.word]
            assert word.weight == self.weights[word.word]
            assert word.saturation == pytest.approx(word.tf * 2.5 / (word.tf + norm))
            product = word.weight * word.idf * word.saturation
            assert word.contribution == pytest.approx(product, abs=1e-9)

    def check_score(self, hit: Hit, results: Results) -> None:
        """Check what the score is made of."""
        assert sum(part.value for part in hit.parts) == pytest.approx(hit.score, abs=1e-5)
        by_words = [(word.word, word.label) for word in hit.words]
        if hit.mode in ("words", "sparse"):
            assert hit.score == hit.sparse
            assert hit.text or [part[:2] for part in hit.parts] == by_words
            assert hit.mode == "words" or hit.first_rank == hit.rank
            return
        assert hit.parts[0] == (None, "cosine", hit.dense)
        if hit.mode == "hybrid":
            factor = 1.5 / (2.5 * (sum(self.masses.values()) or 0.4))
            assert results.sparse_factor == hit.sparse_factor == pytest.approx(factor)
            assert hit.score == (hit.dense or 0.0) + hit.sparse_factor * hit.sparse
            assert [part[:2] for part in hit.parts[1:]] == by_words
        else:
            assert hit.score == hit.dense
            assert len(hit.parts) == 1


# Filters, and what they mean.
FOLDERS: dict[str | None, Callable[[str], bool]] = {
    None: lambda path: True,
    "/photos": lambda path: True,
    "*-a.png": lambda path: path.endswith("-a.png"),
    "/photos/1?-*": lambda path: len(path) == len("/photos/1?-a.png") and path[8] == "1",
    "/elsewhere": lambda path: False,
}
DATES: dict[str | None, Callable[[datetime], bool]] = {
    None: lambda date: True,
    "2020-01-05..2020-01-20": lambda date: 5 <= date.day <= 20 and date.year == 2020,
    "..2020-01-10": lambda date: date < datetime(2020, 1, 11),
    "1970": lambda date: date.year == 1970,
}
SIZES: dict[int | tuple[int, int] | None, Callable[[tuple[int, int]], bool]] = {
    None: lambda size: True,
    70: lambda size: size[0] >= 70 and size[1] >= 70,
    (110, 1): lambda size: size[0] >= 110,
}

words = st.integers(0, 191)
boxes = st.tuples(st.floats(0, 0.7), st.floats(0, 0.7), st.floats(0.05, 0.3), st.floats(0.05, 0.3))
random_options = st.fixed_dictionaries(
    {
        "images": st.lists(st.integers(0, 9), max_size=3),
        "region": st.none() | boxes,
        "text": st.just([]) | st.lists(words, min_size=1, max_size=3),
        "must": st.lists(words, max_size=1, unique=True)
        | st.sampled_from(list(combinations(histories.make_encoding(7).bag.words.tolist(), 2))),
        "without": st.lists(words, max_size=3, unique=True),
        "boost": st.dictionaries(words, st.sampled_from([0.0, 0.5, 2.0, -1.0]), max_size=3),
        "negative": st.lists(st.integers(0, 9), max_size=2),
        "like": st.lists(st.integers(0, 99), max_size=2),
        "unlike": st.lists(st.integers(0, 99), max_size=2),
        "min_coverage": st.sampled_from([0.0, 0.0, 0.1, 0.4]),
        "folder": st.sampled_from(list(FOLDERS)),
        "date": st.sampled_from(list(DATES)),
        "min_size": st.sampled_from(list(SIZES)),
        "include_query": st.booleans(),
        "candidates": st.sampled_from([3, 10, 1000]),
    }
)


PLAIN: Options = {  # a search that has hits in any gallery with images
    **{key: [] for key in ("text", "must", "without", "negative", "like", "unlike")},
    **dict.fromkeys(("region", "folder", "date", "min_size")),
    "images": [1],
    "boost": {},
    "min_coverage": 0.0,
    "include_query": True,
    "candidates": 10,
}


def make_options(contents: Contents, drawn: Options) -> Options | None:
    """Return options that are valid for a gallery with these contents; None for an empty query."""
    paths = sorted(contents)
    feedback = {
        key: [paths[n % len(paths)] for n in drawn[key]] for key in ("like", "unlike") if paths
    }
    options = {**drawn, "like": [], "unlike": [], **feedback}
    options["images"] = [query_image(number) for number in drawn["images"]]
    options["negative"] = [query_image(number) for number in drawn["negative"]]
    options["without"] = [w for w in drawn["without"] if w not in drawn["must"]]
    options["boost"] = {w: f for w, f in drawn["boost"].items() if w not in options["without"]}
    if len(options["images"]) != 1:
        options["region"] = None
    has_images = any(options[kind] for kind in ("images", "negative", "like", "unlike"))
    named = [] if has_images else drawn["text"]  # beside images: test_lexicon.py
    options["text"] = " and ".join(NAMES[word] for word in named) or None
    is_query = any(options[kind] for kind in ("images", "like", "must", "boost", "text"))
    return options if is_query else None


@contextmanager
def record_scores() -> Iterator[list[dict[int, float]]]:
    """Record the scores by which each search within the block orders rows."""
    recorded: list[dict[int, float]] = []

    def record_and_order(rows: Any, scores: Any, k: int) -> Any:
        recorded.append(dict(zip(rows.tolist(), scores.tolist(), strict=True)))
        return top_positions(rows, scores, k)

    with mock.patch.object(rank, "top_positions", record_and_order):
        yield recorded


def check_search(galleries: list[Gallery], contents: Contents, options: Options) -> int:
    """Check all modes in galleries of the same folder, which must return the same bits.

    Return how many hits were checked.
    """
    n_hits = 0
    gallery, images = galleries[0], options["images"]
    given = {name: value for name, value in options.items() if name != "images"}
    rows = {record.path: record.row for record in gallery.local.catalog.images()}
    expected = [Expected(contents, rows, options, full) for full in (False, True)]
    for mode in MODES if images or options["like"] else ("sparse", "words"):
        k = min(options["candidates"], 100) if mode not in ("sparse", "dense") else 100
        for other in galleries:  # the first search calibrates, which makes scores too
            other.search(images, **given, mode=mode, k=1)
        with record_scores() as recorded:
            results, *others = [g.search(images, **given, mode=mode, k=k) for g in galleries]
        n_hits += len(results)
        for hit in results:
            assert all(scores[rows[hit.path]] == hit.score for scores in recorded)
        assert results.mode == mode
        expected[mode in ("words", "hybrid")].check(results)
        for others_results in others:
            assert others_results.hits == results.hits
        page = gallery.search(images, **given, mode=mode, k=3, offset=2)
        assert page.hits == results.hits[2:5]
        for hit in results.hits[:2]:
            match = gallery.match(images, hit.path, **given, mode=mode)
            assert vars(match).items() <= vars(hit).items()
            assert match.parts == hit.parts
    return n_hits


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), drawn=st.lists(random_options, min_size=4, max_size=4))
def test_every_mode_agrees_with_the_reference_after_any_history(
    seed: int, drawn: list[Options]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "g"
        with Gallery.create(folder, vocabulary="toy") as gallery:
            gallery.name_words(dict(NAMES))
            sessions = islice(histories.random_sessions(seed, {}), 5)
            versions = chain.from_iterable(histories.run_session(folder, c) for c in sessions)
            for contents, options in zip(versions, cycle([PLAIN, *drawn]), strict=False):
                complete = make_options(contents, options)
                if complete is not None and contents:
                    with Gallery.open(folder) as compiled:
                        compiled.local.snapshot().searcher.build_index()
                        n_hits = check_search([gallery, compiled], contents, complete)
                    assert n_hits > 0 or options is not PLAIN


@pytest.mark.parametrize("mode", MODES)
def test_explanations_have_the_score_and_the_parts_of_their_hits(
    mode: Mode, gallery: Gallery, photos: Path
) -> None:
    image, other = photos / "3.png", photos / "5.png"
    word = common_word(gallery)
    steered: list[Options] = [
        {},
        {"must": word, "boost": {int(gallery.vocabulary.encode(image).bag.words[0]): -2.0}},
        {"negative": make_image(7), "like": photos / "8.png", "unlike": photos / "9.png"},
        {"region": (0, 0, 0.5, 1), "min_coverage": 0.05},
        {"candidates": 4, "k": 4},
    ]
    for images in (image, [image, other]):
        for options in steered:
            if images is not image and "region" in options:
                continue
            hits = gallery.search(images, mode=mode, **options).hits
            assert len(hits) > 2
            for hit in hits[:3]:
                match = hit.explain().match
                assert (match.score, match.parts) == (hit.score, hit.parts)
                assert sum(part.value for part in match.parts) == pytest.approx(
                    match.score, abs=1e-5
                )


@pytest.mark.parametrize("is_indexed", [False, True], ids=["scanned", "indexed"])
@given(
    must=st.lists(st.lists(words, min_size=1, max_size=3), max_size=2),
    without=st.lists(words, max_size=2),
    seed=st.integers(0, 9),
)
@settings(max_examples=20)
def test_filters_select_the_same_rows_with_and_without_an_index(
    is_indexed: bool, must: list[list[int]], without: list[int], seed: int
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        contents = histories.fill_gallery(Path(scratch) / "g", seed=seed)
        with Gallery.open(Path(scratch) / "g") as gallery:
            snapshot = gallery.local.snapshot()
            if is_indexed:
                snapshot.searcher.build_index()
            condition = Filter(must=tuple(map(tuple, must)), without=tuple(without))
            flags = snapshot.flag_rows(condition)
            rows = np.flatnonzero(flags).tolist()
            paths = gallery.local.catalog.paths_of(rows, snapshot.state.generation)
            bags = {path: histories.full_bag(number).words for path, number in contents.items()}
            expected = {p for p, b in bags.items() if all(np.isin(g, b).any() for g in must)}
            expected -= {p for p, b in bags.items() if np.isin(without, b).any()}
            assert set(paths) == expected


@pytest.fixture
def large_gallery(tmp_path: Path) -> Iterator[Gallery]:
    """A gallery with a random history of thirty commits."""
    histories.fill_gallery(tmp_path / "g", seed=3, commits=30)
    with Gallery.open(tmp_path / "g") as gallery:
        yield gallery


def common_word(gallery: Gallery) -> int:
    """Return the word that most images have."""
    return int(gallery.local.snapshot().searcher.statistics.df_v.argmax())


def test_few_candidates_are_the_best_images_by_words(large_gallery: Gallery) -> None:
    by_words = large_gallery.search(query_image(1), mode="sparse", k=5)
    ranks = {hit.path: hit.rank for hit in by_words}
    results = large_gallery.search(query_image(1), mode="two-stage", k=3, candidates=5)
    assert len(results) == 3
    assert {hit.path: hit.first_rank for hit in results}.items() <= ranks.items()


def test_there_are_at_least_as_many_candidates_as_hits(large_gallery: Gallery) -> None:
    for mode in ("words", "hybrid", "two-stage"):
        options: Any = {"mode": mode, "candidates": 2}
        assert large_gallery.search(query_image(1), k=2, **options).candidates == 2
        results = large_gallery.search(query_image(1), k=5, **options)
        assert (len(results), results.candidates) == (5, 5)


def test_the_first_hits_need_fewer_candidates(tmp_path: Path) -> None:
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        with Writer(gallery.path) as writer:
            for number in range(1_100):
                file = FileState(f"/photos/{number}.png", number.to_bytes(16, "big"), 1, 1)
                writer.put(file, histories.make_encoding(number))
            writer.commit()
        query = query_image(1)
        for mode in ("words", "hybrid"):
            first = gallery.search(query, mode=mode, k=10)
            assert first.candidates == gallery.search(query, mode=mode, k=5, offset=15).candidates
            assert first.candidates == 300
            assert first.hits == gallery.search(query, mode=mode, candidates=300).hits
            many = gallery.search(query, mode=mode, k=700)
            assert many.candidates == gallery.search(query, mode=mode, offset=11).candidates
            assert 900 < (many.candidates or 0) <= 1000, "some images share no word"
            assert many.hits == gallery.search(query, mode=mode, k=700, candidates=1000).hits
            late = next(hit for hit in many if (hit.first_rank or 0) > 300)
            explanation = gallery.explain(make_image(1), late, encoding=query, mode=mode)
            ranking = explanation.ranking
            assert ranking is not None, "it is a hit of a longer list"
            assert ranking.rank == late.rank


def test_full_bags_order_all_images_if_there_are_no_more_than_candidates(
    large_gallery: Gallery,
) -> None:
    n = len(large_gallery)
    for mode in ("words", "hybrid"):
        for candidates, is_staged in ((n - 1, True), (n, False), (None, False)):
            results = large_gallery.search(query_image(1), mode=mode, k=3, candidates=candidates)
            assert (results.candidates is not None) == is_staged
            assert len(results) == 3
            assert all((hit.first_rank is not None) == is_staged for hit in results)
        filtered = large_gallery.search(query_image(1), mode=mode, candidates=9, folder="*0-a.png")
        assert filtered.candidates is None


def test_the_default_mode_depends_on_the_query(large_gallery: Gallery) -> None:
    word, image = common_word(large_gallery), query_image(1)
    without_patches = image._replace(patches_pd=None)
    corner = (0, 0, 0.5, 0.5)

    def mode_of(*images: Encoding, **options: Any) -> str:
        return large_gallery.search(images, **options).mode

    assert mode_of(image) == "hybrid"
    assert mode_of(image, must=[word]) == "hybrid"
    assert mode_of(image, query_image(2), negative=query_image(3)) == "hybrid"
    assert mode_of(image, region=corner) == "hybrid"
    assert mode_of(without_patches, region=corner) == "words"
    assert mode_of(image, boost={word: 2}) == "hybrid"
    assert mode_of(must=[word]) == "words"
    assert large_gallery.search(must=[word])[0].dense is None
    with pytest.raises(InvalidOption, match="no dense vector; use mode 'words' or 'sparse'"):
        large_gallery.search(must=[word], mode="two-stage")
    with pytest.raises(InvalidOption, match="'dense': toy has dense vectors of whole images, not"):
        large_gallery.search(without_patches, region=corner, mode="dense")


def test_the_dense_vector_of_a_region_is_pooled_from_its_patches(large_gallery: Gallery) -> None:
    """The toy backbone adds 0.001 to the mean of the patches."""
    encoding = query_image(4)
    assert encoding.patches_pd is not None
    left_p = np.arange(49) % 7 < 3
    region = encode(large_gallery, encoding, region=(0, 0, 3 / 7, 1))
    mean_d = encoding.patches_pd[left_p].mean(axis=0) + 1e-3
    assert region.dense_e is not None
    np.testing.assert_allclose(region.dense_e, mean_d, rtol=1e-4, atol=1e-6)
    whole = encode(large_gallery, encoding)
    assert whole.dense_e is not None
    assert whole.dense_e.tolist() == encoding.dense_e.tolist()


def test_a_region_takes_one_forward_pass(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[object] = []
    encode = Vocabulary.encode

    def encode_and_count(self: Vocabulary, source: ImageInput) -> Encoding:
        encoded.append(source)
        return encode(self, source)

    monkeypatch.setattr(Vocabulary, "encode", encode_and_count)
    corner = gallery.search(photos / "3.png", region=(0, 0, 32, 32), k=12)
    assert len(encoded) == 1
    assert len(corner) > 2
    assert corner.query != gallery.search(photos / "3.png", k=12).query
    for same_region in ((0, 0, 0.5, 0.5), np.pad(np.ones((32, 32)), (0, 32))):
        results = gallery.search(photos / "3.png", region=same_region, k=12)
        assert [(h.path, h.sparse) for h in results] == [(h.path, h.sparse) for h in corner]
    pixels = np.asarray(make_image(3))
    hits = gallery.search(pixels, region=(0, 0, 32, 32), k=12)
    others = [(h.path, h.sparse) for h in hits if h.path != str(photos / "3.png")]
    assert others == [(h.path, h.sparse) for h in corner]


@pytest.mark.parametrize("region", [None, (0, 0, 0.5, 1)])
def test_a_query_may_have_more_words_than_the_gallery_stores(
    large_gallery: Gallery, region: tuple[float, ...] | None
) -> None:
    encoding = query_image(4)
    query = encode(large_gallery, encoding, region=region, query_words=40)
    bag = pool_codes(query.codes[0], k_post=40)
    assert len(bag.words) > 16
    assert query.words.words.tolist() == bag.words.tolist()
    assert query.words.weights == pytest.approx(np.sqrt(bag.tf / bag.tf.max()))
    default = encode(large_gallery, encoding, region=region, mode="sparse")
    assert set(default.words.words.tolist()) < set(bag.words.tolist())
    hits = large_gallery.search(encoding, region=region, query_words=40, mode="sparse")
    assert len(hits) > 2
    for hit in hits:
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)


def test_feedback_raises_liked_and_lowers_unliked_hits(large_gallery: Gallery) -> None:
    before = large_gallery.search(query_image(5), mode="sparse", k=40)
    liked, unliked = before[6].path, before[1].path
    after = large_gallery.search(
        query_image(5), like=liked, unlike=[unliked], mode="sparse", k=40, include_query=True
    )

    def rank(results: Results, path: str) -> int:
        return next((hit.rank for hit in results if hit.path == path), 1000)

    assert rank(after, liked) < rank(before, liked)
    assert rank(after, unliked) > rank(before, unliked)
    assert {word.weight for word in after.query} > {1.0}


def test_words_may_be_given_by_name(large_gallery: Gallery) -> None:
    word = common_word(large_gallery)
    large_gallery.name_words({word: "striped ear"})
    by_name = large_gallery.search(must=["Striped Ear"])
    for same_word in (word, str(word), [word], "striped ear"):
        assert large_gallery.search(must=same_word).hits == by_name.hits
    assert by_name[0].words[0].label == by_name.query[0].label == "striped ear"
    with pytest.raises(InvalidOption, match="no word is named 'zebra'"):
        large_gallery.search(must=["zebra"])


def test_contradictory_queries_are_refused(large_gallery: Gallery) -> None:
    """Only what depends on the gallery; `Query` checks the rest."""
    image = query_image(1)
    for message, options in (
        ("no word 192: this vocabulary has words 0 to 191", {"must": [192]}),
        ("no word -1", {"must": [-1]}),
        ("is both required \\(must\\)", {"must": [3], "without": [3]}),
        ("word 3 is boosted twice", {"boost": {3: 2.0, "3": 1.0}}),
        ("pixels of an encoded image: give fractions", {"region": (0, 0, 20, 20)}),
    ):
        with pytest.raises(InvalidOption, match=message):
            large_gallery.search(image, **options)
    with pytest.raises(ImageNotFound, match=r"elsewhere.png is not in .*: index it first"):
        large_gallery.search(image, like="elsewhere.png")


def test_feedback_on_a_removed_image_raises_an_error(gallery: Gallery, photos: Path) -> None:
    encoding = gallery.vocabulary.encode(photos / "1.png")
    gallery.remove(photos / "3.png")
    for call in (
        lambda: gallery.search(encoding, unlike=photos / "3.png"),
        lambda: gallery.match(encoding, photos / "3.png"),
    ):
        with pytest.raises(ImageNotFound, match=r"3.png is not in the gallery: index it first"):
            call()


def test_an_error_names_the_query_image_that_cannot_be_read(gallery: Gallery, photos: Path) -> None:
    image, letter = photos / "1.png", photos / "letter.txt"
    letter.write_text("Dear Sir or Madam")
    for options in ({"negative": letter}, {"negative": [image, letter]}):
        with pytest.raises(ImageError, match=r"letter.txt: is not an image"):
            gallery.search(image, **options)
    with pytest.raises(ImageError, match=r"letter.txt: is not an image"):
        gallery.search([image, letter])
    with pytest.raises(ImageError, match=r"gone.png: does not exist"):
        gallery.search(photos / "gone.png", region=(0, 0, 9, 9))


def unused_word(gallery: Gallery, number: int = 0) -> int:
    """Return a word that no image has."""
    df_v = gallery.local.snapshot().full_statistics.df_v
    return int(np.flatnonzero(df_v == 0)[number])


@pytest.fixture
def small_gallery(tmp_path: Path) -> Iterator[Gallery]:
    """A gallery of a few images, so that most words are in none."""
    histories.fill_gallery(tmp_path / "few", seed=1, commits=2)
    with Gallery.open(tmp_path / "few") as gallery:
        yield gallery


def encoding_with_words(*words: int) -> Encoding:
    bag = Bag(np.array(sorted(words), np.int32), np.full(len(words), 100, np.uint16))
    return histories.make_encoding(0)._replace(bag=bag, full_bag=expand_bag(bag))


def test_results_without_hits_give_the_reason(small_gallery: Gallery, tmp_path: Path) -> None:
    gallery = small_gallery
    common, unused = common_word(gallery), unused_word(gallery)
    unrelated = encoding_with_words(unused, unused_word(gallery, 1))

    def reason(image: Encoding | None = None, **options: Any) -> str | None:
        return gallery.search(image, **options).no_match

    assert reason(unrelated, mode="words") == "0 of 2 words shared with any image"
    assert reason(unrelated, without=[common], k=1, mode="words") == (
        f"0 of 2 words shared with any image that does not have word {common}"
    )
    assert reason(must=[unused]) == f"no image has word {unused}"
    no_words = "the query has no words: the image has none, or all are muted"
    assert reason(encoding_with_words(), mode="sparse") == no_words
    assert reason(encoding_with_words(common), boost={common: -1.0}, mode="sparse") == no_words
    with Gallery.create(tmp_path / "empty", vocabulary="toy") as empty:
        assert empty.search(unrelated).no_match == "the gallery has no images"


def test_the_reason_names_the_image_with_the_best_coverage(small_gallery: Gallery) -> None:
    query = encoding_with_words(common_word(small_gallery), unused_word(small_gallery))
    best = max(small_gallery.search(query), key=lambda hit: hit.coverage)
    assert 0 < best.coverage < 0.6
    reason = small_gallery.search(query, min_coverage=0.9).no_match or ""
    assert reason.startswith(
        f"no image reaches a coverage of 0.9 (the best has {best.coverage:.2f}: /photos/"
    )
    path = reason.removesuffix(")").rpartition(": ")[2]
    assert small_gallery.match(query, path).coverage == best.coverage
    assert small_gallery.search(query, min_coverage=best.coverage).hits


def test_the_reason_names_required_words_that_no_image_has_together(large_gallery: Gallery) -> None:
    snapshot = large_gallery.local.snapshot()
    used_words = np.flatnonzero(snapshot.full_statistics.df_v).tolist()
    pairs = combinations(used_words, 2)
    first, second = next(
        (one, other)
        for one, other in pairs
        if not snapshot.flag_rows(Filter(must=((one,), (other,)))).any()
    )
    results = large_gallery.search(must=[first, second])
    assert results.no_match == f"no image has word {first} and word {second}"


def test_an_image_with_a_score_below_zero_is_not_a_hit(large_gallery: Gallery) -> None:
    word = common_word(large_gallery)
    hits = large_gallery.search(must=[word], k=100)
    bags = [histories.full_bag(histories.image_number(hit.path)) for hit in hits]
    other_words = {other for bag in bags for other in bag.words.tolist()} - {word}
    results = large_gallery.search(must=[word], boost=dict.fromkeys(other_words, -100.0))
    assert (
        results.no_match
        == "in every image, the words that count against it outweigh those that count for it"
    )


def test_notes_name_word_options_without_effect(small_gallery: Gallery) -> None:
    first, second = unused_word(small_gallery), unused_word(small_gallery, 1)
    results = small_gallery.search(
        encoding_with_words(common_word(small_gallery)), without=[first], boost={second: 2.0}
    )
    assert results.notes == (
        f"no image has word {first}: excluding it changes nothing",
        f"no image has word {second}: boosting it changes nothing",
    )
    assert results.hits


def test_copies_of_a_file_are_one_hit(tmp_path: Path) -> None:
    for seed in range(6):
        for copy in range(1 + seed % 3):
            make_image(seed, side=64).save(tmp_path / f"{seed}-{copy}.png")
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(tmp_path)
        assert len(gallery) == 12
        query = make_image(100, side=64)
        assert len(gallery.search(query, k=20)) == 12
        results = gallery.search(query, k=20, merge_copies=True)
        groups = [sorted(map(os.path.basename, (hit.path, *hit.copies))) for hit in results]
        assert sorted(groups) == [
            [f"{seed}-{copy}.png" for copy in range(1 + seed % 3)] for seed in range(6)
        ]
        assert [hit.rank for hit in results] == [1, 2, 3, 4, 5, 6]
        pages = [
            hit.path
            for at in range(0, 6, 2)
            for hit in gallery.search(query, k=2, offset=at, merge_copies=True)
        ]
        assert pages == [hit.path for hit in results]
        for mode in MODES:
            same = gallery.search(query, k=3, mode=mode, merge_copies=True)
            assert len(same) == 3
            assert same.hits == gallery.search(query, k=20, mode=mode, merge_copies=True).hits[:3]
        for hit in results:
            for path in (hit.path, *hit.copies):
                ranking = gallery.explain(query, path, merge_copies=True).ranking
                assert ranking is not None
                assert ranking.rank == hit.rank
