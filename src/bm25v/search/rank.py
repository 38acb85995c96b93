"""Orders candidates: the one function where scores are made, as sums of weighted parts.

By words alone, an image is a hit if its score is above 0.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.index.bm25 import Bm25Parameters, Statistics
from bm25v.index.searcher import top_positions
from bm25v.index.second_stage import PRESENCE, score_full_bags
from bm25v.search.encode import COPIES, EncodedQuery
from bm25v.search.scoring import share_factor
from bm25v.store.base import Candidates, Rows, View

RANKED = 1_000  # images that are ordered at least, to find the rank of one

_ROUNDING = 1e-9  # of a sum of shares


class RankedImages(NamedTuple):
    """Rows of images, best first."""

    images: Candidates
    rows: Rows
    scores: NDArray[np.floating]
    cosines: NDArray[np.float32] | None  # None if they did not order the rows
    first_ranks: list[int | None]  # by the first stage
    n_candidates: int | None  # None if all images were ordered, without a first stage
    ms: float
    copies: Mapping[int, Sequence[int]] = {}  # rows of the same content as one of the rows


class Ranking(NamedTuple):
    """The rank of an image in a search, and what it is compared with."""

    rank: int
    n_ordered: int  # images that the search ordered
    score_above: float | None  # of the hit before it
    score_below: float | None  # of the hit after it
    rank_by_similarity: int | None  # what its rank would be by the cosine alone
    rank_by_words: int | None  # by words alone; both are None if the score is not the sum of both


def rank(
    encoded: EncodedQuery,
    images: Candidates,
    view: View,
    *,
    n: int | None = None,
) -> RankedImages:
    """Return the best of some candidates: those of the query's page, or the n best.

    score = cosine · similarity + factor · BM25 + constant.
    """
    start = time.perf_counter()
    scoring, rows = encoded.scoring, images.rows
    kept = np.arange(len(rows))
    scores: NDArray[np.floating] = np.zeros(len(rows))
    cosines = None
    if images.first_scores is not None and scoring.by_words_alone and scoring.bags == "index":
        scores = images.first_scores
    if scoring.cosine:
        scores = cosines = compare(images, encoded, rows)
    if scoring.bags == "full" and scoring.words:
        statistics, parameters = view.full_statistics, view.meta.parameters
        factor = words_factor(encoded, statistics, parameters)
        formula = (encoded.words, statistics, parameters)
        bm25 = score_full_bags(images.full_bags, rows, *formula, compiled=images.is_compiled)
        if not scoring.is_sum or encoded.min_coverage > 0:
            kept = _find_hits(encoded, images, bm25, statistics)
        scores = scores + factor * bm25
    if encoded.constant:
        scores = scores + encoded.constant
    first, end = (0, n) if n is not None else (encoded.offset, encoded.offset + encoded.k)
    copies: dict[int, list[int]] = {}
    if encoded.merges_copies:
        order, copies = _order_without_copies(images, scores, kept, end)
    else:
        order = kept[top_positions(rows[kept], scores[kept], end)]
    best = order[first:]
    has_stages = images.first_scores is not None
    return RankedImages(
        images,
        rows[best],
        scores[best],
        None if cosines is None else cosines[best],
        (best + 1).tolist() if has_stages else [None] * len(best),
        len(rows) if has_stages else None,
        (time.perf_counter() - start) * 1e3,
        copies,
    )


def _order_without_copies(
    images: Candidates, scores: NDArray[np.floating], kept: NDArray[np.intp], n: int
) -> tuple[NDArray[np.intp], dict[int, list[int]]]:
    """Return the positions of the n best, of copies that with the shortest path, and their rows.

    Copies have the same score, so that contents are read of images with equal scores only.
    """
    rows, n_ordered = images.rows, n + COPIES
    while True:
        order = kept[top_positions(rows[kept], scores[kept], n_ordered)]
        ordered_scores = scores[order]
        is_tie = np.zeros(len(order), bool)
        is_tie[1:] = ordered_scores[1:] == ordered_scores[:-1]
        is_tie[:-1] |= is_tie[1:]
        if not is_tie.any():
            return order[:n], {}
        records = images.records(rows[order[is_tie]])
        groups: dict[object, list[int]] = {}
        for position, row in zip(order.tolist(), rows[order].tolist(), strict=True):
            record = records.get(row)
            key = row if record is None else (float(scores[position]), record.content)
            groups.setdefault(key, []).append(position)
        last = [group[0] for group in groups.values()][:n][-1]
        if len(order) == len(kept) or (len(groups) >= n and scores[last] > ordered_scores[-1]):
            break
        n_ordered *= 2

    def length_and_path(position: int) -> tuple[int, str]:
        path = records[int(rows[position])].path
        return len(path), path

    best, copies = [], {}
    for group in groups.values():
        first, *others = sorted(group, key=length_and_path) if len(group) > 1 else group
        best.append(first)
        if others:
            copies[int(rows[first])] = rows[others].tolist()
    return np.array(best[:n], np.intp), copies


def words_factor(
    encoded: EncodedQuery, statistics: Statistics, parameters: Bm25Parameters
) -> float:
    """Return the factor of BM25 in the scores of a query."""
    scoring = encoded.scoring
    if encoded.factor is not None and scoring.is_sum:
        return encoded.factor
    return share_factor(encoded.words, scoring, statistics, parameters) if scoring.words else 0.0


def compare(images: Candidates, encoded: EncodedQuery, rows: Rows) -> NDArray[np.float32]:
    """Return the cosines of some rows; NaN if the query has no dense vector."""
    if encoded.dense_e is None:
        return np.full(len(rows), np.nan, dtype=np.float32)
    return images.cosines(encoded.dense_e, rows)


def covers_enough(coverage: NDArray[np.float64], min_coverage: float) -> NDArray[np.bool_]:
    """Return which coverages reach a minimum, whatever rounding did to their sums."""
    return coverage >= min_coverage - _ROUNDING


def _find_hits(
    encoded: EncodedQuery, images: Candidates, bm25: NDArray[np.float64], statistics: Statistics
) -> NDArray[np.intp]:
    """Return the positions of the candidates that may be hits, by the words of their full bags."""
    needs_words = encoded.scoring.by_words_alone and not encoded.is_filter
    is_hit = bm25 > 0 if needs_words else np.ones(len(bm25), bool)
    if encoded.min_coverage > 0:
        words = encoded.covered_words
        mass = float(statistics.idf_masses(words).sum()) or 1.0
        bags = (images.full_bags, images.rows, words, statistics, PRESENCE)
        shared = score_full_bags(*bags, compiled=images.is_compiled)
        is_hit &= covers_enough(shared / mass, encoded.min_coverage)
    return np.flatnonzero(is_hit)


def order_all(encoded: EncodedQuery, view: View) -> RankedImages:
    """Return all images that a search orders, not only those of the query's page."""
    n_ordered = encoded.n_candidates if encoded.scoring.candidates else max(encoded.k, RANKED)
    whole = replace(encoded, k=n_ordered, offset=0)
    return rank(whole, view.candidates(whole), view)


def find_positions(ranked: RankedImages, images: Candidates) -> list[int | None]:
    """Return the position of each image in an order, or of its copy; None if it has none."""
    rows = ranked.rows.tolist()
    owners = dict(zip(rows, range(len(rows)), strict=True))
    for first, copies in ranked.copies.items():
        owners |= dict.fromkeys(copies, owners[first]) if first in owners else {}
    keys = ranked.images.keys(np.array(list(owners), dtype=np.int64))
    positions = dict(zip(keys, owners.values(), strict=True))
    return list(map(positions.get, images.keys(images.rows)))


def find_ranking(ranked: RankedImages, position: int, *, is_sum: bool) -> Ranking:
    """Return the rank of an image, and its neighbours; `is_sum`: of similarity and words."""
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
