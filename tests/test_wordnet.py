"""The table of concepts: from WordNet's files to names, wider concepts and columns."""

from pathlib import Path

import pytest

from bm25v.errors import WrongUse
from bm25v.training.teacher import class_ids
from bm25v.training.wordnet import WordNet, make_table
from bm25v.vocabulary.concepts import ConceptTable

_DATA = """\
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
_INDEX = """\
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
_CLASSES = ["n00000011", "n00000012", "n00000021", "n00000031", "n00000032"]


@pytest.fixture
def table(tmp_path: Path) -> ConceptTable:
    (tmp_path / "data.noun").write_text(_DATA)
    (tmp_path / "index.noun").write_text(_INDEX)
    return make_table(WordNet.read(tmp_path), _CLASSES)


def _find(table: ConceptTable, name: str) -> int:
    (position,) = (i for i, concept in enumerate(table.concepts) if name in concept.names)
    return position


def test_classes_come_first_in_their_order(table: ConceptTable) -> None:
    assert [concept.id for concept in table.concepts[: table.n_classes]] == _CLASSES
    assert [concept.column for concept in table.concepts[: table.n_classes]] == [0, 1, 2, 3, 4]


def test_a_wider_concept_has_all_classes_below_it(table: ConceptTable) -> None:
    cat, animal = _find(table, "cat"), _find(table, "animal")
    assert table.classes_below(cat) == (0, 1)
    assert table.classes_below(animal) == (0, 1, 2, 4)
    assert table.is_within(0, cat) and table.is_within(cat, animal) and table.is_within(0, 0)
    assert not table.is_within(animal, cat)


def test_a_concept_of_the_same_classes_has_the_same_column(table: ConceptTable) -> None:
    pug, toy_dog = _find(table, "pug"), _find(table, "toy dog")
    assert table.concepts[pug].column == table.concepts[toy_dog].column
    assert len({concept.column for concept in table.concepts}) == table.n_columns


def test_names_that_usually_mean_something_else_are_left_out(table: ConceptTable) -> None:
    assert table.concepts[_find(table, "toy dog")].names == ("toy dog",)
    assert table.concepts[_find(table, "cat")].names == ("cat", "true cat", "mouser")


def test_a_class_keeps_its_first_name(table: ConceptTable) -> None:
    assert [table.concepts[i].names for i in (3, 4)] == [("crane",), ("crane",)]


def test_what_is_too_general_is_left_out(table: ConceptTable) -> None:
    names = {name for concept in table.concepts for name in concept.names}
    assert not names & {"entity", "artifact", "device"}
    assert table.concepts[3].parents == ()


def test_no_wordnet_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"has no WordNet .*wordnet-base"):
        WordNet.read(tmp_path)


def test_the_classes_of_the_teacher_are_1000_ids_in_order() -> None:
    ids = class_ids()
    assert len(ids) == 1000 and ids == sorted(set(ids))
