"""Where the words of a text are in a hit, and finer maps of all parts of a score.

A word of a text adds to the score by the visual words that carry it, and by the dense vector: by as
much as that vector changes with each patch. Finer maps come from a second pass over four parts of
each image, which overlap. Each part is resized to the backbone's input, so its patches are smaller.
What they have of a group is multiplied with the map of the whole image, on which the score depends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.dense import normalise
from bm25v.display import word_label
from bm25v.explain.groups import Grid, Group, Part, spread_contributions, spread_words
from bm25v.search.encode import EncodedQuery
from bm25v.search.results import Match, TextPart
from bm25v.search.text import TextTerm
from bm25v.threads import available_cpus
from bm25v.vocabulary import Encoding, Vocabulary

Pixels = NDArray[np.uint8]

_WORDS = 5  # visual words that are listed for a word of a text
_STEP = 1e-3  # of a derivative: how far the mean of all patches moves towards one of them
_TILES = 2  # in a row, and in a column
_SIDE = 4 / 7  # of a tile, as a share of the image's
_STARTS = np.linspace(0, 1 - _SIDE, _TILES)


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


def locate_terms(
    encoded: EncodedQuery,
    match: Match,
    parts: Sequence[Part],
    hit: Encoding | None,
    backbone: Backbone,
) -> Iterator[TermMap]:
    """Yield the terms of a query's text, each with where it is in the hit."""
    slopes_pe = None
    if encoded.terms and encoded.scoring.cosine and hit is not None and hit.patches_pd is not None:
        slopes_pe = _differentiate(backbone, hit.patches_pd, hit.patches_pd.mean(axis=0))
    active = {part.word.word: np.ravel(part.in_hit) for part in parts if part.in_hit is not None}
    names = {part.word.word: part.word.name for part in parts}
    for term, part in zip(encoded.terms, match.text, strict=True):
        values = _find_carriers(term, match)
        sign = 1 if part.value >= 0 else -1
        carriers = [
            TermWord(word, names[word], value)
            for word, value in values.items()
            if word in names and sign * value > 0
        ]
        carriers.sort(key=lambda word: -sign * word.value)
        values_p = _spread_term(term, values, slopes_pe, active)
        in_hit = None if values_p is None else values_p.reshape(backbone.grid)
        yield TermMap(part, in_hit, tuple(carriers[:_WORDS]))


def _find_carriers(term: TextTerm, match: Match) -> dict[int, float]:
    """Return what each visual word adds to the score for a word of a text."""
    weights = dict(zip(term.words.words.tolist(), term.words.weights.tolist(), strict=True))
    return {
        word.word: match.sparse_factor * word.contribution * weights[word.word] / word.weight
        for word in match.words
        if word.word in weights
    }


def _spread_term(
    term: TextTerm,
    values: Mapping[int, float],
    slopes_pe: Floats | None,
    active: Mapping[int, Floats],
) -> Floats | None:
    """Return what a word of a text adds in each patch; None if that is not known.

    `values` are those of the visual words that carry it.
    """
    by_words = spread_contributions((value, active.get(word)) for word, value in values.items())
    if slopes_pe is None or term.dense_e is None:
        return by_words
    by_vector = slopes_pe[:, : len(term.dense_e)] @ term.dense_e
    return np.asarray(by_vector if by_words is None else by_vector + by_words, np.float32)


def _differentiate(backbone: Backbone, patches_pd: Floats, mean_d: Floats) -> Floats | None:
    """Return what each patch changes in the dense vector; None if that is not known.

    The vector is a function of the mean of all patches, so the changes sum to 0.
    """
    steps_pd = np.float32(_STEP) * (patches_pd - mean_d)
    moved = [backbone.pool_dense(mean_d + step_d) for step_d in (*steps_pd, *-steps_pd)]
    vectors = [vector_e for vector_e in moved if vector_e is not None]
    if not vectors:
        return None
    after_pe, before_pe = np.split(normalise(np.stack(vectors)), 2)
    return np.asarray((after_pe - before_pe) / np.float32(2 * _STEP * len(patches_pd)))


def encode_tiles(backbone: Backbone, image_hwc: Pixels) -> Floats:
    """Return the features of all patches of all tiles."""
    rows, columns = (
        [slice(int(start * n), int(start * n) + int(np.ceil(_SIDE * n))) for start in _STARTS]
        for n in image_hwc.shape[:2]
    )
    pixels = [backbone.prepare_image(image_hwc[tile]) for tile in product(rows, columns)]
    with ThreadPoolExecutor(available_cpus()) as pool:
        return np.concatenate([f.patches_pd for f in pool.map(backbone.forward, pixels)])


@dataclass(frozen=True)
class SecondPass:
    """What it needs to know of a query and a hit."""

    vocabulary: Vocabulary
    match: Match
    terms: Sequence[TextTerm]
    encode_queries: Callable[[], Sequence[Floats]]  # the tiles of each image
    hit_image: Pixels | None
    hit_patches_pd: Floats | None  # of the whole image

    def refine(self, groups: Sequence[Group]) -> Iterator[Group]:
        """Yield the groups with finer maps."""
        values = {word.word: word.contribution for word in self.match.words}
        in_queries = [self._activate(tiles_pd, list(values)) for tiles_pd in self.encode_queries()]
        in_hit: dict[int, Floats] = {}
        slopes_pe = None
        if self.hit_image is not None:
            patches_pd = encode_tiles(self.vocabulary.backbone, self.hit_image)
            in_hit = self._activate(patches_pd, list(values))
            if self.terms and self.hit_patches_pd is not None:
                mean_d = self.hit_patches_pd.mean(axis=0)
                slopes_pe = _differentiate(self.vocabulary.backbone, patches_pd, mean_d)
        for n, group in enumerate(groups):
            fine_p, *fine_of_queries = (
                spread_words([(values[word], active.get(word)) for word in group.words])
                for active in (in_hit, *in_queries)
            )
            if group.kind == "term":
                carried = _find_carriers(self.terms[n], self.match)
                fine_p = _spread_term(self.terms[n], carried, slopes_pe, in_hit)
                if fine_p is not None and group.value < 0:
                    fine_p = -fine_p
            pairs = zip(group.in_queries, fine_of_queries, strict=False)
            yield group._replace(
                in_hit=self._sharpen(group.in_hit, fine_p),
                in_queries=tuple(self._sharpen(grid, fine) for grid, fine in pairs),
            )

    def _activate(self, patches_pd: Floats, words: list[int]) -> dict[int, Floats]:
        """Return how active each word is in each patch, be it one of the strongest there or not."""
        sae = self.vocabulary.sae
        active_pk = np.maximum(patches_pd @ sae.w_enc_dv[:, words] + sae.b_enc_v[words], 0)
        return dict(zip(words, active_pk.T, strict=True))

    def _sharpen(self, grid: Grid | None, fine_p: Floats | None) -> Grid | None:
        """Return the map of the whole image times the finer one."""
        if grid is None or fine_p is None:
            return grid
        fine = join_tiles(fine_p, self.vocabulary.backbone.grid)
        size = fine.shape[1], fine.shape[0]
        whole = np.asarray(Image.fromarray(grid).resize(size, Image.Resampling.BILINEAR))
        sharp = np.maximum(fine, 0) * whole
        return sharp if sharp.any() else whole


def join_tiles(values_p: Floats, grid: tuple[int, int]) -> Grid:
    """Return the values of the patches of all tiles as one grid with twice the rows and columns.

    >>> join_tiles(np.ones(4 * 49, np.float32), (7, 7)).shape
    (14, 14)
    """
    tiles = values_p.reshape(_TILES, _TILES, *grid)
    rows, columns = map(_interpolate, grid)
    joined = np.einsum("ayr,bxc,abrc->yx", rows, columns, tiles)
    return np.asarray(joined, np.float32)


@cache
def _interpolate(n: int) -> NDArray[np.float64]:
    """Return how much each of a tile's n patches counts at each of 2 n positions, by tile.

    Where tiles overlap, a position nearer to the middle of one has more of that one.
    """
    positions = (np.arange(2 * n) + 0.5) / (2 * n)
    inside = (positions - _STARTS[:, None]) / _SIDE  # (tile, position): from 0 to 1
    patches = np.clip(n * inside - 0.5, 0, n - 1)
    shares = np.maximum(0, 1 - np.abs(patches[..., None] - np.arange(n)))
    weights = np.maximum(0, np.minimum(inside, 1 - inside))
    return np.asarray(shares * (weights / weights.sum(axis=0))[..., None])
