"""A gallery of an older format is searched as before, and the next indexing adds full bags."""

import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bm25v.api import Gallery
from bm25v.errors import WrongUse
from bm25v.gallery import upgrade
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.catalog_schema import FILE_NAME, FORMAT
from bm25v.gallery.file_state import FileState
from bm25v.gallery.rows import RowFiles
from bm25v.gallery.writer import Writer, row_checksum
from bm25v.search import Mode
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.bag import FullBag, expand_bag
from tests.children import Report, die_at_step, finish, needs_fork, start
from tests.conftest import make_image, make_pixels
from tests.histories import make_encoding

GOLDEN = [Path(__file__).parent / "compat" / f"gallery-{number}" for number in range(1, 5)]
MODES: tuple[Mode, ...] = ("words", "hybrid")  # which need full bags
ROW_BYTES, FULL_BYTES = 64 + 24, 1024  # of an image: bag and dense vector, full bag

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")


def remove_full_bags(folder: Path) -> None:
    """Give a gallery the layout of format 4, which has no full bags."""
    with Gallery.open(folder) as gallery:
        snapshot = gallery.store.snapshot()
        files = RowFiles.of(folder, gallery.store.catalog.meta, snapshot.state)
        checksums = [
            (row_checksum(bag.tobytes(), dense_e.tobytes()), row)
            for row, (bag, dense_e) in enumerate(zip(snapshot.bags, snapshot.dense_ne, strict=True))
        ]
    assert files.full_bags is not None
    with sqlite3.connect(folder / FILE_NAME) as db:
        db.execute("DELETE FROM meta WHERE key LIKE 'full%' OR key LIKE 'second%'")
        db.execute("UPDATE meta SET value = 4 WHERE key = 'format'")
        db.executemany("UPDATE pictures SET checksum = ? WHERE row = ?", checksums)
    db.close()
    files.full_bags.path.unlink()


def stored_facts(folder: Path) -> dict[str, object]:
    with sqlite3.connect(folder / FILE_NAME) as db:
        facts = dict(db.execute("SELECT key, value FROM meta").fetchall())
    db.close()
    return facts


def stored_bits(folder: Path) -> list[Any]:
    """Return all that a gallery has stored: row files, statistics, paths and checksums."""
    with sqlite3.connect(folder / FILE_NAME) as db:
        records = db.execute("SELECT row, path, live, checksum FROM pictures").fetchall()
    db.close()
    files = {path.name: path.read_bytes() for path in folder.glob("*.rows")}
    return [files, stored_facts(folder), sorted(records)]


class Folders(NamedTuple):
    """A gallery of format 4, and the same gallery with full bags."""

    old: Path
    new: Path


@pytest.fixture
def folders(gallery: Gallery, tmp_path: Path) -> Folders:
    gallery.close()
    folder = tmp_path / "old"
    shutil.copytree(gallery.path, folder)
    remove_full_bags(folder)
    return Folders(folder, gallery.path)


def interrupt_at(n: int) -> Callable[[str, int, int], None]:
    """Return a progress function that interrupts an upgrade when n rows have full bags."""

    def interrupt(stage: str, done: int, total: int) -> None:
        if stage == "adding full bags" and done == n:
            raise KeyboardInterrupt

    return interrupt


def check_without_full_bags(gallery: Gallery) -> None:
    """Assert that a gallery is intact, and searched as before there were full bags."""
    assert gallery.problems() == []
    assert not gallery.info().has_full_bags
    image = make_pixels(1)
    by_words = gallery.search(image, mode="sparse", k=99)
    hits = gallery.search(image, k=99)
    assert hits.mode == "two-stage"
    assert {hit.path for hit in hits} == {hit.path for hit in by_words}
    cosines = [hit.dense for hit in hits]
    assert cosines == sorted(cosines, key=lambda cosine: -(cosine or 0))
    assert {hit.path: hit.first_rank for hit in hits} == {hit.path: hit.rank for hit in by_words}
    word = by_words[0].words[0].word
    assert gallery.search(image, boost={word: 2.0}).mode == "sparse"
    assert gallery.search(must=word).mode == "sparse"
    with_word = {hit.path for hit in gallery.search(image, must=word, mode="dense", k=99)}
    without = {hit.path for hit in gallery.search(image, without=word, mode="dense", k=99)}
    assert by_words[0].path in with_word
    assert (with_word & without, len(with_word | without)) == (set(), len(gallery))
    for mode in MODES:
        with pytest.raises(WrongUse, match=f"mode '{mode}': .* `bm25v index` on its folders adds"):
            gallery.search(image, mode=mode)


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.name)
def test_a_gallery_of_an_older_format_is_searched_as_before_and_then_upgraded(
    golden: Path, photos: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "g"
    shutil.copytree(golden, folder)
    reader = Gallery.open(folder)
    check_without_full_bags(reader)
    n_rows = reader.store.snapshot().state.n_rows
    with Gallery.open(folder) as gallery:
        report = gallery.add(photos)
    assert (report.upgraded, report.added) == (n_rows, 12)
    assert stored_facts(folder)["format"] == FORMAT
    assert reader.info().has_full_bags
    assert reader.problems() == []
    results = reader.search(make_pixels(1), k=99)
    assert (results.mode, len(results)) == ("hybrid", 16)
    reader.close()


def test_an_upgraded_gallery_is_the_same_bits_as_a_new_one(folders: Folders, photos: Path) -> None:
    assert stored_bits(folders.old) != stored_bits(folders.new)
    with Gallery.open(folders.old) as gallery:
        check_without_full_bags(gallery)
        report = gallery.add(photos)
        assert (report.upgraded, report.unchanged, report.added) == (12, 12, 0)
        assert gallery.add(photos).upgraded == 0
    assert stored_bits(folders.old) == stored_bits(folders.new)


def test_an_interrupted_upgrade_goes_on_where_it_was(
    folders: Folders, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BATCH", 2)
    encoded: list[object] = []
    decode = Vocabulary.decode_with_metadata

    def decode_and_record(self: Vocabulary, image: Any) -> object:
        encoded.append(image)
        return decode(self, image)

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", decode_and_record)
    with Gallery.open(folders.old) as gallery:
        n_done = 0
        for n in (3, 8, 11):
            with pytest.raises(KeyboardInterrupt):
                gallery.add(photos, progress=interrupt_at(n))
            n_committed = stored_facts(folders.old)["full_rows"]
            assert isinstance(n_committed, int)
            assert n_done < n_committed < 12
            n_done = n_committed
            check_without_full_bags(gallery)
        encoded.clear()
        assert gallery.add(photos).upgraded == 12 - n_done
        assert len(encoded) == 12 - n_done
    assert stored_bits(folders.old) == stored_bits(folders.new)


@needs_fork
def test_an_upgrade_killed_at_any_step_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BATCH", 2)
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(5):
        make_image(seed).save(photos / f"{seed}.png")
    with Gallery.create(tmp_path / "new", vocabulary="toy") as new:
        new.add(photos)
    shutil.copytree(new.path, tmp_path / "old")
    remove_full_bags(tmp_path / "old")
    expected = stored_bits(new.path)
    n_done = set()
    for n in count(step=3):
        folder = tmp_path / f"{n}"
        shutil.copytree(tmp_path / "old", folder)

        def upgrade_and_die(report: Report, folder: Path = folder, n: int = n) -> None:
            with Gallery.open(folder) as gallery:
                die_at_step(n)
                gallery.add(photos, workers=1)

        code, _ = finish(*start(upgrade_and_die))
        with Gallery.open(folder) as gallery:
            assert gallery.problems() == []
            assert gallery.search(make_pixels(1)).hits
            n_done.add(stored_facts(folder).get("full_rows", 0))
            gallery.add(photos)
        assert stored_bits(folder) == expected
        shutil.rmtree(folder)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert n_done > {0, 5}


def test_full_bags_are_synced_before_the_commit_that_names_them(
    folders: Folders, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("needs /proc")
    monkeypatch.setattr(upgrade, "BATCH", 4)
    events: list[str] = []
    sync, commit = os.fsync, Catalog.commit

    def sync_and_record(file: int) -> None:
        sync(file)
        events.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    def commit_and_record(catalog: Catalog) -> None:
        events.append("commit")
        commit(catalog)

    monkeypatch.setattr(os, "fsync", sync_and_record)
    monkeypatch.setattr(Catalog, "commit", commit_and_record)
    with Gallery.open(folders.old) as gallery:
        gallery.add(photos)
    commits = " ".join(events).split("commit")
    assert len(commits) > 3
    assert commits[0].split()[:2] == ["full.rows", "old"]  # made, and its name
    for synced in commits[:-1]:
        assert synced.split()[-3:] == ["bags.rows", "dense.rows", "full.rows"]


def test_images_without_their_file_get_the_words_of_their_bag(tmp_path: Path) -> None:
    photos, folder = tmp_path / "photos", tmp_path / "g"
    photos.mkdir()
    for seed in range(6):
        make_image(seed).save(photos / f"{seed}.bmp")
    with Gallery.create(folder, vocabulary="toy") as gallery:
        gallery.add(photos)
        gallery.add({"cat": make_image(7)})
        gallery.remove(photos / "5.bmp")
        before = gallery.store.snapshot()
    remove_full_bags(folder)
    (photos / "1.bmp").unlink()
    make_image(11, side=80).save(photos / "2.bmp")
    status = (photos / "3.bmp").stat()
    make_image(12).save(photos / "3.bmp")  # of the same size and time, but another image
    os.utime(photos / "3.bmp", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert (photos / "3.bmp").stat().st_size == status.st_size
    with Gallery.open(folder) as gallery:
        assert gallery.add(photos / "0.bmp").upgraded == 7
        after = gallery.store.snapshot()
        assert before.full_bags is not None
        assert after.full_bags is not None
        for row in range(7):
            known = before.full_bags.full_bag(row)
            full_bag = known if row in (0, 4) else expand_bag(before.bag(row))
            assert len(full_bag.words) < len(known.words) or row in (0, 4)
            for name in FullBag._fields:
                stored = getattr(after.full_bags.full_bag(row), name)
                assert stored.tolist() == getattr(full_bag, name).tolist()
        assert after.word_statistics.n == 6
        assert gallery.problems() == []
        gallery.add(photos / "5.bmp")  # restored
        assert gallery.store.snapshot().word_statistics.n == 7
        assert gallery.problems() == []


def test_a_reader_that_was_open_before_an_upgrade_follows_it(
    folders: Folders, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BATCH", 2)
    image = make_pixels(30)
    with Gallery.open(folders.new) as new:
        expected = {mode: new.search(image, mode=mode).hits for mode in MODES}
    with Gallery.open(folders.old) as reader, Gallery.open(folders.old) as gallery:
        old = reader.store.snapshot()
        with pytest.raises(KeyboardInterrupt):
            gallery.add(photos, progress=interrupt_at(7))
        check_without_full_bags(reader)
        gallery.add(photos)
        assert {mode: reader.search(image, mode=mode).hits for mode in expected} == expected
        assert old.full_bags is None
        assert old.bag(3).words.tolist() == reader.store.snapshot().bag(3).words.tolist()


@pytest.mark.parametrize("n_upgraded", [0, 7])
def test_a_gallery_is_compacted_without_full_bags_and_in_the_middle_of_an_upgrade(
    folders: Folders, photos: Path, n_upgraded: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BATCH", 2)
    removed = [photos / "2.png", photos / "8.png"]
    with Gallery.open(folders.new) as new:
        rows = [new.store.find_image(path, new.store.snapshot()).row for path in removed]
        assert min(rows) < 7 < max(rows)
        new.remove(removed)
        assert new.compact() == 2 * (ROW_BYTES + FULL_BYTES)
    with Gallery.open(folders.old) as gallery:
        if n_upgraded:
            with pytest.raises(KeyboardInterrupt):
                gallery.add(photos, progress=interrupt_at(n_upgraded))
            assert stored_facts(folders.old)["full_rows"] == n_upgraded
        gallery.remove(removed)
        assert gallery.compact() == 2 * ROW_BYTES + (FULL_BYTES if n_upgraded else 0)
        check_without_full_bags(gallery)
        assert stored_facts(folders.old).get("full_rows") == (6 if n_upgraded else None)
        for path in removed:
            path.unlink()
        assert gallery.add(photos).upgraded == (4 if n_upgraded else 10)
        assert gallery.problems() == []
    assert stored_bits(folders.old) == stored_bits(folders.new)


def test_images_may_be_changed_in_the_middle_of_an_upgrade(
    folders: Folders, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upgrade, "BATCH", 2)
    with Gallery.open(folders.old) as gallery:
        with pytest.raises(KeyboardInterrupt):
            gallery.add(photos, progress=interrupt_at(7))
        gallery.remove([photos / "0.png", photos / "9.png"])
        with Writer(folders.old) as writer:
            file = FileState("/photos/3-a.png", bytes(16), 3, 3)
            writer.put(file, make_encoding(3))
            writer.put_copy(file._replace(path="/photos/3-b.png"), 1)
            row = next(r.row for r in writer.catalog.records() if not r.live)
            writer.move(row, file._replace(path="/photos/0-moved.png"))
            writer.commit()
        check_without_full_bags(gallery)
        report = gallery.add(photos)
        assert report.upgraded == 12 + 2 - 7
        assert gallery.problems() == []
        assert gallery.info().has_full_bags
        assert gallery.store.snapshot().word_statistics.n == len(gallery)


def test_a_gallery_stores_as_many_words_as_it_was_made_for(photos: Path, tmp_path: Path) -> None:
    """The vocabulary has more words in a full bag by now, or its bags have more than full bags."""
    toy = Vocabulary.load("toy")
    for k_full in (8, 100):
        replace(toy, k_full=k_full).save(tmp_path / f"{k_full}")
    with Gallery.create(tmp_path / "g", vocabulary=tmp_path / "8") as gallery:
        gallery.add(photos / "1.png")
    with Gallery.open(tmp_path / "g", vocabulary=tmp_path / "100") as gallery:
        gallery.add({"two": photos / "2.png"})
        full_bags = gallery.store.snapshot().full_bags
        expected = replace(toy, k_full=8).encode(photos / "2.png").full_bag
        assert full_bags is not None
        assert expected is not None
        assert full_bags.full_bag(1).words.tolist() == expected.words.tolist()
        assert gallery.problems() == []
    remove_full_bags(tmp_path / "g")
    with Gallery.open(tmp_path / "g", vocabulary=tmp_path / "8") as gallery:
        assert gallery.add(photos / "1.png").upgraded == 2
        assert gallery.problems() == []
        full_bags = gallery.store.snapshot().full_bags
        assert full_bags is not None
        assert len(full_bags.full_bag(1).words) == 8
