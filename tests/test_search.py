"""Whatever is asked for, and whatever happened to the gallery: the parts make up the score."""

import tempfile
from collections.abc import Iterator
from functools import cache
from itertools import combinations, islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bm25v.api import Gallery
from bm25v.errors import ImageError, WrongUse
from bm25v.index import bm25 as reference
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search import Hit, Mode, Results
from bm25v.search.filters import flag_words
from bm25v.vocabulary import Encoding, ImageInput, Vocabulary
from bm25v.vocabulary.bag import Bag, pool_codes
from tests import histories
from tests.conftest import encode, make_image
from tests.histories import Contents

MODES: tuple[Mode, ...] = get_args(Mode)
NAMES = {word: f"thing{word}" for word in range(192)}
Asked = dict[str, Any]


@cache
def asking(number: int) -> Encoding:
    """A picture to ask with: its words are those of the pictures, spread over patches."""
    rng = np.random.default_rng(1000 + number)
    known = np.concatenate([histories.make_encoding((number + i) % 40).bag.words for i in range(3)])
    words_pk = rng.choice(known, (49, 3))
    codes = Codes(words_pk.astype(np.int32), rng.random((49, 3)).astype(np.float32))
    patches_pd = rng.normal(size=(49, 12)).astype(np.float32)
    return Encoding(pool_codes(codes, k_post=16), patches_pd.mean(axis=0), codes, patches_pd)


def region_bag(encoding: Encoding, box: tuple[float, float, float, float]) -> dict[int, float]:
    """Pool a box's patches the slow way; the toy's grid is 7 by 7."""
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
    return {word: round(100 * sums[word]) / 100 for word in best if round(100 * sums[word])}


def expected_weights(
    asked: Asked, pictures: list[set[int]], stored: dict[str, set[int]]
) -> dict[int, float]:
    """What each word counts, as the documentation has it."""
    liked = [stored[path] for path in asked["like"]]
    against = [set(one.bag.words.tolist()) for one in asked["negative"]]
    against += [stored[path] for path in asked["unlike"]]
    counts = dict[int, float]()
    kinds: list[tuple[float, list[set[int]]]] = [(1.0, pictures), (0.75, liked), (-0.5, against)]
    for share, sets in kinds:
        for words in sets:
            for word in words:
                counts[word] = counts.get(word, 0) + share / len(sets)
    for word in (*asked["must"], *asked["boost"]):
        counts.setdefault(word, 1.0)
    for word, factor in asked["boost"].items():
        counts[word] *= factor
    return {w: c for w, c in counts.items() if abs(c) > 1e-12 and w not in asked["without"]}


def idf(df: int, n: int) -> float:
    return float(np.log(1 + (n - df + 0.5) / (df + 0.5)))


class Expected:
    """The answers of the plain formula over the pictures that a gallery should hold."""

    def __init__(self, contents: Contents, asked: Asked, pictures: list[set[int]]) -> None:
        self.bags = {path: histories.make_encoding(number).bag for path, number in contents.items()}
        self.sets = {path: set(bag.words.tolist()) for path, bag in self.bags.items()}
        self.n = len(self.bags)
        self.weights = expected_weights(asked, pictures, self.sets)
        words = np.array(sorted(self.weights), dtype=np.int32)
        weights = np.array([self.weights[word] for word in words.tolist()])
        query = WeightedWords(words, weights, np.ones(len(words)))
        scores = reference.reference_scores(list(self.bags.values()), query)
        self.scores = dict(zip(self.bags, scores, strict=True))
        self.allowed = {
            path
            for path, has in self.sets.items()
            if set(asked["must"]) <= has and not set(asked["without"]) & has
        }

    def worth(self, word: int) -> float:
        df = sum(word in has for has in self.sets.values())
        return self.weights[word] * idf(df, self.n)

    def coverage(self, path: str) -> float:
        worths = {word: self.worth(word) for word, w in self.weights.items() if w > 0}
        whole = sum(worths.values())
        return sum(v for w, v in worths.items() if w in self.sets[path]) / whole if whole else 0.0

    def found(self, min_coverage: float) -> set[str]:
        return {path for path in self.allowed if self.coverage(path) >= min_coverage - 1e-9}

    def check(self, results: Results, found: set[str]) -> None:
        assert {hit.path for hit in results} == found
        for hit in results:
            self.check_parts(hit)
        scores = [hit.score for hit in results]
        assert scores == sorted(scores, reverse=True)
        assert [hit.rank for hit in results] == list(range(1, len(results) + 1))
        assert {word.word: pytest.approx(word.weight) for word in results.query} == self.weights

    def check_parts(self, hit: Hit) -> None:
        bag = self.bags[hit.path]
        lengths = [float(one.frequencies.sum()) for one in self.bags.values()]
        assert hit.length == pytest.approx(float(bag.frequencies.sum()))
        assert hit.average_length == pytest.approx(sum(lengths) / self.n)
        assert hit.pictures == self.n
        assert hit.coverage == pytest.approx(self.coverage(hit.path), abs=1e-9)
        assert hit.sparse == pytest.approx(self.scores[hit.path] or 0.0, abs=1e-5)
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)
        tf = dict(zip(bag.words.tolist(), bag.frequencies.tolist(), strict=True))
        assert {word.word for word in hit.words} == set(tf) & set(self.weights)
        norm = 1.5 * (0.25 + 0.75 * hit.length / hit.average_length)
        for word in hit.words:
            assert word.df == sum(word.word in has for has in self.sets.values())
            assert word.idf == pytest.approx(idf(word.df, hit.pictures))
            assert word.tf == tf[word.word]
            assert word.weight == pytest.approx(self.weights[word.word])
            assert word.saturation == pytest.approx(word.tf * 2.5 / (word.tf + norm))
            product = word.weight * word.idf * word.saturation
            assert word.contribution == pytest.approx(product, abs=1e-9)


words = st.integers(0, 191)
boxes = st.tuples(st.floats(0, 0.7), st.floats(0, 0.7), st.floats(0.05, 0.3), st.floats(0.05, 0.3))
wishes = st.fixed_dictionaries(
    {
        "pictures": st.lists(st.integers(0, 9), max_size=3),
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
    }
)


def put_to(contents: Contents, wish: Asked) -> Asked | None:
    """Make a wish about the pictures there are; None if it makes no sense there."""
    paths = sorted(contents)
    here = {key: [paths[n % len(paths)] for n in wish[key]] for key in ("like", "unlike") if paths}
    asked = {**wish, "like": [], "unlike": [], **here}
    asked["pictures"] = [asking(number) for number in wish["pictures"]]
    asked["negative"] = [asking(number) for number in wish["negative"]]
    asked["without"] = [w for w in wish["without"] if w not in wish["must"]]
    asked["boost"] = {w: f for w, f in wish["boost"].items() if w not in asked["without"]}
    if len(asked["pictures"]) != 1:
        asked["region"] = None
    asked["text"] = " and ".join(NAMES[word] for word in wish["text"]) or None
    kinds = ("pictures", "like", "must", "boost", "text")
    return asked if any(asked[kind] for kind in kinds) else None


def check_wish(gallery: Gallery, contents: Contents, asked: Asked) -> None:
    given = dict(asked)
    pictures, least = given.pop("pictures"), given.pop("min_coverage")
    sets = [set(one.bag.words.tolist()) for one in pictures]
    if asked["region"] is not None:
        sets = [set(region_bag(pictures[0], asked["region"]))]
    if asked["text"]:
        sets.append({word for word, name in NAMES.items() if name in asked["text"].split()})
    expected = Expected(contents, asked, sets)
    by_words = {p for p in expected.found(least) if (expected.scores[p] or 0) > 0}
    has_dense = (pictures or asked["like"]) and not asked["text"]
    for mode in MODES if has_dense else ("sparse",):
        results = gallery.search(
            pictures, **given, min_coverage=least, mode=mode, k=100, candidates=1000
        )
        assert results.mode == mode
        expected.check(results, expected.found(least) if mode == "dense" else by_words)
        check_ranks(results)
        assert (results.no_match is None) == bool(results.hits)


def check_ranks(results: Results) -> None:
    """The stages: who was where by words alone, and what the score is made of."""
    if results.mode == "dense":
        assert all(hit.first_rank is None for hit in results)
        return
    by_words = sorted(results, key=lambda hit: hit.first_rank or 0)
    assert [hit.first_rank for hit in by_words] == list(range(1, len(results) + 1))
    sparse = [hit.sparse for hit in by_words]
    assert sparse == pytest.approx(sorted(sparse, reverse=True), abs=1e-9)
    for hit in results:
        if results.mode == "sparse":
            assert hit.first_rank == hit.rank
            assert hit.score == pytest.approx(hit.sparse, abs=1e-5)
        elif results.mode == "two-stage":
            assert hit.score == hit.dense
        else:
            assert hit.dense is not None
            assert results.sparse_factor is not None
            assert hit.score == pytest.approx(hit.dense + results.sparse_factor * hit.sparse)


@settings(max_examples=25)
@given(seed=st.integers(0, 10_000), asked=st.lists(wishes, min_size=4, max_size=4))
def test_parts_make_up_the_score_in_every_mode_and_after_any_history(
    seed: int, asked: list[Asked]
) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "g"
        with Gallery.create(folder, vocabulary="toy") as gallery:
            gallery.name_words(dict(NAMES))
            sessions = islice(histories.random_sessions(seed, {}), 6)
            for number, contents in enumerate(states(folder, sessions)):
                if number == 2:
                    gallery.store.snapshot().searcher.build_index()
                wish = put_to(contents, asked[number % len(asked)])
                if wish is not None and contents:
                    check_wish(gallery, contents, wish)


def states(folder: Path, sessions: Iterator[list[Contents]]) -> Iterator[Contents]:
    for commits in sessions:
        yield from histories.run_session(folder, commits)


@pytest.mark.parametrize("built", [False, True], ids=["scanned", "indexed"])
@given(
    must=st.lists(words, max_size=2), without=st.lists(words, max_size=2), seed=st.integers(0, 9)
)
@settings(max_examples=20)
def test_filters_choose_the_same_rows_with_and_without_an_index(
    built: bool, must: list[int], without: list[int], seed: int
) -> None:
    without = [word for word in without if word not in must]
    with tempfile.TemporaryDirectory() as scratch:
        contents = histories.fill_gallery(Path(scratch) / "g", seed=seed)
        with Gallery.open(Path(scratch) / "g") as gallery:
            snapshot = gallery.store.snapshot()
            if built:
                snapshot.searcher.build_index()
            flags = flag_words(snapshot.searcher, tuple(set(must)), tuple(set(without)))
            rows = np.flatnonzero(flags).tolist()
            found = gallery.store.catalog.paths_of(rows, snapshot.state.generation)
            bags = {
                path: histories.make_encoding(number).bag.words for path, number in contents.items()
            }
            fitting = {p for p, b in bags.items() if np.isin(must, b).all()}
            fitting -= {p for p, b in bags.items() if np.isin(without, b).any()}
            assert set(found or []) == fitting


@pytest.fixture
def stocked(tmp_path: Path) -> Iterator[Gallery]:
    """A gallery with forty pictures of a random history."""
    histories.fill_gallery(tmp_path / "g", seed=3, commits=30)
    with Gallery.open(tmp_path / "g") as gallery:
        yield gallery


def common_word(gallery: Gallery) -> int:
    return int(gallery.store.snapshot().searcher.statistics.df_v.argmax())


def test_few_candidates_are_the_best_by_words(stocked: Gallery) -> None:
    by_words = stocked.search(asking(1), mode="sparse", k=5)
    for mode in ("two-stage", "hybrid"):
        found = stocked.search(asking(1), mode=mode, k=3, candidates=5)
        assert {hit.path for hit in found} <= {hit.path for hit in by_words}
        ranks = {hit.path: hit.rank for hit in by_words}
        assert {hit.path: hit.first_rank for hit in found}.items() <= ranks.items()


def test_the_usual_mode_depends_on_what_is_asked_for(stocked: Gallery) -> None:
    word = common_word(stocked)
    bare = asking(1)._replace(patches_pd=None)
    assert stocked.search(asking(1)).mode == "two-stage"
    assert stocked.search(asking(1), must=[word]).mode == "two-stage"
    assert stocked.search([asking(1), asking(2)], negative=asking(3)).mode == "two-stage"
    assert stocked.search(asking(1), region=(0, 0, 0.5, 0.5)).mode == "two-stage"
    assert stocked.search(bare, region=(0, 0, 0.5, 0.5)).mode == "sparse"
    assert stocked.search(asking(1), boost={word: 2}).mode == "sparse"
    assert stocked.search(must=[word]).mode == "sparse"
    assert stocked.search(must=[word])[0].dense is None
    with pytest.raises(WrongUse, match="'two-stage': words have no dense vector; use mode 'spa"):
        stocked.search(must=[word], mode="two-stage")
    with pytest.raises(WrongUse, match="'dense': toy has dense vectors of whole images, not"):
        stocked.search(bare, region=(0, 0, 0.5, 0.5), mode="dense")


def test_the_dense_vector_of_a_region_is_that_of_its_patches(stocked: Gallery) -> None:
    """Of the toy, that is their mean and a little."""
    encoding = asking(4)
    assert encoding.patches_pd is not None
    left_p = np.arange(49) % 7 < 3
    wish = encode(stocked, encoding, region=(0, 0, 3 / 7, 1))
    mean_d = encoding.patches_pd[left_p].mean(axis=0) + 1e-3
    assert wish.dense_e is not None
    np.testing.assert_allclose(wish.dense_e, mean_d, rtol=1e-4, atol=1e-6)
    whole = encode(stocked, encoding)
    assert whole.dense_e is not None
    assert whole.dense_e.tolist() == encoding.dense_e.tolist()


def test_a_region_takes_one_forward_pass(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[object] = []
    encode = Vocabulary.encode

    def counted(self: Vocabulary, source: ImageInput) -> Encoding:
        passes.append(source)
        return encode(self, source)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    corner = gallery.search(photos / "3.png", region=(0, 0, 32, 32), k=12)
    assert len(passes) == 1
    assert corner.query != gallery.search(photos / "3.png", k=12).query
    for same in ((0, 0, 0.5, 0.5), np.pad(np.ones((32, 32)), (0, 32))):
        found = gallery.search(photos / "3.png", region=same, k=12)
        assert [(h.path, h.sparse) for h in found] == [(h.path, h.sparse) for h in corner]
    pixels = np.asarray(make_image(3))
    assert gallery.search(pixels, region=(0, 0, 32, 32), k=12).hits == corner.hits


@pytest.mark.parametrize("region", [None, (0, 0, 0.5, 1)])
def test_more_words_of_a_picture_can_be_asked_for(
    stocked: Gallery, region: tuple[float, ...] | None
) -> None:
    encoding = asking(4)
    wish = encode(stocked, encoding, region=region, query_words=40)
    wide = pool_codes(wish.codes[0], k_post=40)
    assert len(wide.words) > 16
    assert wish.words.words.tolist() == wide.words.tolist()
    assert wish.words.weights == pytest.approx(np.sqrt(wide.tf / wide.tf.max()))
    usual = encode(stocked, encoding, region=region)
    assert set(usual.words.words.tolist()) < set(wide.words.tolist())
    for hit in stocked.search(encoding, region=region, query_words=40, mode="sparse"):
        assert sum(word.contribution for word in hit.words) == pytest.approx(hit.sparse, abs=1e-5)
    with pytest.raises(WrongUse, match="query_words = 0: give at least 1"):
        encode(stocked, encoding, query_words=0)


def test_feedback_lifts_what_is_liked_and_lowers_what_is_not(stocked: Gallery) -> None:
    before = stocked.search(asking(5), mode="sparse", k=40)
    good, bad = before[6].path, before[1].path
    after = stocked.search(asking(5), like=good, unlike=[bad], mode="sparse", k=40)

    def rank(results: Results, path: str) -> int:
        return next((hit.rank for hit in results if hit.path == path), 1000)

    assert rank(after, good) < rank(before, good)
    assert rank(after, bad) > rank(before, bad)
    assert {word.weight for word in after.query} > {1.0}


def test_words_are_found_by_their_names(stocked: Gallery) -> None:
    word = common_word(stocked)
    stocked.name_words({word: "striped ear"})
    by_name = stocked.search(must=["Striped Ear"])
    assert by_name.hits == stocked.search(must=[word]).hits == stocked.search(must=[str(word)]).hits
    assert by_name[0].words[0].label == by_name.query[0].label == "striped ear"
    with pytest.raises(WrongUse, match="no word is named 'zebra'"):
        stocked.search(must=["zebra"])


def test_wishes_that_make_no_sense_are_refused(stocked: Gallery) -> None:
    for message, asked in (
        ("an empty query", {}),
        ("an empty query", {"without": [3]}),
        ("an empty query", {"negative": [asking(2)]}),
        ("no word 192: this vocabulary has words 0 to 191", {"must": [192]}),
        ("no word -1", {"must": [-1]}),
        ("is both required \\(must\\)", {"must": [3], "without": [3]}),
        ("word 3 is boosted twice", {"boost": {3: 2.0, "3": 1.0}}),
        ("a region with 0 images", {"must": [3], "region": (0, 0, 1, 1)}),
        ("min_coverage = 1.5", {"must": [3], "min_coverage": 1.5}),
        ("'fast': choose one of two-stage, sparse, dense, hybrid", {"must": [3], "mode": "fast"}),
    ):
        with pytest.raises(WrongUse, match=message):
            stocked.search(**asked)
    with pytest.raises(WrongUse, match="a region with 2 images"):
        stocked.search([asking(1), asking(2)], region=(0, 0, 1, 1))
    with pytest.raises(WrongUse, match="pixels of an encoded image: give fractions"):
        stocked.search(asking(1), region=(0, 0, 20, 20))
    with pytest.raises(WrongUse, match=r"elsewhere.png is not in .*: index it first"):
        stocked.search(asking(1), like="elsewhere.png")


def test_a_hit_since_removed_is_named(gallery: Gallery, photos: Path) -> None:
    encoding = gallery.vocabulary.encode(photos / "1.png")
    gallery.remove(photos / "3.png")
    for call in (
        lambda: gallery.search(encoding, unlike=photos / "3.png"),
        lambda: gallery.match(encoding, photos / "3.png"),
    ):
        with pytest.raises(WrongUse, match=r"3.png is not in .*: it was removed; index it again"):
            call()


def test_one_bad_picture_of_several_is_named(gallery: Gallery, photos: Path) -> None:
    good, bad = photos / "1.png", photos / "letter.txt"
    bad.write_text("Dear Sir or Madam")
    for asked in ({"negative": bad}, {"negative": [good, bad]}):
        with pytest.raises(ImageError, match=r"letter.txt: is not an image"):
            gallery.search(good, **asked)
    with pytest.raises(ImageError, match=r"letter.txt: is not an image"):
        gallery.search([good, bad])
    with pytest.raises(ImageError, match=r"gone.png: does not exist"):
        gallery.search(photos / "gone.png", region=(0, 0, 9, 9))


def silent(gallery: Gallery, number: int = 0) -> int:
    df_v = gallery.store.snapshot().searcher.statistics.df_v
    return int(np.flatnonzero(df_v == 0)[number])


@pytest.fixture
def sparse_gallery(tmp_path: Path) -> Iterator[Gallery]:
    """A few pictures only, so that most words are in none."""
    histories.fill_gallery(tmp_path / "few", seed=1, commits=2)
    with Gallery.open(tmp_path / "few") as gallery:
        yield gallery


def of_words(*words: int) -> Encoding:
    bag = Bag(np.array(sorted(words), np.int32), np.full(len(words), 100, np.uint16))
    return histories.make_encoding(0)._replace(bag=bag)


def test_an_empty_answer_says_why(sparse_gallery: Gallery, tmp_path: Path) -> None:
    gallery = sparse_gallery
    common, no_one = common_word(gallery), silent(gallery)
    unknown = of_words(no_one, silent(gallery, 1))

    def reason(encoding: Encoding | list[Encoding], **asked: Any) -> str | None:
        return gallery.search(encoding, **asked).no_match

    assert reason(unknown) == "0 of 2 words shared with any image"
    assert reason(unknown, without=[common], k=1) == (
        f"0 of 2 words shared with any image that does not have word {common}"
    )
    assert reason([], must=[no_one]) == f"no image has word {no_one}"
    assert reason(of_words(), mode="sparse") == (
        "the query has no words: the image has none, or all are muted"
    )
    mixed = of_words(common, no_one)
    best = gallery.search(mixed)[0]
    assert 0 < best.coverage < 0.6
    said = reason(mixed, min_coverage=0.9) or ""
    assert said.startswith(
        f"no image reaches a coverage of 0.9 (the best has {best.coverage:.2f}: /photos/"
    )
    nearest = said.removesuffix(")").rpartition(": ")[2]
    assert gallery.match(mixed, nearest).coverage == best.coverage
    assert gallery.search(mixed, min_coverage=best.coverage).hits
    against = gallery.search(of_words(common), boost={common: -1.0}, mode="sparse")
    assert against.no_match == "the query has no words: the image has none, or all are muted"
    with Gallery.create(tmp_path / "empty", vocabulary="toy") as empty:
        assert empty.search(unknown).no_match == "the gallery has no images"


def test_words_that_exclude_each_other_are_named(stocked: Gallery) -> None:
    statistics = stocked.store.snapshot().searcher.statistics
    known = np.flatnonzero(statistics.df_v).tolist()
    strangers = (
        pair
        for pair in combinations(known, 2)
        if not flag_words(stocked.store.snapshot().searcher, pair, ()).any()
    )
    one, other = next(strangers)
    found = stocked.search(must=[one, other])
    assert found.no_match == f"no image has word {one} and word {other}"


def test_what_speaks_against_can_outweigh_the_rest(stocked: Gallery) -> None:
    word = common_word(stocked)
    has_word = stocked.search(must=[word], k=100)
    bags = [histories.make_encoding(histories.image_number(hit.path)).bag for hit in has_word]
    others = {other for bag in bags for other in bag.words.tolist()} - {word}
    found = stocked.search(must=[word], boost=dict.fromkeys(others, -100.0))
    assert (
        found.no_match
        == "in every image, the words that count against it outweigh those that count for it"
    )


def test_steering_in_vain_is_noted(sparse_gallery: Gallery) -> None:
    first, second = silent(sparse_gallery), silent(sparse_gallery, 1)
    results = sparse_gallery.search(
        of_words(common_word(sparse_gallery)), without=[first], boost={second: 2.0}
    )
    assert results.notes == (
        f"no image has word {first}: excluding it changes nothing",
        f"no image has word {second}: boosting it changes nothing",
    )
    assert results.hits
