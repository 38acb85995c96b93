"""Trains an auto-encoder on patches in memory, as a run on images does."""

import itertools
from typing import Any, NamedTuple

import numpy as np

from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.quality import check_held_out
from bm25v.training.recipe import Patches, Recipe, iterate_batches
from bm25v.training.trainer import check_patches, describe_run, start_trainer


class TrainedSae(NamedTuple):
    sae: SparseAutoEncoder
    report: dict[str, Any]


class ArrayWindow:
    """All patches of an array, as the only window."""

    def __init__(self, patches_nd: Patches) -> None:
        self._patches_nd = patches_nd

    def __len__(self) -> int:
        return 1

    def n_patches(self, window: int) -> int:
        return len(self._patches_nd)

    def read(self, window: int) -> Patches:
        return self._patches_nd


def train_sae(patches_nd: Patches, recipe: Recipe) -> TrainedSae:
    """Train on random patches but a share, on which the result is measured."""
    check_patches(patches_nd.shape[0], patches_nd.shape[1], recipe)
    order = np.random.default_rng(recipe.seed).permutation(len(patches_nd))
    held_out, rows = np.split(order, [max(1, round(recipe.held_out * len(order)))])
    check_held_out([patches_nd[held_out]])
    windows = ArrayWindow(patches_nd[np.sort(rows)])
    trainer = start_trainer(windows, recipe)
    for batch_nd in itertools.islice(iterate_batches(windows, recipe), trainer.steps):
        trainer.step(batch_nd)
    sae = trainer.autoencoder()
    return TrainedSae(sae, describe_run(trainer, sae, [patches_nd[held_out]]))
