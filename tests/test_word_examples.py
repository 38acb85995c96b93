"""Images that show a word: from the stored full bags, without copies; crops of them; commands."""

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from bm25v.explain import crops
from bm25v.explain.words import PatchBox, WordExample, find_examples
from bm25v.gallery import Gallery
from bm25v.render.commands import search_command
from bm25v.render.explanation_page import render_explanation
from bm25v.store.local import snapshot
from bm25v.vocabulary import bag as bags
from tests import test_cli
from tests.conftest import make_image
from tests.html_page import HtmlPage

run, indexed = test_cli.run, test_cli.indexed


def examples_of(gallery: Gallery, words: list[int], **options: Any) -> dict[int, list[WordExample]]:
    by_word = gallery.store.read(
        lambda view: find_examples(view, gallery.vocabulary, words, **options)
    )
    return {word: list(examples) for word, examples in by_word.items()}


def test_examples_have_the_word_in_their_patch_and_nothing_is_encoded(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [word.word for word in gallery.words()][::5]
    vocabulary = gallery.vocabulary
    encode = vocabulary.encode
    monkeypatch.setattr(type(vocabulary), "encode", lambda *_: pytest.fail("a forward pass"))
    by_word = examples_of(gallery, words)
    monkeypatch.undo()
    assert list(by_word) == words
    assert words
    for word, examples in by_word.items():
        having = {image.path for image in gallery.word(word).images}
        paths = [example.path for example in examples]
        assert len(set(paths)) == len(paths) == min(4, len(having)) > 0
        assert set(paths) <= having
        for example in examples:
            grid = bags.word_activations(encode(example.path).codes, word).reshape(7, 7)
            row, column = round(7 * example.patch.top), round(7 * example.patch.left)
            assert grid[row, column] == grid.max() > 0


def test_a_word_that_the_index_has_in_few_images_is_looked_up_in_full_bags(
    gallery: Gallery,
) -> None:
    view = gallery.local.snapshot()
    in_index, in_full_bags = view.statistics.df_v, view.full_statistics.df_v
    words = np.flatnonzero((in_index < 2) & (in_full_bags >= 4)).tolist()
    assert words
    assert {len(examples) for examples in examples_of(gallery, words).values()} == {4}


def test_a_word_that_no_image_has_has_no_examples(
    make_gallery: Callable[[str], Gallery], photos: Path
) -> None:
    gallery = make_gallery("one.bm25v")
    gallery.add(photos / "3.png")
    words = [word.word for word in gallery.words()]
    unused = next(word for word in range(192) if word not in words)
    assert examples_of(gallery, [unused]) == {unused: []}
    assert [len(own) for own in examples_of(gallery, [unused, words[0]]).values()] == [0, 1]


def test_copies_of_one_image_are_one_example(gallery: Gallery, photos: Path) -> None:
    word = max(gallery.words(), key=lambda word: word.df)
    best = examples_of(gallery, [word.word])[word.word][0].path
    shutil.copy(best, photos / "copy.png")
    with Image.open(best) as image:
        image.resize((image.width + 3, image.height + 3)).save(photos / "nearly.png")
    gallery.add(photos)
    copies = {best, str(photos / "copy.png"), str(photos / "nearly.png")}
    having = {image.path for image in gallery.word(word.word).images}
    assert copies <= having
    examples = examples_of(gallery, [word.word])[word.word]
    assert len(examples) == 4
    assert len(copies & {example.path for example in examples}) == 1


def test_paths_to_avoid_come_last_and_unusable_files_not_at_all(
    gallery: Gallery, photos: Path
) -> None:
    word = max(gallery.words(), key=lambda word: word.df).word
    first, second, third, *_ = examples_of(gallery, [word], n=12)[word]
    avoiding = examples_of(gallery, [word], n=12, avoid={first.path})[word]
    assert avoiding[-1] == first
    Path(second.path).unlink()
    make_image(77).save(third.path)
    left = [example.path for example in examples_of(gallery, [word], n=12)[word]]
    assert first.path in left
    assert not {second.path, third.path} & set(left)


def test_many_rows_are_sampled(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    words = [word.word for word in gallery.words()]
    monkeypatch.setattr(snapshot, "_SCANNED", 3)
    view = gallery.local.snapshot()
    in_index = view.find_examples(words, 24, at_least=0).rows
    sampled = view.find_examples(words, 24, at_least=25).rows
    added = {row for word in words for row in set(sampled[word]) - set(in_index[word])}
    assert added == {0, 4, 8}


def test_a_crop_shows_the_patch_and_what_is_around_it(tmp_path: Path) -> None:
    pixels = np.zeros((70, 140, 3), dtype=np.uint8)
    pixels[20:30, 120:140] = 255  # the patch in row 2, column 6
    Image.fromarray(pixels).save(tmp_path / "a.png")
    inside = WordExample(str(tmp_path / "a.png"), PatchBox(6 / 7, 2 / 7, 1 / 7, 1 / 7))
    elsewhere = WordExample(str(tmp_path / "a.png"), PatchBox(0, 0, 1 / 7, 1 / 7))
    missing = WordExample(str(tmp_path / "missing.png"), PatchBox(0, 0, 1, 1))
    cut = crops.cut_examples([inside, elsewhere, missing], side=45)
    assert list(cut) == [inside, elsewhere]
    assert {crop.shape for crop in cut.values()} == {(45, 45, 3)}
    assert (cut[inside] > 128).all(axis=-1).sum() == pytest.approx(10 * 20, abs=20)
    assert cut[elsewhere].max() == 0


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
        hits = gallery.search(photos / "3.png", **options)
    command = search_command(explanation)
    assert command is not None
    program, *arguments = shlex.split(command)
    assert program == "bm25v"
    repeated = json.loads(indexed(*arguments[:-2], "--json").out)
    assert arguments[-2:] == ["-g", explanation.gallery]
    assert len(hits) > 0
    assert [hit["path"] for hit in repeated["hits"]] == [hit.path for hit in hits]
    assert [hit["score"] for hit in repeated["hits"]] == pytest.approx([h.score for h in hits])


def test_an_image_from_memory_has_no_command_but_options(gallery: Gallery, photos: Path) -> None:
    explanation = gallery.explain((photos / "3.png").read_bytes(), photos / "4.png")
    assert search_command(explanation) is None
    word = explanation.parts[0].word.word
    assert f"\n--without {word}" not in render_explanation(explanation)
    codes = HtmlPage(render_explanation(explanation)).text
    assert f"--without {word}" in codes
    assert "bm25v search" not in codes


def test_a_page_of_a_word_beside_the_explanation_is_linked(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    explanation = gallery.explain(photos / "3.png", photos / "4.png")
    first, second = (part.word.word for part in explanation.parts[:2])
    (tmp_path / f"word-{second}.html").write_text("")
    explanation.save(tmp_path / "why.html")
    page = HtmlPage((tmp_path / "why.html").read_text(encoding="utf-8"))
    assert page.values("a", "href") == [f"word-{second}.html"]
    assert f"bm25v words show {first} " in page.text
    assert f"bm25v words show {second} " not in page.text
