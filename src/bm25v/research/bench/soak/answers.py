"""A query and a version in, the hits that a search must return out; and random queries.

The hits are computed from the images of the version alone, by the formula of
`index.bm25.reference_scores` for all images at once. Not this module's job: the gallery.
"""

import random
from collections.abc import Sequence
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import DEFAULT_PARAMETERS, WeightedWords
from bm25v.research.bench.soak.history import N_WORDS, Images, Version, make_encoding
from bm25v.search import Mode, Query
from bm25v.search.encode import apply_word_options
from bm25v.search.engine import HYBRID_WEIGHT
from bm25v.search.query import QueryOptions
from bm25v.search.ranking import cosines
from bm25v.search.results import Results
from bm25v.vocabulary import Encoding
from bm25v.vocabulary.bag import dequantise

MODES: tuple[Mode, ...] = get_args(Mode)

_ROUNDING = 1e-9  # of a coverage
_COSINE_TOLERANCE = 1e-5  # against double precision

Floats = NDArray[np.float64]


class Answer(NamedTuple):
    """What a search returns, in columns: everything that depends on the gallery's contents."""

    n_images: int
    df: dict[int, int]  # of the query's words
    rows: NDArray[np.int64]
    values: list[tuple[float, ...]]  # of each hit: score, BM25 score, cosine, first rank


class Reference:
    """Answers queries without a gallery."""

    def __init__(self, images: Images) -> None:
        self._images = images
        self._frequencies_nv = dequantise(images.tf_nv)
        self._lengths = images.tf_nk.sum(axis=1, dtype=np.int64)

    def search(self, query: Query, version: Version) -> Answer:
        """Return what a search with one encoded image must return for a version."""
        (image,) = query.images
        assert isinstance(image, Encoding)
        rows = version.live_rows
        numbers = version.numbers[rows]
        words = _weigh_words(query, image)
        tf_nv = self._frequencies_nv[numbers]
        df_v = np.count_nonzero(tf_nv, axis=0)
        idf = np.array([_idf(len(rows), df) for df in df_v[words.words].tolist()])
        bm25_n = self._score(numbers, tf_nv[:, words.words], words.weights, idf)
        is_allowed_n = _allow(query, words, tf_nv, idf)
        first = np.flatnonzero(is_allowed_n)
        if query.mode != "dense":
            n_first = query.k if query.mode == "sparse" else max(query.k, query.candidates)
            first = np.flatnonzero(is_allowed_n & (bm25_n > 0))
            first = first[np.lexsort((first, -bm25_n[first]))][:n_first]
        dense_ne = self._images.dense_ne[numbers]
        cosines_c = cosines(dense_ne, image.dense_e, first)
        _check_cosines(cosines_c, dense_ne[first], image.dense_e)
        scores: NDArray[np.floating] = bm25_n[first] if query.mode == "sparse" else cosines_c
        if query.mode == "hybrid":
            masses = (words.weights * idf)[words.weights > 0]
            highest = DEFAULT_PARAMETERS.largest_saturation * float(masses.sum())
            scores = cosines_c + HYBRID_WEIGHT / (highest or 1.0) * bm25_n[first]
        best = np.lexsort((first, -scores))[: query.k]
        first_ranks = np.zeros(len(best)) if query.mode == "dense" else best + 1
        columns = (scores[best], bm25_n[first[best]], cosines_c[best], first_ranks)
        values = list(zip(*(column.tolist() for column in columns), strict=True))
        df_of = dict(zip(words.words.tolist(), df_v[words.words].tolist(), strict=True))
        return Answer(len(rows), df_of, rows[first[best]], values)

    def _score(
        self, numbers: NDArray[np.int64], tf_nq: Floats, weights: Floats, idf: Floats
    ) -> Floats:
        """Return each image's BM25 score, added in the order of `reference_scores`."""
        k1, b = DEFAULT_PARAMETERS.k1, DEFAULT_PARAMETERS.b
        lengths = self._lengths[numbers]
        average = float(lengths.sum()) / 100 / max(len(numbers), 1) or 1.0
        norms_n = k1 * (1 - b + b * (lengths / 100) / average)
        scores_n = np.zeros(len(numbers))
        for i, (weight, word_idf) in enumerate(zip(weights.tolist(), idf.tolist(), strict=True)):
            tf_n = tf_nq[:, i]
            scores_n += weight * word_idf * (tf_n * (k1 + 1) / (tf_n + norms_n))
        return scores_n


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
    words = list({*image.bag.words.tolist(), rng.randrange(N_WORDS)})
    rng.shuffle(words)
    options: QueryOptions = {
        "mode": rng.choice(MODES),
        "k": rng.choice((1, 3, 10, 10, 10, 10, 10, 50, 50, n_images)),
        "candidates": rng.choice((5, 30, 200)),
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
    return apply_word_options(words, must=must, without=without, boost=boost)


def _allow(query: Query, words: WeightedWords, tf_nv: Floats, idf: Floats) -> NDArray[np.bool_]:
    """Return which images the filters allow."""
    must, without = ([int(word) for word in given] for given in (query.must, query.without))
    is_allowed_n = (tf_nv[:, must] > 0).all(axis=1) & (tf_nv[:, without] == 0).all(axis=1)
    if query.min_coverage > 0:
        masses = np.where(words.weights > 0, words.weights * idf, 0)
        coverage_n = (tf_nv[:, words.words] > 0) @ masses / (float(masses.sum()) or 1.0)
        is_allowed_n &= coverage_n >= query.min_coverage - _ROUNDING
    return np.asarray(is_allowed_n)


def _idf(n: int, df: int) -> float:
    return float(np.log(1 + (n - df + 0.5) / (df + 0.5)))


def _check_cosines(
    cosines_c: NDArray[np.float32], dense_ce: NDArray[np.float16], query_e: NDArray[np.float32]
) -> None:
    """Raise an error if cosines are not those of double precision, apart from rounding."""
    dense_ce, query_e = dense_ce.astype(np.float64), query_e.astype(np.float64)
    lengths = np.linalg.norm(dense_ce, axis=1) * np.linalg.norm(query_e)
    if not np.allclose(cosines_c, dense_ce @ query_e / lengths, rtol=0, atol=_COSINE_TOLERANCE):
        raise ArithmeticError("search.ranking.cosines returns wrong cosines")


def _hit_values(results: Results) -> list[tuple[float, ...]]:
    return [
        (hit.score, hit.sparse, hit.dense if hit.dense is not None else np.nan, hit.first_rank or 0)
        for hit in results
    ]
