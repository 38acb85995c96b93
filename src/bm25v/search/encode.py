"""Turns a query into what a search reads: weighted words, a dense vector, a filter, a scoring.

Images are encoded or read (`query_images`), names become words, a text is read (`text`), feedback
is read; then all of them are combined (`combine`).
"""

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import InvalidQuery
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search.combine import (
    LIKED_WEIGHT,
    add_words,
    apply_word_options,
    combine_bags,
    combine_vectors,
)
from bm25v.search.query import Query, StoredImage, make_filter
from bm25v.search.query_images import ImageReader, QueryPart, resolve_region
from bm25v.search.scoring import MODES, Mode, Scoring, share_factor
from bm25v.search.text import (
    TEXT_WEIGHT,
    NamedVocabulary,
    TextMeaning,
    TextTerm,
    interpret_text,
)
from bm25v.store.base import Filter, View
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import FULL_WORDS
from bm25v.vocabulary.lexicon import CAPTIONS
from bm25v.vocabulary.names import is_name

FIRST_WORDS = 32  # of a query that is scored in full bags: its strongest find the candidates
TEXT_FIRST_WORDS = 48  # of a text, whose words are many and weak
_STRONGEST = 3  # words of a name that are required or excluded: almost every image has some of all
COPIES = 16  # images behind the last hit, which may be copies of hits
TEXT_ALL = 20_000  # images that a text orders without a first stage, which takes milliseconds


@dataclass(frozen=True)
class EncodedQuery:
    """A query as stores and ranking read it."""

    words: WeightedWords
    mode: Mode
    filter: Filter = field(default_factory=Filter)
    boosted: tuple[int, ...] = ()
    dense_e: NDArray[np.float32] | None = None
    codes: tuple[Codes, ...] = ()  # of each query image, within the region
    patches: tuple[NDArray[np.float32] | None, ...] = ()  # their features, if they are known
    notes: tuple[str, ...] = ()  # for the user: what a text was taken to mean
    is_plain: bool = False  # one whole image, ordered by full bags: its scores can be judged
    terms: tuple[TextTerm, ...] = ()  # of a text; the words and the vector contain them
    has_images: bool = True  # so has the vector
    factor: float | None = None  # of BM25 beside the cosine; None: not computed yet
    constant: float = 0.0  # that a text adds to every score
    bounds: tuple[float, float] | None = None  # of a text: scores that are not weak, and strong
    understood: tuple[str, ...] = ()  # of a text
    not_understood: tuple[str, ...] = ()
    k_full: int = FULL_WORDS  # how many words an image of the gallery has at most
    k: int = 10
    offset: int = 0
    n_hits: int = 10  # up to the last one of the page
    candidates: int | None = None
    min_coverage: float = 0.0
    merges_copies: bool = False

    @property
    def scoring(self) -> Scoring:
        return MODES[self.mode]

    @property
    def uses_full_bags(self) -> bool:
        return self.scoring.bags == "full"

    @property
    def is_filter(self) -> bool:
        """Whether a text only rules images out, by dates, paths or named words: all are hits."""
        has_query = len(self.words.words) or self.terms or self.has_images
        return bool(self.understood) and not has_query

    @property
    def n_candidates(self) -> int:
        """How many images the second stage orders."""
        if not self.scoring.candidates:
            return self.offset + self.k + COPIES * self.merges_copies
        scoring = self.scoring
        default = scoring.candidates if self.terms else scoring.count_candidates(self.n_hits)
        return max(self.k, self.candidates or default)

    @property
    def n_without_index(self) -> int:
        """How many images are all ordered, without a first stage."""
        if not self.uses_full_bags:
            return 0
        if self.terms and not len(self.positive_words.words):
            return sys.maxsize  # the index finds nothing for "no dog"
        if self.candidates is not None:
            return self.n_candidates
        return max(self.n_candidates, TEXT_ALL if self.terms else self.scoring.candidates)

    @property
    def first_words(self) -> WeightedWords:
        """The words that find candidates in the index."""
        if not self.uses_full_bags:
            return self.words
        if self.terms:  # words that count against an image find none
            return self.positive_words.strongest(TEXT_FIRST_WORDS)
        return self.words.strongest(FIRST_WORDS)

    @property
    def positive_words(self) -> WeightedWords:
        return self.words.select(np.flatnonzero(self.words.weights > 0))

    @property
    def covered_words(self) -> WeightedWords:
        """The words that an image can have all of: the positive ones, or the strongest of them."""
        words = self.positive_words
        return words.strongest(self.k_full) if self.uses_full_bags else words


class _Sum(NamedTuple):
    """The words and the vector of several parts of a query, and how they are added up."""

    words: WeightedWords
    dense_e: NDArray[np.float32] | None
    no_dense: str = ""
    factor: float | None = None
    constant: float = 0.0
    terms: tuple[TextTerm, ...] = ()


def encode(
    query: Query,
    view: View,
    named: NamedVocabulary,
    encodings: Sequence[Encoding] | None = None,
) -> EncodedQuery:
    """Return the weighted words, the filter and the dense vector of a query.

    `encodings` are those of the query's images, if they are encoded already.
    """
    text = TextMeaning()
    if query.text is not None:
        text = interpret_text(query.text, named, view)
    mode = choose_mode(query, text)
    region = resolve_region(query).region
    reader = ImageReader(query, view, named.vocabulary, mode)
    liked, negative = reader.read_stored(query.like), reader.read_stored(query.unlike)
    given: Iterable[Encoding | None] = encodings or repeat(None, len(query.images))
    parts = [reader.read_image(*pair, region) for pair in zip(query.images, given, strict=True)]
    negative += map(reader.read_image, query.negative)
    by_strength = MODES[mode].bags == "full" or query.query_words is not None
    sum_ = _add_images(parts, liked, negative, by_strength=by_strength)
    if text.terms:
        weight = 1.0 if parts else LIKED_WEIGHT  # feedback counts less than an image of the query
        beside = sum_ if parts or liked or negative else None
        sum_ = _add_text(beside, weight, text.terms, mode, view)
    weights = dict(zip(sum_.words.words.tolist(), sum_.words.weights.tolist(), strict=True))
    must, excluded = (
        [_choose_words(group, weights, _STRONGEST) for group in named.find_groups(words)]
        for words in (query.must, query.without)
    )
    without = dict.fromkeys(word for group in excluded for word in group)
    # A required name stands for its words that are not excluded, if there are any.
    must = [tuple(word for word in group if word not in without) or group for group in must]
    images, of_text = make_filter(query), text.images
    dates = images.dates or of_text.dates  # an option for dates counts more than a text
    condition = Filter(
        replace(images, names=of_text.names, called=of_text.called, dates=dates),
        (*map(tuple, must), *text.must),
        tuple(dict.fromkeys((*without, *text.without))),
        *reader.list_own(),
    )
    required = [word for group in must for word in group]
    boost = _find_boosts(query, named, weights)
    words = apply_word_options(sum_.words, must=required, without=condition.without, boost=boost)
    if sum_.dense_e is None and MODES[mode].cosine:
        if query.mode is not None and (text.terms or query.text is None):
            raise InvalidQuery(f"mode {mode!r}: {sum_.no_dense}; use mode 'words' or 'sparse'")
        mode = "words" if MODES[mode].bags == "full" else "sparse"
    is_plain = MODES[mode].bags == "full" and sum_.dense_e is not None and _is_plain(query)
    factor = sum_.factor
    if MODES[mode].is_sum and factor is None:
        factor = share_factor(words, MODES[mode], view.full_statistics, view.meta.parameters)
    return EncodedQuery(
        words,
        mode,
        condition,
        boosted=tuple(boost),
        dense_e=sum_.dense_e,
        codes=tuple(part.codes for part in parts if part.codes is not None),
        patches=tuple(part.patches_pd for part in parts if part.codes is not None),
        notes=(*view.notes, *text.notes),
        is_plain=is_plain,
        terms=sum_.terms,
        has_images=bool(parts or liked or negative),
        factor=factor,
        constant=sum_.constant if MODES[mode].cosine else 0.0,
        bounds=_find_bounds(query, text, sum_, mode, named.vocabulary),
        understood=text.understood,
        not_understood=text.not_understood,
        k_full=view.meta.k_full,
        k=query.k,
        offset=query.offset,
        n_hits=query.offset + query.k,
        candidates=query.candidates,
        min_coverage=query.min_coverage,
        merges_copies=query.merge_copies,
    )


class Remaining(NamedTuple):
    """How many images a search allows: those that have a word, and those that do not have it."""

    must: int
    without: int


def count_remaining(query: Query, view: View, named: NamedVocabulary) -> Remaining:
    """Count the images that a query allows, and those if the first of its `must` was excluded."""
    condition = encode(query, view, named).filter
    group, *others = condition.must
    excluded = replace(condition, must=tuple(others), without=(*condition.without, *group))
    return Remaining(view.count(condition), view.count(excluded))


def _find_bounds(
    query: Query, text: TextMeaning, sum_: _Sum, mode: Mode, vocabulary: Vocabulary
) -> tuple[float, float] | None:
    """Return which scores of a text are weak and strong; None if that is not known.

    It is known for a text that is understood as a whole, without images and words beside it. No
    score is strong unless captions have all words: what else is like a class has high scores too.
    """
    others = (query.images, query.negative, query.like, query.unlike, query.must, query.boost)
    is_whole = not text.not_understood and not text.must and not any(others)
    weight = sum(term.weight for term in text.terms)
    if mode != "hybrid" or not is_whole or not weight or sum_.factor is None:
        return None
    lexicon = vocabulary.lexicon  # which a search without a text does not read
    if lexicon is None:
        return None
    weak_below, strong_from = lexicon.find_bounds(weight)
    if any(term.learned_from != CAPTIONS for term in text.terms):
        strong_from = math.inf
    return sum_.factor * weak_below, sum_.factor * strong_from


def choose_mode(query: Query, text: TextMeaning) -> Mode:
    """Return the mode of a query: the given one, or hybrid; dense if a text has no words."""
    if query.mode is not None:
        return query.mode
    has_words = any(len(term.words.words) for term in text.terms)
    if text.terms and not has_words and not query.boost and not (query.images or query.like):
        return "dense"
    return "hybrid"


def _add_text(
    images: _Sum | None, weight: float, terms: tuple[TextTerm, ...], mode: Mode, view: View
) -> _Sum:
    """Return the sum of a text's terms and, if there are any, of the query's images.

    Everything is divided by the length of the vector, because a search computes cosines.
    """
    scoring = MODES[mode]
    vectors = [term.dense_e for term in terms if term.dense_e is not None]
    words = [term.words for term in terms]
    scale = 1.0
    if images is not None:
        scale = TEXT_WEIGHT
        vectors = [np.float32(scale) * vector_e for vector_e in vectors]
        statistics = view.full_statistics if scoring.bags == "full" else view.statistics
        beside = (MODES["hybrid"], statistics, view.meta.parameters)  # the same in every mode
        share = weight * share_factor(images.words, *beside)
        words = [images.words.scaled(share), *(part.scaled(scale) for part in words)]
        if images.dense_e is not None:
            vectors.append(np.float32(weight) * images.dense_e)
    sum_e, length = None, 1.0
    if vectors:
        width = min(map(len, vectors))  # a text has no vector of a second backbone
        stacked_ne = np.stack([vector_e[:width] for vector_e in vectors])
        sum_e = np.asarray(stacked_ne.sum(axis=0), dtype=np.float32)
        length = float(np.linalg.norm(sum_e)) or 1.0
    unit = scale / length

    def scale_term(term: TextTerm) -> TextTerm:
        vector_e = None if term.dense_e is None else np.float32(unit) * term.dense_e
        means = (unit * term.means[0], unit * term.means[1] * (scoring.words > 0))
        return replace(term, dense_e=vector_e, words=term.words.scaled(scale), means=means)

    scaled = tuple(map(scale_term, terms))
    no_dense = "" if vectors else "named words have no dense vector"
    constant = -sum(sum(term.means) for term in scaled)
    return _Sum(add_words(words), sum_e, no_dense, 1 / length, constant, scaled)


def load_models(query: Query, vocabulary: Vocabulary) -> None:
    """Load what a query needs, so that the time of encoding does not include it."""
    sources = (*query.images, *query.negative)
    if not all(isinstance(image, Encoding | StoredImage) for image in sources):
        vocabulary.backbone.load_weights()
    if query.text is not None:
        vocabulary.text_tower  # noqa: B018 - loads it


def _is_plain(query: Query) -> bool:
    """Return whether a query is one whole image and nothing else, but for filters."""
    others = (query.negative, query.like, query.unlike, query.must, query.without, query.boost)
    is_whole = query.region is None and query.text is None and query.query_words is None
    return len(query.images) == 1 and is_whole and not any(others)


def _choose_words(
    group: Sequence[int], weights: Mapping[int, float], n: int | None = None
) -> Sequence[int]:
    """Return the words of a group that a query has, or the n strongest; all if it has none."""
    present = sorted((word for word in group if word in weights), key=lambda word: -weights[word])
    return present[:n] or group


def _find_boosts(
    query: Query, named: NamedVocabulary, weights: Mapping[int, float]
) -> dict[int, float]:
    """Return the factor of each word; words that are excluded by a name have none."""
    by_name = named.find_words(filter(is_name, query.without))
    all_excluded = named.find_words(query.without)
    factors: dict[int, float] = {}
    for given, factor in query.boost.items():
        excluded = all_excluded if is_name(given) else by_name
        for word in _choose_words(named.find_words([given]), weights):
            if word in excluded:
                continue
            if word in factors:
                raise InvalidQuery(f"word {word} is boosted twice: give one factor")
            factors[word] = factor
    return factors


def _add_images(
    parts: list[QueryPart], liked: list[QueryPart], negative: list[QueryPart], *, by_strength: bool
) -> _Sum:
    """Return the sum of the images of a query; without a vector, the reason is known."""
    bags, liked_bags, negative_bags = (
        [part.bag for part in group] for group in (parts, liked, negative)
    )
    words = combine_bags(bags, liked=liked_bags, negative=negative_bags, by_strength=by_strength)
    if not parts and not liked:
        return _Sum(words, None, "words have no dense vector")
    missing = [part.no_dense for part in parts if part.dense_e is None]
    if missing:
        return _Sum(words, None, missing[0])
    vectors, liked_vectors, negative_vectors = (
        [part.dense_e for part in group if part.dense_e is not None]
        for group in (parts, liked, negative)
    )
    if len(vectors) == 1 and not liked_vectors and not negative_vectors:
        return _Sum(words, vectors[0].astype(np.float32))
    return _Sum(words, combine_vectors(vectors, liked=liked_vectors, negative=negative_vectors))
