"""The trainer: reconstruction, folding, scale, determinism, revival of dead words, clear errors."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.errors import InvalidOption

torch = pytest.importorskip("torch")

from bm25v.training.quality import measure_quality  # noqa: E402 - needs torch
from bm25v.training.recipe import Recipe  # noqa: E402
from bm25v.training.trainer import Trainer, aux_loss  # noqa: E402
from tests.array_training import TrainedSae, train_sae  # noqa: E402

RECIPE = Recipe(expansion=4, k=4, batch=512, steps=150, learning_rate=1e-2, mean_activation=2.0)
FAR_AWAY = 50.0  # an offset far larger than the spread: only centred training survives it


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Keep tiny matrices on one thread: faster, and steady on busy machines."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def planted(n: int = 8000, dimensions: int = 24, atoms: int = 48) -> NDArray[np.float32]:
    """Return patches that are sums of four atoms each, far from zero."""
    rng = np.random.default_rng(1)
    atoms_ad = rng.normal(size=(atoms, dimensions))
    atoms_ad /= np.linalg.norm(atoms_ad, axis=1, keepdims=True)
    chosen_n4 = np.argsort(rng.random((n, atoms)), axis=1)[:, :4]
    strength_n4 = rng.uniform(3, 9, size=(n, 4))
    patches_nd = np.einsum("nk,nkd->nd", strength_n4, atoms_ad[chosen_n4]) + FAR_AWAY
    return np.asarray(patches_nd, dtype=np.float32)


@cache
def trained() -> TrainedSae:
    return train_sae(planted(), RECIPE)


def test_planted_dictionary_is_reconstructed() -> None:
    report = trained().report
    principal = planted() - planted().mean(axis=0)
    spectrum = np.linalg.svd(principal, compute_uv=False) ** 2
    best_linear_code_of_rank_k = 1 - spectrum[: RECIPE.k].sum() / spectrum.sum()
    assert report["fvu"] < 0.3 < best_linear_code_of_rank_k / 2
    assert report["l0"] <= RECIPE.k
    assert report["dead_share"] < 0.1


def test_report_has_the_settings_of_the_run() -> None:
    report = trained().report
    assert report["held_out_patches"] == round(RECIPE.held_out * len(planted()))
    assert report["steps"] == RECIPE.steps
    assert report["recipe"]["seed"] == 0


def test_decoder_rows_share_one_length_and_activations_have_the_requested_mean() -> None:
    lengths = np.linalg.norm(trained().sae.w_dec_vd, axis=1)
    np.testing.assert_allclose(lengths, lengths[0], rtol=1e-5)
    activations = trained().sae.encode(planted()).activations_pk
    assert activations[activations > 0].mean() == pytest.approx(2.0, rel=0.03)


def test_scale_changes_activations_but_not_reconstructions() -> None:
    few = replace(RECIPE, steps=5)
    small = train_sae(planted(), few).sae
    large = train_sae(planted(), replace(few, mean_activation=20.0)).sae
    patches = planted()[:200]
    codes_small, codes_large = small.encode(patches), large.encode(patches)
    np.testing.assert_array_equal(codes_small.words_pk, codes_large.words_pk)
    np.testing.assert_allclose(
        10 * codes_small.activations_pk, codes_large.activations_pk, rtol=1e-3
    )
    np.testing.assert_allclose(small.decode(codes_small), large.decode(codes_large), rtol=1e-4)


def test_same_seed_same_weights_other_seed_other_weights() -> None:
    few = replace(RECIPE, steps=8)
    first, again, other = (train_sae(planted(), replace(few, seed=seed)) for seed in (3, 3, 4))
    for name in ("w_enc_dv", "b_enc_v", "w_dec_vd", "b_dec_d"):
        np.testing.assert_array_equal(getattr(first.sae, name), getattr(again.sae, name))
    assert not np.array_equal(first.sae.w_enc_dv, other.sae.w_enc_dv)


def test_aux_loss_revives_dead_words() -> None:
    def train_half_dead(recipe: Recipe) -> float:
        trainer = Trainer(planted(), recipe, steps=100)
        with torch.no_grad():
            trainer.model.bias_v[::2] = -2
        for step in range(trainer.steps):
            trainer.step(planted()[512 * (step % 15) : 512 * (step % 15 + 1)])
        return trainer.dead_share

    recipe = replace(RECIPE, dead_after=2048)
    assert train_half_dead(replace(recipe, aux_weight=0.0)) > 0.45
    assert train_half_dead(recipe) < 0.25


def test_aux_loss_reaches_only_the_dead_words() -> None:
    x_bd = torch.from_numpy(planted()[:64] - planted().mean(axis=0))
    model = Trainer(planted(), RECIPE, steps=100).model
    error_bd = model.decode(*model.encode(x_bd, RECIPE.k)) - x_bd
    aux_loss(model, x_bd, error_bd, torch.tensor([1, 5]), k=None).backward()
    for gradient in (model.enc_vd.grad, model.dec_vd.grad):
        assert torch.nonzero(gradient.abs().sum(1)).squeeze(1).tolist() == [1, 5]
    assert model.bias_d.grad is None


def test_memory_mapped_half_precision_patches(tmp_path: Any) -> None:
    np.save(tmp_path / "patches.npy", (planted() - FAR_AWAY).astype(np.float16))
    patches = np.load(tmp_path / "patches.npy", mmap_mode="r")
    assert train_sae(patches, replace(RECIPE, steps=20)).report["fvu"] < 0.6


def test_epochs_set_the_number_of_steps() -> None:
    report = train_sae(planted(), replace(RECIPE, steps=None, epochs=2)).report
    n_patches = len(planted()) - report["held_out_patches"]
    assert report["steps"] == 2 * -(-n_patches // RECIPE.batch)


def test_fvu_of_the_mean_is_one() -> None:
    sae = trained().sae
    silent = replace(sae, b_enc_v=np.full_like(sae.b_enc_v, -1e9), b_dec_d=planted().mean(axis=0))
    figures = measure_quality(silent, [planted()])
    assert figures["fvu"] == pytest.approx(1, abs=1e-5)
    assert (figures["l0"], figures["silent_share"]) == (0, 1)


@pytest.mark.parametrize(
    ("patches", "message"),
    [
        (np.zeros((5, 4), dtype=np.float32), "5 patches are too few to learn 16 words"),
        (np.zeros((500, 4), dtype=np.float32), "all equal"),
        (np.full((500, 4), np.nan, dtype=np.float32), "NaN or infinite"),
    ],
)
def test_impossible_patches_are_refused(patches: NDArray[np.float32], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        train_sae(patches, RECIPE)


def test_a_run_that_diverges_raises_an_error() -> None:
    with pytest.raises(InvalidOption, match=r"learning rate 1e\+30 is too high"):
        train_sae(planted(), replace(RECIPE, learning_rate=1e30))


def test_impossible_k_is_refused() -> None:
    with pytest.raises(InvalidOption, match="between 1 and"):
        train_sae(planted(), replace(RECIPE, k=97))
