"""`bm25v bench train`: how fast are a training step and the SAE's encoders? Needs torch.

In: sizes. Out: seconds of our implementations and of the same work in plain PyTorch.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.recipe import Recipe
from bm25v.training.trainer import Trainer

PATCHES, DIM, WORDS = 729, 1152, 18_432  # SigLIP2-SO400M, as in the paper

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class StepTimes:
    """Seconds per training step, medians of alternating rounds."""

    dim: int
    words: int
    ours: float
    dense: float

    @property
    def ratio(self) -> float:
        """How many times as fast our step is."""
        return self.dense / self.ours


@dataclass(frozen=True)
class WordTimes:
    """Seconds to find the words of one image, medians of alternating rounds."""

    patches: int
    dim: int
    words: int
    numpy: float
    torch: float

    @property
    def ratio(self) -> float:
        """How many times as fast our encoder is."""
        return self.torch / self.numpy


def time_steps(dim: int, *, batch: int = 4096, rounds: int = 5) -> StepTimes:
    """Time our training step and a dense one on the same random patches."""
    recipe = Recipe(batch=batch, aux_weight=0.0)
    patches_bd = np.random.default_rng(0).normal(size=(batch, dim)).astype(np.float32)
    trainer = Trainer(patches_bd, recipe, steps=1000)
    seconds = _median_seconds(
        {
            "ours": lambda: trainer.step(patches_bd),
            "dense": _dense_step(torch.from_numpy(patches_bd), recipe),
        },
        rounds,
    )
    return StepTimes(dim, recipe.expansion * dim, **seconds)


def time_words(
    patches: int = PATCHES, dim: int = DIM, words: int = WORDS, *, k: int = 16, rounds: int = 5
) -> WordTimes:
    """Time our encoder and one in PyTorch, on one thread and the same patches."""
    sae, patches_pd = _synthetic_sae(patches, dim, words, k)
    encoders: dict[str, Callable[[], object]] = {
        "numpy": lambda: sae.encode(patches_pd),
        "torch": _torch_encoder(sae, patches_pd),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            seconds = _median_seconds(encoders, rounds)
    finally:
        torch.set_num_threads(threads)
    return WordTimes(patches, dim, words, **seconds)


def _median_seconds(actions: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Time actions in turn; one more round before the others is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(rounds + 1):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            seconds[name].append(time.perf_counter() - start)
    return {name: float(np.median(values[1:])) for name, values in seconds.items()}


def _dense_step(x_bd: torch.Tensor, recipe: Recipe) -> Callable[[], None]:
    """Return the paper's step in its simplest form: dense codes, autograd, plain Adam."""
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


def _synthetic_sae(patches: int, dim: int, words: int, k: int) -> tuple[SparseAutoEncoder, Floats]:
    """Return a random SAE, and patches that are each a sum of a few words plus noise."""
    rng = np.random.default_rng(0)
    atoms_vd = rng.standard_normal((words, dim)).astype(np.float32)
    atoms_vd /= np.linalg.norm(atoms_vd, axis=1, keepdims=True)
    signal_pd = 6 * atoms_vd[rng.integers(0, words, (patches, k // 2))].sum(axis=1)
    noise_pd = rng.standard_normal((patches, dim)).astype(np.float32)
    zeros_v, zeros_d = np.zeros(words, np.float32), np.zeros(dim, np.float32)
    sae = SparseAutoEncoder(np.ascontiguousarray(atoms_vd.T), zeros_v, atoms_vd, zeros_d, k)
    return sae, signal_pd + noise_pd


def _torch_encoder(sae: SparseAutoEncoder, patches_pd: Floats) -> Callable[[], object]:
    weights_vd = torch.from_numpy(np.ascontiguousarray(sae.w_enc_dv.T))
    bias_v, x_pd = torch.from_numpy(sae.b_enc_v), torch.from_numpy(patches_pd)

    def encode() -> object:
        with torch.inference_mode():
            return F.linear(x_pd, weights_vd, bias_v).relu().topk(sae.k)

    return encode
