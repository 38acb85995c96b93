"""Finer maps of groups, by a second pass over four overlapping parts of each image.

Each part is resized to the backbone's input, so its patches are smaller. What they have of a group
is multiplied with the map of the whole image, which the score depends on.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bm25v.backbones import Backbone
from bm25v.backbones.protocol import Floats
from bm25v.explain.groups import Grid, Group, spread_contributions
from bm25v.explain.terms import differentiate, find_carriers, spread_term
from bm25v.search.results import Match
from bm25v.search.text import TextTerm
from bm25v.threads import available_cpus
from bm25v.vocabulary import Vocabulary

Pixels = NDArray[np.uint8]

_TILES = 2  # in a row, and in a column
_SIDE = 4 / 7  # of a tile, as a share of the image's
_STARTS = np.linspace(0, 1 - _SIDE, _TILES)


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
        query_words = [self._activate(tiles_pd, list(values)) for tiles_pd in self.encode_queries()]
        hit_words: dict[int, Floats] = {}
        slopes_pe = None
        if self.hit_image is not None:
            patches_pd = encode_tiles(self.vocabulary.backbone, self.hit_image)
            hit_words = self._activate(patches_pd, list(values))
            if self.terms and self.hit_patches_pd is not None:
                mean_d = self.hit_patches_pd.mean(axis=0)
                slopes_pe = differentiate(self.vocabulary.backbone, patches_pd, mean_d)
        for n, group in enumerate(groups):
            if group.kind == "term":
                carried = find_carriers(self.terms[n], self.match)
                fine_p = spread_term(self.terms[n], carried, slopes_pe, hit_words)
                if fine_p is not None and group.value < 0:
                    fine_p = -fine_p
            else:
                fine_p = _spread(group, values, hit_words)
            yield group._replace(
                in_hit=self._sharpen(group.in_hit, fine_p),
                in_queries=tuple(
                    self._sharpen(grid, _spread(group, values, active))
                    for grid, active in zip(group.in_queries, query_words, strict=False)
                ),
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


def _spread(
    group: Group, values: Mapping[int, float], activations: Mapping[int, Floats]
) -> Floats | None:
    """Return what the words of a group add in each patch of all tiles."""
    sign = 1 if group.value >= 0 else -1
    counted = ((sign * values[word], activations.get(word)) for word in group.words)
    return spread_contributions((value, active_p) for value, active_p in counted if value > 0)


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
