"""How images compare with a query: scores, strength, coverage, and what each word contributes.

In: an encoded query, the statistics, rows of images. Out: a `Match` for each row. Not this module's
job: finding and ordering rows (`engine`).
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from bm25v.display import word_label
from bm25v.index.bm25 import Bm25Parameters, Contributions, Statistics, contributions
from bm25v.search.concepts import STRONG_FROM, WEAK_BELOW
from bm25v.search.contract import Images, Rows, View
from bm25v.search.encode import EncodedQuery
from bm25v.search.filters import Names
from bm25v.search.results import (
    ConceptPart,
    Match,
    MatchWords,
    QueryWord,
    Strength,
)
from bm25v.search.scoring import MODES
from bm25v.vocabulary.bag import SCALE


def words_factor(
    query: EncodedQuery,
    statistics: Statistics,
    parameters: Bm25Parameters,
    *,
    weight: float | None = None,
) -> float:
    """Return the factor of BM25 in the scores of a query; `weight` is that of its mode."""
    scoring, words = query.scoring, query.words
    if not scoring.words or not query.words_order:
        return 0.0
    if scoring.by_words_alone:
        return scoring.words
    if scoring.cosine:
        highest = sum(statistics.idf_masses(query.positive_words).tolist())
    else:
        highest = float((np.abs(words.weights) * statistics.idf(words.words)).sum())
    weight = scoring.words if weight is None else weight
    return weight / (parameters.largest_saturation * highest or 1.0)


class Matcher:
    """Compares images with one query."""

    def __init__(self, query: EncodedQuery, view: View, names: Names) -> None:
        self._query, self._names, self._calibration = query, names, view.calibration
        self._n_with_word_v = view.full_statistics.df_v
        self._parameters = view.parameters
        self._statistics = view.full_statistics if query.uses_full_bags else view.statistics
        words = query.words
        self._masses = np.where(words.weights > 0, self._statistics.idf_masses(words), 0.0)
        self.sparse_factor = words_factor(query, self._statistics, self._parameters)
        is_covered = np.isin(words.words, query.covered_words.words)
        self._covered_masses = np.where(is_covered, self._masses, 0.0)
        self._covered_mass = sum(self._covered_masses.tolist())
        # The images that the gallery was calibrated with had no more words than a full bag.
        n_judged = view.k_full if query.is_plain else 0
        self._is_judged = np.isin(words.words, words.strongest(n_judged).words)
        self._judged_mass = float(self._masses[self._is_judged].sum())
        self._query_words = self._list_words()

    def match(self, images: Images, rows: Rows, cosines: Sequence[float]) -> list[Match]:
        if self._query.uses_full_bags:
            images.full_bags.check(rows.tolist())
            words_nk, tf_nk = images.full_bags.read_words(rows)
        else:
            words_nk, tf_nk = images.index_bags(rows)
        n, statistics, factor = len(rows), self._statistics, self.sparse_factor
        shared = contributions(self._query.words, words_nk, tf_nk, statistics, self._parameters)
        sparse = shared.sum_by_bag(shared.values, n)
        shared_masses = shared.sum_by_bag(self._covered_masses[shared.positions], n)
        strengths = self._judge(np.array(cosines), shared)
        columns = (
            images.paths_of(rows),
            cosines,
            sparse.tolist(),
            strengths,
            (shared_masses / (self._covered_mass or 1.0)).tolist(),
            (tf_nk.sum(axis=1, dtype=np.int64) / SCALE).tolist(),
            self._match_terms(images, rows),
            pairwise(np.searchsorted(shared.bags, np.arange(n + 1)).tolist()),
        )
        counts_cosine = self._query.scoring.cosine > 0
        return [
            Match(
                path=path,
                mode=self._query.mode,
                score=(cosine if counts_cosine else 0.0)
                + factor * bm25
                + sum(term.value for term in terms),
                sparse=bm25,
                sparse_factor=factor,
                strength=self._judge_terms(terms) if terms else strength,
                dense=None if self._query.dense_e is None else cosine,
                words=MatchWords(self._query_words, shared.select(slice(*ends))),
                coverage=coverage,
                length=length,
                average_length=statistics.average_length,
                n_images=statistics.n,
                concepts=terms,
            )
            for path, cosine, bm25, strength, coverage, length, terms, ends in zip(
                *columns, strict=True
            )
        ]

    def _match_terms(self, images: Images, rows: Rows) -> list[tuple[ConceptPart, ...]]:
        weight = self._query.scoring.terms
        columns = [term.log_probabilities(images, rows).tolist() for term in self._query.terms]
        labels = [term.label for term in self._query.terms]
        return [
            tuple(
                ConceptPart(label, math.exp(column[i]), weight * column[i])
                for label, column in zip(labels, columns, strict=True)
            )
            for i in range(len(rows))
        ]

    def _judge_terms(self, terms: Sequence[ConceptPart]) -> Strength | None:
        """Return how probable the least probable term is; of a text beside images, nothing."""
        if self._query.mode != "concepts":
            return None
        probability = min(term.probability for term in terms)
        if probability < WEAK_BELOW:
            return "weak"
        return "strong" if probability >= STRONG_FROM else "fair"

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
        weak_below, strong_from = self._calibration.weak_below, self._calibration.strong_from
        return [
            "weak" if score < weak_below else "strong" if score >= strong_from else "fair"
            for score in scores
        ]

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
                (self._query.row_filter.without, "excluding it changes nothing"),
                (self._query.boosted, "boosting it changes nothing"),
            )
            for word in words
            if self._n_with_word_v[word] == 0
        )
