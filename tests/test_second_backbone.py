"""Galleries whose dense vectors come from two backbones: `--dense`."""

import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.backbones import load_backbone
from bm25v.errors import InvalidOption, ModelUnavailable, UnknownBackbone, VocabularyMismatch
from bm25v.gallery import Gallery
from bm25v.search.scoring import Mode
from bm25v.store.local.catalog import FILE_NAME
from bm25v.vocabulary import Vocabulary
from tests.conftest import encode, make_pixels

SECOND = "mobilenet-v2"
WIDTH = 12  # of the toy backbone's vector


@pytest.fixture
def paired(photos: Path, tmp_path: Path) -> Gallery:
    """A gallery of the twelve images, with dense vectors of two backbones."""
    gallery = Gallery.create(tmp_path / "paired", vocabulary="toy", dense=SECOND)
    gallery.add(photos)
    return gallery


def unit_vector(backbone: str, seed: int) -> NDArray[np.float32]:
    loaded = load_backbone(backbone)
    dense_e = loaded.forward(loaded.prepare_image(make_pixels(seed))).dense_e
    return np.asarray(dense_e / np.linalg.norm(dense_e), np.float32)


def test_cosines_are_the_mean_of_both_backbones(paired: Gallery) -> None:
    hits = paired.search(make_pixels(3), mode="dense", k=99)
    assert len(hits) == 12
    for hit in hits:
        seed = int(Path(hit.path).stem)
        cosines = [unit_vector(name, 3) @ unit_vector(name, seed) for name in ("toy", SECOND)]
        assert hit.dense == pytest.approx(np.mean(cosines), abs=2e-3)  # rows are float16


def test_the_words_are_those_of_a_gallery_without(paired: Gallery, gallery: Gallery) -> None:
    assert paired.vocabulary.fingerprint == gallery.vocabulary.fingerprint
    modes: tuple[Mode, ...] = ("words", "sparse")
    for mode in modes:
        hits, expected = (
            [(hit.path, hit.score) for hit in g.search(make_pixels(3), mode=mode, k=99)]
            for g in (paired, gallery)
        )
        assert hits == expected


@pytest.mark.parametrize("liked", [False, True])
def test_a_region_is_compared_by_the_first_backbone_alone(
    liked: bool, paired: Gallery, gallery: Gallery, photos: Path
) -> None:
    options: Any = {"region": (0, 0, 0.5, 0.5), "like": str(photos / "5.png") if liked else ()}
    pair = encode(paired, make_pixels(3), **options)
    plain = encode(gallery, make_pixels(3), **options)
    assert pair.dense_e is not None
    assert plain.dense_e is not None
    assert len(pair.dense_e) == WIDTH
    np.testing.assert_allclose(pair.dense_e, plain.dense_e, atol=1e-3)
    modes: tuple[Mode, ...] = ("dense", "hybrid")
    for mode in modes:
        hits, expected = (
            {hit.path: hit.dense for hit in g.search(make_pixels(3), mode=mode, k=99, **options)}
            for g in (paired, gallery)
        )
        assert hits == pytest.approx(expected, abs=2e-3)


def test_it_is_restored_with_the_gallery(paired: Gallery, photos: Path) -> None:
    expected = [(hit.path, hit.score) for hit in paired.search(make_pixels(3))]
    paired.close()
    with Gallery.open(paired.path) as opened:
        assert [(hit.path, hit.score) for hit in opened.search(make_pixels(3))] == expected
        assert opened.problems() == []
        assert opened.info().backbone == f"toy+{SECOND}"
        assert opened.info().dense_bytes_per_image == 2 * (WIDTH + 1280)
        (photos / "0.png").unlink()
        assert opened.add(photos, remove_missing=True).removed == 1
        assert opened.compact() > 0
        assert opened.problems() == []
    assert len(Gallery.open_or_create(paired.path, dense=SECOND)) == 11


def test_an_existing_gallery_keeps_its_backbones(paired: Gallery, gallery: Gallery) -> None:
    with pytest.raises(
        InvalidOption, match=r"has dense vectors of toy\+mobilenet-v2, not of toy: a second"
    ):
        Gallery.open_or_create(paired.path, dense="toy")
    with pytest.raises(
        InvalidOption, match=r"has dense vectors of toy, not of mobilenet-v2: a second"
    ):
        Gallery.open_or_create(gallery.path, dense=SECOND)


def test_only_built_in_backbones_can_be_second(tmp_path: Path) -> None:
    with pytest.raises(UnknownBackbone, match="'resnet': choose a built-in backbone, tinyvit-5m"):
        Gallery.create(tmp_path / "g", vocabulary="toy", dense="resnet")
    assert not (tmp_path / "g").exists()


def test_a_second_backbone_that_is_not_here_is_one_clear_line(
    paired: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BM25V_MODELS", str(tmp_path / "empty"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with Gallery.open(paired.path) as opened:
        assert opened.info().n_images == 12
        with pytest.raises(ModelUnavailable, match=r"mobilenet-v2.onnx is not in .*/empty"):
            opened.search(make_pixels(3))


def test_another_model_of_the_same_name_is_refused(paired: Gallery, tmp_path: Path) -> None:
    paired.close()
    shutil.copytree(paired.path, tmp_path / "other")
    with sqlite3.connect(tmp_path / "other" / FILE_NAME) as db:
        db.execute("UPDATE meta SET value = 'abc' WHERE key = 'backbone_fingerprint'")
    db.close()
    with pytest.raises(
        VocabularyMismatch, match=r"of another toy\+mobilenet-v2 \(abc\) than this bm25v"
    ):
        Gallery.open(tmp_path / "other").search(make_pixels(3))


def test_a_pair_is_a_backbone_with_a_name(paired: Gallery) -> None:
    loaded, own = load_backbone(f"toy+{SECOND}"), paired.vocabulary.backbone
    assert (loaded.name, loaded.fingerprint) == (own.name, own.fingerprint)
    assert (loaded.grid, loaded.patch_dim, loaded.dense_dim) == ((7, 7), 12, WIDTH + 1280)
    pixels = loaded.prepare_image(make_pixels(3))
    (one, two) = loaded.forward(pixels), own.forward(pixels)
    np.testing.assert_array_equal(one.dense_e, two.dense_e)
    np.testing.assert_array_equal(one.patches_pd, two.patches_pd)
    halves = (unit_vector("toy", 3), unit_vector(SECOND, 3))
    np.testing.assert_array_equal(one.dense_e, np.concatenate(halves))


def test_features_of_a_pair_have_a_fingerprint_of_their_own() -> None:
    toy = Vocabulary.load("toy")
    pair = toy.with_dense(SECOND)
    assert pair.features_fingerprint == pair.backbone.fingerprint != toy.features_fingerprint
    assert toy.features_fingerprint == toy.backbone.fingerprint
