"""The words of a gallery: counts, lists, portraits and the pages of words."""

import io
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bm25v.errors import GalleryDamaged, InvalidOption
from bm25v.explain import heatmaps
from bm25v.explain.portraits import MAX_BINS, TOP, make_portraits, nearest_words, tf_bins
from bm25v.explain.words import (
    FolderWithWord,
    SharedWord,
    compare_folders,
    find_examples,
    find_parts,
)
from bm25v.gallery import Gallery
from bm25v.render.word_page import render_words
from bm25v.sae.model import Codes
from bm25v.store.base import View
from bm25v.store.files import FileState
from bm25v.store.local.rows import HEADER_BYTES, RowFiles
from bm25v.store.local.writer import Writer
from bm25v.vocabulary import Encoding
from bm25v.vocabulary import bag as bags
from bm25v.vocabulary.bag import Bag
from tests import test_cli
from tests.conftest import expand_bag, make_image
from tests.histories import Contents, fill_gallery, make_encoding, random_sessions, run_session
from tests.html_page import HtmlPage
from tests.test_explain import gradient

run, indexed = test_cli.run, test_cli.indexed

Put = Callable[[dict[str, dict[int, float]]], Gallery]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Return a function that makes a gallery: at each path, words and their term frequencies."""

    def make(images: dict[str, dict[int, float]]) -> Gallery:
        gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
        with Writer(gallery.path) as writer:
            for number, (path, tf) in enumerate(images.items()):
                words = np.array(sorted(tf), dtype=np.int32)
                bag = Bag(words, bags.quantise(np.array([tf[word] for word in sorted(tf)])))
                file = FileState(path, number.to_bytes(16, "big"), 1, 1)
                codes = Codes(np.empty((0, 1), np.int32), np.empty((0, 1), np.float32))
                writer.put(file, Encoding(bag, np.ones(12, np.float32), codes, expand_bag(bag)))
            writer.commit()
        return gallery

    return make


def count_words(contents: Contents) -> dict[int, list[tuple[float, str]]]:
    """Count with a plain loop: the images of each word, the strongest first."""
    images: dict[int, list[tuple[float, str]]] = {}
    for path, number in contents.items():
        encoding = make_encoding(number)
        bag = encoding.full_bag.bag
        for word, tf in zip(bag.words.tolist(), bag.frequencies.tolist(), strict=True):
            images.setdefault(word, []).append((-tf, path))
    return {word: sorted(uses) for word, uses in images.items()}


@pytest.mark.parametrize("seed", range(4))
def test_after_any_history_statistics_equal_a_plain_recount(tmp_path: Path, seed: int) -> None:
    contents = fill_gallery(tmp_path / "g", seed)
    reader = Gallery.open(tmp_path / "g")
    for _, commits in zip(range(5), random_sessions(seed + 9, contents), strict=False):
        (*_, contents) = (contents, *run_session(tmp_path / "g", commits))
        expected, n = count_words(contents), len(contents)
        words = reader.words(best=2)
        assert len(words) > 0
        assert [word.word for word in words] == sorted(expected)
        for word in words:
            counted = expected[word.word]
            assert word.df == len(counted)
            assert word.idf == pytest.approx(math.log(1 + (n - word.df + 0.5) / (word.df + 0.5)))
            assert [use.tf for use in word.best] == [-tf for tf, _ in counted[:2]]
            assert {(-use.tf, use.path) for use in word.best} <= set(counted)
        some = words[len(words) // 2].word
        uses = reader.word(some)
        assert sorted((-use.tf, use.path) for use in uses.images) == expected[some]
        assert [use.tf for use in uses.images] == sorted((u.tf for u in uses.images), reverse=True)
        assert uses.n == n
    assert reader.local.snapshot().state.generation > 0 or seed


def test_words_are_those_of_the_newest_images_and_names(gallery: Gallery, photos: Path) -> None:
    first = gallery.words()
    gallery.words().clear()
    assert gallery.words() == first
    assert len(gallery.words(best=1)[0].best) == 1
    gallery.name_words({first[0].word: "ear"})
    assert gallery.words()[0].label == "ear"
    with Gallery.open(gallery.path) as other:
        other.remove(photos / "3.png")
    after = gallery.words()
    assert sum(word.df for word in after) < sum(word.df for word in first)


@pytest.mark.parametrize("sort", ["word", "df", "idf"])
def test_a_part_of_the_words_is_that_of_the_whole_list(gallery: Gallery, sort: Any) -> None:
    words = gallery.words(sort=sort)
    assert len(words) > 25
    parts = [gallery.words(sort=sort, offset=start, limit=10) for start in range(0, 200, 10)]
    assert [word for part in parts for word in part] == words


@pytest.mark.parametrize("damage", ["no such words", "unordered", "no such patch"])
def test_a_damaged_row_is_named(gallery: Gallery, photos: Path, damage: str) -> None:
    word = gallery.word(common_word(gallery)).facts
    state = gallery.local.snapshot().state
    file = RowFiles.of(gallery.path, gallery.store.meta, state.generation).full_bags
    row = gallery.local.snapshot().find([word.best[0].path])[word.best[0].path].row
    full_bag = file.view(state.n_rows)[row].copy()
    if damage == "no such words":
        full_bag["words"] = 0xFFFF
    elif damage == "unordered":
        full_bag["words"][:2] = full_bag["words"][1::-1]
    else:
        full_bag["patches"] = 0xFF
    with open(file.path, "r+b") as opened:
        opened.seek(HEADER_BYTES + row * full_bag.nbytes)
        opened.write(full_bag.tobytes())

    def find_examples_of(view: View) -> None:
        find_examples(view, gallery.vocabulary, [word.word])
        find_parts(view, gallery.vocabulary, [(word.word, word.best[0].path)])

    with Gallery.open(gallery.path) as damaged:
        reads: list[Callable[[], object]] = [lambda: damaged.store.read(find_examples_of)]
        if damage != "no such patch":
            reads += [damaged.words, lambda: list(make_portraits(damaged, [word.word]))]
        for read in reads:
            with pytest.raises(GalleryDamaged, match="run bm25v verify"):
                read()


def test_words_that_are_often_in_the_same_images(put: Put) -> None:
    gallery = put(
        {
            "/p/a/1.png": {1: 0.05, 2: 0.01, 9: 0.01},
            "/p/a/2.png": {1: 0.04, 2: 0.01},
            "/p/a/3.png": {1: 0.03, 2: 0.01, 8: 0.01},
            "/p/b/4.png": {1: 0.02, 3: 0.01, 8: 0.01},
            "/p/b/5.png": {3: 0.01, 8: 0.01},
            "/p/b/6.png": {3: 0.01},
        }
    )
    uses = gallery.word(1)
    assert (uses.facts.df, uses.n) == (4, 6)
    # 2 is in 3 images, all of them among the 4 with 1: 3 · 6 / (4 · 3). 8 is as frequent there
    # as anywhere, 9 is there but once, 3 is rarer there.
    assert uses.companions == (SharedWord(2, together=3, lift=1.5),)
    assert gallery.word(2).companions == (SharedWord(1, together=3, lift=1.5),)
    assert [(Path(use.path).name, use.tf) for use in uses.images] == [
        ("1.png", 0.05),
        ("2.png", 0.04),
        ("3.png", 0.03),
        ("4.png", 0.02),
    ]
    assert uses.folders == (FolderWithWord("a", 3, 3, 1.5), FolderWithWord("b", 3, 1, 0.5))
    assert uses.purity == 0.75
    gallery.remove("/p/a/1.png")
    assert gallery.word(1).purity == pytest.approx(2 / 3)
    assert gallery.word(9).facts.df == 0
    gallery.remove("/p/b")
    assert gallery.word(1).folders == ()
    assert gallery.word(1).purity is None


def test_a_word_that_is_everywhere_has_no_companions(put: Put) -> None:
    both: dict[str, dict[int, float]] = {f"/p/{n}.png": {1: 5, 2: 1} for n in range(6)}
    gallery = put(both | {f"/p/{n}.png": {1: 5} for n in range(6, 15)} | {"/p/x.png": {3: 1}})
    (companion,) = gallery.word(1).companions
    assert companion.lift == pytest.approx(16 / 15)
    assert [portrait.companions for portrait in make_portraits(gallery, [1, 2])] == [(), ()]


def test_a_word_outside_the_vocabulary_is_an_error(gallery: Gallery) -> None:
    for word in (-1, 192):
        with pytest.raises(
            InvalidOption, match=rf"no word {word}: this vocabulary has words 0 to 191"
        ):
            gallery.word(word)


def common_word(gallery: Gallery) -> int:
    return max(gallery.words(), key=lambda word: word.df).word


def test_a_portrait_shows_where_the_word_is(gallery: Gallery) -> None:
    word = common_word(gallery)
    (portrait,) = make_portraits(gallery, [word])
    uses = portrait.uses.images
    assert [image.path for image in portrait.top] == [use.path for use in uses[:TOP]]
    vocabulary = gallery.vocabulary
    grids = {
        use.path: bags.word_activations(vocabulary.encode(use.path).codes, word).reshape(7, 7)
        for use in uses
    }
    for image in portrait.top:
        assert image.grid is not None
        np.testing.assert_allclose(image.grid, grids[image.path], rtol=1e-4)
        assert image.grid.sum() == pytest.approx(image.tf, rel=0.02)  # one byte
    mean = np.mean([grid / grid.sum() for grid in grids.values()], axis=0)
    np.testing.assert_allclose(portrait.mean_grid, mean, rtol=1e-4, atol=1e-6)
    assert portrait.n_averaged == len(uses)
    assert sum(span.n_images for span in portrait.tf_bins) == len(uses) > 0
    assert portrait.neighbours
    for neighbour in portrait.neighbours:
        direction, other = vocabulary.sae.w_dec_vd[[word, neighbour.facts.word]]
        cosine = direction @ other / np.linalg.norm(direction) / np.linalg.norm(other)
        assert neighbour.value == pytest.approx(cosine, abs=1e-5)
    in_use = {facts.word for facts in gallery.words()}
    assert {neighbour.facts.word for neighbour in portrait.neighbours} <= in_use - {word}


def test_the_nearest_words_equal_those_of_a_full_sort(gallery: Gallery) -> None:
    w_dec_vd = gallery.vocabulary.sae.w_dec_vd
    cosines = w_dec_vd @ w_dec_vd[5] / np.linalg.norm(w_dec_vd, axis=1)
    expected = [int(word) for word in np.argsort(-cosines) if word not in (5, 7)][:8]
    some = [word for word in range(192) if word != 7]
    assert [word for word, _ in nearest_words(gallery.vocabulary, 5, among=some)] == expected


def test_a_portrait_shows_images_of_all_strengths(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for seed in range(60):
        make_image(seed, side=20).save(folder / f"{seed}.png")
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    gallery.add(folder)
    (portrait,) = make_portraits(gallery, [common_word(gallery)])
    uses = [use.path for use in portrait.uses.images]
    shown = [*portrait.top, *portrait.middle, *portrait.random]
    assert len({image.path for image in shown}) == len(shown) == 24
    middle = [uses.index(image.path) for image in portrait.middle]
    assert middle == list(range(middle[0], middle[0] + 6))
    assert middle[0] <= len(uses) / 2 <= middle[-1] + 1
    (again,) = make_portraits(gallery, [portrait.uses.facts.word])
    assert [image.path for image in again.random] == [image.path for image in portrait.random]


def render_all(gallery: Gallery, *words: int) -> Iterator[HtmlPage]:
    for portrait in make_portraits(gallery, words):
        yield HtmlPage(render_words([portrait]))


def test_the_page_of_a_word_is_self_contained(gallery: Gallery) -> None:
    word = common_word(gallery)
    (portrait,) = make_portraits(gallery, [word])
    text = render_words([portrait])
    assert not re.search(r"https?://|url\(|@import|<link|src=(?!\"data:)| on\w+=", text)
    page = HtmlPage(text)
    assert f"bm25v words name {word} 'NEW NAME' -g {gallery.path}" in page.text
    assert page.values("img", "src")
    assert all(src.startswith("data:image/jpeg;base64,") for src in page.values("img", "src"))
    assert all(page.values("img", "alt"))
    assert page.values("a", "href") == []
    df = portrait.uses.facts.df
    assert f"In {df} of 12 images." in page.text
    bars = [int(n) for n in page.values("rect", "data-count") if n]
    assert sum(bars) == df
    n_images = 2 * len(portrait.top) + len(portrait.companions) + len(portrait.neighbours)
    assert len(page.values("img", "src")) == n_images
    assert "In which folders" not in page.text


def test_words_are_below_each_other_on_one_page(gallery: Gallery) -> None:
    words = [facts.word for facts in gallery.words()[:3]]
    page = HtmlPage(render_words(list(make_portraits(gallery, words))))
    assert [tag for tag, _ in page.tags].count("article") == 3
    for word in words:
        assert f"words name {word} " in page.text


def test_folders_are_shown_as_labels(photos: Path, tmp_path: Path) -> None:
    for name in ("cats & dogs", "birds"):
        (photos / name).mkdir()
    for seed in range(12):
        os.rename(
            photos / f"{seed}.png", photos / ("birds", "cats & dogs")[seed % 3 == 0] / f"{seed}.png"
        )
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    gallery.add(photos)
    word = common_word(gallery)
    (page,) = render_all(gallery, word)
    uses = gallery.word(word)
    assert len(uses.folders) == 2
    counted = Counter(Path(use.path).parent.name for use in uses.images)
    for folder in uses.folders:
        n_images = {"birds": 8, "cats & dogs": 4}[folder.name]
        assert (folder.has_word, folder.n_images) == (counted[folder.name], n_images)
        assert folder.lift == pytest.approx(folder.has_word / n_images / (len(uses.images) / 12))
        shown = f"{folder.name}{folder.lift:.1f} ×{folder.has_word} of {n_images}"
        assert shown in page.text


def test_folders_are_ordered_by_how_frequent_the_word_is_there() -> None:
    all_images = Counter(many=100, few=10, one=1, none=50)
    folders = compare_folders(all_images, Counter(many=20, few=9, one=1))
    assert [folder.name for folder in folders] == ["few", "one", "many"]
    assert folders[0].lift == pytest.approx(0.9 / (30 / 161))


def test_copies_of_one_image_are_shown_once(gallery: Gallery, photos: Path) -> None:
    word = common_word(gallery)
    best = gallery.word(word).images[0].path
    for n in range(20):
        shutil.copy(best, photos / f"copy-{n}.png")
    gallery.add(photos)
    (portrait,) = make_portraits(gallery, [word])
    shown = [Path(image.path).read_bytes() for image in (*portrait.top, *portrait.random)]
    assert len(shown) == len(set(shown)) > 6


def test_missing_unreadable_and_changed_files_are_named(gallery: Gallery, photos: Path) -> None:
    word = common_word(gallery)
    first, second, third, *_ = (Path(use.path) for use in gallery.word(word).images)
    first.unlink()
    second.write_bytes(b"no image")
    Image.open(third).save(third, compress_level=0)  # the same words in other bytes
    (portrait,) = make_portraits(gallery, [word])
    problems = [image.problem for image in portrait.top[:4]]
    assert problems[0] == "does not exist"
    assert "not an image" in (problems[1] or "")
    assert "has changed since it was indexed" in (problems[2] or "")
    assert problems[3] is None
    assert portrait.top[2].grid is None
    text = HtmlPage(render_words([portrait])).text
    assert f"{first.name}: does not exist" in text
    for path in photos.iterdir():
        path.unlink()
    (portrait,) = make_portraits(gallery, [word])
    assert "None of its images can be read any more" in HtmlPage(render_words([portrait])).text
    assert portrait.n_averaged == 0


def test_an_unchanged_file_is_never_called_changed(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bags, "word_activations", lambda codes, word: np.zeros(49, np.float32))
    (portrait,) = make_portraits(gallery, [common_word(gallery)])
    assert {image.problem for image in portrait.top} == {"the word is too weak in it to be located"}


def test_names_on_pages_are_escaped(gallery: Gallery, photos: Path) -> None:
    word = common_word(gallery)
    hostile = '<img src=x onerror="alert(1)"> & more'
    gallery.name_words({word: hostile})
    photo = photos / '<i onclick="x">.png'
    make_image(3).save(photo)
    gallery.add(photos)
    (page,) = render_all(gallery, word)
    attributes = {name for _, attributes in page.tags for name in attributes}
    assert not {"onerror", "onclick"} & attributes
    assert f"Visual word {word}" in page.text
    assert hostile in page.text


def test_a_word_that_no_image_has_is_an_error_before_any_work(put: Put) -> None:
    gallery = put({"/p/1.png": {1: 0.5}})
    with pytest.raises(InvalidOption, match=r"word 2 is in no image of .*lists"):
        next(make_portraits(gallery, [1, 2]))


def test_a_crop_is_the_smallest_square_with_most_of_a_word() -> None:
    image = np.zeros((140, 210, 3), dtype=np.uint8)
    image[100:120, 150:180] = 255
    grid = np.zeros((7, 7), dtype=np.float32)
    grid[5, 5] = 1.0
    ear = heatmaps.crop_word(image, grid)
    assert ear.shape[0] == ear.shape[1] == round(3 * (20 + 30) / 2)
    assert (ear == 255).all(axis=2).sum() == 20 * 30
    whole = heatmaps.crop_word(image, np.ones((7, 7), dtype=np.float32))
    assert whole.shape[0] == whole.shape[1] == 125, "five of seven patches"
    corner = np.full((7, 7), 0.1, dtype=np.float32)
    corner[:3, 4:] = 1.0
    part = heatmaps.crop_word(gradient(140, 140), corner)
    assert part[0, -1].tolist() == gradient(140, 140)[0, -1].tolist(), "not the middle"
    fine = np.zeros((27, 27), dtype=np.float32)
    fine[0, 0] = 1.0
    assert heatmaps.crop_word(image, fine).shape[0] == round(8 * (140 / 27 + 210 / 27) / 2)


@pytest.mark.parametrize("values", [[], [0.01], [655.35], [0.1, 0.1, 0.1], [9.99, 10.0, 120.0]])
def test_every_image_is_in_one_bin(values: list[float]) -> None:
    bins = tf_bins(values)
    assert sum(tf_bin.n_images for tf_bin in bins) == len(values)
    assert len(bins) <= MAX_BINS
    for low, high, n_images in bins:
        assert n_images == sum(low <= value + 1e-9 < high for value in values)


def test_the_charts_of_a_page_show_the_bins_and_the_mean_grid(gallery: Gallery) -> None:
    (portrait,) = make_portraits(gallery, [common_word(gallery)])
    grid = np.array([[0.0, 1.0], [0.5, 0.001]], dtype=np.float32)
    page = HtmlPage(render_words([replace(portrait, mean_grid=grid)]))
    assert page.values("svg", "role") == ["img", "img"]
    rects = [attrs for tag, attrs in page.tags if tag == "rect"]
    bars = [(int(r["data-count"] or 0), r["height"]) for r in rects if "data-count" in r]
    assert [n for n, _ in bars] == [tf_bin.n_images for tf_bin in portrait.tf_bins]
    highest = max(n for n, _ in bars)
    assert [float(height or 0) for _, height in bars] == pytest.approx(
        [198 * n / highest for n, _ in bars]
    )
    cells = [(r["x"], r["y"], r["opacity"]) for r in rects if "opacity" in r]
    assert cells == [("1", "0", "1.00"), ("0", "1", "0.50")]


def test_words_are_listed(indexed: Any) -> None:
    run = indexed
    listed = run("words", "list", "--json").json
    assert list(listed) == ["n_images", "words"]
    assert list(listed["words"][0]) == ["word", "name", "df", "idf", "best"]
    assert list(listed["words"][0]["best"][0]) == ["path", "tf"]
    dfs = [word["df"] for word in listed["words"]]
    assert dfs == sorted(dfs, reverse=True)
    rare = run("words", "list", "--json", "--sort", "idf", "--limit", 3).json["words"]
    assert [word["df"] for word in rare] == sorted(dfs)[:3]
    word = rare[0]["word"]
    run("words", "name", word, "zebra")
    run("words", "name", rare[1]["word"], "Ape")
    named = run("words", "list", "--json", "--sort", "name").json["words"]
    assert {word["name"] for word in named[:2]} == {"Ape", "zebra"}
    assert {word["name"] for word in named[2:]} == {None}
    assert [word["df"] for word in named[2:]] == sorted(dfs, reverse=True)[: len(named) - 2]
    printed = run("words", "list", "--sort", "name", "--limit", 2).out
    assert printed.splitlines()[0].split() == [
        "word",
        "images",
        "IDF",
        "name",
        "strongest",
        "in",
        "(tf)",
    ]
    assert printed.splitlines()[-1] == f"2 of {len(dfs)} words in 12 images"
    assert len(run("words", "list").out.splitlines()) >= 22
    assert run("words", "list", "-g", "nowhere").code == 1


def test_an_empty_gallery_has_no_words(run: Any) -> None:
    Gallery.create("empty.bm25v", vocabulary="toy").close()
    assert run("words", "list", "-g", "empty.bm25v").out == "no words: empty.bm25v has no images\n"
    assert run("words", "list", "-g", "empty.bm25v", "--json").json == {"n_images": 0, "words": []}
    assert "is in no image of" in run("words", "show", 3, "-g", "empty.bm25v").err


def test_a_word_is_shown(indexed: Any) -> None:
    run = indexed
    word = run("words", "list", "--json").json["words"][0]["word"]
    (shown,) = run("words", "show", word, "--json").json["words"]
    assert list(shown) == [
        "word",
        "name",
        "df",
        "n_images",
        "idf",
        "tf",
        "top",
        "middle",
        "random",
        "companions",
        "neighbours",
        "mean_grid",
        "purity",
        "folders",
    ]
    assert list(shown["top"][0]) == ["path", "tf", "problem"]
    assert list(shown["neighbours"][0]) == ["word", "name", "df", "cosine"]
    assert np.array(shown["mean_grid"]).shape == (7, 7)
    run("words", "name", word, "striped ear")
    printed = run("words", "show", "Striped Ear").out
    assert printed.startswith(f"striped ear (word {word}): in {shown['df']} of 12 images, IDF")
    outcome = run("words", "show", word, "-o", "word.html")
    assert outcome.out.endswith("written: word.html\n")
    assert "<h1>striped ear</h1>" in Path("word.html").read_text(encoding="utf-8")


def test_several_words_are_shown_once_each(indexed: Any) -> None:
    run = indexed
    words = [word["word"] for word in run("words", "list", "--json").json["words"][:3]]
    command = ("words", "show", *words, words[0], "-o", "words.html")
    assert [word["word"] for word in run(*command, "--json").json["words"]] == words
    page = Path("words.html").read_text(encoding="utf-8")
    assert all(f"<h1>word {word}</h1>" in page for word in words)


def test_wrong_options_are_named(indexed: Any) -> None:
    run = indexed
    for command, message in (
        (("show", "192"), "no word 192: this vocabulary has words 0 to 191"),
        (("show", "tail"), "no word is named 'tail'"),
        (("show", "1", "-o", "pages/"), "name a file that ends in .html"),
    ):
        done = run("words", *command)
        assert (done.code, done.out) == (2, "")
        assert message in done.err


def test_a_highlight_keeps_the_shape() -> None:
    image = np.asarray(make_image(3, side=90))[:60]
    highlighted = heatmaps.encode_highlight(image, np.eye(3, dtype=np.float32), side=45)
    assert Image.open(io.BytesIO(highlighted)).size == (45, 30)
