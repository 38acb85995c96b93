"""The scripts in tools/, which make what ships: tables of WordNet, concepts, names of words."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import Concept, ConceptTable
from bm25v.vocabulary.naming import MIN_IMAGES, Labels, Occurrences, with_ancestors
from tests.conftest import make_image

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))

import make_concepts
import name_words
import wordnet

DATA = """\
  1 a licence, which every line of starts with spaces
00000001 03 n 01 entity 0 002 ~ 00015388 n 0000 ~ 00021939 n 0000 | all there is
00015388 03 n 02 animal 0 beast 0 001 @ 00000001 n 0000 | a living organism
00021939 03 n 01 artifact 0 001 @ 00000001 n 0000 | a man-made object
00000010 05 n 03 cat 0 true_cat 0 mouser 0 002 @ 00015388 n 0000 ~ 00000011 n 0000 | feline
00000011 05 n 02 tabby 0 tabby_cat 0 001 @ 00000010 n 0000 | striped
00000012 05 n 01 Persian_cat 0 001 @ 00000010 n 0000 | long hair
00000020 05 n 02 toy_dog 0 toy 0 001 @ 00015388 n 0000 | small
00000021 05 n 01 pug 0 001 @ 00000020 n 0000 | compact
00000030 06 n 01 device 0 001 @ 00021939 n 0000 | too general
00000031 06 n 01 crane 0 001 @ 00000030 n 0000 | lifts
00000032 05 n 01 crane 0 001 @ 00015388 n 0000 | a bird
00000040 06 n 02 plaything 0 toy 0 001 @ 00000030 n 0000 | for children
"""
INDEX = """\
  1 a licence
entity n 1 0 1 1 00000001
animal n 1 0 1 1 00015388
beast n 1 0 1 0 00015388
artifact n 1 0 1 0 00021939
cat n 1 0 1 1 00000010
true_cat n 1 0 1 0 00000010
mouser n 1 0 1 0 00000010
tabby n 1 0 1 0 00000011
tabby_cat n 1 0 1 0 00000011
persian_cat n 1 0 1 0 00000012
toy_dog n 1 0 1 0 00000020
toy n 2 0 2 1 00000040 00000020
pug n 1 0 1 0 00000021
device n 1 0 1 1 00000030
crane n 2 0 2 0 00000031 00000032
plaything n 1 0 1 0 00000040
"""
CLASSES = ["n00000011", "n00000012", "n00000021", "n00000031", "n00000032"]


TABLE = ConceptTable(
    2,
    (
        Concept("a", ("tabby",), (2,), 0),
        Concept("b", ("beagle",), (), 1),
        Concept("c", ("cat",), (), 0),
    ),
)
OTHERS = ["tench", "daisy", "zebra", "grand piano", "volcano", "pizza", "banana", "parachute"]


def run(command: Any, *arguments: object) -> str:
    done = CliRunner().invoke(command, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_wordnet_becomes_a_table_of_classes_and_wider_concepts(tmp_path: Path) -> None:
    (tmp_path / "data.noun").write_text(DATA)
    (tmp_path / "index.noun").write_text(INDEX)
    table = wordnet.make_table(wordnet.WordNet.read(tmp_path), CLASSES)
    assert [concept.id for concept in table.concepts[: table.n_classes]] == CLASSES
    positions = {concept.names[0]: i for i, concept in enumerate(table.concepts)}
    assert {"cat", "animal", "toy dog"} <= positions.keys()
    assert not positions.keys() & {"entity", "artifact", "device"}, "too general"
    cat, animal = positions["cat"], positions["animal"]
    assert table.classes_below(cat) == (0, 1)
    assert table.classes_below(animal) == (0, 1, 2, 4)
    assert table.is_within(cat, animal) and not table.is_within(animal, cat)
    assert table.concepts[cat].names == ("cat", "true cat", "mouser")
    toy_dog, pug = table.concepts[positions["toy dog"]], table.concepts[positions["pug"]]
    assert toy_dog.names == ("toy dog",), "a toy is usually something else"
    assert toy_dog.column == pug.column, "the same classes are below both"


def test_the_fit_gives_the_teachers_probabilities() -> None:
    """Of two classes, log-odds are linear in logits: the fit finds them, but for its penalty."""
    rng = np.random.default_rng(0)
    teacher_ce = rng.normal(size=(2, 8))

    def draw(n: int) -> make_concepts.Views:
        dense_ne = rng.normal(size=(n, 8)).astype(np.float32)
        dense_ne /= np.linalg.norm(dense_ne, axis=1, keepdims=True)
        return make_concepts.Views(dense_ne, (dense_ne @ teacher_ce.T).astype(np.float32))

    fitter = make_concepts.ConceptFitter(TABLE, 8)
    for fold in range(make_concepts.FOLDS):
        fitter.add(fold, draw(400), [draw(50)])
    fit, new = fitter.fit(), draw(500)
    log_odds_n = new.logits_nc[:, 0] - new.logits_nc[:, 1]
    expected = 1 / (1 + np.exp(-np.column_stack([log_odds_n, -log_odds_n])))
    found = 1 / (1 + np.exp(-(new.dense_ne @ fit.weights_ce.T + fit.biases_c)))
    np.testing.assert_allclose(found, expected, atol=0.01)
    assert fit.top5 == 1.0


def test_concepts_are_written_into_a_folder(
    training_images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Vocabulary.load("toy")
    Vocabulary.build("mine", backbone=toy.backbone, sae=toy.sae).save(tmp_path / "mine")
    monkeypatch.setattr(make_concepts, "MIN_IMAGES", 20)
    monkeypatch.setattr(make_concepts, "CHUNK", 8)
    printed = run(make_concepts.main, "toy", training_images, "-o", tmp_path / "mine")
    assert "1,707 concepts from 40 images" in printed
    concepts = Vocabulary.load(tmp_path / "mine").concepts
    assert concepts is not None and concepts.weights_ce.shape == (1333, 12)
    assert "mobilenet-v2" in concepts.sources["directions"]


def test_names_are_suggested_and_checked_in_a_gallery(tmp_path: Path) -> None:
    """Two folders of similar images: words of one are named after it."""
    for seed, folder in enumerate(("tench", "volcano", "my_garden")):
        (tmp_path / "images" / folder).mkdir(parents=True)
        for n in range(12):
            image = Image.blend(make_image(seed), make_image(100 * seed + n), 0.2)
            image.save(tmp_path / "images" / folder / f"{n}.png")
    gallery = Gallery.create(tmp_path / "g", vocabulary="toy")
    gallery.add(tmp_path / "images")
    table = tmp_path / "suggested.tsv"
    printed = run(name_words.main, "suggest", gallery.path, "-o", table)
    names = [line.split("\t")[1] for line in table.read_text().splitlines()[2:]]
    assert f"{len(names)} names" in printed
    assert {name.rstrip(" 0123456789") for name in names} & {"tench", "volcano", "my garden"}
    assert "named" in run(name_words.main, "check", gallery.path)


def observe(labels: Labels, classes: dict[int, list[str]]) -> tuple[Occurrences, Any]:
    """Return occurrences of words, and the class that each shows."""
    words = np.array([word for word, names in classes.items() for _ in names])
    shown = np.array([labels.names.index(name) for names in classes.values() for name in names])
    zeros, df_v = np.zeros_like(words), np.bincount(words, minlength=10)
    occurrences = Occurrences(words, zeros, zeros, df_v)
    return occurrences, with_ancestors(labels, [(np.arange(len(words)), shown)])


def test_a_word_gets_the_name_that_its_images_share_or_none() -> None:
    labels = name_words.FolderLabels(make_concepts.find_table())
    spaniels = ["cocker spaniel", "Sussex spaniel", "English springer", "clumber"] * 2
    few = ["tench"] * (MIN_IMAGES - 1)
    others = dict.fromkeys(range(3, 10), OTHERS)
    observed = observe(labels, {0: ["tench"] * 8, 1: spaniels, 2: few, **others})
    names = {name.word: name for name in name_words.name_words(*observed, labels)}
    assert {word: name.name for word, name in names.items()} == {0: "tench", 1: "spaniel"}
    assert (names[1].share, names[1].images) == (1.0, 8)
    checked = name_words.check_names(*observed, labels, {0: "tench 2", 1: "dog 7", 3: "mine"})
    assert checked == {0: 1.0, 1: 1.0}


def test_a_known_name_is_kept_only_where_images_confirm_it() -> None:
    labels = name_words.FolderLabels(make_concepts.find_table())
    dogs = ["beagle", "pug", "boxer", "chow", "Samoyed", "keeshond", "basset", "malamute"]
    observed = observe(labels, {0: dogs, 1: dogs, 2: OTHERS})
    names = name_words.name_words(*observed, labels, {0: "dog 7", 1: "cat", 2: "dog"})
    assert [(name.word, name.name) for name in names] == [(0, "dog")]
