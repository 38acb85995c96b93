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
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from bm25v import images
from bm25v.backbones import Backbone
from bm25v.errors import EvaluationError
from bm25v.index.bm25 import Statistics, WeightedWords, contributions
from bm25v.progress import Progress, no_progress
from bm25v.research.datasets import Dataset
from bm25v.research.evaluate import describe_vocabulary
from bm25v.research.features import DatasetFeatures, extract_features
from bm25v.research.metrics import (
    Comparison,
    Interval,
    compare,
    confidence_interval,
    confidence_intervals,
    ratio_interval,
)
from bm25v.research.settings import RankingSettings
from bm25v.research.systems import SystemRunner
from bm25v.research.tables import Cells, format_interval, format_p, format_share
from bm25v.sae.model import Codes
from bm25v.training.patches import worker_pool
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import Bag, word_activations

GREY = 128
TOP_HITS = 10  # the hit of a pair is one of the best 10
SHARES = (0.0, 0.1, 0.2, 0.4)  # of the patches that are masked; also 1 minus each of them
RANDOM_DRAWS = 2  # random orders per pair

Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]
Mask = Literal["grey", "blur"]
MASKS: tuple[Mask, ...] = get_args(Mask)

# Orders of patches; the explanation's order is compared with the three others.
EXPLANATION, DENSE, MIDDLE, RANDOM = "explanation", "dense", "middle", "random"
ORDERS = (EXPLANATION, DENSE, MIDDLE, RANDOM)
BASELINES = (RANDOM, MIDDLE, DENSE)
KINDS = ("deletion", "insertion")

_NOTE = (
    "deletion: the score while the most important patches are masked first, lower is better; "
    "insertion: the score while they are revealed first, higher is better; both are areas under "
    "the curve"
)


@dataclass(frozen=True)
class Curves:
    """A score over the share of patches that are masked, or revealed."""

    shares_s: Floats
    values_qoxs: Floats  # by ORDERS and KINDS

    def values(self, order: str, kind: str) -> Floats:
        return self.values_qoxs[:, ORDERS.index(order), KINDS.index(kind)]

    def aucs(self, order: str, kind: str) -> Floats:
        """Return the area under the curve of each pair: 1 if the score is 1 throughout."""
        return np.asarray(np.trapezoid(self.values(order, kind), self.shares_s, axis=1))

    def auc(self, order: str, kind: str) -> Interval:
        return confidence_interval(self.aucs(order, kind))

    def means(self, order: str, kind: str) -> list[Interval]:
        return confidence_intervals(self.values(order, kind))

    def compare(self, baseline: str, kind: str) -> Comparison:
        """Compare the areas of the explanation's order with those of another order."""
        return compare(self.aucs(EXPLANATION, kind), self.aucs(baseline, kind))

    def ratio(self, baseline: str, kind: str) -> Interval:
        """Return how many times better the explanation's area is than a baseline's."""
        ours, theirs = self.aucs(EXPLANATION, kind), self.aucs(baseline, kind)
        return ratio_interval(theirs, ours) if kind == "deletion" else ratio_interval(ours, theirs)


class WordDeletion(NamedTuple):
    """How much of one word's contribution is left after masking, as a share; a value per pair."""

    patches_q: Floats  # how many patches have the word
    left_q: Floats  # after masking these patches
    left_random_q: Floats  # after masking as many random patches

    @property
    def p(self) -> float:
        return compare(self.left_q, self.left_random_q).p


class MaskResult(NamedTuple):
    bm25: Curves  # relative to the score of the complete hit
    cosine: Curves
    word: WordDeletion

    def to_dict(self) -> dict[str, Any]:
        def describe_order(curves: Curves, order: str) -> dict[str, Any]:
            areas = {kind: curves.auc(order, kind)._asdict() for kind in KINDS}
            means = {
                f"{kind}_curve": [point.mean for point in curves.means(order, kind)]
                for kind in KINDS
            }
            return {**areas, **means}

        def compare_with(baseline: str) -> dict[str, Any]:
            compared: dict[str, Any] = {}
            for kind in KINDS:
                compared[f"{kind}_ratio"] = self.bm25.ratio(baseline, kind)._asdict()
                compared[f"{kind}_p"] = self.bm25.compare(baseline, kind).p
            return compared

        scores = {"bm25": self.bm25, "cosine": self.cosine}
        return {
            "orders": {
                order: {score: describe_order(curves, order) for score, curves in scores.items()}
                for order in ORDERS
            },
            "against": {baseline: compare_with(baseline) for baseline in BASELINES},
            "one_word": {
                **{
                    name.removesuffix("_q"): confidence_interval(values_q)._asdict()
                    for name, values_q in self.word._asdict().items()
                },
                "p": self.word.p,
            },
        }


@dataclass(frozen=True)
class Faithfulness:
    title: str
    images: int
    pairs: int
    seed: int
    vocabulary: dict[str, Any]
    problems: list[str]
    shares: list[float]
    masks: dict[Mask, MaskResult]

    def to_dict(self) -> dict[str, Any]:
        return {
            "dataset": self.title,
            "n_images": self.images,
            "pairs": self.pairs,
            "seed": self.seed,
            "shares": self.shares,
            "masks": {mask: result.to_dict() for mask, result in self.masks.items()},
            "problems": self.problems,
            "vocabulary": self.vocabulary,
        }


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
        with worker_pool() as pool:
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
    words = SystemRunner(extracted, vocabulary, RankingSettings(), depth=0, progress=progress).words
    searcher, queries = words.prepare_searcher(), words.queries()
    (means_ud,) = extracted.map_patches(lambda npd: (npd.mean(axis=1, dtype=np.float32),))
    pairs: list[Pair] = []
    for number in rng.permutation(len(extracted.query_index_q)):
        own, query = extracted.query_index_q[number], queries[number]
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
    # The rank of a patch in an order says from which size on a mask covers it.
    masks_oxsp = np.array(
        [
            (np.argsort(deletion) < sizes_s[:, None], np.argsort(insertion) >= sizes_s[:, None])
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


# For people


def describe(result: Faithfulness) -> list[str]:
    words = result.vocabulary
    shares = ", ".join(f"{share:.0%}" for share in result.shares)
    return [
        f"{result.title}: {result.pairs:,} pairs of a query and a hit, {result.images:,} images to "
        f"search; seed {result.seed}; {shares} of the patches",
        f"vocabulary {words['name']}: {words['words']:,} words of {words['backbone']}, "
        f"k_post {words['k_post']}",
        _NOTE,
    ]


def mask_tables(mask: Mask, measured: MaskResult) -> tuple[Cells, Cells]:
    """Return the areas of all orders, and how they compare with the explanation's."""
    area_columns = ["deletion", "95 %", "insertion", "95 %", "cosine deletion", "cosine insertion"]
    areas = []
    for order in ORDERS:
        bm25 = [cell for kind in KINDS for cell in format_interval(measured.bm25.auc(order, kind))]
        cosine = [format_share(measured.cosine.auc(order, kind).mean) for kind in KINDS]
        areas.append([order, *bm25, *cosine])
    ratios = []
    for baseline in BASELINES:
        cells = [baseline]
        for kind in KINDS:
            mean, low, high = measured.bm25.ratio(baseline, kind)
            p = format_p(measured.bm25.compare(baseline, kind).p)
            cells += [f"{mean:.2f}× ({low:.2f}–{high:.2f})", p]
        ratios.append(cells)
    ratio_columns = ["explanation, times better than", "deletion", "p", "insertion", "p"]
    return ([f"order of patches, mask: {mask}", *area_columns], areas), (ratio_columns, ratios)


def describe_word(measured: MaskResult) -> str:
    """Return what is left of a word's contribution without its patches, in one sentence."""
    patches, *shares = map(confidence_interval, measured.word)
    left, left_random = ("{} ({})".format(*format_interval(share)) for share in shares)
    return (
        f"one word per explanation: after masking its patches ({patches.mean:.1f} on average), "
        f"{left} of its contribution is left; after masking as many random patches, "
        f"{left_random} ({format_p(measured.word.p)})"
    )
