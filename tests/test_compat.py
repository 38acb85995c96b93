"""Galleries and vocabularies of every format ever written stay readable."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from bm25v.api import Gallery
from bm25v.gallery import catalog
from bm25v.gallery.writer import FileState, Writer
from bm25v.vocabulary import Vocabulary
from tests.conftest import make_image

COMPAT = Path(__file__).parent / "compat"


@pytest.mark.parametrize("golden", sorted(COMPAT.glob("gallery-*.json")), ids=lambda p: p.stem)
def test_a_gallery_of_an_old_format_gives_its_old_results(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden.with_suffix(""), tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.problems() == []
    hits = gallery.search(np.asarray(make_image(1)), mode="sparse").to_dict()["hits"]
    expected = json.loads(golden.read_text())
    assert [hit["path"] for hit in hits] == [hit["path"] for hit in expected]
    for hit, old in zip(hits, expected, strict=True):
        assert hit["sparse"] == pytest.approx(old["sparse"], abs=1e-5)
        assert [w["word"] for w in hit["words"]] == [w["word"] for w in old["words"]]


@pytest.mark.parametrize("folder", sorted(COMPAT.glob("vocabulary-*")), ids=lambda p: p.name)
def test_a_vocabulary_of_an_old_format_is_read(folder: Path) -> None:
    assert Vocabulary.load(folder).fingerprint == Vocabulary.load("toy").fingerprint


def test_there_are_golden_files() -> None:
    assert {path.name for path in COMPAT.glob("*-?")} == {
        "gallery-1",
        "gallery-2",
        "gallery-3",
        "vocabulary-1",
    }


def put_another(folder: Path, seed: int = 7) -> None:
    encoding = Vocabulary.load("toy").encode(np.asarray(make_image(seed)))
    with Writer(folder) as writer:
        file = FileState(f"/photos/{seed}.png", bytes([seed] * 16), seed, seed)
        writer.put(file, encoding.bag, encoding.dense_e)
        writer.commit()


def remove_one(folder: Path) -> None:
    with Gallery.open(folder) as gallery:
        assert gallery.remove("/photos/2.png") == 1


def return_one(folder: Path) -> None:
    with Writer(folder) as writer:
        removed = writer.catalog.with_content(bytes([3] * 16))
        assert removed is not None
        writer.move(removed.row, FileState("/photos/3.png", bytes([3] * 16), 3, 3))
        writer.commit()


def compact(folder: Path) -> None:
    with Gallery.open(folder) as gallery:
        assert gallery.compact() > 0


CHANGES: list[tuple[Callable[[Path], None], list[int]]] = [
    (put_another, [0, 1, 2, 4, 7]),
    (remove_one, [0, 1, 4]),
    (return_one, [0, 1, 2, 3, 4]),
    (compact, [0, 1, 2, 4]),
]


@pytest.mark.parametrize(("change", "left"), CHANGES)
@pytest.mark.parametrize("golden", sorted(COMPAT.glob("gallery-?")), ids=lambda p: p.name)
def test_a_gallery_of_an_old_format_is_written_on_while_it_is_read(
    golden: Path, change: Callable[[Path], None], left: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "g"
    shutil.copytree(golden, folder)
    reader = Gallery.open(folder)
    old = reader.store.snapshot()
    assert seen(reader) == {f"/photos/{seed}.png" for seed in (0, 1, 2, 4)}
    change(folder)
    assert seen(reader) == {f"/photos/{seed}.png" for seed in left}
    assert len(old.rows) == 4
    put_another(folder, 8)  # it is of the new format now, and followed as such
    assert seen(reader) == {f"/photos/{seed}.png" for seed in {*left, 8}}
    reader.close()
    with sqlite3.connect(folder / catalog.FILE_NAME) as db:
        assert db.execute("SELECT value FROM meta WHERE key = 'format'").fetchone() == (
            catalog.FORMAT,
        )
    db.close()
    with Gallery.open(folder) as gallery:
        assert gallery.problems() == []
        assert seen(gallery) == {f"/photos/{seed}.png" for seed in {*left, 8}}


def seen(gallery: Gallery) -> set[str]:
    return {hit.path for hit in gallery.search(np.asarray(make_image(1)), mode="dense")}
