"""Train an auto-encoder on patches in memory; `bm25v.training` does it for folders of pictures."""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import WrongUse
from bm25v.sae.batches import Patches, Windows, batches, n_steps, sample
from bm25v.sae.measure import measure
from bm25v.sae.model import SparseAutoEncoder
from bm25v.sae.recipe import Recipe
from bm25v.sae.trainer import StepFigures, Trainer

SAMPLE_ROWS = 100_000

_HELD_OUT_RUN = 256  # neighbouring rows come from one picture: hold out whole runs of them

Progress = Callable[[StepFigures, int], None]


class Trained(NamedTuple):
    """An auto-encoder and how it came to be."""

    sae: SparseAutoEncoder
    report: dict[str, Any]


class Array:
    """Rows of an array as one window."""

    def __init__(self, patches: Patches, rows: NDArray[np.intp]) -> None:
        self._patches = patches
        self._rows = rows

    def __len__(self) -> int:
        return 1

    def n_patches(self, window: int) -> int:
        """How many rows there are."""
        return len(self._rows)

    def read(self, window: int) -> Patches:
        """Return the rows."""
        return self._patches[self._rows]


def train(
    patches: Patches,
    recipe: Recipe | None = None,
    progress: Progress = lambda figures, steps: None,
) -> Trained:
    """Train an auto-encoder on patch features (n, D); the same seed gives the same weights.

    `progress` is called after every step with its figures and the number of steps.

    >>> patches = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    >>> trained = train(patches, Recipe(expansion=4, k=4, batch=256, epochs=2))
    >>> trained.sae.n_words, trained.report["steps"], trained.report["fvu"] < 1
    (32, 16, True)
    """
    recipe = recipe or Recipe()
    check(patches.shape, recipe)
    start = time.perf_counter()
    rows, held_out_rows = _split(len(patches), recipe)
    windows = Array(patches, rows)
    trainer = start_run(windows, recipe)
    for batch in itertools.islice(batches(windows, recipe), trainer.steps):
        progress(trainer.step(batch), trainer.steps)
    sae = trainer.autoencoder()
    report = describe(trainer, sae, [patches[held_out_rows]])
    seconds = round(time.perf_counter() - start, 1)
    return Trained(sae, {"patches": len(rows), **report, "seconds": seconds})


def start_run(windows: Windows, recipe: Recipe, *, device: str = "cpu") -> Trainer:
    """Return a trainer at its first step."""
    seen = sample(windows, SAMPLE_ROWS, recipe.seed)
    return Trainer(seen, recipe, n_steps(windows, recipe), device=device)


def describe(trainer: Trainer, sae: SparseAutoEncoder, held_out: list[Patches]) -> dict[str, Any]:
    """Return a run's settings and what it reached on patches it has not seen."""
    return {
        "steps": trainer.steps,
        "dead_share": trainer.dead_share,
        **measure(sae, held_out).report(),
        "recipe": asdict(trainer.recipe),
    }


def check(shape: tuple[int, ...], recipe: Recipe) -> None:
    """Refuse patches that nothing can be learnt from."""
    if len(shape) != 2:
        raise WrongUse(f"patches must be an array (n, D): got one of shape {shape}")
    words = recipe.expansion * shape[1]
    if shape[0] < words:
        raise WrongUse(
            f"{shape[0]:,} patches are fewer than the {words:,} words to be learnt: "
            "give more pictures, or a smaller expansion"
        )
    if not 0 < recipe.k <= words:
        raise WrongUse(f"k must be between 1 and the vocabulary's {words} words: got {recipe.k}")


def _split(n: int, recipe: Recipe) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to train on and the rows to hold out."""
    run = min(_HELD_OUT_RUN, math.ceil(n / 10))
    runs = math.ceil(n / run)
    shuffled = np.random.default_rng(recipe.seed).permutation(runs)
    is_held_out = np.isin(np.arange(n) // run, shuffled[: max(1, round(recipe.held_out * runs))])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
