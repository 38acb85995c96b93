"""Turns a query into what ranking needs: weighted words, filters and a dense vector.

The images are encoded (`query_images`), names become words, a text is looked up (`text`), feedback
is read from the collection; then all of them are combined (`combine`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.text import has_text_tower
from bm25v.errors import InvalidQuery
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search.combine import apply_word_options, combine_bags, combine_vectors
from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.search.query import Query, Word, make_filter
from bm25v.search.query_images import (
    QueryPart,
    encode_image,
    encode_images,
    find_without_file,
    read_stored_image,
    resolve_region,
    to_part,
)
from bm25v.search.scoring import MODES, Mode, Scoring
from bm25v.search.text import NO_TEXT, interpret_text, n_nearest, share_words
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import FULL_WORDS, Bag
from bm25v.vocabulary.names import check_word, find_word

FIRST_WORDS = 32  # of a query that is scored in full bags: its strongest find the candidates


@dataclass(frozen=True)
class EncodedQuery:
    """A query as the index and the second stage read it."""

    words: WeightedWords
    mode: Mode
    row_filter: RowFilter = field(default_factory=RowFilter)
    boosted: tuple[int, ...] = ()
    dense_e: NDArray[np.float32] | None = None
    no_dense: str = ""  # the reason, if there is no dense vector
    codes: tuple[Codes, ...] = ()  # of each query image, within the region
    text: str | None = None
    notes: tuple[str, ...] = ()  # for the user: what a text was taken to mean
    is_plain: bool = False  # one whole image, ordered by full bags: its scores can be judged
    terms: tuple[ConceptTerm, ...] = ()  # of a text, by the vocabulary's concepts
    understood: tuple[str, ...] = ()  # of a text
    not_understood: tuple[str, ...] = ()
    words_order: bool = True  # False: the words only describe the images nearest to a text
    k_full: int = FULL_WORDS  # how many words an image of the gallery has at most
    k: int = 10
    offset: int = 0
    candidates: int | None = None
    min_coverage: float = 0.0
    selected_by: str = ""  # folder, date and size that hits must have, for people

    @property
    def scoring(self) -> Scoring:
        return MODES[self.mode]

    @property
    def uses_full_bags(self) -> bool:
        return self.scoring.bags == "full"

    @property
    def n_candidates(self) -> int:
        """How many images the second stage orders."""
        if not self.scoring.candidates:
            return self.offset + self.k
        return max(self.k, self.candidates or self.scoring.candidates)

    @property
    def first_words(self) -> WeightedWords:
        """The words that find candidates in the index."""
        return self.words.strongest(FIRST_WORDS) if self.uses_full_bags else self.words

    @property
    def positive_words(self) -> WeightedWords:
        return self.words.select(np.flatnonzero(self.words.weights > 0))

    @property
    def covered_words(self) -> WeightedWords:
        """The words that an image can have all of: the positive ones, or the strongest of them."""
        words = self.positive_words
        return words.strongest(self.k_full) if self.uses_full_bags else words


def encode_query(
    query: Query,
    engine: SearchEngine,
    view: View,
    encodings: Sequence[Encoding] | None = None,
) -> EncodedQuery:
    """Return the weighted words, the filters and the dense vector of a query.

    `encodings` are those of the query's images, if they are encoded already.
    """
    vocabulary, names = engine.vocabulary, engine.word_names
    mode = plan_mode(query, engine, view)
    must = _find_words(query.must, names, vocabulary)
    without = _find_words(query.without, names, vocabulary)
    boost = _find_boosts(query.boost, names, vocabulary)
    row_filter, notes = view.plan_filter(query, must, without), [*view.notes]
    full = MODES[mode].bags == "full"

    def read(path: str) -> QueryPart:
        return read_stored_image(path, view, full, query.query_words)

    liked, negative = list(map(read, query.like)), list(map(read, query.unlike))
    query = resolve_region(query)
    parts, codes = encode_images(query, engine, view, encodings, full)
    text = NO_TEXT
    if query.text is not None:
        text = interpret_text(query.text, mode, engine, view, row_filter)
        row_filter = replace(row_filter, without=(*without, *text.excluded_words))
        if text.terms:
            boost = dict.fromkeys(text.words, 1.0) | boost
        else:
            parts.append(QueryPart(_text_bag(text.words), text.dense_e, text.no_dense))
        notes += text.notes
    for image in query.negative:
        stored = find_without_file(image, engine)
        if stored is not None:
            negative.append(read(stored))
        else:
            encoding = encode_image(vocabulary, image)
            negative.append(to_part(encoding, query.query_words, full))
    words = combine_bags(
        [part.bag for part in parts],
        liked=[part.bag for part in liked],
        negative=[part.bag for part in negative],
        by_strength=full or query.query_words is not None,
    )
    words = apply_word_options(words, must=must, without=row_filter.without, boost=boost)
    filter_by = make_filter(query)
    options: dict[str, Any] = {
        "row_filter": row_filter,
        "boosted": tuple(boost),
        "text": query.text,
        "notes": tuple(notes),
        "terms": text.terms,
        "understood": text.understood,
        "not_understood": text.not_understood,
        "k_full": view.k_full,
        "k": query.k,
        "offset": query.offset,
        "candidates": query.candidates,
        "min_coverage": query.min_coverage,
        "selected_by": filter_by.describe() if filter_by else "",
    }
    if mode == "concepts" and text.terms:
        # Without words, those that the best images share are shown beside the hits.
        words_order = bool(len(words.words))
        if not words_order:
            nearest = view.find_nearest(n_nearest(view), row_filter, terms=text.terms)
            words = combine_bags([_text_bag(share_words(view, nearest))])
        return EncodedQuery(words, mode, no_dense=text.no_dense, words_order=words_order, **options)
    dense_e, no_dense = _combine_dense(parts, liked, negative)
    if query.mode is None and dense_e is None:
        mode = "words" if full else "sparse"
    elif MODES[mode].cosine and dense_e is None:
        without_vector = "'concepts'" if text.terms else "'words' or 'sparse'"
        raise InvalidQuery(f"mode {mode!r}: {text.no_dense or no_dense}; use mode {without_vector}")
    return EncodedQuery(
        words,
        mode,
        dense_e=dense_e,
        no_dense=no_dense,
        codes=tuple(codes),
        is_plain=full and dense_e is not None and _is_plain(query),
        **options,
    )


def plan_mode(query: Query, engine: SearchEngine, view: View) -> Mode:
    """Return the mode of a query: the given one, or the default if there is a dense vector."""
    vocabulary, is_text_only = engine.vocabulary, not (query.images or query.like)
    if query.mode == "concepts":
        if query.text is None or not is_text_only:
            raise InvalidQuery("mode 'concepts' orders by a text alone: give one, without images")
        if vocabulary.concepts is None:
            raise InvalidQuery(
                f"mode 'concepts': the vocabulary {vocabulary.name} has no concepts; the default "
                "vocabulary has"
            )
    if query.mode is not None:
        return query.mode
    if query.text is not None and has_text_tower(engine.vocabulary.backbone_name):
        return "words" if query.boost else "dense"
    if query.text is not None and is_text_only and vocabulary.concepts is not None:
        return "concepts"
    return "hybrid"


def _is_plain(query: Query) -> bool:
    """Return whether a query is one whole image and nothing else, but for filters."""
    others = (query.negative, query.like, query.unlike, query.must, query.without, query.boost)
    is_whole = query.region is None and query.text is None and query.query_words is None
    return len(query.images) == 1 and is_whole and not any(others)


def _find_words(
    words: Sequence[Word], names: Mapping[int, str], vocabulary: Vocabulary
) -> tuple[int, ...]:
    return tuple(dict.fromkeys(_find_word(word, names, vocabulary) for word in words))


def _find_word(word: Word, names: Mapping[int, str], vocabulary: Vocabulary) -> int:
    if isinstance(word, str):
        return find_word(word, names, vocabulary.n_words)
    if isinstance(word, bool) or not isinstance(word, int | np.integer):
        raise InvalidQuery(f"{word!r} is not a word: give its number or its name")
    return check_word(int(word), vocabulary.n_words)


def _find_boosts(
    boost: Mapping[Word, float], names: Mapping[int, str], vocabulary: Vocabulary
) -> dict[int, float]:
    factors: dict[int, float] = {}
    for given, factor in boost.items():
        word = _find_word(given, names, vocabulary)
        if word in factors:
            raise InvalidQuery(f"word {word} is boosted twice: give one factor")
        factors[word] = factor
    return factors


def _combine_dense(
    parts: list[QueryPart], liked: list[QueryPart], negative: list[QueryPart]
) -> tuple[NDArray[np.float32] | None, str]:
    """Return the query's dense vector, or None and the reason.

    It is as short as the shortest of them: regions and texts have no vector of a second backbone.
    """
    if not parts and not liked:
        return None, "words have no dense vector"
    groups = (parts, liked, negative)
    width = min((len(p.dense_e) for p in chain(*groups) if p.dense_e is not None), default=0)
    vectors, liked_vectors, negative_vectors = (
        [part.dense_e[:width] for part in group if part.dense_e is not None] for group in groups
    )
    if len(vectors) < len(parts):
        return None, next(part.no_dense for part in parts if part.dense_e is None)
    if len(vectors) == 1 and not liked_vectors and not negative_vectors:
        return vectors[0].astype(np.float32), ""
    return combine_vectors(vectors, liked=liked_vectors, negative=negative_vectors), ""


def _text_bag(words: list[int]) -> Bag:
    """Return the words of a text, which have no tf."""
    return Bag(np.array(sorted(words), dtype=np.int32), np.zeros(len(words), dtype=np.uint16))
