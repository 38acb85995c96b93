"""How images compare with a query: score, strength, coverage, and what each word contributes."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.display import word_label
from bm25v.index.bm25 import Contributions, contributions
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import RankedImages, compare, words_factor
from bm25v.search.results import (
    Hit,
    Match,
    MatchWords,
    OpenSearch,
    QueryWord,
    Strength,
    TextPart,
)
from bm25v.search.scoring import MODES
from bm25v.search.text import TextTerm
from bm25v.store.base import Candidates, Rows, View
from bm25v.store.records import Calibration
from bm25v.vocabulary.bag import SCALE

_ROUNDING = 1e-9  # of the sum of shares


class Matcher:
    """Compares images with one query."""

    def __init__(
        self,
        query: EncodedQuery,
        view: View,
        names: Mapping[int, str],
        calibration: Calibration | None = None,
    ) -> None:
        self._query, self._names, self._calibration = query, names, calibration
        self._n_with_word_v = view.full_statistics.df_v
        self._parameters = view.meta.parameters
        self._statistics = view.full_statistics if query.uses_full_bags else view.statistics
        words = query.words
        self._masses = np.where(words.weights > 0, self._statistics.idf_masses(words), 0.0)
        self.sparse_factor = words_factor(query, self._statistics, self._parameters)
        is_covered = np.isin(words.words, query.covered_words.words)
        self._covered_masses = np.where(is_covered, self._masses, 0.0)
        self._covered_mass = sum(self._covered_masses.tolist())
        # The images that the gallery was calibrated with had no more words than a full bag.
        n_judged = query.k_full if query.is_plain else 0
        self._is_judged = np.isin(words.words, words.strongest(n_judged).words)
        self._judged_mass = float(self._masses[self._is_judged].sum())
        self._query_words = self._list_words()

    def split_scores(self, ranked: RankedImages) -> "SplitScores":
        """Return what each word and each term of a text adds to the scores of ranked images."""
        images, rows = ranked.images, ranked.rows
        words_nk, tf_nk = images.read_bags(rows, full=self._query.uses_full_bags)
        shared = contributions(
            self._query.words, words_nk, tf_nk, self._statistics, self._parameters
        )
        terms = [
            similarity_n + by_words_n
            for similarity_n, by_words_n in self._split_text(images, rows, shared)
        ]
        return SplitScores(
            ranked.scores, self.sparse_factor, self._query.words.words, shared, terms
        )

    def match(self, images: Candidates, rows: Rows) -> list[Match]:
        """Return how some images compare with the query."""
        cosines_n = compare(images, self._query, rows)
        return [Match(**facts) for facts in self._describe(images, rows, cosines_n)]

    def make_hits(self, ranked: RankedImages, search: OpenSearch | None) -> tuple[Hit, ...]:
        """Return the hits of a search, which `search` can explain."""
        images, rows, cosines_n = ranked.images, ranked.rows, ranked.cosines
        if cosines_n is None:
            cosines_n = compare(images, self._query, rows)
        first = self._query.offset + 1
        copies = [tuple(ranked.copies.get(row, ())) for row in rows.tolist()]
        listed = sorted({row for group in copies for row in group})
        paths = dict(
            zip(listed, images.paths(np.array(listed, np.int64)), strict=True) if listed else ()
        )
        columns = (self._describe(images, rows, cosines_n), ranked.first_ranks, copies)
        return tuple(
            Hit(
                **facts,
                rank=rank,
                first_rank=first_rank,
                copies=tuple(paths[row] for row in group),
                _search=search,
            )
            for rank, (facts, first_rank, group) in enumerate(zip(*columns, strict=True), first)
        )

    def _describe(
        self, images: Candidates, rows: Rows, cosines_n: NDArray[np.float32]
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each image's `Match`."""
        words_nk, tf_nk = images.read_bags(rows, full=self._query.uses_full_bags)
        n, statistics, factor = len(rows), self._statistics, self.sparse_factor
        shared = contributions(self._query.words, words_nk, tf_nk, statistics, self._parameters)
        shared_masses = shared.sum_by_bag(self._covered_masses[shared.positions], n)
        columns = (
            images.paths(rows),
            cosines_n.tolist(),
            shared.sum_by_bag(shared.values, n).tolist(),
            self._judge(cosines_n.astype(np.float64), shared),
            (shared_masses / (self._covered_mass or 1.0)).tolist(),
            (tf_nk.sum(axis=1, dtype=np.int64) / SCALE).tolist(),
            self._match_text(images, rows, cosines_n, shared),
            pairwise(np.searchsorted(shared.bags, np.arange(n + 1)).tolist()),
        )
        counts_cosine, has_vector = self._query.scoring.cosine > 0, self._query.dense_e is not None
        constant, bounds = self._query.constant, self._query.bounds
        for path, cosine, bm25, strength, coverage, length, (text, rest), ends in zip(
            *columns, strict=True
        ):
            score = (cosine if counts_cosine else 0.0) + factor * bm25 + constant
            yield {
                "path": path,
                "mode": self._query.mode,
                "score": score,
                "sparse": bm25,
                "sparse_factor": factor,
                "strength": strength if bounds is None else grade(score, *bounds),
                "dense": cosine if has_vector else None,
                "words": MatchWords(self._query_words, shared.select(slice(*ends))),
                "coverage": coverage,
                "length": length,
                "average_length": statistics.average_length,
                "n_images": statistics.n,
                "text": text,
                "rest": rest,
            }

    def _split_text(
        self, images: Candidates, rows: Rows, shared: Contributions
    ) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Yield what each term of a text adds by the vector and by visual words, to each image."""
        n = len(rows)
        for term in self._query.terms:
            values = self._share_of(term)[shared.positions] * shared.values
            similarity_n = np.zeros(n)
            if self._query.scoring.cosine and term.dense_e is not None:
                length = float(np.linalg.norm(term.dense_e))
                similarity_n = length * images.cosines(term.dense_e, rows).astype(np.float64)
            yield similarity_n, self.sparse_factor * shared.sum_by_bag(values, n)

    def _match_text(
        self, images: Candidates, rows: Rows, cosines_n: NDArray[np.float32], shared: Contributions
    ) -> list[tuple[tuple[TextPart, ...], float]]:
        """Return what each term of a text adds to the score of each image, and all else does."""
        terms, counts_cosine = self._query.terms, self._query.scoring.cosine > 0
        columns, n = [], len(rows)
        rest_n = np.zeros(n)
        if terms:
            split = list(self._split_text(images, rows, shared))
            for term, (similarity_n, by_words_n) in zip(terms, split, strict=True):
                means = term.means if counts_cosine else (0.0, 0.0)
                columns.append(
                    ((similarity_n - means[0]).tolist(), (by_words_n - means[1]).tolist())
                )
            rest_shares = 1.0 - np.sum([self._share_of(term) for term in terms], axis=0)
            rest_shares[np.abs(rest_shares) < _ROUNDING] = 0.0
            values = rest_shares[shared.positions] * shared.values
            rest_n = self.sparse_factor * shared.sum_by_bag(values, n)
            if counts_cosine and self._query.has_images:
                rest_n = rest_n + cosines_n - np.sum([part for part, _ in split], axis=0)
        return [
            (
                tuple(
                    TextPart(term.label, similarity[i] + by_words[i], similarity[i], by_words[i])
                    for term, (similarity, by_words) in zip(terms, columns, strict=True)
                ),
                rest,
            )
            for i, rest in enumerate(rest_n.tolist())
        ]

    def _share_of(self, term: TextTerm) -> NDArray[np.float64]:
        """Return which share of the weight of each query word a term of a text has."""
        words = self._query.words
        shares = np.zeros(len(words.words))
        at = np.searchsorted(words.words, term.words.words)
        at[at == len(shares)] = 0
        is_kept = words.words[at] == term.words.words if len(shares) else np.zeros(len(at), bool)
        shares[at[is_kept]] = term.words.weights[is_kept] / words.weights[at[is_kept]]
        return shares

    def _judge(
        self, cosines_n: NDArray[np.float64], shared: Contributions
    ) -> list[Strength | None]:
        """Return how strong each match is, by its cosine and its share of the highest score."""
        if self._calibration is None or not self._query.is_plain:
            return [None] * len(cosines_n)
        judged = np.where(self._is_judged[shared.positions], shared.values, 0.0)
        highest = self._parameters.largest_saturation * self._judged_mass or 1.0
        shares_n = shared.sum_by_bag(judged, len(cosines_n)) / highest
        scores = (cosines_n + MODES["hybrid"].words * shares_n).tolist()
        bounds = self._calibration.weak_below, self._calibration.strong_from
        return [grade(score, *bounds) for score in scores]

    def query_words(self) -> tuple[QueryWord, ...]:
        """Return the words of the query, largest weight · idf first."""
        return tuple(
            sorted(self._query_words, key=lambda word: (-word.weight * word.idf, word.word))
        )

    def _list_words(self) -> list[QueryWord]:
        """Return the words of the query, ascending."""
        words, weights, frequencies = self._query.words
        names = map(self._names.get, words.tolist())
        idf, df = self._statistics.idf(words), self._statistics.df_v[words]
        columns = (column.tolist() for column in (weights, frequencies, idf, df))
        return list(map(QueryWord, words.tolist(), names, *columns))

    def notes(self) -> tuple[str, ...]:
        return self._query.notes + tuple(
            f"no image has {word_label(word, self._names.get(word))}: {effect}"
            for words, effect in (
                (self._query.filter.without, "excluding it changes nothing"),
                (self._query.boosted, "boosting it changes nothing"),
            )
            for word in words
            if self._n_with_word_v[word] == 0
        )


@dataclass(frozen=True)
class SplitScores:
    """The scores of ranked images, and what they are made of."""

    scores: NDArray[np.floating]
    factor: float  # of what words add
    words: NDArray[np.integer]  # of the query, ascending
    shared: Contributions
    terms: list[NDArray[np.float64]]  # what each term of a text adds, and a constant

    def rank_without_words(self, position: int, words: Sequence[int]) -> int:
        """Return the rank that an image would have if some words did not count."""
        is_left_out = np.isin(self.words, words)[self.shared.positions]
        values = np.where(is_left_out, self.shared.values, 0.0)
        added_n = self.factor * self.shared.sum_by_bag(values, len(self.scores))
        return _rank_of(self.scores - added_n, position)

    def rank_without_term(self, position: int, term: int) -> int:
        """Return the rank that an image would have without a term of the text."""
        return _rank_of(self.scores - self.terms[term], position)


def _rank_of(scores_n: NDArray[np.floating], position: int) -> int:
    return 1 + int(np.count_nonzero(scores_n > scores_n[position]))


def grade(score: float, weak_below: float, strong_from: float) -> Strength:
    return "weak" if score < weak_below else "strong" if score >= strong_from else "fair"
