"""Whatever a person gives and whatever happens to the disk: a run is refused early, or kept."""

import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

torch = pytest.importorskip("torch")

from bm25v.cli.vocabulary import train as command  # noqa: E402
from bm25v.errors import Bm25vError, InvalidOption, StorageFull, VocabularyError  # noqa: E402
from bm25v.training import (  # noqa: E402
    Listener,
    TrainingOptions,
    run,
    train_vocabulary,
)
from bm25v.training.checkpoints import load_checkpoint  # noqa: E402
from bm25v.training.patches import PatchStore  # noqa: E402
from bm25v.training.quality import measure_quality  # noqa: E402
from bm25v.training.recipe import Recipe  # noqa: E402
from bm25v.training.trainer import StepFigures  # noqa: E402
from bm25v.vocabulary import Vocabulary  # noqa: E402
from tests.array_training import train_sae  # noqa: E402
from tests.power_cuts import PowerCuts  # noqa: E402
from tests.test_durability import needs_proc  # noqa: E402

RECIPE = Recipe(expansion=4, k=4, batch=512, steps=6, seed=3)


@pytest.fixture
def options(training_images: Path, tmp_path: Path) -> TrainingOptions:
    return TrainingOptions(training_images, tmp_path / "mine.vocab", backbone="toy", recipe=RECIPE)


def weights(vocabulary: Vocabulary) -> bytes:
    return vocabulary.sae.w_enc_dv.tobytes() + vocabulary.sae.w_dec_vd.tobytes()


def steps(log: Path) -> list[int]:
    """Return the steps in a log, all of whose lines are complete."""
    return [json.loads(line)["step"] for line in log.read_text().splitlines()]


def forbid_steps(*_: object) -> None:
    raise AssertionError("the training has begun")


FORBIDDEN = Listener(on_step=forbid_steps)


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--seed", "-1", "seed is -1, not a whole number of at least 0"),
        ("--learning-rate", "nan", "learning_rate is nan, not a number from"),
        ("--learning-rate", "inf", "learning_rate is inf, not a number from"),
        ("--k-post", "100000", "k_post is 100000, not a whole number from 1 to 65,535"),
        ("--k", "1000", "k must be between 1 and the vocabulary's 192 words"),
        ("--expansion", "999999999999", "patches are too few to learn"),
    ],
)
def test_impossible_settings_are_refused_before_any_work(
    options: TrainingOptions, option: str, value: str, problem: str
) -> None:
    words = [str(options.folder), "-o", str(options.output), "--backbone", "toy", option, value]
    done = CliRunner().invoke(command, words)
    assert isinstance(done.exception, InvalidOption)
    assert problem in str(done.exception)
    assert not options.work.exists()


@given(
    name=st.sampled_from(sorted(Recipe.__dataclass_fields__)),
    value=st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([math.nan, math.inf, -1, 0, "3", 10**400]),
)
def test_every_recipe_is_possible_or_refused(name: str, value: Any) -> None:
    small = Recipe(expansion=2, k=2, batch=64, steps=2)
    too_much = {"expansion": 8, "batch": 10**6, "steps": 5, "epochs": 5}  # not tried out
    patches_nd = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    try:
        recipe = replace(small, **{name: value})
        if isinstance(value, int) and value > too_much.get(name, math.inf):
            return
        trained = train_sae(patches_nd, recipe)
    except InvalidOption as error:
        assert "\n" not in str(error)
    else:
        assert math.isfinite(trained.report["fvu"])


def paint(folder: Path, names: list[str], colour: tuple[int, int, int]) -> None:
    for name in names:
        Image.new("RGB", (64, 64), colour).save(folder / name)


@pytest.mark.parametrize("recipe", [Recipe(), Recipe.paper()])
def test_images_of_one_colour_are_refused_before_training(
    options: TrainingOptions, recipe: Recipe
) -> None:
    recipe = replace(recipe, expansion=4, k=4, batch=512, steps=6)
    paint(options.folder, [path.name for path in options.folder.iterdir()], (90, 20, 30))
    with pytest.raises(InvalidOption, match="are all equal"):
        train_vocabulary(replace(options, recipe=recipe), FORBIDDEN)
    assert not options.output.exists()


@pytest.mark.parametrize("stream", [False, True])
def test_held_out_images_of_one_colour_are_refused_before_training(
    options: TrainingOptions, stream: bool
) -> None:
    order = np.random.default_rng(RECIPE.seed).permutation(40)[:2]
    held_out = np.array(sorted(path.name for path in options.folder.iterdir()))[order].tolist()
    paint(options.folder, held_out, (90, 20, 30))
    with pytest.raises(InvalidOption, match=r"held out for measuring are all equal.*--seed"):
        train_vocabulary(replace(options, stream=stream), FORBIDDEN)
    train_vocabulary(replace(options, stream=stream, recipe=replace(RECIPE, seed=4), resume=False))


def test_quality_is_measured_well_on_almost_equal_patches() -> None:
    toy = Vocabulary.load("toy").sae
    patches_nd = np.full((1000, 12), 1000.1, np.float32)
    patches_nd[0, 0] += 1
    quality = measure_quality(toy, [patches_nd])
    unexplained = ((patches_nd.astype(np.float64) - toy.decode(toy.encode(patches_nd))) ** 2).sum()
    variance = ((patches_nd - patches_nd.mean(axis=0, dtype=np.float64)) ** 2).sum()
    assert quality["fvu"] == pytest.approx(unexplained / variance, rel=1e-6)
    for wrong in (patches_nd[1:], patches_nd[:0], np.full((9, 12), np.nan, np.float32)):
        with pytest.raises(InvalidOption, match="held out for measuring"):
            measure_quality(toy, [wrong])


def test_nothing_is_written_among_the_images(
    options: TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = options.folder
    (tmp_path / "link").symlink_to(pictures)
    monkeypatch.chdir(pictures)
    before = sorted(tmp_path.rglob("*"))
    inside = (pictures, pictures / "mine.vocab", Path("mine.vocab"), Path("."), Path("a/b"))
    message = "written among them: give a path outside"
    for path in (*inside, tmp_path / "link" / "mine.vocab", pictures / ".." / pictures.name):
        for wrong in (replace(options, output=path), replace(options, activations=path)):
            with pytest.raises(InvalidOption, match=message):
                train_vocabulary(wrong)
    with pytest.raises(InvalidOption, match=f"such as {tmp_path / 'my.vocab'}"):
        train_vocabulary(replace(options, output=pictures / "my.vocab"))
    with pytest.raises(InvalidOption, match="is not a folder for a vocabulary"):
        train_vocabulary(replace(options, output=Path("/")))
    assert sorted(tmp_path.rglob("*")) == before


def test_no_image_and_no_patches_to_keep_are_in_a_folder_that_is_deleted(
    options: TrainingOptions, tmp_path: Path
) -> None:
    work = tmp_path / "mine.vocab.work"
    for inside in (work, work / "training"):
        shutil.copytree(options.folder, inside)
        with pytest.raises(InvalidOption, match="is deleted after training: move them"):
            train_vocabulary(replace(options, folder=inside))
        assert len(list(inside.glob("*.png"))) == 40
        shutil.rmtree(work)
    with pytest.raises(InvalidOption, match="is deleted after training: give another folder"):
        train_vocabulary(replace(options, activations=work / "patches"))


def test_only_files_of_the_run_are_deleted(options: TrainingOptions) -> None:
    options.work.mkdir()
    (options.work / "notes.txt").write_text("mine")
    (options.work / ".checkpoint.safetensors.0.part").write_bytes(b"of a killed run")
    train_vocabulary(options)
    assert [path.name for path in options.work.iterdir()] == ["notes.txt"]


def test_names_that_are_not_text_are_replaced(options: TrainingOptions) -> None:
    output = options.output.with_name("caf\udce9\n.vocab")
    try:
        output.with_name("caf\udce9").mkdir()
    except (OSError, UnicodeError):
        pytest.skip("file names are text here")
    train_vocabulary(replace(options, output=output, about="by \udce9"))
    loaded = Vocabulary.load(output)
    assert (loaded.name, loaded.report["data"]["about"]) == ("caf??", "by ?")


def test_a_damaged_index_of_patches_is_refused(tmp_path: Path) -> None:
    index: dict[str, Any] = {"format": 1, "key": "a", "dim": 3, "shards": {"0": 4}}
    wrong: list[Any] = [[], 3, {**index, "format": "1"}, {**index, "shards": []}]
    wrong += [{**index, "shards": {key: 4}} for key in ("x", "-1", "9" * 5000)]
    wrong += [{**index, "shards": {"0": n}} for n in (-1, "4", None)]
    for content in wrong:
        (tmp_path / "activations.json").write_text(json.dumps(content))
        with pytest.raises(VocabularyError, match=r"activations\.json is damaged .*: delete"):
            PatchStore(tmp_path, key="a", dim=3)
    (tmp_path / "activations.json").write_text(json.dumps(index))
    assert PatchStore(tmp_path, key="a", dim=3).shards == {0: 4}


def test_a_log_has_every_step_up_to_the_checkpoint_whenever_a_run_is_killed(
    options: TrainingOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of the files is what is left if the process is killed at that moment."""
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", -1.0)
    killed = options.output.with_name("killed.vocab")
    copies: list[Path] = []

    def copy(figures: StepFigures, steps: int) -> None:
        copies.append(options.output.with_name(f"killed at {figures.step}.work"))
        shutil.copytree(options.work, copies[-1])

    whole = train_vocabulary(options, Listener(on_step=copy))
    expected = (options.output / "training.jsonl").read_text()
    assert steps(options.output / "training.jsonl") == [1, 2, 3, 4, 5, 6]
    for at, folder in enumerate(copies[1:], start=1):
        assert int(load_checkpoint(folder)["step"]) == at
        assert steps(folder / "training.jsonl")[:at] == list(range(1, at + 1))
        with (folder / "training.jsonl").open("ab") as log:
            log.write(b'{"step": %d, "fvu": 9}\n{"st' % (at + 1))  # later than the checkpoint
        folder.rename(killed.with_name("killed.vocab.work"))
        resumed = train_vocabulary(replace(options, output=killed, resume=True))
        assert weights(resumed) == weights(whole)
        assert (killed / "training.jsonl").read_text() == expected
        shutil.rmtree(killed)


def test_a_disk_that_becomes_full_is_one_error_and_the_run_can_be_resumed(
    options: TrainingOptions, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", -1.0)
    whole = train_vocabulary(options)
    there = replace(options, output=small_disk / "mine.vocab")
    ballast = small_disk / "ballast"
    filled = 0

    def fill_at(step: int, free: int) -> Listener:
        def fill(figures: StepFigures, _: int) -> None:
            if figures.step == step:
                ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - free)))

        return Listener(on_step=fill)

    for step, free in ((1, 0), (2, 0), (4, 8192), (6, 0), (6, 20_000)):
        resume = (there.work / "checkpoint.safetensors").exists()
        try:
            train_vocabulary(replace(there, resume=resume), fill_at(step, free))
        except StorageFull as error:
            assert "is full" in str(error)
            assert "free some space" in str(error)
            filled += 1
        assert [path.name for path in small_disk.rglob("*.part")] == []
        ballast.unlink(missing_ok=True)
    assert filled >= 3
    if not (there.output / "vocabulary.json").exists():
        train_vocabulary(replace(there, resume=True))
    assert weights(Vocabulary.load(there.output)) == weights(Vocabulary.load(options.output))
    assert weights(whole) == weights(Vocabulary.load(options.output))
    assert steps(there.output / "training.jsonl") == [1, 2, 3, 4, 5, 6]


@needs_proc
def test_a_power_cut_leaves_a_checkpoint_or_the_vocabulary(
    options: TrainingOptions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", -1.0)
    root, done = tmp_path / "disk", [0]
    root.mkdir()
    output = Path("new") / "folder" / "mine.vocab"
    seen: set[str] = set()

    def count(figures: StepFigures, _: int) -> None:
        done[0] = figures.step

    def check(survivors: Path, cut: str) -> None:
        """The newest checkpoint but one, with its log, or the vocabulary, with its log."""
        work = (survivors / output).with_name("mine.vocab.work")
        if done[0] < 2:
            return
        try:
            vocabulary = Vocabulary.load(survivors / output)
        except Bm25vError:
            step = int(load_checkpoint(work)["step"])
            assert step >= done[0] - 1, cut
            assert steps(work / "training.jsonl")[:step] == list(range(1, step + 1)), cut
            seen.add("checkpoint")
        else:
            assert vocabulary.n_words == 48, cut
            assert steps(survivors / output / "training.jsonl") == [1, 2, 3, 4, 5, 6], cut
            seen.add("vocabulary")

    cuts = PowerCuts(root, tmp_path, check)
    with monkeypatch.context() as patch:
        cuts.watch(patch)
        trained = train_vocabulary(replace(options, output=root / output), Listener(on_step=count))
        cuts.cut("the end")
    cuts.close()
    assert seen == {"checkpoint", "vocabulary"}
    assert cuts.n_cuts > 60
    assert weights(Vocabulary.load(root / output)) == weights(trained)
    assert os.listdir(root / output.parent) == ["mine.vocab"]


@needs_proc
def test_a_power_cut_while_a_vocabulary_is_replaced_leaves_one_or_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Vocabulary.load("toy")
    old = Vocabulary.build("old", backbone=toy.backbone, sae=toy.sae, k_post=4)
    sae = replace(toy.sae, w_enc_dv=2 * toy.sae.w_enc_dv)
    new = Vocabulary.build("new", backbone=toy.backbone, sae=sae, k_post=5)
    new = replace(new, word_names={3: "sky"})
    root = tmp_path / "disk"
    old.save(root / "v")
    seen: list[str] = []

    def check(survivors: Path, cut: str) -> None:
        try:
            loaded = Vocabulary.load(survivors / "v")
        except VocabularyError:
            seen.append("none")
            return
        expected = {"old": old, "new": new}[loaded.name]
        assert (loaded.fingerprint, loaded.word_names) == (
            expected.fingerprint,
            expected.word_names,
        ), cut
        seen.append(loaded.name)

    cuts = PowerCuts(root, tmp_path, check)
    with monkeypatch.context() as patch:
        cuts.watch(patch)
        new.save(root / "v")
        cuts.cut("the end")
    cuts.close()
    assert seen[0] == "old"
    assert seen[-3:] == ["new"] * 3
    assert "none" in seen
