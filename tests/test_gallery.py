"""A gallery finds its images, keeps its statistics live, and reports damage."""

import errno
import operator
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bm25v.errors import (
    GalleryDamaged,
    GalleryError,
    GalleryNotFound,
    GalleryTooNew,
    ImageNotFound,
    InvalidOption,
    StorageFull,
    VocabularyMismatch,
)
from bm25v.gallery import Gallery
from bm25v.search import Mode, Results
from bm25v.search.scoring import MODES
from bm25v.store.local import catalog, indexing, rows
from bm25v.store.local.snapshot import Snapshot
from bm25v.vocabulary import Vocabulary
from tests.children import needs_fork
from tests.conftest import make_image, make_pixels


def file_names(gallery: Gallery) -> set[str]:
    """Return the file names of all images that a search can find."""
    results = gallery.search(make_pixels(0), k=1000, mode="dense")
    return {Path(hit.path).name for hit in results}


def test_an_image_is_its_own_best_hit_in_every_mode(gallery: Gallery, photos: Path) -> None:
    for mode in MODES:
        hits = gallery.search(photos / "3.png", k=5, mode=mode, include_query=True).hits
        assert Path(hits[0].path) == photos / "3.png"
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert hit.sparse == pytest.approx(sum(w.contribution for w in hit.words), abs=1e-5)


def test_an_image_is_looked_up_without_a_list_of_all_rows(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery.remove(photos / "3.png")
    snapshot = gallery.local.snapshot()
    assert len(snapshot.rows) == snapshot.state.n_rows - 1 > 0

    def list_rows(snapshot: Snapshot) -> None:
        raise AssertionError("all rows were listed")

    monkeypatch.setattr(Snapshot, "rows", property(list_rows))
    found = snapshot.find([str(photos / f"{n}.png") for n in (3, 5)])
    assert list(found) == [str(photos / "5.png")]


def test_two_stage_mode_orders_the_best_images_by_words_by_cosine(
    gallery: Gallery, photos: Path
) -> None:
    sparse = gallery.search(photos / "5.png", k=4, mode="sparse")
    two_stage = gallery.search(photos / "5.png", k=4, candidates=4, mode="two-stage")
    by_cosine = sorted(sparse, key=lambda hit: -(hit.dense or 0))
    assert [hit.path for hit in two_stage] == [hit.path for hit in by_cosine]
    assert all(hit.score == hit.dense for hit in two_stage)


def test_a_sparse_score_is_the_sum_of_the_contributions_to_the_last_bit(
    gallery: Gallery, photos: Path
) -> None:
    for hit in gallery.search(photos / "7.png", mode="sparse", k=12):
        assert hit.score == hit.sparse


def test_removed_images_are_not_found_any_more(gallery: Gallery, photos: Path) -> None:
    reader = Gallery.open(gallery.path)
    assert "3.png" in file_names(reader)
    assert gallery.remove(photos / "3.png") == 1
    assert "3.png" not in file_names(reader) | file_names(gallery)
    assert gallery.remove(photos) == 11
    assert len(gallery) == len(gallery.search(make_pixels(0))) == 0
    assert gallery.remove(photos) == 0


def test_removing_a_folder_keeps_folders_whose_names_start_alike(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for number, name in enumerate(("a", "a b", "ab", "a0")):
        (photos / name).mkdir()
        make_image(100 + number).save(photos / name / "x.png")
    gallery = make_gallery("g")
    gallery.add(photos)
    assert gallery.remove(photos / "a") == 1
    assert len(gallery) == 15


operations = st.lists(
    st.tuples(st.sampled_from(["put", "put", "remove", "move"]), st.integers(0, 5), st.integers()),
    max_size=8,
)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(history=operations)
def test_any_history_equals_a_gallery_built_from_scratch(
    history: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("history")
    photos = folder / "photos"
    photos.mkdir()
    for seed in range(3):
        make_image(seed, side=14).save(photos / f"{seed}.png")
    updated = Gallery.create(folder / "updated", vocabulary="toy")
    updated.add(photos)
    for kind, number, seed in history:
        path = photos / f"{number}.png"
        if kind == "put":
            make_image(abs(seed) % 7, side=14).save(path)
        elif path.exists() and kind == "remove":
            path.unlink()
        elif path.exists() and not (photos / f"{seed % 6}.png").exists():
            path.rename(photos / f"{seed % 6}.png")
        if any(photos.iterdir()):
            updated.add(photos, remove_missing=True)
        else:
            updated.remove(photos)
    scratch = Gallery.create(folder / "scratch", vocabulary="toy")
    if any(photos.iterdir()):
        scratch.add(photos)
    assert updated.problems() == []
    for mode in MODES:
        for seed in range(3):
            results = updated.search(make_pixels(seed), k=9, mode=mode)
            expected = scratch.search(make_pixels(seed), k=9, mode=mode)
            assert values_by_path(results) == values_by_path(expected)


def values_by_path(results: Results) -> dict[str, tuple[object, ...]]:
    return {hit.path: (hit.score, hit.sparse, hit.dense, hit.words) for hit in results}


@pytest.mark.parametrize("mode", MODES)
def test_results_are_the_same_with_and_without_an_index(
    gallery: Gallery, photos: Path, mode: Mode
) -> None:
    """The index was built before the last changes."""
    scanning = Gallery.open(gallery.path)
    gallery.local.snapshot().searcher.build_index()
    gallery.remove(photos / "3.png")
    make_image(77).save(photos / "new.png")
    gallery.add(photos / "new.png")
    for seed in range(20):
        indexed, scanned = (g.search(make_pixels(seed), mode=mode) for g in (gallery, scanning))
        assert gallery.local.snapshot().searcher.has_index
        assert not scanning.local.snapshot().searcher.has_index
        assert indexed.hits == scanned.hits
        assert gallery.match(make_pixels(seed), indexed[0].path).dense == indexed[0].dense


def test_a_reader_keeps_its_snapshot_while_a_writer_writes(gallery: Gallery, photos: Path) -> None:
    before = gallery.local.snapshot()
    gallery.remove(photos / "0.png")
    assert len(before.rows) == 12
    after = gallery.local.snapshot()
    assert len(after.rows) == 11
    assert after.mapped and all(map(operator.is_, after.mapped, before.mapped))  # not mapped again


def test_rows_that_were_not_committed_do_not_exist(gallery: Gallery, photos: Path) -> None:
    bags = gallery.path / "bags.rows"
    size = bags.stat().st_size
    with bags.open("ab") as file:
        file.write(b"left by a killed process")
    assert len(file_names(Gallery.open(gallery.path))) == 12
    make_image(50).save(photos / "new.png")
    gallery.add(photos)
    assert bags.stat().st_size == size + 64
    assert gallery.problems() == []


def test_a_large_row_file_has_room_for_rows_that_a_reader_has_mapped(tmp_path: Path) -> None:
    file = rows.RowFile(tmp_path / "x.rows", np.dtype([("x", "<u4")]))
    file.create()
    with closing(rows.RowWriter(file, 0)) as writer:
        writer.write(0, np.arange(5_001, dtype="<u4").tobytes())
    mapped = file.map(5_001)
    assert len(mapped) == rows.with_room(5_001) == 5_004
    for row in (5_001, 5_002, 5_003):
        with closing(rows.RowWriter(file, row)) as writer:
            writer.write(row, row.to_bytes(4, "little"))
    assert np.array_equal(mapped["x"], np.arange(5_004))
    os.truncate(file.path, rows.HEADER_BYTES + 4 * 5_001)  # as older versions wrote it
    assert len(file.map(5_001)) == 5_001
    sizes = [rows.with_room(n) for n in range(20_000)]
    assert sizes == sorted(sizes)


def test_an_error_of_a_full_disk_says_so_and_nothing_is_lost(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_image(50).save(photos / "new.png")

    def raise_disk_full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rows.RowWriter, "sync", raise_disk_full)
        with pytest.raises(StorageFull, match="what was complete is kept"):
            gallery.add(photos)
    assert len(file_names(gallery)) == 12
    assert gallery.problems() == []
    assert gallery.add(photos).added == 1


@pytest.mark.parametrize("free_kilobytes", [0, 4, 16, 32, 54, 60, 66, 80])
def test_nothing_is_lost_when_a_small_disk_fills_up(
    small_disk: Path, photos: Path, free_kilobytes: int
) -> None:
    gallery = Gallery.create(small_disk / "g", vocabulary="toy")
    gallery.add(photos)
    ballast = small_disk / "ballast"
    free = shutil.disk_usage(small_disk).free
    ballast.write_bytes(bytes(max(0, free - free_kilobytes * 1024)))
    for seed in range(100, 300):
        make_image(seed, side=5).save(photos / f"{seed}.png")
    try:
        added = gallery.add(photos).added
    except StorageFull:
        added = 0
    assert gallery.problems() == []
    assert len(file_names(gallery)) == 12 + added
    ballast.unlink()
    assert gallery.add(photos).added == 200 - added
    gallery.close()


def test_creating_a_gallery_on_a_full_disk_leaves_no_files(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises((StorageFull, OSError), match=r"full|No space"):
        Gallery.create(small_disk / "g", vocabulary="toy")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def change_byte(path: Path, position: int, change: Callable[[int], int]) -> None:
    content = bytearray(path.read_bytes())
    content[position] = change(content[position])
    path.write_bytes(bytes(content))


def test_a_changed_bit_is_reported_with_its_row(gallery: Gallery) -> None:
    change_byte(gallery.path / "bags.rows", 64 + 64 * 3 + 5, lambda byte: byte ^ 4)
    (problem,) = gallery.problems()
    assert problem.startswith("row 3 (")


def test_missing_rows_raise_gallery_damaged(gallery: Gallery) -> None:
    dense = gallery.path / "dense.rows"
    dense.write_bytes(dense.read_bytes()[:-30])
    with pytest.raises(GalleryDamaged, match="has 10 rows, the catalogue names 12"):
        Gallery.open(gallery.path).search(make_pixels(0))


def test_words_beyond_the_vocabulary_raise_gallery_damaged(gallery: Gallery) -> None:
    change_byte(gallery.path / "bags.rows", 65, lambda byte: byte | 0x40)
    with pytest.raises(GalleryDamaged, match="run bm25v verify"):
        Gallery.open(gallery.path).search(make_pixels(0))


@pytest.mark.parametrize("name", ["bags.rows", "dense.rows", catalog.FILE_NAME])
def test_a_file_of_another_kind_raises_gallery_damaged(gallery: Gallery, name: str) -> None:
    gallery.close()
    (gallery.path / name).write_bytes(b"something else entirely" * 300)
    with pytest.raises(GalleryDamaged, match=name.replace(".", r"\.")):
        Gallery.open(gallery.path).local.snapshot()


def test_a_newer_format_raises_gallery_too_new(gallery: Gallery) -> None:
    with sqlite3.connect(gallery.path / catalog.FILE_NAME) as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    db.close()
    with pytest.raises(GalleryTooNew, match="upgrade bm25v"):
        Gallery.open(gallery.path)


def test_a_newer_row_format_raises_gallery_too_new(gallery: Gallery, photos: Path) -> None:
    change_byte(gallery.path / "bags.rows", 8, lambda _: 9)
    with pytest.raises(GalleryTooNew, match="row format 9"):
        gallery.add(photos)


def test_another_vocabulary_raises_vocabulary_mismatch(gallery: Gallery, tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    other = Vocabulary.build("other", backbone=toy.backbone, sae=toy.sae, k_post=8)
    other.save(tmp_path / "other.vocab")
    with pytest.raises(VocabularyMismatch, match="index the images into a new gallery"):
        Gallery.open(gallery.path, vocabulary=tmp_path / "other.vocab")
    Gallery.open(gallery.path, vocabulary="toy")


def test_a_gallery_remembers_the_folder_of_its_vocabulary(tmp_path: Path, photos: Path) -> None:
    Vocabulary.load("toy").save(tmp_path / "mine.vocab")
    gallery = Gallery.create(tmp_path / "g", vocabulary=tmp_path / "mine.vocab")
    gallery.add(photos)
    assert len(Gallery.open(tmp_path / "g").search(photos / "0.png")) > 0


def test_errors_name_the_path_and_the_remedy(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"nowhere does not exist"):
        gallery.add(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidOption, match=r"no images in .*empty"):
        gallery.add(tmp_path / "empty")
    with pytest.raises(ImageNotFound, match=r"x\.png is not in .*: index it first"):
        gallery.match(make_pixels(0), tmp_path / "x.png")
    with pytest.raises(GalleryNotFound, match=r"nowhere.*bm25v index FOLDER"):
        Gallery.open(tmp_path / "nowhere")
    with pytest.raises(GalleryError, match="already exists: choose another path, or open it"):
        Gallery.create(gallery.path)


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_reader_without_write_permission_sees_every_commit() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as shared:  # other users cannot read pytest's folders
        folder = Path(shared)
        folder.chmod(0o755)
        (folder / "photos").mkdir()
        for seed in range(4):
            make_image(seed).save(folder / "photos" / f"{seed}.png")
        gallery = Gallery.create(folder / "g", vocabulary="toy")
        gallery.add(folder / "photos")
        gallery.close()
        to_child, from_child = os.pipe(), os.pipe()
        child = os.fork()
        if child == 0:
            _count_rows_as_nobody(folder / "g", to_child[0], from_child[1])
        try:
            assert os.read(from_child[0], 9) == b"4"
            writer = Gallery.open(folder / "g")
            writer.remove(folder / "photos" / "3.png")
            writer.close()
            os.write(to_child[1], b"go")
            assert os.read(from_child[0], 9) == b"3"
        finally:
            os.waitpid(child, 0)


def _count_rows_as_nobody(path: Path, read_end: int, write_end: int) -> None:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        reader = Gallery.open(path)
        os.write(write_end, str(len(reader.local.snapshot().rows)).encode())
        os.read(read_end, 9)
        os.write(write_end, str(len(reader.local.snapshot().rows)).encode())
    finally:
        os._exit(0)


def test_verifying_during_indexing_reports_no_problems(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BATCH", 2)
    for seed in range(100, 160):
        make_image(seed).save(photos / f"{seed}.png")
    problems: list[str] = []
    n_hits: list[int] = []
    indexing_ended = threading.Event()

    def verify() -> None:
        while not indexing_ended.is_set():
            problems.extend(gallery.problems())
            n_hits.append(len(gallery.search(make_pixels(0), mode="dense", k=500)))

    readers = [threading.Thread(target=verify) for _ in range(2)]
    for reader in readers:
        reader.start()
    gallery.add(photos)
    indexing_ended.set()
    for reader in readers:
        reader.join()
    assert problems == []
    assert n_hits
    assert 12 <= min(n_hits) <= max(n_hits) <= 72


def test_a_relative_path_still_leads_to_the_gallery_in_another_folder(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(gallery.path.parent)
    relative = Gallery.open(gallery.path.name)
    monkeypatch.chdir("/")
    assert len(file_names(relative)) == 12


def test_a_closed_gallery_says_so(gallery: Gallery) -> None:
    gallery.close()
    with pytest.raises(GalleryError, match="is closed"):
        gallery.search(make_pixels(0))
