"""A match taken apart: every word with its share of the score and its place in both pictures."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import ImageError, WrongUse
from bm25v.gallery import Gallery, Match, QueryWord, Word
from bm25v.gallery.gallery import Mode
from bm25v.gallery.wishes import QueryOptions, several, without_pixels
from bm25v.sae.model import Codes
from bm25v.search import EncodedQuery
from bm25v.search.regions import Box, as_box
from bm25v.vocabulary import Encoding, ImageInput, Vocabulary
from bm25v.vocabulary import bag as bags

Grid = NDArray[np.float32]  # (rows, columns): how active a word is at each patch
Pixels = NDArray[np.uint8]


@dataclass(frozen=True)
class Part:
    """One word's share of a score, and where the word is."""

    word: Word
    in_queries: tuple[Grid, ...]  # a grid for each picture asked with
    in_hit: Grid | None  # None if the hit's file cannot be read

    @property
    def query(self) -> int:
        """Which of the pictures asked with has most of the word."""
        amounts = [float(grid.sum()) for grid in self.in_queries]
        return amounts.index(max(amounts)) if amounts else 0

    @property
    def in_query(self) -> Grid | None:
        """Where the word is in that picture; None if there is no picture."""
        return self.in_queries[self.query] if self.in_queries else None


@dataclass(frozen=True)
class Explanation:
    """Why a picture matches: the parts' contributions sum to `sparse`; `dense` stands beside."""

    query_images: tuple[Pixels, ...]
    hit_image: Pixels | None  # None if the file cannot be read; `notes` say why
    match: Match
    parts: tuple[Part, ...]
    asked: tuple[QueryWord, ...] = ()
    region: Box | None = None  # what counts of the query, as shares of its sides
    text: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def hit_path(self) -> str:
        """Where the hit is, or was."""
        return self.match.path

    @property
    def sparse(self) -> float:
        """The BM25 score: the sum of the parts."""
        return self.match.sparse

    @property
    def dense(self) -> float | None:
        """The cosine, if what was asked for has a dense vector."""
        return self.match.dense

    @property
    def missing(self) -> tuple[QueryWord, ...]:
        """Words that were asked for and that the hit does not have."""
        shared = {part.word.word for part in self.parts}
        return tuple(one for one in self.asked if one.weight > 0 and one.word not in shared)


def explain(
    gallery: Gallery,
    query: ImageInput | Iterable[ImageInput] | None,
    hit: str | os.PathLike[str],
    *,
    encoding: Encoding | None = None,
    mode: Mode | None = None,
    **wanted: Unpack[QueryOptions],
) -> Explanation:
    """Compare a picture, or several, with one of the gallery's: what do they share, and where?

    Steered like a search, it explains that search's hit. A picture may be encoded already. Only
    the words of a text depend on the mode of the search.
    """
    vocabulary = gallery.vocabulary
    pictures = several(query)
    region = without_pixels(wanted.get("region"), pictures)
    wanted["region"] = region
    images = tuple(_decoded(vocabulary, picture) for picture in pictures)
    wish = gallery.wish(images if encoding is None else encoding, mode=mode, **wanted)
    match = gallery.match(wish, hit)
    notes = list(wish.notes)
    hit_image = hit_codes = None
    try:
        hit_image = vocabulary.decode(match.path)
        hit_codes = vocabulary.encode(hit_image).codes
    except ImageError as error:
        notes.append(f"{match.path}: {error}; its words are known, where they are in it is not")
    parts = tuple(_part(vocabulary, word, wish, hit_codes) for word in match.words)
    if any(part.in_hit is not None and not part.in_hit.any() for part in parts):
        notes.append(f"{match.path} has changed since it was indexed: index it again")
    return Explanation(
        images,
        hit_image,
        match,
        parts,
        asked=gallery.asked_words(wish),
        region=as_box(region),
        text=wish.text,
        notes=tuple(notes),
    )


def combined(explanation: Explanation) -> tuple[tuple[Grid, ...], Grid | None]:
    """Return what matched, in each picture asked with and in the hit.

    Every word that speaks for the hit spreads its contribution over the patches where it is, so
    the grid of a hit sums to what these words give.
    """
    helpful = [part for part in explanation.parts if part.word.contribution > 0]
    in_queries = tuple(
        spread([(part.word.contribution, part.in_queries[number]) for part in helpful])
        for number in range(len(explanation.query_images))
    )
    if explanation.hit_image is None:
        return in_queries, None
    in_hit = [(p.word.contribution, p.in_hit) for p in helpful if p.in_hit is not None]
    return in_queries, spread(in_hit)


def spread(grids: Sequence[tuple[float, Grid]]) -> Grid:
    """Return the sum of contributions, each spread over the patches where its word is.

    >>> spread([(6.0, np.array([[1, 2]], np.float32)), (1.0, np.array([[0, 5]], np.float32))])
    array([[2., 5.]], dtype=float32)
    """
    if not grids:
        return np.zeros((1, 1), dtype=np.float32)
    shares = [value * grid / max(float(grid.sum()), 1e-12) for value, grid in grids]
    return np.asarray(np.sum(shares, axis=0), dtype=np.float32)


def _part(vocabulary: Vocabulary, word: Word, wish: EncodedQuery, hit_codes: Codes | None) -> Part:
    def grid(codes: Codes) -> Grid:
        return bags.word_activations(codes, word.word).reshape(vocabulary.backbone.grid)

    in_queries = tuple(grid(codes) for codes in wish.codes)
    return Part(word, in_queries, None if hit_codes is None else grid(hit_codes))


def _decoded(vocabulary: Vocabulary, picture: ImageInput | Encoding) -> Pixels:
    if isinstance(picture, Encoding):
        raise WrongUse("an encoding has no pixels to show: give the picture, and encoding=")
    try:
        return vocabulary.decode(picture)
    except ImageError as error:
        name = os.fspath(picture) if isinstance(picture, str | os.PathLike) else "the query"
        raise ImageError(f"{name}: {error}") from error
