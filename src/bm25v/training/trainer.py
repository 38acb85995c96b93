"""One training run of a TopK sparse auto-encoder, step by step.

The state of a run can be saved and restored, and several processes can share a run, each with its
part of every batch.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from numpy.typing import NDArray
from torch import Tensor, distributed

from bm25v.errors import InvalidOption
from bm25v.sae.model import SparseAutoEncoder
from bm25v.training.quality import measure_quality
from bm25v.training.recipe import Patches, Recipe, Windows, count_steps, sample_patches

_SAMPLE_PATCHES = 100_000  # with which a run is initialised
_BLOCK_ROWS = 4096
_CHUNK_ROWS = 512
_NAMES = ("enc", "enc_bias", "dec", "dec_bias")  # of parameters in a checkpoint


class StepFigures(NamedTuple):
    step: int
    fvu: float  # squared error of the batch, relative to the variance of the patches
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
        self._mean_d, self._scale = _fit_scaling(sample_nd)  # raises if there is nothing to learn
        self._variance = 1.0  # per value, of the patches as the model gets them
        if not recipe.standardise:
            self._variance = self._scale**2
            self._mean_d, self._scale = np.zeros_like(self._mean_d), 1.0
        self._sample_nd = self._scaled(sample_nd)
        rng = np.random.default_rng(recipe.seed)
        self.model = _initialise(self._sample_nd, recipe, rng)
        self._optimiser = torch.optim.Adam(self.model.trained(recipe), fused=True)
        n_words = len(self.model.bias_v)
        self._idle_v = torch.zeros(n_words, dtype=torch.int64, device=self._device)
        self._dead_after = min(recipe.dead_after, steps * recipe.batch // 10)

    def step(self, batch_nd: Patches) -> StepFigures:
        """Learn from one batch, or from this process's part of it."""
        recipe, model = self.recipe, self.model
        x_bd = self._scaled(batch_nd)
        n = _sum_over_processes(torch.tensor(float(len(x_bd)), device=self._device))
        acts_bk, words_bk = model.encode(x_bd, recipe.k)
        error_bd = model.decode(acts_bk, words_bk) - x_bd
        # Sums over this part divided by the size of the whole batch: the sum of the gradients of
        # all processes is the gradient of the whole batch.
        n_values = n * x_bd.shape[1]
        loss = error_bd.square().sum() + recipe.l1 * acts_bk.sum()
        loss = loss / (n_values if recipe.loss_per_value else n)
        dead = torch.nonzero(self._idle_v >= self._dead_after).squeeze(1)
        if recipe.aux_weight and len(dead):
            loss = loss + recipe.aux_weight * aux_loss(model, x_bd, error_bd, dead, recipe.aux_k)
        squares = _sum_over_processes(error_bd.detach().square().sum())
        fvu = float(squares / n_values) / self._variance
        if not math.isfinite(fvu):
            raise InvalidOption(
                f"training diverged at step {self.step_number + 1} of {self.steps}: the patches "
                f"contain NaN or infinite values, or the learning rate {recipe.learning_rate} is "
                "too high"
            )
        self._update(loss)
        active_bk = acts_bk > 0
        is_active_v = torch.zeros(len(self._idle_v), device=self._device)
        is_active_v[words_bk[active_bk]] = 1
        self._idle_v += int(n)
        self._idle_v[_sum_over_processes(is_active_v) > 0] = 0
        self.step_number += 1
        l0 = float(_sum_over_processes(active_bk.sum().float()) / n)
        return StepFigures(self.step_number, fvu, l0, self.dead_share)

    @property
    def dead_share(self) -> float:
        return float((self._idle_v >= self._dead_after).float().mean())

    def autoencoder(self) -> SparseAutoEncoder:
        """Return the trained auto-encoder for raw patch features."""
        gain = 1.0  # from the model's activations to those of the result
        if self.recipe.mean_activation is not None:
            with torch.no_grad():
                acts_nk, _ = self.model.encode(self._sample_nd[:_BLOCK_ROWS], self.recipe.k)
            active = acts_nk[acts_nk > 0]
            gain = self.recipe.mean_activation / float(active.mean()) if len(active) else 1.0
        mean_d, scale = self._mean_d, self._scale
        weights = (p.detach().cpu().double().numpy() for p in self.model.parameters())
        enc_vd, bias_v, dec_vd, bias_d = weights
        w_enc_dv = np.ascontiguousarray(enc_vd.T) * (gain / scale)
        return SparseAutoEncoder(
            w_enc_dv=w_enc_dv.astype(np.float32),
            b_enc_v=(bias_v * gain - mean_d.astype(np.float64) @ w_enc_dv).astype(np.float32),
            w_dec_vd=(dec_vd * (scale / gain)).astype(np.float32),
            b_dec_d=(bias_d * scale + mean_d).astype(np.float32),
            k=self.recipe.k,
        )

    def state(self) -> dict[str, Tensor]:
        """Return everything that changes during a run, by name."""
        tensors = {"step": torch.tensor(self.step_number), "idle": self._idle_v}
        for name, parameter in zip(_NAMES, self.model.parameters(), strict=True):
            tensors[name] = parameter.detach()
            for key, value in self._optimiser.state.get(parameter, {}).items():
                tensors[f"{name}.{key}"] = value
        return {name: tensor.clone().contiguous() for name, tensor in tensors.items()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a state that `state` returned."""
        self.step_number = int(state["step"])
        self._idle_v.copy_(state["idle"])
        for name, parameter in zip(_NAMES, self.model.parameters(), strict=True):
            with torch.no_grad():
                parameter.copy_(state[name])
            moments = {k.split(".")[1]: v for k, v in state.items() if k.startswith(f"{name}.")}
            if moments:
                self._optimiser.state[parameter] = {
                    key: value.to(self._device) for key, value in moments.items()
                }

    def _scaled(self, z_nd: Patches) -> Tensor:
        """Return features with mean 0 and, on average over the dimensions, variance 1."""
        z_nd = np.asarray(z_nd, dtype=np.float32)
        return torch.from_numpy((z_nd - self._mean_d) / self._scale).to(self._device)

    def _update(self, loss: Tensor) -> None:
        self._optimiser.zero_grad()
        loss.backward()
        parameters = self.model.trained(self.recipe)
        for parameter in parameters:
            if parameter.grad is not None:
                _sum_over_processes(parameter.grad)
        dec_vd = self.model.dec_vd
        if self.recipe.unit_rows:  # without the part that would only change the rows' lengths
            with torch.no_grad():
                dec_vd.grad -= (dec_vd.grad * dec_vd).sum(1, keepdim=True) * dec_vd
        if self.recipe.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, self.recipe.clip_norm)
        rate = _learning_rate(self.step_number, self.steps, self.recipe)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        if self.recipe.unit_rows:
            with torch.no_grad():
                dec_vd.copy_(F.normalize(dec_vd))


def _sum_over_processes(tensor: Tensor) -> Tensor:
    """Replace a tensor by its sum over all processes of the run; return it."""
    if distributed.is_available() and distributed.is_initialized():
        distributed.all_reduce(tensor)
    return tensor


def _fit_scaling(sample_nd: NDArray[np.float32]) -> tuple[NDArray[np.float32], float]:
    """Return the mean, and the root of the variance on average over the dimensions."""
    mean_d = sample_nd.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = float(np.sqrt(np.mean((sample_nd - mean_d) ** 2, dtype=np.float64)))
    if not (math.isfinite(scale) and scale > 0):
        raise InvalidOption(
            "the patches are all equal, or contain NaN or infinite values: check the images"
        )
    return mean_d, scale


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

    def trained(self, recipe: Recipe) -> list[Tensor]:
        parameters = self.parameters()
        return parameters if recipe.decoder_bias else parameters[:-1]

    def encode(self, x_bd: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the activations and ids of each row's k most active words (equation 3)."""
        acts_bk, words_bk = _TopK.apply(x_bd, self.enc_vd, self.bias_v, k)
        return acts_bk, words_bk

    def decode(self, acts_bk: Tensor, words_bk: Tensor) -> Tensor:
        """Return the weighted sums of the active words' decoder rows (equation 4)."""
        sums_bd = F.embedding_bag(words_bk, self.dec_vd, mode="sum", per_sample_weights=acts_bk)
        return sums_bd + self.bias_d


def _initialise(x_nd: Tensor, recipe: Recipe, rng: np.random.Generator) -> _Model:
    """Start every word at the direction of a random patch plus noise, or all weights at random."""
    n, dimensions = x_nd.shape
    words = recipe.expansion * dimensions

    def draw(scale: float) -> Tensor:
        noise_vd = rng.standard_normal((words, dimensions), dtype=np.float32)
        return torch.from_numpy(noise_vd * np.float32(scale)).to(x_nd.device)

    if recipe.data_start:
        noise_vd = F.normalize(draw(1.0))
        data_vd = x_nd[rng.choice(n, words, replace=n < words)]
        dec_vd = F.normalize(0.8 * F.normalize(data_vd) + 0.2 * noise_vd)
        enc_vd = dec_vd.clone()
    else:  # variances that keep the size of what goes in
        enc_vd, dec_vd = draw(dimensions**-0.5), draw(words**-0.5)
    model = _Model(enc_vd, x_nd.new_zeros(words), dec_vd, x_nd.new_zeros(dimensions))
    if recipe.fitted_start:  # the sum of k overlapping words is far too large
        x_bd = x_nd[:_BLOCK_ROWS]
        guess_bd = model.decode(*model.encode(x_bd, recipe.k))
        model.enc_vd *= (x_bd * guess_bd).sum() / guess_bd.square().sum().clamp_min(1e-12)
    for parameter in model.trained(recipe):
        parameter.requires_grad_(True)
    return model


def _learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine down to zero."""
    warm_up = round(recipe.warm_up * steps)
    if step < warm_up:
        return recipe.learning_rate * (step + 1) / warm_up
    return recipe.learning_rate * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def aux_loss(model: _Model, x_bd: Tensor, error_bd: Tensor, dead: Tensor, k: int | None) -> Tensor:
    """Return the loss by which dead words learn the residual (AuxK, Gao et al. 2024).

    The residual is a fixed target: no gradient reaches the live words or the decoder bias.
    """
    residual_bd = -error_bd.detach()
    acts_bn = F.relu(F.linear(x_bd, model.enc_vd[dead], model.bias_v[dead]))
    top = acts_bn.topk(min(k or x_bd.shape[1] // 2, len(dead)), sorted=False)
    kept_bn = torch.zeros_like(acts_bn).scatter(1, top.indices, top.values)
    left_bd = kept_bn @ model.dec_vd[dead] - residual_bd
    return left_bd.square().sum() / _sum_over_processes(residual_bd.square().sum()).clamp_min(1e-12)


def start_trainer(windows: Windows, recipe: Recipe, *, device: str = "cpu") -> Trainer:
    sample_nd = sample_patches(windows, _SAMPLE_PATCHES, recipe.seed)
    return Trainer(sample_nd, recipe, count_steps(windows, recipe), device=device)


def describe_run(
    trainer: Trainer, sae: SparseAutoEncoder, held_out: list[Patches]
) -> dict[str, Any]:
    """Return a run's settings, and the quality of its result on held-out patches."""
    return {
        "steps": trainer.steps,
        "dead_share": trainer.dead_share,
        **measure_quality(sae, held_out),
        "recipe": asdict(trainer.recipe),
    }


def check_patches(n_patches: int, patch_dim: int, recipe: Recipe) -> None:
    """Raise `InvalidOption` if the recipe cannot be trained on so many patches."""
    words = recipe.expansion * patch_dim
    if n_patches < words:
        raise InvalidOption(
            f"{n_patches:,} patches are too few to learn {words:,} words: "
            "give more images, or a smaller --expansion"
        )
    if recipe.k > words:
        raise InvalidOption(
            f"k must be between 1 and the vocabulary's {words} words: got {recipe.k}"
        )
