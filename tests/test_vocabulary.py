"""Vocabularies: saving and loading, fingerprints, names, and errors of damaged folders."""

import json
import os
import subprocess
import sys
import time
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from click.testing import CliRunner

from bm25v import backbones
from bm25v.backbones.toy import ToyBackbone
from bm25v.cli.gallery import index
from bm25v.errors import InvalidOption, UnknownVocabulary, VocabularyError
from bm25v.files import replace_file
from bm25v.gallery import Gallery
from bm25v.sae.model import SparseAutoEncoder
from bm25v.vocabulary.vocabulary import Vocabulary, shipped_names
from tests.conftest import make_image, make_pixels


def test_a_loaded_vocabulary_equals_the_saved_one(tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    report = {"n_images": 7, "note": "made by a test"}
    saved = Vocabulary.build("mine", backbone=toy.backbone, sae=toy.sae, report=report)
    saved.save(tmp_path / "mine.vocab")
    loaded = Vocabulary.load(tmp_path / "mine.vocab")
    assert (loaded.name, loaded.k_post, loaded.report) == ("mine", 16, report)
    assert loaded.fingerprint == saved.fingerprint == toy.fingerprint
    expected, bag = saved.bag(make_pixels(4)), loaded.bag(make_pixels(4))
    assert bag.words.tolist() == expected.words.tolist()
    assert bag.tf.tolist() == expected.tf.tolist()


def test_an_image_has_the_same_encoding_alone_and_in_a_batch() -> None:
    vocabulary = Vocabulary.load()
    images = [np.asarray(make_image(seed, side=230)) for seed in range(5)]
    features = [vocabulary.backbone.forward(vocabulary.prepare(image)) for image in images]
    for image, in_batch in zip(images, vocabulary.encode_features(features), strict=True):
        alone = vocabulary.encode(image)
        assert [part.tobytes() for part in alone.bag] == [part.tobytes() for part in in_batch.bag]
        assert [c.tobytes() for c in alone.codes] == [c.tobytes() for c in in_batch.codes]


def test_a_failed_save_leaves_no_vocabulary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Vocabulary.load("toy")
    other = Vocabulary.build("other", backbone=toy.backbone, sae=toy.sae, k_post=3)
    other = replace(other, word_names={3: "sky"})
    for n_written_before in range(3):
        toy.save(tmp_path / "v")
        written = 0

        def fail(path: Path, content: bytes | str, n_before: int = n_written_before) -> None:
            nonlocal written
            if written == n_before:
                raise OSError(28, "No space left on device")
            written += 1
            replace_file(path, content)

        monkeypatch.setattr("bm25v.vocabulary.folder.replace_file", fail)
        with pytest.raises(OSError, match="No space left"):
            other.save(tmp_path / "v")
        monkeypatch.undo()
        with pytest.raises(UnknownVocabulary):
            Vocabulary.load(tmp_path / "v")
    other.save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v").k_post == 3


def test_a_vocabulary_replaced_while_it_is_read_raises_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Vocabulary.load("toy")
    toy.save(tmp_path / "v")
    open_file = safetensors.safe_open

    def replace_then_open(path: Path, framework: str) -> Any:
        replace(toy, k_post=3).save(tmp_path / "v")
        return open_file(path, framework=framework)

    monkeypatch.setattr(safetensors, "safe_open", replace_then_open)
    with pytest.raises(VocabularyError, match="was replaced while it was read"):
        Vocabulary.load(tmp_path / "v")


def test_the_fingerprint_depends_on_everything_that_changes_a_bag() -> None:
    toy = Vocabulary.load("toy")
    fewer = Vocabulary.build("toy", backbone=toy.backbone, sae=toy.sae, k_post=8)
    other = SparseAutoEncoder(
        toy.sae.w_enc_dv * 2, toy.sae.b_enc_v, toy.sae.w_dec_vd, toy.sae.b_dec_d, toy.sae.k
    )
    changed = Vocabulary.build("toy", backbone=toy.backbone, sae=other)
    assert len({toy.fingerprint, fewer.fingerprint, changed.fingerprint}) == 3


def test_the_error_for_an_unknown_name_lists_the_shipped_vocabularies() -> None:
    with pytest.raises(UnknownVocabulary, match=r"'birds'.* or one of: default, toy"):
        Vocabulary.load("birds")


def test_only_exact_names_load_shipped_vocabularies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Vocabulary.load("toy").save(tmp_path / "default")
    monkeypatch.chdir(tmp_path / "default")
    assert Vocabulary.load(".").source == str(tmp_path / "default")
    assert Vocabulary.load("../default").folder == tmp_path / "default"
    for path in ("../shipped/default", "default/", Path("default"), "toy/"):
        with pytest.raises(UnknownVocabulary):
            Vocabulary.load(path)
    assert Vocabulary.load("default").source == "default"


def test_a_vocabulary_is_found_by_every_way_to_write_its_path(
    tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "toy"  # has the name of a shipped one
    Vocabulary.load("toy").save(folder)
    (folder / "inside").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    given: dict[Path, list[str | Path]] = {
        folder: [".", "./", "./.", "../toy", "../toy/", "~/toy", "~/toy/", str(folder), folder],
        folder / "inside": ["..", "../", "../."],
        tmp_path: ["./toy", "toy/", "toy/.", Path("toy")],
    }
    for here, names in given.items():
        monkeypatch.chdir(here)
        for number, name in enumerate(names):
            assert Vocabulary.load(name).source == str(folder)
            arguments = [str(photos), "-g", str(tmp_path / f"{here.name} {number}")]
            done = CliRunner().invoke(index, [*arguments, "--vocabulary", str(name)])
            assert done.exit_code == 0, done.output
    assert Vocabulary.load("toy").source == "toy"
    for name in ("~nobody-has-this-name/toy", "toy/vocabulary.json", "x" * 5000, "a\0b"):
        with pytest.raises(UnknownVocabulary, match=r"give a folder with a vocabulary\.json"):
            Vocabulary.load(name)
    monkeypatch.chdir(folder)
    with pytest.raises(InvalidOption, match="an empty name of a vocabulary"):
        Vocabulary.load("")


def test_concurrent_threads_load_one_backbone(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[backbones.Backbone] = []

    def load_slowly(name: str, **options: object) -> backbones.Backbone:
        time.sleep(0.05)
        loaded.append(ToyBackbone())
        return loaded[-1]

    vocabulary = Vocabulary.load("toy")
    monkeypatch.setattr(backbones, "load_backbone", load_slowly)
    with ThreadPoolExecutor(4) as pool:
        used = list(pool.map(lambda _: vocabulary.backbone, range(4)))
    assert len(loaded) == 1
    assert all(backbone is loaded[0] for backbone in used)


def test_damaged_and_newer_folders_raise_vocabulary_error(tmp_path: Path) -> None:
    Vocabulary.load("toy").save(tmp_path / "v")
    settings_path = tmp_path / "v" / "vocabulary.json"
    settings = json.loads(settings_path.read_text())
    settings_path.write_text(json.dumps({**settings, "format": 99}))
    with pytest.raises(VocabularyError, match=r"format 99.*upgrade bm25v"):
        Vocabulary.load(tmp_path / "v")
    settings_path.write_text("{")
    with pytest.raises(VocabularyError, match=r"vocabulary\.json: it is not JSON .* again"):
        Vocabulary.load(tmp_path / "v")
    settings_path.write_text(json.dumps(settings))
    (tmp_path / "v" / "sae.safetensors").write_bytes(b"torn")
    with pytest.raises(VocabularyError, match=r"sae\.safetensors: it cannot be read .* again"):
        Vocabulary.load(tmp_path / "v")


def test_a_changed_backbone_raises_vocabulary_error(tmp_path: Path) -> None:
    Vocabulary.load("toy").save(tmp_path / "v")
    settings_path = tmp_path / "v" / "vocabulary.json"
    settings = json.loads(settings_path.read_text())
    settings["backbone"]["fingerprint"] = "toy-0"
    settings_path.write_text(json.dumps(settings))
    with pytest.raises(VocabularyError, match="trained on another toy"):
        Vocabulary.load(tmp_path / "v").bag(make_pixels(0))


def test_an_array_of_another_shape_or_type_raises_an_error() -> None:
    toy = Vocabulary.load("toy")
    shapes = [(8,), (8, 8, 2), (0, 8, 3)]
    arrays: list[Any] = [np.zeros(shape, np.uint8) for shape in shapes]
    for array in (np.zeros((8, 8), np.int64), *arrays):
        with pytest.raises(InvalidOption, match="is not an image: give"):
            toy.encode(array)


def test_an_sae_of_another_width_raises_vocabulary_error() -> None:
    with pytest.raises(VocabularyError, match="have 320 values, those of the SAE 12"):
        Vocabulary.build(
            "wrong", backbone=backbones.load_backbone("tinyvit-5m"), sae=Vocabulary.load("toy").sae
        )


def test_the_default_vocabulary_encodes_an_image_as_sixteen_words() -> None:
    assert shipped_names() == ["default", "toy"]
    default = Vocabulary.load()
    assert (default.backbone_name, default.sae.k, default.k_post) == ("tinyvit-5m", 24, 16)
    assert default.n_words == 32 * default.backbone.patch_dim
    assert default.report["data"]
    image = np.asarray(make_image(3, side=300))
    encoding = default.encode(image)
    assert len(encoding.bag.words) == 16
    assert encoding.full_bag is not None
    assert set(encoding.bag.words) < set(encoding.full_bag.words)
    assert not set(default.stop_words) & set(encoding.full_bag.words)
    assert np.linalg.norm(encoding.dense_e) == pytest.approx(1, abs=1e-5)
    assert default.encode(image).bag.tf.tolist() == encoding.bag.tf.tolist()


def test_a_vocabulary_is_loaded_from_the_cache_of_the_hub(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repository = tmp_path / "hub" / "models--somebody--words"
    Vocabulary.load("toy").save(repository / "snapshots" / "abc123")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    environment = {**os.environ, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    code = (
        "import sys, bm25v; v = bm25v.Vocabulary.load(sys.argv[1]); print(v.source, v.fingerprint)"
    )

    def load(name: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-c", code, name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    fingerprint = Vocabulary.load("toy").fingerprint
    assert load("hf://somebody/words").stdout.split() == ["hf://somebody/words", fingerprint]
    for absent in ("hf://nobody/words", "hf://not a name"):
        error = load(absent).stderr.splitlines()[-1]
        assert f"UnknownVocabulary: {absent} cannot be downloaded" in error
        assert "give a local folder" in error


def test_a_failed_download_without_a_message_names_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def snapshot_download(*_: object, **__: object) -> str:
        raise TimeoutError

    hub = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    with pytest.raises(UnknownVocabulary, match=r"cannot be downloaded \(TimeoutError\)"):
        Vocabulary.load("hf://somebody/words")


def test_stop_words_enter_no_bag_and_change_the_fingerprint(tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    image = make_pixels(3)
    stop_words = toy.encode(image).bag.words[:3].tolist()
    without = Vocabulary.build(
        "without", backbone=toy.backbone, sae=toy.sae, stop_words=stop_words[::-1]
    )
    assert without.fingerprint != toy.fingerprint
    encoding = without.encode(image)
    assert encoding.full_bag is not None
    assert not {*stop_words} & {*encoding.bag.words, *encoding.full_bag.words}
    assert {*encoding.bag.words} > {*toy.encode(image).bag.words} - {*stop_words}
    without.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert loaded.stop_words == tuple(sorted(stop_words))
    assert loaded.fingerprint == without.fingerprint
    for wrong in ([192], [-1]):
        with pytest.raises(InvalidOption, match="stop_words"):
            Vocabulary.build("wrong", backbone=toy.backbone, sae=toy.sae, stop_words=wrong)


def test_full_bags_are_a_setting_that_does_not_change_the_fingerprint(tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    for k_full, expected in ((None, 256), (20, 20), (3, 16)):
        vocabulary = Vocabulary.build("v", backbone=toy.backbone, sae=toy.sae, k_full=k_full)
        vocabulary.save(tmp_path / "v")
        loaded = Vocabulary.load(tmp_path / "v")
        assert (loaded.k_full, loaded.full_bag_words) == (k_full, expected)
        assert loaded.fingerprint == toy.fingerprint
        full_bag = loaded.encode(make_pixels(3)).full_bag
        assert 0 < len(full_bag.words) <= expected
        path = tmp_path / f"g{expected}"
        with Gallery.create(path, vocabulary=tmp_path / "v") as gallery:
            gallery.add({"a": make_pixels(3), "b": make_pixels(4)})
            assert gallery.search(make_pixels(5)).mode == "hybrid"
            assert gallery.problems() == []
