"""Whatever happens to a writer or a disk: what was committed is kept, nothing is half there."""

import errno
import os
import random
import resource
import shutil
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import chain, count, islice
from pathlib import Path
from typing import Any, get_args

import pytest

from bm25v.api import Gallery
from bm25v.errors import Bm25vError, GalleryError, StorageFull
from bm25v.gallery.catalog import FILE_NAME, Catalog
from bm25v.gallery.writer import Writer
from bm25v.search import Mode
from tests.children import REFUSED, Report, die_at_step, finish, start
from tests.histories import (
    Contents,
    change_randomly,
    check_contents,
    check_row_files,
    fill_gallery,
    make_encoding,
    random_sessions,
    run_session,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

KILLS = 200
FLIPS = 150

Plan = Iterable[list[Contents]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    return tmp_path / "g"


def carry_out(folder: Path, plan: Plan, report: Report) -> None:
    for commits in plan:
        for _ in run_session(folder, commits):
            report()


def possible(contents: Contents, plan: Plan, reported: int) -> list[Contents]:
    """Return what the last commit reported has left, and what the next one would leave."""
    commits = chain([contents], chain.from_iterable(plan))
    return list(islice(commits, reported, reported + 2))


def short_plan(seed: int, contents: Contents) -> list[list[Contents]]:
    """Return two commits, a compaction and another commit."""
    rng = random.Random(seed)
    first = change_randomly(rng, contents)
    second = change_randomly(rng, first)
    return [[first, second], [], [change_randomly(rng, second)]]


def test_writers_killed_at_any_time_lose_nothing_and_leave_nothing_half_done(folder: Path) -> None:
    rng = random.Random(25)
    contents: Contents = {}
    commits = 0
    for seed in range(KILLS):
        plan = random_sessions(seed, contents)

        def write_on(report: Report, plan: Plan = plan) -> None:
            carry_out(folder, plan, report)

        child, pipe = start(write_on)
        time.sleep(rng.uniform(0, 0.12))
        os.kill(child, signal.SIGKILL)
        code, reported = finish(child, pipe)
        assert code == -signal.SIGKILL
        contents = check_contents(
            folder, *possible(contents, random_sessions(seed, contents), reported)
        )
        commits += reported
    assert commits > KILLS / 2


def test_writers_killed_between_any_two_steps_leave_nothing_half_done(folder: Path) -> None:
    contents: Contents = {}
    for n in count():
        plan = short_plan(n, contents)

        def write_until(report: Report, plan: Plan = plan, n: int = n) -> None:
            die_at_step(n)
            carry_out(folder, plan, report)

        code, reported = finish(*start(write_until))
        contents = check_contents(folder, *possible(contents, plan, reported))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert n > 60
    check_row_files(folder)


def test_a_failing_sync_is_said_and_changes_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents: Contents = {}
    for n in count():
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing(os.fsync, n))
            try:
                for commits in short_plan(n, contents):
                    for contents in run_session(folder, commits):  # noqa: B007 - the last one is needed
                        pass
                break
            except GalleryError as error:
                assert str(error) == (
                    f"cannot write to {folder}: Input/output error; everything committed is kept"
                )
        check_row_files(folder)
        check_contents(folder, contents)
    assert n == 11  # 2 + 2 of the commits, 5 of the compaction, 2 of the commit after it


def failing(call: Callable[[int], None], n: int) -> Callable[[int], None]:
    calls = count()

    def fail_once(file: int) -> None:
        if next(calls) == n:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        call(file)

    return fail_once


def test_a_disk_that_takes_no_more_bytes_is_said_and_loses_nothing(folder: Path) -> None:
    """Files may not grow beyond a limit: any write may fail, the database's own ones too."""
    contents: Contents = {}
    codes = set()
    for limit in chain(range(0, 8_000, 500), range(8_000, 140_000, 4_000)):
        plan = short_plan(limit, contents)

        def write_little(report: Report, plan: Plan = plan, limit: int = limit) -> None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            carry_out(folder, plan, report)

        code, reported = finish(*start(write_little))
        contents = check_contents(folder, *possible(contents, plan, reported))
        codes.add(code)
    assert codes == {0, REFUSED}


def test_a_full_disk_is_said_and_loses_nothing(small_disk: Path) -> None:
    folder = small_disk / "g"
    Gallery.create(folder, vocabulary="toy").close()
    contents: Contents = {}
    refused = 0
    for left in range(0, 120, 4):
        ballast = small_disk / "ballast"
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - left * 1024)))
        plan = short_plan(left, contents)

        def fill_up(report: Report, plan: Plan = plan) -> None:
            try:
                carry_out(folder, plan, report)
            except GalleryError as error:
                assert isinstance(error, StorageFull) or "cannot be read or written" in str(error)
                raise

        code, reported = finish(*start(fill_up))
        assert code in (0, REFUSED)
        refused += code == REFUSED
        ballast.unlink()
        contents = check_contents(folder, *possible(contents, plan, reported))
    assert 0 < refused < 30


class Disk:
    """What a power cut may leave: of each file what was synced, of a folder the names that were."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.folder, self.kept = folder, kept
        shutil.copytree(folder, kept)
        self.names = {path.name for path in folder.iterdir()}

    def note_sync(self, file: int) -> None:
        """Keep what is synced now."""
        path = Path(os.readlink(f"/proc/self/fd/{file}"))
        if path == self.folder:
            self.names = {path.name for path in self.folder.iterdir()}
        else:
            shutil.copy(path, self.kept / path.name)

    def cut(self, left: Path) -> Path:
        """Make what is left; the database's own files are taken to be as safe as it says."""
        left.mkdir()
        for path in self.folder.iterdir():
            if path.name.startswith("catalog."):
                shutil.copy(path, left)
            elif path.name in self.names and (self.kept / path.name).exists():
                shutil.copy(self.kept / path.name, left)
        return left


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs to know what is synced")
def test_a_power_cut_at_a_commit_leaves_all_of_it_or_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(folder, tmp_path / "kept")
    sync, commit = os.fsync, Catalog.commit
    cuts: list[Path] = []

    def noted_sync(file: int) -> None:
        sync(file)
        disk.note_sync(file)

    def cut_commit(catalog: Catalog) -> None:
        cuts.append(disk.cut(tmp_path / f"cut {len(cuts)}"))
        commit(catalog)
        cuts.append(disk.cut(tmp_path / f"cut {len(cuts)}"))

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Catalog, "commit", cut_commit)
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
        cuts.append(disk.cut(tmp_path / f"cut {len(cuts)}"))
        expected.append(contents)
    assert len(cuts) == len(expected) > 30
    for left, contents in zip(cuts, expected, strict=True):
        check_contents(left, contents)


def test_the_catalogue_is_synced_at_every_commit(folder: Path) -> None:
    with Writer(folder) as writer:
        assert writer.catalog._all("PRAGMA synchronous") == [(2,)]
        assert writer.catalog._all("PRAGMA journal_mode") == [("wal",)]


def test_a_new_gallery_is_on_the_disk_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    sync = os.fsync

    def noted_sync(file: int) -> None:
        sync(file)
        with suppress(OSError):
            synced.append(Path(os.readlink(f"/proc/self/fd/{file}")).name)

    monkeypatch.setattr(os, "fsync", noted_sync)
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    assert synced in ([], ["bags.rows", "dense.rows", "gallery", tmp_path.name])


Facts = tuple[list[Any], list[tuple[str, float]]]


def facts(folder: Path) -> tuple[list[str], Facts]:
    """Return what is wrong with a gallery, and all that it answers."""
    with Gallery.open(folder) as gallery:
        hits = []
        for is_indexed in (False, True):
            if is_indexed:
                gallery.store.snapshot().searcher.build_index()
            for mode in get_args(Mode):
                found = gallery.search(make_encoding(3), k=100, mode=mode)
                hits += [(hit.path, hit.sparse) for hit in found]
        entries = [
            (entry.row, entry.live, entry.content, entry.checksum, entry.live and entry.path)
            for entry in gallery.store.catalog.records()
        ]
        return gallery.problems(), (entries, sorted(hits))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # a damaged vector may not be numbers
@pytest.mark.parametrize("name", ["bags.rows", "dense.rows", FILE_NAME])
def test_flipped_bits_are_named_or_harmless_and_crash_nothing(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    fill_gallery(tmp_path / "whole")
    whole = (tmp_path / "whole" / name).read_bytes()
    wrong, right = facts(tmp_path / "whole")
    assert wrong == []
    used = [place for place, byte in enumerate(whole) if byte]  # most of a catalogue is empty
    noticed = 0
    for _ in range(FLIPS):
        damaged = bytearray(whole)
        damaged[rng.choice(used)] ^= 1 << rng.randrange(8)
        noticed += is_noticed(tmp_path, name, bytes(damaged), right)
    assert noticed > FLIPS / 4


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["bags.rows", "dense.rows", FILE_NAME])
def test_torn_files_are_named(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    fill_gallery(tmp_path / "whole")
    whole = (tmp_path / "whole" / name).read_bytes()
    _, right = facts(tmp_path / "whole")
    for length in [0, 1, 63, 64, len(whole) - 1, *(rng.randrange(len(whole)) for _ in range(20))]:
        assert is_noticed(tmp_path, name, whole[:length], right)
        blank = whole[:length] + bytes(len(whole) - length)  # as after a power cut
        assert is_noticed(tmp_path, name, blank, right) or blank == whole


def is_noticed(tmp_path: Path, name: str, damaged: bytes, right: Facts) -> bool:
    """Say whether damage to one file is; if it is not, expect it to be of no consequence."""
    folder = tmp_path / "damaged"
    shutil.copytree(tmp_path / "whole", folder)
    (folder / name).write_bytes(damaged)
    try:
        wrong, found = facts(folder)
    except Bm25vError:
        return True
    finally:
        shutil.rmtree(folder)
    assert wrong or found == right
    return bool(wrong)
