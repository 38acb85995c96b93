"""How images compare with a query: score, strength, coverage, and what each word contributes.

And why no image does.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.display import count, display_path, one_line, word_label
from bm25v.index.bm25 import Contributions, Statistics, WeightedWords, contributions
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
from bm25v.store.base import Candidates, Filter, Rows, View
from bm25v.store.records import Calibration
from bm25v.vocabulary.bag import SCALE

_ROUNDING = 1e-9  # of the sum of shares
_LISTED, _LONGEST = 8, 200  # words that are not understood, and their characters


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
        self._shares = [_share_of(term, words) for term in query.terms]
        statistics, numbers = self._statistics, words.words
        idf, df = statistics.idf(numbers), statistics.df_v[numbers]
        columns = (values.tolist() for values in (words.weights, words.frequencies, idf, df))
        listed = numbers.tolist()
        self._query_words = list(map(QueryWord, listed, map(names.get, listed), *columns))

    def match(self, images: Candidates, rows: Rows) -> list[Match]:
        """Return how some images compare with the query."""
        cosines_n = compare(images, self._query, rows)
        return [Match(**facts) for facts in self._describe(images, rows, cosines_n)]

    def make_hits(self, ranked: RankedImages, search: OpenSearch | None) -> tuple[Hit, ...]:
        """Return the hits of a search, which `search` can explain."""
        images, rows, cosines_n = ranked.images, ranked.rows, ranked.cosines
        if cosines_n is None:
            cosines_n = compare(images, self._query, rows)
        copies = [tuple(ranked.copies.get(row, ())) for row in rows.tolist()]
        listed = sorted({row for group in copies for row in group})
        copied = images.paths(np.array(listed, np.int64)) if listed else []
        paths = dict(zip(listed, copied, strict=True))
        columns = (self._describe(images, rows, cosines_n), ranked.first_ranks, copies)
        return tuple(
            Hit(
                **facts,
                rank=rank,
                first_rank=first_rank,
                copies=tuple(paths[row] for row in group),
                _search=search,
            )
            for rank, (facts, first_rank, group) in enumerate(
                zip(*columns, strict=True), self._query.offset + 1
            )
        )

    def _describe(
        self, images: Candidates, rows: Rows, cosines_n: NDArray[np.float32]
    ) -> Iterator[dict[str, Any]]:
        """Yield the fields of each image's `Match`."""
        query, statistics, n = self._query, self._statistics, len(rows)
        shared, tf_nk = self._compare_words(images, rows)
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
        counts_cosine, factor = query.scoring.cosine > 0, self.sparse_factor
        for path, cosine, bm25, strength, coverage, length, (text, rest), ends in zip(
            *columns, strict=True
        ):
            score = (cosine if counts_cosine else 0.0) + factor * bm25 + query.constant
            yield {
                "path": path,
                "mode": query.mode,
                "score": score,
                "sparse": bm25,
                "sparse_factor": factor,
                "strength": strength if query.bounds is None else grade(score, *query.bounds),
                "dense": None if query.dense_e is None else cosine,
                "words": MatchWords(self._query_words, shared.select(slice(*ends))),
                "coverage": coverage,
                "length": length,
                "average_length": statistics.average_length,
                "n_images": statistics.n,
                "text": text,
                "rest": rest,
            }

    def _compare_words(
        self, images: Candidates, rows: Rows
    ) -> tuple[Contributions, NDArray[np.uint16]]:
        """Return what each word adds to BM25 of each image, and the tf of all their words."""
        words_nk, tf_nk = images.read_bags(rows, full=self._query.uses_full_bags)
        formula = (self._statistics, self._parameters)
        return contributions(self._query.words, words_nk, tf_nk, *formula), tf_nk

    def _split_text(
        self, images: Candidates, rows: Rows, shared: Contributions
    ) -> NDArray[np.float64]:
        """Return what each term of a text adds by the vector, and by visual words, to each image.

        What it adds for any photo is part of it.
        """
        terms, n = self._query.terms, len(rows)
        split_2tn = np.zeros((2, len(terms), n))
        for t, term in enumerate(terms):
            if self._query.scoring.cosine and term.dense_e is not None:
                cosines_n = images.cosines(term.dense_e, rows).astype(np.float64)
                split_2tn[0, t] = float(np.linalg.norm(term.dense_e)) * cosines_n
            values = self._shares[t][shared.positions] * shared.values
            split_2tn[1, t] = self.sparse_factor * shared.sum_by_bag(values, n)
        return split_2tn

    def _match_text(
        self, images: Candidates, rows: Rows, cosines_n: NDArray[np.float32], shared: Contributions
    ) -> Iterator[tuple[tuple[TextPart, ...], float]]:
        """Yield what each term of a text adds to the score of each image, and all else does."""
        terms, n = self._query.terms, len(rows)
        if not terms:
            yield from [((), 0.0)] * n
            return
        counts_cosine = self._query.scoring.cosine > 0
        split_2tn = self._split_text(images, rows, shared)
        rest = 1.0 - np.sum(self._shares, axis=0)
        rest[np.abs(rest) < _ROUNDING] = 0.0
        rest_n = self.sparse_factor * shared.sum_by_bag(rest[shared.positions] * shared.values, n)
        if counts_cosine:
            if self._query.has_images:
                rest_n = rest_n + cosines_n - split_2tn[0].sum(axis=0)
            split_2tn -= np.transpose([term.means for term in terms])[..., None]
        for values_t2, rest_of_image in zip(split_2tn.T.tolist(), rest_n.tolist(), strict=True):
            parts = (
                TextPart(term.label, similarity + by_words, similarity, by_words)
                for term, (similarity, by_words) in zip(terms, values_t2, strict=True)
            )
            yield tuple(parts), rest_of_image

    def split_scores(self, ranked: RankedImages) -> "SplitScores":
        """Return what each word and each term of a text adds to the scores of ranked images."""
        shared, _ = self._compare_words(ranked.images, ranked.rows)
        terms_tn = self._split_text(ranked.images, ranked.rows, shared).sum(axis=0)
        words = self._query.words.words
        return SplitScores(ranked.scores, self.sparse_factor, words, shared, terms_tn)

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
    terms_tn: NDArray[np.float64]  # what each term of a text adds, and a constant

    def rank_without(self, position: int, words: Sequence[int], term: int | None) -> int:
        """Return the rank that an image would have if some words, or a term, did not count."""
        if term is None:
            is_left_out = np.isin(self.words, words)[self.shared.positions]
            values = np.where(is_left_out, self.shared.values, 0.0)
            added_n = self.factor * self.shared.sum_by_bag(values, len(self.scores))
        else:
            added_n = self.terms_tn[term]
        scores_n = self.scores - added_n
        return 1 + int(np.count_nonzero(scores_n > scores_n[position]))


def _share_of(term: TextTerm, words: WeightedWords) -> NDArray[np.float64]:
    """Return which share of the weight of each query word a term of a text has."""
    shares = np.zeros(len(words.words))
    at = np.searchsorted(words.words, term.words.words)
    at[at == len(shares)] = 0
    is_kept = words.words[at] == term.words.words if len(shares) else np.zeros(len(at), bool)
    shares[at[is_kept]] = term.words.weights[is_kept] / words.weights[at[is_kept]]
    return shares


def grade(score: float, weak_below: float, strong_from: float) -> Strength:
    return "weak" if score < weak_below else "strong" if score >= strong_from else "fair"


def explain_no_match(encoded: EncodedQuery, view: View, names: Mapping[int, str]) -> str:
    """Return the reason why a search has no hits."""
    words, condition = encoded.positive_words, encoded.filter
    if view.statistics.n == 0:
        return "the gallery has no images"
    if encoded.not_understood and not encoded.understood:
        unknown = one_line(", ".join(encoded.not_understood[:_LISTED]))
        return f"nothing is known about {unknown[:_LONGEST]}"
    if encoded.offset:
        return f"there are no more hits after the first {encoded.offset:,}"
    required = _describe_words(condition, names)
    which = f" {condition.images.describe()}" if condition.images else ""
    which += f" that {required}" if required else ""
    if not view.count(condition):
        if view.count(replace(condition, own_paths=(), own_contents=())):
            return f"there is no other image{which} than those of the query"
        return _explain_filter(condition, which, view.full_statistics, names)
    if not len(words.words) and not encoded.has_images and not encoded.boosted:
        has_vector = encoded.dense_e is not None
        return f"the text {'has no visual words' if has_vector else 'names nothing to look for'}"
    if not len(words.words):
        return "the query has no words: the image has none, or all are muted"
    best = view.best_coverage(encoded)
    if best.share <= 0:
        return f"0 of {count(len(words.words), 'word')} shared with any image{which}"
    if best.share < encoded.min_coverage:
        closest = f"the best has {best.share:.2f}: {display_path(best.path)}"
        return f"no image{which} reaches a coverage of {encoded.min_coverage:g} ({closest})"
    return "in every image, the words that count against it outweigh those that count for it"


def _explain_filter(
    condition: Filter, which: str, statistics: Statistics, names: Mapping[int, str]
) -> str:
    for group in condition.must:
        if not statistics.df_v[list(group)].any():
            return f"no image has {_list_words(group, names)}"
    if condition.images:
        return f"no image{which}"
    if not condition.must:
        return f"every image has {_list_words(condition.without, names)}"
    return f"no image {_describe_words(condition, names)}"


def _describe_words(condition: Filter, names: Mapping[int, str]) -> str:
    """Return which words images must have and not have."""
    groups = (_list_words(group, names) for group in condition.must)
    required = f"has {' and '.join(groups)}" if condition.must else ""
    excluded = _list_words(condition.without, names)
    if required and excluded:
        return f"{required} but not {excluded}"
    return required or (f"does not have {excluded}" if excluded else "")


def _list_words(words: Sequence[int], names: Mapping[int, str]) -> str:
    """Return words as a list.

    >>> _list_words((3, 4, 7), {4: "striped ear"})
    'word 3, striped ear or word 7'
    """
    labels = list(dict.fromkeys(word_label(word, names.get(word)) for word in words))
    return " or ".join(filter(None, (", ".join(labels[:-1]), *labels[-1:])))
