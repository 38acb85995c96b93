"""Names of words from what images show: choosing them, telling them apart, tables in a gallery."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.api import Gallery
from bm25v.training import naming
from bm25v.training.concepts import find_table
from bm25v.training.naming import Occurrences, Things, check_names, collect_seen, name_words
from bm25v.training.word_evidence import choose_classes


@pytest.fixture(scope="module")
def things() -> Things:
    return Things(find_table())


def find_class(things: Things, name: str) -> int:
    return things.names.index(name)


def see(things: Things, classes: dict[int, list[str]]) -> tuple[Occurrences, Any]:
    """Return occurrences of words, and the class that is seen in each."""
    words = np.array([word for word, names in classes.items() for _ in names])
    seen = np.array([find_class(things, name) for names in classes.values() for name in names])
    zeros = np.zeros_like(words)
    df_v = np.bincount(words, minlength=10)
    occurrences = Occurrences(words, zeros, zeros, df_v)
    return occurrences, collect_seen(things, [(np.arange(len(words)), seen)])


OTHERS = ["tench", "daisy", "zebra", "grand piano", "volcano", "pizza", "banana", "parachute"]


def test_a_word_gets_the_name_that_its_images_share_or_none(things: Things) -> None:
    spaniels = ["cocker spaniel", "Sussex spaniel", "English springer", "clumber"] * 2
    others = dict.fromkeys(range(2, 10), OTHERS)
    occurrences, seen = see(things, {0: ["tench"] * 8, 1: spaniels, **others})
    names = {name.word: name for name in name_words(occurrences, seen, things)}
    assert {word: name.name for word, name in names.items()} == {0: "tench", 1: "spaniel"}
    assert (names[1].share, names[1].images) == (1.0, 8)
    assert check_names(occurrences, seen, things, {0: "tench 2", 1: "dog (hound)", 2: "mine"}) == {
        0: 1.0,
        1: 1.0,
    }


def test_a_known_name_is_kept_only_where_images_confirm_it(things: Things) -> None:
    dogs = ["beagle", "pug", "boxer", "chow", "Samoyed", "keeshond", "basset", "malamute"]
    occurrences, seen = see(things, {0: dogs, 1: dogs, 2: OTHERS})
    known = {0: "dog 7", 1: "cat", 2: "dog"}
    names = name_words(occurrences, seen, things, known)
    assert [(name.word, name.name) for name in names] == [(0, "dog")]


def test_few_images_prove_nothing(things: Things) -> None:
    few = ["tench"] * (naming.MIN_IMAGES - 1)
    occurrences, seen = see(things, {0: few, 1: OTHERS, 2: OTHERS})
    assert name_words(occurrences, seen, things) == []


def test_improbable_classes_are_not_seen() -> None:
    logits_pc = np.zeros((49, 1000), np.float32)
    logits_pc[:, 3], logits_pc[:, 5] = 20, 19
    assert choose_classes(logits_pc).tolist() == [[3, 5, -1]] * 49


def test_suggestions_replace_the_vocabularys_names_but_not_peoples(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    names = gallery.store.names
    gallery.name_words({4: "mine"})
    names.replace_suggestions({4: "dog", 5: "cat"}, {4: "why", 5: "why"})
    assert names.merge({6: "shipped"}) == {4: "mine", 5: "cat"}
    assert dict(names.current()) == {4: "mine"}
    names.replace_suggestions({}, {})
    assert names.merge({6: "shipped"}) == {4: "mine", 6: "shipped"}
