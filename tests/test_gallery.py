"""A gallery follows its files, keeps its statistics live and loses nothing."""

import errno
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bm25v.api import Gallery
from bm25v.backbones.protocol import Features, Floats, ImageArray
from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import (
    GalleryDamaged,
    GalleryError,
    GalleryLocked,
    GalleryNotFound,
    GalleryTooNew,
    ImageError,
    StorageFull,
    VocabularyMismatch,
    WrongUse,
)
from bm25v.gallery import catalog, indexing, rows
from bm25v.gallery.writer import Writer
from bm25v.search import Mode
from bm25v.vocabulary import Encoding, Vocabulary
from tests.conftest import make_image

MODES: tuple[Mode, ...] = ("two-stage", "sparse", "dense", "hybrid")


def names(gallery: Gallery) -> set[str]:
    everything = gallery.search(picture_array(0), k=1000, mode="dense")
    return {Path(hit.path).name for hit in everything}


def picture_array(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(make_image(seed))


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(Vocabulary, "prepare", refuse)


def test_a_picture_finds_itself_first_in_every_mode(gallery: Gallery, photos: Path) -> None:
    for mode in MODES:
        hits = gallery.search(photos / "3.png", k=5, mode=mode).hits
        assert Path(hits[0].path) == photos / "3.png"
        assert [hit.rank for hit in hits] == list(range(1, len(hits) + 1))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        for hit in hits:
            assert hit.sparse == pytest.approx(sum(w.contribution for w in hit.words), abs=1e-5)


def test_two_stage_is_the_dense_order_of_the_best_by_words(gallery: Gallery, photos: Path) -> None:
    sparse = gallery.search(photos / "5.png", k=4, mode="sparse")
    two_stage = gallery.search(photos / "5.png", k=4, candidates=4)
    assert {hit.path for hit in sparse} == {hit.path for hit in two_stage}
    assert [h.path for h in two_stage] == [
        h.path for h in sorted(sparse, key=lambda hit: -(hit.dense or 0))
    ]
    assert all(hit.score == hit.dense for hit in two_stage)
    assert all(hit.score == pytest.approx(hit.sparse) for hit in sparse)


def test_a_second_run_does_without_the_backbone(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("asked for the backbone")

    monkeypatch.setattr(Vocabulary, "backbone", property(refuse))
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.unchanged, report.removed) == (0, 12, 0)


class CountingBackbone(ToyBackbone):
    """A toy that takes five pictures at once and notes how many it was handed."""

    batch_size = 5

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def forward_batch(self, batch: list[Floats]) -> list[Features]:
        self.sizes.append(len(batch))
        return super().forward_batch(batch)


def test_pictures_are_handed_over_in_batches_and_fail_alone(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "torn.png").write_bytes(b"no picture")
    vocabulary, backbone = Vocabulary.load("toy"), CountingBackbone()
    expected = {str(path): vocabulary.encode(path) for path in photos.glob("[0-9]*.png")}
    vocabulary.__dict__["backbone"] = backbone
    prepare = Vocabulary.prepare

    def prepare_and_touch(self: Vocabulary, path: str) -> object:
        pixels = prepare(self, path)
        if path.endswith("3.png"):
            os.utime(path, (1, 1))
        return pixels

    monkeypatch.setattr(Vocabulary, "prepare", prepare_and_touch)
    known = indexing.read_file_state(str(photos / "7.png")).content
    paths = sorted(map(str, photos.iterdir()))
    found = dict(indexing.encode_files(paths, vocabulary, lambda content: content == known, 2))
    assert list(found) == paths
    assert sorted(backbone.sizes) == [2, 3, 5]  # of 5, 5 and 3: one known, one torn, one changed
    for path, outcome in found.items():
        name = Path(path).name
        if name in ("3.png", "torn.png"):
            assert isinstance(outcome, ImageError)
            assert ("changed while it was read" in str(outcome)) == (name == "3.png")
            continue
        assert isinstance(outcome, indexing.ReadFile)
        if name == "7.png":
            assert outcome.encoding is None
            continue
        assert outcome.encoding is not None
        assert outcome.encoding.bag.words.tolist() == expected[path].bag.words.tolist()
        np.testing.assert_array_equal(outcome.encoding.dense_e, expected[path].dense_e)


def test_a_touched_file_is_unchanged_by_content(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(photos / "1.png", (1, 1))
    forbid_encoding(monkeypatch)
    assert gallery.add(photos).unchanged == 12
    monkeypatch.setattr(
        indexing, "read_file_state", None
    )  # the new time is known now: no file is read
    assert gallery.add(photos).unchanged == 12


def test_moved_copied_and_returned_files_are_not_encoded_again(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "0.png").rename(photos / "moved.png")
    shutil.copy(photos / "1.png", photos / "copy.png")
    (photos / "2.png").rename(photos.parent / "2.png")
    forbid_encoding(monkeypatch)
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.moved, report.removed, report.unchanged) == (1, 1, 1, 10)
    assert {"moved.png", "copy.png"} <= names_without_encoding(gallery)
    (photos.parent / "2.png").rename(photos / "2.png")
    assert gallery.add(photos).added == 1
    assert gallery.problems() == []


def names_without_encoding(gallery: Gallery) -> set[str]:
    with Writer(gallery.path) as writer:
        return {Path(picture.path).name for picture in writer.catalog.images()}


def test_one_of_two_copies_of_a_vanished_file_is_the_moved_one(
    gallery: Gallery, photos: Path
) -> None:
    shutil.copy(photos / "0.png", photos / "a.png")
    (photos / "0.png").rename(photos / "b.png")
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.moved, report.removed) == (1, 1, 0)
    assert {"a.png", "b.png"} <= names(gallery)


def test_a_changed_file_is_encoded_anew(gallery: Gallery, photos: Path) -> None:
    make_image(99).save(photos / "4.png")
    report = gallery.add(photos)
    assert (report.updated, report.unchanged) == (1, 11)
    hits = gallery.search(picture_array(99))
    assert Path(hits[0].path).name == "4.png"
    assert hits[0].dense == pytest.approx(1, abs=1e-3)
    assert len(gallery) == 12


def test_a_file_that_became_unreadable_is_listed_and_kept(gallery: Gallery, photos: Path) -> None:
    (photos / "4.png").write_bytes(b"not a picture any more")
    report = gallery.add(photos, remove_missing=True)
    assert [Path(failure.path).name for failure in report.failed] == ["4.png"]
    assert len(gallery) == 12


def test_removed_pictures_are_gone_at_once(gallery: Gallery, photos: Path) -> None:
    reader = Gallery.open(gallery.path)
    assert "3.png" in names(reader)
    assert gallery.remove(photos / "3.png") == 1
    assert "3.png" not in names(reader) | names(gallery)
    assert gallery.remove(photos) == 11
    assert len(gallery) == len(gallery.search(picture_array(0))) == 0
    assert gallery.remove(photos) == 0


def test_removing_a_folder_leaves_its_namesakes(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for name in ("a", "a b", "ab", "a0"):
        (photos / name).mkdir()
        make_image(hash(name) % 1000).save(photos / name / "x.png")
    gallery = make_gallery("g")
    gallery.add(photos)
    assert gallery.remove(photos / "a") == 1
    assert len(gallery) == 15


def test_names_that_are_no_text_can_be_indexed(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    odd = os.fsencode(photos) + b"/\xff\xfe.png"
    try:
        shutil.copy(os.fsencode(photos / "0.png"), odd)
    except OSError:
        pytest.skip("this file system takes only text")
    gallery = make_gallery("g")
    assert gallery.add(photos).added == 13
    assert os.fsdecode(odd) in {hit.path for hit in gallery.search(photos / "0.png", k=20)}


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
    live = Gallery.create(folder / "live", vocabulary="toy")
    live.add(photos)
    for kind, number, seed in history:
        path = photos / f"{number}.png"
        if kind == "put":
            make_image(abs(seed) % 7, side=14).save(path)
        elif path.exists() and kind == "remove":
            path.unlink()
        elif path.exists() and not (photos / f"{seed % 6}.png").exists():
            path.rename(photos / f"{seed % 6}.png")
        if any(photos.iterdir()):
            live.add(photos, remove_missing=True)
        else:
            live.remove(photos)
    scratch = Gallery.create(folder / "scratch", vocabulary="toy")
    if any(photos.iterdir()):
        scratch.add(photos)
    assert live.problems() == []
    for mode in MODES:
        for seed in range(3):
            found = live.search(picture_array(seed), k=9, mode=mode)
            expected = scratch.search(picture_array(seed), k=9, mode=mode)
            assert scores_by_path(found.hits) == scores_by_path(expected.hits)


def scores_by_path(hits: tuple[object, ...]) -> dict[str, tuple[object, ...]]:
    return {h.path: (h.score, h.sparse, h.dense, h.words) for h in hits}  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", MODES)
def test_an_index_changes_no_result(
    gallery: Gallery, photos: Path, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also not after changes that it was not made for."""
    scanning = Gallery.open(gallery.path)
    gallery.store.snapshot().searcher.build_index()
    gallery.remove(photos / "3.png")
    make_image(77).save(photos / "new.png")
    gallery.add(photos / "new.png")
    for seed in range(20):
        found, plain = (g.search(picture_array(seed), mode=mode) for g in (gallery, scanning))
        assert gallery.store.snapshot().searcher.has_index
        assert not scanning.store.snapshot().searcher.has_index
        assert [hit.path for hit in found] == [hit.path for hit in plain]
        assert [hit.sparse for hit in found] == [hit.sparse for hit in plain]
        assert [hit.dense for hit in found] == [hit.dense for hit in plain]
        query = gallery.vocabulary.encode(picture_array(seed))
        assert gallery.match(query, found[0].path).dense == found[0].dense


def test_many_searches_give_what_each_gives(gallery: Gallery, photos: Path) -> None:
    queries = [photos / f"{seed}.png" for seed in range(12)]
    encoded = [gallery.vocabulary.encode(path) for path in queries]
    for wanted in (queries, encoded):
        for path, results in zip(queries, gallery.search_many(wanted, k=4), strict=True):
            assert results.hits == gallery.search(path, k=4).hits


def test_a_reader_keeps_its_snapshot_while_a_writer_writes(gallery: Gallery, photos: Path) -> None:
    before = gallery.store.snapshot()
    gallery.remove(photos / "0.png")
    assert len(before.rows) == 12
    assert len(gallery.store.snapshot().rows) == 11


def test_a_second_writer_is_told_so(gallery: Gallery, photos: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from bm25v.gallery.writer import Writer\n"
        "with Writer(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script, str(gallery.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(GalleryLocked, match="another process is writing"):
            gallery.add(photos)
        assert len(names(gallery)) == 12
        other.kill()
    assert gallery.add(photos).unchanged == 12


def test_rows_that_were_not_committed_do_not_exist(gallery: Gallery, photos: Path) -> None:
    bags = gallery.path / "bags.rows"
    size = bags.stat().st_size
    with bags.open("ab") as file:
        file.write(b"left by a killed process")
    assert len(names(Gallery.open(gallery.path))) == 12
    make_image(50).save(photos / "new.png")
    gallery.add(photos)
    assert bags.stat().st_size == size + 64
    assert gallery.problems() == []


def test_a_killed_indexing_run_loses_at_most_a_batch_and_goes_on(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(60):
        make_image(seed).save(photos / f"{seed}.png")
    make_gallery("g").close()
    script = (
        "import sys, time; from bm25v.api import Gallery; from bm25v.gallery import indexing\n"
        "indexing.BATCH = 5\n"
        "def slow(stage, done, total): print(done, flush=True); time.sleep(0.01)\n"
        "Gallery.open(sys.argv[1]).add(sys.argv[2], progress=slow)"
    )
    for wait_for in (7, 23, 24):
        command = [sys.executable, "-c", script, str(tmp_path / "g"), str(photos)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= wait_for:
                    child.send_signal(signal.SIGKILL)
                    break
        survivor = Gallery.open(tmp_path / "g")
        assert survivor.problems() == []
        assert wait_for - 5 <= len(survivor) <= 60
        survivor.close()
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.add(photos).failed == []
    assert len(gallery) == 60
    assert gallery.problems() == []


def test_a_full_disk_is_said_and_loses_nothing(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_image(50).save(photos / "new.png")

    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(rows.RowWriter, "sync", full)
        with pytest.raises(StorageFull, match="everything committed is kept"):
            gallery.add(photos)
    assert len(names(gallery)) == 12
    assert gallery.problems() == []
    assert gallery.add(photos).added == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 600 kB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("left", [0, 4, 16, 32, 54, 60, 66, 80])
def test_a_really_full_disk_is_said_and_loses_nothing(
    small_disk: Path, photos: Path, left: int
) -> None:
    gallery = Gallery.create(small_disk / "g", vocabulary="toy")
    gallery.add(photos)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - left * 1024)))
    for seed in range(100, 300):
        make_image(seed, side=5).save(photos / f"{seed}.png")
    try:
        added = gallery.add(photos).added
    except StorageFull:
        added = 0
    assert gallery.problems() == []
    assert len(names(gallery)) == 12 + added
    ballast.unlink()
    assert gallery.add(photos).added == 200 - added
    gallery.close()


def test_no_gallery_is_made_on_a_full_disk(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(shutil.disk_usage(small_disk).free))
    with pytest.raises((StorageFull, OSError), match=r"full|No space"):
        Gallery.create(small_disk / "g", vocabulary="toy")
    assert [path.name for path in small_disk.iterdir()] == ["ballast"]


def test_an_interrupted_run_keeps_what_was_committed(
    tmp_path: Path,
    photos: Path,
    make_gallery: Callable[[str], Gallery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(indexing, "BATCH", 4)

    def stop(stage: str, done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    gallery = make_gallery("g")
    with pytest.raises(KeyboardInterrupt):
        gallery.add(photos, progress=stop)
    assert len(gallery) == 4
    report = gallery.add(photos)
    assert (report.added, report.unchanged) == (8, 4)


def test_flipped_bits_are_named(gallery: Gallery) -> None:
    bags = gallery.path / "bags.rows"
    content = bytearray(bags.read_bytes())
    content[64 + 64 * 3 + 5] ^= 4
    bags.write_bytes(bytes(content))
    problems = gallery.problems()
    assert len(problems) == 1
    assert problems[0].startswith("row 3 (")


def test_lost_rows_are_named(gallery: Gallery) -> None:
    dense = gallery.path / "dense.rows"
    dense.write_bytes(dense.read_bytes()[:-30])
    with pytest.raises(GalleryDamaged, match="has 10 rows, the catalogue names 12"):
        Gallery.open(gallery.path).search(picture_array(0))


@pytest.mark.parametrize("name", ["bags.rows", "dense.rows", catalog.FILE_NAME])
def test_files_that_are_something_else_are_refused(gallery: Gallery, name: str) -> None:
    gallery.close()
    (gallery.path / name).write_bytes(b"something else entirely" * 300)
    with pytest.raises(GalleryDamaged, match=name.replace(".", r"\.")):
        Gallery.open(gallery.path).store.snapshot()


def test_a_newer_format_is_refused(gallery: Gallery) -> None:
    with sqlite3.connect(gallery.path / catalog.FILE_NAME) as db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    db.close()
    with pytest.raises(GalleryTooNew, match="upgrade bm25v"):
        Gallery.open(gallery.path)


def test_a_newer_row_format_is_refused(gallery: Gallery) -> None:
    bags = gallery.path / "bags.rows"
    content = bytearray(bags.read_bytes())
    content[8] = 9
    bags.write_bytes(bytes(content))
    with pytest.raises(GalleryTooNew, match="row format 9"):
        gallery.add(gallery.path.parent / "photos")


def test_another_vocabulary_is_refused(gallery: Gallery, tmp_path: Path) -> None:
    toy = Vocabulary.load("toy")
    other = Vocabulary.build("other", backbone=toy.backbone, sae=toy.sae, k_post=8)
    other.save(tmp_path / "other.vocab")
    with pytest.raises(VocabularyMismatch, match="index the images into a new gallery"):
        Gallery.open(gallery.path, vocabulary=tmp_path / "other.vocab")
    Gallery.open(gallery.path, vocabulary="toy")


def test_a_vocabulary_from_a_folder_is_found_again(tmp_path: Path, photos: Path) -> None:
    Vocabulary.load("toy").save(tmp_path / "mine.vocab")
    gallery = Gallery.create(tmp_path / "g", vocabulary=tmp_path / "mine.vocab")
    gallery.add(photos)
    assert len(Gallery.open(tmp_path / "g").search(photos / "0.png")) > 0


def test_wrong_wishes_are_refused(gallery: Gallery, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="does not exist"):
        gallery.add(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(WrongUse, match="no images in"):
        gallery.add(tmp_path / "empty")
    with pytest.raises(WrongUse, match="mode 'best'"):
        gallery.search(picture_array(0), mode="best")  # type: ignore[arg-type]
    with pytest.raises(WrongUse, match="k = 0"):
        gallery.search(picture_array(0), k=0)
    with pytest.raises(WrongUse, match="is not in"):
        gallery.match(gallery.vocabulary.encode(picture_array(0)), tmp_path / "x.png")
    with pytest.raises(GalleryNotFound, match="bm25v index FOLDER"):
        Gallery.open(tmp_path / "nowhere")
    with pytest.raises(GalleryError, match="already exists"):
        Gallery.create(gallery.path)


def test_memory_does_not_grow_with_the_number_of_images(
    tmp_path: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither prepared nor encoded images pile up, even if writing is slower than encoding."""
    n = 30 + 15 * (os.cpu_count() or 1)
    photos = tmp_path / "many"
    photos.mkdir()
    for seed in range(n):
        make_image(seed, side=16).save(photos / f"{seed}.png")
    prepare, encode = ToyBackbone.prepare_image, Vocabulary.encode_features

    def in_a_megabyte(values: Floats) -> Floats:
        view = np.empty(250_000, np.float32)[: values.size].reshape(values.shape)
        view[...] = values
        return view

    def prepare_large(self: ToyBackbone, image: ImageArray) -> Floats:
        return in_a_megabyte(prepare(self, image))

    def encode_large(self: Vocabulary, features: list[Features]) -> list[Encoding]:
        return [one._replace(dense_e=in_a_megabyte(one.dense_e)) for one in encode(self, features)]

    monkeypatch.setattr(ToyBackbone, "prepare_image", prepare_large)
    monkeypatch.setattr(ToyBackbone, "batch_size", 2)
    monkeypatch.setattr(Vocabulary, "encode_features", encode_large)
    gallery = make_gallery("g")
    tracemalloc.start()
    try:
        gallery.add(photos, progress=lambda stage, done, _: time.sleep(0.5 * (done == 1)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(gallery) == n
    assert peak < n / 2 * 1_000_000


@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_reader_who_may_not_write_sees_every_commit() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as shared:  # pytest's own folders are closed to others
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
            _read_as_nobody(folder / "g", to_child[0], from_child[1])
        try:
            assert os.read(from_child[0], 9) == b"4"
            writer = Gallery.open(folder / "g")
            writer.remove(folder / "photos" / "3.png")
            writer.close()
            os.write(to_child[1], b"go")
            assert os.read(from_child[0], 9) == b"3"
        finally:
            os.waitpid(child, 0)


def _read_as_nobody(path: Path, wait: int, tell: int) -> None:
    try:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        reader = Gallery.open(path)
        os.write(tell, str(len(reader.store.snapshot().rows)).encode())
        os.read(wait, 9)
        os.write(tell, str(len(reader.store.snapshot().rows)).encode())
    finally:
        os._exit(0)


def test_an_unmounted_drive_is_refused_and_nothing_is_removed(
    tmp_path: Path, photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    drive = tmp_path / "drive"
    shutil.copytree(photos, drive)
    gallery = make_gallery("g")
    gallery.add([photos, drive])
    shutil.rmtree(drive)
    drive.mkdir()
    with pytest.raises(WrongUse, match="no images in"):
        gallery.add([photos, drive], remove_missing=True)
    assert len(gallery) == 24


def test_overlapping_folders_are_counted_once(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery = make_gallery("g")
    assert gallery.add([photos, photos, photos / "0.png"]).added == 12
    assert gallery.add([photos, photos / "0.png"]).unchanged == 12


def test_coming_and_going_does_not_grow_the_files(gallery: Gallery, photos: Path) -> None:
    size = (gallery.path / "bags.rows").stat().st_size
    for _ in range(3):
        gallery.remove(photos)
        assert gallery.add(photos).added == 12
    assert (gallery.path / "bags.rows").stat().st_size == size
    assert gallery.problems() == []


def test_words_that_do_not_exist_are_named(gallery: Gallery) -> None:
    bags = gallery.path / "bags.rows"
    content = bytearray(bags.read_bytes())
    content[65] |= 0x40
    bags.write_bytes(bytes(content))
    with pytest.raises(GalleryDamaged, match="run bm25v verify"):
        Gallery.open(gallery.path).search(picture_array(0))


def test_checking_while_somebody_writes_finds_nothing_wrong(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BATCH", 2)
    for seed in range(100, 160):
        make_image(seed).save(photos / f"{seed}.png")
    found: list[str] = []
    searched: list[int] = []
    writing = threading.Event()

    def check() -> None:
        while not writing.is_set():
            found.extend(gallery.problems())
            searched.append(len(gallery.search(picture_array(0), mode="dense", k=500)))

    readers = [threading.Thread(target=check) for _ in range(2)]
    for reader in readers:
        reader.start()
    gallery.add(photos)
    writing.set()
    for reader in readers:
        reader.join()
    assert found == []
    assert searched
    assert 12 <= min(searched) <= max(searched) <= 72


def test_a_gallery_stays_where_it_is(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gallery.path.parent)
    relative = Gallery.open(gallery.path.name)
    monkeypatch.chdir("/")
    assert len(names(relative)) == 12
    relative.close()
    with pytest.raises(WrongUse, match="is closed"):
        relative.search(picture_array(0))


def test_sparse_scores_are_the_sum_of_the_words_to_the_last_bit(
    gallery: Gallery, photos: Path
) -> None:
    for hit in gallery.search(photos / "7.png", mode="sparse", k=12):
        assert hit.score == hit.sparse
