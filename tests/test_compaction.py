"""Compaction frees disk space and changes nothing else, even if it is interrupted."""

import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from bm25v.errors import GalleryError, StorageFull
from bm25v.gallery import Gallery
from bm25v.index.bm25 import Bm25Parameters, WeightedWords
from bm25v.index.second_stage import score_full_bags
from bm25v.search.combine import combine_bags
from bm25v.search.scoring import MODES
from bm25v.store.local import catalog
from bm25v.store.local.catalog import Catalog
from bm25v.store.local.rows import HEADER_BYTES, RowFile
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Vocabulary
from tests import test_cli
from tests.children import Report, die_at_step, finish, needs_fork, start
from tests.conftest import make_image, stored_bag, stored_full_bag
from tests.histories import (
    N_IMAGES,
    Contents,
    check_contents,
    check_row_files,
    expected_rows,
    fill_gallery,
    full_bag,
    image_number,
    make_encoding,
    random_sessions,
    run_session,
    stored_rows,
    write_contents,
)
from tests.soak.history import get_full_bag

pytestmark = pytest.mark.filterwarnings("ignore:.*fork")
run, indexed = test_cli.run, test_cli.indexed
ROW_BYTES = 64 + 24 + 1024  # bag, dense vector and full bag of an image


def compact(folder: Path) -> int:
    with Writer(folder) as writer:
        return writer.compact()


def all_hits(gallery: Gallery) -> list[Any]:
    return [
        gallery.search(make_encoding(number), k=k, mode=mode).hits
        for number in range(0, N_IMAGES, 5)
        for mode in MODES
        for k in (5, 2 * N_IMAGES)
    ]


def list_paths(gallery: Gallery) -> list[str]:
    return sorted(image.path for image in gallery.images(min_size=1))


def file_sizes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.rows"))


@pytest.mark.parametrize("seed", range(6))
def test_results_stay_the_same_and_space_is_freed(tmp_path: Path, seed: int) -> None:
    contents = fill_gallery(tmp_path / "g", seed)
    gallery = Gallery.open(tmp_path / "g")
    before, size, removed = all_hits(gallery), file_sizes(gallery.path), gallery.info().removed_rows
    assert removed > 0
    assert gallery.compact() == size - file_sizes(gallery.path) == removed * ROW_BYTES
    assert file_sizes(gallery.path) == 3 * HEADER_BYTES + len(contents) * ROW_BYTES
    assert all_hits(gallery) == before
    assert all_hits(Gallery.open(gallery.path)) == before
    assert (gallery.info().removed_rows, len(gallery)) == (0, len(contents))
    assert gallery.compact() == 0
    assert gallery.local.snapshot().state.generation == 1
    gallery.close()
    check_row_files(gallery.path)
    check_contents(gallery.path, contents)


def test_a_reader_follows_changes_after_compactions(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    reader = Gallery.open(tmp_path / "g")
    for commits in islice(random_sessions(1, contents), 30):
        for contents in run_session(tmp_path / "g", commits):
            assert stored_rows(reader) == expected_rows(contents)
    assert reader.local.snapshot().state.generation > 3
    reader.close()
    check_contents(tmp_path / "g", contents)


def test_compaction_forgets_removed_images(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded = []
    decode = Vocabulary.decode_with_metadata

    def decode_and_record(self: Vocabulary, content: bytes) -> object:
        encoded.append(content)
        return decode(self, content)

    monkeypatch.setattr(Vocabulary, "decode_with_metadata", decode_and_record)
    gallery.remove(photos / "3.png")
    gallery.add(photos / "3.png")
    assert encoded == []
    gallery.remove(photos / "3.png")
    assert gallery.compact() == ROW_BYTES
    assert gallery.add(photos).added == 1
    assert encoded == [(photos / "3.png").read_bytes()]
    assert len(gallery) == 12


def test_an_emptied_and_compacted_gallery_can_be_filled_again(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    assert list(run_session(folder, [{}])) == [{}]
    assert compact(folder) > 0
    check_contents(folder, {})
    assert list(run_session(folder, [contents])) == [contents]
    check_contents(folder, contents)
    assert file_sizes(folder) == 3 * HEADER_BYTES + len(contents) * ROW_BYTES


def test_changes_without_a_commit_are_compacted_too(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    added = contents | {"/photos/1-new.png": 1, "/photos/45-new.png": 45}
    with Writer(tmp_path / "g") as writer:
        write_contents(writer, added)
        assert writer.compact() > 0
    check_contents(tmp_path / "g", added)


def test_the_catalogue_shrinks(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    many = {f"/photos/{n}-{copy}.png": n for n in range(N_IMAGES) for copy in range(50)}
    for version in (many, contents):
        assert list(run_session(folder, [version])) == [version]
    size = (folder / catalog.FILE_NAME).stat().st_size
    compact(folder)
    assert (folder / catalog.FILE_NAME).stat().st_size < size / 4
    check_contents(folder, contents)


def test_a_snapshot_stays_valid_and_the_next_has_new_rows(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    reader, writer = Gallery.open(tmp_path / "g"), Gallery.open(tmp_path / "g")
    old, hits = reader.local.snapshot(), all_hits(reader)
    query = WeightedWords.from_bag(make_encoding(1).bag)
    before = old.searcher.search(query, 50)
    bags = [stored_bag(old, row) for row in old.rows.tolist()]
    writer.compact()
    after = old.searcher.search(query, 50)
    assert after.rows.tolist() == before.rows.tolist()
    assert after.scores.tolist() == before.scores.tolist()
    new = reader.local.snapshot()
    assert (old.state.generation, new.state.generation) == (0, 1)
    assert new.rows.tolist() == list(range(len(old.rows)))
    for row, bag in enumerate(bags):
        assert stored_bag(new, row).words.tolist() == bag.words.tolist()
    assert all_hits(reader) == hits


def test_a_snapshot_keeps_its_full_bags_while_others_write_and_compact(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    query = combine_bags([full_bag(1)], by_strength=True)

    def read(snapshot: Snapshot) -> list[Any]:
        rows, statistics = snapshot.rows, snapshot.full_statistics
        stored = [[part.tolist() for part in stored_full_bag(snapshot, row)] for row in rows]
        bags = (snapshot.full_bags, rows)
        scores = score_full_bags(*bags, query, statistics, Bm25Parameters())
        return [stored, scores.tolist(), snapshot.full_statistics.df_v.tolist()]

    with Gallery.open(tmp_path / "g") as reader:
        snapshots = [reader.local.snapshot()]
        expected = [read(snapshots[0])]
        sessions: list[list[Contents]]
        sessions = [[contents | {"/photos/1-new.png": 1}], [], [{}], [], [contents]]
        for commits in sessions:
            for _ in run_session(tmp_path / "g", commits):
                pass
            snapshots.append(reader.local.snapshot())
            expected.append(read(snapshots[-1]))
        assert list(map(read, snapshots)) == expected
        assert len({snapshot.state.generation for snapshot in snapshots}) == 3
        assert len({str(facts) for facts in expected}) > 2


@pytest.mark.parametrize(
    ("function", "n"),
    [
        ((Catalog, "with_rows"), 0),
        *(((RowFile, "open"), n) for n in range(3)),
        ((Catalog, "state"), 0),
        ((Catalog, "transaction"), 0),
        *(((Catalog, name), n) for name in ("version", "paths_of") for n in range(3)),
    ],
)
def test_a_compaction_during_a_search_or_a_check_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: tuple[type, str], n: int
) -> None:
    """Another writer compacts the gallery just before the n-th call of a function."""
    full = tmp_path / "full"
    contents = fill_gallery(full)
    with Gallery.open(full) as gallery:
        hits = all_hits(gallery)
    original = getattr(*function)
    uses: list[tuple[Callable[[Gallery], Any], Any]]
    uses = [(all_hits, hits), (Gallery.problems, []), (len, len(contents))]
    uses.append((list_paths, sorted(contents)))
    for number, (use, expected) in enumerate(uses):
        folder = tmp_path / f"{number}"
        shutil.copytree(full, folder)
        calls = count()

        def compact_first(
            *values: Any, calls: Iterator[int] = calls, folder: Path = folder, **named: Any
        ) -> Any:
            if next(calls) == n:
                with monkeypatch.context() as patch:
                    patch.setattr(*function, original)
                    assert compact(folder) > 0
            return original(*values, **named)

        with Gallery.open(folder) as reader, monkeypatch.context() as patch:
            patch.setattr(*function, compact_first)
            assert use(reader) == expected
        assert use is not all_hits or next(calls) > n or function[1] == "with_rows"


def test_a_compaction_while_images_are_listed_loses_none(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    with Gallery.open(tmp_path / "g") as reader:
        images = reader.images(min_size=1)
        first = next(images)
        assert compact(tmp_path / "g") > 0
        listed = [first.path, *(image.path for image in images)]
    assert sorted(listed) == sorted(contents)


def test_images_are_counted_in_one_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    execute, calls = Catalog.execute, count()
    contents = fill_gallery(tmp_path / "g")

    def compact_afterwards(*values: Any) -> Any:
        result = execute(*values)
        if next(calls) == 0:
            monkeypatch.setattr(Catalog, "execute", execute)
            assert compact(tmp_path / "g") > 0
        return result

    with Gallery.open(tmp_path / "g") as gallery:
        monkeypatch.setattr(Catalog, "execute", compact_afterwards)
        assert len(gallery) == len(contents)


@needs_fork
def test_every_hit_has_the_right_path_while_another_process_compacts(tmp_path: Path) -> None:
    folder = tmp_path / "g"
    contents = fill_gallery(folder)
    kept = {path: n for path, n in contents.items() if n % 2}
    end = time.monotonic() + 2

    def compact_repeatedly(report: Report) -> None:
        while time.monotonic() < end:
            for commits in ([kept], [], [contents], [kept | contents], []):
                for _ in run_session(folder, commits):
                    pass
            report()

    child = start(compact_repeatedly)
    rng = random.Random(2)
    with Gallery.open(folder) as gallery:
        searches, generations = 0, set()
        while time.monotonic() < end:
            query = make_encoding(rng.randrange(N_IMAGES))
            query_words = set(get_full_bag(query).words)
            for hit in gallery.search(query, k=N_IMAGES):
                image_words = set(full_bag(image_number(hit.path)).words)
                assert {w.word for w in hit.words} == image_words & query_words
            path = rng.choice(list(kept))
            words = {word.word for word in gallery.match(query, path).words}
            assert words == set(full_bag(kept[path]).words) & query_words
            generations.add(gallery.local.snapshot().state.generation)
            searches += 1
    code, rounds = finish(*child)
    assert code == 0
    assert min(searches, rounds) > 3
    assert len(generations) > 3


@needs_fork
def test_a_compaction_killed_at_any_step_is_complete_or_has_no_effect(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "full")
    n_completed, n_with_old_files = 0, 0
    for n in count():
        folder = tmp_path / f"{n}"
        shutil.copytree(tmp_path / "full", folder)

        def compact_and_die(report: Report, folder: Path = folder, n: int = n) -> None:
            die_at_step(n)
            compact(folder)

        code, _ = finish(*start(compact_and_die))
        check_contents(folder, contents)
        n_with_old_files += len(list(folder.glob("*.rows"))) > 3
        with Writer(folder) as writer:
            n_completed += writer.catalog.state().generation
        check_row_files(folder)
        check_contents(folder, contents)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert n_with_old_files > 5
    assert 5 < n_completed < n - 5


def test_a_compaction_on_a_full_disk_has_no_effect(small_disk: Path) -> None:
    folder = small_disk / "g"
    contents = {f"/photos/{n}-{copy}.png": n for n in range(N_IMAGES) for copy in range(3)}
    fill_gallery(folder)
    assert list(run_session(folder, [contents])) == [contents]
    outcomes = []
    ballast = small_disk / "ballast"
    for free_kilobytes in (*range(0, 300, 20), 400):
        number = free_kilobytes % N_IMAGES
        more = contents | {f"/photos/{number}-more.png": number}
        commits = [more, contents]  # so that there is a row to free
        assert list(run_session(folder, commits)) == commits
        free = shutil.disk_usage(small_disk).free
        ballast.write_bytes(bytes(max(0, free - free_kilobytes * 1024)))
        try:
            compact(folder)
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
    compact(folder)
    check_row_files(folder)


def test_an_interrupted_compaction_leaves_no_new_files(tmp_path: Path) -> None:
    contents = fill_gallery(tmp_path / "g")
    size = file_sizes(tmp_path / "g")
    reported: list[tuple[str, int, int]] = []

    def interrupt(stage: str, done: int, total: int) -> None:
        reported.append((stage, done, total))
        if len(reported) == 2:
            raise KeyboardInterrupt

    with Gallery.open(tmp_path / "g") as gallery:
        with pytest.raises(KeyboardInterrupt):
            gallery.compact(progress=interrupt)
        assert file_sizes(gallery.path) == size
        n = len(contents)
        assert reported == [
            ("compacting bags", n, n),
            ("compacting dense vectors", n, n),
        ]
    check_contents(tmp_path / "g", contents)


def test_readers_that_missed_forgotten_changes_read_the_whole_gallery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "CHANGES_KEPT", 6)
    contents = fill_gallery(tmp_path / "g")
    frequent, rare = Gallery.open(tmp_path / "g"), Gallery.open(tmp_path / "g")
    rare.local.snapshot()
    for number, commits in enumerate(islice(random_sessions(3, contents), 30)):
        for contents in run_session(tmp_path / "g", commits):
            assert stored_rows(frequent) == expected_rows(contents)
        if number % 7 == 0:
            assert stored_rows(rare) == expected_rows(contents)
        state = frequent.local.snapshot().state
        last = state.last_change or 0
        assert last - state.forgotten <= 6
    assert last > 30
    frequent.close()
    rare.close()
    check_contents(tmp_path / "g", contents)


def test_the_command_prints_how_many_bytes_were_freed(indexed: test_cli.Run, photos: Path) -> None:
    assert indexed("compact").out == "nothing to free: no image was removed\n"
    assert indexed("compact", "--json").json == {"bytes": 0, "n_images": 12}
    indexed("remove", photos / "3.png")
    assert indexed("compact").out == "1.1 kB freed, 11 images\n"
    indexed("remove", photos / "4.png", photos / "5.png")
    assert indexed("compact", "--json").json == {"bytes": 2 * ROW_BYTES, "n_images": 9}
    assert indexed("verify").out == "9 images, no problems\n"
    test_cli.failed(indexed("compact", "-g", "nowhere"), 1, "no gallery at", "nowhere")


def test_a_disk_error_of_a_command_is_one_line(
    indexed: test_cli.Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed("remove", photos / "3.png")

    def fail(_: int) -> None:
        raise OSError(5, os.strerror(5))

    monkeypatch.setattr(os, "fsync", fail)
    make_image(50).save(photos / "new.png")
    for arguments in (["compact"], ["index", photos]):
        test_cli.failed(indexed(*arguments), 1, "gallery.bm25v: Input/output error;")
