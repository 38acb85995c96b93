"""A query in, weighted words and a dense vector out.

Images are encoded, a region selects patches, names become words, a text is looked up, feedback is
read from the gallery; then all of them are combined (Rocchio's formula over the presence of words)
and the options for single words are applied. Not this module's job: scores.
"""

import numbers
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, compress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v import images
from bm25v.backbones.protocol import Floats
from bm25v.backbones.text import has_text_tower
from bm25v.errors import ImageError, WrongUse
from bm25v.images import ImageInput
from bm25v.index.bm25 import WeightedWords
from bm25v.sae.model import Codes
from bm25v.search import regions
from bm25v.search.concepts import ConceptTerm
from bm25v.search.contract import SearchEngine, View
from bm25v.search.filters import RowFilter
from bm25v.search.query import FULL_BAG_MODES, Mode, Query, QueryImage, StoredImage, Word
from bm25v.search.text import NO_TEXT, TextMeaning, interpret_text, n_nearest, share_words
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary.bag import Bag, expand_bag, pool_codes
from bm25v.vocabulary.folder import MAX_K_POST
from bm25v.vocabulary.names import check_word, find_word

MAX_BOOST = 1e6  # beyond, other words would not count at all, and sums might overflow
LIKED_WEIGHT = 0.75  # of a word that all liked images have; query images weigh 1
NEGATIVE_WEIGHT = 0.5  # subtracted for a word that all counter-examples have
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


class QueryPart(NamedTuple):
    """The words and the dense vector of one image or text of a query."""

    bag: Bag
    dense_e: NDArray[np.floating] | None
    no_dense: str = ""  # the reason, if there is no dense vector


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
    liked = [_stored_part(path, view, full) for path in query.like]
    negative = [_stored_part(path, view, full) for path in query.unlike]
    query = resolve_region(query)
    parts, codes = _encode_images(query, engine, view, encodings, full)
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
            negative.append(_stored_part(stored, view, full))
        else:
            encoding = encode_image(vocabulary, image)
            negative.append(_image_part(encoding, query.query_words, full))
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


def encode_batch(queries: Sequence[Query], engine: SearchEngine) -> list[Sequence[Encoding] | None]:
    """Encode the images of several queries at once.

    A query gets None if its images must be encoded alone: a region needs all features of an image,
    and an image without a file has none.
    """
    vocabulary = engine.vocabulary
    pixels: list[Floats] = []
    is_together = [
        query.region is None and not any(find_without_file(image, engine) for image in query.images)
        for query in queries
    ]
    for query in compress(queries, is_together):
        for image in query.images:
            if not isinstance(image, Encoding):
                with naming_image(image):
                    pixels.append(vocabulary.prepare(image))
    encodings = iter(vocabulary.encode_features(vocabulary.backbone.forward_batch(pixels)))
    return [
        [image if isinstance(image, Encoding) else next(encodings) for image in query.images]
        if together
        else None
        for query, together in zip(queries, is_together, strict=True)
    ]


def _encode_images(
    query: Query,
    engine: SearchEngine,
    view: View,
    encodings: Sequence[Encoding] | None,
    full: bool,
) -> tuple[list[QueryPart], list[Codes]]:
    """Return the parts of the query's images, and where their words are.

    A `StoredImage`, and an image of the gallery whose file no longer exists or that was added from
    memory, is searched with what is stored; where its words are is not known.
    """
    parts, codes = [], []
    for number, image in enumerate(query.images):
        stored = None if encodings is not None else find_without_file(image, engine)
        if stored is not None:
            if query.region is not None:
                raise WrongUse(f"a region of {stored}: there is no file; give the image itself")
            parts.append(_stored_part(stored, view, full))
            continue
        encoding = (
            encode_image(engine.vocabulary, image) if encodings is None else encodings[number]
        )
        if query.region is None:
            parts.append(_image_part(encoding, query.query_words, full))
            codes.append(encoding.codes)
        else:
            part, part_codes = _region_part(engine.vocabulary, encoding, query, full)
            parts.append(part)
            codes.append(part_codes)
    return parts, codes


def find_without_file(image: QueryImage, engine: SearchEngine) -> str | None:
    """Return the path or id of an image of the gallery whose file is missing or not to be read."""
    if isinstance(image, StoredImage):
        return image.path
    if not isinstance(image, str | os.PathLike) or os.path.exists(image):
        return None
    record = engine.find_record(os.fspath(image))
    return None if record is None else record.path


def resolve_region(query: Query) -> Query:
    """Return the query with its region in fractions of its image."""
    if query.region is None or not regions.is_in_pixels(query.region):
        return query
    (image,) = query.images
    if isinstance(image, Encoding):
        raise WrongUse("a region in pixels of an encoded image: give fractions between 0 and 1")
    if isinstance(image, np.ndarray):
        size = (image.shape[1], image.shape[0])
    else:
        with naming_image(image):
            size = images.read_metadata(image)[:2]
    return replace(query, region=regions.to_fractions(query.region, size))


def encode_image(vocabulary: Vocabulary, image: QueryImage) -> Encoding:
    """Return an image's encoding; an error names the file."""
    if isinstance(image, Encoding):
        return image
    with naming_image(image):
        return vocabulary.encode(image)


@contextmanager
def naming_image(image: ImageInput) -> Iterator[None]:
    """Make an `ImageError` within the block start with the path of the image, if it has one."""
    try:
        yield
    except ImageError as error:
        if isinstance(image, str | os.PathLike):
            raise ImageError(f"{os.fspath(image)}: {error}") from error
        raise


def combine_bags(
    bags: Sequence[Bag],
    *,
    liked: Sequence[Bag] = (),
    negative: Sequence[Bag] = (),
    by_strength: bool = False,
) -> WeightedWords:
    """Return the words of several bags, each weighted by the share of the bags that have it.

    Liked bags count `LIKED_WEIGHT`, negative ones `-NEGATIVE_WEIGHT`. By strength, a bag has a word
    by the square root of its tf relative to the bag's strongest word; words without a tf, those of
    a text, count fully.

    >>> ear_grass, ear_sofa, sofa = (
    ...     Bag(np.array(words, np.int32), np.full(len(words), 100, np.uint16))
    ...     for words in ([1, 2], [1, 7], [7]))
    >>> query = combine_bags([ear_grass, ear_sofa], negative=[sofa])
    >>> query.words.tolist(), query.weights.tolist()
    ([1, 2, 7], [1.0, 0.5, 0.0])
    """
    all_words = [bag.words for bag in (*bags, *liked, *negative)]
    words = np.unique(np.concatenate([np.empty(0, np.int32), *all_words]))
    weights = (
        _shares(words, bags, by_strength)
        + LIKED_WEIGHT * _shares(words, liked, by_strength)
        - NEGATIVE_WEIGHT * _shares(words, negative, by_strength)
    )
    frequencies = np.zeros(len(words))
    for bag in bags:
        frequencies[np.searchsorted(words, bag.words)] += bag.frequencies / len(bags)
    return WeightedWords(words, weights, frequencies)


def apply_word_options(
    query: WeightedWords,
    *,
    must: Collection[int] = (),
    without: Collection[int] = (),
    boost: Mapping[int, float] | None = None,
) -> WeightedWords:
    """Return the query with required and boosted words added and excluded words left out.

    `boost` multiplies a word's weight. Words with weight 0 are left out.

    >>> bag = Bag(np.array([3, 9], np.int32), np.array([150, 20], np.uint16))
    >>> query = WeightedWords.from_bag(bag)
    >>> query = apply_word_options(query, must=[5], without=[9], boost={3: 2.0, 8: 0.5})
    >>> query.words.tolist(), query.weights.tolist()
    ([3, 5, 8], [2.0, 1.0, 0.5])
    """
    boost = boost or {}
    _check_word_options(must, without, boost)
    pairs = zip(query.weights.tolist(), query.frequencies.tolist(), strict=True)
    terms = dict(zip(query.words.tolist(), pairs, strict=True))
    for word in (*must, *boost):
        terms.setdefault(word, (1.0, 0.0))
    for word, factor in boost.items():
        weight, frequency = terms[word]
        terms[word] = (weight * float(factor), frequency)
    kept = sorted(w for w, (weight, _) in terms.items() if weight != 0 and w not in without)
    return WeightedWords(
        np.array(kept, dtype=np.int32),
        np.array([terms[word][0] for word in kept], dtype=np.float64),
        np.array([terms[word][1] for word in kept], dtype=np.float64),
    )


def combine_vectors(
    vectors: Sequence[NDArray[np.floating]],
    *,
    liked: Sequence[NDArray[np.floating]] = (),
    negative: Sequence[NDArray[np.floating]] = (),
) -> NDArray[np.float32]:
    """Return one dense vector of length 1 for several, with the weights of `combine_bags`.

    >>> combine_vectors([np.array([3.0, 0.0]), np.array([0.0, 5.0])]).round(3).tolist()
    [0.7070000171661377, 0.7070000171661377]
    """
    weighted = ((1.0, vectors), (LIKED_WEIGHT, liked), (-NEGATIVE_WEIGHT, negative))
    sum_e = sum(
        (
            weight * np.mean([_normalise(vector_e) for vector_e in group], axis=0)
            for weight, group in weighted
            if len(group)
        ),
        start=np.float64(0),
    )
    return _normalise(np.asarray(sum_e)).astype(np.float32)


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


def _check_factor(word: Word, factor: Any) -> float:
    is_number = isinstance(factor, numbers.Real) and not isinstance(factor, bool)
    if not is_number or not abs(factor) <= MAX_BOOST:
        raise WrongUse(
            f"boost of word {word} by {factor!r}: give a number from {-MAX_BOOST:,.0f} to "
            f"{MAX_BOOST:,.0f}; 0 mutes the word"
        )
    return float(factor)


def _is_plain(query: Query) -> bool:
    """Return whether a query is one whole image and nothing else, but for filters."""
    others = (query.negative, query.like, query.unlike, query.must, query.without, query.boost)
    is_whole = query.region is None and query.text is None and query.query_words is None
    return len(query.images) == 1 and is_whole and not any(others)


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


def _stored_part(path: str, view: View, full: bool) -> QueryPart:
    """Return what the gallery has stored for an image; its file is not needed."""
    images, (row,), _ = view.find_image(path)
    bags = images if images.full_bags is None or not full else images.full_bags
    return QueryPart(bags.bag(row), images.dense_vector(row))


def _image_part(encoding: Encoding, query_words: int | None, full: bool) -> QueryPart:
    if query_words is not None or (full and encoding.codes.words_pk.size):
        bag = pool_codes(encoding.codes, k_post=query_words or MAX_K_POST)
    elif full:
        bag = (encoding.full_bag or expand_bag(encoding.bag)).bag
    else:
        bag = encoding.bag
    return QueryPart(bag, encoding.dense_e)


def _region_part(
    vocabulary: Vocabulary, encoding: Encoding, query: Query, full: bool
) -> tuple[QueryPart, Codes]:
    """Return the words and the vector of a region, from the whole image's features."""
    backbone = vocabulary.backbone
    assert query.region is not None
    weights_p = regions.patch_weights(query.region, backbone.grid)
    codes = regions.weigh_codes(encoding.codes, weights_p)
    n_words = MAX_K_POST if full else vocabulary.k_post
    bag = pool_codes(codes, k_post=query.query_words or n_words)
    dense_e = None
    if encoding.patches_pd is not None:
        mean_d = np.average(encoding.patches_pd, axis=0, weights=weights_p)
        dense_e = backbone.pool_dense(mean_d.astype(np.float32))
    reason = f"{backbone.name} has dense vectors of whole images, not of regions"
    return QueryPart(bag, dense_e, reason), codes


def _text_bag(words: list[int]) -> Bag:
    """Return the words of a text, which have no tf."""
    return Bag(np.array(sorted(words), dtype=np.int32), np.zeros(len(words), dtype=np.uint16))


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


def _shares(
    words: NDArray[np.int32], bags: Sequence[Bag], by_strength: bool
) -> NDArray[np.float64]:
    """Return the share of the bags that have each word."""
    counts = np.zeros(len(words))
    for bag in bags:
        strongest = bag.tf.max(initial=0)
        presence = np.sqrt(bag.tf / strongest) if by_strength and strongest else 1.0
        counts[np.searchsorted(words, bag.words)] += presence
    return counts / max(len(bags), 1)


def _normalise(vector_e: NDArray[np.floating]) -> NDArray[np.float64]:
    vector = vector_e.astype(np.float64)
    return np.asarray(vector / max(float(np.linalg.norm(vector)), 1e-12))


def _check_word_options(
    must: Collection[int], without: Collection[int], boost: Mapping[int, float]
) -> None:
    for word in without:
        if word in must:
            raise WrongUse(f"word {word} is both required (must) and excluded (without)")
        if word in boost:
            raise WrongUse(f"word {word} is excluded (without): it cannot be boosted")
    for word, factor in boost.items():
        _check_factor(word, factor)
