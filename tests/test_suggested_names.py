"""Names of words from what images show: choosing them, telling them apart, tables in a gallery."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.api import Gallery
from bm25v.errors import VocabularyError
from bm25v.training.concepts import find_table
from bm25v.training.word_evidence import choose_classes
from bm25v.vocabulary import Vocabulary, naming
from bm25v.vocabulary.concepts import Concept, Concepts, ConceptTable, write_concepts
from bm25v.vocabulary.names import format_names
from bm25v.vocabulary.naming import Occurrences, Things, check_names, collect_seen, name_words


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


COLOURS = ("red", "blue")
OTHERS = ["tench", "daisy", "zebra", "grand piano", "volcano", "pizza", "banana", "parachute"]


def test_a_word_gets_the_name_that_its_images_share_or_none(things: Things) -> None:
    spaniels = ["cocker spaniel", "Sussex spaniel", "English springer", "clumber"] * 2
    others = dict.fromkeys(range(2, 10), OTHERS)
    occurrences, seen = see(things, {0: ["tench"] * 8, 1: spaniels, **others})
    names = {name.word: name for name in name_words(occurrences, seen, things)}
    assert {word: name.name for word, name in names.items()} == {0: "tench", 1: "spaniel"}
    assert (names[1].share, names[1].images) == (1.0, 8)
    assert check_names(occurrences, seen, things, {0: "tench 2", 1: "dog 7", 2: "mine"}) == {
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


def test_suggestions_replace_all_names_but_peoples(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    names = gallery.store.names
    gallery.name_words({4: "mine"})
    names.replace_automatic({4: "dog", 6: "bird", 7: "fish"}, {4: "why", 6: "why", 7: "why"})
    assert names.merge({6: "shipped"}) == {4: "mine", 6: "shipped", 7: "fish"}
    names.replace_suggestions({4: "dog", 5: "cat"}, {4: "why", 5: "why"})
    assert names.merge({6: "shipped"}) == {4: "mine", 5: "cat"}
    assert dict(names.current()) == {4: "mine"}
    names.replace_suggestions({}, {})
    assert names.merge({6: "shipped"}) == {4: "mine", 6: "shipped", 7: "fish"}


# Names by concepts: what an image's dense vector shows, without looking at it


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """The toy vocabulary, with the concepts red and blue, which it tells apart by its vectors."""
    toy = Vocabulary.load("toy")
    folder = tmp_path / "colours.vocab"
    Vocabulary.build("colours", backbone=toy.backbone, sae=toy.sae).save(folder)
    red_e, blue_e = (toy.encode(paint(colour)).dense_e for colour in ("red", "blue"))
    weights_ce = 40 * np.array([red_e - blue_e, blue_e - red_e], np.float32)
    table = ConceptTable(2, (Concept("n1", ("red",), (), 0), Concept("n2", ("blue",), (), 1)))
    concepts = Concepts(table, weights_ce, np.zeros(2, np.float32), {})
    write_concepts(folder, concepts, backbone_fingerprint=toy.backbone_fingerprint)
    return folder


def paint(colour: str, seed: int = 0) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed).integers(0, 60, (64, 64, 3), dtype=np.uint8)
    noise[..., 0 if colour == "red" else 2] += 180
    return noise


def test_indexing_names_words_that_images_confirm_and_no_others(vocabulary: Path) -> None:
    gallery = Gallery.create(vocabulary.parent / "g", vocabulary=vocabulary)
    gallery.add({f"red {i}": paint("red", i) for i in range(8)})
    gallery.add({f"blue {i}": paint("blue", i) for i in range(50)})
    names = dict(gallery.word_names)
    assert names, "no suggestion is needed where many images show a concept"
    n_right = 0
    for word, name in names.items():
        strongest = [image.path.split()[0] for image in gallery.word(word).images]
        n_right += name.split()[0] == Counter(strongest).most_common(1)[0][0]
    assert n_right == len(names)
    by_hand = dict.fromkeys(list(names)[:1], "mine")
    gallery.name_words(by_hand)
    gallery.add({f"red {i}": paint("red", i) for i in range(12, 30)})
    assert by_hand.items() <= gallery.word_names.items(), "people's names stay"


def test_a_suggested_name_needs_one_image_that_shows_it(vocabulary: Path) -> None:
    toy = Vocabulary.load("toy")
    strongest = {c: toy.encode(paint(c)).bag for c in COLOURS}
    only = {
        c: next(w for w in strongest[c].words.tolist() if w not in strongest[other].words)
        for c, other in (("red", "blue"), ("blue", "red"))
    }
    table = format_names({only["red"]: "red 7", only["blue"]: "red"}, vocabulary=toy.fingerprint)
    (vocabulary / "suggested.tsv").write_text(table, encoding="utf-8")
    gallery = Gallery.create(vocabulary.parent / "g", vocabulary=vocabulary)
    gallery.add({colour: paint(colour) for colour in COLOURS})
    assert gallery.word_names == {only["red"]: "red"}
    notes = (gallery.path / "automatic.tsv").read_text(encoding="utf-8")
    assert "mean probability 1.00" in notes or "mean probability 0.9" in notes
    gallery.remove("red")
    gallery.add({"blue again": paint("blue", 1)})
    assert gallery.word_names == {}


def test_suggestions_of_another_vocabulary_are_refused(vocabulary: Path) -> None:
    (vocabulary / "suggested.tsv").write_text(
        format_names({3: "sky"}, vocabulary="0123456789abcdef"), encoding="utf-8"
    )
    with pytest.raises(VocabularyError, match="0123456789abcdef"):
        _ = Vocabulary.load(vocabulary).suggested_names


def test_the_default_vocabulary_suggests_names_of_concepts_only() -> None:
    default = Vocabulary.load()
    assert default.concepts is not None
    suggested = default.suggested_names
    assert len(Things(default.concepts.table).find_named(suggested)) == len(suggested) > 3000
    assert len(set(suggested.values())) == len(suggested)
    assert default.word_names == {}, "a name is shown only where images confirm it"
