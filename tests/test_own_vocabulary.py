"""`bm25v index --backbone`: a vocabulary is learned first, then the images are indexed."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("torch")

from bm25v import backbones
from bm25v.backbones import huggingface, load_backbone
from bm25v.backbones.checkpoint import is_model
from bm25v.cli.gallery import index as command
from bm25v.errors import (
    Bm25vError,
    GalleryError,
    InvalidOption,
    ModelUnavailable,
    UnknownBackbone,
    VocabularyError,
)
from bm25v.gallery import Gallery
from bm25v.training import first_vocabulary
from bm25v.training.trainer import Trainer


def index(images: Path, gallery: Path, *options: str) -> Result:
    return CliRunner().invoke(command, [str(images), "-g", str(gallery), "--json", *options])


def report(done: Result) -> dict[str, Any]:
    if done.exception is not None:
        raise done.exception
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def first_hit(gallery: Path, image: Path) -> str:
    with Gallery.open(gallery) as opened:
        return opened.search(image, include_query=True)[0].path


def test_a_vocabulary_is_learned_then_the_images_are_indexed(
    training_images: Path, tmp_path: Path
) -> None:
    gallery, vocabulary = tmp_path / "mine.bm25v", tmp_path / "mine.bm25v.vocabulary"
    (training_images / "torn.png").write_bytes(b"not an image")
    done = index(training_images, gallery, "--backbone", "toy")
    assert report(done)["added"] == 40
    (line,) = [line for line in done.stderr.splitlines() if "learned" in line]
    assert line.startswith("first, a vocabulary for toy is learned from 41 images: ")
    assert "left out" not in done.stderr  # the report of the index has it
    image = training_images / "7.png"
    assert first_hit(gallery, image) == str(image)
    with Gallery.open(gallery) as opened:
        assert opened.vocabulary.folder == vocabulary
        assert opened.vocabulary.n_words == 16 * opened.vocabulary.backbone.patch_dim
    assert not vocabulary.with_name("mine.bm25v.vocabulary.work").exists()

    before = contents(vocabulary)
    for options in (("--backbone", "toy"), ()):
        again = index(training_images, gallery, *options)
        assert (report(again)["added"], report(again)["unchanged"]) == (0, 40)
        assert "learned" not in again.stderr
    assert contents(vocabulary) == before


def test_a_folder_that_is_indexed_from_inside_has_the_gallery_and_its_vocabulary(
    training_images: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(training_images)
    paths, gallery = [".", "3.png"], Path("gallery.bm25v")
    done = CliRunner().invoke(command, [*paths, "--json", "--backbone", "toy", "--exclude", "1?.*"])
    assert report(done)["added"] == 30
    assert "learned from 30 images: " in done.stderr
    again = CliRunner().invoke(command, [*paths, "--json", "--exclude", "1?.*"])
    assert (report(again)["added"], report(again)["unchanged"]) == (0, 30)
    assert report(again)["failed"] == []
    assert first_hit(gallery, Path("3.png")) == str(training_images / "3.png")


def test_ctrl_c_in_the_training_is_continued_by_the_same_command(
    training_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, mine = tmp_path / "whole.bm25v", tmp_path / "mine.bm25v"
    report(index(training_images, whole, "--backbone", "toy"))
    train_step, n_steps = Trainer.step, 0

    def press(self: Trainer, *batch: Any) -> Any:
        nonlocal n_steps
        n_steps += 1
        if n_steps == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return train_step(self, *batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", press)
        done = CliRunner().invoke(
            command,
            [str(training_images), "-g", str(mine), "--backbone", "toy"],
            standalone_mode=False,
        )
        cause = done.exception.__cause__ if done.exception else None
        assert "run the same command again to continue" in str(cause or done.exception)
        assert not mine.exists()
        report(index(training_images, mine, "--backbone", "toy"))
    assert n_steps == 5  # one for each epoch: none was repeated
    with Gallery.open(whole) as expected, Gallery.open(mine) as continued:
        assert continued.vocabulary.fingerprint == expected.vocabulary.fingerprint


def test_a_finished_vocabulary_is_used_and_not_learned_again(
    training_images: Path, tmp_path: Path
) -> None:
    gallery = tmp_path / "mine.bm25v"
    report(index(training_images, gallery, "--backbone", "toy"))
    before = contents(tmp_path / "mine.bm25v.vocabulary")
    shutil.rmtree(gallery)
    done = index(training_images, gallery, "--backbone", "toy")
    assert report(done)["added"] == 40
    assert "which was learned before" in done.stderr
    assert contents(tmp_path / "mine.bm25v.vocabulary") == before
    shutil.rmtree(gallery)
    done = index(training_images, gallery, "--backbone", "mobilenet-v2")
    assert isinstance(done.exception, VocabularyError)
    assert "is a vocabulary of toy, not of mobilenet-v2: give another" in str(done.exception)


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        (["--backbone", "toy", "--vocabulary", "toy"], InvalidOption, "give one of them"),
        (["--backbone", "resnet"], UnknownBackbone, "no backbone 'resnet'; known are: .*clip-b32"),
        (["--backbone", "toy", "--exclude", "*.png"], InvalidOption, "no images left"),
        (
            ["--backbone", "toy", "--exclude", "??.*"],
            InvalidOption,
            "10 images are too few .* least 20",
        ),
        (
            ["--backbone", "tinyvit-5m"],
            InvalidOption,
            "40 images are too few .* at least 110, or leave",
        ),
        (["--backbone", "toy", "--k1", "-1"], InvalidOption, "k1 = -1"),
        (["--backbone", "toy", "--dense", "resnet"], UnknownBackbone, "dense vectors of 'resnet'"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(
    training_images: Path,
    tmp_path: Path,
    options: list[str],
    kind: type[Bm25vError],
    problem: str,
) -> None:
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(kind, match=problem) as refused:
        report(index(training_images, tmp_path / "mine.bm25v", *options))
    assert "\n" not in str(refused.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_gallery_of_another_backbone_and_another_folder_are_refused(
    make_gallery: Callable[[str], Gallery], training_images: Path, tmp_path: Path
) -> None:
    gallery = make_gallery("gallery.bm25v")
    with pytest.raises(
        InvalidOption, match="with the backbone toy, not with mobilenet-v2: leave out"
    ):
        report(index(training_images, gallery.path, "--backbone", "mobilenet-v2"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(GalleryError, match="already exists"):
        report(index(training_images, tmp_path / "other", "--backbone", "toy"))
    assert not (tmp_path / "other.vocabulary").exists()


def test_the_sample_is_limited_and_always_the_same() -> None:
    paths, toy = [f"{n:05}.jpg" for n in range(9_000)], load_backbone("toy")
    sample = first_vocabulary.sample_images(paths, toy)
    assert len(set(sample)) == first_vocabulary.MOST_IMAGES == 4_000
    assert list(sample) == sorted(sample)
    assert sample == first_vocabulary.sample_images(paths, toy)
    assert sample[-1] > Path("08900.jpg")  # not only the first ones
    assert [*first_vocabulary.sample_images(paths[:30], toy)] == [*map(Path, paths[:30])]


def test_a_hugging_face_model_needs_one_command(training_images: Path, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.test_huggingface import make

    _, model = make("clip", tmp_path / "clip")
    gallery, image = tmp_path / "clip.bm25v", training_images / "5.png"
    assert report(index(training_images, gallery, "--backbone", str(model)))["added"] == 40
    assert first_hit(gallery, image) == str(image)
    again = report(index(training_images, gallery, "--backbone", str(model)))
    assert (again["added"], again["unchanged"]) == (0, 40)


def test_short_names_stand_for_models_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(
        huggingface, "HuggingFaceBackbone", lambda name, **options: loaded.append(name)
    )
    for name, full_name in backbones.HUB_NAMES.items():
        assert is_model(full_name)
        assert not is_model(name)
        assert name not in backbones.backbone_names()
        assert backbones.has_device(name)
        load_backbone(name)
        load_backbone(f"{name}#3")
        assert loaded[-2:] == [full_name, f"{full_name}#3"]


def test_without_a_network_the_model_is_unavailable(
    training_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError

    monkeypatch.setattr(hub, "snapshot_download", fail)
    with pytest.raises(ModelUnavailable, match=r"google/siglip2-base-patch16-224 is not on this"):
        report(index(training_images, tmp_path / "mine.bm25v", "--backbone", "siglip2-base"))
    assert [path.name for path in tmp_path.iterdir()] == ["training"]
