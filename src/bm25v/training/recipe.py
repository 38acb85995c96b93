"""The settings of a training run, and the order in which it visits its patches.

An epoch visits the windows in random order, and the patches of each window in random order. The
order depends on the seed and the step alone, so a run can resume at any step.
"""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import InvalidOption
from bm25v.schema import FLAG, SchemaError, check_values, nullable, number, whole

Patches = NDArray[np.float16] | NDArray[np.float32]

_RULES = {
    **dict.fromkeys(("expansion", "k", "batch", "epochs", "dead_after"), whole(1)),
    **dict.fromkeys(("steps", "aux_k"), nullable(whole(1))),
    **dict.fromkeys(("clip_norm", "mean_activation"), nullable(number(1e-6, 1e6))),
    "learning_rate": number(1e-12, 1e30),
    **dict.fromkeys(("warm_up", "held_out"), number(0, 1)),
    **dict.fromkeys(("l1", "aux_weight"), number(0, 1e6)),
    **dict.fromkeys(
        ("standardise", "loss_per_value", "data_start", "fitted_start", "unit_rows"), FLAG
    ),
    **dict.fromkeys(("decoder_bias", "stop_words"), FLAG),
    "seed": whole(0),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a sparse auto-encoder is trained; the defaults worked best in our measurements.

    The first fields are the paper's; each of the others is an addition, which `paper` leaves out.

    >>> Recipe().expansion, Recipe.paper().aux_weight
    (16, 0.0)
    """

    expansion: int = 16  # words per feature dimension
    k: int = 16  # active words per patch
    batch: int = 4096  # patches per step
    epochs: int = 5  # how often each patch is used
    steps: int | None = None  # overrides epochs
    learning_rate: float = 4e-3  # the highest of the cosine schedule
    l1: float = 1e-3  # λ, the weight of the L1 penalty
    held_out: float = 0.02  # share of the patches, to measure the result
    seed: int = 0  # of the start and of the order of the patches

    warm_up: float = 0.05  # share of the steps, with a rising learning rate
    standardise: bool = True  # train on centred and scaled patches
    loss_per_value: bool = True  # the loss is divided by the feature dimensions
    aux_weight: float = 1 / 32  # of the loss that makes dead words active again
    aux_k: int | None = None  # dead words in that loss; None: half the feature dimensions
    dead_after: int = 10_000_000  # patches without activation, at most a tenth of the run
    clip_norm: float | None = 1.0  # of the gradient
    decoder_bias: bool = True  # trained
    data_start: bool = True  # words start as directions of patches, the encoder as the decoder
    fitted_start: bool = True  # the encoder starts scaled to the best fit
    unit_rows: bool = True  # decoder rows keep length 1
    mean_activation: float | None = 1.0  # of active words: a term frequency counts occurrences
    stop_words: bool = True  # words of nearly all images are left out of bags

    def __post_init__(self) -> None:
        try:
            check_values(asdict(self), _RULES)
        except SchemaError as error:
            raise InvalidOption(f"{error}: give another value") from error

    @classmethod
    def paper(cls) -> "Recipe":
        """The paper's method and nothing else; it does not say the learning rate."""
        return cls(
            learning_rate=1e-3,
            warm_up=0.0,
            standardise=False,
            loss_per_value=False,
            aux_weight=0.0,
            clip_norm=None,
            decoder_bias=False,
            data_start=False,
            fitted_start=False,
            unit_rows=False,
            mean_activation=None,
            stop_words=False,
        )


class Windows(Protocol):
    """Patches (n, D) in parts that fit in memory."""

    def __len__(self) -> int: ...

    def n_patches(self, window: int) -> int: ...

    def read(self, window: int) -> Patches: ...


def count_steps(windows: Windows, recipe: Recipe) -> int:
    per_epoch = sum(_count_batches(windows, w, recipe) for w in range(len(windows)))
    return recipe.steps or recipe.epochs * per_epoch


def iterate_batches(windows: Windows, recipe: Recipe, *, start: int = 0) -> Iterator[Patches]:
    """Yield the batches of a run from step `start` on, epoch after epoch without end."""
    epoch = 0
    while True:
        order = np.random.default_rng([recipe.seed, epoch]).permutation(len(windows))
        for window in order.tolist():
            n_batches = _count_batches(windows, window, recipe)
            if start >= n_batches:  # skipped without reading it
                start -= n_batches
                continue
            shuffle = np.random.default_rng([recipe.seed, epoch, window])
            rows = shuffle.permutation(windows.n_patches(window))
            patches_nd = windows.read(window)
            for first in range(start * recipe.batch, len(rows), recipe.batch):
                yield patches_nd[np.sort(rows[first : first + recipe.batch])]
            start = 0
        epoch += 1


def sample_patches(windows: Windows, n: int, seed: int) -> NDArray[np.float32]:
    """Return up to `n` random patches of the first windows, with which a run is initialised."""
    rng = np.random.default_rng([seed, 2**31])
    parts: list[Patches] = []
    for window in range(len(windows)):
        patches_nd = windows.read(window)
        chosen = rng.permutation(len(patches_nd))[: n - sum(map(len, parts))]
        parts.append(patches_nd[np.sort(chosen)])
        if sum(map(len, parts)) >= n:
            break
    return rng.permutation(np.concatenate(parts).astype(np.float32))


def _count_batches(windows: Windows, window: int, recipe: Recipe) -> int:
    return math.ceil(windows.n_patches(window) / recipe.batch)
