"""A query and an open gallery in, results out: this module puts a search together.

The order of a search: encode the query, find the rows that its filters allow, take the best
candidates by BM25 (first stage), order them by the mode (second stage), explain each hit. By words,
an image is a hit if its score is above 0.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.errors import WrongUse
from bm25v.gallery.records import ImageRecord
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.index.searcher import top_positions
from bm25v.search.encode import EncodedQuery, encode_batch, encode_query
from bm25v.search.filters import explain_no_match, flag_rows
from bm25v.search.query import Mode, Query
from bm25v.search.ranking import cosines
from bm25v.search.results import Hit, Match, Matcher, Results
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding

HYBRID_WEIGHT = 0.1  # of BM25, as a share of the query's highest possible score, in hybrid mode


class RankedRows(NamedTuple):
    """Rows, best first, with the values that order them."""

    rows: NDArray[np.int64]
    scores: NDArray[np.floating]
    cosines: NDArray[np.float32]  # NaN if the query has no dense vector
    first_ranks: NDArray[np.int64]  # by BM25 alone; meaningless in dense mode
    sparse_factor: float | None
    ms: dict[str, float]


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
    size = store.vocabulary.backbone.batch_size
    chunks = [queries[start : start + size] for start in range(0, len(queries), size)]

    def search_chunk(chunk: Sequence[Query]) -> list[Results]:
        encodings = encode_batch(chunk, store)
        return [search(store, *pair) for pair in zip(chunk, encodings, strict=True)]

    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(available_cpus()) as pool:
        return list(chain.from_iterable(pool.map(search_chunk, chunks)))


def search_encoded(
    encoded: EncodedQuery, query: Query, store: GalleryStore, snapshot: Snapshot
) -> Results:
    """Return the hits of a query that is encoded already."""
    mode = choose_mode(query.mode, encoded)
    ranked = rank_rows(encoded, query, mode, snapshot)
    rows = ranked.rows.tolist()
    paths = store.catalog.paths_of(rows, snapshot.state.generation)
    names = store.word_names
    matcher = Matcher(encoded, snapshot, names)
    columns = (rows, paths, ranked.cosines.tolist(), ranked.first_ranks.tolist())
    hits = tuple(
        Hit(
            **vars(matcher.match(row, path, cosine)),
            rank=rank,
            first_rank=None if mode == "dense" else first_rank,
            score=score,
        )
        for rank, (row, path, cosine, first_rank, score) in enumerate(
            zip(*columns, ranked.scores.tolist(), strict=True), start=query.offset + 1
        )
    )
    no_match = None
    if not hits:
        no_match = explain_no_match(encoded, query, snapshot, store.catalog, names)
    return Results(
        mode=mode,
        hits=hits,
        ms=ranked.ms,
        query=matcher.query_words(),
        no_match=no_match,
        notes=matcher.notes(),
        sparse_factor=ranked.sparse_factor,
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


def choose_mode(mode: Mode | None, encoded: EncodedQuery) -> Mode:
    """Return the given mode, or the default for this query.

    The default is two-stage. It is sparse if there is no dense vector, or if words are boosted,
    which the second stage would ignore. It is dense for a text, which has no words of its own.
    """
    if mode is None:
        if encoded.dense_e is None or encoded.boosted:
            return "sparse"
        return "two-stage" if encoded.text is None else "dense"
    if mode != "sparse" and encoded.dense_e is None:
        raise WrongUse(f"mode {mode!r}: {encoded.no_dense}; use mode 'sparse'")
    return mode


def rank_rows(encoded: EncodedQuery, query: Query, mode: Mode, snapshot: Snapshot) -> RankedRows:
    """Return the best k rows: first stage by words, second stage by mode."""
    start = time.perf_counter()
    flags = flag_rows(snapshot, encoded, query.min_coverage)
    n_best = query.offset + query.k
    if mode == "dense":
        rows = snapshot.rows if flags is None else np.flatnonzero(flags)
        sparse_scores = np.full(len(rows), np.nan)
    else:
        n_candidates = n_best if mode == "sparse" else max(query.k, query.candidates)
        rows, sparse_scores = snapshot.searcher.search(encoded.words, n_candidates, among=flags)
        is_match = sparse_scores > 0
        rows, sparse_scores = rows[is_match], sparse_scores[is_match]
    first_stage_end = time.perf_counter()
    similarities = _dense_scores(snapshot, encoded, rows)
    scores: NDArray[np.floating] = sparse_scores if mode == "sparse" else similarities
    factor = None
    if mode == "hybrid":
        factor = HYBRID_WEIGHT / (_highest_score(encoded, snapshot) or 1.0)
        scores = similarities + factor * sparse_scores
    best = top_positions(rows, scores, n_best)[query.offset :]
    ms = {
        "sparse": (first_stage_end - start) * 1e3,
        "rerank": (time.perf_counter() - first_stage_end) * 1e3,
    }
    return RankedRows(rows[best], scores[best], similarities[best], best + 1, factor, ms)


def _load_models(store: GalleryStore, query: Query) -> None:
    """Load what the query needs now, so that the time of encoding does not include it."""
    if not all(isinstance(image, Encoding) for image in (*query.images, *query.negative)):
        store.vocabulary.backbone.load_weights()
    if query.text is not None and query.mode != "sparse":
        store.text_tower  # noqa: B018 - loads it


def _highest_score(encoded: EncodedQuery, snapshot: Snapshot) -> float:
    """Return an upper bound of every image's score: all words, fully saturated."""
    searcher = snapshot.searcher
    masses = searcher.statistics.idf_masses(encoded.positive_words)
    return searcher.parameters.largest_saturation * float(masses.sum())


def _dense_scores(
    snapshot: Snapshot, encoded: EncodedQuery, rows: NDArray[np.int64]
) -> NDArray[np.float32]:
    if encoded.dense_e is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    is_compiled = snapshot.searcher.has_index
    cosines_c = cosines(snapshot.dense_ne, encoded.dense_e, rows, compiled=is_compiled)
    return np.nan_to_num(cosines_c, copy=False, nan=-1.0)  # a damaged vector: the image comes last
