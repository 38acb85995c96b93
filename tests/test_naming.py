"""Naming words by looking at them, in a real terminal."""

import re
from pathlib import Path

from bm25v.api import Gallery
from bm25v.explanations.suggest import find_words_to_name
from tests import test_cli
from tests.terminal import Shown, needs_terminal, show

run, indexed = test_cli.run, test_cli.indexed


def name_words(gallery: Gallery, typed: str, **environment: str) -> Shown:
    command = ("words", "name", "-g", gallery.path)
    colours = {"COLORTERM": "truecolor"}
    folder = gallery.path.parent
    return show(*command, folder=folder, columns=80, typed=typed, **{**colours, **environment})


def test_the_most_useful_words_come_first_and_named_ones_not_at_all(gallery: Gallery) -> None:
    words = find_words_to_name(gallery.store)
    assert sorted(words) == [word.word for word in gallery.words()]
    snapshot = gallery.store.snapshot()
    idf = {word.word: word.idf for word in gallery.words()}
    use = [snapshot.searcher.statistics.df_v[word] * idf[word] ** 2 for word in words]
    assert use == sorted(use, reverse=True)
    gallery.name_words({words[1]: "corner"})
    assert find_words_to_name(gallery.store) == [words[0], *words[2:]]


@needs_terminal
def test_words_are_shown_and_named_one_after_the_other(gallery: Gallery) -> None:
    first, second, third, fourth, *_ = find_words_to_name(gallery.store)
    shown = name_words(gallery, "red edge\n\n12\nsky\nq\n")
    assert shown.code == 0
    asked = [int(word) for word in re.findall(r"(?m)^word (\d+), in \d+ of 12 images", shown.text)]
    assert asked == [first, second, third, fourth]
    assert shown.text.count("name: ") == 5, "a wrong name is asked for again"
    assert shown.text.endswith("2 words named\n")
    assert dict(gallery.word_names) == {first: "red edge", third: "sky"}
    before, _, after = shown.raw.partition(f"word {first}, ")
    assert "▀" not in before
    assert after.count("▀") >= 4 * 4 * 18 * 9
    again = name_words(gallery, "sky\nq\n")
    assert f"word {second}, in" in again.text
    assert f"word {third} has this name too" in again.text


@needs_terminal
def test_a_terminal_without_colours_lists_files_and_control_d_ends(gallery: Gallery) -> None:
    (first, *_) = find_words_to_name(gallery.store)
    shown = name_words(gallery, "edge\n\x04", NO_COLOR="1")
    assert shown.code == 0
    assert "▀" not in shown.raw
    paths = re.findall(r"(?m)^  (/.*\.png)$", shown.text)
    having = {image.path for image in gallery.word(first).images}
    assert len(paths) == 8
    assert set(paths[:4]) <= having
    assert gallery.word_names[first] == "edge", "saved at once"
    assert shown.text.endswith("1 word named\n")


def test_without_a_terminal_it_is_one_clear_line(indexed: test_cli.Run, photos: Path) -> None:
    for options in ((), ("--json",), ("--clear",)):
        done = indexed("words", "name", *options)
        assert (done.code, done.out) == (2, "")
        assert "give a WORD and a NAME; naming words by looking needs a terminal" in done.err


@needs_terminal
def test_nothing_is_asked_if_all_words_have_names(gallery: Gallery) -> None:
    gallery.name_words({word: f"name {word}" for word in find_words_to_name(gallery.store)})
    assert name_words(gallery, "").text == "all words in use have a name\n"
