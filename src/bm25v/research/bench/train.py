"""How fast is a training step? Ours against the same step written densely in plain PyTorch."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name everyone knows

from bm25v.sae.recipe import Recipe
from bm25v.sae.trainer import Trainer


@dataclass(frozen=True)
class StepTimes:
    """Seconds a step, medians of rounds taken in turn."""

    dim: int
    words: int
    ours: float
    dense: float

    @property
    def ratio(self) -> float:
        """How many times faster our step is."""
        return self.dense / self.ours


def time_steps(dim: int, *, batch: int = 4096, rounds: int = 5) -> StepTimes:
    """Time both steps on the same random patches."""
    recipe = Recipe(batch=batch, aux_weight=0.0)
    patches = np.random.default_rng(0).normal(size=(batch, dim)).astype(np.float32)
    trainer = Trainer(patches, recipe, steps=1000)
    dense = _dense_step(torch.from_numpy(patches), recipe)
    ways: dict[str, Callable[[], Any]] = {"ours": lambda: trainer.step(patches), "dense": dense}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(taken[1:])) for name, taken in seconds.items()}
    return StepTimes(dim, recipe.expansion * dim, medians["ours"], medians["dense"])


def _dense_step(x_bd: torch.Tensor, recipe: Recipe) -> Callable[[], None]:
    """Return the paper's step as one would first write it: dense codes, autograd, plain Adam."""
    words, dim = recipe.expansion * x_bd.shape[1], x_bd.shape[1]
    encoder = torch.nn.Linear(dim, words)
    decoder = torch.nn.Linear(words, dim)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)

    def step() -> None:
        active_bv = F.relu(encoder(x_bd))
        top = active_bv.topk(recipe.k)
        codes_bv = torch.zeros_like(active_bv).scatter(1, top.indices, top.values)
        loss = (decoder(codes_bv) - x_bd).square().mean() + recipe.l1 * codes_bv.sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()

    return step
