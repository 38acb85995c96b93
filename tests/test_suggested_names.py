"""Names that a vocabulary suggests for its words, where the images of a gallery confirm them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bm25v.errors import VocabularyError
from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.lexicon import NAMES, Lexicon
from bm25v.vocabulary.names import format_names
from bm25v.vocabulary.phrases import split_text
from tests.lexicons import make_lexicon, save_vocabulary

TOY = Vocabulary.load("toy")
COLOURS = ("red", "blue")


def test_people_come_before_the_vocabulary_and_that_before_indexing(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    names = gallery.local.names
    gallery.name_words({4: "mine"})
    names.replace_automatic({4: "dog", 6: "bird", 7: "fish"}, {4: "why", 6: "why", 7: "why"})
    assert names.merge({6: "shipped"}) == {4: "mine", 6: "shipped", 7: "fish"}
    assert dict(names.own) == {4: "mine"}


def paint(colour: str, seed: int = 0) -> NDArray[np.uint8]:
    noise = np.random.default_rng(seed).integers(0, 60, (64, 64, 3), dtype=np.uint8)
    noise[..., 0 if colour == "red" else 2] += 180
    return noise


def find_own_word(colour: str, other: str) -> int:
    """Return a word of images of one colour that images of the other do not have."""
    bags = [TOY.encode(paint(name)).full_bag.bag for name in (colour, other)]
    return int(np.setdiff1d(bags[0].words, bags[1].words)[0])


RED, BLUE = find_own_word("red", "blue"), find_own_word("blue", "red")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    """The toy vocabulary; its lexicon tells red and blue apart, 4 standard deviations each way."""
    red_e, blue_e = (TOY.encode(paint(colour)).dense_e for colour in COLOURS)
    difference_e = (red_e - blue_e) / np.abs(red_e - blue_e).max()
    directions = np.array([difference_e, -difference_e]) * 127
    tensors = dict(make_lexicon([(colour,) for colour in COLOURS]).tensors)
    on_red, on_blue = difference_e @ red_e, difference_e @ blue_e
    scale, middle = 8 / 127 / (on_red - on_blue), 4 * (on_red + on_blue) / (on_red - on_blue)
    tensors["directions"] = directions.astype(np.int8)
    tensors["direction_scales"] = np.full(2, scale, np.float32)
    tensors["means"] = np.array([(middle, 0), (-middle, 0)], np.float32)
    return save_vocabulary(tmp_path / "v", Lexicon([("red",), ("blue",)], tensors))


def suggest(vocabulary: Path, names: dict[int, str], fingerprint: str = TOY.fingerprint) -> None:
    table = format_names(names, vocabulary=fingerprint)
    (vocabulary / "suggested.tsv").write_text(table, encoding="utf-8")


def test_a_suggested_name_is_kept_where_images_show_it(vocabulary: Path) -> None:
    suggest(vocabulary, {RED: "red", BLUE: "red"})
    gallery = Gallery.create(vocabulary.parent / "g", vocabulary=vocabulary)
    gallery.add({f"{colour} {i}": paint(colour, i) for colour in COLOURS for i in range(6)})
    assert gallery.word_names == {}, "adding does not name words"
    gallery.refresh()
    assert gallery.word_names == {RED: "red"}, "no image with the other word is red"
    notes = (gallery.path / "automatic.tsv").read_text(encoding="utf-8")
    assert f"{RED}\tred\t4.0 standard deviations" in notes
    gallery.name_words({RED: "mine"})
    gallery.add({f"more {i}": paint("red", i + 6) for i in range(12)})
    gallery.refresh()
    assert gallery.word_names[RED] == "mine", "people's names stay"
    gallery.name_words({RED: None})
    assert gallery.word_names[RED] == "red"
    red = [image.path for image in gallery.images() if not image.path.startswith("blue")]
    gallery.remove(red)
    gallery.add({f"again {i}": paint("blue", i + 20) for i in range(6)})
    gallery.refresh()
    assert gallery.word_names == {}, "no image shows it any more"


def test_a_name_that_the_lexicon_lacks_is_not_confirmed(vocabulary: Path) -> None:
    suggest(vocabulary, {RED: "flurb"})
    gallery = Gallery.create(vocabulary.parent / "g", vocabulary=vocabulary)
    gallery.add({f"red {i}": paint("red", i) for i in range(6)})
    gallery.refresh()
    assert gallery.word_names == {}
    suggest(vocabulary, {RED: "red"})
    (vocabulary / NAMES).unlink()
    with Gallery.create(vocabulary.parent / "other", vocabulary=vocabulary) as other:
        other.add({f"red {i}": paint("red", i) for i in range(6)})
        other.refresh()
        assert other.word_names == {}, "without a lexicon nothing is confirmed"


def test_names_that_mean_the_same_are_one(vocabulary: Path) -> None:
    lexicon = Vocabulary.load(vocabulary).lexicon
    assert lexicon is not None
    tensors = {
        name: tensor if name == "bounds" else np.concatenate([tensor, tensor[:1]])
        for name, tensor in lexicon.tensors.items()
    }
    names = [*lexicon.names, ("crimson",)]
    Lexicon(names, tensors).save(vocabulary, vocabulary=TOY.fingerprint)
    suggest(vocabulary, {RED: "crimson", BLUE: "blue", 7: "red"})
    with Gallery.create(vocabulary.parent / "g", vocabulary=vocabulary) as gallery:
        gallery.add({f"{colour} {i}": paint(colour, i) for colour in COLOURS for i in range(6)})
        gallery.refresh()
        assert gallery.word_names[RED] == "red", "the more frequent name"
        assert gallery.word_names[BLUE] == "blue"


def test_suggestions_of_another_vocabulary_are_refused(vocabulary: Path) -> None:
    suggest(vocabulary, {3: "sky"}, fingerprint="0123456789abcdef")
    with pytest.raises(VocabularyError, match="0123456789abcdef"):
        _ = Vocabulary.load(vocabulary).suggested_names


def test_the_default_vocabulary_suggests_names_that_its_lexicon_has() -> None:
    default = Vocabulary.load()
    assert default.suggested_names
    assert default.word_names == {}, "a name is shown only where images confirm it"
    if default.lexicon is None:
        pytest.skip("the lexicon is not made yet")
    for name in default.suggested_names.values():
        assert default.lexicon.find(split_text(name)) is not None, name
