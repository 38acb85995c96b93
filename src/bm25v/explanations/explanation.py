"""Why an image of the gallery matches a query.

In: a gallery, a query and a hit. Out: an `Explanation`, which holds what each word contributes to
the score and where the word is in both images. Not this module's job: how that is shown (`drawing`,
`terminal`, `bm25v.pages`).
"""

import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from bm25v.dataframes import make_frame
from bm25v.display import count, identify_word
from bm25v.errors import ImageError, WrongUse
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.store import GalleryStore
from bm25v.images import ImageInput
from bm25v.index.bm25 import DEFAULT_PARAMETERS, Bm25Parameters
from bm25v.progress import Progress, no_progress
from bm25v.sae.model import Codes
from bm25v.search.encode import (
    EncodedQuery,
    encode_query,
    find_without_file,
    naming_image,
    resolve_region,
)
from bm25v.search.engine import match_record
from bm25v.search.query import Query, QueryImage
from bm25v.search.regions import Box, as_box
from bm25v.search.results import Match, Matcher, QueryWord, WordContribution
from bm25v.vocabulary import Encoding, Vocabulary
from bm25v.vocabulary import bag as bags

if TYPE_CHECKING:
    import pandas

Grid = NDArray[np.float32]  # (rows, columns): how active a word is in each patch
Pixels = NDArray[np.uint8]

_COLUMNS = {  # of Explanation.to_pandas()
    "word": "int",
    "name": "object",
    "contribution": "float",
    "weight": "float",
    "idf": "float",
    "saturation": "float",
    "tf": "float",
    "query_tf": "float",
    "df": "int",
}


@dataclass(frozen=True)
class Part:
    """One word's contribution to a score, and where the word is."""

    word: WordContribution
    in_queries: tuple[Grid, ...]  # one grid for each image of the query
    in_hit: Grid | None  # None if the hit's file cannot be read

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


@dataclass(frozen=True)
class Explanation:
    """Why an image matches: `parts` are its words, whose contributions sum to `sparse`.

    `match.score` is what ordered the hits, and `match.parts` what it is the sum of.
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
    query_names: tuple[str, ...] = ()  # of the query images; "" for one that is not from a file

    def __repr__(self) -> str:
        words = count(len(self.parts), "word")
        return f"<Explanation of {self.hit_path}: {words}, BM25 {self.sparse:.2f}>"

    def _repr_html_(self) -> str:
        from bm25v.pages.notebook import explanation_fragment

        return explanation_fragment(self)

    @property
    def hit_path(self) -> str:
        """The path of the hit's file, which may be missing by now."""
        return self.match.path

    @property
    def sparse(self) -> float:
        """The BM25 score: the sum of the parts."""
        return self.match.sparse

    @property
    def dense(self) -> float | None:
        """The cosine of the dense vectors; None if the query has no dense vector."""
        return self.match.dense

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

        A page shows all words, an image five, unless `top` says how many.
        """
        from bm25v.pages.explanation_page import write_explanation

        write_explanation(self, Path(path), top=top)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain values, without the pixels."""
        return {
            **self.match.to_dict(),
            "parts": [part._asdict() for part in self.match.parts],
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


def explain_hit(
    store: GalleryStore,
    query: Query,
    hit: str,
    *,
    encoding: Encoding | None = None,
    image: ImageInput | None = None,
) -> Explanation:
    """Explain why an image of the gallery matches a query.

    `encoding` saves encoding the query's image again; `image` is the hit's, if it has no file. The
    query's mode decides which score is explained.
    """
    if encoding is not None and len(query.images) != 1:
        raise WrongUse(f"an encoding with {len(query.images)} images: it needs exactly one")
    encodings = None if encoding is None else [encoding]
    explained = explain_hits(store, query, [hit], encodings=encodings, image=image)
    return explained.explanations[0]


def explain_hits(
    store: GalleryStore,
    query: Query,
    hits: Sequence[str],
    *,
    encodings: Sequence[Encoding] | None = None,
    image: ImageInput | None = None,
    progress: Progress = no_progress,
) -> ExplainedHits:
    """Explain several hits of one query, whose images are encoded once; `image` is that of all."""
    query = resolve_region(query)
    query_images = tuple(_decode_query(store, query_image) for query_image in query.images)
    if encodings is None:
        encodings = [store.vocabulary.encode(query_image) for query_image in query_images]
    encoded, matches, query_words = store.read(
        lambda snapshot: _match_hits(store, query, encodings, hits, snapshot)
    )
    explanations = []
    for match in matches:
        notes, hit_image, hit_codes = _read_hit(store, match, image)
        parts = (_locate(store.vocabulary, w, encoded.codes, hit_codes) for w in match.words)
        explanations.append(
            Explanation(
                query_images,
                hit_image,
                match,
                tuple(parts),
                query_words=query_words,
                region=as_box(query.region),
                text=query.text,
                notes=(*encoded.notes, *notes),
                parameters=store.catalog.meta.parameters,
                query_names=tuple(_file_name(query_image) for query_image in query.images),
            )
        )
        progress("explaining hits", len(explanations), len(hits))
    return ExplainedHits(query, query_images, tuple(explanations))


def describe_score(match: Match) -> Iterator[tuple[str, str]]:
    """Yield what is known about the score, as (value, label)."""
    if match.mode in ("words", "sparse"):
        yield f"{match.score:.2f}", "score, the sum of its words (BM25)"
    else:
        yield f"{match.score:.3f}", "score" if match.sparse_factor else "score: similarity alone"
    if match.mode == "hybrid":
        yield f"{match.dense:.3f}", "of it by overall similarity (cosine)"
        yield f"{match.sparse_factor * match.sparse:.3f}", "of it by words"
    elif match.sparse_factor == 0:
        yield f"{match.sparse:.2f}", "by words (BM25), which did not order the hits"
    elif match.dense is not None:
        yield f"{match.dense:.3f}", "overall similarity (cosine), not part of the score"
    yield f"{match.coverage:.0%}", "share of the query matched, rare words counting more"


def combine_maps(explanation: Explanation) -> tuple[tuple[Grid, ...], Grid | None]:
    """Return where all matching words are together: in each image of the query, and in the hit.

    Each word with a positive contribution spreads it over the patches where the word is active, so
    that the hit's grid sums to the positive contributions.
    """
    positive = [part for part in explanation.parts if part.word.contribution > 0]
    in_queries = tuple(
        spread_contributions([(part.word.contribution, part.in_queries[n]) for part in positive])
        for n in range(len(explanation.query_images))
    )
    if explanation.hit_image is None:
        return in_queries, None
    in_hit = [(p.word.contribution, p.in_hit) for p in positive if p.in_hit is not None]
    return in_queries, spread_contributions(in_hit)


def spread_contributions(grids: Sequence[tuple[float, Grid]]) -> Grid:
    """Return the sum of contributions, each spread over the patches where its word is active.

    >>> spread_contributions(
    ...     [(6.0, np.array([[1, 2]], np.float32)), (1.0, np.array([[0, 5]], np.float32))]
    ... )
    array([[2., 5.]], dtype=float32)
    """
    if not grids:
        return np.zeros((1, 1), dtype=np.float32)
    shares = [value * grid / max(float(grid.sum()), 1e-12) for value, grid in grids]
    return np.asarray(np.sum(shares, axis=0), dtype=np.float32)


def round_to_sum(values: Sequence[float], total: float, digits: int = 2) -> list[float]:
    """Round values so that they add up to the rounded total.

    All are rounded down first; those that lose most by it then get the units that are left over
    (the method of the largest remainder).

    >>> round_to_sum([1.004, 1.004, 1.004], 3.012)
    [1.01, 1.0, 1.0]
    """
    unit = 10**digits
    counts = [math.floor(value * unit) for value in values]
    left_over = round(round(total, digits) * unit) - sum(counts)
    by_loss = sorted(range(len(values)), key=lambda n: counts[n] - values[n] * unit)
    for n in by_loss[: max(0, left_over)]:
        counts[n] += 1
    return [count / unit for count in counts]


def percent_of(part: float, whole: float) -> str:
    """Return a part of a score in percent; a small part is not shown as nothing.

    >>> percent_of(2.5, 10), percent_of(0.02, 10), percent_of(0, 0)
    ('25%', 'under 1%', '0%')
    """
    percent = 100 * part / whole if whole else 0.0
    return "under 1%" if 0 < percent < 1 else f"{percent:.0f}%"


def _match_hits(
    store: GalleryStore,
    query: Query,
    encodings: Sequence[Encoding],
    hits: Sequence[str],
    snapshot: Snapshot,
) -> tuple[EncodedQuery, list[Match], tuple[QueryWord, ...]]:
    encoded = encode_query(query, store, snapshot, encodings)
    matcher = Matcher(encoded, snapshot, store.word_names)
    records = [store.find_image(hit, snapshot) for hit in hits]
    matches = [match_record(encoded, matcher, record, snapshot) for record in records]
    return encoded, matches, matcher.query_words()


def _read_hit(
    store: GalleryStore, match: Match, image: ImageInput | None
) -> tuple[list[str], Pixels | None, Codes | None]:
    """Return what the user should know about the hit's file, its pixels and its codes."""
    notes, hit_image, hit_codes = [], None, None
    try:
        if image is None and store.has_changed(match.path):
            notes.append(f"{match.path} has changed since it was indexed: index it again")
        hit_image = store.vocabulary.decode(match.path if image is None else image)
        hit_codes = store.vocabulary.encode(hit_image).codes
    except ImageError as error:
        notes.append(f"{match.path}: {error}; its words are known, but not where they are in it")
    return notes, hit_image, hit_codes


def _locate(
    vocabulary: Vocabulary,
    word: WordContribution,
    query_codes: Sequence[Codes],
    hit_codes: Codes | None,
) -> Part:
    def grid(codes: Codes) -> Grid:
        return bags.word_activations(codes, word.word).reshape(vocabulary.backbone.grid)

    in_queries = tuple(grid(codes) for codes in query_codes)
    return Part(word, in_queries, None if hit_codes is None else grid(hit_codes))


def _file_name(image: QueryImage) -> str:
    return os.path.basename(image) if isinstance(image, str | os.PathLike) else ""


def _decode_query(store: GalleryStore, image: QueryImage) -> Pixels:
    if isinstance(image, Encoding):
        raise WrongUse("an encoding has no pixels to show: give the image, and encoding=")
    stored = find_without_file(image, store)
    if stored is not None:
        raise ImageError(f"{stored}: there is no file to show: give the image itself as the query")
    with naming_image(image):
        return store.vocabulary.decode(image)
