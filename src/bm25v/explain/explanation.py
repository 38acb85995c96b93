"""Why an image matches a query: what each word adds to the score, and where the word is.

A visual word adds to the score where it is active. A word of a text adds to it by the visual words
that carry it, and by the dense vector: by as much as that vector changes with each patch.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.dataframes import make_frame
from bm25v.dense import normalise
from bm25v.display import count, identify_word, word_label
from bm25v.errors import ImageError, InvalidOption
from bm25v.explain.sums import list_reasons, round_to_sum
from bm25v.explain.words import WordExample, find_examples
from bm25v.images import ImageInput
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.progress import Progress, no_progress
from bm25v.search.encode import EncodedQuery, encode
from bm25v.search.matching import Matcher
from bm25v.search.query import Query, QueryImage, StoredImage
from bm25v.search.query_images import (
    error_prefix,
    find_without_file,
    path_of,
    require_records,
    resolve_region,
)
from bm25v.search.rank import Ranking, find_rankings
from bm25v.search.regions import Box, as_box
from bm25v.search.results import Match, QueryWord, TextPart, WordContribution
from bm25v.store.base import View
from bm25v.store.files import has_changed
from bm25v.store.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary import bag as bags

if TYPE_CHECKING:
    import pandas

    from bm25v.gallery import Gallery

Grid = NDArray[np.float32]  # (rows, columns): how active a word is in each patch
Pixels = NDArray[np.uint8]

_VISIBILITY = {"strong": 1.0, "fair": 0.7, "weak": 0.4}
_LEAST_SHARE = 0.3  # of the largest contribution: a word that adds less is shown like this
_WORDS_WITH_EXAMPLES = 12
_TERM_WORDS = 5  # visual words that are listed for a word of a text
_STEP = 1e-3  # of a derivative: how far the mean of all patches moves towards one of them

_COLUMNS = {  # of Explanation.to_pandas()
    "word": "int",
    "name": "object",
    **dict.fromkeys(("contribution", "weight", "idf", "saturation", "tf", "query_tf"), "float"),
    "df": "int",
}


@dataclass(frozen=True)
class Part:
    """One word's contribution to a score, and where the word is."""

    word: WordContribution
    in_queries: tuple[Grid, ...]  # one grid for each image of the query
    in_hit: Grid | None  # None if the hit's file cannot be read
    examples: tuple[WordExample, ...] = ()  # other images of the gallery that show the word

    def __repr__(self) -> str:
        word = identify_word(self.word.word, self.word.name)
        return f"<Part {word}: {self.word.contribution:.2f}>"

    @property
    def best_query(self) -> int:
        """Which image of the query has most of the word; 0 if the query has no image."""
        amounts = [float(grid.sum()) for grid in self.in_queries]
        return amounts.index(max(amounts)) if amounts else 0

    @property
    def in_query(self) -> Grid | None:
        """Where the word is in that image; None if the query has no image."""
        return self.in_queries[self.best_query] if self.in_queries else None


class TermWord(NamedTuple):
    """What a visual word adds to a score for a word of a text."""

    word: int
    name: str | None
    value: float

    @property
    def label(self) -> str:
        """Its name, or its number if it has none."""
        return word_label(self.word, self.name)


@dataclass(frozen=True)
class TermMap:
    """A word or phrase of a text: what it adds to the score, and where it is in the hit.

    A patch has what its visual words add, and what the similarity would lose, in proportion, if the
    patch were like the mean of all patches: below 0 if that shows more of the term than the patch.
    """

    part: TextPart
    in_hit: Grid | None  # None if that is not known
    words: tuple[TermWord, ...]  # visual words that carry it: that add, or take away, most

    def __repr__(self) -> str:
        return f"<TermMap {self.part.label}: {self.part.value:.3f}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.part._asdict(),
            "in_hit": None if self.in_hit is None else self.in_hit.tolist(),
            "words": [word._asdict() for word in self.words],
        }


@dataclass(frozen=True)
class Explanation:
    """Why an image matches: `parts` are its words, whose contributions sum to `sparse`.

    `match.score` is what ordered the hits, and `match.parts` what it is the sum of. `terms` are the
    words of a text; `parts` are then empty if visual words did not order the hits.
    """

    query_images: tuple[Pixels, ...]
    hit_image: Pixels | None  # None if the file cannot be read; `notes` have the reason
    match: Match
    parts: tuple[Part, ...]
    query_words: tuple[QueryWord, ...] = ()
    region: Box | None = None  # the part of the first query image that counts, as shares of it
    text: str | None = None
    notes: tuple[str, ...] = ()
    parameters: Bm25Parameters = DEFAULT_PARAMETERS
    query_paths: tuple[str, ...] = ()  # of the query images; "" for one that is not from a file
    ranking: Ranking | None = None  # None if a search would not list the hit
    gallery: str = ""  # its folder
    query: Query | None = field(default=None, repr=False)
    terms: tuple[TermMap, ...] = ()

    def __repr__(self) -> str:
        words = count(len(self.parts), "word")
        return f"<Explanation of {self.hit_path}: {words}, BM25 {self.sparse:.2f}>"

    def _repr_html_(self) -> str:
        from bm25v.render.notebook import explanation_fragment

        return explanation_fragment(self)

    @property
    def hit_path(self) -> str:
        """The path of the hit's file, which may be missing by now."""
        return self.match.path

    @property
    def score(self) -> float:
        """What ordered the hits: the sum of `match.parts`."""
        return self.match.score

    @property
    def sparse(self) -> float:
        """The BM25 score: the sum of the parts."""
        return self.match.sparse

    @property
    def dense(self) -> float | None:
        """The cosine of the dense vectors; None if the query has no dense vector."""
        return self.match.dense

    @property
    def title(self) -> str:
        """How good the match is and which rank it has, as far as that is known."""
        strength = f"{self.match.strength.capitalize()} match" if self.match.strength else "Match"
        if self.ranking is None:
            return strength
        return f"{strength}, rank {self.ranking.rank:,}"

    @property
    def is_text_alone(self) -> bool:
        """Whether the query is a text without images: its words are what is shown in the hit."""
        return bool(self.terms) and not self.query_images

    @property
    def visibility(self) -> float:
        """How much of its colours a match is shown in: all of them if it is a strong one."""
        if self.match.strength is not None:
            return _VISIBILITY[self.match.strength]
        if self.is_text_alone:  # a photo of anything scores 0
            return 1.0 if self.score > 0 else _VISIBILITY["weak"]
        return max(_VISIBILITY["weak"], min(1.0, 2 * self.match.coverage))

    def part_visibility(self, part: Part) -> float:
        """How much of its colours a word is shown in: in proportion to its contribution."""
        largest = max(abs(other.word.contribution) for other in self.parts)
        share = abs(part.word.contribution) / (largest or 1.0)
        return self.visibility * max(_LEAST_SHARE, share)

    @property
    def positive_sum(self) -> float:
        """The sum of all positive contributions: the score before negative words are taken off."""
        return sum(max(0.0, part.word.contribution) for part in self.parts)

    @property
    def missing(self) -> tuple[QueryWord, ...]:
        """Words of the query that the hit does not have."""
        shared = {part.word.word for part in self.parts}
        return tuple(
            word for word in self.query_words if word.weight > 0 and word.word not in shared
        )

    def rounded_contributions(self) -> list[float]:
        """Return the contribution of each part with two decimals; their sum is the rounded score.

        Everything that prints contributions uses these values, so a word has the same value in the
        terminal, in an image and on a page, however many words are shown.
        """
        return round_to_sum([part.word.contribution for part in self.parts], self.sparse)

    def save(self, path: str | os.PathLike[str], *, top: int | None = None) -> None:
        """Write a page (.html) or an image (.png, .jpg, .webp, .pdf), as the suffix says.

        A page shows 12 words, an image five, unless `top` says how many.
        """
        from bm25v.render.explanation_page import write_explanation

        write_explanation(self, Path(path), top=top)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values, without the pixels."""
        return {
            **self.match.to_dict(),
            "ranking": None if self.ranking is None else self.ranking._asdict(),
            "parts": [part._asdict() for part in self.match.parts],
            "terms": [term.to_dict() for term in self.terms],
            "words": [
                {
                    **part.word._asdict(),
                    "in_query": None if part.in_query is None else part.in_query.tolist(),
                    "in_hit": None if part.in_hit is None else part.in_hit.tolist(),
                    "examples": [example.path for example in part.examples],
                }
                for part in self.parts
            ],
            "missing": [word._asdict() for word in self.missing],
            "notes": list(self.notes),
        }

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row per word; the column `contribution` sums to the score."""
        return make_frame((part.word._asdict() for part in self.parts), _COLUMNS)


@dataclass(frozen=True)
class ExplainedHits:
    """Several hits of one search, explained; the images of the query, which all of them share."""

    query: Query
    query_images: tuple[Pixels, ...]
    explanations: tuple[Explanation, ...]


def explain_hit(
    gallery: "Gallery",
    query: Query,
    hit: str,
    *,
    encoded: EncodedQuery | None = None,
    encoding: Encoding | None = None,
    image: ImageInput | None = None,
) -> Explanation:
    """Explain why an image of the gallery matches a query.

    `encoded` is the query as a search has encoded it, `encoding` that of the query's image: either
    saves encoding it again. `image` is the hit's, if it has no file. The query's mode decides which
    score is explained. The first words have examples: other images.
    """
    if encoding is not None and len(query.images) != 1:
        raise InvalidOption(
            f"encoding= needs a query with exactly one image, got {len(query.images)}"
        )
    given = None if encoding is None else [encoding]
    explained = explain_hits(gallery, query, [hit], encoded=encoded, encodings=given, image=image)
    (explanation,) = explained.explanations
    words = [part.word.word for part in explanation.parts[:_WORDS_WITH_EXAMPLES]]
    own = [explanation.hit_path, *filter(None, explanation.query_paths)]

    def find(view: View) -> dict[int, tuple[WordExample, ...]]:
        avoid = {record.path for record in view.find(own).values()}
        return find_examples(view, gallery.vocabulary, words, avoid=avoid)

    examples = gallery.store.read(find)
    parts = (replace(p, examples=examples.get(p.word.word, ())) for p in explanation.parts)
    return replace(explanation, parts=tuple(parts))


def explain_hits(
    gallery: "Gallery",
    query: Query,
    hits: Sequence[str],
    *,
    encoded: EncodedQuery | None = None,
    encodings: Sequence[Encoding] | None = None,
    image: ImageInput | None = None,
    progress: Progress = no_progress,
) -> ExplainedHits:
    """Explain several hits of one query, whose images are encoded at most once.

    `image` is that of all hits.
    """
    query, vocabulary = resolve_region(query), gallery.vocabulary
    paths = [path for query_image in query.images if (path := path_of(query_image)) is not None]
    known = gallery.store.read(lambda view: view.find(paths)) if paths else {}
    query_images = tuple(_decode_query(i, known, vocabulary) for i in query.images)
    has_codes = encoded is not None and len(encoded.codes) == len(query_images)
    if not has_codes and encodings is None:
        encodings = [vocabulary.encode(pixels) for pixels in query_images]

    def match_hits(view: View) -> _MatchedHits:
        named, used = gallery._named_vocabulary, encoded
        if used is None:
            used = encode(query, view, named, encodings)
        calibration = gallery._find_calibration(used, view)
        matcher = Matcher(used, view, named.names, calibration)
        records = require_records(view.find(hits), hits)
        images = view.fetch(records)
        matches = matcher.match(images, images.rows)
        rankings = find_rankings(used, view, images)
        return _MatchedHits(used, matcher.query_words(), records, matches, rankings)

    matched = gallery.store.read(match_hits)
    codes = matched.encoded.codes
    if not has_codes and len(codes) != len(query_images) and encodings is not None:
        codes = tuple(encoding.codes for encoding in encodings)  # of images that are stored
    grid = vocabulary.backbone.grid
    explanations = []
    for match, ranking, record in zip(
        matched.matches, matched.rankings, matched.records, strict=True
    ):
        notes, hit_image, hit = _read_hit(vocabulary, record, image)
        parts = [
            Part(
                word,
                tuple(bags.word_activations(c, word.word).reshape(grid) for c in codes),
                None if hit is None else bags.word_activations(hit.codes, word.word).reshape(grid),
            )
            for word in list_reasons(match)
        ]
        terms = tuple(_locate_terms(matched.encoded, match, parts, hit, vocabulary.backbone))
        if hit is not None and terms and not any(term.in_hit is not None for term in terms):
            notes.append(f"{vocabulary.backbone_name} does not say where in an image a text is")
        explanations.append(
            Explanation(
                query_images,
                hit_image,
                match,
                tuple(parts),
                query_words=matched.query_words,
                region=as_box(query.region),
                text=query.text,
                notes=(*_list_notes(matched.encoded), *notes),
                parameters=gallery.store.meta.parameters,
                query_paths=tuple(path_of(source) or "" for source in query.images),
                ranking=ranking,
                gallery=gallery.location,
                query=query,
                terms=terms,
            )
        )
        progress("explaining hits", len(explanations), len(hits))
    return ExplainedHits(query, query_images, tuple(explanations))


class _MatchedHits(NamedTuple):
    """Some hits, as one view of the gallery has them."""

    encoded: EncodedQuery
    query_words: tuple[QueryWord, ...]
    records: list[ImageRecord]
    matches: list[Match]
    rankings: list[Ranking | None]


def _list_notes(encoded: EncodedQuery) -> tuple[str, ...]:
    unknown = ", ".join(encoded.not_understood)
    return (*encoded.notes, *([f"not understood: {unknown}"] if unknown else []))


def _locate_terms(
    encoded: EncodedQuery,
    match: Match,
    parts: Sequence[Part],
    hit: Encoding | None,
    backbone: Backbone,
) -> Iterator[TermMap]:
    """Yield the terms of a query's text, each with where it is in the hit."""
    slopes_pe = None
    if encoded.terms and encoded.scoring.cosine and hit is not None and hit.patches_pd is not None:
        slopes_pe = _differentiate(backbone, hit.patches_pd)
    for term, part in zip(encoded.terms, match.text, strict=True):
        weights = dict(zip(term.words.words.tolist(), term.words.weights.tolist(), strict=True))
        grids, words = [], []
        if slopes_pe is not None and term.dense_e is not None:
            grids.append((slopes_pe[:, : len(term.dense_e)] @ term.dense_e).reshape(backbone.grid))
        for word, in_hit in ((p.word, p.in_hit) for p in parts if p.word.word in weights):
            share = weights[word.word] / word.weight
            value = match.sparse_factor * word.contribution * share
            words.append(TermWord(word.word, word.name, value))
            if in_hit is not None and in_hit.any():
                grids.append(value * in_hit / in_hit.sum())
        sign = 1 if part.value >= 0 else -1
        words = sorted((w for w in words if sign * w.value > 0), key=lambda w: -sign * w.value)
        grid = np.asarray(np.sum(grids, axis=0), dtype=np.float32) if grids else None
        yield TermMap(part, grid, tuple(words[:_TERM_WORDS]))


def _differentiate(backbone: Backbone, patches_pd: Floats) -> Floats | None:
    """Return what each patch changes in the dense vector; None if that is not known.

    The vector is a function of the mean of all patches, so the changes sum to 0.
    """
    mean_d = patches_pd.mean(axis=0)
    steps_pd = np.float32(_STEP) * (patches_pd - mean_d)
    moved = [backbone.pool_dense(mean_d + step_d) for step_d in (*steps_pd, *-steps_pd)]
    vectors = [vector_e for vector_e in moved if vector_e is not None]
    if not vectors:
        return None
    after_pe, before_pe = np.split(normalise(np.stack(vectors)), 2)
    return np.asarray((after_pe - before_pe) / np.float32(2 * _STEP * len(patches_pd)))


def _read_hit(
    vocabulary: Vocabulary, record: ImageRecord, image: ImageInput | None
) -> tuple[list[str], Pixels | None, Encoding | None]:
    path = record.path
    notes, hit_image, hit = [], None, None
    try:
        if image is None and has_changed(path, record):
            notes.append(f"{path} has changed since it was indexed: index it again")
        hit_image = vocabulary.decode(path if image is None else image)
        hit = vocabulary.encode(hit_image)
    except ImageError as error:
        notes.append(f"{path}: {error}; its words are known, but not where they are in it")
    return notes, hit_image, hit


def _decode_query(
    image: QueryImage, known: Mapping[str, ImageRecord], vocabulary: Vocabulary
) -> Pixels:
    no_file = "there is no file to show: give the image itself as the query"
    if isinstance(image, Encoding):
        raise InvalidOption("an encoding has no pixels to show: give the image, and encoding=")
    if isinstance(image, StoredImage) and image.image is not None:
        image = image.image
    elif isinstance(image, StoredImage):
        record = known.get(image.path)
        if record is None or not os.path.isabs(record.path) or not os.path.exists(record.path):
            raise ImageError(f"{image.path}: {no_file}")
        if has_changed(record.path, record):
            raise ImageError(f"{image.path} has changed since it was indexed: index it again")
        image = record.path
    stored = find_without_file(image, known)
    if stored is not None:
        raise ImageError(f"{stored}: {no_file}")
    with error_prefix(image):
        return vocabulary.decode(image)
