"""How images compare with a query: score, strength, coverage, and what each word contributes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.display import word_label
from bm25v.index.bm25 import Contributions, contributions
from bm25v.search.concepts import STRONG_FROM, WEAK_BELOW
from bm25v.search.encode import EncodedQuery
from bm25v.search.rank import RankedImages, compare, words_factor
from bm25v.search.results import (
    ConceptPart,
    Hit,
    Match,
    MatchWords,
    OpenSearch,
    QueryWord,
    Strength,
)
from bm25v.search.scoring import MODES
from bm25v.store.base import Candidates, Rows, View
from bm25v.store.records import Calibration
from bm25v.vocabulary.bag import SCALE


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
        matches = zip(self._describe(images, rows, cosines_n), ranked.first_ranks, strict=True)
        return tuple(
            Hit(**facts, rank=rank, first_rank=first_rank, _search=search)
            for rank, (facts, first_rank) in enumerate(matches, start=first)
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
            self._match_terms(images, rows),
            pairwise(np.searchsorted(shared.bags, np.arange(n + 1)).tolist()),
        )
        counts_cosine, has_vector = self._query.scoring.cosine > 0, self._query.dense_e is not None
        for path, cosine, bm25, strength, coverage, length, terms, ends in zip(
            *columns, strict=True
        ):
            score = (cosine if counts_cosine else 0.0) + factor * bm25
            yield {
                "path": path,
                "mode": self._query.mode,
                "score": score + sum(term.value for term in terms),
                "sparse": bm25,
                "sparse_factor": factor,
                "strength": self._judge_terms(terms) if terms else strength,
                "dense": cosine if has_vector else None,
                "words": MatchWords(self._query_words, shared.select(slice(*ends))),
                "coverage": coverage,
                "length": length,
                "average_length": statistics.average_length,
                "n_images": statistics.n,
                "concepts": terms,
            }

    def _match_terms(self, images: Candidates, rows: Rows) -> list[tuple[ConceptPart, ...]]:
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
                (self._query.filter.without, "excluding it changes nothing"),
                (self._query.boosted, "boosting it changes nothing"),
            )
            for word in words
            if self._n_with_word_v[word] == 0
        )
