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
    CONCEPT_WEIGHT,
    TEXT_MODES,
    ConceptPart,
    Match,
    MatchWords,
    QueryWord,
    Strength,
)
from bm25v.vocabulary.bag import SCALE

TEXT_WORDS_WEIGHT = 5.0  # of named words beside concepts, as a share of the highest possible score
HYBRID_WEIGHT = 1.5  # of BM25, as a share of the query's highest possible score, in hybrid mode


def hybrid_factor(
    query: EncodedQuery,
    statistics: Statistics,
    parameters: Bm25Parameters,
    weight: float = HYBRID_WEIGHT,
) -> float:
    """Return the factor of BM25 in the score of a hybrid search; `Matcher` has the same."""
    masses = statistics.idf_masses(query.positive_words)
    return _hybrid_factor(weight, sum(masses.tolist()), parameters)


def _hybrid_factor(weight: float, mass: float, parameters: Bm25Parameters) -> float:
    """Return a factor that makes BM25 a share of the highest score that a query can reach."""
    return weight / (parameters.largest_saturation * mass or 1.0)


def concept_weight(mode: str) -> float:
    """Return the factor of the logarithm of a probability in the scores of a mode."""
    return 1.0 if mode in TEXT_MODES else CONCEPT_WEIGHT


class Matcher:
    """Compares images with one query."""

    def __init__(self, query: EncodedQuery, view: View, names: Names) -> None:
        self._query, self._names, self._calibration = query, names, view.calibration
        self._n_with_word_v = (view.full_statistics or view.statistics).df_v
        self._parameters = view.parameters
        self._statistics = view.statistics
        if query.uses_full_bags and view.full_statistics is not None:
            self._statistics = view.full_statistics
        words = query.words
        self._masses = np.where(words.weights > 0, self._statistics.idf_masses(words), 0.0)
        self._total_mass = sum(self._masses.tolist())
        # The images that the gallery was calibrated with had no more words than a full bag.
        n_judged = view.k_full if query.is_plain and view.full_statistics is not None else 0
        self._is_judged = np.isin(words.words, words.strongest(n_judged).words)
        self._judged_mass = float(self._masses[self._is_judged].sum())
        self._query_words = self._list_words()

    @property
    def sparse_factor(self) -> float:
        """The factor of BM25 in the score."""
        if self._query.mode == "hybrid":
            return _hybrid_factor(HYBRID_WEIGHT, self._total_mass, self._parameters)
        if self._query.mode == "concepts" and self._query.words_order:
            words = self._query.words
            masses = np.abs(words.weights) * self._statistics.idf(words.words)
            highest = self._parameters.largest_saturation * float(masses.sum())
            return TEXT_WORDS_WEIGHT / (highest or 1.0)
        return 1.0 if self._query.mode in ("words", "sparse") else 0.0

    def match(self, images: Images, rows: Rows, cosines: Sequence[float]) -> list[Match]:
        """Return how some images compare with the query."""
        if self._query.uses_full_bags and images.full_bags is not None:
            images.full_bags.check(rows.tolist())
            words_nk, tf_nk = images.full_bags.read_words(rows)
        else:
            words_nk, tf_nk = images.index_bags(rows)
        n, statistics, factor = len(rows), self._statistics, self.sparse_factor
        shared = contributions(self._query.words, words_nk, tf_nk, statistics, self._parameters)
        sparse = shared.sum_by_bag(shared.values, n)
        shared_masses = shared.sum_by_bag(self._masses[shared.positions], n)
        strengths = self._judge(np.array(cosines), shared)
        columns = (
            images.paths_of(rows),
            cosines,
            sparse.tolist(),
            strengths,
            (shared_masses / (self._total_mass or 1.0)).tolist(),
            (tf_nk.sum(axis=1, dtype=np.int64) / SCALE).tolist(),
            self._match_terms(images, rows),
            pairwise(np.searchsorted(shared.bags, np.arange(n + 1)).tolist()),
        )
        counts_cosine = self._query.mode not in ("words", "sparse", "concepts")
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
        """Return what each term adds, for each image."""
        weight = concept_weight(self._query.mode)
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
        scores = (cosines_n + HYBRID_WEIGHT * shares_n).tolist()
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
        """Return what the user should know: the meaning of a text, options without effect."""
        return self._query.notes + tuple(
            f"no image has {word_label(word, self._names.get(word))}: {effect}"
            for words, effect in (
                (self._query.row_filter.without, "excluding it changes nothing"),
                (self._query.boosted, "boosting it changes nothing"),
            )
            for word in words
            if self._n_with_word_v[word] == 0
        )
