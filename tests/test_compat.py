"""Galleries and vocabularies of every format ever written stay readable."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary
from tests.conftest import picture

COMPAT = Path(__file__).parent / "compat"


@pytest.mark.parametrize("golden", sorted(COMPAT.glob("gallery-*.json")), ids=lambda p: p.stem)
def test_a_gallery_of_an_old_format_gives_its_old_results(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden.with_suffix(""), tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.problems() == []
    hits = gallery.search(np.asarray(picture(1)), mode="sparse").to_json()["hits"]
    expected = json.loads(golden.read_text())
    assert [hit["path"] for hit in hits] == [hit["path"] for hit in expected]
    for hit, old in zip(hits, expected, strict=True):
        assert hit["sparse"] == pytest.approx(old["sparse"], abs=1e-5)
        assert [w["word"] for w in hit["words"]] == [w["word"] for w in old["words"]]


@pytest.mark.parametrize("folder", sorted(COMPAT.glob("vocabulary-*")), ids=lambda p: p.name)
def test_a_vocabulary_of_an_old_format_is_read(folder: Path) -> None:
    assert Vocabulary.load(folder).fingerprint == Vocabulary.load("toy").fingerprint


def test_there_are_golden_files() -> None:
    assert {path.name for path in COMPAT.glob("*-1")} == {"gallery-1", "vocabulary-1"}
