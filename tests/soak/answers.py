"""The hits that a search of a version must return, by the plain formula; random queries."""

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import DEFAULT_PARAMETERS, WeightedWords
from bm25v.index.second_stage import cosines
from bm25v.search import Query
from bm25v.search.combine import apply_word_options
from bm25v.search.encode import FIRST_WORDS
from bm25v.search.query import QueryOptions
from bm25v.search.results import Results
from bm25v.search.scoring import MODES
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import dequantise
from tests.soak.history import (
    N_WORDS,
    Images,
    Version,
    make_encoding,
)

_FULL_BAG_MODES = ("hybrid", "words")
_ROUNDING = 1e-9  # of a coverage
_COSINE_TOLERANCE = 1e-5  # against double precision

Floats = NDArray[np.float64]


class Answer(NamedTuple):
    """What a search returns, in columns: everything that depends on the gallery's contents."""

    n_images: int
    df: dict[int, int]  # of the query's words
    rows: NDArray[np.int64]
    values: list[tuple[float, ...]]  # of each hit: score, BM25 score, cosine, first rank


class _Bags(NamedTuple):
    """Bags of one kind, one row per image: term frequencies of all words, and stored lengths."""

    frequencies_nv: Floats
    lengths: NDArray[np.int64]

    @classmethod
    def of(cls, tf_nv: NDArray[np.uint16]) -> "_Bags":
        return cls(dequantise(tf_nv), tf_nv.sum(axis=1, dtype=np.int64))

    def select(self, numbers: NDArray[np.int64]) -> "_Bags":
        return _Bags(self.frequencies_nv[numbers], self.lengths[numbers])

    def have(self, words: Sequence[int]) -> NDArray[np.bool_]:
        return np.asarray(self.frequencies_nv[:, words] > 0)

    def df(self, words: NDArray[np.int32]) -> list[int]:
        counts: list[int] = np.count_nonzero(self.frequencies_nv[:, words], axis=0).tolist()
        return counts

    def idf(self, words: NDArray[np.int32]) -> Floats:
        n = len(self.lengths)
        return np.array([float(np.log(1 + (n - df + 0.5) / (df + 0.5))) for df in self.df(words)])

    def masses(self, words: WeightedWords) -> Floats:
        """Return weight · idf of each word, 0 where that is negative."""
        return np.maximum(words.weights * self.idf(words.words), 0)

    def score(self, words: WeightedWords) -> Floats:
        """Return each image's BM25 score, added in the order of `reference_scores`."""
        k1, b, n = DEFAULT_PARAMETERS.k1, DEFAULT_PARAMETERS.b, len(self.lengths)
        average = float(self.lengths.sum()) / 100 / max(n, 1) or 1.0
        norms_n = k1 * (1 - b + b * (self.lengths / 100) / average)
        scores_n = np.zeros(n)
        columns = (words.words, words.weights, self.idf(words.words))
        for word, weight, idf in zip(*(column.tolist() for column in columns), strict=True):
            tf_n = self.frequencies_nv[:, word]
            scores_n += weight * idf * (tf_n * (k1 + 1) / (tf_n + norms_n))
        return scores_n

    def covers(self, words: WeightedWords, min_coverage: float) -> NDArray[np.bool_]:
        """Return which images match a share of the query's IDF mass."""
        masses = self.masses(words)
        shared_n = (self.frequencies_nv[:, words.words] > 0) @ masses
        return np.asarray(shared_n / (float(masses.sum()) or 1.0) >= min_coverage - _ROUNDING)


class Reference:
    def __init__(self, images: Images) -> None:
        self._dense_ne = images.dense_ne
        self._index, self._full = _Bags.of(images.tf_nv), _Bags.of(images.full_tf_nv)

    def search(self, query: Query, version: Version) -> Answer:
        """Return what a search with one encoded image must return for a version."""
        (image,) = query.images
        assert isinstance(image, Encoding)
        rows = version.live_rows
        numbers = version.numbers[rows]
        index, full = self._index.select(numbers), self._full.select(numbers)
        scored = full if query.mode in _FULL_BAG_MODES else index
        words = _weigh_words(query, image)
        must, without = ([int(word) for word in given] for given in (query.must, query.without))
        has_others_n = full.have(without).any(axis=1)
        is_allowed_n = np.asarray(full.have(must).all(axis=1) & ~has_others_n)
        is_covered_n = scored.covers(words, query.min_coverage)
        if query.mode not in _FULL_BAG_MODES:
            is_allowed_n &= is_covered_n
        first, has_stages = _find_first(query, index, words, is_allowed_n)
        bm25_c = scored.score(words)[first]
        dense_ne = self._dense_ne[numbers]
        cosines_c = cosines(dense_ne, image.dense_e, first)
        _check_cosines(cosines_c, dense_ne[first], image.dense_e)
        scores: NDArray[np.floating] = bm25_c if query.mode in ("words", "sparse") else cosines_c
        if query.mode == "hybrid":
            masses: list[float] = scored.masses(words).tolist()
            highest = DEFAULT_PARAMETERS.largest_saturation * sum(masses)
            scores = cosines_c + MODES["hybrid"].words / (highest or 1.0) * bm25_c
        kept = np.flatnonzero(is_covered_n[first] & ((bm25_c > 0) | (query.mode != "words")))
        best = kept[np.lexsort((first[kept], -scores[kept]))[: query.k]]
        first_ranks = best + 1 if has_stages else np.zeros(len(best))
        columns = (scores[best], bm25_c[best], cosines_c[best], first_ranks)
        values = list(zip(*(column.tolist() for column in columns), strict=True))
        df_of = dict(zip(words.words.tolist(), scored.df(words.words), strict=True))
        return Answer(len(rows), df_of, rows[first[best]], values)


def _find_first(
    query: Query, index: _Bags, words: WeightedWords, is_allowed_n: NDArray[np.bool_]
) -> tuple[NDArray[np.intp], bool]:
    """Return the images that the second stage orders, and whether the first one found them."""
    assert query.mode is not None
    n_first = max(query.k, query.candidates or MODES[query.mode].candidates or 0)
    if query.mode == "sparse":
        n_first = query.k
    allowed = np.flatnonzero(is_allowed_n)
    if query.mode == "dense" or (query.mode in _FULL_BAG_MODES and len(allowed) <= n_first):
        return allowed, False
    if query.mode in _FULL_BAG_MODES:
        by_weight = np.lexsort((words.words, -np.abs(words.weights)))
        words = words.select(np.sort(by_weight[:FIRST_WORDS]))
    bm25_n = index.score(words)
    first = np.flatnonzero(is_allowed_n & (bm25_n > 0))
    return first[np.lexsort((first, -bm25_n[first]))][:n_first], True


def match_version(
    results: Results, answers: Sequence[Answer], versions: Sequence[Version]
) -> int | None:
    """Return the first step whose answer the results are, or None.

    Paths are read from the catalogue at the end of a search, so an image that was moved meanwhile
    has the path of a later version.
    """
    values = _hit_values(results)
    df, paths = {word.word: word.df for word in results.query}, [hit.path for hit in results]
    n_images = {hit.n_images for hit in results}
    for i, (answer, version) in enumerate(zip(answers, versions, strict=True)):
        if values != answer.values or df != answer.df or n_images - {answer.n_images}:
            continue
        for later in versions[i:]:
            is_same = later.generation == version.generation
            if is_same and paths == [later.rows[row].path for row in answer.rows]:
                return version.step
    return None


def describe_difference(
    results: Results, answers: Sequence[Answer], versions: Sequence[Version]
) -> str:
    """Return how results differ from the answer of the version that they are closest to."""
    df = {word.word: word.df for word in results.query}
    pairs = list(zip(answers, versions, strict=True))
    answer, version = next((pair for pair in pairs if pair[0].df == df), pairs[-1])
    for word in sorted(df.keys() | answer.df.keys()):
        if df.get(word) != answer.df.get(word):
            return f"word {word} has df {df.get(word)} instead of {answer.df.get(word)}"
    hits = [(hit.path, *values) for hit, values in zip(results, _hit_values(results), strict=True)]
    paths = [version.rows[row].path for row in answer.rows]
    expected = [(path, *values) for path, values in zip(paths, answer.values, strict=True)]
    for rank, (hit, other) in enumerate(zip(hits, expected, strict=False), start=1):
        if hit != other:
            return f"hit {rank} is {hit} instead of {other}"
    if len(hits) != len(expected):
        return f"{len(hits)} hits instead of {len(expected)}"
    n_images = {hit.n_images for hit in results}
    return f"statistics of {n_images} images instead of {answer.n_images}"


def random_query(rng: random.Random, n_images: int) -> Query:
    """Return a query with an image, which the gallery may have, and random options."""
    image = make_encoding(rng.randrange(2 * n_images))
    words = list({*image.full_bag.words.tolist(), rng.randrange(N_WORDS)})
    rng.shuffle(words)
    options: QueryOptions = {
        "mode": rng.choice(list(MODES)),
        "k": rng.choice((1, 3, 10, 10, 10, 10, 10, 50, 50, n_images)),
        "candidates": rng.choice((5, 30, 200, 1000)),
    }
    if rng.random() < 0.15:
        options["must"] = words[:1]
    if rng.random() < 0.2:
        options["without"] = words[1:2]
    if rng.random() < 0.2:
        options["boost"] = {word: rng.choice((3.0, 0.5, 0.0, -1.0)) for word in words[2:4]}
    if rng.random() < 0.15:
        options["min_coverage"] = rng.choice((0.05, 0.2, 0.5))
    return Query.of(image, **options)


def _weigh_words(query: Query, image: Encoding) -> WeightedWords:
    must, without = (tuple(map(int, words)) for words in (query.must, query.without))
    boost = {int(word): factor for word, factor in query.boost.items()}
    words = WeightedWords.from_bag(image.bag)
    if query.mode in _FULL_BAG_MODES:
        bag = image.full_bag.bag
        weights = np.sqrt(bag.tf / bag.tf.max(initial=1))
        words = WeightedWords(bag.words, weights, bag.frequencies)
    return apply_word_options(words, must=must, without=without, boost=boost)


def _check_cosines(
    cosines_c: NDArray[np.float32], dense_ce: NDArray[np.float16], query_e: NDArray[np.float32]
) -> None:
    """Raise an error if cosines are not those of double precision, apart from rounding."""
    dense_ce, query_e = dense_ce.astype(np.float64), query_e.astype(np.float64)
    lengths = np.linalg.norm(dense_ce, axis=1) * np.linalg.norm(query_e)
    if not np.allclose(cosines_c, dense_ce @ query_e / lengths, rtol=0, atol=_COSINE_TOLERANCE):
        raise ArithmeticError("second_stage.cosines returns wrong cosines")


def _hit_values(results: Results) -> list[tuple[float, ...]]:
    return [
        (hit.score, hit.sparse, hit.dense if hit.dense is not None else np.nan, hit.first_rank or 0)
        for hit in results
    ]
