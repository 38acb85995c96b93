"""Why an image matches a query: what each word adds to the score, and where the word is."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.dataframes import make_frame
from bm25v.display import count
from bm25v.errors import ImageError, InvalidOption
from bm25v.explain.groups import Grid, Group, Part, describe_groups, list_groups, place_words
from bm25v.explain.maps import SecondPass, TermMap, encode_tiles, locate_terms
from bm25v.explain.sums import list_reasons, round_to_sum
from bm25v.images import ImageInput
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import Codes
from bm25v.search.encode import EncodedQuery, encode
from bm25v.search.matching import Matcher, SplitScores
from bm25v.search.query import Query, QueryImage, StoredImage
from bm25v.search.query_images import (
    error_prefix,
    find_without_file,
    path_of,
    require_records,
    resolve_region,
)
from bm25v.search.rank import RANKED, Ranking, find_positions, find_ranking, order_all
from bm25v.search.regions import Box, as_box
from bm25v.search.results import Match, QueryWord
from bm25v.store.base import View
from bm25v.store.files import has_changed
from bm25v.store.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary import bag as bags

if TYPE_CHECKING:
    import pandas

    from bm25v.gallery import Gallery

Pixels = NDArray[np.uint8]

_FINE = 14  # rows or columns of patches: maps of a backbone with as many are fine
_VISIBILITY = {"strong": 1.0, "fair": 0.7, "weak": 0.4}

_COLUMNS = {  # of Explanation.to_pandas()
    "word": "int",
    "name": "object",
    **dict.fromkeys(("contribution", "weight", "idf", "saturation", "tf", "query_tf"), "float"),
    "df": "int",
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
    groups: tuple[Group, ...] = ()  # their values sum to the score
    refine: Callable[[Sequence[Group]], Iterable[Group]] | None = field(  # makes maps finer
        default=None, repr=False, compare=False
    )

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
    def sentence(self) -> str:
        """The reasons in one or two sentences, as shares of what counts for the match."""
        return describe_groups(self.groups, self.ranking, is_text=bool(self.terms))

    @property
    def about_rank(self) -> str:
        """The scores of the hits before and after, and the ranks by parts of the score alone."""
        ranking, digits = self.ranking, self.match.digits
        if ranking is None:
            return "A search with these options does not list this image."
        scores = {ranking.rank - 1: ranking.score_above, ranking.rank + 1: ranking.score_below}
        facts = [
            f"Rank {rank:,} has {s:.{digits}f}." for rank, s in scores.items() if s is not None
        ]
        if ranking.rank_by_words is not None:
            facts.append(
                f"By similarity alone it would be rank {ranking.rank_by_similarity:,}, "
                f"by words alone rank {ranking.rank_by_words:,}."
            )
        return " ".join(facts)

    @cached_property
    def fine(self) -> "Explanation":
        """The same with finer maps of groups, if a second pass over both images is possible.

        What draws an explanation uses it.
        """
        if self.refine is None:
            return self
        return replace(self, groups=tuple(self.refine(self.groups)), refine=None)

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

    def save(self, path: str | os.PathLike[str], *, words: int = 24) -> None:
        """Write a page (.html) or an image (.png, .jpg, .webp, .pdf), as the suffix says.

        `words` is how many visual words the details of a page list.
        """
        from bm25v.render.explanation_page import write_explanation

        write_explanation(self, Path(path), words=words)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values, without the pixels."""
        return {
            **self.match.to_dict(),
            "title": self.title,
            "sentence": self.sentence,
            "groups": [group.to_dict() for group in self.groups],
            "about_rank": self.about_rank,
            "ranking": None if self.ranking is None else self.ranking._asdict(),
            "parts": [part._asdict() for part in self.match.parts],
            "terms": [term.to_dict() for term in self.terms],
            "words": [
                {
                    **part.word._asdict(),
                    "in_query": None if part.in_query is None else part.in_query.tolist(),
                    "in_hit": None if part.in_hit is None else part.in_hit.tolist(),
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


def explain_hits(
    gallery: "Gallery",
    query: Query,
    hits: Sequence[str],
    encoded: EncodedQuery | None = None,
    *,
    encodings: Sequence[Encoding] | None = None,
    image: ImageInput | None = None,
    progress: Progress = no_progress,
) -> ExplainedHits:
    """Explain hits of one query, whose images are encoded at most once.

    `encoded` is the query as a search has encoded it, `encodings` are those of its images: either
    saves encoding them again. `image` is that of the hits, if they have no file. The query's mode
    decides which score is explained.
    """
    query, vocabulary = resolve_region(query), gallery.vocabulary
    paths = [path for query_image in query.images if (path := path_of(query_image)) is not None]
    known = gallery.store.read(lambda view: view.find(paths)) if paths else {}
    query_images = tuple(_decode_query(i, known, vocabulary) for i in query.images)
    has_codes = encoded is not None and len(encoded.codes) == len(query_images)
    if not has_codes and encodings is None:
        encodings = [vocabulary.encode(pixels) for pixels in query_images]
    matched = gallery.store.read(
        lambda view: _match_hits(gallery, view, query, hits, encoded, encodings)
    )
    used = matched.encoded
    if len(used.codes) != len(query_images) and encodings is not None:  # of stored images
        codes = tuple(encoding.codes for encoding in encodings)
        used = replace(used, codes=codes, patches=tuple(e.patches_pd for e in encodings))
    backbone, grid = vocabulary.backbone, vocabulary.backbone.grid
    encode_queries = cache(lambda: [encode_tiles(backbone, pixels) for pixels in query_images])
    unknown = ", ".join(used.not_understood)
    query_notes = (*used.notes, *([f"not understood: {unknown}"] if unknown else []))

    def explain(match: Match, ranking: Ranking | None, record: ImageRecord) -> Explanation:
        notes, hit_image, hit = _read_hit(vocabulary, record, image)

        def place(word: int, codes: Codes) -> Grid:
            return bags.word_activations(codes, word).reshape(grid)

        parts = tuple(
            Part(
                word,
                tuple(place(word.word, codes) for codes in used.codes),
                None if hit is None else place(word.word, hit.codes),
            )
            for word in list_reasons(match)
        )
        terms = tuple(locate_terms(used, match, parts, hit, backbone))
        if hit is not None and terms and not any(term.in_hit is not None for term in terms):
            notes.append(f"{vocabulary.backbone_name} does not say where in an image a text is")
        if terms:
            groups = _list_terms(match, parts, terms)
        else:
            groups = list_groups(match, parts, hit, used, gallery._named_vocabulary)
        patches_pd = None if hit is None else hit.patches_pd
        second = SecondPass(vocabulary, match, used.terms, encode_queries, hit_image, patches_pd)
        return Explanation(
            query_images,
            hit_image,
            match,
            parts,
            query_words=matched.query_words,
            region=as_box(query.region),
            text=query.text,
            notes=(*query_notes, *notes),
            parameters=gallery.store.meta.parameters,
            query_paths=tuple(path_of(source) or "" for source in query.images),
            ranking=ranking,
            gallery=gallery.location,
            query=query,
            terms=terms,
            groups=tuple(_find_ranks(groups, ranking, matched.split)),
            refine=second.refine if max(grid) < _FINE else None,
        )

    explanations = []
    for number, hit in enumerate(matched.hits, start=1):
        explanations.append(explain(*hit))
        progress("explaining hits", number, len(hits))
    return ExplainedHits(query, query_images, tuple(explanations))


class _MatchedHits(NamedTuple):
    """Some hits, as one view of the gallery has them."""

    encoded: EncodedQuery
    query_words: tuple[QueryWord, ...]
    split: SplitScores
    hits: list[tuple[Match, Ranking | None, ImageRecord]]


def _match_hits(
    gallery: "Gallery",
    view: View,
    query: Query,
    hits: Sequence[str],
    encoded: EncodedQuery | None,
    encodings: Sequence[Encoding] | None,
) -> _MatchedHits:
    named = gallery._named_vocabulary
    if encoded is None:
        encoded = encode(query, view, named, encodings)
    matcher = Matcher(encoded, view, named.names, gallery._find_calibration(encoded, view))
    records = require_records(view.find(hits), hits)
    images = view.fetch(records)
    ranked, is_sum = order_all(encoded, view), encoded.scoring.is_sum
    positions = find_positions(ranked, images)
    if None in positions:  # it may be a hit of a longer list, for which more images are ordered
        ranked = order_all(replace(encoded, n_hits=RANKED), view)
        positions = find_positions(ranked, images)
    rankings = [
        None if position is None else find_ranking(ranked, position, is_sum=is_sum)
        for position in positions
    ]
    matches = matcher.match(images, images.rows)
    listed = list(zip(matches, rankings, records, strict=True))
    return _MatchedHits(encoded, matcher.query_words(), matcher.split_scores(ranked), listed)


def _list_terms(match: Match, parts: Sequence[Part], terms: Sequence[TermMap]) -> Iterator[Group]:
    """Yield the parts of the score of a text as groups: its terms, and all else."""
    whole = sum(max(0.0, part.value) for part in match.parts) or 1.0
    for term in terms:
        value, in_hit = term.part.value, term.in_hit
        words = tuple(word.word for word in term.words)
        if in_hit is not None:
            in_hit = np.maximum(in_hit if value >= 0 else -in_hit, 0)
        yield Group("term", term.part.label, value, value / whole, words, in_hit=in_hit)
    if match.rest:
        value = match.rest
        yield Group("similarity", "like the image", value, value / whole, *place_words(parts))


def _find_ranks(
    groups: Iterable[Group], ranking: Ranking | None, split: SplitScores
) -> Iterator[Group]:
    """Yield groups with the rank that the hit would have without each of them."""
    for number, group in enumerate(groups):
        if ranking is None or group.kind in ("similarity", "rest"):
            yield group
            continue
        term = number if group.kind == "term" else None
        rank = split.rank_without(ranking.rank - 1, group.words, term)
        about = "Without it: " + ("the same rank" if rank == ranking.rank else f"rank {rank:,}")
        yield group._replace(rank_without=rank, about=about)


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
