"""Readers see one complete version and no error, whatever a writer does meanwhile."""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import GalleryError, GalleryLocked, GalleryNotFound
from bm25v.gallery import Gallery
from bm25v.index.bm25 import WeightedWords
from bm25v.search import Mode
from bm25v.store.files import FileState
from bm25v.store.local.catalog import Catalog, RowsRenumbered
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.writer import Writer
from tests.children import REFUSED, Report, finish, needs_fork, start
from tests.histories import (
    N_IMAGES,
    check_contents,
    expected_rows,
    fill_gallery,
    image_number,
    make_encoding,
    random_sessions,
    run_session,
    stored_rows,
)
from tests.soak.history import get_full_bag

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    Gallery.create(tmp_path / "g", vocabulary="toy").close()
    return tmp_path / "g"


def run_in_threads(n: int, function: Callable[[int], None]) -> None:
    """Call a function in n threads with the numbers from 0 on; raise the first error."""
    errors: list[BaseException] = []

    def call(number: int) -> None:
        try:
            function(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=call, args=[number]) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def check_hits(gallery: Gallery, number: int, mode: Mode) -> None:
    """Assert that the cosine and the words of each hit are those of the image at its path."""
    query = make_encoding(number)
    for hit in gallery.search(query, k=N_IMAGES, mode=mode):
        image = make_encoding(image_number(hit.path))
        cosine = np.dot(image.dense_e, query.dense_e) / np.prod(
            [np.linalg.norm(vector) for vector in (image.dense_e, query.dense_e)]
        )
        assert hit.dense == pytest.approx(cosine, abs=1e-5)
        bags = (image.bag, query.bag)
        if mode in ("words", "hybrid"):
            bags = (get_full_bag(image).bag, get_full_bag(query).bag)
        shared = set.intersection(*(set(bag.words.tolist()) for bag in bags))
        assert {word.word for word in hit.words} == shared


@needs_fork
def test_concurrent_writers_get_gallery_locked_and_lose_nothing(folder: Path) -> None:
    def write(report: Report, writer_number: int) -> None:
        n_written = 0
        while n_written < 8:
            number = 8 * writer_number + n_written
            file = FileState(f"/photos/{number}-a.png", bytes([number] * 16), 1, 1)
            try:
                with Writer(folder) as writer:
                    writer.put(file, make_encoding(number))
                    writer.commit()
                n_written += 1
            except GalleryLocked as error:
                assert str(error) == (
                    f"another process is writing to {folder}: try again when it has finished"
                )
                time.sleep(0.001)
                report()

    children = [start(lambda report, n=n: write(report, n)) for n in range(3)]  # type: ignore[misc]
    outcomes = [finish(*child) for child in children]
    assert [code for code, _ in outcomes] == [0, 0, 0]
    assert sum(n_locked for _, n_locked in outcomes) > 0
    check_contents(folder, {f"/photos/{n}-a.png": n for n in range(24)})


def test_a_second_thread_that_writes_gets_gallery_locked(folder: Path) -> None:
    with Gallery.open(folder) as gallery, Writer(folder):

        def write(number: int) -> None:
            with pytest.raises(GalleryLocked):
                gallery.remove("/photos")
            assert len(gallery.search(make_encoding(number))) == 0

        run_in_threads(2, write)


@pytest.fixture
def shared(folder: Path) -> Iterator[Path]:
    """A gallery that other users may read, without a log of its catalogue."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user")
    with tempfile.TemporaryDirectory() as parent:  # other users cannot read pytest's folders
        Path(parent).chmod(0o755)
        with Writer(folder):
            pass  # the last connection empties and deletes the log
        yield Path(shutil.copytree(folder, Path(parent) / "g"))


def become_nobody() -> None:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


@needs_fork
def test_a_reader_without_write_permission_follows_a_running_writer(shared: Path) -> None:
    history = list(islice(random_sessions(4, {}), 15))
    read_end, write_end = os.pipe()

    def read(report: Report) -> None:
        become_nobody()
        with Gallery.open(shared) as gallery:
            report()
            for contents in chain.from_iterable(history):
                os.read(read_end, 1)
                assert stored_rows(gallery) == expected_rows(contents)
                report()
            os.read(read_end, 1)
            with pytest.raises(GalleryNotFound, match="no longer exists"):
                gallery.local.snapshot()

    child, pipe = start(read)
    os.read(pipe, 1)
    for commits in history:
        for _ in run_session(shared, commits):
            os.write(write_end, b".")
            assert os.read(pipe, 1) == b"."
    shutil.rmtree(shared)
    os.write(write_end, b".")
    assert finish(child, pipe) == (0, 0)


@needs_fork
def test_a_reader_that_cannot_read_the_log_gets_an_error_not_an_old_version(shared: Path) -> None:
    def write_and_crash(report: Report) -> None:
        for _ in run_session(shared, [{"/photos/1-a.png": 1}]):
            os._exit(0)

    assert finish(*start(write_and_crash)) == (0, 0)
    (shared / "catalog.sqlite-shm").unlink()  # without it, other users cannot read the log

    def read(report: Report) -> None:
        become_nobody()
        with pytest.raises(GalleryError, match="cannot read or write"):
            Gallery.open(shared)

    assert finish(*start(read)) == (0, 0)
    check_contents(shared, {"/photos/1-a.png": 1})


def test_a_deleted_gallery_raises_not_found_and_its_snapshot_still_works(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    gallery = Gallery.open(folder)
    snapshot = gallery.local.snapshot()
    query = WeightedWords.from_bag(make_encoding(1).bag)
    before = snapshot.searcher.search(query, 10)
    shutil.rmtree(folder)
    after = snapshot.searcher.search(query, 10)
    assert after.rows.tolist() == before.rows.tolist()
    assert after.scores.tolist() == before.scores.tolist()
    assert len(snapshot.rows) == len(contents)
    for use in (
        gallery.local.snapshot,
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


def test_a_gallery_replaced_by_another_one_raises_an_error(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    fill_gallery(folder)
    gallery = Gallery.open(folder)
    gallery.local.snapshot()
    folder.rename(folder.with_name("old"))
    Gallery.create(folder, vocabulary="toy").close()
    with pytest.raises(GalleryError, match="was replaced by another gallery: open it again"):
        gallery.search(make_encoding(1))
    gallery.close()


def test_a_gallery_deleted_while_it_is_written_raises_gallery_error(folder: Path) -> None:
    with pytest.raises(GalleryError), Writer(folder) as writer:
        file = FileState("/photos/1-a.png", bytes(16), 1, 1)
        writer.put(file, make_encoding(1))
        shutil.rmtree(folder)
        writer.commit()


@needs_fork
@pytest.mark.parametrize("seed", range(6))
def test_a_gallery_deleted_at_any_time_gives_results_or_a_gallery_error(
    tmp_path: Path, seed: int
) -> None:
    folder = tmp_path / "g"
    fill_gallery(folder)

    def read(report: Report) -> None:
        with Gallery.open(folder) as gallery:
            report()
            run_in_threads(2, lambda number: read_forever(gallery, number))

    def read_forever(gallery: Gallery, number: int) -> None:
        while True:
            check_hits(gallery, number, "sparse" if number else "hybrid")
            gallery.problems()

    def write(report: Report) -> None:
        report()
        for commits in random_sessions(seed, {}):
            for _ in run_session(folder, commits):
                pass

    children = [start(read), start(write)]
    for _, pipe in children:
        os.read(pipe, 1)
    time.sleep(0.05 + seed * 0.01)
    shutil.rmtree(folder, ignore_errors=True)  # the writer may create files meanwhile
    shutil.rmtree(folder, ignore_errors=True)
    assert [finish(*child)[0] for child in children] == [REFUSED, REFUSED]


def test_a_reader_gives_up_after_ten_compactions_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill_gallery(tmp_path / "g")
    store = Gallery.open(tmp_path / "g").local
    calls: list[object] = []

    def meet_compaction(*arguments: object) -> int:
        calls.append(arguments)
        raise RowsRenumbered

    reads: list[Callable[[], int]] = [
        lambda: store.retry(meet_compaction),
        lambda: store.read(meet_compaction),
    ]
    for read in reads:
        calls.clear()
        with pytest.raises(GalleryError, match=r"was compacted 10 times while .*: try again"):
            read()
        assert len(calls) == 10
    with monkeypatch.context() as patch:
        patch.setattr(store, "_snapshot", None)
        patch.setattr(Snapshot, "load", meet_compaction)
        calls.clear()
        with pytest.raises(GalleryError, match="was compacted 10 times"):
            store.snapshot()
        assert len(calls) == 10
    assert len(store.snapshot().rows) > 0


def test_a_reader_that_meets_a_few_compactions_returns_a_result(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    store = Gallery.open(tmp_path / "g").local
    snapshots: list[Snapshot] = []

    def meet_compactions(snapshot: Snapshot) -> str:
        snapshots.append(snapshot)
        if len(snapshots) < 10:
            raise RowsRenumbered
        return "a result"

    assert store.read(meet_compactions) == "a result"
    assert len(snapshots) == 10


def test_a_catalogue_is_closed_while_other_threads_read_it(tmp_path: Path) -> None:
    """They get an error; SQLite would crash if a connection was closed in the middle of a query."""
    fill_gallery(tmp_path / "g")
    for _ in range(20):
        gallery = Gallery.open(tmp_path / "g")
        started = threading.Barrier(3, timeout=30)

        def read(catalog: Catalog = gallery.local.catalog, all_started: Any = started) -> None:
            all_started.wait()
            while True:
                catalog.with_content(bytes(16))

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(read) for _ in range(2)]
            started.wait()
            gallery.close()
            for reader in readers:
                with pytest.raises(GalleryError, match="is closed: open it again"):
                    reader.result(timeout=30)
