"""`Recipe.paper()` against the formulas of the paper's section 3, written down once more."""

import math
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

torch = pytest.importorskip("torch")

import bm25v  # noqa: E402 - needs torch
from bm25v.backbones import load_backbone  # noqa: E402
from bm25v.sae.model import SparseAutoEncoder  # noqa: E402
from bm25v.training.quality import measure_quality  # noqa: E402
from bm25v.training.recipe import Patches, Recipe, iterate_batches  # noqa: E402
from bm25v.training.trainer import StepFigures, Trainer  # noqa: E402
from bm25v.vocabulary import Vocabulary  # noqa: E402
from tests.array_training import ArrayWindow  # noqa: E402

SMALL = replace(Recipe.paper(), expansion=4, k=3, batch=64, epochs=2)
STEPS = 16
BETAS, EPSILON = (0.9, 0.999), 1e-8  # Adam's
PATCHES_ND = (np.random.default_rng(5).normal(size=(512, 12)) * 3 + 1).astype(np.float32)


def encode(z_nd: Any, w_enc: Any, b_enc: Any, k: int) -> Any:
    """Equation 3: h = top-k(ReLU(W_e z + b_e))."""
    h_nv = torch.relu(z_nd @ w_enc + b_enc)
    kept = torch.zeros_like(h_nv).scatter(1, h_nv.topk(k).indices, 1.0)
    return h_nv * kept


def train_by_formula(
    start: SparseAutoEncoder, batches: list[Patches], recipe: Recipe
) -> tuple[list[Any], list[float]]:
    """Minimise the mean of ‖ẑ − z‖² + λ‖h‖₁ by Adam with a cosine schedule, in float64."""
    arrays = (start.w_enc_dv, start.b_enc_v, start.w_dec_vd)
    weights = [torch.tensor(array, dtype=torch.float64, requires_grad=True) for array in arrays]
    first, second = ([torch.zeros_like(w) for w in weights] for _ in range(2))
    errors = []
    for t, batch_nd in enumerate(batches):
        z_nd = torch.tensor(batch_nd, dtype=torch.float64)
        h_nv = encode(z_nd, weights[0], weights[1], recipe.k)
        squares_n = (h_nv @ weights[2] - z_nd).square().sum(1)
        loss = (squares_n + recipe.l1 * h_nv.abs().sum(1)).mean()
        errors.append(float(squares_n.detach().mean()))
        gradients = torch.autograd.grad(loss, weights)
        rate = recipe.learning_rate * (1 + math.cos(math.pi * t / len(batches))) / 2
        with torch.no_grad():
            for w, g, m, v in zip(weights, gradients, first, second, strict=True):
                m.mul_(BETAS[0]).add_((1 - BETAS[0]) * g)
                v.mul_(BETAS[1]).add_((1 - BETAS[1]) * g * g)
                mean = m / (1 - BETAS[0] ** (t + 1))
                spread = v / (1 - BETAS[1] ** (t + 1))
                w -= rate * mean / (spread.sqrt() + EPSILON)
    return [w.detach().numpy() for w in weights], errors


def run_trainer() -> tuple[Any, Any, list[Patches], list[StepFigures]]:
    trainer = Trainer(PATCHES_ND, SMALL, STEPS)
    start = trainer.autoencoder()
    batches = list(islice(iterate_batches(ArrayWindow(PATCHES_ND), SMALL), STEPS))
    figures = [trainer.step(batch_nd) for batch_nd in batches]
    return start, trainer.autoencoder(), batches, figures


def test_every_step_is_the_one_of_the_formulas() -> None:
    start, trained, batches, figures = run_trainer()
    (w_enc, b_enc, w_dec), errors = train_by_formula(start, batches, SMALL)
    assert np.abs(trained.w_enc_dv - start.w_enc_dv).max() > 0.5 * STEPS / 2 * SMALL.learning_rate
    np.testing.assert_allclose(trained.w_enc_dv, w_enc, atol=2e-5)
    np.testing.assert_allclose(trained.b_enc_v, b_enc, atol=2e-5)
    np.testing.assert_allclose(trained.w_dec_vd, w_dec, atol=2e-5)
    assert not trained.b_dec_d.any()
    variance = PATCHES_ND.var(axis=0, dtype=np.float64).sum()
    np.testing.assert_allclose([f.fvu for f in figures], np.array(errors) / variance, rtol=1e-4)


@pytest.mark.parametrize("recipe", [SMALL, replace(Recipe(), expansion=4, k=3, batch=512)])
def test_the_logged_fvu_is_a_share_of_the_variance(recipe: Recipe) -> None:
    """A step logs what measuring the model on the same patches gives."""
    trainer = Trainer(PATCHES_ND, recipe, steps=100)
    for _ in range(20):
        measured = measure_quality(trainer.autoencoder(), [PATCHES_ND])["fvu"]
        assert trainer.step(PATCHES_ND).fvu == pytest.approx(measured, rel=1e-3)


def test_bags_are_those_of_the_formulas() -> None:
    """Equations 3, 7 and 8, and the paragraph on quantisation."""
    backbone = load_backbone("toy")
    _, sae, _, _ = run_trainer()
    vocabulary = Vocabulary.build("paper", backbone=backbone, sae=sae, k_post=5)
    image_hwc = np.random.default_rng(3).integers(0, 256, (80, 90, 3), dtype=np.uint8)
    features = backbone.forward(backbone.prepare_image(image_hwc))
    w_enc, b_enc = torch.tensor(vocabulary.sae.w_enc_dv), torch.tensor(vocabulary.sae.b_enc_v)
    pooled_v = encode(torch.tensor(features.patches_pd), w_enc, b_enc, SMALL.k).sum(0).numpy()
    words = np.sort(np.argsort(-pooled_v, kind="stable")[:5])
    stored: NDArray[np.float64] = np.clip(np.round(100 * pooled_v[words]), 0, 65535)
    bag = vocabulary.encode(image_hwc).bag
    assert len(bag.words) == 5
    np.testing.assert_array_equal(bag.words, words)
    np.testing.assert_allclose(bag.tf, stored, atol=1)


def test_a_run_leaves_out_nothing_and_rescales_nothing(tmp_path: Path) -> None:
    """All images share a word in nearly every patch: the default makes it a stop word."""
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    for n in range(40):
        pixels = rng.integers(0, 256, (56, 56, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{n}.png")
    means, n_stop_words = {}, {}
    for name, recipe in {"paper": Recipe.paper(), "default": Recipe()}.items():
        recipe = replace(recipe, expansion=64, k=8, batch=512, epochs=2)
        trained = bm25v.train(tmp_path / "images", tmp_path / name, backbone="toy", recipe=recipe)
        codes = [trained.encode(path).codes for path in (tmp_path / "images").iterdir()]
        activations = np.concatenate([code.activations_pk for code in codes])
        means[name] = activations[activations > 0].mean()
        n_stop_words[name] = len(trained.stop_words)
    assert n_stop_words == {"paper": 0, "default": 1}
    assert means["default"] == pytest.approx(1, rel=0.1)
    assert abs(means["paper"] - 1) > 0.1
