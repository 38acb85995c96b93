"""Galleries and vocabularies of every released format stay readable: see `tests/compat`."""

import json
import shutil
from pathlib import Path

import pytest

from bm25v.gallery import Gallery
from bm25v.store.local import catalog
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import folder as vocabulary_format
from tests.compat.make import SUFFIXES
from tests.conftest import make_pixels

COMPAT = Path(__file__).parent / "compat"
GALLERIES = sorted(COMPAT.glob("gallery-?"))


def test_there_are_golden_files_of_every_format() -> None:
    latest = {"gallery": catalog.FORMAT, "vocabulary": vocabulary_format.FORMAT}
    expected = {f"{kind}-{n}" for kind, last in latest.items() for n in range(1, last + 1)}
    assert {path.name for path in COMPAT.glob("*-?")} == expected


@pytest.mark.parametrize("golden", GALLERIES, ids=lambda path: path.name)
def test_a_golden_gallery_has_its_images_and_hits(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.problems() == []
        assert sorted(image.path for image in gallery) == [f"/photos/{n}.png" for n in (0, 1, 2, 4)]
        assert gallery.info().removed_rows == 1
        for suffix, mode in SUFFIXES.items():
            hits = gallery.search(make_pixels(1), mode=mode).to_dict()["hits"]
            expected = json.loads(golden.with_name(f"{golden.name}{suffix}").read_text())
            assert len(hits) > 1
            assert [hit["path"] for hit in hits] == [hit["path"] for hit in expected]
            for hit, expected_hit in zip(hits, expected, strict=True):
                assert hit["sparse"] == pytest.approx(expected_hit["sparse"], abs=1e-5)
                words = [word["word"] for word in hit["words"]]
                assert words == [word["word"] for word in expected_hit["words"]]


@pytest.mark.parametrize("golden", GALLERIES, ids=lambda path: path.name)
def test_a_golden_gallery_can_be_written_to(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.add({"new": make_pixels(7)}).added == 1
        assert gallery.remove("/photos/2.png") == 1
        assert gallery.compact() > 0
        names = sorted(image.path for image in gallery)
        assert names == [*(f"/photos/{n}.png" for n in (0, 1, 4)), "new"]
        assert gallery.problems() == []


@pytest.mark.parametrize("folder", sorted(COMPAT.glob("vocabulary-?")), ids=lambda p: p.name)
def test_a_golden_vocabulary_has_its_fingerprint(folder: Path) -> None:
    assert Vocabulary.load(folder).fingerprint == Vocabulary.load("toy").fingerprint
