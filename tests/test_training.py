"""Training on folders: stores, checkpoints, resuming, several processes."""

import dataclasses
import inspect
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

import bm25v  # noqa: E402
from bm25v import images  # noqa: E402
from bm25v.backbones.toy import ToyBackbone  # noqa: E402
from bm25v.cli import progress  # noqa: E402
from bm25v.cli.vocabulary import train as command  # noqa: E402
from bm25v.errors import InvalidOption, VocabularyError  # noqa: E402
from bm25v.gallery import Gallery  # noqa: E402
from bm25v.training import Listener, TrainingOptions, patches, run, train_vocabulary  # noqa: E402
from bm25v.training.patches import (  # noqa: E402
    Extraction,
    PatchStore,
    PatchWindows,
    extract_patches,
    image_views,
)
from bm25v.training.recipe import (  # noqa: E402
    Recipe,
    count_steps,
    iterate_batches,
    sample_patches,
)
from bm25v.training.trainer import StepFigures, Trainer  # noqa: E402
from bm25v.vocabulary import Vocabulary  # noqa: E402
from tests.conftest import RecordingBackbone  # noqa: E402

RECIPE = Recipe(expansion=4, k=4, batch=128, epochs=2, seed=3)


@pytest.fixture
def options(training_images: Path, tmp_path: Path) -> TrainingOptions:
    """A small run on the toy backbone."""
    return TrainingOptions(training_images, tmp_path / "mine.vocab", backbone="toy", recipe=RECIPE)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(vocabulary: Vocabulary) -> bytes:
    return vocabulary.sae.w_enc_dv.tobytes() + vocabulary.sae.b_enc_v.tobytes()


def test_a_folder_becomes_a_vocabulary_that_searches(
    options: TrainingOptions, training_images: Path
) -> None:
    seen: list[StepFigures] = []
    trained = train_vocabulary(
        options, Listener(on_step=lambda figures, steps: seen.append(figures))
    )
    assert seen[-1].fvu < seen[0].fvu
    assert 0 < seen[-1].l0 <= RECIPE.k
    loaded = Vocabulary.load(options.output)
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.n_words == 4 * 12
    assert loaded.report["data"]["n_images"] == 40
    assert loaded.report["training"]["recipe"]["seed"] == 3
    assert 0 < loaded.report["training"]["explained_variance"] < 1
    log = [
        json.loads(line) for line in (options.output / "training.jsonl").read_text().splitlines()
    ]
    assert [entry["step"] for entry in log] == list(range(1, len(seen) + 1))
    assert not options.work.exists()
    gallery = Gallery.create(options.output.with_name("g"), vocabulary=options.output)
    gallery.add(training_images)
    assert (
        Path(gallery.search(training_images / "7.png", include_query=True)[0].path).name == "7.png"
    )


def test_an_interrupted_run_resumes_to_the_same_weights(options: TrainingOptions) -> None:
    whole = train_vocabulary(replace(options, output=options.output.with_name("whole.vocab")))

    def stop(figures: StepFigures, steps: int) -> None:
        if figures.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(options, Listener(on_step=stop))
    assert not options.output.exists()
    with pytest.raises(InvalidOption, match=r"unfinished run.*--resume"):
        train_vocabulary(options)
    steps: list[int] = []
    listener = Listener(on_step=lambda figures, _: steps.append(figures.step))
    resumed = train_vocabulary(replace(options, resume=True), listener)
    assert steps[0] == 10
    assert weights(resumed) == weights(whole)
    assert resumed.sae.w_dec_vd.tobytes() == whole.sae.w_dec_vd.tobytes()


def test_the_function_for_python_trains_like_a_run_with_the_same_options(
    options: TrainingOptions, caplog: pytest.LogCaptureFixture
) -> None:
    (options.folder / "torn.png").write_bytes(b"not an image")
    expected = train_vocabulary(options)
    stages: dict[str, tuple[int, int]] = {}

    def note(stage: str, done: int, total: int) -> None:
        stages[stage] = (done, total)

    output = str(options.output.with_name("again.vocab"))
    trained = bm25v.train(str(options.folder), output, backbone="toy", recipe=RECIPE, progress=note)
    assert weights(trained) == weights(expected)
    assert Vocabulary.load(output).fingerprint == trained.fingerprint
    assert stages["extracting patches"] == (41, 41)
    done, total = stages["training"]
    assert done == total > 0
    (warning,) = (r.message for r in caplog.records if r.levelname == "WARNING")
    assert warning.startswith(f"left out: {options.folder / 'torn.png'}: is not an image")


def test_the_function_for_python_has_every_option_with_its_default() -> None:
    parameters = inspect.signature(bm25v.train).parameters
    defaults = {
        field.name: None if field.name == "recipe" else field.default  # it stands for Recipe()
        for field in dataclasses.fields(TrainingOptions)
    }
    for name in ("folder", "output"):
        assert defaults.pop(name) is dataclasses.MISSING
    del defaults["images"]  # for a folder of which a sample is enough
    assert {name: parameters[name].default for name in defaults} == defaults
    assert set(parameters) == {"folder", "output", *defaults, "progress"}


def test_interrupted_extraction_continues(options: TrainingOptions, tmp_path: Path) -> None:
    kept = replace(options, activations=tmp_path / "kept")

    def stop(stage: str, done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(kept, Listener(progress=stop))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").glob("*.npz")}
    assert 5 <= len(before) < 20
    train_vocabulary(kept)
    assert len(list((tmp_path / "kept").glob("*.npz"))) == 20
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_an_interruption_does_not_wait_for_the_other_images(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[int] = []
    original = ToyBackbone.forward_batch

    def slowly(self: ToyBackbone, batch: list[Any]) -> Any:
        encoded.append(len(batch))
        time.sleep(0.1)
        return original(self, batch)

    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ToyBackbone, "forward_batch", slowly)
    monkeypatch.setattr(ToyBackbone, "batch_size", 1)
    monkeypatch.setattr(patches, "available_cpus", lambda: 1)
    paths = tuple(sorted(options.folder.iterdir()))[:4] * 40  # eight for each shard
    extraction = Extraction(ToyBackbone(), paths, 1, None, 0.02, 0)
    store = PatchStore(options.work, key=extraction.key(), dim=12)
    with pytest.raises(KeyboardInterrupt):
        extract_patches(extraction, store, progress=stop, on_error=lambda *_: None)
    assert 1 <= len(encoded) <= 3


def test_patches_of_other_settings_are_not_overwritten(
    options: TrainingOptions, tmp_path: Path
) -> None:
    kept = replace(options, activations=tmp_path / "kept")
    train_vocabulary(kept)
    before = {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    with pytest.raises(InvalidOption, match="has patches of other images or settings"):
        train_vocabulary(replace(kept, views=2, output=tmp_path / "other.vocab"))
    assert {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before


def test_each_process_uses_its_own_gpu(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "97")
    with pytest.raises(InvalidOption, match="no device 'cuda:97'"):
        train_vocabulary(replace(options, device="cuda"))


def drawn(options: Extraction, path: Path, seed: tuple[int, ...]) -> NDArray[np.float16]:
    """Return the patches of one image, view by view."""
    toy, rng = ToyBackbone(), np.random.default_rng(seed)
    parts = []
    for view in image_views(images.decode_image(path, short_side=112), options.views, rng):
        patches_pd = toy.forward(toy.prepare_image(np.ascontiguousarray(view))).patches_pd
        parts.append(patches_pd[np.sort(rng.permutation(49)[: options.patches])])
    return np.concatenate(parts).astype(np.float16)


def test_the_views_of_several_images_go_through_the_backbone_together(
    training_images: Path, tmp_path: Path
) -> None:
    (training_images / "7.png").write_bytes(b"not an image")
    paths = tuple(sorted(training_images.iterdir()))
    for batch, images_at_once in ((7, 2), (3, 1), (1, 1)):
        backbone = RecordingBackbone(batch)
        options = Extraction(backbone, paths, views=3, patches=9, held_out=0.1, seed=5)
        torn: list[str] = []
        store = PatchStore(tmp_path / f"of {batch}", key="", dim=12)
        store.folder.mkdir()
        extract_patches(
            options,
            store,
            on_error=lambda path, _, torn=torn: torn.append(path.name),  # type: ignore[misc]
        )
        assert torn == ["7.png"]
        assert len(backbone.sizes) == 40 / images_at_once
        assert max(backbone.sizes) == 3 * images_at_once
        assert sum(backbone.sizes) == 3 * 39
        for number, shard in enumerate(options.shards()):
            expected = [
                drawn(options, path, (5, number, position))
                for position, path in enumerate(shard)
                if path.name != "7.png"
            ]
            np.testing.assert_array_equal(store.read(number), np.concatenate(expected))


def test_a_vocabulary_is_measured_on_whole_images(training_images: Path) -> None:
    paths = tuple(sorted(training_images.iterdir()))
    options = Extraction(ToyBackbone(), paths, 3, 9, 0.1, 5)
    whole, all_views = (
        [drawn(extraction, path, (5, 0, i)) for i, path in enumerate(paths[:2])]
        for extraction in (replace(options, views=1), options)
    )
    shard = np.concatenate(all_views)
    measured = options.whole_images(shard)
    np.testing.assert_array_equal(measured, np.concatenate(whole))


def test_ctrl_c_takes_effect_between_two_steps(options: TrainingOptions) -> None:
    def press(figures: StepFigures, steps: int) -> None:
        if figures.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    whole = train_vocabulary(replace(options, output=options.output.with_name("whole.vocab")))
    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(options, Listener(on_step=press))
    assert weights(train_vocabulary(replace(options, resume=True))) == weights(whole)


def test_a_run_does_not_resume_with_other_settings(options: TrainingOptions) -> None:
    def stop(figures: StepFigures, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(options, Listener(on_step=stop))
    before = contents(options.work)
    for other in (replace(options, recipe=replace(RECIPE, k=3)), replace(options, views=2)):
        with pytest.raises(InvalidOption, match="other images or settings"):
            train_vocabulary(replace(other, resume=True))
    assert contents(options.work) == before
    (options.work / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(VocabularyError, match="damaged"):
        train_vocabulary(replace(options, resume=True))


def test_impossible_runs_are_refused(options: TrainingOptions, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="no run to resume"):
        train_vocabulary(replace(options, resume=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match="no images in"):
        train_vocabulary(replace(options, folder=tmp_path / "empty"))
    train_vocabulary(options)
    with pytest.raises(VocabularyError, match="already exists"):
        train_vocabulary(options)


def test_unreadable_images_are_reported_and_left_out(
    options: TrainingOptions, training_images: Path
) -> None:
    (training_images / "torn.jpg").write_bytes(b"\xff\xd8\xff and no more")
    reported: list[str] = []
    trained = train_vocabulary(
        options, Listener(on_error=lambda path, error: reported.append(path.name))
    )
    assert reported == ["torn.jpg"]
    assert trained.report["data"]["patches"] == 39 * 49


def test_a_small_disk_is_refused_before_anything_is_written(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(n_bytes: int) -> None:
        usage = types.SimpleNamespace(free=n_bytes)
        monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)

    leave(1000)
    with pytest.raises(
        InvalidOption, match=r"vocabulary need 31\.5 kB, .* has 1\.0 kB free: free some"
    ):
        train_vocabulary(options)
    assert not options.work.exists()
    leave(50_000)  # enough for checkpoints, but not for patches as well
    with pytest.raises(
        InvalidOption, match=r"the patches need 47\.0 kB, .* has 18\.5 kB .*--patches"
    ):
        train_vocabulary(options)
    assert not list((options.work / "activations").iterdir())
    train_vocabulary(replace(options, stream=True))


def filled(folder: Path, sizes: list[int]) -> PatchStore:
    store = PatchStore(folder, key="a", dim=3)
    folder.mkdir()
    for number, size in enumerate(sizes):
        store.write(number, np.full((size, 3), number, dtype=np.float16))
    return store


def test_a_store_keeps_complete_shards_and_names_damaged_ones(tmp_path: Path) -> None:
    filled(tmp_path / "s", [5, 7])
    again = PatchStore(tmp_path / "s", key="a", dim=3)
    assert again.shards == {0: 5, 1: 7}
    assert again.read(1).tolist() == [[1, 1, 1]] * 7
    assert PatchStore(tmp_path / "s", key="other", dim=3).shards == {}
    (tmp_path / "s" / "shard-00001.npz").write_bytes(b"torn")
    with pytest.raises(VocabularyError, match=r"shard-00001\.npz is damaged"):
        again.read(1)


def test_patches_of_a_newer_format_are_refused(tmp_path: Path) -> None:
    filled(tmp_path / "s", [5])
    index = json.loads((tmp_path / "s" / "activations.json").read_text())
    (tmp_path / "s" / "activations.json").write_text(json.dumps({**index, "format": 99}))
    with pytest.raises(VocabularyError, match="newer bm25v: upgrade"):
        PatchStore(tmp_path / "s", key="a", dim=3)


def test_batches_visit_every_patch_once_per_epoch_and_can_start_at_any_step(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "s", [50, 20, 30, 1])
    windows = PatchWindows(store, [0, 1, 2, 3], window_bytes=60 * 6)
    assert len(windows) == 2
    recipe = Recipe(batch=16, epochs=3)
    steps = count_steps(windows, recipe)
    whole = [
        batch for batch, _ in zip(iterate_batches(windows, recipe), range(steps), strict=False)
    ]
    for epoch in range(3):
        rows = np.concatenate(whole[epoch * steps // 3 : (epoch + 1) * steps // 3])
        assert np.bincount(rows[:, 0].astype(int)).tolist() == [50, 20, 30, 1]
    for start in range(steps):
        np.testing.assert_array_equal(
            next(iterate_batches(windows, recipe, start=start)), whole[start]
        )
    assert sample_patches(windows, 40, seed=0).shape == (40, 3)


def test_gradients_equal_those_of_the_dense_step() -> None:
    """The sparse step against the formula written densely, with autograd through everything."""
    rng = np.random.default_rng(0)
    patches = rng.normal(size=(300, 10)).astype(np.float32)
    trainer = Trainer(patches, replace(RECIPE, standardise=False, aux_weight=0.0), steps=10)
    model = trainer.model
    x_bd = torch.from_numpy(patches[:64])
    acts_bk, words_bk = model.encode(x_bd, RECIPE.k)
    loss = (model.decode(acts_bk, words_bk) - x_bd).square().mean() + 1e-3 * acts_bk.sum()
    sparse = torch.autograd.grad(loss, model.parameters())
    before_bv = torch.relu(x_bd @ model.enc_vd.T + model.bias_v)
    top = before_bv.topk(RECIPE.k)
    codes_bv = torch.zeros_like(before_bv).scatter(1, top.indices, top.values)
    error_bd = codes_bv @ model.dec_vd + model.bias_d - x_bd
    dense = torch.autograd.grad(
        error_bd.square().mean() + 1e-3 * codes_bv.sum(), model.parameters()
    )
    for ours, theirs in zip(sparse, dense, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_the_papers_recipe_trains(options: TrainingOptions) -> None:
    plain = replace(Recipe.paper(), expansion=4, k=4, batch=128, epochs=4)
    trained = train_vocabulary(replace(options, recipe=plain))
    assert trained.report["training"]["fvu"] < 1


def test_two_processes_train_like_one(options: TrainingOptions, tmp_path: Path) -> None:
    one = train_vocabulary(options)
    script = tmp_path / "two.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from bm25v.training.recipe import Recipe\n"
        "from bm25v.training import TrainingOptions, train_vocabulary\n"
        f"recipe = Recipe(expansion=4, k=4, batch={RECIPE.batch}, epochs=2, seed=3)\n"
        "folder, output = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "train_vocabulary(TrainingOptions(folder, output, backbone='toy', recipe=recipe))\n"
    )
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    launch += [str(script), str(options.folder), str(tmp_path / "two.vocab")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    two = Vocabulary.load(tmp_path / "two.vocab")
    assert two.report["training"]["processes"] == 2

    def losses(path: Path) -> list[float]:
        lines = (path / "training.jsonl").read_text().splitlines()
        return [json.loads(line)["fvu"] for line in lines]

    np.testing.assert_allclose(losses(tmp_path / "two.vocab"), losses(options.output), rtol=1e-3)
    assert one.n_words == two.n_words


def test_the_command_trains(training_images: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bm25v", "train", str(training_images), "-o", "own.vocab"]
    command += ["--backbone", "toy", "--expansion", "4", "--k", "4", "--batch", "128", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "40 images" in done.stderr
    printed = json.loads(done.stdout)
    assert printed["fingerprint"] == Vocabulary.load(tmp_path / "own.vocab").fingerprint
    assert printed["recipe"]["expansion"] == 4


def test_streaming_writes_no_patches_and_learns_as_well(
    options: TrainingOptions, tmp_path: Path
) -> None:
    whole = train_vocabulary(options)
    seen: list[int] = []
    streamed = train_vocabulary(
        replace(options, output=tmp_path / "streamed.vocab", stream=True),
        Listener(on_step=lambda figures, _: seen.append(len(list(tmp_path.rglob("*.npz"))))),
    )
    assert set(seen) == {0}
    assert streamed.report["data"]["patches"] == whole.report["data"]["patches"]
    assert streamed.report["training"]["fvu"] == pytest.approx(
        whole.report["training"]["fvu"], rel=0.2
    )


DEVICES = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]


@pytest.mark.parametrize("device", DEVICES)
def test_a_built_in_backbone_trains_and_resumes_on_every_device(
    options: TrainingOptions, device: str
) -> None:
    def stop(figures: StepFigures, steps: int) -> None:
        if figures.step == 9:
            raise KeyboardInterrupt

    there = replace(options, device=device)
    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(there, Listener(on_step=stop))
    assert train_vocabulary(replace(there, resume=True)).report["training"]["fvu"] < 1


def test_a_missing_device_is_refused(options: TrainingOptions) -> None:
    with pytest.raises(InvalidOption, match="no device 'cuda:99' on this machine, only: "):
        train_vocabulary(replace(options, device="cuda:99"))
    assert not options.work.exists()


def test_too_few_patches_are_refused_before_extraction(options: TrainingOptions) -> None:
    with pytest.raises(InvalidOption, match="1,960 patches are too few to learn 2,400 words"):
        train_vocabulary(replace(options, recipe=replace(RECIPE, expansion=200)))
    assert not options.work.exists()


def shards(training_images: Path) -> list[list[Path]]:
    """Return the images of each shard of the small run; the first one is held out."""
    paths = tuple(sorted(training_images.iterdir()))
    options = Extraction(ToyBackbone(), paths, 1, None, RECIPE.held_out, RECIPE.seed)
    return options.shards()


def test_too_few_patches_of_readable_images_are_refused(
    options: TrainingOptions, training_images: Path
) -> None:
    _, *learnt = shards(training_images)
    for path in itertools.chain(*learnt[:-1]):
        path.write_bytes(b"not an image")
    with pytest.raises(InvalidOption, match="98 patches are too few to learn 144 words"):
        train_vocabulary(replace(options, recipe=replace(RECIPE, expansion=12)))
    assert not options.output.exists()


def test_unreadable_held_out_images_are_refused_before_training(
    options: TrainingOptions, training_images: Path
) -> None:
    held_out, *_ = shards(training_images)
    for path in held_out:
        path.write_bytes(b"not an image")
    steps: list[int] = []
    listener = Listener(on_step=lambda figures, _: steps.append(figures.step))
    with pytest.raises(InvalidOption, match=r"held out for measuring can be read.*--seed"):
        train_vocabulary(options, listener)
    assert not steps
    train_vocabulary(replace(options, recipe=replace(RECIPE, seed=4)))


def logged(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return each figure's steps and values."""
    entries = [*map(json.loads, (folder / "training.jsonl").read_text().splitlines())]
    assert [entry["step"] for entry in entries] == list(range(1, len(entries) + 1))
    names = entries[0].keys() - {"step"}
    return {name: [(entry["step"], entry[name]) for entry in entries] for name in names}


def drawn_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves that TensorBoard would show."""
    module = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    found = module.EventAccumulator(str(folder / "tensorboard"), {module.SCALARS: 0}).Reload()
    return {
        name: [(event.step, event.value) for event in found.Scalars(name)]
        for name in found.Tags()["scalars"]
    }


def same_curves(folder: Path) -> None:
    shown, expected = drawn_curves(folder), logged(folder)
    assert shown.keys() == expected.keys() == {"fvu", "l0", "dead_share"}
    for name, points in expected.items():
        assert [step for step, _ in shown[name]] == [step for step, _ in points]
        values = [value for _, value in points]
        np.testing.assert_allclose([value for _, value in shown[name]], values, rtol=1e-6)


def test_tensorboard_has_the_figures_of_the_log(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", -1.0)

    def fail(figures: StepFigures, steps: int) -> None:
        if figures.step == 9:  # is logged, but comes after the last checkpoint
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train_vocabulary(options, Listener(on_step=fail))
    same_curves(options.work)
    train_vocabulary(replace(options, resume=True))
    same_curves(options.output)
    steps = [step for step, _ in drawn_curves(options.output)["fvu"]]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 9


def test_a_run_that_starts_again_drops_the_curves_of_the_last(options: TrainingOptions) -> None:
    def fail(figures: StepFigures, steps: int) -> None:
        if figures.step == 20:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        train_vocabulary(options, Listener(on_step=fail))
    train_vocabulary(replace(options, recipe=replace(RECIPE, epochs=1)))
    same_curves(options.output)
    names = [path.name for path in (options.output / "tensorboard").iterdir()]
    assert names == ["events.out.tfevents.0"]  # not the name of this machine


def test_nothing_changes_without_tensorboard(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_it = train_vocabulary(replace(options, output=options.output.with_name("with.vocab")))
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert weights(train_vocabulary(options)) == weights(with_it)
    assert not (options.output / "tensorboard").exists()
    assert logged(options.output)["fvu"] == logged(options.output.with_name("with.vocab"))["fvu"]


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_a_log_file_gets_a_line_of_progress_at_intervals(
    training_images: Path, tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", seconds)
    words = [training_images, "-o", tmp_path / "own.vocab", "--backbone", "toy", "--expansion", 4]
    done = CliRunner().invoke(command, [*map(str, words), "--k", "4", "--batch", "128"])
    assert done.exit_code == 0, done.output
    lines = done.stderr.splitlines()
    assert lines[0] == "40 images, 0.00 GB of patches"
    if seconds:
        assert len(lines) == 1
        return
    speed = r"[\d,.]+ (images|steps)/s"
    extracting = [
        line
        for line in lines
        if re.match(r"(extracting patches|counting words): image \d+ of 40", line)
    ]
    training = [line for line in lines if line.startswith("step ")]
    assert len(lines) == 1 + len(extracting) + len(training)
    assert re.fullmatch(
        rf"extracting patches: image 39 of 40  {speed}  0:00:\d\d left", extracting[38]
    )
    assert re.fullmatch(
        rf"step 5 of 75  FVU 0\.\d+  L0 4\.0  dead \d+\.\d%  {speed}  0:\d\d:\d\d left", training[4]
    )
