"""Duplicates: the same files, nearly the same pictures, and no chains of merely similar ones."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bm25v import demo
from bm25v.api import Gallery
from bm25v.backbones import downloads
from bm25v.duplicates import DuplicateGroup
from bm25v.duplicates import similarity as similarities
from bm25v.duplicates.groups import group_around_centres
from bm25v.duplicates.similarity import (
    Similarity,
    compare_layouts,
    compare_words,
    find_candidate_pairs,
    find_near_pairs,
)
from bm25v.errors import WrongUse
from bm25v.progress import no_progress
from bm25v.research.bench.duplicates import CHANGES, measure_duplicates
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.conftest import make_image
from tests.histories import fill_gallery, random_sessions, run_session

run = test_cli.run

MILD = ["crop 5 %", "turn 2°", "JPEG 30", "half size"]  # the toy sees nothing but colours


def photo(seed: int) -> Image.Image:
    """Return a picture with large and small things in it."""
    rng = np.random.default_rng(seed)
    large, small = (
        Image.fromarray(rng.integers(0, 256, (n, n, 3), dtype=np.uint8)).resize(
            (240, 180), Image.Resampling.BICUBIC
        )
        for n in (5, 14)
    )
    return Image.blend(large, small, 0.3)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "photos"
    made.mkdir()
    for seed in range(8):
        photo(seed).save(made / f"{seed}.png")
    return made


def names(group: DuplicateGroup) -> list[str]:
    return [Path(one.path).name for one in group.images]


def test_the_same_content_is_found_by_its_hash(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for name in ("copy.png", "again.png"):
        shutil.copy(folder / "3.png", folder / name)
    gallery = make_gallery("g")
    gallery.add(folder)
    for near in (False, True):
        (group,) = gallery.duplicates(near=near)
        assert group.kind == "exact"
        assert sorted(names(group)) == ["3.png", "again.png", "copy.png"]
        assert [one.is_copy for one in group.images] == [False, True, True]
        assert {one.size for one in group.images} == {(folder / "3.png").stat().st_size}
        assert {one.similarity for one in group.images} == {Similarity(1, 1, 1)}
    gallery.remove(folder / "3.png")
    (group,) = gallery.duplicates()
    assert sorted(names(group)) == ["again.png", "copy.png"]
    gallery.compact()
    assert gallery.duplicates() == [group]
    gallery.remove(folder / "copy.png")
    assert gallery.duplicates() == gallery.duplicates(near=False) == []


@pytest.mark.parametrize("kind", MILD)
def test_changed_pictures_are_found(
    kind: str, folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for seed in (2, 5):
        CHANGES[kind](photo(seed)).save(folder / f"{seed}-changed.png")
    gallery = make_gallery("g")
    gallery.add(folder)
    groups = gallery.duplicates()
    assert {frozenset(names(group)) for group in groups} == {
        frozenset({"2.png", "2-changed.png"}),
        frozenset({"5.png", "5-changed.png"}),
    }
    assert {group.kind for group in groups} == {"near"}
    for group in groups:
        first, second = group.images
        assert (first.is_copy, second.is_copy) == (False, False)
        assert second.similarity.is_near
    assert gallery.duplicates(near=False) == []


def test_similar_pictures_are_told_apart_by_where_things_are(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    pixels = np.asarray(photo(2))
    Image.fromarray(pixels[::-1]).save(folder / "upside-down.png")  # the same colours, elsewhere
    gallery = make_gallery("g")
    gallery.add(folder)
    snapshot = gallery.store.snapshot()
    paths = gallery.store.catalog.all_paths(snapshot.state.generation)
    assert paths is not None
    silent = find_candidate_pairs(snapshot, sorted(paths), no_progress)
    alike = {frozenset(Path(paths[row]).name for row in pair) for pair in silent}
    assert frozenset({"2.png", "upside-down.png"}) in alike
    assert find_near_pairs(snapshot, paths, no_progress) == {}
    assert gallery.duplicates() == []


def test_where_files_are_gone_only_what_is_stored_counts(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    Image.fromarray(np.asarray(photo(2))[::-1]).save(folder / "upside-down.png")
    CHANGES["half size"](photo(5)).save(folder / "half.png")
    gallery = make_gallery("g")
    gallery.add(folder)
    (group,) = gallery.duplicates()
    shutil.rmtree(folder)
    (unseen,) = gallery.duplicates()
    assert names(unseen) == names(group)
    assert unseen.images[1].similarity == group.images[1].similarity._replace(layout=None)


@pytest.mark.parametrize(
    ("similarity", "is_near"),
    [
        (Similarity(0.75, 0.2, 0.9), True),
        (Similarity(0.74, 0.9, 0.99), False),
        (Similarity(0.99, 0.19, 0.99), False),
        (Similarity(0.99, 0.9, 0.89), False),
        (Similarity(0.94, 0.9, None), False),
        (Similarity(0.99, 0.59, None), False),
        (Similarity(0.95, 0.6, None), True),
    ],
)
def test_thresholds(similarity: Similarity, is_near: bool) -> None:
    assert similarity.is_near == is_near


def likeness_of(one: Image.Image, other: Image.Image, tmp_path: Path) -> float | None:
    paths = {0: str(tmp_path / "one.png"), 1: str(tmp_path / "other.png")}
    for path, image in zip(paths.values(), (one, other), strict=True):
        image.save(path)
    return compare_layouts([(0, 1)], paths, no_progress).get((0, 1))


def test_layouts(tmp_path: Path) -> None:
    for seed in range(6):
        for kind, change in CHANGES.items():
            found = likeness_of(photo(seed), change(photo(seed)), tmp_path)
            assert found is not None
            assert found > 0.9, kind
        other = likeness_of(photo(seed), photo(seed + 100), tmp_path)
        assert other is not None
        assert other < 0.8
    white, grey = Image.new("RGB", (90, 60), "white"), Image.new("L", (30, 30), 90)
    assert likeness_of(white, grey, tmp_path) is None
    assert likeness_of(white, photo(1), tmp_path) == 0.0
    (tmp_path / "torn.png").write_bytes(b"no picture")
    paths = {0: str(tmp_path / "one.png"), 1: str(tmp_path / "torn.png"), 2: "/nowhere.png"}
    assert compare_layouts([(0, 1), (0, 2)], paths, no_progress) == {}


def test_a_tiny_picture_has_a_layout(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[0] * 3, [255] * 3]], dtype=np.uint8)).save(tmp_path / "two.png")
    assert similarities.view_whole(similarities.make_thumbnail(tmp_path / "two.png")) is not None


Bags = st.dictionaries(st.integers(0, 30), st.integers(1, 65535), max_size=16)


def bag(tf: dict[int, int]) -> Bag:
    words = sorted(tf)
    return Bag(np.array(words, np.int32), np.array([tf[w] for w in words], np.uint16))


@given(Bags, Bags)
def test_shared_words_are_those_of_a_plain_sum(one: dict[int, int], other: dict[int, int]) -> None:
    words = one.keys() | other.keys()
    least = sum(min(one.get(word, 0), other.get(word, 0)) for word in words)
    most = sum(max(one.get(word, 0), other.get(word, 0)) for word in words)
    assert compare_words(bag(one), bag(other)) == pytest.approx(least / most if most else 0)


def graph(pairs: list[tuple[int, int]]) -> dict[int, dict[int, float]]:
    near: dict[int, dict[int, float]] = {}
    for one, other in pairs:
        similarity = 0.9 - 0.001 * ((one + other) % 7)
        near.setdefault(one, {})[other] = similarity
        near.setdefault(other, {})[one] = similarity
    return near


def test_neighbours_of_neighbours_are_not_one_group() -> None:
    assert group_around_centres(graph([(1, 2), (2, 3)])) == [[2, 1, 3]]
    chain = group_around_centres(graph([(n, n + 1) for n in range(100)]))
    assert max(map(len, chain)) == 3
    assert sorted(one for group in chain for one in group) == list(range(101))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(lambda p: p[0] != p[1])))
def test_each_one_is_in_one_group_and_near_its_first(pairs: list[tuple[int, int]]) -> None:
    near = graph(pairs)
    groups = group_around_centres(near)
    assert sorted(one for group in groups for one in group) == sorted(near)
    for first, *others in groups:
        assert others
        assert set(others) <= near[first].keys()
        assert others == sorted(others, key=lambda one: (-near[first][one], one))


def test_copies_of_changed_pictures_stay_together(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    CHANGES["JPEG 30"](photo(2)).save(folder / "changed.png")
    for name in ("2.png", "changed.png"):
        shutil.copy(folder / name, folder / f"copy of {name}")
    gallery = make_gallery("g")
    gallery.add(folder)
    (group,) = gallery.duplicates()
    assert group.kind == "near"
    copies = {Path(one.path).name: one.is_copy for one in group.images}
    assert sorted(copies.values()) == [False, False, True, True]
    assert set(copies) == {"2.png", "changed.png", "copy of 2.png", "copy of changed.png"}
    exact = gallery.duplicates(near=False)
    assert [group.kind for group in exact] == ["exact", "exact"]


def test_rows_that_are_equal_are_one_group_however_many(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    (tmp_path / "p").mkdir()
    for number in range(70):  # more than a search gives
        image = make_image(3)
        image.save(tmp_path / "p" / f"{number}.png", compress_level=number % 9, dpi=(number + 1, 1))
    gallery = make_gallery("g")
    gallery.add(tmp_path / "p")
    (group,) = gallery.duplicates()
    assert (len(group.images), group.kind) == (70, "near")


@pytest.mark.parametrize("seed", range(3))
def test_after_any_history_copies_are_those_that_there_are(tmp_path: Path, seed: int) -> None:
    contents = fill_gallery(tmp_path / "g", seed)
    for _, commits in zip(range(6), random_sessions(seed, contents), strict=False):
        (*_, contents) = (contents, *run_session(tmp_path / "g", commits))
        expected: dict[int, set[str]] = {}
        for path, number in contents.items():
            expected.setdefault(number, set()).add(path)
        copies = {frozenset(paths) for paths in expected.values() if len(paths) > 1}
        with Gallery.open(tmp_path / "g") as gallery:
            for near in (False, True):
                groups = gallery.duplicates(near=near)
                found = {frozenset(one.path for one in group.images) for group in groups}
                assert found == copies
                assert all(group.kind == "exact" for group in groups)


def test_the_shell(run: Any, folder: Path) -> None:
    CHANGES["half size"](photo(2)).save(folder / "half.png")
    shutil.copy(folder / "5.png", folder / "copy.png")
    assert run("index", folder, "--vocabulary", "toy").code == 0
    told = run("duplicates", "--json").json
    assert told["pictures"] == 10
    assert [group["kind"] for group in told["groups"]] == ["near", "exact"]
    one = told["groups"][0]["pictures"][1]
    assert list(one) == ["path", "size", "copy", "cosine", "words", "layout"]
    assert [g["kind"] for g in run("duplicates", "--exact", "--json").json["groups"]] == ["exact"]
    assert [g["kind"] for g in run("duplicates", "--near", "--json").json["groups"]] == ["near"]
    printed = run("duplicates").out
    assert "photos/half.png" in printed
    assert re.search(r"^  same +photos/", printed, re.MULTILINE)
    assert re.search(r"^  near, cosine [01]\.\d\d  photos/", printed, re.MULTILINE)
    assert printed.endswith(
        "2 groups; 2 of 10 images look like another one: check before deleting\n"
    )
    assert run("remove", "photos/half.png").code == 0
    assert run("duplicates").out.endswith(
        "1 group; 1 of 9 images look like another one: check before deleting\n"
    )
    assert run("remove", "photos/copy.png").code == 0
    assert run("duplicates").out == "no duplicates among 8 images\n"
    assert run("duplicates", "-g", "nowhere").code == 1


def test_an_empty_gallery_has_none(make_gallery: Callable[[str], Gallery]) -> None:
    assert make_gallery("g").duplicates() == []


def test_labelled_pairs_of_real_photos(tmp_path: Path) -> None:
    demo.unpack(downloads.read_file(demo.PHOTOS), tmp_path / "all")
    (tmp_path / "some").mkdir()
    for path in sorted((tmp_path / "all").rglob("*.png"))[:24]:
        shutil.copy(path, tmp_path / "some")
    result = measure_duplicates(tmp_path / "some", every=8)
    little = (*MILD, "crop 10 %", "turn 5°", "darker", "brighter")
    assert np.mean([result.recall[kind] for kind in little]) > 0.9
    assert result.mixed == ()


def test_the_bench_counts_what_is_found(folder: Path, run: Any) -> None:
    result = measure_duplicates(folder, vocabulary="toy", every=4)
    assert result.images == 8 + 2 * len(CHANGES)
    assert result.recall.keys() == CHANGES.keys()
    assert all(result.recall[kind] == 1 for kind in MILD)
    assert result.mixed == ()
    assert 2 <= result.groups <= 6
    as_json = json.loads(run("bench", "duplicates", folder, "--vocabulary", "toy", "--json").out)
    assert list(as_json) == ["pictures", "recall", "groups", "mixed", "seconds"]
    assert (as_json["pictures"], as_json["recall"]) == (result.images, result.recall)
    printed = run("bench", "duplicates", folder, "--vocabulary", "toy").out
    assert " 100.0%  of crop 5 %\n" in printed
    (folder.parent / "empty").mkdir()
    with pytest.raises(WrongUse, match="has 0 images"):
        measure_duplicates(folder.parent / "empty")
