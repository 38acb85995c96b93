"""Training on folders: stores, checkpoints, going on, several processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from bm25v.errors import VocabularyError, WrongUse  # noqa: E402
from bm25v.gallery import Gallery  # noqa: E402
from bm25v.sae.batches import batches, n_steps, sample  # noqa: E402
from bm25v.sae.recipe import Recipe  # noqa: E402
from bm25v.sae.trainer import StepFigures, Trainer  # noqa: E402
from bm25v.training import Wish, train_vocabulary  # noqa: E402
from bm25v.training.run import Listener  # noqa: E402
from bm25v.training.store import Store, StoreWindows  # noqa: E402
from bm25v.vocabulary import Vocabulary  # noqa: E402
from tests.conftest import picture  # noqa: E402

RECIPE = Recipe(expansion=4, k=4, batch=128, epochs=2, seed=3)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder of forty pictures."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for seed in range(40):
        picture(seed).save(folder / f"{seed}.png")
    return folder


@pytest.fixture
def wish(pictures: Path, tmp_path: Path) -> Wish:
    """A small run on the toy backbone."""
    return Wish(pictures, tmp_path / "mine.vocab", backbone="toy", recipe=RECIPE)


def weights(vocabulary: Vocabulary) -> bytes:
    return vocabulary.sae.w_enc_dv.tobytes() + vocabulary.sae.b_enc_v.tobytes()


def test_a_folder_becomes_a_vocabulary_that_searches(wish: Wish, pictures: Path) -> None:
    seen: list[StepFigures] = []
    trained = train_vocabulary(wish, Listener(on_step=lambda figures, steps: seen.append(figures)))
    assert seen[-1].fvu < seen[0].fvu
    assert 0 < seen[-1].l0 <= RECIPE.k
    loaded = Vocabulary.load(wish.output)
    assert loaded.fingerprint == trained.fingerprint
    assert loaded.n_words == 4 * 12
    assert loaded.report["data"]["pictures"] == 40
    assert loaded.report["training"]["recipe"]["seed"] == 3
    assert 0 < loaded.report["training"]["explained_variance"] < 1
    log = [json.loads(line) for line in (wish.output / "training.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in log] == list(range(1, len(seen) + 1))
    assert not wish.work.exists()
    gallery = Gallery.create(wish.output.with_name("g"), vocabulary=wish.output)
    gallery.add(pictures)
    assert Path(gallery.search(pictures / "7.png")[0].path).name == "7.png"


def test_an_interrupted_run_goes_on_to_the_same_weights(wish: Wish) -> None:
    whole = train_vocabulary(replace(wish, output=wish.output.with_name("whole.vocab")))

    def stop(figures: StepFigures, steps: int) -> None:
        if figures.step == 9:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(wish, Listener(on_step=stop))
    assert not wish.output.exists()
    with pytest.raises(WrongUse, match=r"unfinished run.*--resume"):
        train_vocabulary(wish)
    steps: list[int] = []
    go_on = Listener(on_step=lambda figures, _: steps.append(figures.step))
    resumed = train_vocabulary(replace(wish, resume=True), go_on)
    assert steps[0] == 10
    assert weights(resumed) == weights(whole)
    assert resumed.sae.w_dec_vd.tobytes() == whole.sae.w_dec_vd.tobytes()


def test_interrupted_extraction_goes_on(wish: Wish, tmp_path: Path) -> None:
    kept = replace(wish, activations=tmp_path / "kept")

    def stop(done: int, total: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(kept, Listener(on_extract=stop))
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept").glob("*.f16")}
    assert 5 <= len(before) < 20
    train_vocabulary(kept)
    assert len(list((tmp_path / "kept").glob("*.f16"))) == 20
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_ctrl_c_takes_effect_between_two_steps(wish: Wish) -> None:
    def press(figures: StepFigures, steps: int) -> None:
        if figures.step == 4:
            os.kill(os.getpid(), signal.SIGINT)

    whole = train_vocabulary(replace(wish, output=wish.output.with_name("whole.vocab")))
    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(wish, Listener(on_step=press))
    assert weights(train_vocabulary(replace(wish, resume=True))) == weights(whole)


def test_other_settings_do_not_go_on(wish: Wish) -> None:
    def stop(figures: StepFigures, steps: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_vocabulary(wish, Listener(on_step=stop))
    other = replace(wish, resume=True, recipe=replace(RECIPE, k=3))
    with pytest.raises(WrongUse, match="other pictures or settings"):
        train_vocabulary(other)
    (wish.work / "checkpoint.safetensors").write_bytes(b"torn")
    with pytest.raises(VocabularyError, match="damaged"):
        train_vocabulary(replace(wish, resume=True))


def test_wrong_wishes_are_refused(wish: Wish, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="no run to go on with"):
        train_vocabulary(replace(wish, resume=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(WrongUse, match="no pictures in"):
        train_vocabulary(replace(wish, folder=tmp_path / "empty"))
    train_vocabulary(wish)
    with pytest.raises(VocabularyError, match="exists already"):
        train_vocabulary(wish)


def test_unreadable_pictures_are_told_and_left_out(wish: Wish, pictures: Path) -> None:
    (pictures / "torn.jpg").write_bytes(b"\xff\xd8\xff and no more")
    told: list[str] = []
    trained = train_vocabulary(wish, Listener(on_error=lambda path, error: told.append(path.name)))
    assert told == ["torn.jpg"]
    assert trained.report["data"]["patches"] == 39 * 49


def test_a_small_disk_is_refused_before_anything_is_written(
    wish: Wish, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Usage:
        free = 1000

    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage)
    with pytest.raises(WrongUse, match=r"need 0\.0 GB.*--patches"):
        train_vocabulary(wish)
    assert not list((wish.work / "activations").iterdir())


def filled(folder: Path, sizes: list[int]) -> Store:
    store = Store(folder, key="a", dim=3)
    folder.mkdir()
    for number, size in enumerate(sizes):
        store.write(number, np.full((size, 3), number, dtype=np.float16))
    return store


def test_a_store_keeps_what_is_whole_and_names_what_is_damaged(tmp_path: Path) -> None:
    filled(tmp_path / "s", [5, 7])
    again = Store(tmp_path / "s", key="a", dim=3)
    assert [shard.patches for shard in again.shards.values()] == [5, 7]
    assert again.read(1).tolist() == [[1, 1, 1]] * 7
    assert Store(tmp_path / "s", key="other", dim=3).shards == {}
    (tmp_path / "s" / "shard-00001.f16").write_bytes(b"torn")
    with pytest.raises(VocabularyError, match=r"shard-00001\.f16 is damaged"):
        again.read(1)


def test_batches_visit_every_patch_once_an_epoch_and_can_be_entered_anywhere(
    tmp_path: Path,
) -> None:
    store = filled(tmp_path / "s", [50, 20, 30, 1])
    windows = StoreWindows(store, [0, 1, 2, 3], window_bytes=60 * 6)
    assert len(windows) == 2
    recipe = Recipe(batch=16, epochs=3)
    steps = n_steps(windows, recipe)
    whole = [batch for batch, _ in zip(batches(windows, recipe), range(steps), strict=False)]
    for epoch in range(3):
        rows = np.concatenate(whole[epoch * steps // 3 : (epoch + 1) * steps // 3])
        assert np.bincount(rows[:, 0].astype(int)).tolist() == [50, 20, 30, 1]
    for start in range(steps):
        np.testing.assert_array_equal(next(batches(windows, recipe, start=start)), whole[start])
    assert sample(windows, 40, seed=0).shape == (40, 3)


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


def test_the_papers_recipe_trains(wish: Wish) -> None:
    plain = replace(Recipe.paper(), expansion=4, k=4, batch=128, epochs=4)
    trained = train_vocabulary(replace(wish, recipe=plain))
    assert trained.report["training"]["fvu"] < 1


def test_two_processes_train_like_one(wish: Wish, tmp_path: Path) -> None:
    one = train_vocabulary(wish)
    script = tmp_path / "two.py"
    script.write_text(
        "import sys\nfrom pathlib import Path\n"
        "from bm25v.sae.recipe import Recipe\nfrom bm25v.training import Wish, train_vocabulary\n"
        f"recipe = Recipe(expansion=4, k=4, batch={RECIPE.batch}, epochs=2, seed=3)\n"
        "folder, output = Path(sys.argv[1]), Path(sys.argv[2])\n"
        "train_vocabulary(Wish(folder, output, backbone='toy', recipe=recipe))\n"
    )
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
    ]
    launch += [str(script), str(wish.folder), str(tmp_path / "two.vocab")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(launch, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    two = Vocabulary.load(tmp_path / "two.vocab")
    assert two.report["training"]["processes"] == 2

    def losses(path: Path) -> list[float]:
        lines = (path / "training.jsonl").read_text().splitlines()
        return [json.loads(line)["fvu"] for line in lines]

    np.testing.assert_allclose(losses(tmp_path / "two.vocab"), losses(wish.output), rtol=1e-3)
    assert one.n_words == two.n_words


def test_the_command_trains(pictures: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bm25v.cli", "train", str(pictures), "-o", "own.vocab"]
    command += ["--backbone", "toy", "--expansion", "4", "--k", "4", "--batch", "128", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "40 pictures" in done.stderr
    printed = json.loads(done.stdout)
    assert printed["fingerprint"] == Vocabulary.load(tmp_path / "own.vocab").fingerprint
    assert printed["recipe"]["expansion"] == 4


def test_streaming_keeps_nothing_and_learns_the_same(wish: Wish, tmp_path: Path) -> None:
    whole = train_vocabulary(wish)
    seen: list[int] = []
    streamed = train_vocabulary(
        replace(wish, output=tmp_path / "streamed.vocab", stream=True),
        Listener(on_step=lambda figures, _: seen.append(len(list(tmp_path.rglob("*.f16"))))),
    )
    assert set(seen) == {0}
    assert streamed.report["data"]["patches"] == whole.report["data"]["patches"]
    assert streamed.report["training"]["fvu"] == pytest.approx(
        whole.report["training"]["fvu"], rel=0.2
    )
