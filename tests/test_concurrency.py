"""Readers see one moment, whole, whatever a writer does meanwhile; and never an error."""

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pytest

from bm25v.api import Gallery
from bm25v.errors import GalleryError, GalleryLocked, GalleryNotFound
from bm25v.gallery.snapshot import Snapshot
from bm25v.gallery.writer import FileState, Writer
from bm25v.index import bm25 as reference
from bm25v.index.bm25 import WeightedWords
from bm25v.search import Mode
from tests.children import REFUSED, Report, finish, start
from tests.histories import (
    N_IMAGES,
    Contents,
    check_contents,
    expected_rows,
    fill_gallery,
    image_number,
    make_encoding,
    random_sessions,
    run_session,
    stored_rows,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

SOAK_SECONDS = float(os.environ.get("BM25V_SOAK_SECONDS", "4"))
NUMBERS = {make_encoding(n).dense_e.astype(np.float16).tobytes(): n for n in range(N_IMAGES)}
MODES: tuple[Mode, ...] = ("two-stage", "sparse", "dense")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    return tmp_path / "g"


def pairs(seed: int) -> Iterator[list[Contents]]:
    """Give what writers commit, as `random_sessions` does; images change in pairs."""
    rng = random.Random(seed)
    contents: Contents = {}
    while True:
        commits = []
        for _ in range(rng.randint(0, 3)):
            first, letter = 2 * rng.randrange(N_IMAGES // 2), rng.choice("abc")
            is_there = first in contents.values()
            contents = {path: n for path, n in contents.items() if n // 2 != first // 2}
            if not is_there or rng.random() < 0.5:
                contents |= {f"/photos/{n}-{letter}.png": n for n in (first, first + 1)}
            commits.append(contents)
        yield commits


def test_readers_see_whole_moments_while_a_writer_writes_and_compacts(folder: Path) -> None:
    """For a longer soak: BM25V_SOAK_SECONDS=60 pytest tests/test_concurrency.py."""
    end = time.monotonic() + SOAK_SECONDS

    def write(report: Report) -> None:
        for commits in pairs(7):
            for _ in run_session(folder, commits):
                report()
            if time.monotonic() > end:
                break

    def read(report: Report) -> None:
        with Gallery.open(folder) as gallery:
            in_threads(4, lambda seed: look_until(end, gallery, random.Random(seed), report))

    children = [start(write), start(read), start(read)]
    (written, commits), *readers = [finish(*child) for child in children]
    print(f"{commits} commits, {[looks for _, looks in readers]} looks in {SOAK_SECONDS:g} s")
    assert written == 0
    assert [code for code, _ in readers] == [0, 0]
    assert min(commits, *(looks for _, looks in readers)) > 10
    with Gallery.open(folder) as gallery:
        assert gallery.problems() == []


def in_threads(n: int, work: Callable[[int], None]) -> None:
    """Do some work n times at once, and raise what went wrong."""
    errors: list[BaseException] = []

    def noted(seed: int) -> None:
        try:
            work(seed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=noted, args=[seed]) for seed in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def look_until(end: float, gallery: Gallery, rng: random.Random, report: Report) -> None:
    while time.monotonic() < end:
        wish = rng.randrange(N_IMAGES)
        check_moment(gallery.store.snapshot(), wish)
        check_hits(gallery, wish, rng.choice(MODES))
        assert len(gallery) % 2 == 0
        if rng.random() < 0.1:
            assert gallery.problems() == []
        report()


def check_moment(snapshot: Snapshot, wish: int) -> None:
    """Expect both pictures of every pair, and the plain formula's scores of just these."""
    rows = snapshot.rows.tolist()
    numbers = {NUMBERS[snapshot.dense_ne[row].tobytes()] for row in rows}
    assert len(numbers) == len(rows)
    assert {n ^ 1 for n in numbers} == numbers
    wanted = WeightedWords.from_bag(make_encoding(wish).bag)
    expected = reference.reference_search([snapshot.bag(row) for row in rows], wanted, 10)
    found = snapshot.searcher.search(wanted, 10)
    assert list(zip(*map(np.ndarray.tolist, found), strict=True)) == [
        (rows[i], score) for i, score in expected
    ]


def check_hits(gallery: Gallery, wish: int, mode: Mode) -> None:
    """Expect every hit's path to belong to what is said of it."""
    for hit in gallery.search(make_encoding(wish), k=N_IMAGES, mode=mode):
        found, wanted = make_encoding(image_number(hit.path)), make_encoding(wish)
        cosine = np.dot(found.dense_e, wanted.dense_e) / np.prod(
            [np.linalg.norm(vector) for vector in (found.dense_e, wanted.dense_e)]
        )
        assert hit.dense == pytest.approx(cosine, abs=1e-5)
        shared = set(found.bag.words.tolist()) & set(wanted.bag.words.tolist())
        assert {word.word for word in hit.words} == shared


def test_writers_in_each_other_s_way_are_told_so_and_lose_nothing(folder: Path) -> None:
    def write(report: Report, which: int) -> None:
        done = 0
        while done < 8:
            number = 8 * which + done
            file = FileState(f"/photos/{number}-a.png", bytes([number] * 16), 1, 1)
            try:
                with Writer(folder) as writer:
                    writer.put(file, make_encoding(number).bag, make_encoding(number).dense_e)
                    writer.commit()
                done += 1
            except GalleryLocked as error:
                assert str(error) == (
                    f"another process is writing to {folder}: try again when it has finished"
                )
                time.sleep(0.001)
                report()

    children = [start(lambda report, n=n: write(report, n)) for n in range(3)]  # type: ignore[misc]
    ends = [finish(*child) for child in children]
    assert [code for code, _ in ends] == [0, 0, 0]
    assert sum(locked for _, locked in ends) > 0
    check_contents(folder, {f"/photos/{n}-a.png": n for n in range(24)})


@pytest.fixture
def shared(folder: Path) -> Iterator[Path]:
    """A gallery that others may read, without a log of its catalogue."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    with tempfile.TemporaryDirectory() as place:  # pytest's own folders are closed to others
        Path(place).chmod(0o755)
        with Writer(folder):
            pass  # the last to close tidies the log away
        yield Path(shutil.copytree(folder, Path(place) / "g"))


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


def test_a_reader_that_may_not_write_follows_a_writer_that_is_still_at_work(shared: Path) -> None:
    history = list(islice(random_sessions(4, {}), 15))
    wait, go_on = os.pipe()

    def read(report: Report) -> None:
        become_nobody()
        with Gallery.open(shared) as gallery:
            report()
            for contents in chain.from_iterable(history):
                os.read(wait, 1)
                assert stored_rows(gallery) == expected_rows(contents)
                report()
            os.read(wait, 1)
            with pytest.raises(GalleryNotFound, match="no longer exists"):
                gallery.store.snapshot()

    child, pipe = start(read)
    os.read(pipe, 1)
    for commits in history:
        for _ in run_session(shared, commits):
            os.write(go_on, b".")
            assert os.read(pipe, 1) == b"."
    shutil.rmtree(shared)
    os.write(go_on, b".")
    assert finish(child, pipe) == (0, 0)


def test_a_reader_that_may_not_write_is_not_shown_less_than_was_committed(shared: Path) -> None:
    def write_and_crash(report: Report) -> None:
        for _ in run_session(shared, [{"/photos/1-a.png": 1}]):
            os._exit(0)

    assert finish(*start(write_and_crash)) == (0, 0)
    (shared / "catalog.sqlite-shm").unlink()  # without it, others cannot read the log

    def read(report: Report) -> None:
        become_nobody()
        with pytest.raises(GalleryError, match="cannot read or write"):
            Gallery.open(shared)

    assert finish(*start(read)) == (0, 0)
    check_contents(shared, {"/photos/1-a.png": 1})


def test_a_deleted_gallery_is_said_to_be_gone_and_an_old_snapshot_still_works(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    gallery = Gallery.open(folder)
    snapshot = gallery.store.snapshot()
    wanted = WeightedWords.from_bag(make_encoding(1).bag)
    before = snapshot.searcher.search(wanted, 10)
    shutil.rmtree(folder)
    after = snapshot.searcher.search(wanted, 10)
    assert after.rows.tolist() == before.rows.tolist()
    assert after.scores.tolist() == before.scores.tolist()
    assert len(snapshot.rows) == len(contents)
    for use in (
        gallery.store.snapshot,
        gallery.info,
        gallery.compact,
        lambda: gallery.search(make_encoding(1)),
        lambda: gallery.remove("/photos"),
        lambda: gallery.add("/"),
        lambda: Gallery.open(folder),
    ):
        with pytest.raises(GalleryNotFound, match=r"no longer exists|no gallery at"):
            use()
    assert not folder.exists()
    gallery.close()


def test_a_gallery_made_anew_in_the_same_place_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    fill_gallery(folder)
    gallery = Gallery.open(folder)
    gallery.store.snapshot()
    folder.rename(folder.with_name("old"))
    Gallery.create(folder, vocabulary="toy").close()
    with pytest.raises(GalleryError, match="was replaced by another gallery: open it again"):
        gallery.search(make_encoding(1))
    gallery.close()


def test_a_gallery_deleted_while_it_is_written_is_an_error_like_others(folder: Path) -> None:
    with pytest.raises(GalleryError), Writer(folder) as writer:
        file = FileState("/photos/1-a.png", bytes(16), 1, 1)
        writer.put(file, make_encoding(1).bag, make_encoding(1).dense_e)
        shutil.rmtree(folder)
        writer.commit()


@pytest.mark.parametrize("seed", range(6))
def test_a_gallery_deleted_at_any_time_gives_results_or_a_clear_error(
    tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "g"
    fill_gallery(folder)

    def read(report: Report) -> None:
        with Gallery.open(folder) as gallery:
            report()
            in_threads(2, lambda seed: look_on(gallery, seed))

    def look_on(gallery: Gallery, seed: int) -> None:
        while True:
            check_hits(gallery, seed, "sparse")
            gallery.problems()

    def write(report: Report) -> None:
        report()
        for commits in pairs(seed):
            for _ in run_session(folder, commits):
                pass

    children = [start(read), start(write)]
    for _, pipe in children:
        os.read(pipe, 1)
    time.sleep(0.05 + seed * 0.01)
    shutil.rmtree(folder, ignore_errors=True)  # a writer may make files meanwhile
    shutil.rmtree(folder, ignore_errors=True)
    assert [finish(*child)[0] for child in children] == [REFUSED, REFUSED]
