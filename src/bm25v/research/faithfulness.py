"""Whether scores depend on the patches that explanations show.

Deletion masks the most important patches of a hit first; insertion masks the complete hit and
reveals them first. The backbone encodes every masked image again.

Array letters: o orders of patches, x deletion and insertion, s steps of a curve, m masks, q pairs
of a query and a hit, u distinct images; the others as in ARCHITECTURE.md.
"""

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.errors import EvaluationError
from bm25v.index.bm25 import Statistics, WeightedWords, contributions
from bm25v.index.searcher import Searcher
from bm25v.progress import Progress, no_progress
from bm25v.research.bags import compute_codes, pool_bags
from bm25v.research.datasets import Dataset
from bm25v.research.evaluate import describe_vocabulary
from bm25v.research.faithfulness_results import (
    DENSE,
    EXPLANATION,
    MASKS,
    MIDDLE,
    Curves,
    Faithfulness,
    Floats,
    Mask,
    MaskResult,
    WordDeletion,
)
from bm25v.research.features import DatasetFeatures, extract_features, worker_pool
from bm25v.research.settings import RankingSettings
from bm25v.sae.model import Codes
from bm25v.threads import one_blas_thread
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag, quantise, word_activations, word_bytes

GREY = 128
TOP_HITS = 10  # the hit of a pair is one of the best 10
SHARES = (0.0, 0.1, 0.2, 0.4)  # of the patches that are masked; also 1 minus each of them
RANDOM_DRAWS = 2  # random orders per pair

Pixels = NDArray[np.uint8]


def measure_faithfulness(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    pairs: int = 200,
    masks: tuple[Mask, ...] = MASKS,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress = no_progress,
) -> Faithfulness:
    """Mask patches of hits in several orders, and measure how their scores change."""
    extracted = extract_features(dataset, vocabulary, cache=cache, progress=progress)
    vocabulary.backbone.load_weights()
    drawn, statistics = draw_pairs(extracted, vocabulary, pairs, seed=seed, progress=progress)
    rows, columns = vocabulary.backbone.grid
    shares_s = mask_sizes(rows * columns) / (rows * columns)
    results = {}
    for mask in masks:
        score = partial(_score_pair, mask=mask, vocabulary=vocabulary, statistics=statistics)
        scored: list[tuple[Floats, Floats, Floats]] = []
        with one_blas_thread(), worker_pool() as pool:
            for scores in pool.map(score, drawn, ([seed, i] for i in range(pairs))):
                scored.append(scores)
                progress(f"masking ({mask})", len(scored), pairs)
        bm25_qoxs, cosine_qoxs, word_q3 = map(np.stack, zip(*scored, strict=True))
        word = WordDeletion(*word_q3.T)
        results[mask] = MaskResult(Curves(shares_s, bm25_qoxs), Curves(shares_s, cosine_qoxs), word)
    return Faithfulness(
        title=extracted.dataset.title,
        images=len(extracted.dataset.gallery),
        pairs=pairs,
        seed=seed,
        vocabulary=describe_vocabulary(vocabulary, RankingSettings()),
        problems=extracted.dataset.problems,
        shares=shares_s.tolist(),
        masks=results,
    )


def mask_sizes(n_patches: int) -> NDArray[np.int64]:
    """Return how many patches are masked, or revealed, at each step.

    >>> mask_sizes(49).tolist()
    [0, 5, 10, 20, 29, 39, 44, 49]
    """
    first = [round(share * n_patches) for share in SHARES]
    return np.unique([*first, *(n_patches - n for n in first)])


# Pairs of a query and a hit


@dataclass(frozen=True)
class Pair:
    """A query and one of its hits, with the contributions to the hit's score."""

    query: WeightedWords
    query_dense_e: NDArray[np.float32]
    query_mean_d: NDArray[np.float32]  # mean patch feature of the query
    hit: Path
    hit_codes: Codes
    hit_patches_pd: NDArray[np.float32]
    contributions: dict[int, float]  # of each shared word, the largest first


def draw_pairs(
    extracted: DatasetFeatures,
    vocabulary: Vocabulary,
    n: int,
    *,
    seed: int = 0,
    progress: Progress = no_progress,
) -> tuple[list[Pair], Statistics]:
    """Draw n queries without repetition, and one of the best BM25 hits of each.

    A copy of the query does not count as a hit. Also returns the statistics of the gallery.
    """
    rng = np.random.default_rng(seed)
    codes_upk = compute_codes(extracted, vocabulary, progress)
    bags = pool_bags(codes_upk, RankingSettings(), k_post=vocabulary.k_post)
    gallery = bags.take(extracted.gallery_index_n)
    n_words = vocabulary.n_words
    words_nk = gallery.words_nk.astype(f"u{word_bytes(n_words)}")  # as in a gallery
    searcher = Searcher(words_nk, quantise(gallery.tf_nk), n_words=n_words)
    (means_ud,) = extracted.map_patches(lambda npd: (npd.mean(axis=1, dtype=np.float32),))
    pairs: list[Pair] = []
    for number in rng.permutation(len(extracted.query_index_q)):
        own = extracted.query_index_q[number]
        words, tf = bags.row(own)
        query = WeightedWords.from_bag(Bag(words.astype(np.int32), quantise(tf)))
        copies = int(np.count_nonzero(extracted.gallery_index_n == own))
        rows = searcher.search(query, TOP_HITS + copies).rows
        rows = rows[extracted.gallery_index_n[rows] != own][:TOP_HITS]
        if not len(rows):
            continue
        hit = extracted.dataset.gallery[rng.choice(rows)].path
        features = vocabulary.backbone.forward(vocabulary.prepare(hit))
        (encoding,) = vocabulary.encode_features([features])
        shared = _contributions(query, encoding.bag, searcher.statistics)
        if not shared:  # cached features have half precision: the only shared word may be lost
            continue
        vectors = extracted.dense_ue[own], means_ud[own]
        pairs.append(Pair(query, *vectors, hit, encoding.codes, features.patches_pd, shared))
        progress("drawing pairs", len(pairs), n)
        if len(pairs) == n:
            return pairs, searcher.statistics
    raise EvaluationError(
        f"{extracted.dataset.folder} has only {len(pairs):,} pairs of a query and a hit, not "
        f"{n:,}: add images, or lower --pairs"
    )


# Orders of patches


def importance_maps(pair: Pair, grid: tuple[int, int]) -> dict[str, NDArray[np.floating]]:
    """Return the importance of each patch of the hit, by three measures.

    Contributions of the words at the patch; product with the query's mean patch feature; nearness
    to the centre of the image.
    """
    contributions = [
        value * active_p / max(float(active_p.sum()), 1e-12)
        for word, value in pair.contributions.items()
        for active_p in (word_activations(pair.hit_codes, word),)
    ]
    rows, columns = (np.arange(n) - (n - 1) / 2 for n in grid)
    nearness_p = -np.hypot(rows[:, None] / grid[0], columns / grid[1]).ravel()
    return {
        EXPLANATION: np.sum(contributions, axis=0),
        DENSE: pair.hit_patches_pd @ pair.query_mean_d,
        MIDDLE: nearness_p,
    }


def order_patches(
    importance_p: NDArray[np.floating], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Return patches by importance, the most important first; ties are in random order.

    >>> order_patches(np.array([0.5, 2.0, 1.0]), np.random.default_rng(0)).tolist()
    [1, 2, 0]
    """
    shuffled = rng.permutation(len(importance_p))
    return shuffled[np.argsort(-importance_p[shuffled], kind="stable")]


# Masks


@dataclass(frozen=True)
class MaskableImage:
    """An image at the backbone's input size, and what replaces its masked patches.

    The backbone scales every image to a square of this size; doing it first makes each patch a
    rectangle of whole pixels.
    """

    pixels_hwc: Pixels
    replacement_hwc: Pixels
    patch_hw: NDArray[np.int64]  # which patch each pixel belongs to

    @classmethod
    def prepare(cls, pixels_hwc: Pixels, backbone: Backbone, mask: Mask) -> "MaskableImage":
        side, (rows, columns) = backbone.input_size, backbone.grid
        square = images.resize_image(pixels_hwc, width=side, height=side)
        row_h, column_w = (np.arange(side) * n // side for n in (rows, columns))
        if mask == "grey":
            replacement = np.full_like(square, GREY)
        else:
            blur = ImageFilter.GaussianBlur(side / rows / 2)
            replacement = np.array(Image.fromarray(square).filter(blur))
        return cls(square, replacement, row_h[:, None] * columns + column_w)

    def mask_patches(self, is_masked_p: NDArray[np.bool_]) -> Pixels:
        is_masked_hw = is_masked_p[self.patch_hw][..., None]
        return np.where(is_masked_hw, self.replacement_hwc, self.pixels_hwc)


# Scores of masked hits


def _score_pair(
    pair: Pair, seed: list[int], mask: Mask, vocabulary: Vocabulary, statistics: Statistics
) -> tuple[Floats, Floats, Floats]:
    """Return bm25_oxs, relative to the complete hit, cosine_oxs, and how one word depends on its
    patches: their number, and which share of its contribution is left without them, and without as
    many random patches.
    """
    backbone, rng = vocabulary.backbone, np.random.default_rng(seed)
    n_patches = backbone.grid[0] * backbone.grid[1]
    sizes_s = mask_sizes(n_patches)
    maps = importance_maps(pair, backbone.grid)
    orders = [order_patches(importance_p, rng) for importance_p in maps.values()]
    random_orders = [rng.permutation(n_patches) for _ in range(RANDOM_DRAWS)]
    deletions = [*orders, *random_orders]
    # A reversed random order is as random, and gives the same masked images as its deletion.
    insertions = [*orders, *(order[::-1] for order in random_orders)]
    masks_oxsp = np.array(
        [
            (_mask_first(deletion, sizes_s), ~_mask_first(insertion, sizes_s))
            for deletion, insertion in zip(deletions, insertions, strict=True)
        ]
    )
    word, value = list(pair.contributions.items())[rng.integers(len(pair.contributions))]
    has_word_p = word_activations(pair.hit_codes, word) > 0
    random_masks = [rng.permuted(has_word_p) for _ in range(RANDOM_DRAWS)]
    masks_mp = np.concatenate([masks_oxsp.reshape(-1, n_patches), [has_word_p], random_masks])
    image = MaskableImage.prepare(vocabulary.decode(pair.hit), backbone, mask)
    by_word, cosines = _score_masks(masks_mp, image, pair, vocabulary, statistics)
    left = [shared.get(word, 0.0) / value for shared in by_word[-1 - RANDOM_DRAWS :]]
    complete, shape = sum(pair.contributions.values()), masks_oxsp.shape[:3]
    n_curves = math.prod(shape)
    bm25 = [sum(shared.values()) / complete for shared in by_word[:n_curves]]
    return (
        _average_random(np.reshape(bm25, shape)),
        _average_random(np.reshape(cosines[:n_curves], shape)),
        np.array([has_word_p.sum(), left[0], np.mean(left[1:])]),
    )


def _mask_first(order: NDArray[np.int64], sizes_s: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return a mask per size, which covers that many patches from the start of an order."""
    rank_p = np.argsort(order)
    return np.asarray(rank_p < sizes_s[:, None])


def _score_masks(
    masks_mp: NDArray[np.bool_],
    image: MaskableImage,
    pair: Pair,
    vocabulary: Vocabulary,
    statistics: Statistics,
) -> tuple[list[dict[int, float]], list[float]]:
    """Return the contributions of words, and the cosine, under each mask."""
    backbone = vocabulary.backbone
    distinct, inverse = np.unique(masks_mp, axis=0, return_inverse=True)
    by_word, cosines = [], []
    for start in range(0, len(distinct), backbone.batch_size):
        masked = map(image.mask_patches, distinct[start : start + backbone.batch_size])
        features = backbone.forward_batch([backbone.prepare_image(pixels) for pixels in masked])
        for encoding in vocabulary.encode_features(features):
            by_word.append(_contributions(pair.query, encoding.bag, statistics))
            cosines.append(float(encoding.dense_e @ pair.query_dense_e))
    numbers = inverse.ravel().tolist()
    return [by_word[i] for i in numbers], [cosines[i] for i in numbers]


def _contributions(query: WeightedWords, bag: Bag, statistics: Statistics) -> dict[int, float]:
    """Return what each shared word adds to the score of a bag, the largest first."""
    shared = contributions(query, bag.words[None], bag.tf[None], statistics)
    order = np.argsort(-shared.values, kind="stable")
    words = query.words[shared.positions[order]]
    return dict(zip(words.tolist(), shared.values[order].tolist(), strict=True))


def _average_random(values_oxs: Floats) -> Floats:
    """Replace the random orders, which are the last ones, by their mean."""
    random_xs = values_oxs[-RANDOM_DRAWS:].mean(axis=0)
    return np.concatenate([values_oxs[:-RANDOM_DRAWS], random_xs[None]])
