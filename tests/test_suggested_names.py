"""Names of words from what images show, and their tables in a gallery."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.errors import VocabularyError
from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concept, Concepts, ConceptTable, write_concepts
from bm25v.vocabulary.names import format_names
from bm25v.vocabulary.naming import Labels

COLOURS = ("red", "blue")


def test_people_come_before_the_vocabulary_and_that_before_indexing(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    names = gallery.local.names
    gallery.name_words({4: "mine"})
    names.replace_automatic({4: "dog", 6: "bird", 7: "fish"}, {4: "why", 6: "why", 7: "why"})
    assert names.merge({6: "shipped"}) == {4: "mine", 6: "shipped", 7: "fish"}
    assert dict(names.own) == {4: "mine"}


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
    gallery.refresh()
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
    gallery.refresh()
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
    gallery.refresh()
    assert gallery.word_names == {only["red"]: "red"}
    notes = (gallery.path / "automatic.tsv").read_text(encoding="utf-8")
    assert "mean probability 1.00" in notes or "mean probability 0.9" in notes
    gallery.remove("red")
    gallery.add({"blue again": paint("blue", 1)})
    gallery.refresh()
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
    assert len(Labels(default.concepts.table).find_named(suggested)) == len(suggested) > 3000
    assert len(set(suggested.values())) == len(suggested)
    assert default.word_names == {}, "a name is shown only where images confirm it"
