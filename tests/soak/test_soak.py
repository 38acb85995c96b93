"""A soak of bm25v is clean, and it notices whatever is wrong with a gallery or an answer."""

import json
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import GalleryDamaged, GalleryError
from bm25v.gallery import Gallery
from bm25v.index import searcher, second_stage
from bm25v.index.bm25 import Contributions, reference_search
from bm25v.search import Query, rank
from bm25v.search.encode import encode as encode_query
from bm25v.search.scoring import MODES
from bm25v.store.files import FileState
from bm25v.store.local.catalog import Catalog
from bm25v.store.local.snapshot import FolderImages, Snapshot
from bm25v.store.local.writer import Writer
from tests.children import needs_fork
from tests.soak import run
from tests.soak.answers import Reference, match_version, random_query
from tests.soak.history import (
    EMPTY,
    History,
    Images,
    Row,
    Version,
    make_encoding,
)
from tests.soak.report import SoakReport
from tests.soak.run import run_soak

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")

N_IMAGES = 60
SECONDS = 60.0  # within which a fault must be noticed; the run ends when it is

Patch = pytest.MonkeyPatch
Soak = Callable[..., SoakReport]


@contextmanager
def start_soak(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """Start the command with a folder for temporary files, and end it in any case."""
    command = [sys.executable, "-m", "tests.soak", "--images", str(N_IMAGES), *options]
    with subprocess.Popen(
        command,
        cwd=Path(__file__).parent.parent.parent,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def wait_for_commits(folder: Path) -> None:
    """Wait until the journal has a few records."""
    end = time.monotonic() + 120
    while sum(path.stat().st_size for path in folder.glob("bm25v-soak-*/journal")) < 500:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_short_run_has_no_problems_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with start_soak(tmp_path, "--seconds", "5") as process:
        report = json.loads(process.communicate()[0])
    assert report["problems"] == []
    assert process.returncode == 0
    assert report["commits"] > 1
    assert sum(report["kills"].values()) > 0
    assert report["interrupted_commits"] - report["kept_commits"] - report["repeated"] in (0, 1)
    assert set(report["searches"]) == set(MODES)
    first, second = report["readers"]
    assert sum(report["searches"].values()) == sum(
        sum(one["searches"].values()) for one in (first, second)
    )
    assert first["opened"] == 1
    assert first["slowest_ms"] > 0
    assert (first["usage_at_end"]["open_files"] > 0) == Path("/proc/self/fd").is_dir()
    assert not list(tmp_path.glob("bm25v-soak-*"))


@needs_fork
def test_ctrl_c_ends_a_run_with_its_summary_and_a_given_folder_is_kept(tmp_path: Path) -> None:
    with start_soak(
        tmp_path, "--seconds", "600", "--readers", "1", "-g", str(tmp_path / "kept")
    ) as process:
        wait_for_commits(tmp_path)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        printed, errors = process.communicate()
    assert errors.strip() == "interrupted"
    assert process.returncode == 130
    report = json.loads(printed)
    assert report["commits"] > 0
    assert report["problems"] == []
    assert not list(tmp_path.glob("bm25v-soak-*"))
    with Gallery.open(tmp_path / "kept") as gallery:
        assert gallery.problems() == []
    with pytest.raises(GalleryError, match="already exists: choose another path"):
        run_soak(seconds=1, folder=tmp_path / "kept")


@needs_fork
def test_children_of_a_killed_run_end_and_remove_the_temporary_folder(tmp_path: Path) -> None:
    with start_soak(tmp_path, "--seconds", "600", "--readers", "1") as process:
        wait_for_commits(tmp_path)
        process.kill()
        process.communicate(timeout=60)  # until no process has this standard output any more
    assert not list(tmp_path.glob("bm25v-soak-*"))


@pytest.fixture(scope="module")
def compiled_loops(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled loops are loaded once, not in every process."""
    rng, folder = random.Random(0), tmp_path_factory.mktemp("compiled")
    with Gallery.create(folder, vocabulary="toy") as gallery:
        write_rows(folder, History(seed=0, n_images=N_IMAGES).at(5).rows)
        gallery.local.snapshot().searcher.build_index()
        for _ in range(100):
            gallery.search(random_query(rng, N_IMAGES))


def write_rows(folder: Path, rows: Iterable[Row]) -> None:
    """Add the images of live rows, in their order."""
    with Writer(folder) as writer:
        for row in rows:
            if row.is_live:
                writer.put(row.file, make_encoding(row.number))
        writer.commit()


@pytest.fixture
def soak(monkeypatch: Patch, compiled_loops: None) -> Soak:
    """A function that runs a soak, until the first problem, with all that the test has patched."""
    if not hasattr(os, "fork"):
        pytest.skip("needs os.fork")
    monkeypatch.setattr(run, "START_METHOD", "fork")
    return lambda **options: run_soak(
        n_images=N_IMAGES, max_problems=1, **{"seconds": SECONDS, **options}
    )


def lose_removals(patch: Patch) -> None:
    """Every tenth image that is removed only gets another path."""
    remove, calls = Writer.remove, count()

    def remove_most(self: Writer, row: int) -> None:
        if next(calls) % 10 != 9:
            remove(self, row)
        else:
            self.move(row, FileState(path=f"/lost/{row}", content=b"", size=0, mtime_ns=0))

    patch.setattr(Writer, "remove", remove_most)


def lose_commits(patch: Patch) -> None:
    """Every tenth commit is reported, but undone."""
    commit, calls = Catalog.commit, count()

    def commit_most(self: Catalog) -> None:
        if next(calls) % 10 == 9:
            self.rollback()
        else:
            commit(self)

    patch.setattr(Catalog, "commit", commit_most)


def store_wrong_bags(patch: Patch) -> None:
    """Some rows have the bag of another image, with a right checksum."""
    put = Writer.put

    def put_other(self: Writer, file: Any, encoding: Any) -> None:
        other = encoding._replace(bag=make_encoding(3).bag)
        put(self, file, other if file.size % 7 == 0 else encoding)

    patch.setattr(Writer, "put", put_other)


def damage_rows(patch: Patch) -> None:
    """The last row is damaged after its checksum was computed."""
    commit = Writer.commit

    def commit_damaged(self: Writer) -> None:
        commit(self)
        with self.files.dense.path.open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")

    patch.setattr(Writer, "commit", commit_damaged)


@pytest.mark.parametrize("fault", [lose_removals, lose_commits, store_wrong_bags, damage_rows])
def test_wrong_files_are_noticed_after_a_kill(
    soak: Soak, monkeypatch: Patch, fault: Callable[[Patch], None]
) -> None:
    fault(monkeypatch)
    report = soak(n_readers=0)
    assert report.seconds < SECONDS
    assert re.search(
        r"^(after SIG\w+|at the end), the gallery does not have the contents of step \d+",
        "\n".join(problem.text for problem in report.problems),
        flags=re.MULTILINE,
    )


def lose_full_bag_words(patch: Patch) -> None:
    """Some words of full bags do not count."""

    def score_few(full_bags: Any, rows: Any, query: Any, *values: Any, **options: Any) -> Any:
        kept = query.select(np.arange(len(query.words) * 3 // 4))
        return second_stage.score_full_bags(full_bags, rows, kept, *values, **options)

    patch.setattr(rank, "score_full_bags", score_few)


def follow_no_restorations(patch: Patch) -> None:
    """Readers that follow changes do not see which images were restored."""
    changes_since = Catalog.changes_since

    def removed_only(self: Catalog, number: int) -> Any:
        return changes_since(self, number)[0], np.empty(0, np.int64)

    patch.setattr(Catalog, "changes_since", removed_only)


def break_ties_otherwise(patch: Patch) -> None:
    """Of equal scores, the higher row comes first."""

    def top_positions(rows: Any, scores: Any, k: int) -> Any:
        return np.lexsort((-rows, -scores))[:k]

    patch.setattr(rank, "top_positions", top_positions)
    patch.setattr(searcher, "top_positions", top_positions)


def change_the_last_bit_of_scores(patch: Patch) -> None:
    """Scores of BM25 are wrong by the smallest possible amount."""

    exact = Contributions.sum_by_bag

    def sum_almost(*values: Any) -> Any:
        return np.nextafter(exact(*values), np.inf)

    patch.setattr(Contributions, "sum_by_bag", sum_almost)


def fail_now_and_then(patch: Patch) -> None:
    """Some searches end with an error."""
    read_bags, calls = FolderImages.read_bags, count()

    def read_or_fail(self: FolderImages, rows: Any, *, full: bool) -> Any:
        if next(calls) % 100 == 99:
            raise GalleryDamaged("row 7 is not a valid bag")
        return read_bags(self, rows, full=full)

    patch.setattr(FolderImages, "read_bags", read_or_fail)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (follow_no_restorations, "not the answer of steps"),
        (break_ties_otherwise, r"hit \d+ is \('/photos"),
        (change_the_last_bit_of_scores, r"search: .* hit \d+ is \('/photos"),
        (lose_full_bag_words, r"(words|hybrid) search: not the answer of steps"),
        (fail_now_and_then, "raises GalleryDamaged: row 7 is not a valid bag"),
    ],
)
def test_wrong_answers_are_noticed_by_readers(
    soak: Soak, monkeypatch: Patch, fault: Callable[[Patch], None], words: str
) -> None:
    fault(monkeypatch)
    report = soak()
    assert report.seconds < SECONDS
    problem = next(problem for problem in report.problems if problem.reader is not None)
    assert re.search(words, problem.text)
    assert problem.step > 0
    assert re.search(r"\(seed 0, step \d+, reader \d, action \d+\)$", str(problem))


def keep_snapshots_open(patch: Patch) -> None:
    load, kept = Snapshot.load, []

    def load_and_keep(*values: Any) -> Snapshot:
        kept.append(load(*values))
        return kept[-1]

    patch.setattr(Snapshot, "load", load_and_keep)


def end_writers(patch: Patch) -> None:
    def fail(self: Writer) -> None:
        raise OSError("no such disk")

    patch.setattr(Writer, "commit", fail)
    patch.setattr(run, "fill_gallery", lambda *_: EMPTY)


@pytest.mark.parametrize(
    ("fault", "seconds", "problem"),
    [
        (keep_snapshots_open, 6, r"reader 0: open files grew from \d+ to \d+"),
        (end_writers, SECONDS, "the writer ended with exit code 1: OSError: no such disk"),
    ],
)
def test_leaks_and_processes_that_fail_are_noticed(
    soak: Soak, monkeypatch: Patch, fault: Callable[[Patch], None], seconds: float, problem: str
) -> None:
    fault(monkeypatch)
    if fault is keep_snapshots_open and not Path("/proc/self/fd").is_dir():
        pytest.skip("needs /proc")
    report = soak(seconds=seconds)
    assert re.search(problem, "\n".join(map(str, report.problems)))
    assert multiprocessing.active_children() == []


def test_expected_answers_are_those_of_the_formula_and_of_a_fresh_gallery(tmp_path: Path) -> None:
    history, rng = History(seed=5, n_images=N_IMAGES), random.Random(5)
    reference = Reference(Images(N_IMAGES))
    for step in (1, 30, 90):
        version = history.at(step)
        encodings = [make_encoding(row.number) for row in version.rows if row.is_live]
        bags = {
            "sparse": [encoding.bag for encoding in encodings],
            "words": [encoding.full_bag.bag for encoding in encodings],
        }
        with Gallery.create(tmp_path / f"{step}", vocabulary="toy") as gallery:
            write_rows(gallery.path, version.rows)
            for _ in range(60):
                query = random_query(rng, N_IMAGES)
                results, answer = gallery.search(query), reference.search(query, version)
                paths = [version.rows[row].path for row in answer.rows]
                assert [hit.path for hit in results] == paths
                assert match_version(results, [answer], [version]) == step
                is_filtered = (
                    query.must or query.without or answer.n_images > (query.candidates or 0)
                )
                if query.mode in bags and not is_filtered:
                    named = gallery._named_vocabulary
                    words = encode_query(query, gallery.local.snapshot(), named).words
                    hits = reference_search(bags[query.mode], words, N_IMAGES)
                    scores = [score for _, score in hits if score > 0][: query.k]
                    assert query.min_coverage or [hit.score for hit in results] == scores


def test_a_moved_image_may_have_its_later_path_but_not_across_a_compaction(tmp_path: Path) -> None:
    old = Version(7, 0, (Row(1, "/photos/a.jpg", 7),))
    moved = Version(8, 0, (Row(1, "/photos/b.jpg", 8),))
    compacted = Version(8, 1, moved.rows)
    query = Query.of(make_encoding(1), mode="sparse")
    answer = Reference(Images(2)).search(query, old)
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        write_rows(gallery.path, moved.rows)
        results = gallery.search(query)
    assert match_version(results, [answer], [old]) is None
    assert match_version(results, [answer, answer], [old, moved]) == 7
    assert match_version(results, [answer, answer], [old, compacted]) == 8
