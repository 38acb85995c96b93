"""A query in, weighted words, filters and a dense vector out.

The images are encoded (`query_images`), names become words, a text is looked up (`text`), feedback
is read from the collection; then all of them are combined (`combine`). Not this module's job:
scores.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones.text import has_text_tower
from bm25v.errors import WrongUse
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search.combine import apply_word_options, combine_bags, combine_vectors
from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.search.query import FULL_BAG_MODES, Mode, Query, Word
from bm25v.search.query_images import (
    QueryPart,
    encode_image,
    encode_images,
    find_without_file,
    read_stored_image,
    resolve_region,
    to_part,
)
from bm25v.search.text import NO_TEXT, TextMeaning, interpret_text, n_nearest, share_words
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import Bag
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

    @property
    def uses_full_bags(self) -> bool:
        """Whether `words` are scored in full bags, and not in the bags of the index."""
        return self.mode in (*FULL_BAG_MODES, "concepts")

    @property
    def first_words(self) -> WeightedWords:
        """The words that find candidates in the index."""
        return self.words.strongest(FIRST_WORDS) if self.uses_full_bags else self.words

    @property
    def positive_words(self) -> WeightedWords:
        """The words with a weight above 0."""
        return self.words.select(np.flatnonzero(self.words.weights > 0))


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
    row_filter, notes = view.plan_filter(query, must, without)
    notes += view.notes
    if view.full_statistics is None and vocabulary.k_full != 0 and query.mode is None:
        notes.append(
            "an older bm25v made this gallery: `bm25v index` on its folders adds full bags, by "
            "which hits are ordered better"
        )
    full = mode in FULL_BAG_MODES or (mode == "concepts" and view.full_statistics is not None)
    liked = [read_stored_image(path, view, full) for path in query.like]
    negative = [read_stored_image(path, view, full) for path in query.unlike]
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
            negative.append(read_stored_image(stored, view, full))
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
    if mode == "concepts" and text.terms:
        return _encode_terms(text, words, row_filter, query, view, tuple(boost), notes)
    dense_e, no_dense = _combine_dense(parts, liked, negative)
    if query.mode is None and dense_e is None:
        mode = "words" if full else "sparse"
    elif mode not in ("words", "sparse") and dense_e is None:
        without_vector = "'words' or 'sparse'" if view.full_statistics is not None else "'sparse'"
        without_vector = "'concepts'" if text.terms else without_vector
        raise WrongUse(f"mode {mode!r}: {text.no_dense or no_dense}; use mode {without_vector}")
    return EncodedQuery(
        words,
        mode,
        row_filter=row_filter,
        boosted=tuple(boost),
        dense_e=dense_e,
        no_dense=no_dense,
        codes=tuple(codes),
        text=query.text,
        notes=tuple(notes),
        is_plain=full and dense_e is not None and _is_plain(query),
        terms=text.terms,
        understood=text.understood,
        not_understood=text.not_understood,
    )


def _encode_terms(
    text: TextMeaning,
    words: WeightedWords,
    row_filter: RowFilter,
    query: Query,
    view: View,
    boosted: tuple[int, ...],
    notes: list[str],
) -> EncodedQuery:
    """Return a query that is ordered by the concepts of a text.

    Words count if some were given by name or by options; otherwise those that the best images share
    are shown beside the hits.
    """
    has_words = bool(len(words.words))
    if (has_words or query.min_coverage) and view.full_statistics is None:
        raise WrongUse(
            "a text together with words or a minimum coverage needs full bags, which this gallery "
            "does not have: `bm25v index` on its folders adds them"
        )
    if not has_words:
        nearest = view.find_nearest(n_nearest(view), row_filter, terms=text.terms)
        words = combine_bags([_text_bag(share_words(view, nearest))])
    return EncodedQuery(
        words,
        "concepts",
        row_filter=row_filter,
        boosted=boosted,
        no_dense=text.no_dense,
        text=query.text,
        notes=tuple(notes),
        terms=text.terms,
        understood=text.understood,
        not_understood=text.not_understood,
        words_order=has_words,
    )


def plan_mode(query: Query, engine: SearchEngine, view: View) -> Mode:
    """Return the mode of a query: the given one, or the default if there is a dense vector."""
    vocabulary, is_text_only = engine.vocabulary, not (query.images or query.like)
    if query.mode == "concepts":
        if query.text is None or not is_text_only:
            raise WrongUse("mode 'concepts' orders by a text alone: give one, without images")
        if vocabulary.concepts is None:
            raise WrongUse(
                f"mode 'concepts': the vocabulary {vocabulary.name} has no concepts; `bm25v "
                "vocabulary concepts` adds them"
            )
    if query.mode in FULL_BAG_MODES and view.full_statistics is None:
        raise WrongUse(
            f"mode {query.mode!r}: {engine.location} has no full bags; `bm25v index` on its "
            "folders adds them"
        )
    if query.mode is not None:
        return query.mode
    if query.text is not None and has_text_tower(engine.vocabulary.backbone_name):
        by_words: Mode = "sparse" if view.full_statistics is None else "words"
        return by_words if query.boost else "dense"
    if query.text is not None and is_text_only and vocabulary.concepts is not None:
        return "concepts"
    if view.full_statistics is not None:
        return "hybrid"
    return "sparse" if query.boost else "two-stage"  # the cosine would ignore the boost


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
        raise WrongUse(f"{word!r} is not a word: give its number or its name")
    return check_word(int(word), vocabulary.n_words)


def _find_boosts(
    boost: Mapping[Word, float], names: Mapping[int, str], vocabulary: Vocabulary
) -> dict[int, float]:
    factors: dict[int, float] = {}
    for given, factor in boost.items():
        word = _find_word(given, names, vocabulary)
        if word in factors:
            raise WrongUse(f"word {word} is boosted twice: give one factor")
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
