"""Whatever happens to a writer or a disk: commits are kept, and each is complete or absent."""

import errno
import os
import random
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterable
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import pytest

from bm25v.errors import Bm25vError, GalleryDamaged, GalleryError, GalleryLocked, StorageFull
from bm25v.gallery import Gallery
from bm25v.search.scoring import MODES
from bm25v.store.local import names
from bm25v.store.local.catalog import FILE_NAME, Catalog
from bm25v.store.local.rows import HEADER_BYTES, RowFiles
from bm25v.store.local.writer import Writer
from tests.children import REFUSED, Report, die_at_step, finish, needs_fork, start
from tests.conftest import make_pixels
from tests.histories import (
    Contents,
    change_randomly,
    check_contents,
    check_row_files,
    fill_gallery,
    make_encoding,
    random_sessions,
    run_session,
    write_contents,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

KILLS = 200
FLIPS = 80
ROW_FILES = ["bags.rows", "dense.rows", "full.rows"]

Plan = Iterable[list[Contents]]  # the commits of one writer after the other

needs_proc = pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    return tmp_path / "g"


def run_plan(folder: Path, plan: Plan, report: Report) -> None:
    """Run one writer after the other; report each commit."""
    for commits in plan:
        for _ in run_session(folder, commits):
            report()


def possible_versions(contents: Contents, plan: Plan, reported: int) -> list[Contents]:
    """Return the contents after the last reported commit, and after the next one."""
    commits = chain([contents], chain.from_iterable(plan))
    return list(islice(commits, reported, reported + 2))


def short_plan(seed: int, contents: Contents) -> list[list[Contents]]:
    """Return two commits, a compaction and another commit."""
    rng = random.Random(seed)
    first = change_randomly(rng, contents)
    second = change_randomly(rng, first)
    return [[first, second], [], [change_randomly(rng, second)]]


@needs_fork
def test_writers_killed_at_any_time_lose_no_commit(folder: Path) -> None:
    rng = random.Random(25)
    contents: Contents = {}
    commits = 0
    for seed in range(10 * KILLS):
        if seed >= KILLS and commits > KILLS / 2:
            break
        plan = random_sessions(seed, contents)

        def write(report: Report, plan: Plan = plan) -> None:
            run_plan(folder, plan, report)

        child, pipe = start(write)
        time.sleep(rng.uniform(0, 0.12 * (1 + seed // KILLS)))  # a slow machine gets more time
        os.kill(child, signal.SIGKILL)
        code, reported = finish(child, pipe)
        assert code == -signal.SIGKILL
        contents = check_contents(
            folder, *possible_versions(contents, random_sessions(seed, contents), reported)
        )
        commits += reported
    assert commits > KILLS / 2


@needs_fork
def test_writers_killed_between_any_two_steps_leave_no_partial_commit(folder: Path) -> None:
    contents: Contents = {}
    for n in count():
        plan = short_plan(n, contents)

        def write_and_die(report: Report, plan: Plan = plan, n: int = n) -> None:
            die_at_step(n)
            run_plan(folder, plan, report)

        code, reported = finish(*start(write_and_die))
        contents = check_contents(folder, *possible_versions(contents, plan, reported))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert n > 60
    check_row_files(folder)


def test_a_failed_sync_raises_an_error_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents: Contents = {}
    numbers = count()
    for n in count():
        first, second, third = (f"/photos/{number}-a.png" for number in islice(numbers, 3))
        one, two = {first: 3 * n}, {second: 3 * n + 1}  # each commit has a new row
        plan = [[one, two], [], [{**two, third: 3 * n + 2}]]
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fail_once(os.fsync, n))
            try:
                for commits in plan:
                    for contents in run_session(folder, commits):  # noqa: B007 - the last one is needed
                        pass
                break
            except GalleryError as error:
                assert str(error) == (
                    f"cannot write to {folder}: Input/output error; everything committed is kept"
                )
        check_row_files(folder)
        check_contents(folder, contents)
    assert n == 16  # 3 + 3 of the commits, 7 of the compaction, 3 of the commit after it


def fail_once(call: Callable[[int], None], n: int) -> Callable[[int], None]:
    """Return a function that raises an error at its n-th call."""
    calls = count()

    def call_or_fail(file: int) -> None:
        if next(calls) == n:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        call(file)

    return call_or_fail


@needs_fork
def test_nothing_is_lost_when_files_cannot_grow(folder: Path) -> None:
    """Files have a size limit: any write may fail, those of the database too."""
    resource = pytest.importorskip("resource")  # not on Windows
    contents: Contents = {}
    codes = set()
    for limit in chain(range(0, 8_000, 500), range(8_000, 140_000, 4_000)):
        plan = short_plan(limit, contents)

        def write_with_limit(report: Report, plan: Plan = plan, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            run_plan(folder, plan, report)

        code, reported = finish(*start(write_with_limit))
        contents = check_contents(folder, *possible_versions(contents, plan, reported))
        codes.add(code)
    assert codes == {0, REFUSED}


@needs_fork
def test_nothing_is_lost_when_the_disk_is_full(small_disk: Path) -> None:
    folder = small_disk / "g"
    Gallery.create(folder, vocabulary="toy").close()
    contents: Contents = {}
    refused = 0
    for free_kilobytes in range(0, 120, 4):
        ballast = small_disk / "ballast"
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(bytes(max(0, free - free_kilobytes * 1024)))
        plan = short_plan(free_kilobytes, contents)

        def fill_up(report: Report, plan: Plan = plan) -> None:
            try:
                run_plan(folder, plan, report)
            except GalleryError as error:
                assert isinstance(error, StorageFull) or "cannot read or write" in str(error)
                raise

        code, reported = finish(*start(fill_up))
        assert code in (0, REFUSED)
        refused += code == REFUSED
        ballast.unlink()
        contents = check_contents(folder, *possible_versions(contents, plan, reported))
    assert 0 < refused < 30


class Disk:
    """Simulates a power cut: only synced files, and names in synced folders, survive."""

    def __init__(self, folder: Path, synced: Path) -> None:
        self.folder, self.synced = folder, synced
        shutil.copytree(folder, synced)
        self.names = {path.name for path in folder.iterdir()}

    def record_sync(self, file: int) -> None:
        """Store the file or the names of the folder that was synced."""
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == self.folder:
            self.names = {path.name for path in self.folder.iterdir()}
        else:
            shutil.copy(path, self.synced / path.name)

    def cut_power(self, survivors: Path) -> Path:
        """Write what survives to a folder; SQLite is trusted to sync its own files."""
        survivors.mkdir()
        for path in self.folder.iterdir():
            if path.name.startswith("catalog."):
                shutil.copy(path, survivors)
            elif path.name in self.names and (self.synced / path.name).exists():
                shutil.copy(self.synced / path.name, survivors)
        return survivors


@needs_proc
def test_a_power_cut_at_a_commit_leaves_all_of_it_or_none(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, tmp_path / "synced")
    sync, commit = os.fsync, Catalog.commit
    cuts: list[Path] = []

    def sync_and_record(file: int) -> None:
        sync(file)
        disk.record_sync(file)

    def commit_and_cut(catalog: Catalog) -> None:
        cuts.append(disk.cut_power(tmp_path / f"cut {len(cuts)}"))
        commit(catalog)
        cuts.append(disk.cut_power(tmp_path / f"cut {len(cuts)}"))

    monkeypatch.setattr(os, "fsync", sync_and_record)
    monkeypatch.setattr(Catalog, "commit", commit_and_cut)
    contents: Contents = {}
    expected: list[Contents] = []
    for commits in islice(random_sessions(3, contents), 12):
        expected += [contents, contents] if not commits else []
        before = len(cuts)
        for after in run_session(folder, commits):
            expected += [contents, after]
            contents = after
        if not commits and len(cuts) == before:  # there was nothing to compact
            del expected[-2:]
        cuts.append(disk.cut_power(tmp_path / f"cut {len(cuts)}"))
        expected.append(contents)
    assert len(cuts) == len(expected) > 30
    for survivors, contents in zip(cuts, expected, strict=True):
        check_contents(survivors, contents)


@needs_fork
def test_an_unfinished_commit_of_a_killed_writer_does_not_come_back_later(folder: Path) -> None:
    """SQLite reads all of the log again when the last process that had it open is gone."""
    first, second, third = ({f"/photos/{n}-a.png": n} for n in (1, 2, 3))
    assert list(run_session(folder, [first])) == [first]
    index = folder / f"{FILE_NAME}-shm"
    answered, go_on = os.pipe(), os.pipe()

    def read(report: Report) -> None:
        with Gallery.open(folder) as gallery:
            len(gallery)
            os.write(answered[1], b".")
            os.read(go_on[0], 1)

    def commit_and_die(report: Report) -> None:
        for _ in run_session(folder, [second]):
            os._exit(0)

    def write_and_die(report: Report) -> None:
        with Writer(folder) as writer:
            write_contents(writer, third)
            os._exit(0)

    reader = start(read)
    os.read(answered[0], 1)
    before = index.read_bytes()
    finish(*start(commit_and_die))
    assert index.read_bytes() != before
    with index.open("r+b") as file:
        file.write(before)  # as if the writer had died before the log was synced
    finish(*start(write_and_die))
    os.kill(reader[0], signal.SIGKILL)
    finish(*reader)
    check_contents(folder, first)


def record_syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each file or folder that is synced from now on."""
    synced: list[str] = []
    sync = os.fsync

    def sync_and_record(file: int) -> None:
        sync(file)
        synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    monkeypatch.setattr(os, "fsync", sync_and_record)
    return synced


@needs_proc
def test_row_files_are_synced_only_if_rows_were_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = record_syncs(monkeypatch)
    both, one = {"/photos/1-a.png": 1, "/photos/2-a.png": 2}, {"/photos/1-a.png": 1}
    for contents, expected in ((both, ROW_FILES), (one, []), (both, [])):
        synced.clear()
        assert list(run_session(folder, [contents])) == [contents]
        assert synced == expected
    check_contents(folder, both)


def test_the_catalogue_is_synced_at_every_commit(folder: Path) -> None:
    with Writer(folder) as writer:
        assert writer.catalog.execute("PRAGMA synchronous") == [(2,)]
        assert writer.catalog.execute("PRAGMA journal_mode") == [("wal",)]


def test_a_writer_deletes_what_killed_processes_left(folder: Path) -> None:
    hour_ago = time.time() - 3_700
    old = [folder / ".names.tsv.0123.part", folder.parent / ".g.abcdefgh"]
    kept = [
        folder / ".names.tsv.4567.part",
        folder.parent / ".g.ijklmnop",
        folder.parent / ".g.settings",
        folder.parent / ".other.abcdefgh",
    ]
    for path in (*old, *kept):
        if path.suffix == ".part":
            path.write_text("a part of a table")
        else:
            path.mkdir()
            (path / ("mine" if path.suffix == ".settings" else "folder")).mkdir()
    for path in (*old, *kept[2:]):
        os.utime(path, (hour_ago, hour_ago))
    with Writer(folder):
        pass
    assert [path for path in old if path.exists()] == []
    assert all(path.exists() for path in kept)


@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_file_system_without_locks_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fcntl = pytest.importorskip("fcntl")  # not on Windows

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    with Writer(folder):
        pass  # leaves a lock file, as on the disk that the gallery was copied from
    (folder / "names.lock").touch()
    monkeypatch.setattr(fcntl, "flock", fail)
    monkeypatch.setattr(names, "LOCK_SECONDS", 0.05)
    with Gallery.open(folder) as gallery:
        with pytest.raises(
            GalleryLocked, match=r"has no file locks \(flock\).*naming words.*delete .*names\.lock"
        ):
            gallery.name_words({7: "grass"})
        with pytest.raises(
            GalleryLocked, match=r"has no file locks \(flock\).*delete .*writer\.lock"
        ):
            gallery.remove("/photos")
        (folder / "writer.lock").unlink()
        assert gallery.remove("/photos") == 0


@needs_proc
def test_a_new_gallery_is_synced_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = record_syncs(monkeypatch)
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    assert synced == ["bags.rows", "dense.rows", "full.rows", "folder", tmp_path.name]


Facts = tuple[list[Any], list[tuple[str, float]]]


def facts(folder: Path) -> tuple[list[str], Facts]:
    """Return the problems of a gallery, its records and its search results."""
    with Gallery.open(folder) as gallery:
        hits = []
        for is_indexed in (False, True):
            if is_indexed:
                gallery.local.snapshot().searcher.build_index()
            for mode in MODES:
                results = gallery.search(make_encoding(3), k=100, mode=mode)
                hits += [(hit.path, hit.sparse) for hit in results]
        records = [
            (record.row, record.live, record.content, record.checksum, record.live and record.path)
            for record in gallery.local.catalog.records()
        ]
        return gallery.problems(), (records, sorted(hits))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a damaged vector may not be numbers
@pytest.mark.parametrize("name", [*ROW_FILES, FILE_NAME])
def test_flipped_bits_are_reported_or_harmless(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    fill_gallery(tmp_path / "intact")
    content = (tmp_path / "intact" / name).read_bytes()
    problems, expected = facts(tmp_path / "intact")
    assert problems == []
    used = [i for i, byte in enumerate(content) if byte]  # most of a catalogue is empty
    n_reported = 0
    for _ in range(FLIPS):
        damaged = bytearray(content)
        damaged[rng.choice(used)] ^= 1 << rng.randrange(8)
        n_reported += is_reported(tmp_path, name, bytes(damaged), expected)
    assert n_reported > FLIPS / 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", [*ROW_FILES, FILE_NAME])
def test_truncated_files_are_reported(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    fill_gallery(tmp_path / "intact")
    content = (tmp_path / "intact" / name).read_bytes()
    _, expected = facts(tmp_path / "intact")
    size = len(content)
    for length in [0, 1, 63, 64, size - 1, *(rng.randrange(size) for _ in range(20))]:
        assert is_reported(tmp_path, name, content[:length], expected)
        zeroed = content[:length] + bytes(size - length)  # as after a power cut
        assert is_reported(tmp_path, name, zeroed, expected) or zeroed == content


def is_reported(tmp_path: Path, name: str, damaged: bytes, expected: Facts) -> bool:
    """Return whether damage to one file is reported; if not, assert that it has no effect."""
    folder = tmp_path / "damaged"
    shutil.copytree(tmp_path / "intact", folder)
    (folder / name).write_bytes(damaged)
    try:
        problems, results = facts(folder)
    except Bm25vError:
        return True
    finally:
        shutil.rmtree(folder)
    assert problems or results == expected
    return bool(problems)


@pytest.mark.parametrize("name", ROW_FILES)
def test_a_missing_row_file_is_named(tmp_path: Path, name: str) -> None:
    fill_gallery(tmp_path / "g")
    (tmp_path / "g" / name).unlink()
    with Gallery.open(tmp_path / "g") as gallery:
        for use in (
            gallery.problems,
            gallery.info,
            lambda: gallery.search(make_encoding(3)),
            lambda: gallery.remove("/photos"),
        ):
            with pytest.raises(GalleryDamaged, match=f"{name} is missing"):
                use()


def change_fact(folder: Path, key: str, value: object) -> None:
    """Change an entry of the catalogue, or delete it."""
    with sqlite3.connect(folder / FILE_NAME) as db:
        db.execute("DELETE FROM meta WHERE key = ?", [key])
        if value is not None:
            db.execute("INSERT INTO meta VALUES (?, ?)", [key, value])
    db.close()


def test_verification_names_the_row_of_a_changed_full_bag(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        for record in list(gallery.local.catalog.images())[:5]:
            path = gallery.path / "full.rows"
            content = bytearray(path.read_bytes())
            content[HEADER_BYTES + 1024 * record.row] ^= 1
            path.write_bytes(content)
            problem = f"row {record.row} ({record.path}): its bytes have changed"
            assert problem in gallery.problems()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k1", 1.75),
        ("b", 0.7),
        ("backbone_fingerprint", "abc"),
        ("checksum", 1),
        ("checksum", None),
    ],
)
def test_verification_reports_a_changed_constant(tmp_path: Path, key: str, value: object) -> None:
    contents = fill_gallery(tmp_path / "g")
    change_fact(tmp_path / "g", key, value)
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.problems() == [
            "catalogue: k1, b or another fact that never changes has changed"
        ]
        assert gallery.remove(next(iter(contents))) == 1
        assert len(gallery.problems()) == 1, "a commit does not make it right"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hit_weak", 0.123),
        ("hit_strong", 9.0),
        ("hit_strong", None),
        ("hit_images", 10**6),
        ("hit_checksum", None),
    ],
)
def test_verification_reports_a_changed_calibration(
    gallery: Gallery, key: str, value: object
) -> None:
    gallery.add({str(seed): make_pixels(seed) for seed in range(100, 150)})
    gallery.refresh()
    assert gallery.local.snapshot().state.calibration is not None
    assert gallery.problems() == []
    change_fact(gallery.path, key, value)
    assert gallery.problems() == ["catalogue: what a weak and a strong hit is has changed"]


@pytest.mark.parametrize("name", ["names.tsv", "automatic.tsv"])
@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe\n", "is not UTF-8 text"),
        (b"7\tgrass\n7\tsky\n", "line 2: word 7 already has the name"),
        (b"999999\tgrass\n", "line 1: no word 999999"),
        (b"# bm25v word names, format 1, vocabulary abc\n", "names for another vocabulary"),
    ],
)
def test_verification_reports_damaged_names(
    gallery: Gallery, name: str, content: bytes, problem: str
) -> None:
    gallery.name_words({7: "grass"})
    assert gallery.problems() == []
    (gallery.path / name).write_bytes(content)
    (reported,) = gallery.problems()
    assert reported.startswith(str(gallery.path / name))
    assert problem in reported
    (gallery.path / name).unlink()
    assert gallery.problems() == []


@pytest.mark.parametrize("change", [-1, 1])
@pytest.mark.parametrize("key", ["full_images", "full_length", "full_df"])
def test_verification_reports_wrong_statistics(tmp_path: Path, key: str, change: int) -> None:
    fill_gallery(tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        statistics = gallery.local.snapshot().full_statistics
        df_v = statistics.df_v.astype("<i4")
        df_v[(df_v > 0).argmax()] += change
        values: dict[str, Any] = {
            "full_images": statistics.n + change,
            "full_length": statistics.total_length + change,
            "full_df": df_v.tobytes(),
        }
        change_fact(gallery.path, key, values[key])
        assert gallery.problems() == ["catalogue: its statistics are not those of the full bags"]
        assert gallery.search(make_encoding(3)).hits


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("full_images", -1),
        ("full_images", "many"),
        ("full_length", -1),
        ("full_length", None),
        ("full_df", b"\xff" * 4 * 192),
        ("full_df", b"\x7f" * 4 * 192),
        ("full_df", bytes(4 * 191)),
        ("full_df", None),
    ],
)
def test_impossible_statistics_are_reported(tmp_path: Path, key: str, value: object) -> None:
    fill_gallery(tmp_path / "g")
    change_fact(tmp_path / "g", key, value)
    with Gallery.open(tmp_path / "g") as gallery:
        assert gallery.problems() == ["catalogue: it has no valid statistics of full bags"]
        for use in (
            lambda: gallery.search(make_encoding(3)),
            lambda: gallery.remove("/photos"),
        ):
            with pytest.raises(GalleryDamaged, match="no valid statistics: run bm25v verify"):
                use()


@pytest.mark.parametrize(
    ("key", "value"),
    [("k_full", 0), ("k_full", -1), ("k_full", 2**62), ("k_post", 0), ("n_patches", -7)],
)
def test_an_impossible_size_is_reported(tmp_path: Path, key: str, value: int) -> None:
    fill_gallery(tmp_path / "g")
    change_fact(tmp_path / "g", key, value)
    with pytest.raises(GalleryDamaged, match=f"{key} is {value}, not a whole number"):
        Gallery.open(tmp_path / "g")


def test_another_size_than_that_of_the_rows_is_reported(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    change_fact(tmp_path / "g", "k_full", 255)
    with Gallery.open(tmp_path / "g") as gallery:
        for use in (
            gallery.problems,
            lambda: gallery.search(make_encoding(3)),
            lambda: gallery.remove("/photos"),
        ):
            with pytest.raises(
                GalleryDamaged, match=r"full\.rows is not a row file with 1020 bytes"
            ):
                use()


def test_a_damaged_full_bag_raises_gallery_damaged(tmp_path: Path) -> None:
    """Its words are valid numbers of two bytes, but not words of the vocabulary."""
    contents = fill_gallery(tmp_path / "g")
    path = tmp_path / "g" / "full.rows"
    content = path.read_bytes()
    path.write_bytes(content[:HEADER_BYTES] + b"\xff" * (len(content) - HEADER_BYTES))
    with Gallery.open(tmp_path / "g") as gallery:
        query = make_encoding(3)
        for use in (
            lambda: gallery.search(query),
            lambda: gallery.match(query, next(iter(contents))),
            lambda: gallery.search(query, like=next(iter(contents))),
            lambda: gallery.remove("/photos"),
        ):
            with pytest.raises(GalleryDamaged, match="run bm25v verify"):
                use()
        assert gallery.search(query, mode="words").no_match is not None
        assert gallery.search(query, mode="sparse").hits
        assert len(gallery.problems()) == len(list(gallery.local.catalog.records()))
    assert (tmp_path / "g" / "full.rows").stat().st_size == len(content)


@pytest.mark.parametrize("mode", ["hybrid", "words"])
def test_a_damaged_empty_slot_of_a_full_bag_raises_gallery_damaged(
    tmp_path: Path, mode: Any
) -> None:
    """Its word is beyond the vocabulary, and its frequency is 0."""
    fill_gallery(tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        state = gallery.local.snapshot().state
        file = RowFiles.of(gallery.path, gallery.store.meta, state.generation).full_bags
        assert gallery.search(make_encoding(3), mode=mode).hits
    rows = file.view(state.n_rows).copy()
    rows["words"][rows["levels"] == 0] = 0xFFFF
    file.path.write_bytes(file.path.read_bytes()[:HEADER_BYTES] + rows.tobytes())
    with (
        Gallery.open(tmp_path / "g") as gallery,
        pytest.raises(GalleryDamaged, match="no valid bag: run bm25v verify"),
    ):
        gallery.search(make_encoding(3), mode=mode)
