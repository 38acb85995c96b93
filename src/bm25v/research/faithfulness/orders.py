"""In which order patches of a hit are hidden, or shown: what is said to matter comes first."""

import numpy as np
from numpy.typing import NDArray

from bm25v.explain.explanation import spread
from bm25v.research.faithfulness.pairs import Pair
from bm25v.vocabulary import bag as bags

OURS, DENSE, MIDDLE, RANDOM = "explanation", "dense", "middle", "random"
ORDERS = (OURS, DENSE, MIDDLE, RANDOM)

Order = NDArray[np.int64]  # all patches, the one that matters most first


def maps(pair: Pair, grid: tuple[int, int]) -> dict[str, NDArray[np.floating]]:
    """Return what each patch of the hit is worth, in three opinions.

    By the explanation's words, by likeness to the query's mean patch, by nearness to the middle.
    """
    claims = [(part.value, bags.word_activations(pair.codes, part.word)) for part in pair.parts]
    rows, columns = (np.arange(n) - (n - 1) / 2 for n in grid)
    nearness_p = -np.hypot(rows[:, None] / grid[0], columns / grid[1]).ravel()
    return {OURS: spread(claims), DENSE: pair.patches_pd @ pair.mean_d, MIDDLE: nearness_p}


def order(worth_p: NDArray[np.floating], rng: np.random.Generator) -> Order:
    """Return patches by worth, largest first; equal ones are shuffled.

    >>> order(np.array([0.5, 2.0, 1.0]), np.random.default_rng(0)).tolist()
    [1, 2, 0]
    """
    shuffled = rng.permutation(len(worth_p))
    return shuffled[np.argsort(-worth_p[shuffled], kind="stable")]
