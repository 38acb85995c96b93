"""Indexing follows files: new, changed, moved, copied, missing and unreadable ones."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.backbones.protocol import Features, Floats, ImageArray
from bm25v.backbones.toy import ToyBackbone
from bm25v.errors import GalleryLocked, ImageError, InvalidOption
from bm25v.gallery import Gallery
from bm25v.images import streams
from bm25v.progress import no_progress
from bm25v.store import encoding, files
from bm25v.store.encoding import EncodedImage, NamedImage, encode_images
from bm25v.store.files import read_file_state
from bm25v.store.local import indexing
from bm25v.store.local.catalog import Catalog
from bm25v.store.local.indexing import index_images
from bm25v.store.local.writer import Writer
from bm25v.store.records import ImageRecord
from bm25v.vocabulary import Encoding, Vocabulary
from tests.conftest import RecordingBackbone, make_image, make_pixels


def forbid_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("encoded again")

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", fail)


def file_names(gallery: Gallery) -> set[str]:
    return {Path(record.path).name for record in gallery.local.catalog.images()}


def test_indexing_unchanged_files_does_not_load_the_backbone(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise AssertionError("the backbone was loaded")

    monkeypatch.setattr(Vocabulary, "backbone", property(fail))
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.unchanged, report.removed) == (0, 12, 0)


def test_an_unreadable_file_does_not_affect_the_others_of_its_batch(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "torn.png").write_bytes(b"no image")
    vocabulary, backbone = Vocabulary.load("toy"), RecordingBackbone(5)
    expected = {str(path): vocabulary.encode(path) for path in photos.glob("[0-9]*.png")}
    vocabulary.__dict__["backbone"] = backbone
    decode = Vocabulary.decode_with_metadata

    def decode_and_touch(self: Vocabulary, path: str) -> object:
        decoded = decode(self, path)
        if path.endswith("3.png"):
            os.utime(path, (1, 1))
        return decoded

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", decode_and_touch)
    monkeypatch.setattr(files, "_MAX_BYTES", 0)  # as large files, they are decoded by path
    known = read_file_state(str(photos / "7.png")).to_record(0, 0)

    def find_known(content: bytes) -> ImageRecord | None:
        return known if content == known.content else None

    paths = sorted(map(str, photos.iterdir()))
    named = map(NamedImage, paths)
    outcomes = dict(encode_images(named, vocabulary, find_known, 2))
    assert list(outcomes) == paths
    # Batches of 5, 5 and 3 files: one is known, one unreadable, one changed while it was read.
    assert sorted(backbone.sizes) == [2, 3, 5]
    for path, outcome in outcomes.items():
        name = Path(path).name
        if name in ("3.png", "torn.png"):
            assert isinstance(outcome, ImageError)
            assert ("changed while it was read" in str(outcome)) == (name == "3.png")
            continue
        assert isinstance(outcome, EncodedImage)
        if name == "7.png":
            assert outcome.encoding is None
            continue
        assert outcome.encoding is not None
        assert outcome.encoding.bag.words.tolist() == expected[path].bag.words.tolist()
        np.testing.assert_array_equal(outcome.encoding.dense_e, expected[path].dense_e)


def test_a_file_with_a_new_time_and_the_same_content_is_unchanged(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.utime(photos / "1.png", (1, 1))
    forbid_encoding(monkeypatch)
    assert gallery.add(photos).unchanged == 12
    monkeypatch.setattr(encoding, "read_file", None)  # the new time is stored: no reading
    assert gallery.add(photos).unchanged == 12


def test_moved_copied_and_restored_files_are_not_encoded_again(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (photos / "0.png").rename(photos / "moved.png")
    shutil.copy(photos / "1.png", photos / "copy.png")
    (photos / "2.png").rename(photos.parent / "2.png")
    forbid_encoding(monkeypatch)
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.moved, report.removed, report.unchanged) == (1, 1, 1, 10)
    assert {"moved.png", "copy.png"} <= file_names(gallery)
    (photos.parent / "2.png").rename(photos / "2.png")
    assert gallery.add(photos).added == 1
    assert gallery.problems() == []


def test_copies_are_not_encoded_although_their_batch_is_not_committed(
    tmp_path: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, encode = tmp_path / "copies", Vocabulary.encode_features
    photos.mkdir()
    for number in range(60):
        make_image(1).save(photos / f"{number}.png")
    sizes: list[int] = []

    def encode_and_count(self: Vocabulary, features: list[Features]) -> list[Encoding]:
        sizes.append(len(features))
        return encode(self, features)

    monkeypatch.setattr(Vocabulary, "encode_features", encode_and_count)
    gallery = make_gallery("g")
    assert gallery.add(photos, workers=1).added == 60
    assert 1 <= sum(sizes) <= 20, "those that were begun before the first one was collected"
    assert {(image.width, image.height) for image in gallery} == {(64, 64)}
    assert gallery.problems() == []


def test_of_two_copies_of_a_missing_file_one_is_the_moved_one(
    gallery: Gallery, photos: Path
) -> None:
    shutil.copy(photos / "0.png", photos / "a.png")
    (photos / "0.png").rename(photos / "b.png")
    report = gallery.add(photos, remove_missing=True)
    assert (report.added, report.moved, report.removed) == (1, 1, 0)
    assert {"a.png", "b.png"} <= file_names(gallery)


def test_a_changed_file_is_encoded_again(gallery: Gallery, photos: Path) -> None:
    make_image(99).save(photos / "4.png")
    report = gallery.add(photos)
    assert (report.updated, report.unchanged) == (1, 11)
    hit = gallery.search(make_pixels(99))[0]
    assert Path(hit.path).name == "4.png"
    assert hit.dense == pytest.approx(1, abs=1e-3)
    assert len(gallery) == 12


def test_an_indexed_file_that_became_unreadable_is_reported_and_kept(
    gallery: Gallery, photos: Path
) -> None:
    (photos / "4.png").write_bytes(b"not an image any more")
    report = gallery.add(photos, remove_missing=True)
    assert [Path(failure.path).name for failure in report.failed] == ["4.png"]
    assert len(gallery) == 12


def test_file_names_that_are_not_text_can_be_indexed(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    path = os.fsencode(photos) + b"/\xff\xfe.png"
    try:
        shutil.copy(os.fsencode(photos / "0.png"), path)
    except OSError:
        pytest.skip("this file system accepts only text")
    gallery = make_gallery("g")
    assert gallery.add(photos).added == 13
    assert os.fsdecode(path) in {hit.path for hit in gallery.search(photos / "1.png", k=20)}


def test_an_empty_folder_raises_wrong_use_and_nothing_is_removed(
    tmp_path: Path, photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    """It may be a drive that is not mounted."""
    drive = tmp_path / "drive"
    shutil.copytree(photos, drive)
    gallery = make_gallery("g")
    gallery.add([photos, drive])
    shutil.rmtree(drive)
    drive.mkdir()
    with pytest.raises(InvalidOption, match="no images in"):
        gallery.add([photos, drive], remove_missing=True)
    assert len(gallery) == 24


def test_files_of_overlapping_folders_are_counted_once(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery = make_gallery("g")
    assert gallery.add([photos, photos, photos / "0.png"]).added == 12
    assert gallery.add([photos, photos / "0.png"]).unchanged == 12


def test_removing_and_adding_the_same_images_does_not_grow_the_files(
    gallery: Gallery, photos: Path
) -> None:
    size = (gallery.path / "bags.rows").stat().st_size
    for _ in range(3):
        gallery.remove(photos)
        assert gallery.add(photos).added == 12
    assert (gallery.path / "bags.rows").stat().st_size == size
    assert gallery.problems() == []


def test_a_killed_run_loses_at_most_one_batch_and_can_be_continued(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(60):
        make_image(seed).save(photos / f"{seed}.png")
    make_gallery("g").close()
    script = (
        "import sys, time; from bm25v.gallery import Gallery\n"
        "from bm25v.store.local import indexing\n"
        "indexing.BATCH = 5\n"
        "def slow(stage, done, total): print(done, flush=True); time.sleep(0.01)\n"
        "Gallery.open(sys.argv[1]).add(sys.argv[2], progress=slow)"
    )
    for n_done in (7, 23, 24):
        command = [sys.executable, "-c", script, str(tmp_path / "g"), str(photos)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            for line in child.stdout:
                if int(line) >= n_done:
                    child.kill()
                    break
        gallery = Gallery.open(tmp_path / "g")
        assert gallery.problems() == []
        assert n_done - 5 <= len(gallery) <= 60
        gallery.close()
    gallery = Gallery.open(tmp_path / "g")
    assert gallery.add(photos).failed == []
    assert len(gallery) == 60
    assert gallery.problems() == []


def test_an_interrupted_run_keeps_every_image_that_was_done(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "BATCH", 4)

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    gallery = make_gallery("g")
    with pytest.raises(KeyboardInterrupt):
        gallery.add(photos, progress=interrupt)
    n_done = len(gallery)
    assert n_done >= 6
    report = gallery.add(photos)
    assert (report.added, report.unchanged) == (12 - n_done, n_done)
    assert gallery.problems() == []


def test_an_image_is_added_complete_although_ctrl_c_is_pressed_meanwhile(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    insert, handler = Catalog.insert, signal.getsignal(signal.SIGINT)

    def insert_and_interrupt(self: Catalog, record: ImageRecord) -> None:
        if record.row == 5:
            signal.raise_signal(signal.SIGINT)
        insert(self, record)

    gallery = make_gallery("g")
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "insert", insert_and_interrupt)
        with pytest.raises(KeyboardInterrupt):
            gallery.add(photos)
    assert len(gallery) == 12
    assert gallery.problems() == []
    assert signal.getsignal(signal.SIGINT) is handler
    assert gallery.add(photos).unchanged == 12


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
        encodings = encode(self, features)
        return [e._replace(dense_e=in_a_megabyte(e.dense_e)) for e in encodings]

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


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_is_the_number_of_threads_and_does_not_change_rows(
    workers: int,
    gallery: Gallery,
    photos: Path,
    make_gallery: Callable[[str], Gallery],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: set[int] = set()
    all_busy = threading.Barrier(workers, timeout=30)  # 12 images: each worker prepares as many
    decode = Vocabulary.decode_with_metadata

    def decode_together(self: Vocabulary, content: bytes) -> object:
        threads.add(threading.get_ident())
        all_busy.wait()
        return decode(self, content)

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", decode_together)
    other = make_gallery("other")
    assert other.add(photos, workers=workers).added == 12
    assert len(threads) == workers
    for name in ("bags.rows", "dense.rows"):
        assert (other.path / name).read_bytes() == (gallery.path / name).read_bytes()
    records, other_records = (list(g.local.catalog.records()) for g in (gallery, other))
    assert other_records == records


def test_fewer_than_one_worker_raises_an_error(gallery: Gallery, photos: Path) -> None:
    for workers in (0, -1):
        with pytest.raises(InvalidOption, match=f"workers = {workers}: give at least 1"):
            gallery.add(photos, workers=workers)


HOLD_LOCK = (
    "import sys; from pathlib import Path; from bm25v.store.local.writer import Writer\n"
    "with Writer(Path(sys.argv[1])): print('locked', flush=True); sys.stdin.readline()"
)


def test_a_writer_waits_for_another_one_up_to_the_timeout(gallery: Gallery, photos: Path) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(gallery.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        for write in (
            lambda timeout: gallery.add(photos, timeout=timeout),
            lambda timeout: gallery.remove(photos, timeout=timeout),
            lambda timeout: gallery.compact(timeout=timeout),
        ):
            for timeout in (0.0, 0.2):
                start = time.monotonic()
                with pytest.raises(GalleryLocked, match=r"another process is writing to .*g"):
                    write(timeout)
                assert time.monotonic() - start >= timeout
        assert len(gallery.search(make_pixels(0), k=20, mode="dense")) == 12, (
            "readers are not blocked"
        )
        start = time.monotonic()
        release = threading.Timer(0.3, lambda: other.communicate(b"\n"))
        release.start()
        assert gallery.add(photos, timeout=60).unchanged == 12
        assert time.monotonic() - start >= 0.3
        release.join()


def test_a_killed_writer_does_not_keep_the_lock(gallery: Gallery, photos: Path) -> None:
    command = [sys.executable, "-c", HOLD_LOCK, str(gallery.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        other.kill()
    assert gallery.add(photos).unchanged == 12


def test_one_exclude_pattern_may_be_given_as_a_string(gallery: Gallery, photos: Path) -> None:
    assert gallery.add(photos, exclude="1*.png").unchanged == 9
    assert gallery.add(photos, exclude="1*.png", remove_missing=True).removed == 3
    assert photos / "0.png" in gallery
    assert photos / "10.png" not in gallery


def test_an_interrupted_index_does_not_wait_for_images_that_are_being_decoded(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, is_over = Vocabulary.decode_with_metadata, threading.Event()
    last = (photos / "9.png").read_bytes()

    def decode_slowly(self: Vocabulary, content: bytes) -> object:
        if content == last:
            assert is_over.wait(60)
        return decode(self, content)

    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", decode_slowly)
    gallery = make_gallery("g")
    try:
        with pytest.raises(KeyboardInterrupt):
            gallery.add(photos, workers=2, progress=interrupt)
        assert not is_over.is_set()
        n_done = len(gallery)
        assert 1 <= n_done <= 8, "not those of the last batch"
    finally:
        is_over.set()
    monkeypatch.undo()
    assert gallery.add(photos).added == 12 - n_done


def test_ctrl_c_ends_a_command_while_an_image_is_being_decoded(photos: Path) -> None:
    script = """
import sys, time
from bm25v.cli import main
from bm25v.vocabulary import Vocabulary
def decode_without_end(self, content):
    print("decoding", flush=True)
    time.sleep(600)
Vocabulary.decode_with_metadata = decode_without_end
sys.argv = ["bm25v", "index", "photos", "--vocabulary", "toy", "--workers", "1"]
main()
"""
    child = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=photos.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "decoding\n"
    child.send_signal(signal.SIGINT)
    _, printed = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "0 of 12 images were saved; run the same command again to continue" in printed


def test_ctrl_c_keeps_every_image_that_is_encoded(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    """Also those that come after an image that is still being decoded."""
    photos = tmp_path / "many"
    photos.mkdir()
    for seed in range(40):
        make_image(seed).save(photos / f"{seed:02}.png")
    make_gallery("g").close()
    script = """
import os, sys, time
from pathlib import Path
from bm25v import Gallery
from bm25v.vocabulary import Vocabulary
gallery, photos = sys.argv[1:]
slow, decode = Path(photos, "12.png").read_bytes(), Vocabulary.decode_with_metadata
encode = Vocabulary.encode_features
def decode_slowly(self, content):
    if content == slow:
        time.sleep(600)
    return decode(self, content)
def encode_and_report(self, features):
    encodings = encode(self, features)
    os.write(1, b"%d\\n" % len(encodings))
    return encodings
Vocabulary.decode_with_metadata, Vocabulary.encode_features = decode_slowly, encode_and_report
Gallery.open(gallery).add(photos, workers=2)
"""
    command = [sys.executable, "-c", script, str(tmp_path / "g"), str(photos)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, **pipes) as child, Gallery.open(tmp_path / "g") as gallery:
        try:
            assert child.stdout is not None
            # 12 before the slow image; its batch is one of the five that are begun at most.
            assert [child.stdout.readline() for _ in range(7)] == ["4\n"] * 7
            time.sleep(0.5)
            child.send_signal(signal.SIGINT)
            deadline = time.monotonic() + 60
            while len(gallery) == 0 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            child.kill()
    gallery = Gallery.open(tmp_path / "g")
    names = file_names(gallery)
    assert names == {f"{seed:02}.png" for seed in (*range(12), *range(16, 32))}
    assert gallery.problems() == []
    assert gallery.add(photos).added == 12


def test_a_new_image_takes_one_lookup_and_one_insert(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    photos, gallery = tmp_path / "many", make_gallery("g")
    photos.mkdir()
    statements: list[str] = []
    for n in (100, 250):
        for seed in range(n):
            make_image(seed + n, side=14).save(photos / f"{n} {seed}.png")
        with Writer(gallery.path) as writer:
            statements.clear()
            writer.catalog.db.set_trace_callback(statements.append)
            report = index_images(
                writer,
                gallery.vocabulary,
                [str(photos)],
                total=n,
                exclude=(),
                remove_missing=True,
                workers=None,
                progress=no_progress,
            )
            writer.catalog.db.set_trace_callback(None)
        assert report.added == n
        assert sum(text.startswith("INSERT INTO images") for text in statements) == n
        assert sum(text.startswith("SELECT row") for text in statements) <= n + 10
        assert len(statements) <= 2 * n + 25


def test_a_new_file_is_opened_once(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def open_and_record(file: Any, *arguments: Any, **options: Any) -> Any:
        opened.append(str(file))
        return open(file, *arguments, **options)

    gallery = make_gallery("g")
    monkeypatch.setattr(streams, "open", open_and_record, raising=False)
    assert gallery.add(photos).added == 12
    assert sorted(path for path in opened if path.startswith(f"{photos}/")) == sorted(
        map(str, photos.iterdir())
    )


def test_a_file_that_is_replaced_after_it_was_read_is_stored_as_it_was_read(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = Vocabulary.decode_with_metadata
    old = (photos / "3.png").read_bytes()

    def replace_and_decode(self: Vocabulary, content: bytes) -> object:
        if content == old:
            make_image(99).save(photos / "3.png")
        return decode(self, content)

    gallery = make_gallery("g")
    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "decode_with_metadata", replace_and_decode)
        assert gallery.add(photos).added == 12
    record = gallery.local.catalog.at_path(str(photos / "3.png"))
    assert record is not None
    assert record.content == files.hash_image(old)
    assert gallery.match(old, photos / "3.png").dense == pytest.approx(1, abs=1e-3)
    assert gallery.add(photos).updated == 1
    assert gallery.match(make_pixels(99), photos / "3.png").dense == pytest.approx(1, abs=1e-3)


def test_a_file_that_changes_while_it_is_read_is_reported(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_image = files.hash_image
    content = (photos / "3.png").read_bytes()

    def hash_and_grow(image: bytes) -> bytes:
        if image == content:
            with (photos / "3.png").open("ab") as file:
                file.write(b"more")
        return hash_image(image)

    gallery = make_gallery("g")
    monkeypatch.setattr(files, "hash_image", hash_and_grow)
    report = gallery.add(photos)
    assert report.added == 11
    assert [failure.error for failure in report.failed] == [
        "the file changed while it was read: run the command again"
    ]
    assert gallery.add(photos).added == 1


def test_a_file_on_a_failing_disk_is_reported(
    photos: Path, make_gallery: Callable[[str], Gallery], monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_file = files.hash_file

    def hash_or_fail(stream: streams.Stream) -> bytes:
        if str(getattr(stream, "name", "")).endswith("3.png"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return hash_file(stream)

    monkeypatch.setattr(files, "_MAX_BYTES", 0)
    monkeypatch.setattr(files, "hash_file", hash_or_fail)
    report = make_gallery("g").add(photos)
    assert report.added == 11
    assert [failure.error for failure in report.failed] == ["Input/output error"]


def test_a_batch_follows_its_own_changes(gallery: Gallery, photos: Path) -> None:
    """A file takes over the content of another one that changes in the same batch."""
    contents = {n: (photos / f"{n}.png").read_bytes() for n in range(12)}
    (photos / "0.png").write_bytes(contents[1])
    (photos / "1.png").write_bytes(contents[0])
    (photos / "2.png").write_bytes(contents[3])
    (photos / "3.png").unlink()
    (photos / "new.png").write_bytes(contents[2])
    report = gallery.add(photos, remove_missing=True)
    assert len(gallery) == 12
    assert (report.updated, report.added, report.removed, report.unchanged) == (3, 1, 1, 8)
    expected = {"0.png": 1, "1.png": 0, "2.png": 3, "new.png": 2, "4.png": 4}
    for name, number in expected.items():
        match = gallery.match(contents[number], photos / name)
        assert match.dense == pytest.approx(1, abs=1e-3)
    assert gallery.problems() == []
