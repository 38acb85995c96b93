"""Hides patches of hits, takes what is left through the backbone again, and scores it."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.index.contributions import contributions, total
from bm25v.index.statistics import Statistics
from bm25v.research.datasets import Dataset
from bm25v.research.faithfulness.hiding import WAYS, Canvas, Way
from bm25v.research.faithfulness.orders import ORDERS, Order, maps, order
from bm25v.research.faithfulness.pairs import Pair, draw
from bm25v.research.faithfulness.result import Curves, Faithfulness, Hidden, OneWord, Scores
from bm25v.research.features import Progress, extract, workers
from bm25v.research.result import vocabulary_facts
from bm25v.research.settings import Settings
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import bag as bags

SHARES = (0.0, 0.1, 0.2, 0.4)  # of the patches; then what these leave of 1
DRAWS = 2  # of random patches for each pair

Masks = NDArray[np.bool_]  # a row an altered picture, a flag a patch: is it hidden?


class Look(NamedTuple):
    """What a search makes of an altered hit."""

    bm25: float
    cosine: float
    words: dict[int, float]  # what each gives


class Altered(NamedTuple):
    """What hiding did to one pair: by order, hiding or showing, and step."""

    bm25_ods: NDArray[np.float64]  # as a share of the whole hit's
    cosine_ods: NDArray[np.float64]
    patches: int  # where one word is
    word: float  # what is left of its contribution without them
    word_random: float  # … without as many random ones


def measure(
    dataset: Dataset,
    vocabulary: Vocabulary,
    *,
    pairs: int = 200,
    ways: tuple[Way, ...] = WAYS,
    seed: int = 0,
    cache: Path | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Faithfulness:
    """Measure whether the patches that explanations name are those that scores hang on."""
    pictures = extract(dataset, vocabulary, cache=cache, progress=progress)
    vocabulary.backbone.load()
    drawn, statistics = draw(pictures, vocabulary, pairs, seed=seed, progress=progress)
    rows, columns = vocabulary.backbone.grid
    shares_s = steps(rows * columns) / (rows * columns)
    found = {}
    for way in ways:
        alter_one = partial(alter, way=way, vocabulary=vocabulary, statistics=statistics)
        done: list[Altered] = []
        with threadpool_limits(1, user_api="blas"), workers() as pool:
            for one in pool.map(alter_one, drawn, ([seed, i] for i in range(pairs))):
                done.append(one)
                progress(f"hiding by {way}", len(done), pairs)
        found[way] = _joined(done, shares_s)
    return Faithfulness(
        title=pictures.dataset.title,
        pictures=len(pictures.dataset.gallery),
        pairs=pairs,
        seed=seed,
        vocabulary=vocabulary_facts(vocabulary, Settings()),
        problems=pictures.dataset.problems,
        ways=found,
    )


def steps(n_patches: int) -> NDArray[np.int64]:
    """Return how many patches are hidden, or shown, at each step.

    >>> steps(49).tolist()
    [0, 5, 10, 20, 29, 39, 44, 49]
    """
    first = [round(share * n_patches) for share in SHARES]
    return np.unique([*first, *(n_patches - n for n in first)])


def alter(
    pair: Pair, seed: list[int], way: Way, vocabulary: Vocabulary, statistics: Statistics
) -> Altered:
    """Hide patches of a pair's hit, in all orders and at all steps."""
    backbone, rng = vocabulary.backbone, np.random.default_rng(seed)
    n = backbone.grid[0] * backbone.grid[1]
    counts_s = steps(n)
    orders = [order(worth_p, rng) for worth_p in maps(pair, backbone.grid).values()]
    draws = [rng.permutation(n) for _ in range(DRAWS)]
    hiding = [*orders, *draws]
    # Showing a random order from its end is as random, and takes the pictures that are there.
    showing = [*orders, *(one[::-1] for one in draws)]
    masks_odsp = np.array(
        [
            (_first(hide, counts_s), ~_first(show, counts_s))
            for hide, show in zip(hiding, showing, strict=True)
        ]
    )
    part = pair.parts[rng.integers(len(pair.parts))]
    claimed_p = bags.word_activations(pair.codes, part.word) > 0
    others = [rng.permuted(claimed_p) for _ in range(DRAWS)]
    masks = np.concatenate([masks_odsp.reshape(-1, n), [claimed_p], others])
    canvas = Canvas.of(vocabulary.decode(pair.hit), backbone, way)
    looks = _look(masks, canvas, pair, vocabulary, statistics)
    curves, word = looks[: -1 - DRAWS], looks[-1 - DRAWS :]
    left = [look.words.get(part.word, 0.0) / part.value for look in word]
    whole, shape = total(pair.parts), masks_odsp.shape[:3]
    return Altered(
        _random_joined(np.reshape([look.bm25 / whole for look in curves], shape)),
        _random_joined(np.reshape([look.cosine for look in curves], shape)),
        int(claimed_p.sum()),
        left[0],
        float(np.mean(left[1:])),
    )


def _first(order: Order, counts_s: NDArray[np.int64]) -> Masks:
    """Return masks of the first patches, as many as each step says."""
    rank_p = np.argsort(order)
    return np.asarray(rank_p < counts_s[:, None])


def _look(
    masks: Masks, canvas: Canvas, pair: Pair, vocabulary: Vocabulary, statistics: Statistics
) -> list[Look]:
    """Take each distinct altered picture through the backbone, once."""
    backbone = vocabulary.backbone
    distinct, place = np.unique(masks, axis=0, return_inverse=True)
    looks = []
    for start in range(0, len(distinct), backbone.batch):
        altered = [
            canvas.without(hidden_p) for hidden_p in distinct[start : start + backbone.batch]
        ]
        features = backbone.forward_batch([backbone.prepare(one) for one in altered])
        for encoding in vocabulary.encode_features(features):
            parts = contributions(pair.query, encoding.bag, statistics)
            cosine = float(encoding.dense_e @ pair.dense_e)
            looks.append(Look(total(parts), cosine, {part.word: part.value for part in parts}))
    return [looks[i] for i in place.ravel().tolist()]


def _random_joined(values_ods: NDArray[np.float64]) -> NDArray[np.float64]:
    """Take the mean of the random orders, which are the last ones."""
    random_ds = values_ods[-DRAWS:].mean(axis=0)
    return np.concatenate([values_ods[:-DRAWS], random_ds[None]])


def _joined(done: list[Altered], shares_s: NDArray[np.float64]) -> Hidden:
    def scores(values_qods: NDArray[np.float64]) -> Scores:
        deletion, insertion = (
            Curves(shares_s, {name: values_qods[:, o, d] for o, name in enumerate(ORDERS)})
            for d in range(2)
        )
        return Scores(deletion, insertion)

    return Hidden(
        scores(np.stack([one.bm25_ods for one in done])),
        scores(np.stack([one.cosine_ods for one in done])),
        OneWord(
            np.array([one.patches for one in done], dtype=np.float64),
            np.array([one.word for one in done]),
            np.array([one.word_random for one in done]),
        ),
    )
