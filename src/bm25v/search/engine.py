"""A query and an open gallery in, results out: this module puts a search together.

The order of a search: encode the query, find the rows that its filters allow, take the best
candidates by BM25 over the words of the index (first stage), order them by the mode (second stage),
explain each hit. By words, an image is a hit if its score is above 0. If the filters allow no more
images than candidates are asked for, words and hybrid order all of them.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.gallery.records import ImageRecord
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.searcher import Ranked, Searcher, SearchRequest, top_positions
from bm25v.search.concepts import sum_log_probabilities
from bm25v.search.encode import EncodedQuery, encode_batch, encode_query
from bm25v.search.filters import covers_enough, explain_no_match, flag_rows
from bm25v.search.query import Query, StoredImage
from bm25v.search.ranking import cosines, score_full_bags
from bm25v.search.results import Hit, Match, Matcher, Results, concept_weight
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding

# The searcher of a snapshot and first stages in; what the searcher would return for each out.
FindMany = Callable[[Searcher, Sequence[SearchRequest]], Sequence[Ranked]]
T = TypeVar("T")
R = TypeVar("R")

DEFAULT_CANDIDATES = {"hybrid": 1000, "words": 1000, "two-stage": 200}


class RankedRows(NamedTuple):
    """Rows, best first."""

    rows: NDArray[np.int64]
    scores: NDArray[np.floating]
    cosines: NDArray[np.float32] | None  # None if they did not order the rows
    first_ranks: list[int | None]  # by the first stage
    n_candidates: int | None  # None if all rows were ordered, without a first stage
    ms: dict[str, float]


class Standing(NamedTuple):
    """The rank of an image in a search, and what it is compared with."""

    rank: int
    n_ordered: int  # images that the search ordered
    score_above: float | None  # of the hit before it
    score_below: float | None  # of the hit after it
    rank_by_similarity: int | None  # what its rank would be by the cosine alone
    rank_by_words: int | None  # by words alone; both are None if the score is not the sum of both


def search(
    store: GalleryStore, query: Query, encodings: Sequence[Encoding] | None = None
) -> Results:
    """Return the hits of a query in an open gallery; `encodings` are those of its images."""
    start = time.perf_counter()
    _load_models(store, query)
    store.snapshot()
    loaded = time.perf_counter()

    def search_snapshot(snapshot: Snapshot) -> Results:
        start_encoding = time.perf_counter()
        encoded = encode_query(query, store, snapshot, encodings)
        encode_ms = (time.perf_counter() - start_encoding) * 1e3
        results = search_encoded(encoded, query, store, snapshot)
        return replace(results, ms={"encode": encode_ms} | results.ms)

    results = store.read(search_snapshot)
    return replace(results, ms={"load": (loaded - start) * 1e3} | results.ms)


def search_many(store: GalleryStore, queries: Sequence[Query]) -> list[Results]:
    """Search with many queries on all CPUs; each result is that of `search`.

    Images are encoded in batches of the size that is fastest for the backbone.
    """
    if not queries:
        return []
    store.snapshot().searcher.prepare_for(len(queries))

    def search_chunk(chunk: Sequence[Query]) -> list[Results]:
        encodings = encode_batch(chunk, store)
        return [search(store, *pair) for pair in zip(chunk, encodings, strict=True)]

    return _in_threads(search_chunk, queries, store.vocabulary.backbone.batch_size)


def search_together(
    store: GalleryStore, queries: Sequence[Query], find_many: FindMany
) -> list[Results]:
    """Search with many queries; `find_many` computes their first stages, several at a time."""
    if not queries:
        return []
    start = time.perf_counter()
    encodings = _in_threads(
        lambda chunk: encode_batch(chunk, store), queries, store.vocabulary.backbone.batch_size
    )

    def search_snapshot(snapshot: Snapshot) -> list[Results]:
        encoded = _in_threads(
            lambda pairs: [encode_query(query, store, snapshot, given) for query, given in pairs],
            list(zip(queries, encodings, strict=True)),
        )
        plans = [plan_candidates(*pair, snapshot) for pair in zip(encoded, queries, strict=True)]
        encoded_at = time.perf_counter()
        requests = [plan for plan in plans if isinstance(plan, SearchRequest)]
        ranked = iter(find_many(snapshot.searcher, requests))
        found_at = time.perf_counter()
        found = [next(ranked) if isinstance(plan, SearchRequest) else None for plan in plans]
        results = _in_threads(
            lambda parts: [search_encoded(e, q, store, snapshot, f) for e, q, f in parts],
            list(zip(encoded, queries, found, strict=True)),
        )
        times = {"encode": encoded_at - start, "sparse": found_at - encoded_at}
        ms = {stage: seconds / len(queries) * 1e3 for stage, seconds in times.items()}
        return [replace(result, ms={**result.ms, **ms}) for result in results]

    return store.read(search_snapshot)


def _in_threads(
    function: Callable[[Sequence[T]], Sequence[R]], values: Sequence[T], size: int = 1
) -> list[R]:
    """Apply a function to parts of some values on all CPUs; return its results in their order."""
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(available_cpus()) as pool:
        return list(chain.from_iterable(pool.map(function, parts)))


def search_encoded(
    encoded: EncodedQuery,
    query: Query,
    store: GalleryStore,
    snapshot: Snapshot,
    found: Ranked | None = None,
) -> Results:
    """Return the hits of a query that is encoded already; `found` are those of the first stage."""
    names = store.word_names
    matcher = Matcher(encoded, snapshot, names)
    ranked = rank_rows(encoded, query, snapshot, matcher.sparse_factor, found)
    rows = ranked.rows.tolist()
    paths = store.catalog.paths_of(rows, snapshot.state.generation)
    similarities = ranked.cosines
    if similarities is None:
        similarities = _dense_scores(snapshot, encoded, ranked.rows)
    columns = (rows, paths, similarities.tolist(), ranked.first_ranks)
    hits = tuple(
        Hit(**vars(matcher.match(row, path, cosine)), rank=rank, first_rank=first_rank)
        for rank, (row, path, cosine, first_rank) in enumerate(
            zip(*columns, strict=True), start=query.offset + 1
        )
    )
    no_match = None
    if not hits:
        no_match = explain_no_match(encoded, query, snapshot, store.catalog, names)
    return Results(
        mode=encoded.mode,
        hits=hits,
        ms=ranked.ms,
        query=matcher.query_words(),
        no_match=no_match,
        notes=matcher.notes(),
        sparse_factor=matcher.sparse_factor if encoded.mode in ("hybrid", "concepts") else None,
        candidates=ranked.n_candidates,
        understood=encoded.understood,
        not_understood=encoded.not_understood,
    )


def match_path(store: GalleryStore, query: Query, path: str) -> Match:
    """Return how one image of the gallery compares with a query."""

    def match_snapshot(snapshot: Snapshot) -> Match:
        encoded = encode_query(query, store, snapshot)
        matcher = Matcher(encoded, snapshot, store.word_names)
        return match_record(encoded, matcher, store.find_image(path, snapshot), snapshot)

    return store.read(match_snapshot)


def match_record(
    encoded: EncodedQuery, matcher: Matcher, record: ImageRecord, snapshot: Snapshot
) -> Match:
    """Return how one image compares with a query that is encoded already."""
    (cosine,) = _dense_scores(snapshot, encoded, np.array([record.row])).tolist()
    return matcher.match(record.row, record.path, cosine)


def find_standings(
    encoded: EncodedQuery,
    query: Query,
    snapshot: Snapshot,
    rows: Sequence[int],
    sparse_factor: float,
) -> list[Standing | None]:
    """Return the rank of each row in a search; None if it is not among what the search orders."""
    n = snapshot.searcher.statistics.n
    n_ordered = max(query.k, query.candidates or DEFAULT_CANDIDATES.get(encoded.mode, n))
    everything = replace(query, k=max(n_ordered, 1), offset=0)
    ranked = rank_rows(encoded, everything, snapshot, sparse_factor)
    positions = {row: position for position, row in enumerate(ranked.rows.tolist())}
    is_sum = encoded.mode == "hybrid"
    return [_compare(ranked, positions[row], is_sum) if row in positions else None for row in rows]


def _compare(ranked: RankedRows, position: int, is_sum: bool) -> Standing:
    scores, cosines = ranked.scores, ranked.cosines
    by_similarity = by_words = None
    if is_sum and cosines is not None:
        words = scores - cosines
        by_similarity = 1 + int(np.count_nonzero(cosines > cosines[position]))
        by_words = 1 + int(np.count_nonzero(words > words[position]))
    return Standing(
        position + 1,
        len(scores),
        float(scores[position - 1]) if position else None,
        float(scores[position + 1]) if position + 1 < len(scores) else None,
        by_similarity,
        by_words,
    )


def rank_rows(
    encoded: EncodedQuery,
    query: Query,
    snapshot: Snapshot,
    sparse_factor: float,
    found: Ranked | None = None,
) -> RankedRows:
    """Return the best k rows: first stage by the words of the index, second stage by mode."""
    start = time.perf_counter()
    rows, first_scores = _find_candidates(encoded, query, snapshot, found)
    first_stage_end = time.perf_counter()
    kept = np.arange(len(rows))
    similarities = None
    if encoded.mode == "sparse" and first_scores is not None:
        scores: NDArray[np.floating] = first_scores
    elif encoded.mode == "concepts":
        scores = np.zeros(len(rows))
        if encoded.words_order or query.min_coverage > 0:
            bm25, kept = _score_by_words(encoded, query, snapshot, rows)
            scores = sparse_factor * bm25
    elif encoded.mode == "words":
        scores, kept = _score_by_words(encoded, query, snapshot, rows)
    else:
        scores = similarities = _dense_scores(snapshot, encoded, rows)
        if encoded.mode == "hybrid":
            bm25, kept = _score_by_words(encoded, query, snapshot, rows)
            scores = similarities + sparse_factor * bm25
    if encoded.terms:
        scores = scores + concept_weight(encoded.mode) * _term_scores(encoded, snapshot, rows)
    best = kept[top_positions(rows[kept], scores[kept], query.offset + query.k)[query.offset :]]
    ms = {
        "sparse": (first_stage_end - start) * 1e3,
        "rerank": (time.perf_counter() - first_stage_end) * 1e3,
    }
    has_stages = first_scores is not None
    return RankedRows(
        rows[best],
        scores[best],
        None if similarities is None else similarities[best],
        (best + 1).tolist() if has_stages else [None] * len(best),
        len(rows) if has_stages else None,
        ms,
    )


def plan_candidates(
    encoded: EncodedQuery, query: Query, snapshot: Snapshot
) -> SearchRequest | NDArray[np.int64]:
    """Return the first stage of a search, or all rows that the filters allow if it needs none."""
    flags = flag_rows(snapshot, encoded, query.min_coverage)
    n_candidates = max(query.k, query.candidates or DEFAULT_CANDIDATES.get(encoded.mode, 0))
    if encoded.mode == "sparse":
        n_candidates = query.offset + query.k
    n_allowed = snapshot.searcher.statistics.n if flags is None else int(np.count_nonzero(flags))
    is_full = encoded.mode in ("dense", "concepts")
    if is_full or (encoded.uses_full_bags and n_allowed <= n_candidates):
        return snapshot.rows if flags is None else np.flatnonzero(flags)
    return SearchRequest(encoded.first_words, n_candidates, flags)


def _find_candidates(
    encoded: EncodedQuery, query: Query, snapshot: Snapshot, found: Ranked | None
) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
    """Return the rows that the second stage orders, best first, and their scores.

    There are no scores if these are all rows that the filters allow.
    """
    if found is None:
        plan = plan_candidates(encoded, query, snapshot)
        if not isinstance(plan, SearchRequest):
            return plan, None
        found = snapshot.searcher.search(plan.words, plan.k, among=plan.allowed_n)
    rows, scores = found
    return rows[scores > 0], scores[scores > 0]


def _score_by_words(
    encoded: EncodedQuery, query: Query, snapshot: Snapshot, rows: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the BM25 scores of full bags, and the positions of the rows that may be hits."""
    assert snapshot.full_bags is not None
    searcher = snapshot.searcher
    bm25, shared_mass = score_full_bags(
        snapshot.full_bags, encoded.words, rows, searcher.parameters, compiled=searcher.has_index
    )
    is_hit = bm25 > 0 if encoded.mode == "words" else np.ones(len(rows), dtype=bool)
    if query.min_coverage > 0:
        masses = snapshot.full_bags.statistics.idf_masses(encoded.positive_words)
        is_hit &= covers_enough(shared_mass / (float(masses.sum()) or 1.0), query.min_coverage)
    return bm25, np.flatnonzero(is_hit)


def _term_scores(
    encoded: EncodedQuery, snapshot: Snapshot, rows: NDArray[np.int64]
) -> NDArray[np.float64]:
    if encoded.log_probabilities_n is not None:
        return encoded.log_probabilities_n[rows]
    return sum_log_probabilities(encoded.terms, snapshot, rows)


def _load_models(store: GalleryStore, query: Query) -> None:
    """Load what the query needs now, so that the time of encoding does not include it."""
    images = (*query.images, *query.negative)
    if not all(isinstance(image, Encoding | StoredImage) for image in images):
        store.vocabulary.backbone.load_weights()
    if query.text is not None and query.mode not in ("sparse", "words", "concepts"):
        store.text_tower  # noqa: B018 - loads it


def _dense_scores(
    snapshot: Snapshot, encoded: EncodedQuery, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    if encoded.dense_e is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    is_compiled = snapshot.searcher.has_index
    cosines_c = cosines(snapshot.dense_ne, encoded.dense_e, rows, compiled=is_compiled)
    return np.nan_to_num(cosines_c, copy=False, nan=-1.0)  # a damaged vector: the image comes last
