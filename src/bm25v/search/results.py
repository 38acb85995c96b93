"""What a search returns: hits, each with the contributions of its words.

In: a row, an encoded query, the statistics. Out: plain values for people and programs. Not this
module's job: finding and ordering rows.
"""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from bm25v.dataframes import make_frame
from bm25v.display import count, identify_word, word_label
from bm25v.errors import WrongUse
from bm25v.images import ImageInput
from bm25v.index.bm25 import (
    Bm25Parameters,
    Contribution,
    Statistics,
    contributions,
    sum_contributions,
)
from bm25v.progress import Progress, no_progress
from bm25v.search.concepts import STRONG_FROM, WEAK_BELOW
from bm25v.search.contract import Images, Rows, View
from bm25v.search.encode import EncodedQuery
from bm25v.search.filters import Names
from bm25v.vocabulary.bag import SCALE, Bag

if TYPE_CHECKING:
    import pandas

    from bm25v.explanations import Explanation

CONCEPT_WEIGHT = 0.1  # of the logarithm of a probability, beside a cosine
TEXT_WORDS_WEIGHT = 5.0  # of named words beside concepts, as a share of the highest possible score
HYBRID_WEIGHT = 1.5  # of BM25, as a share of the query's highest possible score, in hybrid mode

TEXT_MODES = ("concepts", "words", "sparse")  # in which such a logarithm counts fully

_COLUMNS = {  # of Results.to_pandas()
    "rank": "int",
    "path": "object",
    "score": "float",
    "sparse": "float",
    "dense": "float",
    "coverage": "float",
    "first_rank": "Int64",  # an integer that may be missing
    "words": "object",
}


class WordContribution(NamedTuple):
    """What one word adds to a score: contribution = weight · idf · saturation."""

    word: int
    name: str | None
    idf: float
    tf: float
    query_tf: float
    saturation: float
    contribution: float
    weight: float = 1.0
    df: int = 0

    def __repr__(self) -> str:
        word = identify_word(self.word, self.name)
        factors = f"{self.weight:.3g} · {self.idf:.2f} · {self.saturation:.2f}"
        return f"<WordContribution {word}: {self.contribution:.2f} = {factors}>"

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


class QueryWord(NamedTuple):
    """A word of the query: its weight, and how rare it is in the gallery."""

    word: int
    name: str | None
    weight: float
    query_tf: float
    idf: float
    df: int

    def __repr__(self) -> str:
        word = identify_word(self.word, self.name)
        return f"<QueryWord {word}: weight {self.weight:.3g}, idf {self.idf:.2f}>"

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


Strength = Literal["strong", "fair", "weak"]


class ConceptPart(NamedTuple):
    """What a term of a text adds to a score: value = factor · ln(probability)."""

    label: str
    probability: float
    value: float

    def __repr__(self) -> str:
        return f"<ConceptPart {self.label}: {self.probability:.0%}, {self.value:.2f}>"


class ScorePart(NamedTuple):
    """A part of a score: one word, the cosine, or a term of a text."""

    word: int | None  # None: the cosine, or a term
    label: str
    value: float


@dataclass(frozen=True)
class Match:
    """How one image compares with a query: `sparse` is the sum of `words`, `dense` the cosine.

    `score` is what a search orders its hits by, the sum of `parts`. `coverage` is the share of the
    query's IDF mass (the sum of weight · idf over the words with a weight above 0) that the image
    matches: 1 if it has all of these words. In modes "hybrid" and "words", all of this is about the
    image's full bag, else about the words that the index has of it. `strength` compares the image
    with the best hits of the gallery's own images; it is known in these two modes, if the query is
    one whole image.
    """

    path: str
    mode: str
    score: float
    sparse: float
    sparse_factor: float  # of `sparse` in the score: 0 if the mode orders by cosine alone
    strength: Strength | None  # None if that is not known
    dense: float | None  # None if the query has no dense vector
    words: tuple[WordContribution, ...]  # largest contribution first
    coverage: float
    length: float  # |d|, the sum of the image's term frequencies
    average_length: float  # of all images
    n_images: int  # N, of the gallery
    concepts: tuple[ConceptPart, ...] = field(default=(), kw_only=True)  # of a text

    def __repr__(self) -> str:
        return f"<Match {self.path}: BM25 {self.sparse:.2f}, coverage {self.coverage:.0%}>"

    @property
    def parts(self) -> tuple[ScorePart, ...]:
        """What the score is the sum of: terms, the cosine and each word, as far as they count."""
        parts = [ScorePart(None, part.label, part.value) for part in self.concepts]
        if self.dense is not None and self.mode not in ("words", "sparse"):
            parts.append(ScorePart(None, "cosine", self.dense))
        if self.sparse_factor:
            parts += (
                ScorePart(word.word, word.label, self.sparse_factor * word.contribution)
                for word in self.words
            )
        return tuple(parts)

    @property
    def formula(self) -> str:
        """How the score is made of its parts."""
        if self.concepts:
            return f"{self.score:.3f} = {' + '.join(self._describe_parts())}"
        if self.mode in ("words", "sparse"):
            return f"{self.sparse:.2f}, the sum of its words (BM25)"
        if self.mode == "hybrid" and self.dense is not None:
            words = f"{self.sparse_factor:.3g} × {self.sparse:.2f} by words (BM25)"
            return f"{self.score:.3f} = similarity {self.dense:.3f} + {words}"
        return f"{self.score:.3f}, the similarity (cosine) alone: words did not order the hits"

    def _describe_parts(self) -> Iterator[str]:
        for part in self.concepts:
            weight = "" if self.mode in TEXT_MODES else f"{CONCEPT_WEIGHT} × "
            yield f"{weight}ln {part.probability:.3g} ({part.label})"
        if self.dense is not None and self.mode not in ("words", "sparse"):
            yield f"similarity {self.dense:.3f}"
        if self.sparse_factor:
            yield f"{self.sparse_factor:.3g} × {self.sparse:.2f} by words (BM25)"

    def __fspath__(self) -> str:
        """Return the path, so that a hit is accepted wherever an image or a path is."""
        return self.path

    def _repr_html_(self) -> str:
        from bm25v.pages.notebook import match_fragment

        return match_fragment(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the match as plain values."""
        values = {
            "pictures" if field.name == "n_images" else field.name: getattr(self, field.name)
            for field in fields(self)
            if field.compare
        }
        return {
            **values,
            "words": [word._asdict() for word in self.words],
            "concepts": [part._asdict() for part in self.concepts],
        }


@dataclass(frozen=True)
class Hit(Match):
    """One result; `first_rank` is its rank in the first stage, by BM25 over the index."""

    rank: int
    first_rank: int | None  # None if all images were ordered, without a first stage
    _explain: Callable[..., "Explanation"] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        return f"<Hit {self.rank}: {self.path}, score {self.score:.3f}>"

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open gallery when a hit is pickled or copied."""
        return vars(self) | {"_explain": None}

    def explain(self, *, image: ImageInput | None = None) -> "Explanation":
        """Return why this hit matches the query of its search: which words, and where.

        Give its image if it was added from memory, or if its file is not here any more.
        """
        if self._explain is None:
            raise WrongUse(f"{self!r} has no open gallery: use gallery.explain(query, hit)")
        return self._explain(self, image=image)

    def to_dict(self) -> dict[str, Any]:
        """Return the hit as plain values."""
        first = ("rank", "first_rank", "path", "score", "strength", "sparse", "dense", "coverage")
        values = super().to_dict()
        words, _, _ = (values.pop(key) for key in ("words", "mode", "sparse_factor"))
        return {key: values.pop(key) for key in first} | values | {"words": words}


@dataclass(frozen=True)
class Results:
    """The hits of one search, best first.

    `query` lists the words that were searched for, `ms` the time of each stage. `no_match` is the
    reason if there are no hits. In hybrid mode, a hit's score = dense + sparse_factor · sparse.
    `candidates` is how many images the second stage ordered.
    """

    mode: str
    hits: tuple[Hit, ...]
    ms: dict[str, float]
    query: tuple[QueryWord, ...] = ()
    no_match: str | None = None
    notes: tuple[str, ...] = ()
    sparse_factor: float | None = None
    candidates: int | None = None  # None if all images were ordered
    understood: tuple[str, ...] = ()  # the terms of a text, if concepts order the hits
    not_understood: tuple[str, ...] = ()  # its other words
    _explain_hits: Callable[..., Any] | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        best = f", best {self.hits[0]!r}" if self.hits else f": {self.no_match}"
        return f"<Results: {count(len(self), 'hit')} ({self.mode}){best}>"

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    @property
    def is_weak(self) -> bool:
        """Whether even the best hit is a weak match, as far as that is known."""
        return any(hit.rank == 1 and hit.strength == "weak" for hit in self.hits[:1])

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, position: int) -> Hit:
        return self.hits[position]

    def _repr_html_(self) -> str:
        from bm25v.pages.notebook import results_fragment

        return results_fragment(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open gallery when results are pickled or copied."""
        return vars(self) | {"_explain_hits": None}

    def save(self, path: str | os.PathLike[str], *, progress: Progress = no_progress) -> None:
        """Write a page (.html), a table (.csv) or JSON (.json), as the suffix says."""
        from bm25v.pages.results_page import write_results

        write_results(self, Path(path), self._explain_hits, progress=progress)

    def to_dict(self) -> dict[str, Any]:
        """Return the results as plain values."""
        return {
            "mode": self.mode,
            "query": [word._asdict() for word in self.query],
            "hits": [hit.to_dict() for hit in self.hits],
            "no_match": self.no_match,
            "notes": list(self.notes),
            "sparse_factor": self.sparse_factor,
            "candidates": self.candidates,
            "understood": list(self.understood),
            "not_understood": list(self.not_understood),
            "ms": self.ms,
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row per hit; `words` holds what each word adds to `sparse`, by its label."""
        rows = ({**vars(hit), "words": _sum_by_label(hit.words)} for hit in self.hits)
        return make_frame(rows, _COLUMNS)


def let_explain(
    results: Results,
    explain: Callable[..., "Explanation"],
    explain_hits: Callable[..., Any],
) -> Results:
    """Return the same results, which call these functions to explain one hit, or several."""
    hits = tuple(replace(hit, _explain=explain) for hit in results.hits)
    return replace(results, hits=hits, _explain_hits=explain_hits)


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
        positive = query.positive_words
        masses: list[float] = self._statistics.idf_masses(positive).tolist()
        self._masses: dict[int, float] = dict(zip(positive.words.tolist(), masses, strict=True))
        self._total_mass = sum(masses)
        self._judged_words: set[int] = set()
        if query.is_plain and view.full_statistics is not None:
            judged = query.words.strongest(view.k_full)
            self._judged_words = set(judged.words.tolist())
        self._judged_mass = sum(self._masses[word] for word in self._judged_words)

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
        use_full = self._query.uses_full_bags and images.full_bags is not None
        read_bag = images.full_bags.bag if use_full and images.full_bags else images.bag
        columns = (rows.tolist(), images.paths_of(rows), cosines, self._match_terms(images, rows))
        return [
            self._match(read_bag(row), path, cosine, terms)
            for row, path, cosine, terms in zip(*columns, strict=True)
        ]

    def _match(self, bag: Bag, path: str, cosine: float, terms: tuple[ConceptPart, ...]) -> Match:
        statistics = self._statistics
        parts = contributions(self._query.words, bag, statistics, self._parameters)
        sparse, factor = sum_contributions(parts), self.sparse_factor
        counted = 0.0 if self._query.mode in ("words", "sparse", "concepts") else cosine
        return Match(
            path=path,
            mode=self._query.mode,
            score=counted + factor * sparse + sum(term.value for term in terms),
            sparse=sparse,
            sparse_factor=factor,
            strength=self._judge_terms(terms) if terms else self._judge(cosine, parts),
            dense=None if self._query.dense_e is None else cosine,
            words=tuple(self._to_word(part) for part in parts),
            coverage=self._coverage(parts),
            length=int(bag.tf.sum(dtype=np.int64)) / SCALE,
            average_length=statistics.average_length,
            n_images=statistics.n,
            concepts=terms,
        )

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

    def _judge(self, cosine: float, parts: list[Contribution]) -> Strength | None:
        if self._calibration is None or not self._query.is_plain:
            return None
        score = cosine + HYBRID_WEIGHT * self._judged_share(parts)
        if score < self._calibration.weak_below:
            return "weak"
        return "strong" if score >= self._calibration.strong_from else "fair"

    def _judged_share(self, parts: list[Contribution]) -> float:
        """Return the share of the highest possible score, by as many words as a full bag has.

        The images that the gallery was calibrated with had no more; the query may have.
        """
        value = sum(part.value for part in parts if part.word in self._judged_words)
        return value / (self._parameters.largest_saturation * self._judged_mass or 1.0)

    def query_words(self) -> tuple[QueryWord, ...]:
        """Return the words of the query, largest weight · idf first."""
        words, statistics = self._query.words, self._statistics
        columns = (words.words, words.weights, words.frequencies, statistics.idf(words.words))
        query_words = (
            QueryWord(word, self._names.get(word), weight, tf, idf, int(statistics.df_v[word]))
            for word, weight, tf, idf in zip(*(c.tolist() for c in columns), strict=True)
        )
        return tuple(sorted(query_words, key=lambda word: (-word.weight * word.idf, word.word)))

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

    def _to_word(self, part: Contribution) -> WordContribution:
        word, idf, query_tf, tf, saturation, value, weight, df = part  # of many hits: be quick
        name = self._names.get(word)
        return WordContribution(word, name, idf, tf, query_tf, saturation, value, weight, df)

    def _coverage(self, parts: list[Contribution]) -> float:
        shared = sorted(part.word for part in parts if part.word in self._masses)
        return sum(self._masses[word] for word in shared) / (self._total_mass or 1.0)


def _sum_by_label(words: Iterable[WordContribution]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for word in words:  # several words may have the same name
        sums[word.label] = sums.get(word.label, 0.0) + word.contribution
    return sums
