"""Galleries and vocabularies of every format ever written stay readable."""

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from bm25v.api import Gallery
from bm25v.gallery import catalog_schema
from bm25v.gallery.file_state import FileState
from bm25v.gallery.writer import Writer
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary import folder as vocabulary_format
from tests.compat.make import SUFFIXES
from tests.conftest import make_pixels

COMPAT = Path(__file__).parent / "compat"
GALLERIES = sorted(COMPAT.glob("gallery-?"))


def test_there_are_golden_files_of_every_format() -> None:
    latest = {"gallery": catalog_schema.FORMAT, "vocabulary": vocabulary_format.FORMAT}
    expected = {f"{kind}-{n}" for kind, last in latest.items() for n in range(1, last + 1)}
    assert {path.name for path in COMPAT.glob("*-?")} == expected


@pytest.mark.parametrize("golden", GALLERIES, ids=lambda path: path.name)
def test_a_gallery_of_an_old_format_returns_its_old_results(golden: Path, tmp_path: Path) -> None:
    shutil.copytree(golden, tmp_path / "g")
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.problems() == []
    has_full_bags = gallery.info().has_full_bags
    assert has_full_bags == (int(golden.name[-1]) >= 5)
    for suffix, mode in SUFFIXES.items():
        if mode == "words" and not has_full_bags:
            continue
        hits = gallery.search(make_pixels(1), mode=mode).to_dict()["hits"]
        expected = json.loads(golden.with_name(f"{golden.name}{suffix}").read_text())
        assert [hit["path"] for hit in hits] == [hit["path"] for hit in expected]
        for hit, expected_hit in zip(hits, expected, strict=True):
            assert hit["sparse"] == pytest.approx(expected_hit["sparse"], abs=1e-5)
            assert [w["word"] for w in hit["words"]] == [w["word"] for w in expected_hit["words"]]


@pytest.mark.parametrize("folder", sorted(COMPAT.glob("vocabulary-*")), ids=lambda p: p.name)
def test_a_vocabulary_of_an_old_format_is_read(folder: Path) -> None:
    assert Vocabulary.load(folder).fingerprint == Vocabulary.load("toy").fingerprint


def put_image(folder: Path, seed: int = 7) -> None:
    encoding = Vocabulary.load("toy").encode(make_pixels(seed))
    with Writer(folder) as writer:
        file = FileState(f"/photos/{seed}.png", bytes([seed] * 16), seed, seed)
        writer.put(file, encoding)
        writer.commit()


def remove_image(folder: Path) -> None:
    with Gallery.open(folder) as gallery:
        assert gallery.remove("/photos/2.png") == 1


def restore_image(folder: Path) -> None:
    with Writer(folder) as writer:
        removed = writer.catalog.with_content(bytes([3] * 16))
        assert removed is not None
        writer.move(removed.row, FileState("/photos/3.png", bytes([3] * 16), 3, 3))
        writer.commit()


def compact(folder: Path) -> None:
    with Gallery.open(folder) as gallery:
        assert gallery.compact() > 0


CHANGES: list[tuple[Callable[[Path], None], list[int]]] = [
    (put_image, [0, 1, 2, 4, 7]),
    (remove_image, [0, 1, 4]),
    (restore_image, [0, 1, 2, 3, 4]),
    (compact, [0, 1, 2, 4]),
]


@pytest.mark.parametrize(("change", "seeds"), CHANGES)
@pytest.mark.parametrize("golden", GALLERIES, ids=lambda path: path.name)
def test_a_writer_upgrades_a_gallery_of_an_old_format_while_it_is_read(
    golden: Path, change: Callable[[Path], None], seeds: list[int], tmp_path: Path
) -> None:
    folder = tmp_path / "g"
    shutil.copytree(golden, folder)
    assert stored_facts(folder)["format"] == int(golden.name[-1])
    reader = Gallery.open(folder)
    old_snapshot = reader.store.snapshot()
    assert paths_of(reader) == {f"/photos/{seed}.png" for seed in (0, 1, 2, 4)}
    change(folder)
    assert paths_of(reader) == {f"/photos/{seed}.png" for seed in seeds}
    assert len(old_snapshot.rows) == 4
    put_image(folder, 8)  # the reader follows the new format
    assert paths_of(reader) == {f"/photos/{seed}.png" for seed in {*seeds, 8}}
    assert (reader.info().k1, reader.info().b) == (1.5, 0.75)
    reader.close()
    facts = stored_facts(folder)
    assert (facts["format"], facts["k1"], facts["b"]) == (catalog_schema.FORMAT, 1.5, 0.75)
    with Gallery.open(folder) as gallery:
        assert gallery.problems() == []
        assert (gallery.info().k1, gallery.info().b) == (1.5, 0.75)
        assert paths_of(gallery) == {f"/photos/{seed}.png" for seed in {*seeds, 8}}


def stored_facts(folder: Path) -> dict[str, object]:
    with sqlite3.connect(folder / catalog_schema.FILE_NAME) as db:
        facts = dict(db.execute("SELECT key, value FROM meta").fetchall())
    db.close()
    return facts


def paths_of(gallery: Gallery) -> set[str]:
    return {hit.path for hit in gallery.search(make_pixels(1), mode="dense")}
