"""Duplicates: equal files, nearly equal images, and no chains of merely similar ones."""

import os
import random
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
from bm25v.backbones import downloads
from bm25v.duplicates import (
    DuplicateGroup,
    PixelSimilarity,
    Similarity,
    compare_files,
    compare_words,
    find_candidate_pairs,
    find_near_pairs,
    group_around_best,
    make_thumbnail,
    view_whole,
)
from bm25v.gallery import Gallery
from bm25v.progress import no_progress
from bm25v.render.duplicates_page import render_duplicates
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.conftest import make_image
from tests.html_page import HtmlPage
from tests.image_changes import CHANGES, measure_duplicates

run = test_cli.run

MILD = ["crop 5 %", "turn 2°", "JPEG 30", "half size"]  # the toy backbone encodes colours only


def make_photo(seed: int) -> Image.Image:
    """Return an image with large and small structures."""
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
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(8):
        make_photo(seed).save(folder / f"{seed}.png")
    return folder


def file_names(group: DuplicateGroup) -> list[str]:
    return [Path(image.path).name for image in group.images]


def test_files_with_the_same_content_are_exact_duplicates(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for name in ("copy.png", "again.png"):
        shutil.copy(folder / "3.png", folder / name)
    gallery = make_gallery("g")
    gallery.add(folder)
    for near in (False, True):
        (group,) = gallery.duplicates(near=near)
        assert group.kind == "exact"
        assert sorted(file_names(group)) == ["3.png", "again.png", "copy.png"]
        assert [image.is_copy for image in group.images] == [False, True, True]
        assert {image.size for image in group.images} == {(folder / "3.png").stat().st_size}
        assert {image.similarity for image in group.images} == {Similarity(1, 1, 1, 1, 1)}
    gallery.remove(folder / "3.png")
    (group,) = gallery.duplicates()
    assert sorted(file_names(group)) == ["again.png", "copy.png"]
    gallery.compact()
    assert gallery.duplicates() == [group]
    gallery.remove(folder / "copy.png")
    assert gallery.duplicates() == gallery.duplicates(near=False) == []


@pytest.mark.parametrize("kind", MILD)
def test_slightly_changed_images_are_near_duplicates(
    kind: str, folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    for seed in (2, 5):
        CHANGES[kind](make_photo(seed)).save(folder / f"{seed}-changed.png")
    gallery = make_gallery("g")
    gallery.add(folder)
    groups = gallery.duplicates()
    assert {frozenset(file_names(group)) for group in groups} == {
        frozenset({"2.png", "2-changed.png"}),
        frozenset({"5.png", "5-changed.png"}),
    }
    assert {group.kind for group in groups} == {"near"}
    for group in groups:
        first, second = group.images
        assert (first.is_copy, second.is_copy) == (False, False)
        assert second.similarity.is_near
    assert gallery.duplicates(near=False) == []


def test_images_with_the_same_words_in_another_layout_are_no_duplicates(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    pixels = np.asarray(make_photo(2))
    Image.fromarray(pixels[::-1]).save(folder / "upside-down.png")  # the same colours, elsewhere
    gallery = make_gallery("g")
    gallery.add(folder)
    snapshot = gallery.local.snapshot()
    paths = gallery.local.catalog.all_paths(snapshot.state.generation)
    candidates = find_candidate_pairs(snapshot, sorted(paths), no_progress)
    pairs = {frozenset(Path(paths[row]).name for row in pair) for pair in candidates}
    assert frozenset({"2.png", "upside-down.png"}) in pairs
    assert find_near_pairs(snapshot, paths, no_progress) == {}
    assert gallery.duplicates() == []


def test_images_from_memory_are_compared_by_their_stored_rows(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery = make_gallery("g")
    photo, half = make_photo(5), CHANGES["half size"](make_photo(5))
    gallery.add({"a": half, "b": photo, "c": photo, "d": make_photo(6)})
    (group,) = gallery.duplicates()
    assert [image.path for image in group.images] == ["b", "c", "a"]
    assert group.images[2].similarity.layout is None
    photo.save(folder / "small file.png")
    gallery.add(folder / "small file.png")
    assert file_names(gallery.duplicates()[0])[0] == "small file.png", "a file can be kept"


@pytest.mark.parametrize("near", [False, True])
def test_a_file_with_several_names_is_one_image(
    tmp_path: Path, near: bool, make_gallery: Callable[[str], Gallery]
) -> None:
    folder = tmp_path / "d"
    folder.mkdir()
    make_photo(1).save(folder / "z_real.jpg")
    (folder / "a_link.jpg").symlink_to("z_real.jpg")
    (folder / "hard.jpg").hardlink_to(folder / "z_real.jpg")
    gallery = make_gallery("g")
    assert gallery.add(folder).added == 3
    assert gallery.duplicates(near=near) == []
    shutil.copy(folder / "z_real.jpg", folder / "a copy.jpg")
    gallery.add(folder)
    (group,) = gallery.duplicates(near=near)
    assert sorted(file_names(group)) == ["a copy.jpg", "hard.jpg"]


@pytest.mark.parametrize("near", [False, True])
def test_a_link_is_never_listed_beside_its_target(
    tmp_path: Path, near: bool, make_gallery: Callable[[str], Gallery]
) -> None:
    (tmp_path / "d").mkdir()
    make_photo(1).save(tmp_path / "d" / "the real file.jpg")
    shutil.copy(tmp_path / "d" / "the real file.jpg", tmp_path / "d" / "a copy of the file.jpg")
    (tmp_path / "d" / "a.jpg").symlink_to("the real file.jpg")
    gallery = make_gallery("g")
    gallery.add(tmp_path / "d")
    (group,) = gallery.duplicates(near=near)
    assert sorted(file_names(group)) == ["a copy of the file.jpg", "the real file.jpg"]


@pytest.mark.parametrize("near", [False, True])
def test_a_link_is_never_the_one_to_keep(
    folder: Path, near: bool, make_gallery: Callable[[str], Gallery]
) -> None:
    elsewhere = folder.parent / "elsewhere"
    shutil.copytree(folder, elsewhere)
    gallery = make_gallery("g")
    for name in ("a", "b"):  # to files that are not indexed
        shutil.copy(elsewhere / "7.png", elsewhere / f"{name}.png")
        (folder / f"{name}.png").symlink_to(elsewhere / f"{name}.png")
    make_photo(3).resize((480, 360), Image.Resampling.BICUBIC).save(elsewhere / "large.png")
    (folder / "large.png").symlink_to(elsewhere / "large.png")
    gallery.add(folder)
    gallery.add({"memory": (folder / "7.png").read_bytes()})
    groups = [file_names(group) for group in gallery.duplicates(near=near)]
    assert ["7.png", "memory", "a.png", "b.png"] in groups
    assert (["3.png", "large.png"] in groups) == near
    gallery.remove(folder / "7.png")
    gallery.remove("memory")
    groups = [file_names(group) for group in gallery.duplicates(near=near)]
    assert groups == ([["3.png", "large.png"]] if near else []), "links alone are no group"


@pytest.mark.parametrize("near", [False, True])
def test_files_that_are_missing_or_changed_are_left_out(
    folder: Path,
    near: bool,
    make_gallery: Callable[[str], Gallery],
    caplog: pytest.LogCaptureFixture,
) -> None:
    shutil.copytree(folder, folder.parent / "usb")
    gallery = make_gallery("g")
    gallery.add([folder.parent / "usb", folder])
    assert len(gallery.duplicates(near=near)) == 8
    assert "left out" not in caplog.text
    make_photo(100).save(folder.parent / "usb" / "3.png")
    assert len(gallery.duplicates(near=near)) == 7
    (folder.parent / "usb").rename(folder.parent / "unplugged")
    assert gallery.duplicates(near=near) == []
    assert "left out 8 images whose files are missing or have changed" in caplog.text


def test_the_first_of_a_group_is_the_best(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    photo = make_photo(2)
    photo.resize((480, 360), Image.Resampling.BICUBIC).save(folder / "z large.png")
    photo.save(folder / "a poor.jpg", quality=60)
    for number, (seed, name) in enumerate([(5, "a"), (5, "b"), (6, "much longer")]):
        shutil.copy(folder / f"{seed}.png", folder / f"{name}.png")
        os.utime(folder / f"{name}.png", (1e9 + number, 1e9 + number))
    os.utime(folder / "6.png", (1e9 + 2, 1e9 + 2))
    gallery = make_gallery("g")
    gallery.add(folder)
    groups = {file_names(group)[0]: set(file_names(group)[1:]) for group in gallery.duplicates()}
    assert groups == {
        "z large.png": {"2.png", "a poor.jpg"},
        "a.png": {"b.png", "5.png"},  # the oldest
        "6.png": {"much longer.png"},
    }


@pytest.mark.parametrize(
    ("similarity", "is_near"),
    [
        (Similarity(0.75, 0.2, 0.85, 0.8, 0.55), True),
        (Similarity(0.74, 0.9, 0.99, 0.9, 0.9), False),
        (Similarity(0.99, 0.19, 0.99, 0.9, 0.9), False),
        (Similarity(0.99, 0.9, 0.84, 0.9, 0.9), False),
        (Similarity(0.99, 0.9, 0.99, 0.79, 0.9), False),
        (Similarity(0.99, 0.9, 0.99, 0.9, 0.54), False),
        (Similarity(0.94, 0.9), False),
        (Similarity(0.99, 0.59), False),
        (Similarity(0.95, 0.6), True),
    ],
)
def test_the_thresholds_of_near_duplicates(similarity: Similarity, is_near: bool) -> None:
    assert similarity.is_near == is_near


def compare(first: Image.Image, second: Image.Image, tmp_path: Path) -> PixelSimilarity | None:
    paths = {0: str(tmp_path / "first.png"), 1: str(tmp_path / "second.png")}
    for path, image in zip(paths.values(), (first, second), strict=True):
        image.save(path)
    return compare_files([(0, 1)], paths, no_progress).get((0, 1))


def is_near(similarity: PixelSimilarity | None) -> bool:
    return similarity is not None and Similarity(1, 1, *similarity).is_near


def test_files_of_changed_images_are_similar_and_of_others_are_not(tmp_path: Path) -> None:
    for seed in range(6):
        for kind, change in CHANGES.items():
            changed = compare(make_photo(seed), change(make_photo(seed)), tmp_path)
            assert is_near(changed), (kind, changed)
        other = compare(make_photo(seed), make_photo(seed + 100), tmp_path)
        assert other is not None
        assert other.layout < 0.8
    white, grey = Image.new("RGB", (90, 60), "white"), Image.new("L", (30, 30), 90)
    assert compare(white, grey, tmp_path) is None
    assert compare(white, make_photo(1), tmp_path) == PixelSimilarity(0)
    (tmp_path / "torn.png").write_bytes(b"no image")
    paths = {0: str(tmp_path / "first.png"), 1: str(tmp_path / "torn.png"), 2: "/nowhere.png"}
    assert compare_files([(0, 1), (0, 2)], paths, no_progress) == {}


def draw_flower(seed: int, colour: tuple[int, int, int], *, light: float = 1.0) -> Image.Image:
    """Return a textured disc on black."""
    noise = np.random.default_rng(seed).integers(0, 256, (12, 12), dtype=np.uint8)
    texture = np.asarray(Image.fromarray(noise).resize((160, 160)), dtype=float) / 255
    y, x = np.mgrid[-1:1:160j, -1:1:160j]
    disc = (x**2 + y**2 < 0.6)[..., None] * (0.4 + 0.6 * texture[..., None])
    return Image.fromarray((light * disc * np.array(colour)).astype(np.uint8))


def test_flowers_on_black_are_told_apart_by_detail_and_by_colour(tmp_path: Path) -> None:
    pink, violet = (230, 150, 190), (150, 150, 240)
    flower = draw_flower(1, pink)
    assert is_near(compare(flower, draw_flower(1, pink, light=0.7), tmp_path))
    another = compare(flower, draw_flower(2, pink), tmp_path)
    assert another is not None
    assert another.layout >= 0.9, "else this test shows nothing"
    assert another.detail < 0.8
    recoloured = compare(flower, draw_flower(1, violet), tmp_path)
    assert recoloured is not None
    assert min(recoloured.layout, recoloured.detail) >= 0.8
    assert recoloured.colour < 0.55
    assert is_near(compare(flower, flower.convert("L").convert("RGB"), tmp_path)), "a grey copy"


@pytest.mark.parametrize("cut", [(0.08, 0, 0, 0), (0.02, 0.06, 0.07, 0.01), (0, 0.1, 0.05, 0.05)])
def test_any_small_crop_is_found(cut: tuple[float, ...], tmp_path: Path) -> None:
    for seed in range(4):
        photo = make_photo(seed)
        left, top, right, bottom = (share * 200 for share in cut)
        box = (int(left), int(top), photo.width - int(right), photo.height - int(bottom))
        assert is_near(compare(photo, photo.crop(box), tmp_path))


def test_a_tiny_image_has_a_layout(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[0] * 3, [255] * 3]], dtype=np.uint8)).save(tmp_path / "two.png")
    assert view_whole(make_thumbnail(tmp_path / "two.png")) is not None


Bags = st.dictionaries(st.integers(0, 30), st.integers(1, 65535), max_size=16)


def make_bag(tf: dict[int, int]) -> Bag:
    words = sorted(tf)
    return Bag(np.array(words, np.int32), np.array([tf[w] for w in words], np.uint16))


@given(Bags, Bags)
def test_the_similarity_of_words_is_the_weighted_jaccard_index(
    first: dict[int, int], second: dict[int, int]
) -> None:
    words = first.keys() | second.keys()
    shared = sum(min(first.get(word, 0), second.get(word, 0)) for word in words)
    total = sum(max(first.get(word, 0), second.get(word, 0)) for word in words)
    similarity = compare_words(make_bag(first), make_bag(second))
    assert similarity == pytest.approx(shared / total if total else 0)


def make_graph(pairs: list[tuple[int, int]]) -> dict[int, dict[int, float]]:
    near: dict[int, dict[int, float]] = {}
    for first, second in pairs:
        similarity = 0.9 - 0.001 * ((first + second) % 7)
        near.setdefault(first, {})[second] = similarity
        near.setdefault(second, {})[first] = similarity
    return near


def test_neighbours_of_neighbours_are_not_one_group() -> None:
    groups = group_around_best(make_graph([(n, n + 1) for n in range(100)]))
    assert max(map(len, groups)) == 2
    assert sorted(row for group in groups for row in group) == list(range(101))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)).filter(lambda p: p[0] != p[1])))
def test_keeping_the_first_of_each_group_keeps_one_of_each_image(
    pairs: list[tuple[int, int]],
) -> None:
    near = make_graph(pairs)
    groups = group_around_best(near)
    assert sorted(row for group in groups for row in group) == sorted(near)
    kept = {group[0] for group in groups}
    for first, *others in groups:
        assert set(others) <= near[first].keys()
        assert others == sorted(others, key=lambda row: (-near[first][row], row))
        assert not near[first].keys() & kept


def test_copies_of_near_duplicates_are_in_the_same_group(
    folder: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    CHANGES["JPEG 30"](make_photo(2)).save(folder / "changed.png")
    for name in ("2.png", "changed.png"):
        shutil.copy(folder / name, folder / f"copy of {name}")
    gallery = make_gallery("g")
    gallery.add(folder)
    (group,) = gallery.duplicates()
    assert group.kind == "near"
    copies = {Path(image.path).name: image.is_copy for image in group.images}
    assert sorted(copies.values()) == [False, False, True, True]
    assert set(copies) == {"2.png", "changed.png", "copy of 2.png", "copy of changed.png"}
    exact = gallery.duplicates(near=False)
    assert [group.kind for group in exact] == ["exact", "exact"]


def test_any_number_of_equal_rows_are_one_group(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    (tmp_path / "p").mkdir()
    for number in range(70):  # more than the candidates of a search
        image = make_image(3)
        image.save(tmp_path / "p" / f"{number}.png", compress_level=number % 9, dpi=(number + 1, 1))
    gallery = make_gallery("g")
    gallery.add(tmp_path / "p")
    (group,) = gallery.duplicates()
    assert (len(group.images), group.kind) == (70, "near")


def test_exact_duplicates_are_right_after_any_history(tmp_path: Path) -> None:
    rng = random.Random(1)
    folder = tmp_path / "photos"
    folder.mkdir()
    n_groups = 0
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        for _ in range(12):
            for path in rng.sample(sorted(folder.iterdir()), len(list(folder.iterdir())) // 2):
                path.unlink()
                gallery.remove(path)
            for _ in range(6):
                make_image(rng.randrange(5)).save(folder / f"{rng.randrange(20)}.png")
            gallery.add(folder)
            if rng.random() < 0.3:
                gallery.compact()
            by_content: dict[bytes, set[str]] = {}
            for path in folder.iterdir():
                by_content.setdefault(path.read_bytes(), set()).add(str(path))
            copies = {frozenset(paths) for paths in by_content.values() if len(paths) > 1}
            n_groups += len(copies)
            for near in (False, True):
                groups = gallery.duplicates(near=near)
                assert {frozenset(i.path for i in group.images) for group in groups} == copies
                assert all(group.kind == "exact" for group in groups)
    assert n_groups > 10


def test_the_command(run: Any, folder: Path) -> None:
    CHANGES["half size"](make_photo(2)).save(folder / "half.png")
    shutil.copy(folder / "5.png", folder / "copy.png")
    assert run("index", folder, "--vocabulary", "toy").code == 0
    printed = run("duplicates", "--json").json
    assert printed["n_images"] == 10
    assert [group["kind"] for group in printed["groups"]] == ["near", "exact"]
    image = printed["groups"][0]["images"][1]
    facts = ["path", "size", "width", "height", "date", "copy"]
    assert list(image) == [*facts, *Similarity._fields]
    assert (image["width"], image["height"]) in ((120, 90), (240, 180))
    assert [g["kind"] for g in run("duplicates", "--exact", "--json").json["groups"]] == ["exact"]
    assert [g["kind"] for g in run("duplicates", "--near", "--json").json["groups"]] == ["near"]
    printed = run("duplicates").out
    assert "photos/half.png" in printed
    assert re.search(r"^ +240 × 180 +[\d.]+ kB  same +photos/", printed, re.MULTILINE)
    assert re.search(
        r"^ +120 × 90 +[\d.]+ kB  near, cosine [01]\.\d\d  photos/", printed, re.MULTILINE
    )
    assert printed.endswith(
        "2 groups; 2 of 10 images look like another one: check before deleting\n"
    )
    (folder / "half.png").unlink()
    assert "left out 1 image whose files are missing" in run("duplicates").err
    assert run("remove", "photos/half.png").code == 0
    assert run("duplicates").out.endswith(
        "1 group; 1 of 9 images look like another one: check before deleting\n"
    )
    assert run("remove", "photos/copy.png").code == 0
    assert run("duplicates").out == "no duplicates among 8 images\n"
    assert run("duplicates", "-g", "nowhere").code == 1


def test_an_empty_gallery_has_no_duplicates(make_gallery: Callable[[str], Gallery]) -> None:
    assert make_gallery("g").duplicates() == []


def test_most_changed_copies_of_real_photos_are_found(tmp_path: Path) -> None:
    demo.unpack(downloads.read_file(demo.PHOTOS), tmp_path / "all")
    originals = sorted((tmp_path / "all").rglob("*.png"))[:24]
    recall, mixed = measure_duplicates(originals, originals[::8], tmp_path)
    small_changes = (*MILD, "crop 10 %", "turn 5°", "darker", "brighter")
    assert np.mean([recall[kind] for kind in small_changes]) > 0.9
    assert mixed == []


def test_the_page_shows_every_group(run: Any, folder: Path) -> None:
    CHANGES["half size"](make_photo(2)).save(folder / "half <b>.png")
    shutil.copy(folder / "5.png", folder / "copy.png")
    assert run("index", folder, "--vocabulary", "toy").code == 0
    printed = run("duplicates", "-o", "alike.html")
    assert printed.out.endswith("check before deleting\nwritten: alike.html\n")
    text = Path("alike.html").read_text(encoding="utf-8")
    page = HtmlPage(text)
    assert not re.search(r"https?://|@import|<link|<script|url\(", text)
    assert "2 groups of images that look alike" in page.text
    assert "2 of 10 images look like another one. Check before deleting" in page.text
    for name in ("2.png", "half <b>.png", "5.png", "copy.png"):
        assert name in page.text
    assert re.search(r"240 × 180 [\d.]+ kB\s+[\d: -]+ largest", page.text)
    assert page.text.count("largest") == 1, "copies have one size"
    assert "same content" in page.text
    assert all(source.startswith("data:image/") for source in page.values("img", "src"))
    assert "No images look alike" in render_duplicates([], n_images=3)
    test_cli.failed(run("duplicates", "-o", "alike.csv"), 2, "alike.csv", ".html")
    test_cli.failed(run("duplicates", "-o", "no/alike.html"), 2, "the folder no does not exist")
