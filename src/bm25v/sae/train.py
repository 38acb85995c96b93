"""Train a visual vocabulary: a TopK sparse auto-encoder over patch features.

The features are centred and scaled, the auto-encoder is trained on those, and both steps are
folded into the weights at the end. What comes out works on raw features with the paper's formulas
and nothing else (equations 3 and 4, with a decoder bias):

    h = topk(relu(z @ W_enc + b_enc), k)        z_hat = h @ W_dec + b_dec

Useful for: patches that fit on one disk, on one machine.
Not useful for: encoding pictures; `bm25v.sae.model` does that without torch.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bm25v.errors import MissingExtra, WrongUse
from bm25v.sae.model import SparseAutoEncoder

try:
    import torch
    import torch.nn.functional as F  # noqa: N812 - the name everyone knows
    from torch import Tensor
except ImportError as error:
    raise MissingExtra("training a vocabulary", "train") from error

Patches = NDArray[np.float16] | NDArray[np.float32]
Progress = Callable[[int, int, float], None]
_Rows = NDArray[np.intp]

_HELD_OUT_RUN = 256  # neighbouring rows come from one picture: hold out whole runs of them
_SAMPLE_ROWS = 100_000
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class Recipe:
    """Every setting of a training run."""

    expansion: int = 16
    k: int = 16
    batch: int = 4096
    epochs: int = 5
    steps: int | None = None  # overrides epochs
    learning_rate: float = 4e-3  # for some thousand steps at most; 4e-4 for 100,000
    warm_up: float = 0.05  # share of the steps
    l1: float = 1e-3
    aux_weight: float = 1 / 32
    aux_k: int | None = None  # None: half the feature dimensions
    dead_after: int = 10_000_000  # patches without firing, at most a tenth of the run
    held_out: float = 0.02  # share of the patches
    mean_activation: float = 1.0  # of active words: a term frequency then counts occurrences
    seed: int = 0


class Trained(NamedTuple):
    """Weights for raw patch features, in SAELens' names and shapes, and how they came to be."""

    W_enc: NDArray[np.float32]  # [D, V]
    b_enc: NDArray[np.float32]  # [V]
    W_dec: NDArray[np.float32]  # [V, D]
    b_dec: NDArray[np.float32]  # [D]
    report: dict[str, Any]

    def autoencoder(self) -> SparseAutoEncoder:
        """Return the encoder that search uses."""
        return SparseAutoEncoder(*self[:4], k=self.report["recipe"]["k"])


def train(
    patches: Patches, recipe: Recipe | None = None, progress: Progress | None = None
) -> Trained:
    """Train an auto-encoder on patch features (n, D); the same seed gives the same weights.

    `progress` is called after every step with the step, the number of steps and the share of
    variance that the step's batch left unexplained.

    >>> patches = np.random.default_rng(0).normal(size=(2000, 8)).astype(np.float32)
    >>> trained = train(patches, Recipe(expansion=4, k=4, batch=256, epochs=2))
    >>> trained.W_enc.shape, trained.report["steps"], trained.report["fvu"] < 1
    ((8, 32), 16, True)
    """
    recipe = recipe or Recipe()
    _check(patches, recipe)
    started = time.perf_counter()
    rng = np.random.default_rng(recipe.seed)
    rows, held_out_rows = _split(len(patches), recipe.held_out, rng)
    sample = np.asarray(patches[rng.permutation(rows)[:_SAMPLE_ROWS]], dtype=np.float32)
    standard = _standard(sample)
    sample_nd = standard.apply(sample)
    model = _initialise(sample_nd, recipe, rng)
    batches = _batches(patches, rows, standard, recipe.batch, rng)
    steps = recipe.steps or recipe.epochs * math.ceil(len(rows) / recipe.batch)
    dead_share = _fit(model, batches, steps, recipe, progress or (lambda *_: None))
    sae = _fold(model, standard, _stretch(model, sample_nd, recipe), recipe.k)
    report = {
        "patches": len(rows),
        "held_out_patches": len(held_out_rows),
        "steps": steps,
        "dead_share": dead_share,
        **measure(sae, patches[held_out_rows]),
        "seconds": round(time.perf_counter() - started, 1),
        "recipe": asdict(recipe),
        "torch": str(torch.__version__),
    }
    return Trained(sae.w_enc_dv, sae.b_enc_v, sae.w_dec_vd, sae.b_dec_d, report)


def measure(sae: SparseAutoEncoder, patches: Patches) -> dict[str, float]:
    """Measure an auto-encoder on patches it has not seen.

    `fvu` is the share of the patches' variance left unexplained, `l0` the mean number of active
    words, `silent_share` the share of words that none of these patches activates.

    >>> eye, zeros = np.eye(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    >>> measure(SparseAutoEncoder(eye, zeros, eye, zeros, k=1), 3 * eye)
    {'fvu': 0.0, 'l0': 1.0, 'silent_share': 0.0}
    """
    mean_d = patches.mean(axis=0, dtype=np.float64)
    left = total = active = 0.0
    heard_v = np.zeros(sae.n_words, dtype=bool)
    for start in range(0, len(patches), _BLOCK_ROWS):
        z_nd = np.asarray(patches[start : start + _BLOCK_ROWS], dtype=np.float32)
        codes = sae.encode(z_nd)
        is_active_nk = codes.activations_pk > 0
        left += float(((z_nd.astype(np.float64) - sae.decode(codes)) ** 2).sum())
        total += float(((z_nd - mean_d) ** 2).sum())
        active += float(is_active_nk.sum())
        heard_v[codes.words_pk[is_active_nk]] = True
    silent_share = 1 - float(heard_v.mean())
    return {"fvu": left / total, "l0": active / len(patches), "silent_share": silent_share}


def _check(patches: Patches, recipe: Recipe) -> None:
    if patches.ndim != 2 or len(patches) < 2 * recipe.k:
        raise WrongUse(f"patches must be (n, D), n at least {2 * recipe.k}: got {patches.shape}")
    words = recipe.expansion * patches.shape[1]
    if not 0 < recipe.k <= words:
        raise WrongUse(f"k must be between 1 and the vocabulary's {words} words: got {recipe.k}")


def _split(n: int, share: float, rng: np.random.Generator) -> tuple[_Rows, _Rows]:
    """Return the rows to train on and the rows to hold out."""
    run = min(_HELD_OUT_RUN, math.ceil(n / 10))
    runs = math.ceil(n / run)
    chosen = rng.permutation(runs)[: max(1, round(share * runs))]
    is_held_out = np.isin(np.arange(n) // run, chosen)
    return np.flatnonzero(~is_held_out), np.flatnonzero(is_held_out)


class _Standard(NamedTuple):
    """Moves features to mean 0 and mean square 1 a dimension."""

    mean_d: NDArray[np.float32]
    scale: float

    def apply(self, z_nd: Patches) -> Tensor:
        return torch.from_numpy((np.asarray(z_nd, dtype=np.float32) - self.mean_d) / self.scale)


def _standard(sample_nd: NDArray[np.float32]) -> _Standard:
    mean_d = sample_nd.mean(axis=0, dtype=np.float64).astype(np.float32)
    scale = float(np.sqrt(np.mean((sample_nd - mean_d) ** 2, dtype=np.float64)))
    if not (math.isfinite(scale) and scale > 0):
        raise WrongUse("the patches are all alike or hold values that are not finite")
    return _Standard(mean_d, scale)


def _batches(
    patches: Patches, rows: _Rows, standard: _Standard, batch: int, rng: np.random.Generator
) -> Iterator[Tensor]:
    while True:
        order = rng.permutation(rows)
        for start in range(0, len(order), batch):
            # sorted: a memory-mapped file is read forwards
            yield standard.apply(patches[np.sort(order[start : start + batch])])


@dataclass
class _Model:
    """The auto-encoder on standard features; one word is one row of both matrices."""

    enc_vd: Tensor
    bias_v: Tensor
    dec_vd: Tensor
    bias_d: Tensor

    def parameters(self) -> list[Tensor]:
        return [self.enc_vd, self.bias_v, self.dec_vd, self.bias_d]

    def encode(self, x_bd: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return activations and words of each row's k strongest (equation 3).

        All words are compared without gradients; the k kept ones are computed again with them,
        which spares a dense backward pass.
        """
        with torch.no_grad():
            words_bk = F.linear(x_bd, self.enc_vd, self.bias_v).topk(k, sorted=False).indices
        rows_bkd = F.embedding(words_bk, self.enc_vd)
        before_bk = torch.bmm(rows_bkd, x_bd.unsqueeze(2)).squeeze(2) + self.bias_v[words_bk]
        return F.relu(before_bk), words_bk

    def decode(self, acts_bk: Tensor, words_bk: Tensor) -> Tensor:
        """Add up the active words' decoder rows (equation 4)."""
        sums_bd = F.embedding_bag(words_bk, self.dec_vd, mode="sum", per_sample_weights=acts_bk)
        return sums_bd + self.bias_d


def _initialise(x_nd: Tensor, recipe: Recipe, rng: np.random.Generator) -> _Model:
    """Start every word at the direction of some patch, slightly disturbed."""
    n, dimensions = x_nd.shape
    words = recipe.expansion * dimensions
    data_vd = x_nd[rng.choice(n, words, replace=n < words)]
    noise_vd = torch.from_numpy(rng.standard_normal((words, dimensions), dtype=np.float32))
    dec_vd = F.normalize(0.8 * F.normalize(data_vd) + 0.2 * F.normalize(noise_vd))
    model = _Model(dec_vd.clone(), torch.zeros(words), dec_vd, torch.zeros(dimensions))
    # k overlapping words would add up to far too much: shrink the encoder to the best fit
    x_bd = x_nd[:_BLOCK_ROWS]
    guess_bd = model.decode(*model.encode(x_bd, recipe.k))
    model.enc_vd *= (x_bd * guess_bd).sum() / guess_bd.square().sum().clamp_min(1e-12)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return model


def _fit(
    model: _Model, batches: Iterator[Tensor], steps: int, recipe: Recipe, progress: Progress
) -> float:
    """Train in place; return the share of words that are dead in the end."""
    optimiser = torch.optim.Adam(model.parameters(), fused=True)
    dead_after = min(recipe.dead_after, steps * recipe.batch // 10)
    unseen_v = torch.zeros(len(model.bias_v), dtype=torch.int64)
    for step in range(steps):
        x_bd = next(batches)
        acts_bk, words_bk = model.encode(x_bd, recipe.k)
        error_bd = model.decode(acts_bk, words_bk) - x_bd
        fvu = error_bd.square().mean()
        if not math.isfinite(fvu.item()):
            raise WrongUse(
                f"training broke down at step {step + 1} of {steps}: the patches hold values that "
                f"are not finite, or the learning rate {recipe.learning_rate} is too high"
            )
        loss = fvu + recipe.l1 * acts_bk.sum(1).mean() / x_bd.shape[1]
        dead = torch.nonzero(unseen_v >= dead_after).squeeze(1)
        if recipe.aux_weight and len(dead):
            loss = loss + recipe.aux_weight * _aux_loss(model, x_bd, error_bd, dead, recipe.aux_k)
        optimiser.zero_grad()
        loss.backward()
        _remove_row_component(model.dec_vd)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.param_groups[0]["lr"] = _learning_rate(step, steps, recipe)
        optimiser.step()
        with torch.no_grad():
            model.dec_vd.copy_(F.normalize(model.dec_vd))
        unseen_v += len(x_bd)
        unseen_v[words_bk[acts_bk > 0]] = 0
        progress(step + 1, steps, fvu.item())
    return float((unseen_v >= dead_after).float().mean())


def _learning_rate(step: int, steps: int, recipe: Recipe) -> float:
    """Warm up linearly, then follow a cosine down to zero."""
    warm_up = max(1, round(recipe.warm_up * steps))
    if step < warm_up:
        return recipe.learning_rate * (step + 1) / warm_up
    return recipe.learning_rate * (1 + math.cos(math.pi * (step - warm_up) / (steps - warm_up))) / 2


def _aux_loss(model: _Model, x_bd: Tensor, error_bd: Tensor, dead: Tensor, k: int | None) -> Tensor:
    """Let dead words explain what the live ones left over (AuxK, Gao et al. 2024).

    The residual is a fixed target: no gradient reaches the live words or the decoder bias.
    """
    residual_bd = -error_bd.detach()
    acts_bn = F.relu(F.linear(x_bd, model.enc_vd[dead], model.bias_v[dead]))
    top = acts_bn.topk(min(k or x_bd.shape[1] // 2, len(dead)), sorted=False)
    kept_bn = torch.zeros_like(acts_bn).scatter(1, top.indices, top.values)
    left_bd = kept_bn @ model.dec_vd[dead] - residual_bd
    return left_bd.square().mean() / residual_bd.square().mean().clamp_min(1e-12)


def _remove_row_component(dec_vd: Tensor) -> None:
    """Take from each row's gradient the part that would only change the row's length."""
    with torch.no_grad():
        dec_vd.grad -= (dec_vd.grad * dec_vd).sum(1, keepdim=True) * dec_vd


def _stretch(model: _Model, x_nd: Tensor, recipe: Recipe) -> float:
    """Return the factor that gives active words the recipe's mean activation."""
    with torch.no_grad():
        acts_nk, _ = model.encode(x_nd[:_BLOCK_ROWS], recipe.k)
    active = acts_nk[acts_nk > 0]
    return recipe.mean_activation / float(active.mean()) if len(active) else 1.0


def _fold(model: _Model, standard: _Standard, stretch: float, k: int) -> SparseAutoEncoder:
    """Rewrite weights for standard features as weights for raw ones, activations stretched."""
    mean_d, scale = standard
    enc_vd, bias_v, dec_vd, bias_d = (p.detach().double().numpy() for p in model.parameters())
    w_enc_dv = np.ascontiguousarray(enc_vd.T) * (stretch / scale)
    return SparseAutoEncoder(
        w_enc_dv=w_enc_dv.astype(np.float32),
        b_enc_v=(bias_v * stretch - mean_d.astype(np.float64) @ w_enc_dv).astype(np.float32),
        w_dec_vd=(dec_vd * (scale / stretch)).astype(np.float32),
        b_dec_d=(bias_d * scale + mean_d).astype(np.float32),
        k=k,
    )
