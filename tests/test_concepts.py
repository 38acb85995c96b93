"""Concepts: their files, what a text names, and the search by them."""

import json
import math
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from bm25v.errors import InvalidOption, VocabularyError
from bm25v.gallery import Gallery
from bm25v.search.text import index_names
from bm25v.search.text_terms import Lexicon, ParsedText, describe_terms, parse_text
from bm25v.store.base import Filter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.concepts import (
    TABLE,
    WEIGHTS,
    Concept,
    Concepts,
    ConceptTable,
    read_concepts,
    write_concepts,
)
from bm25v.vocabulary.phrases import PhraseIndex, split_text
from tests import test_cli
from tests.conftest import find_row

run = test_cli.run
TOY = Vocabulary.load("toy")
NAMES: list[tuple[tuple[str, ...], tuple[int, ...]]] = [
    (("tabby", "tabby cat"), (7,)),
    (("Persian cat",), (7,)),
    (("beagle",), (8,)),
    (("hotdog", "hot dog"), ()),
    (("catamaran",), ()),
    (("rocking chair", "rocker"), (9,)),
    (("soft-coated wheaten terrier",), (8,)),
    (("cat", "true cat"), (10,)),
    (("dog", "domestic dog"), (10,)),
    (("chair",), ()),
    (("animal", "beast"), ()),
]
TABLE_OF_TESTS = ConceptTable(
    7, tuple(Concept(f"n{i}", n, parents, i) for i, (n, parents) in enumerate(NAMES))
)


def make_concepts(seed: int = 0) -> Concepts:
    rng = np.random.default_rng(seed)
    weights_ce = rng.normal(size=(len(NAMES), TOY.backbone.dense_dim)).astype(np.float16) * 4
    biases_c = rng.normal(size=len(NAMES)).astype(np.float16)
    sources = {"names": "made for tests"}
    return Concepts(
        TABLE_OF_TESTS, weights_ce.astype(np.float32), biases_c.astype(np.float32), sources
    )


def make_vocabulary(folder: Path) -> Path:
    Vocabulary.build("mine", backbone=TOY.backbone, sae=TOY.sae).save(folder)
    write_concepts(folder, make_concepts(), backbone_fingerprint=TOY.backbone_fingerprint)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_vocabulary(tmp_path / "mine.vocab")


@pytest.fixture
def gallery(folder: Path, photos: Path, tmp_path: Path) -> Gallery:
    gallery = Gallery.create(tmp_path / "gallery.bm25v", vocabulary=folder)
    gallery.add(photos)
    return gallery


# Files


def test_concepts_are_read_as_they_were_written(folder: Path) -> None:
    read, written = Vocabulary.load(folder).concepts, make_concepts()
    assert read is not None
    assert read.table == written.table
    assert read.sources == written.sources
    np.testing.assert_array_equal(read.weights_ce, written.weights_ce)
    np.testing.assert_array_equal(read.biases_c, written.biases_c)


def test_weights_in_another_memory_order_are_written_right(tmp_path: Path) -> None:
    concepts = make_concepts()
    transposed = Concepts(
        concepts.table,
        np.asfortranarray(concepts.weights_ce),
        concepts.biases_c,
        concepts.sources,
    )
    write_concepts(tmp_path, transposed, backbone_fingerprint="toy-1")
    read = read_concepts(tmp_path, backbone_fingerprint="toy-1")
    assert read is not None
    np.testing.assert_array_equal(read.weights_ce, concepts.weights_ce)


def test_concepts_change_neither_the_fingerprint_nor_the_bags(folder: Path) -> None:
    assert Vocabulary.load(folder).fingerprint == TOY.fingerprint


def test_a_vocabulary_may_have_no_concepts(folder: Path) -> None:
    (folder / TABLE).unlink()
    (folder / WEIGHTS).unlink()
    assert Vocabulary.load(folder).concepts is None
    assert TOY.concepts is None


def test_an_image_search_does_not_read_concepts(gallery: Gallery, photos: Path) -> None:
    assert gallery.vocabulary.folder is not None
    (gallery.vocabulary.folder / TABLE).write_text("torn")
    with Gallery.open(gallery.path) as opened:
        assert opened.search(photos / "3.png").hits
        with pytest.raises(VocabularyError, match="is not JSON"):
            opened.search(text="cat")


def change(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads((folder / TABLE).read_text())
    edit(values)
    (folder / TABLE).write_text(json.dumps(values))


def refusal(folder: Path) -> str:
    with pytest.raises(VocabularyError) as caught:
        _ = Vocabulary.load(folder).concepts
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < len(str(folder)) + 500
    return message


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda v: v.update(format=99), "has format 99, this bm25v reads up to 1: upgrade"),
        (lambda v: v.update(format="1"), "format is '1', not a whole number"),
        (lambda v: v.pop("concepts"), "concepts is missing"),
        (lambda v: v.update(classes=-1), "classes is -1, not"),
        (lambda v: v.update(classes=500), "it has 11 concepts and 500 classes"),
        (lambda v: v.update(backbone="other"), "it is for another backbone ('other', not toy-1)"),
        (lambda v: v.update(sources={"names": 3}), "sources has a value that is not a text"),
        (lambda v: v["concepts"][2].pop("id"), "concepts, entry 2: id is missing"),
        (lambda v: v["concepts"][2].update(names=[]), "concepts, entry 2: names is empty"),
        (lambda v: v["concepts"][2].update(names=["\x1b"]), r"entry 2: names is ['\x1b'], not"),
        (lambda v: v["concepts"][2].update(parents=[99]), "each a whole number from 0 to 10"),
        (lambda v: v["concepts"][10].update(parents=[0]), "its parents lead back to itself"),
        (lambda v: v["concepts"][2].update(column=40), "columns are not numbered without gaps"),
        (lambda v: v["concepts"].append(5), "concepts is [{"),
    ],
)
def test_a_wrong_table_is_refused(
    folder: Path, edit: Callable[[dict[str, Any]], object], problem: str
) -> None:
    change(folder, edit)
    assert problem in refusal(folder)


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"weights": np.zeros((3, 12), np.float16)}, "it has ['weights'], not weights and biases"),
        (
            {"weights": np.zeros((3, 12), np.float16), "biases": np.zeros(3, np.float16)},
            "its shapes are (3, 12) and (3,), and concepts.json has 11 columns",
        ),
        (
            {"weights": np.zeros((11, 12), np.int8), "biases": np.zeros(11, np.float16)},
            "weights are not float16",
        ),
        (
            {"weights": np.full((11, 12), np.nan, np.float16), "biases": np.zeros(11, np.float16)},
            "it has values that are not finite",
        ),
        (
            {"weights": np.zeros((11, 5), np.float16), "biases": np.zeros(11, np.float16)},
            "concepts have 5 weights each, and dense vectors of toy 12",
        ),
    ],
)
def test_wrong_weights_are_refused(
    folder: Path, tensors: dict[str, np.ndarray[Any, Any]], problem: str
) -> None:
    save_file(tensors, folder / WEIGHTS)
    assert problem in refusal(folder)


@pytest.mark.parametrize("name", [TABLE, WEIGHTS])
def test_one_file_without_the_other_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert name in refusal(folder)


@pytest.mark.parametrize("name", [TABLE, WEIGHTS])
def test_damaged_files_are_refused_or_read(folder: Path, tmp_path: Path, name: str) -> None:
    content, rng = (folder / name).read_bytes(), random.Random(0)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(damaged), 600))] = rng.randrange(256)
        (folder / name).write_bytes(damaged[: rng.choice((len(damaged), rng.randrange(900)))])
        try:
            _ = Vocabulary.load(folder).concepts
        except VocabularyError as error:
            assert str(error).isprintable()


def test_the_default_vocabulary_names_licences_and_is_small() -> None:
    vocabulary = Vocabulary.load()
    assert vocabulary.concepts is not None and vocabulary.folder is not None
    assert vocabulary.concepts.table.n_classes == 1000
    assert "Princeton University" in vocabulary.concepts.sources["names"]
    assert "Apache-2.0" in vocabulary.concepts.sources["directions"]
    assert sum((vocabulary.folder / name).stat().st_size for name in (TABLE, WEIGHTS)) < 2_000_000
    assert load_file(vocabulary.folder / WEIGHTS)["weights"].dtype == np.float16


# Texts


def parse(text: str, own: tuple[tuple[str, int], ...] = ()) -> ParsedText:
    concepts = make_concepts()
    lexicon = Lexicon(
        concepts.table, index_names(concepts), PhraseIndex(own), PhraseIndex([("fur", 50)])
    )
    return parse_text(text, lexicon)


def labels(text: str) -> list[str]:
    terms = parse(text).terms
    return [f"-{term.label}" if term.is_excluded else term.label for term in terms]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("cat", ["cat"]),
        ("Cats", ["cat"]),
        ("a photo of the CAT", ["cat"]),
        ("hot dog", ["hotdog"]),
        ("hot-dogs", ["hotdog"]),
        ("hotdogs", ["hotdog"]),
        ("dog", ["dog"]),
        ("catamaran", ["catamaran"]),
        ("chairs", ["chair"]),
        ("rocking_chairs", ["rocking chair"]),
        ("a cat on a chair", ["cat", "chair"]),
        ("the dog's chair", ["dog", "chair"]),
        ("cât", ["cat"]),
        ("cat cat cat", ["cat"]),
        ("wheaten terrier", ["soft-coated wheaten terrier"]),
        ("softcoated wheaten", ["soft-coated wheaten terrier"]),
        ("Persian", ["Persian cat"]),
        ("cat or dog", ["cat or dog"]),
        ("cat without a dog", ["cat", "-dog"]),
        ("no dog", ["-dog"]),
        ("-dog", ["-dog"]),
        ("cat -dog", ["cat", "-dog"]),
        ("a cat, not a hot dog", ["cat", "-hotdog"]),
        ("without a dog or a cat", ["-dog or cat"]),
        ("dog without a beagle", ["dog", "-beagle"]),
        ("without flurb on a chair", ["chair"]),
        ("without a flurb dog", ["-dog"]),
    ],
)
def test_a_text_names_concepts(text: str, expected: list[str]) -> None:
    assert labels(text) == expected


@pytest.mark.parametrize(
    ("text", "unknown"),
    [
        ("a striped cat", ("striped",)),
        ("two cats", ("two",)),
        ("concatenate", ("concatenate",)),
        ("🐱", ("🐱",)),
        ("猫 кошка", ("猫", "кошка")),
        ("cat without", ("without",)),
        ("the photo of a", ()),
    ],
)
def test_what_is_not_understood_is_reported(text: str, unknown: tuple[str, ...]) -> None:
    assert parse(text).unknown == unknown


@example("NO¬")  # what is excluded is not known
@given(st.text(max_size=60))
def test_every_word_is_a_term_a_small_word_or_reported(text: str) -> None:
    try:
        parsed = parse(text)
    except InvalidOption:
        return
    reported = " ".join(parsed.unknown)
    for token in split_text(text):
        is_small = parse(token.text).unknown == ()
        excludes = any(term.is_excluded for term in parse(f"{token.text} cat").terms)
        assert is_small or excludes or token.text in reported or parsed.terms


def test_similar_names_are_offered() -> None:
    assert parse("beegle").similar == ("beagle",)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cat without cat", "asks for 'cat' and excludes 'cat': leave one"),
        ("a tabby but no cats", "'tabby' is a kind of 'cat': leave one"),
        ("dog or cat -animal", "'dog or cat' is a kind of 'animal'"),
    ],
)
def test_a_contradiction_is_one_clear_error(text: str, problem: str) -> None:
    with pytest.raises(InvalidOption, match=problem):
        parse(text)


def test_own_names_of_words_win_over_concepts_and_those_over_the_vocabularys() -> None:
    (own,) = parse("cat", (("Cat", 12),)).terms
    assert (own.words, own.concepts) == ((12,), ())
    (fur,) = parse("fur").terms
    assert fur.words == (50,)
    with pytest.raises(InvalidOption, match="leave one"):
        parse("cat without cat", (("Cat", 12),))


def test_a_wide_concept_says_which_classes_it_is_known_from() -> None:
    table = make_concepts().table
    assert describe_terms(parse("chair -dog"), table) == (
        "searching for: chair (known from: rocking chair); "
        "without: dog (known from: beagle, soft-coated wheaten terrier)"
    )


# Searches


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value)) if value > 0 else value - math.log1p(math.exp(value))


def expected_log_probability(
    gallery: Gallery, path: str, concepts: list[int], *, is_excluded: bool = False
) -> float:
    """Return the plain formula for one image."""
    directions, snapshot = make_concepts(), gallery.local.snapshot()
    dense_e = snapshot.dense_ne[find_row(gallery, path)].astype(np.float64)
    dense_e /= np.linalg.norm(dense_e)
    absent = 0.0
    for concept in concepts:
        log_odds = float(directions.weights_ce[concept] @ dense_e + directions.biases_c[concept])
        absent += log_sigmoid(-log_odds)
    return absent if is_excluded else math.log(-math.expm1(absent))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("cat", [([7], False)]),
        ("a cat on a chair", [([7], False), ([9], False)]),
        ("cat or beagle", [([7, 2], False)]),
        ("dog without a chair", [([8], False), ([9], True)]),
        ("no hot dog", [([3], True)]),
    ],
)
def test_a_score_is_the_sum_of_logarithms_of_probabilities(
    gallery: Gallery, text: str, terms: list[tuple[list[int], bool]]
) -> None:
    results = gallery.search(text=text, k=12)
    assert (results.mode, len(results), results.candidates) == ("concepts", 12, None)
    scores = []
    for hit in results:
        values = [
            expected_log_probability(gallery, hit.path, concepts, is_excluded=is_excluded)
            for concepts, is_excluded in terms
        ]
        assert [part.value for part in hit.parts] == pytest.approx(values, abs=1e-5)
        assert hit.score == pytest.approx(sum(values), abs=1e-5)
        assert [math.log(p.probability) for p in hit.concepts] == pytest.approx(values, abs=1e-5)
        scores.append(hit.score)
        least = min(part.probability for part in hit.concepts)
        assert hit.strength == ("weak" if least < 0.05 else "strong" if least >= 0.5 else "fair")
    assert scores == sorted(scores, reverse=True)


def test_words_beside_a_hit_are_those_that_the_best_images_share(gallery: Gallery) -> None:
    results = gallery.search(text="cat", k=12)
    assert results.query and results.sparse_factor == 0
    assert {part.label for hit in results for part in hit.parts} == {"cat"}
    explanation = gallery.explain(None, results[0].path, text="cat")
    assert explanation.match.score == results[0].score
    assert explanation.match.words == results[0].words
    assert explanation.match.formula.endswith("(cat)")


def test_named_words_and_options_add_to_the_score(gallery: Gallery, photos: Path) -> None:
    snapshot = gallery.local.snapshot()
    word = int(np.abs(snapshot.full_statistics.df_v - 6).argmin())  # in half of the full bags
    gallery.name_words({word: "stripes"})
    for options in (
        {"text": "a cat with stripes"},
        {"text": "cat", "boost": {word: 2.0}},
        {"text": "cat", "must": [word]},
        {"text": "cat", "unlike": [photos / "3.png"]},
        {"text": "cat", "negative": photos / "3.png"},
    ):
        results = gallery.search(k=12, **options)
        assert results.mode == "concepts" and results.sparse_factor
        for hit in results:
            assert sum(part.value for part in hit.parts) == pytest.approx(hit.score, abs=1e-5)
        assert any(len(hit.parts) > 1 for hit in results)
        assert [hit.score for hit in results] == sorted((h.score for h in results), reverse=True)
    excluded = gallery.search(text="cat without stripes", k=12)
    rows = {hit.path: find_row(gallery, hit.path) for hit in excluded}
    assert rows
    assert not snapshot.flag_rows(Filter(must=(word,)))[list(rows.values())].any()
    only_words = gallery.search(text="stripes", k=12)
    assert only_words.mode == "words"


@pytest.mark.parametrize("mode", [None, "hybrid", "two-stage", "dense"])
def test_a_text_beside_an_image_adds_its_parts(
    gallery: Gallery, photos: Path, mode: str | None
) -> None:
    options: dict[str, Any] = {"mode": mode, "k": 11}
    alone = {hit.path: hit.score for hit in gallery.search(photos / "3.png", **options)}
    both = gallery.search(photos / "3.png", text="cat", **options)
    assert both.mode == (mode or "hybrid")
    for hit in both:
        value = 0.1 * expected_log_probability(gallery, hit.path, [7])
        assert hit.score == pytest.approx(alone[hit.path] + value, abs=1e-5)
        assert sum(part.value for part in hit.parts) == pytest.approx(hit.score, abs=1e-5)
    liked = gallery.search(text="cat", like=photos / "3.png")
    assert liked.mode == "hybrid" and liked[0].concepts


def test_filters_apply_to_a_text(gallery: Gallery) -> None:
    everything = [hit.path for hit in gallery.search(text="cat", k=12)]
    some = gallery.search(text="cat", folder="1*.png", k=12)
    assert [hit.path for hit in some] == [p for p in everything if Path(p).name[0] == "1"]
    assert [hit.path for hit in gallery.search(text="cat", k=4, offset=4)] == everything[4:8]


def test_results_say_what_was_understood(gallery: Gallery) -> None:
    results = gallery.search(text="a striped cat without a dog")
    assert results.understood == ("cat", "without dog")
    assert results.not_understood == ("striped",)
    assert "not understood: striped" in results.notes[1]
    values = results.to_dict()
    assert (values["understood"], values["not_understood"]) == (["cat", "without dog"], ["striped"])
    part = values["hits"][0]["concepts"][0]
    assert part.keys() == {"label", "probability", "value"} and part["label"] == "cat"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"text": "flurb"}, "not understood: flurb"),
        ({"text": "the photo of a"}, "it names nothing"),
        ({"text": "🐱" * 3}, "not understood: 🐱"),
        ({"text": "x" * 10_000}, "not understood: xxx"),
        ({"text": "flurb " * 2000}, "not understood: flurb"),
        ({"text": "cat", "mode": "dense"}, "has no dense vector .*; use mode 'concepts'"),
        ({"text": "cat", "mode": "words"}, "no word name matches 'cat'"),
        ({"mode": "concepts", "must": [3]}, "orders by a text alone"),
    ],
)
def test_wrong_texts_are_one_clear_line(
    gallery: Gallery, options: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InvalidOption, match=problem) as caught:
        gallery.search(**options)
    assert str(caught.value).isprintable() and len(str(caught.value)) < 400


def test_the_commands_with_concepts(folder: Path, photos: Path, run: Any) -> None:
    run("index", photos, "--vocabulary", folder)
    shown = run("search", "--text", "a striped cat on a chair")
    assert shown.code == 0
    assert "sorted by the probability of what the text names" in shown.out
    assert shown.err == (
        "note: searching for: cat (known from: tabby, Persian cat), chair (known from: rocking "
        "chair)\nnote: not understood: striped\n"
    )
    results = run("search", "--text", "cat", "--json").json
    assert results["mode"] == "concepts"
    test_cli.failed(run("search", "--text", "cat without cat"), 2, "leave one of them out")
    test_cli.failed(run("search", "--text", "猫"), 2, "not understood: 猫")
    path = results["hits"][0]["path"]
    why = run("explain", path, "--text", "cat", "-o", "why.html", "--json").json
    assert sum(part["value"] for part in why["parts"]) == pytest.approx(why["score"], abs=1e-5)
    assert run("explain", path, "--text", "cat", "-o", "why.png").code == 0


def test_a_weak_best_hit_is_no_good_match(folder: Path, photos: Path, run: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    tensors["biases"] = tensors["biases"] - np.float16(50)
    save_file(tensors, folder / WEIGHTS)
    run("index", photos, "--vocabulary", folder)
    assert run("search", "--text", "cat").out.startswith("No good match. The closest are:")


def test_evaluate_text_searches_for_the_names_of_folders(
    folder: Path, photos: Path, tmp_path: Path, run: Any
) -> None:
    for number in range(12):
        name = ("cat", "rocking_chair", "flurb")[number % 3]
        (tmp_path / "set" / name).mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / f"{number}.png", tmp_path / "set" / name)
    values = run("evaluate", "text", "--data", "set", "--vocabulary", folder, "--json").json
    assert (values["n_images"], values["known"]["classes"], values["unknown"]["classes"]) == (
        12,
        2,
        1,
    )
    by_name = {entry["name"]: entry for entry in values["classes"]}
    assert by_name["rocking_chair"]["understood"] == ["rocking chair"]
    assert by_name["flurb"]["average_precision"] == 0 and not by_name["flurb"]["is_known"]
    with Gallery.create(tmp_path / "g", vocabulary=folder) as gallery:
        gallery.add(tmp_path / "set")
        order = [Path(hit.path).parent.name == "cat" for hit in gallery.search(text="cat", k=12)]
    positions = [i for i, is_right in enumerate(order) if is_right]
    expected = sum((n + 1) / (i + 1) for n, i in enumerate(positions)) / 4
    assert by_name["cat"]["average_precision"] == pytest.approx(expected)
    assert by_name["cat"]["precision"]["P@10"] == pytest.approx(sum(order[:4]) / 4)
    assert (
        "names understood: 2 classes"
        in run("evaluate", "text", "--data", "set", "--vocabulary", folder).out
    )
    assert "has no class folders" in run("evaluate", "text", "--data", photos).err


def test_a_word_is_found_by_a_part_of_the_name_that_someone_gave(gallery: Gallery) -> None:
    """A concept of that name comes first: "cat" is not the cat's ear."""
    word, other = (use.word for use in gallery.words()[:2])
    gallery.name_words({word: "snow slope", other: "cat ear"})
    by_part, by_name = gallery.search(text="snow"), gallery.search(text="snow slope")
    assert [hit.path for hit in by_part] == [hit.path for hit in by_name] != []
    assert by_part.understood == ("snow",)
    assert gallery.search(text="slopes").not_understood == ()
    assert "a named word" not in " ".join(gallery.search(text="cat").notes)
