"""The order in which patches are learnt: shuffled, the same for a seed, entered at any step.

Patches come in windows, each small enough for memory. An epoch visits the windows in random order
and the patches of each window in random order; files are read forwards.
"""

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bm25v.sae.recipe import Recipe

Patches = NDArray[np.float16] | NDArray[np.float32]


class Windows(Protocol):
    """Patches (n, D) in parts."""

    def __len__(self) -> int:
        """How many windows there are."""

    def n_patches(self, window: int) -> int:
        """How many patches a window has."""

    def read(self, window: int) -> Patches:
        """Return a window's patches."""


def n_steps(windows: Windows, recipe: Recipe) -> int:
    """Return how many batches a run takes."""
    per_epoch = sum(_n_batches(windows, w, recipe) for w in range(len(windows)))
    return recipe.steps or recipe.epochs * per_epoch


def batches(windows: Windows, recipe: Recipe, *, start: int = 0) -> Iterator[Patches]:
    """Give the batches of a run from step `start` on, without end."""
    epoch = 0
    while True:
        order = np.random.default_rng([recipe.seed, epoch]).permutation(len(windows))
        for window in order.tolist():
            n = _n_batches(windows, window, recipe)
            if start >= n:  # passed over unread
                start -= n
                continue
            shuffle = np.random.default_rng([recipe.seed, epoch, window])
            rows = shuffle.permutation(windows.n_patches(window))
            patches = windows.read(window)
            for at in range(start * recipe.batch, len(rows), recipe.batch):
                yield patches[np.sort(rows[at : at + recipe.batch])]
            start = 0
        epoch += 1


def sample(windows: Windows, rows: int, seed: int) -> NDArray[np.float32]:
    """Return random patches of the first windows, from which a run starts."""
    rng = np.random.default_rng([seed, 2**31])
    parts: list[Patches] = []
    for window in range(len(windows)):
        patches = windows.read(window)
        chosen = rng.permutation(len(patches))[: rows - sum(map(len, parts))]
        parts.append(patches[np.sort(chosen)])
        if sum(map(len, parts)) >= rows:
            break
    return rng.permutation(np.concatenate(parts).astype(np.float32))


def _n_batches(windows: Windows, window: int, recipe: Recipe) -> int:
    return math.ceil(windows.n_patches(window) / recipe.batch)
