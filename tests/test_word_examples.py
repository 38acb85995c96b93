"""Images that show a word: from the stored full bags, without copies; crops of them; commands."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.explain import heatmaps
from bm25v.explain.words import PatchBox, WordExample, find_examples
from bm25v.gallery import Gallery
from bm25v.render.commands import explain_command
from bm25v.store.local import snapshot
from bm25v.vocabulary import bag as bags
from tests import test_cli
from tests.conftest import make_image

run, indexed = test_cli.run, test_cli.indexed


def find(gallery: Gallery, words: list[int]) -> dict[int, WordExample]:
    return gallery.store.read(lambda view: find_examples(view, gallery.vocabulary, words))


def test_examples_have_the_word_in_their_patch_and_nothing_is_encoded(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.word for word in gallery.words()][::5]
    vocabulary = gallery.vocabulary
    encode = vocabulary.encode
    monkeypatch.setattr(type(vocabulary), "encode", lambda *_: pytest.fail("a forward pass"))
    by_word = find(gallery, words)
    monkeypatch.undo()
    assert list(by_word) == words
    assert words
    for word, example in by_word.items():
        assert example.path in {image.path for image in gallery.word(word).images}
        grid = bags.word_activations(encode(example.path).codes, word).reshape(7, 7)
        row, column = round(7 * example.patch.top), round(7 * example.patch.left)
        assert grid[row, column] == grid.max() > 0


def test_a_word_that_the_index_has_in_few_images_is_looked_up_in_full_bags(
    gallery: Gallery,
) -> None:
    view = gallery.local.snapshot()
    in_index, in_full_bags = view.statistics.df_v, view.full_statistics.df_v
    words = np.flatnonzero((in_index == 0) & (in_full_bags >= 1)).tolist()
    assert words
    assert list(find(gallery, words)) == words


def test_a_word_that_no_image_has_has_no_example(
    make_gallery: Callable[[str], Gallery], photos: Path
) -> None:
    gallery = make_gallery("one.bm25v")
    gallery.add(photos / "3.png")
    words = [word.word for word in gallery.words()]
    unused = next(word for word in range(192) if word not in words)
    assert list(find(gallery, [unused, words[0]])) == [words[0]]


@pytest.mark.parametrize("change", [Path.unlink, lambda path: make_image(77).save(path)])
def test_unusable_files_are_no_examples(gallery: Gallery, change: Callable[[Path], None]) -> None:
    word = max(gallery.words(), key=lambda word: word.df).word
    best = find(gallery, [word])[word].path
    change(Path(best))
    assert find(gallery, [word])[word].path != best


def test_many_rows_are_sampled(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word.word for word in gallery.words()]
    monkeypatch.setattr(snapshot, "_SCANNED", 3)
    view = gallery.local.snapshot()
    in_index = view.find_examples(words, 24, at_least=0).rows
    sampled = view.find_examples(words, 24, at_least=25).rows
    added = {row for word in words for row in set(sampled[word]) - set(in_index[word])}
    assert added == {0, 4, 8}


def test_a_crop_shows_the_patch_and_what_is_around_it() -> None:
    pixels = np.zeros((70, 140, 3), dtype=np.uint8)
    pixels[20:30, 120:140] = 255  # the patch in row 2, column 6
    inside = heatmaps.crop_patch(pixels, PatchBox(6 / 7, 2 / 7, 1 / 7, 1 / 7))
    elsewhere = heatmaps.crop_patch(pixels, PatchBox(0, 0, 1 / 7, 1 / 7))
    assert inside.shape == elsewhere.shape == (45, 45, 3)
    assert (inside > 128).all(axis=-1).sum() == 10 * 20
    assert not elsewhere.any()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mode": "words", "must": [1], "without": ["0"], "boost": {7: 2.5, 8: -1.0}},
        {"region": (0.1, 0.2, 0.5, 0.6), "query_words": 9, "min_coverage": 0.01},
        {"like": "5.png", "unlike": "6.png", "negative": "7.png", "candidates": 20},
        {"include_query": True, "min_size": 8, "max_size": (4000, 3000), "date": "2001..2099"},
    ],
)
def test_the_command_of_an_explanation_repeats_its_search(
    indexed: test_cli.Run, photos: Path, options: dict[str, Any]
) -> None:
    paths = {
        name: str(photos / value)
        for name, value in options.items()
        if isinstance(value, str) and value.endswith(".png")
    }
    options = {**options, **paths, "folder": str(photos)}
    with Gallery.open("gallery.bm25v") as gallery:
        explanation = gallery.explain(photos / "3.png", photos / "4.png", **options)
    command = explain_command(explanation)
    assert command is not None
    program, *arguments, is_opened = shlex.split(command)
    assert (program, is_opened) == ("bm25v", "--open")
    assert arguments[-2:] == ["-g", explanation.gallery]
    repeated = json.loads(indexed(*arguments[:-2], "--json").out)
    assert repeated["path"] == explanation.hit_path
    assert repeated["score"] == pytest.approx(explanation.score)
    assert repeated["sentence"] == explanation.sentence


def test_the_command_of_an_explanation_works_in_any_folder(
    indexed: test_cli.Run, photos: Path
) -> None:
    options: dict[str, Any] = {
        "like": "photos/5.png",
        "negative": "photos/7.png",
        "folder": ("photos", "*.png"),
    }
    with Gallery.open("gallery.bm25v") as gallery:
        explanation = gallery.explain("photos/3.png", photos / "4.png", **options)
    command = shlex.split(explain_command(explanation) or "")
    for path in (photos / "3.png", photos / "5.png", photos / "7.png", photos, "*.png"):
        assert str(path) in command


def test_an_image_from_memory_has_no_command(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain((photos / "3.png").read_bytes(), photos / "4.png")
    assert explain_command(explanation) is None
