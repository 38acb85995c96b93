"""A query and an open collection in, results out: this module puts a search together.

The order of a search: encode the query, find the rows that its filters allow, take the best
candidates by BM25 over the words of the index (first stage), order them by the mode (second stage),
explain each hit. By words, an image is a hit if its score is above 0. If the filters allow no more
images than candidates are asked for, words and hybrid order all of them.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bm25v.index.searcher import top_positions
from bm25v.search.contract import Found, Images, SearchEngine, View
from bm25v.search.encode import EncodedQuery, encode_query
from bm25v.search.filters import covers_enough, explain_no_match
from bm25v.search.matching import Matcher, words_factor
from bm25v.search.query import Query, StoredImage
from bm25v.search.query_images import encode_batch
from bm25v.search.ranking import score_full_bags
from bm25v.search.results import Hit, Match, Results
from bm25v.search.scoring import MODES
from bm25v.threads import available_cpus, one_blas_thread
from bm25v.vocabulary import Encoding

T = TypeVar("T")
R = TypeVar("R")


class RankedRows(NamedTuple):
    """Rows, best first."""

    images: Images  # that they are rows of
    rows: NDArray[np.int64]
    scores: NDArray[np.floating]
    cosines: NDArray[np.float32] | None  # None if they did not order the rows
    first_ranks: list[int | None]  # by the first stage
    n_candidates: int | None  # None if all rows were ordered, without a first stage
    ms: dict[str, float]


class Ranking(NamedTuple):
    """The rank of an image in a search, and what it is compared with."""

    rank: int
    n_ordered: int  # images that the search ordered
    score_above: float | None  # of the hit before it
    score_below: float | None  # of the hit after it
    rank_by_similarity: int | None  # what its rank would be by the cosine alone
    rank_by_words: int | None  # by words alone; both are None if the score is not the sum of both


def search(
    engine: SearchEngine, query: Query, encodings: Sequence[Encoding] | None = None
) -> Results:
    """Return the hits of a query in an open collection; `encodings` are those of its images."""
    start = time.perf_counter()
    _load_models(engine, query)

    def search_view(view: View) -> Results:
        start_encoding = time.perf_counter()
        load_ms = (start_encoding - start) * 1e3
        encoded = encode_query(query, engine, view, encodings)
        encode_ms = (time.perf_counter() - start_encoding) * 1e3
        results = search_encoded(encoded, engine, view)
        return replace(results, ms={"load": load_ms, "encode": encode_ms} | results.ms)

    return engine.read(search_view)


def search_many(engine: SearchEngine, queries: Sequence[Query]) -> list[Results]:
    """Search with many queries on all CPUs; each result is that of `search`.

    Images are encoded in batches of the size that is fastest for the backbone.
    """
    if not queries:
        return []
    engine.prepare_for(len(queries))

    def search_chunk(chunk: Sequence[Query]) -> list[Results]:
        encodings = encode_batch(chunk, engine)
        return [search(engine, *pair) for pair in zip(chunk, encodings, strict=True)]

    return in_threads(search_chunk, queries, engine.vocabulary.backbone.batch_size)


def in_threads(
    function: Callable[[Sequence[T]], Sequence[R]], values: Sequence[T], size: int = 1
) -> list[R]:
    """Apply a function to parts of some values on all CPUs; return its results in their order."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    with one_blas_thread(), ThreadPoolExecutor(available_cpus()) as pool:
        return list(chain.from_iterable(pool.map(function, parts)))


def search_encoded(
    encoded: EncodedQuery, engine: SearchEngine, view: View, found: Found | None = None
) -> Results:
    """Return the hits of a query that is encoded already; `found` are its candidates, if known."""
    names = engine.word_names
    matcher = Matcher(encoded, view, names)
    ranked = rank_rows(encoded, view, found, sparse_factor=matcher.sparse_factor)
    images, rows = ranked.images, ranked.rows
    cosines = ranked.cosines
    if cosines is None:
        cosines = _dense_scores(images, encoded, rows)
    matches = matcher.match(images, rows, cosines.tolist())
    hits = tuple(
        Hit(**vars(match), rank=rank, first_rank=first_rank)
        for rank, (match, first_rank) in enumerate(
            zip(matches, ranked.first_ranks, strict=True), start=encoded.offset + 1
        )
    )
    return Results(
        mode=encoded.mode,
        hits=hits,
        ms=ranked.ms,
        query=matcher.query_words(),
        no_match=None if hits else explain_no_match(encoded, view, names),
        notes=matcher.notes(),
        sparse_factor=matcher.sparse_factor if encoded.scoring.is_sum else None,
        candidates=ranked.n_candidates,
        understood=encoded.understood,
        not_understood=encoded.not_understood,
    )


def match_path(engine: SearchEngine, query: Query, path: str) -> Match:
    def match_view(view: View) -> Match:
        encoded = encode_query(query, engine, view)
        matcher = Matcher(encoded, view, engine.word_names)
        return match_image(encoded, matcher, view.find_image(path))

    return engine.read(match_view)


def match_image(encoded: EncodedQuery, matcher: Matcher, found: Found) -> Match:
    """Return how one image compares with a query that is encoded already."""
    cosines = _dense_scores(found.images, encoded, found.rows).tolist()
    (match,) = matcher.match(found.images, found.rows, cosines)
    return match


def find_rankings(
    encoded: EncodedQuery, view: View, images: Sequence[Found]
) -> list[Ranking | None]:
    """Return the rank of each image in a search; None if it is not among what the search orders."""
    n_default = encoded.scoring.candidates or view.largest_ranking
    n_ordered = max(encoded.k, encoded.candidates or n_default, 1)
    ranked = rank_rows(replace(encoded, k=n_ordered, offset=0), view)
    keys = ranked.images.keys_of(ranked.rows)
    positions = {key: position for position, key in enumerate(keys)}
    is_sum = encoded.scoring.is_sum
    rankings = []
    for found in images:
        position = positions.get(found.images.keys_of(found.rows)[0])
        rankings.append(None if position is None else _compare(ranked, position, is_sum))
    return rankings


def _compare(ranked: RankedRows, position: int, is_sum: bool) -> Ranking:
    scores, cosines = ranked.scores, ranked.cosines
    by_similarity = by_words = None
    if is_sum and cosines is not None:
        words = scores - cosines
        by_similarity = 1 + int(np.count_nonzero(cosines > cosines[position]))
        by_words = 1 + int(np.count_nonzero(words > words[position]))
    return Ranking(
        position + 1,
        len(scores),
        float(scores[position - 1]) if position else None,
        float(scores[position + 1]) if position + 1 < len(scores) else None,
        by_similarity,
        by_words,
    )


def rank_rows(
    encoded: EncodedQuery,
    view: View,
    found: Found | None = None,
    *,
    sparse_factor: float | None = None,
) -> RankedRows:
    """Return the best k rows: first stage by the words of the index, second stage by mode.

    `found` are the candidates and `sparse_factor` the factor of BM25, if they are known.
    """
    start = time.perf_counter()
    if found is None:
        found = view.find_candidates(encoded)
    images, rows, first_scores = found
    first_stage_end = time.perf_counter()
    scoring = encoded.scoring
    kept = np.arange(len(rows))
    scores: NDArray[np.floating] = np.zeros(len(rows))
    similarities = None
    if scoring.by_words_alone and scoring.bags == "index" and first_scores is not None:
        scores = first_scores
    if scoring.cosine:
        scores = similarities = _dense_scores(images, encoded, rows)
    if scoring.bags == "full" and (encoded.words_order or encoded.min_coverage > 0):
        if sparse_factor is None:
            sparse_factor = words_factor(encoded, view.full_statistics, view.parameters)
        bm25, kept = _score_by_words(encoded, images, view, rows)
        scores = scores + sparse_factor * bm25
    if encoded.terms:
        scores = scores + scoring.terms * images.term_scores(encoded.terms, rows)
    best = kept[
        top_positions(rows[kept], scores[kept], encoded.offset + encoded.k)[encoded.offset :]
    ]
    ms = {
        "sparse": (first_stage_end - start) * 1e3,
        "rerank": (time.perf_counter() - first_stage_end) * 1e3,
    }
    has_stages = first_scores is not None
    return RankedRows(
        images,
        rows[best],
        scores[best],
        None if similarities is None else similarities[best],
        (best + 1).tolist() if has_stages else [None] * len(best),
        len(rows) if has_stages else None,
        ms,
    )


def _score_by_words(
    encoded: EncodedQuery, images: Images, view: View, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the BM25 scores of full bags, and the positions of the rows that may be hits."""
    score = partial(score_full_bags, images.full_bags, compiled=images.is_compiled)
    bm25 = score(encoded.words, rows, view.parameters).bm25
    is_hit = bm25 > 0 if encoded.scoring.by_words_alone else np.ones(len(rows), dtype=bool)
    if encoded.min_coverage > 0:
        words = encoded.covered_words
        masses = images.full_bags.statistics.idf_masses(words)
        shared_mass = score(words, rows, view.parameters).shared_mass
        is_hit &= covers_enough(shared_mass / (float(masses.sum()) or 1.0), encoded.min_coverage)
    return bm25, np.flatnonzero(is_hit)


def _load_models(engine: SearchEngine, query: Query) -> None:
    """Load what the query needs now, so that the time of encoding does not include it."""
    images = (*query.images, *query.negative)
    if not all(isinstance(image, Encoding | StoredImage) for image in images):
        engine.vocabulary.backbone.load_weights()
    if query.text is not None and (query.mode is None or MODES[query.mode].cosine):
        engine.text_tower  # noqa: B018 - loads it


def _dense_scores(
    images: Images, encoded: EncodedQuery, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    if encoded.dense_e is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    return images.cosines(encoded.dense_e, rows)
