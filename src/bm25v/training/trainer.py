"""One training run of a TopK sparse auto-encoder, step by step.

In: batches of raw patch features. Out: weights for raw features with the paper's formulas
(equations 3 and 4, with a decoder bias). The state of a run can be saved and restored, and several
processes can share a run, each with its part of every batch. `train_sae` trains on patches in
memory. Not this module's job: images and files (`run`).
"""

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra, WrongUse
from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.quality import check_held_out, measure_quality
from bm25v.training.recipe import (
    Patches,
    Recipe,
    Windows,
    count_steps,
    iterate_batches,
    sample_patches,
)

try:
    import torch
    import torch.nn.functional as F  # noqa: N812 - the usual name
    from torch import Tensor, distributed
except ImportError as error:
    raise MissingExtra("training a vocabulary", "train") from error

_SAMPLE_PATCHES = 100_000  # with which a run is initialised
_HELD_OUT_RUN = 256  # neighbouring rows come from one image: whole runs of them are held out
_BLOCK_ROWS = 4096
_CHUNK_ROWS = 512


class StepFigures(NamedTuple):
    """Measurements of one training step."""

    step: int
    fvu: float  # fraction of the batch's variance unexplained
    l0: float  # active words per patch
    dead_share: float  # share of words that have not been active for long


class Trainer:
    """Trains on batches; the same sample, recipe and batches give the same weights."""

    def __init__(
        self, sample_nd: Patches, recipe: Recipe, steps: int, *, device: str = "cpu"
    ) -> None:
        self.recipe = recipe
        self.steps = steps
        self.step_number = 0
        sample_nd = np.asarray(sample_nd, dtype=np.float32)
        self._device = torch.device(device)
        fitted = _fit_scaling(sample_nd)  # raises an error if there is nothing to learn
        self._scaling = fitted if recipe.standardise else _no_scaling(sample_nd)
        self._sample_nd = self._scaling.apply(sample_nd).to(self._device)
        rng = np.random.default_rng(recipe.seed)
        self.model = _initialise(self._sample_nd, recipe, rng)
        self._optimiser = torch.optim.Adam(self.model.parameters(), fused=True)
        n_words = len(self.model.bias_v)
        self._unseen_v = torch.zeros(n_words, dtype=torch.int64, device=self._device)
        self._dead_after = min(recipe.dead_after, steps * recipe.batch // 10)

    def step(self, batch_nd: Patches) -> StepFigures:
        """Learn from one batch, or from this process's part of it."""
        recipe, model = self.recipe, self.model
        x_bd = self._scaling.apply(batch_nd).to(self._device)
        n = _sum_over_processes(torch.tensor(float(len(x_bd)), device=self._device))
        acts_bk, words_bk = model.encode(x_bd, recipe.k)
        error_bd = model.decode(acts_bk, words_bk) - x_bd
        # Sums over this part divided by the size of the whole batch: the sum of the gradients of
        # all processes is the gradient of the whole batch.
        values = n * x_bd.shape[1]
        loss = (error_bd.square().sum() + recipe.l1 * acts_bk.sum()) / values
        dead = torch.nonzero(self._unseen_v >= self._dead_after).squeeze(1)
        if recipe.aux_weight and len(dead):
            loss = loss + recipe.aux_weight * _aux_loss(model, x_bd, error_bd, dead, recipe.aux_k)
        fvu = float(_sum_over_processes(error_bd.detach().square().sum()) / values)
        self._check_finite(fvu)
        self._update(loss)
        active_bk = acts_bk > 0
        seen_v = torch.zeros(len(self._unseen_v), device=self._device)
        seen_v[words_bk[active_bk]] = 1
        self._unseen_v += int(n)
        self._unseen_v[_sum_over_processes(seen_v) > 0] = 0
        self.step_number += 1
        l0 = float(_sum_over_processes(active_bk.sum().float()) / n)
        return StepFigures(self.step_number, fvu, l0, self.dead_share)

    @property
    def dead_share(self) -> float:
        """The share of words that have not been active for long."""
        return float((self._unseen_v >= self._dead_after).float().mean())

    def autoencoder(self) -> SparseAutoEncoder:
        """Return the trained auto-encoder for raw patch features."""
        with torch.no_grad():
            acts_nk, _ = self.model.encode(self._sample_nd[:_BLOCK_ROWS], self.recipe.k)
        active = acts_nk[acts_nk > 0]
        gain = self.recipe.mean_activation / float(active.mean()) if len(active) else 1.0
        return _fold_scaling(self.model, self._scaling, gain, self.recipe.k)

    def state(self) -> dict[str, Tensor]:
        """Return everything that changes during a run, by name."""
        tensors = {"step": torch.tensor(self.step_number), "unseen": self._unseen_v}
        for name, parameter in zip(_NAMES, self.model.parameters(), strict=True):
            tensors[name] = parameter.detach()
            for key, value in self._optimiser.state[parameter].items():
                tensors[f"{name}.{key}"] = value
        return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a state that `state` returned."""
        self.step_number = int(state["step"])
        self._unseen_v.copy_(state["unseen"])
        for name, parameter in zip(_NAMES, self.model.parameters(), strict=True):
            with torch.no_grad():
                parameter.copy_(state[name])
            moments = {k.split(".")[1]: v for k, v in state.items() if k.startswith(f"{name}.")}
            if moments:
                self._optimiser.state[parameter] = {
                    key: value.to(self._device) for key, value in moments.items()
                }

    def _update(self, loss: Tensor) -> None:
        self._optimiser.zero_grad()
        loss.backward()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                _sum_over_processes(parameter.grad)
        if self.recipe.unit_rows:
            _remove_row_component(self.model.dec_vd)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        rate = _learning_rate(self.step_number, self.steps, self.recipe)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        if self.recipe.unit_rows:
            with torch.no_grad():
                self.model.dec_vd.copy_(F.normalize(self.model.dec_vd))

    def _check_finite(self, fvu: float) -> None:
        if not math.isfinite(fvu):
            raise WrongUse(
                f"training diverged at step {self.step_number + 1} of {self.steps}: the patches "
                "contain NaN or infinite values, or the learning rate "
                f"{self.recipe.learning_rate} is too high"
            )


def _sum_over_processes(tensor: Tensor) -> Tensor:
    """Replace a tensor by its sum over all processes of the run; return it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(tensor)
    return tensor


class _Scaling(NamedTuple):
    """Scales features to mean 0 and, on average over the dimensions, variance 1."""

    mean_d: NDArray[np.float32]
    scale: float

    def apply(self, z_nd: Patches) -> Tensor:
        return torch.from_numpy((np.asarray(z_nd, dtype=np.float32) - self.mean_d) / self.scale)


def _fit_scaling(sample_nd: NDArray[np.float32]) -> _Scaling:
    mean_d = sample_nd.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = float(np.sqrt(np.mean((sample_nd - mean_d) ** 2, dtype=np.float64)))
    if not (math.isfinite(scale) and scale > 0):
        raise WrongUse(
            "the patches are all equal, or contain NaN or infinite values: check the images"
        )
    return _Scaling(mean_d, scale)


def _no_scaling(sample_nd: NDArray[np.float32]) -> _Scaling:
    return _Scaling(np.zeros(sample_nd.shape[1], dtype=np.float32), 1.0)


_NAMES = ("enc", "enc_bias", "dec", "dec_bias")


class _TopK(torch.autograd.Function):  # type: ignore[misc] # torch is untyped here
    """topk(relu(x W + b), k) whose backward pass computes gradients of the kept words only.

    Rows are encoded in chunks that stay in the cache. The gradient of a word's weights is a
    weighted sum of the patches in which it is active: one call of `embedding_bag` over entries
    sorted by word.
    """

    @staticmethod
    def forward(
        ctx: Any, x_bd: Tensor, enc_vd: Tensor, bias_v: Tensor, k: int
    ) -> tuple[Tensor, Tensor]:
        """Return activations and words."""
        parts = [
            F.linear(part_nd, enc_vd, bias_v).topk(k, sorted=False)
            for part_nd in x_bd.split(_CHUNK_ROWS)
        ]
        acts_bk = F.relu(torch.cat([part.values for part in parts]))
        words_bk = torch.cat([part.indices for part in parts])
        ctx.save_for_backward(x_bd, acts_bk, words_bk)
        ctx.mark_non_differentiable(words_bk)
        ctx.n_words = len(enc_vd)
        return acts_bk, words_bk

    @staticmethod
    def backward(ctx: Any, grad_bk: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the weights and the bias."""
        x_bd, acts_bk, words_bk = ctx.saved_tensors
        weights = (grad_bk * (acts_bk > 0)).flatten()
        order = words_bk.flatten().argsort(stable=True)
        counts_v = torch.bincount(words_bk.flatten(), minlength=ctx.n_words)
        starts_v = counts_v.cumsum(0) - counts_v
        rows = order // words_bk.shape[1]
        sums_vd = F.embedding_bag(
            rows, x_bd, starts_v, mode="sum", per_sample_weights=weights[order]
        )
        bias_v = torch.bincount(words_bk.flatten(), weights, minlength=ctx.n_words)
        return None, sums_vd, bias_v.to(x_bd.dtype), None


@dataclass
class _Model:
    """The auto-encoder of scaled features; one word is one row of both matrices."""

    enc_vd: Tensor
    bias_v: Tensor
    dec_vd: Tensor
    bias_d: Tensor

    def parameters(self) -> list[Tensor]:
        return [self.enc_vd, self.bias_v, self.dec_vd, self.bias_d]

    def encode(self, x_bd: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the activations and ids of each row's k most active words (equation 3)."""
        acts_bk, words_bk = _TopK.apply(x_bd, self.enc_vd, self.bias_v, k)
        return acts_bk, words_bk

    def decode(self, acts_bk: Tensor, words_bk: Tensor) -> Tensor:
        """Return the weighted sums of the active words' decoder rows (equation 4)."""
        sums_bd = F.embedding_bag(words_bk, self.dec_vd, mode="sum", per_sample_weights=acts_bk)
        return sums_bd + self.bias_d


def _initialise(x_nd: Tensor, recipe: Recipe, rng: np.random.Generator) -> _Model:
    """Start every word at the direction of a random patch plus noise, or at random."""
    n, dimensions = x_nd.shape
    words = recipe.expansion * dimensions
    noise_vd = torch.from_numpy(rng.standard_normal((words, dimensions), dtype=np.float32))
    dec_vd = F.normalize(noise_vd).to(x_nd.device)
    if recipe.data_start:
        data_vd = x_nd[rng.choice(n, words, replace=n < words)]
        dec_vd = F.normalize(0.8 * F.normalize(data_vd) + 0.2 * dec_vd)
    zeros_v, zeros_d = x_nd.new_zeros(words), x_nd.new_zeros(dimensions)
    model = _Model(dec_vd.clone(), zeros_v, dec_vd, zeros_d)
    # The sum of k overlapping words is far too large: scale the encoder to the best fit.
    x_bd = x_nd[:_BLOCK_ROWS]
    guess_bd = model.decode(*model.encode(x_bd, recipe.k))
    model.enc_vd *= (x_bd * guess_bd).sum() / guess_bd.square().sum().clamp_min(1e-12)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def _learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine down to zero."""
    warm_up = max(1, round(recipe.warm_up * steps))
    if step < warm_up:
        return recipe.learning_rate * (step + 1) / warm_up
    return recipe.learning_rate * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def _aux_loss(model: _Model, x_bd: Tensor, error_bd: Tensor, dead: Tensor, k: int | None) -> Tensor:
    """Return the loss by which dead words learn the residual (AuxK, Gao et al. 2024).

    The residual is a fixed target: no gradient reaches the live words or the decoder bias.
    """
    residual_bd = -error_bd.detach()
    acts_bn = F.relu(F.linear(x_bd, model.enc_vd[dead], model.bias_v[dead]))
    top = acts_bn.topk(min(k or x_bd.shape[1] // 2, len(dead)), sorted=False)
    kept_bn = torch.zeros_like(acts_bn).scatter(1, top.indices, top.values)
    left_bd = kept_bn @ model.dec_vd[dead] - residual_bd
    return left_bd.square().sum() / _sum_over_processes(residual_bd.square().sum()).clamp_min(1e-12)


def _remove_row_component(dec_vd: Tensor) -> None:
    """Remove the part of each row's gradient that would only change the row's length."""
    with torch.no_grad():
        dec_vd.grad -= (dec_vd.grad * dec_vd).sum(1, keepdim=True) * dec_vd


def _fold_scaling(model: _Model, scaling: _Scaling, gain: float, k: int) -> SparseAutoEncoder:
    """Return weights for raw features, whose activations are `gain` times the model's."""
    mean_d, scale = scaling
    enc_vd, bias_v, dec_vd, bias_d = (p.detach().cpu().double().numpy() for p in model.parameters())
    w_enc_dv = np.ascontiguousarray(enc_vd.T) * (gain / scale)
    return SparseAutoEncoder(
        w_enc_dv=w_enc_dv.astype(np.float32),
        b_enc_v=(bias_v * gain - mean_d.astype(np.float64) @ w_enc_dv).astype(np.float32),
        w_dec_vd=(dec_vd * (scale / gain)).astype(np.float32),
        b_dec_d=(bias_d * scale + mean_d).astype(np.float32),
        k=k,
    )


class TrainedSae(NamedTuple):
    """A trained auto-encoder, its settings and its quality."""

    sae: SparseAutoEncoder
    report: dict[str, Any]


def train_sae(
    patches_nd: Patches,
    recipe: Recipe | None = None,
    *,
    on_step: Callable[[StepFigures, int], None] = lambda figures, steps: None,
) -> TrainedSae:
    """Train an auto-encoder on patch features (n, D); the same seed gives the same weights.

    `on_step` is called after every step with its figures and the number of steps.

    >>> patches_nd = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    >>> trained = train_sae(patches_nd, Recipe(expansion=4, k=4, batch=256, epochs=2))
    >>> trained.sae.n_words, trained.report["steps"], trained.report["fvu"] < 1
    (32, 16, True)
    """
    recipe = recipe or Recipe()
    check_patches(patches_nd.shape, recipe)
    start = time.perf_counter()
    rows, held_out_rows = _split_rows(len(patches_nd), recipe)
    check_held_out([patches_nd[held_out_rows]])
    windows = _ArrayWindow(patches_nd, rows)
    trainer = start_trainer(windows, recipe)
    for batch_nd in itertools.islice(iterate_batches(windows, recipe), trainer.steps):
        on_step(trainer.step(batch_nd), trainer.steps)
    sae = trainer.autoencoder()
    report = describe_run(trainer, sae, [patches_nd[held_out_rows]])
    seconds = round(time.perf_counter() - start, 1)
    return TrainedSae(sae, {"patches": len(rows), **report, "seconds": seconds})


def start_trainer(windows: Windows, recipe: Recipe, *, device: str = "cpu") -> Trainer:
    """Return a trainer before its first step."""
    sample_nd = sample_patches(windows, _SAMPLE_PATCHES, recipe.seed)
    return Trainer(sample_nd, recipe, count_steps(windows, recipe), device=device)


def describe_run(
    trainer: Trainer, sae: SparseAutoEncoder, held_out: list[Patches]
) -> dict[str, Any]:
    """Return a run's settings, and the quality of its result on held-out patches."""
    return {
        "steps": trainer.steps,
        "dead_share": trainer.dead_share,
        **measure_quality(sae, held_out).report(),
        "recipe": asdict(trainer.recipe),
    }


def check_patches(shape: tuple[int, ...], recipe: Recipe) -> None:
    """Raise `WrongUse` if the recipe cannot be trained on patches of this shape."""
    if len(shape) != 2:
        raise WrongUse(f"patches must be an array (n, D): got one of shape {shape}")
    words = recipe.expansion * shape[1]
    if shape[0] < words:
        raise WrongUse(
            f"{shape[0]:,} patches are too few to learn {words:,} words: "
            "give more images, or a smaller --expansion"
        )
    if not 0 < recipe.k <= words:
        raise WrongUse(f"k must be between 1 and the vocabulary's {words} words: got {recipe.k}")


class _ArrayWindow:
    """Rows of an array as one window."""

    def __init__(self, patches_nd: Patches, rows: NDArray[np.intp]) -> None:
        self._patches_nd = patches_nd
        self._rows = rows

    def __len__(self) -> int:
        return 1

    def n_patches(self, window: int) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def read(self, window: int) -> Patches:
        """Return the rows."""
        return self._patches_nd[self._rows]


def _split_rows(n: int, recipe: Recipe) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the rows to train on and the rows to hold out."""
    run = min(_HELD_OUT_RUN, math.ceil(n / 10))
    runs = math.ceil(n / run)
    shuffled = np.random.default_rng(recipe.seed).permutation(runs)
    is_held_out = np.isin(np.arange(n) // run, shuffled[: max(1, round(recipe.held_out * runs))])
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)
