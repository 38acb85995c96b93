"""Compaction gives space back and changes nothing else, even if it is interrupted."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any, get_args

import pytest

from bm25v.api import Gallery
from bm25v.errors import GalleryError, StorageFull
from bm25v.gallery import catalog
from bm25v.gallery.catalog import Catalog
from bm25v.gallery.rows import HEADER_BYTES, RowFile
from bm25v.gallery.writer import Writer
from bm25v.index.bm25 import WeightedWords
from bm25v.search import Mode
from bm25v.vocabulary import Vocabulary
from tests import test_cli
from tests.children import Report, die_at_step, finish, start
from tests.histories import (
    N_IMAGES,
    check_contents,
    check_row_files,
    expected_rows,
    fill_gallery,
    image_number,
    make_encoding,
    random_sessions,
    run_session,
    stored_rows,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")
run, indexed = test_cli.run, test_cli.indexed
MODES: tuple[Mode, ...] = get_args(Mode)


def compacted(folder: Path) -> int:
    with Writer(folder) as writer:
        return writer.compact()


def all_hits(gallery: Gallery) -> list[Any]:
    return [
        gallery.search(make_encoding(number), k=k, mode=mode).hits
        for number in range(0, N_IMAGES, 5)
        for mode in MODES
        for k in (5, 2 * N_IMAGES)
    ]


def file_sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.rows"))


@pytest.mark.parametrize("seed", range(6))
def test_results_stay_and_space_is_given_back(tmp_path: Path, seed: int) -> None:
    contents = fill_gallery(tmp_path / "g", seed)
    gallery = Gallery.open(tmp_path / "g")
    before, size, removed = all_hits(gallery), file_sizes(gallery.path), gallery.info().removed_rows
    assert removed > 0
    assert gallery.compact() == size - file_sizes(gallery.path) == removed * (64 + 24)
    assert file_sizes(gallery.path) == 2 * HEADER_BYTES + len(contents) * (64 + 24)
    assert all_hits(gallery) == before
    assert all_hits(Gallery.open(gallery.path)) == before
    assert (gallery.info().removed_rows, len(gallery)) == (0, len(contents))
    assert gallery.compact() == 0
    assert gallery.store.snapshot().state.generation == 1
    gallery.close()
    check_row_files(gallery.path)
    check_contents(gallery.path, contents)


def test_histories_go_on_after_a_compaction(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    reader = Gallery.open(tmp_path / "g")
    for commits in islice(random_sessions(1, contents), 30):
        for contents in run_session(tmp_path / "g", commits):
            assert stored_rows(reader) == expected_rows(contents)
    assert reader.store.snapshot().state.generation > 3
    reader.close()
    check_contents(tmp_path / "g", contents)


def test_removed_pictures_are_forgotten(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []
    prepare = Vocabulary.prepare

    def noted(self: Vocabulary, path: str) -> object:
        encoded.append(Path(path).name)
        return prepare(self, path)

    monkeypatch.setattr(Vocabulary, "prepare", noted)
    gallery.remove(photos / "3.png")
    gallery.add(photos / "3.png")
    assert encoded == []
    gallery.remove(photos / "3.png")
    assert gallery.compact() == 64 + 24
    assert gallery.add(photos).added == 1
    assert encoded == ["3.png"]
    assert len(gallery) == 12


def test_a_gallery_can_be_emptied_and_filled_again(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    assert list(run_session(folder, [{}])) == [{}]
    assert compacted(folder) > 0
    check_contents(folder, {})
    assert list(run_session(folder, [contents])) == [contents]
    check_contents(folder, contents)
    assert file_sizes(folder) == 2 * HEADER_BYTES + len(contents) * (64 + 24)


def test_the_catalogue_shrinks_too(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    many = {f"/photos/{n}-{copy}.png": n for n in range(N_IMAGES) for copy in range(50)}
    for after in (many, contents):
        assert list(run_session(folder, [after])) == [after]
    size = (folder / catalog.FILE_NAME).stat().st_size
    compacted(folder)
    assert (folder / catalog.FILE_NAME).stat().st_size < size / 4
    check_contents(folder, contents)


def test_a_reader_keeps_its_snapshot_and_goes_on_with_the_next(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    reader, writer = Gallery.open(tmp_path / "g"), Gallery.open(tmp_path / "g")
    old, hits = reader.store.snapshot(), all_hits(reader)
    wish = WeightedWords.from_bag(make_encoding(1).bag)
    found = old.searcher.search(wish, 50)
    bags = [old.bag(row) for row in old.rows.tolist()]
    writer.compact()
    again = old.searcher.search(wish, 50)
    assert again.rows.tolist() == found.rows.tolist()
    assert again.scores.tolist() == found.scores.tolist()
    new = reader.store.snapshot()
    assert (old.state.generation, new.state.generation) == (0, 1)
    assert new.rows.tolist() == list(range(len(old.rows)))
    for row, bag in enumerate(bags):
        assert new.bag(row).words.tolist() == bag.words.tolist()
    assert all_hits(reader) == hits


@pytest.mark.parametrize(
    ("where", "moment"),
    [
        *(((RowFile, "open"), n) for n in range(2)),
        *(((Catalog, name), n) for name in ("transaction", "state") for n in range(6)),
    ],
)
def test_a_compaction_in_the_middle_of_a_search_or_a_check_is_not_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[type, str], moment: int
) -> None:
    """Let another gallery be compacted just before a reader's n-th such call."""
    full = tmp_path / "full"
    contents = fill_gallery(full)
    with Gallery.open(full) as gallery:
        hits = all_hits(gallery)
    call = getattr(*where)
    uses: list[tuple[Callable[[Gallery], Any], Any]]
    uses = [(all_hits, hits), (Gallery.problems, []), (len, len(contents))]
    for number, (use, expected) in enumerate(uses):
        folder = tmp_path / f"{number}"
        shutil.copytree(full, folder)
        calls = count()

        def compact_first(
            *values: Any, calls: Iterator[int] = calls, folder: Path = folder, **named: Any
        ) -> Any:
            if next(calls) == moment:
                with monkeypatch.context() as patch:
                    patch.setattr(*where, call)
                    assert compacted(folder) > 0
            return call(*values, **named)

        with Gallery.open(folder) as reader, monkeypatch.context() as patch:
            patch.setattr(*where, compact_first)
            assert use(reader) == expected
        assert use is not all_hits or next(calls) > moment


def test_pictures_are_counted_as_of_one_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    query_all, calls = Catalog._all, count()
    contents = fill_gallery(tmp_path / "g")

    def compact_later(*values: Any) -> Any:
        found = query_all(*values)
        if next(calls) == 0:
            monkeypatch.setattr(Catalog, "_all", query_all)
            assert compacted(tmp_path / "g") > 0
        return found

    with Gallery.open(tmp_path / "g") as gallery:
        monkeypatch.setattr(Catalog, "_all", compact_later)
        assert len(gallery) == len(contents)


def test_no_hit_has_a_wrong_path_while_another_process_compacts(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    kept = {path: n for path, n in contents.items() if n % 2}
    end = time.monotonic() + 2

    def compact_again_and_again(report: Report) -> None:
        while time.monotonic() < end:
            for after in ([kept], [], [contents], [kept | contents], []):
                for _ in run_session(folder, after):
                    pass
            report()

    child = start(compact_again_and_again)
    rng = random.Random(2)
    with Gallery.open(folder) as gallery:
        searches, generations = 0, set()
        while time.monotonic() < end:
            wish = make_encoding(rng.randrange(N_IMAGES))
            for hit in gallery.search(wish, k=N_IMAGES):
                found = make_encoding(image_number(hit.path))
                assert {w.word for w in hit.words} == set(found.bag.words) & set(wish.bag.words)
            path = rng.choice(list(kept))
            words = {word.word for word in gallery.match(wish, path).words}
            assert words == set(make_encoding(kept[path]).bag.words) & set(wish.bag.words)
            generations.add(gallery.store.snapshot().state.generation)
            searches += 1
    code, rounds = finish(*child)
    assert code == 0
    assert min(searches, rounds) > 3
    assert len(generations) > 3


def test_a_compaction_killed_at_any_step_leaves_all_as_it_was_or_is_done(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "full")
    done, left = 0, 0
    for n in count():
        folder = tmp_path / f"{n}"
        shutil.copytree(tmp_path / "full", folder)

        def compact_until(report: Report, folder: Path = folder, n: int = n) -> None:
            die_at_step(n)
            compacted(folder)

        code, _ = finish(*start(compact_until))
        check_contents(folder, contents)
        left += len(list(folder.glob("*.rows"))) > 2
        with Writer(folder) as writer:
            done += writer.catalog.state().generation
        check_row_files(folder)
        check_contents(folder, contents)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert left > 5
    assert 5 < done < n - 5


def test_a_compaction_on_a_full_disk_leaves_all_as_it_was(small_disk: Path) -> None:
    folder = small_disk / "g"
    contents = {f"/photos/{n}-{copy}.png": n for n in range(N_IMAGES) for copy in range(20)}
    fill_gallery(folder)
    assert list(run_session(folder, [contents])) == [contents]
    outcomes = []
    ballast = small_disk / "ballast"
    for left in (*range(0, 300, 20), 400):
        more = contents | {f"/photos/{left % N_IMAGES}-more.png": left % N_IMAGES}
        assert list(run_session(folder, [more, contents])) == [
            more,
            contents,
        ]  # so that a row is to be freed
        ballast.write_bytes(bytes(max(0, shutil.disk_usage(small_disk).free - left * 1024)))
        try:
            compacted(folder)
            outcomes.append("done")
        except StorageFull:
            outcomes.append("full")
        except GalleryError as error:
            assert "cannot read or write" in str(error)
            outcomes.append("full")
        ballast.unlink()
        check_contents(folder, contents)
    assert outcomes[0] == "full"
    assert outcomes[-1] == "done"
    compacted(folder)
    check_row_files(folder)


def test_an_interrupted_compaction_leaves_no_files(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    size = file_sizes(tmp_path / "g")
    reported: list[tuple[str, int, int]] = []

    def stop(stage: str, done: int, total: int) -> None:
        reported.append((stage, done, total))
        if len(reported) == 2:
            raise KeyboardInterrupt

    with Gallery.open(tmp_path / "g") as gallery:
        with pytest.raises(KeyboardInterrupt):
            gallery.compact(progress=stop)
        assert file_sizes(gallery.path) == size
        n = len(contents)
        assert reported == [
            ("compacting bags", n, n),
            ("compacting dense vectors", n, n),
        ]
    check_contents(tmp_path / "g", contents)


def test_old_changes_are_forgotten_and_slow_readers_read_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_CHANGES_KEPT", 6)
    contents = fill_gallery(tmp_path / "g")
    quick, slow = Gallery.open(tmp_path / "g"), Gallery.open(tmp_path / "g")
    slow.store.snapshot()
    for number, commits in enumerate(islice(random_sessions(3, contents), 30)):
        for contents in run_session(tmp_path / "g", commits):
            assert stored_rows(quick) == expected_rows(contents)
        if number % 7 == 0:
            assert stored_rows(slow) == expected_rows(contents)
        state = quick.store.snapshot().state
        last = state.last_change or 0
        assert last - state.forgotten <= 6
    assert last > 30
    quick.close()
    slow.close()
    check_contents(tmp_path / "g", contents)


def test_the_command_says_what_it_has_given_back(indexed: test_cli.Run, photos: Path) -> None:
    assert indexed("compact").out == "nothing to give back\n"
    assert indexed("compact", "--json").json == {"bytes": 0, "pictures": 12}
    indexed("remove", photos / "3.png")
    assert indexed("compact").out == "88 bytes given back, 11 pictures\n"
    indexed("remove", photos / "4.png", photos / "5.png")
    assert indexed("compact", "--json").json == {"bytes": 176, "pictures": 9}
    assert indexed("verify").out == "9 pictures, all whole\n"
    test_cli.failed(indexed("compact", "-g", "nowhere"), 1, "no gallery at", "nowhere")


def test_a_failing_disk_is_one_line_of_the_command(
    indexed: test_cli.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed("remove", photos / "3.png")

    def fail(_: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fsync", fail)
    for words in (["compact"], ["remove", photos / "4.png"]):
        test_cli.failed(indexed(*words), 1, "gallery.bm25v: Input/output error;")
