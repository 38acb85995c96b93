"""A match taken apart: every word with its share of the score and its place in both pictures."""

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bm25v import bags
from bm25v.errors import ImageError
from bm25v.gallery import Gallery, Word
from bm25v.sae.model import Codes
from bm25v.vocabulary import Encoding, Picture

Grid = NDArray[np.float32]  # (rows, columns): how active a word is at each patch


@dataclass(frozen=True)
class Part:
    """One word's share of a score, and where the word is."""

    word: Word
    in_query: Grid
    in_hit: Grid


@dataclass(frozen=True)
class Explanation:
    """Why a picture matches: the parts' contributions sum to `sparse`; `dense` stands beside."""

    query_image: NDArray[np.uint8]
    hit_image: NDArray[np.uint8]
    hit_path: str
    sparse: float
    dense: float
    parts: tuple[Part, ...]


def explain(
    gallery: Gallery,
    query: Picture,
    hit: str | os.PathLike[str],
    *,
    encoding: Encoding | None = None,
) -> Explanation:
    """Compare a picture, encoded already or not, with one of the gallery's: what do they share?"""
    vocabulary = gallery.vocabulary
    try:
        query_image = vocabulary.decode(query)
    except ImageError as error:
        raise ImageError(f"the query: {error}") from error
    query_encoding = encoding or vocabulary.encode(query_image)
    match = gallery.match(query_encoding, hit)
    try:
        hit_image = vocabulary.decode(match.path)
    except ImageError as error:
        raise ImageError(f"{match.path}: {error}") from error
    hit_codes = vocabulary.encode(hit_image).codes

    def grid(codes: Codes, word: int) -> Grid:
        return bags.where(codes, word).reshape(vocabulary.backbone.grid)

    parts = [
        Part(word, grid(query_encoding.codes, word.word), grid(hit_codes, word.word))
        for word in match.words
    ]
    return Explanation(query_image, hit_image, match.path, match.sparse, match.dense, tuple(parts))
