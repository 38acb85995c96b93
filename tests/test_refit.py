"""Refitting a decoder: the least squares, and the run over a folder of images."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from bm25v.backbones.toy import ToyBackbone  # noqa: E402
from bm25v.cli.vocabulary import vocabulary as command  # noqa: E402
from bm25v.errors import ImageError, VocabularyError, WrongUse  # noqa: E402
from bm25v.sae.model import SparseAutoEncoder  # noqa: E402
from bm25v.training import (  # noqa: E402
    Listener,
    TrainingOptions,
    refit_vocabulary,
    train_vocabulary,
)
from bm25v.training import refit as refit_module  # noqa: E402
from bm25v.training.extraction import Extraction, StreamedPatches, stream_patches  # noqa: E402
from bm25v.training.quality import measure_quality  # noqa: E402
from bm25v.training.recipe import Recipe  # noqa: E402
from bm25v.training.refit import refit_decoder  # noqa: E402
from bm25v.vocabulary import Vocabulary  # noqa: E402
from tests.conftest import make_image  # noqa: E402

Floats = NDArray[np.float32]


@pytest.fixture
def sae() -> SparseAutoEncoder:
    """Random words, of which the last one is never active."""
    rng = np.random.default_rng(0)
    w_dec_vd = rng.standard_normal((24, 8)).astype(np.float32)
    b_enc_v = np.zeros(24, np.float32)
    b_enc_v[-1] = -1e6
    b_dec_d = rng.standard_normal(8).astype(np.float32)
    return SparseAutoEncoder(w_dec_vd.T.copy(), b_enc_v, w_dec_vd, b_dec_d, k=4)


@pytest.fixture
def patches() -> Floats:
    return np.random.default_rng(1).standard_normal((5000, 8)).astype(np.float32)


def with_noise(sae: SparseAutoEncoder) -> SparseAutoEncoder:
    noise_vd = np.random.default_rng(2).standard_normal(sae.w_dec_vd.shape).astype(np.float32)
    return replace(sae, w_dec_vd=sae.w_dec_vd + noise_vd)


def explained(sae: SparseAutoEncoder, patches: Floats) -> float:
    return 1 - measure_quality(sae, [patches]).fvu


def test_the_decoder_is_the_one_of_dense_refit_module(
    sae: SparseAutoEncoder, patches: Floats
) -> None:
    fitted = refit_decoder(sae, [patches[:4200], patches[4200:]])
    codes = sae.encode(patches)
    dense_nw = np.zeros((len(patches), 25))
    np.put_along_axis(dense_nw, codes.words_pk, codes.activations_pk.astype(float), axis=1)
    dense_nw[:, -1] = 1
    pull = np.sqrt(0.1 * (dense_nw**2).sum(axis=0).mean())
    old_wd = np.vstack([sae.w_dec_vd, sae.b_dec_d])
    expected_wd = np.linalg.lstsq(
        np.vstack([dense_nw, pull * np.eye(25)]), np.vstack([patches, pull * old_wd])
    )[0]
    np.testing.assert_allclose(fitted.w_dec_vd, expected_wd[:-1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(fitted.b_dec_d, expected_wd[-1], rtol=1e-5, atol=1e-6)


def test_the_encoder_and_the_rows_of_inactive_words_stay(
    sae: SparseAutoEncoder, patches: Floats
) -> None:
    fitted = refit_decoder(sae, [patches])
    assert fitted.w_enc_dv.tobytes() == sae.w_enc_dv.tobytes()
    assert fitted.b_enc_v.tobytes() == sae.b_enc_v.tobytes()
    for before, after in zip(sae.encode(patches), fitted.encode(patches), strict=True):
        np.testing.assert_array_equal(before, after)
    np.testing.assert_allclose(fitted.w_dec_vd[-1], sae.w_dec_vd[-1], rtol=1e-6)
    assert np.abs(fitted.w_dec_vd[:-1] - sae.w_dec_vd[:-1]).max(axis=1).min() > 1e-3


def test_a_bad_decoder_is_repaired(sae: SparseAutoEncoder, patches: Floats) -> None:
    good = refit_decoder(sae, [patches])
    damaged = with_noise(good)
    best = explained(good, patches)
    lost = best - explained(damaged, patches)
    assert lost > 1
    assert best - explained(refit_decoder(damaged, [patches]), patches) < lost / 10


def test_half_precision_patches_are_accepted(sae: SparseAutoEncoder, patches: Floats) -> None:
    halves = patches.astype(np.float16)
    exact = refit_decoder(sae, [halves.astype(np.float32)])
    np.testing.assert_array_equal(refit_decoder(sae, [halves]).w_dec_vd, exact.w_dec_vd)


def test_too_many_words_are_refused(
    sae: SparseAutoEncoder, patches: Floats, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit_module, "MAX_WORDS", 23)
    with pytest.raises(WrongUse, match=r"24 words is too large .* the limit is 23"):
        refit_decoder(sae, [patches])


@pytest.fixture
def trained(training_images: Path, tmp_path: Path) -> Vocabulary:
    """A vocabulary whose decoder was damaged after its training, with a name for a word."""
    recipe = Recipe(expansion=4, k=4, batch=128, epochs=2, seed=3, held_out=0.1)
    options = TrainingOptions(
        training_images, tmp_path / "mine.vocab", backbone="toy", recipe=recipe
    )
    whole = train_vocabulary(options)
    damaged = replace(whole, sae=with_noise(whole.sae), word_names={7: "red"})
    damaged.save(options.output)
    return Vocabulary.load(options.output)


def test_a_vocabulary_gets_a_better_decoder_and_keeps_everything_else(
    trained: Vocabulary, training_images: Path, tmp_path: Path
) -> None:
    output = tmp_path / "better.vocab"
    refit_vocabulary(trained, training_images, output, draws=2)
    new = Vocabulary.load(output)
    assert new.name == "better"
    assert new.fingerprint == trained.fingerprint
    assert new.word_names == {7: "red"}
    for path in training_images.iterdir():
        before, after = trained.bag(path), new.bag(path)
        assert before.words.tobytes() == after.words.tobytes()
        assert before.tf.tobytes() == after.tf.tobytes()
    assert trained.folder is not None
    for name in ("training.jsonl", "words.safetensors", "words.tsv"):
        assert (output / name).read_bytes() == (trained.folder / name).read_bytes()
    assert {path.name for path in output.iterdir()} == {
        path.name for path in trained.folder.iterdir()
    }

    paths = tuple(sorted(training_images.iterdir()))
    _, held_out = stream_patches(Extraction(paths, 1, None, 0.1, 3), ToyBackbone(), lambda *_: None)
    figures = measure_quality(new.sae, held_out)
    facts, training = new.report["refit"], new.report["training"]
    assert facts["held_out"] == "as in training"
    assert facts["patches"] == 2 * 36 * 4 * 49
    assert facts["explained_variance_before"] == 1 - measure_quality(trained.sae, held_out).fvu
    assert facts["explained_variance"] == training["explained_variance"] == 1 - figures.fvu
    assert facts["explained_variance"] > facts["explained_variance_before"] + 0.1
    assert training["coherence"] == figures.coherence
    assert training["steps"] == trained.report["training"]["steps"]
    assert training["recipe"] == trained.report["training"]["recipe"]
    assert new.report["data"] == trained.report["data"]


def test_a_decoder_that_is_not_better_is_not_saved(
    trained: Vocabulary, training_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refit_module, "PULL", 1e12)
    with pytest.raises(VocabularyError, match=r"explains (\S+)% .* the old one \1%: nothing"):
        refit_vocabulary(trained, training_images, tmp_path / "better.vocab", draws=1)
    assert not (tmp_path / "better.vocab").exists()
    with pytest.raises(VocabularyError, match="already exists"):
        refit_vocabulary(trained, training_images, tmp_path / "mine.vocab", draws=1)


def test_held_out_images_are_not_used_to_fit(
    trained: Vocabulary, training_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    split = Extraction(tuple(sorted(training_images.iterdir())), 1, None, 0.1, 3)
    shards = split.shards(ToyBackbone())
    held_out = {path for shard in shards[: split.n_held_out(len(shards))] for path in shard}
    assert len(held_out) == 4
    seen: list[Extraction] = []
    start = StreamedPatches.__init__

    def note(self: StreamedPatches, options: Extraction, *rest: object) -> None:
        seen.append(options)
        start(self, options, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(StreamedPatches, "__init__", note)
    refit_vocabulary(trained, training_images, tmp_path / "better.vocab", draws=2)
    drawn = {options.draw: set(options.paths) for options in seen}
    assert drawn == {0: set(split.paths), 1: drawn[0] - held_out, 2: drawn[1]}


def test_another_number_of_images_than_in_training_gets_a_new_split(
    trained: Vocabulary, training_images: Path, tmp_path: Path
) -> None:
    for seed in range(40, 80):
        make_image(seed).save(training_images / f"{seed}.png")
    (training_images / "1.png").write_bytes(b"not an image")
    messages: list[str] = []
    torn: list[str] = []

    def on_error(path: Path, error: ImageError) -> None:
        torn.append(path.name)

    listener = Listener(on_message=messages.append, on_error=on_error)
    new = refit_vocabulary(
        trained, training_images, tmp_path / "better.vocab", draws=2, listener=listener
    )
    assert new.report["refit"]["held_out"] == "chosen anew"
    assert messages == ["these are not the training images: choosing other ones to hold out"]
    assert torn == ["1.png"]


def test_a_vocabulary_without_a_report_can_be_refitted(
    training_images: Path, tmp_path: Path
) -> None:
    new = refit_vocabulary(Vocabulary.load("toy"), training_images, tmp_path / "new.vocab", draws=1)
    assert new.fingerprint == Vocabulary.load("toy").fingerprint
    assert new.report["refit"]["held_out"] == "chosen anew"
    better = new.report["refit"]["explained_variance"]
    assert new.report["training"]["explained_variance"] == better


def test_a_draw_changes_only_random_parts(training_images: Path) -> None:
    paths = tuple(sorted(training_images.iterdir()))
    first = Extraction(paths, views=4, patches=None, held_out=0.1, seed=5)
    other = replace(first, draw=1)
    toy = ToyBackbone()
    assert first.shards(toy) == other.shards(toy)
    assert first.key(toy) != other.key(toy) != replace(first, draw=2).key(toy)

    def parts(options: Extraction) -> NDArray[np.float16]:
        return StreamedPatches(options, toy, [0], lambda *_: None).read(0).reshape(-1, 4, 49, 12)

    np.testing.assert_array_equal(parts(first)[:, :2], parts(other)[:, :2])
    for position in range(len(parts(first))):
        for view in (2, 3):
            assert not np.array_equal(parts(first)[position, view], parts(other)[position, view])


def test_stores_of_the_first_draw_stay_valid() -> None:
    options = Extraction((), views=4, patches=9, held_out=0.02, seed=5)
    assert options.key(ToyBackbone()) == "249c44087fcad6b3"
    assert options.random_seed(7, 2) == (5, 7, 2)


def test_the_command_refits(trained: Vocabulary, training_images: Path, tmp_path: Path) -> None:
    words = ["refit", tmp_path / "mine.vocab", training_images, "-o", tmp_path / "new.vocab"]
    done = CliRunner().invoke(command, [*map(str, words), "--draws", "1", "--json"])
    assert done.exit_code == 0, done.output
    printed = json.loads(done.stdout)
    assert printed["fingerprint"] == trained.fingerprint
    assert printed["draws"] == 1
    assert printed["explained_variance"] > printed["explained_variance_before"]
