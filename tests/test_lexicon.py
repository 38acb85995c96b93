"""Texts as queries by a lexicon: its files, what a text means, and the scores of hits."""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from bm25v.errors import InvalidOption, VocabularyError
from bm25v.gallery import Gallery
from bm25v.index.bm25 import WeightedWords, reference_scores
from bm25v.search import Results
from bm25v.search.scoring import MODES
from bm25v.store.base import Filter
from bm25v.vocabulary import Vocabulary
from bm25v.vocabulary.lexicon import CAPTIONS, CLASSES, MEANING, NAMES, TENSORS
from bm25v.vocabulary.phrases import PhraseIndex, split_text
from tests.conftest import find_row, make_image, stored_full_bag
from tests.http_server import serving
from tests.lexicons import ENTRIES, N_WORDS, make_lexicon, save_vocabulary

TOY = Vocabulary.load("toy")
LONG_NAME = "n" * 200
DATES = {  # of files: their names are their numbers
    "Holiday": (datetime(2019, 6, 15), 5),
    "photos": (datetime(2020, 6, 3), 4),
    "2017": (datetime(2021, 3, 1), 3),
}
Edit = Callable[[dict[str, NDArray[Any]]], object]


@pytest.fixture(scope="module")
def gallery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    """A gallery of twelve images in three folders; tests do not change it."""
    with make_gallery(tmp_path_factory.mktemp("texts")) as gallery:
        yield gallery


@pytest.fixture
def own_gallery(tmp_path: Path) -> Iterator[Gallery]:
    """The same for tests that change it."""
    with make_gallery(tmp_path) as gallery:
        yield gallery


def make_gallery(folder: Path) -> Gallery:
    gallery = Gallery.create(folder / "g", vocabulary=save_vocabulary(folder / "toy.vocab"))
    number = 1460
    for name, (date, n) in DATES.items():
        (folder / name).mkdir()
        for _ in range(n):
            path = folder / name / f"IMG_{number}.png"
            make_image(number).save(path)
            os.utime(path, (date.timestamp(), date.timestamp()))
            number += 1
        gallery.add(folder / name)
    return gallery


def file_names(results: Results) -> set[str]:
    return {Path(hit.path).stem for hit in results}


def folder_names(results: Results) -> set[str]:
    return {Path(hit.path).parent.name for hit in results}


# Files


def test_a_lexicon_is_read_as_it_was_written(tmp_path: Path) -> None:
    read = Vocabulary.load(save_vocabulary(tmp_path / "v")).lexicon
    written = make_lexicon()
    assert read is not None
    assert tuple(read.names) == ENTRIES
    assert len(read) == len(ENTRIES)
    assert read.tensors.keys() == written.tensors.keys()
    for name, tensor in written.tensors.items():
        np.testing.assert_array_equal(read.tensors[name], tensor)
    for number in range(len(read)):
        entry = read[number]
        assert entry.label == ENTRIES[number][0]
        learned_from = {"bull terrier": CLASSES, "holiday": MEANING}.get(entry.label, CAPTIONS)
        assert entry.learned_from == learned_from
        assert np.all(np.diff(entry.words) > 0)
        np.testing.assert_array_equal(read.directions([number])[0], entry.direction_e)


def test_a_lexicon_is_no_part_of_the_fingerprint_and_may_be_missing(tmp_path: Path) -> None:
    folder = save_vocabulary(tmp_path / "v")
    assert Vocabulary.load(folder).fingerprint == TOY.fingerprint
    (folder / NAMES).unlink()
    assert Vocabulary.load(folder).lexicon is None
    assert TOY.lexicon is None


def test_a_search_by_an_image_does_not_read_the_lexicon(own_gallery: Gallery) -> None:
    folder = own_gallery.vocabulary.folder
    assert folder is not None
    (folder / NAMES).write_text("torn")
    with Gallery.open(own_gallery.path) as opened:
        assert opened.search(make_image(1)).hits
        with pytest.raises(VocabularyError, match="is not a lexicon of format 1"):
            opened.search(text="cat")


def refusal(folder: Path) -> str:
    with pytest.raises(VocabularyError) as caught:
        _ = Vocabulary.load(folder).lexicon
    message = str(caught.value)
    assert message.isprintable()
    assert len(message) < 2 * len(str(folder)) + 500
    return message


def set_values(name: str, *values: float, kind: Any = None) -> Edit:
    """Return an edit that replaces a tensor, or the first of its values."""

    def edit(tensors: dict[str, NDArray[Any]]) -> None:
        changed = tensors[name].astype(kind or tensors[name].dtype)
        changed.flat[: len(values)] = values
        tensors[name] = changed

    return edit


def cut(name: str, *, axis: int = 0) -> Edit:
    return lambda tensors: tensors.update({name: np.delete(tensors[name], 0, axis)})


@pytest.mark.parametrize(
    ("edit", "problem"),
    [
        (lambda t: t.pop("weights"), "lacks weights, of type float32 with 1 axes"),
        (set_values("directions", kind=np.float16), "lacks directions, of type int8"),
        (lambda t: t.update(means=t["means"][:, 0].copy()), "lacks means, of type float32 with 2"),
        (cut("word_scales"), "has 9 rows of word_scales for 10 names"),
        (set_values("words", N_WORDS), "has words that are none of the 192"),
        (cut("words", axis=1), "has words that are none of the 192"),
        (set_values("direction_scales", np.nan), "has NaN, infinite or too large values in dir"),
        (set_values("word_scales", np.inf), "has NaN, infinite or too large values in word_scal"),
        (set_values("weights", 3e38), "has NaN, infinite or too large values in weights"),
        (cut("means", axis=1), "has means or bounds of another shape"),
        (cut("bounds"), "has means or bounds of another shape"),
    ],
)
def test_wrong_tensors_are_refused(tmp_path: Path, edit: Edit, problem: str) -> None:
    folder = save_vocabulary(tmp_path / "v")
    tensors = load_file(folder / TENSORS)
    edit(tensors)
    save_file(tensors, folder / TENSORS)
    assert refusal(folder).startswith(f"{folder / TENSORS} {problem}")


def test_directions_of_another_width_are_refused(tmp_path: Path) -> None:
    folder = save_vocabulary(tmp_path / "v")
    tensors = load_file(folder / TENSORS)
    cut("directions", axis=1)(tensors)
    save_file(tensors, folder / TENSORS)
    message = refusal(folder)
    assert str(folder) in message
    assert "directions of 11 values, and dense vectors of toy have 12" in message


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (b"format 1", b"format 2", "is not a lexicon of format 1"),
        (b"# bm25v lexicon", b"# names", "is not a lexicon of format 1"),
        (TOY.fingerprint.encode(), b"00ff", "is for another vocabulary (00ff, not"),
        (b"chair", b"\xff\xfe", "cannot be read ('utf-8' codec"),
        (b"chair\n", b"\n", "has an entry without a name"),
        (b"bicycle\tbike", b"bicycle\t", "has an entry without a name"),
    ],
)
def test_wrong_names_are_refused(tmp_path: Path, old: bytes, new: bytes, problem: str) -> None:
    folder = save_vocabulary(tmp_path / "v")
    content = (folder / NAMES).read_bytes()
    assert old in content
    (folder / NAMES).write_bytes(content.replace(old, new))
    assert refusal(folder).startswith(f"{folder / NAMES} {problem}")


@pytest.mark.parametrize("name", [NAMES, TENSORS])
def test_damaged_files_are_refused_or_read(tmp_path: Path, name: str) -> None:
    folder, rng = save_vocabulary(tmp_path / "v"), random.Random(0)
    content = (folder / name).read_bytes()
    for size in (0, 1, 20, len(content) // 2, len(content) - 9):
        (folder / name).write_bytes(content[:size])
        assert str(folder / "lexicon.") in refusal(folder), "one of the two files"
    for _ in range(100):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(min(len(damaged), 900))] = rng.randrange(256)
        (folder / name).write_bytes(damaged)
        try:
            _ = Vocabulary.load(folder).lexicon
        except VocabularyError as error:
            assert str(error).isprintable()


def test_tensors_that_are_missing_or_of_an_unknown_type_are_refused(tmp_path: Path) -> None:
    folder = save_vocabulary(tmp_path / "v")
    header = b'{"weights":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}}'  # numpy has none
    (folder / TENSORS).write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    assert refusal(folder).startswith(f"{folder / TENSORS} cannot be read")
    (folder / TENSORS).unlink()
    assert refusal(folder).startswith(f"{folder / TENSORS} cannot be read")


def test_the_default_vocabulary_has_a_lexicon_that_names_its_sources() -> None:
    default = Vocabulary.load()
    assert default.folder is not None
    if not (default.folder / NAMES).is_file():
        pytest.skip("the lexicon is not made yet")
    lexicon = default.lexicon
    assert lexicon is not None
    for word in ("dog", "beach", "snow", "bicycle", "wedding cake"):
        assert lexicon.find(split_text(word)) is not None, word
    assert (default.folder / NAMES).read_text(encoding="utf-8").count("\n# ") > 0
    assert sum((default.folder / name).stat().st_size for name in (NAMES, TENSORS)) < 32_000_000


# Words


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Cats", "cat"),
        ("knives", "knife"),
        ("hot-dogs", "hot dog"),
        ("hotdog", "hot dog"),
        ("HOT_DOG", "hot dog"),
        ("Crème Brûlée", "creme brulee"),
        ("bull-terriers", "bull terrier"),
        ("bullterrier", "bull terrier"),
        ("domestic dogs", "dog"),
        ("dog's", "dog"),
        ("catamaran", None),
        ("hot, dog", None),
        ("dog hot", None),
    ],
)
def test_an_entry_is_found_by_any_spelling_of_its_names(text: str, name: str | None) -> None:
    found = make_lexicon().find(split_text(text))
    assert (None if found is None else ENTRIES[found][0]) == name


def test_names_are_found_by_their_words_and_beginnings() -> None:
    index = PhraseIndex({"soft coated wheaten terrier": (1,), "bull terrier": (2,), "cat": (3, 4)})
    tokens = split_text
    assert index.longest == 4
    assert (
        index.find(tokens("wheaten terriers")) == index.find(tokens("softcoated wheaten")) == (1,)
    )
    assert index.find(tokens("terrier")) == (), "it is the end of two names"
    assert index.find(tokens("cats")) == (3, 4)
    assert index.find_containing(tokens("Terriers")[0]) == (1, 2)
    assert index.find_containing(tokens("the")[0]) == ()


@pytest.mark.parametrize(
    ("text", "read_as"),
    [
        ("bycicle", "bicycle"),
        ("bicycel", "bicycle"),
        ("bicyclle", "bicycle"),
        ("gras", None),  # too short to be sure
        ("bzcyzle", None),  # two mistakes
        ("graass", "grass"),
        ("holliday", None),  # no caption has it
    ],
)
def test_one_mistake_is_forgiven(gallery: Gallery, text: str, read_as: str | None) -> None:
    results = gallery.search(text=f"a {text}")
    if read_as is None:
        assert results.not_understood == (text,)
    else:
        assert (results.understood, results.not_understood) == ((read_as,), ())
        assert results.notes == (f"{text} was read as {read_as}",)
        assert results.hits == gallery.search(text=read_as).hits


@pytest.mark.parametrize(
    ("text", "understood", "unknown"),
    [
        ("a cat on the chair", ("cat", "chair"), ()),
        ("a hot dog", ("hot dog",), ()),
        ("hot dog, dog", ("hot dog", "dog"), ()),
        ("a domestic cat", ("cat",), ("domestic",)),
        ("cat CAT cats", ("cat",), ()),
        ("cat without a dog", ("cat", "without dog"), ()),
        ("cat, no dogs", ("cat", "without dogs"), ()),
        ("cat -dog chair", ("cat", "without dog", "chair"), ()),
        ("well-known cat-dog", ("cat", "dog"), ("well", "known")),
        ("without a dog or a knife on a chair", ("without dog", "without knife", "chair"), ()),
        ("no flurb cat", ("cat",), ("flurb",)),
        ("cat without", ("cat",), ()),
        ("cat 🐕", ("cat",), ("🐕",)),
        ("猫 кошка cat", ("cat",), ("猫", "кошка")),
    ],
)
def test_a_text_says_what_was_understood(
    gallery: Gallery, text: str, understood: tuple[str, ...], unknown: tuple[str, ...]
) -> None:
    results = gallery.search(text=text)
    assert (results.understood, results.not_understood) == (understood, unknown)
    assert len(results) == 10
    assert results.mode == "hybrid"


def test_words_that_exclude_are_no_entries(tmp_path: Path) -> None:
    """Captions have such words, so a lexicon may have them."""
    vocabulary = save_vocabulary(tmp_path / "v", make_lexicon([*ENTRIES, ("without",), ("no",)]))
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add({"one": make_image(0)})
        results = gallery.search(text="cat without a dog, withotu no chair")
    assert results.understood == ("cat", "without dog", "without chair")
    assert results.not_understood == ("withotu",)


def test_what_is_searched_for_and_excluded_is_searched_for(gallery: Gallery) -> None:
    for text in ("cat without cat", "-cats cat", "cat -cat"):
        results = gallery.search(text=text)
        assert [hit.path for hit in results] == [h.path for h in gallery.search(text="cat")]
        assert "is both searched for and excluded" in results.notes[0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("the photo of a", "the text names nothing to look for"),
        ("without", "the text names nothing to look for"),
        ("... -- %", "the text names nothing to look for"),
        ("flurb and blarg", "nothing is known about flurb, blarg"),
        ("🐕", "nothing is known about 🐕"),
        ("кошка", "nothing is known about кошка"),
        ("no flurb", "nothing is known about flurb"),
        ("\ud800", "nothing is known about ?"),
        ("2019-13", "nothing is known about 2019, 13"),
        (LONG_NAME, f"nothing is known about {LONG_NAME}"),
        ("x" * 10_000, f"nothing is known about {'x' * 200}"),
    ],
)
@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_text_without_meaning_has_no_hits_and_a_reason(
    gallery: Gallery, text: str, reason: str, mode: Any
) -> None:
    results = gallery.search(text=text, mode=mode)
    assert (results.hits, results.understood) == ((), ())
    assert results.no_match == reason


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_is_refused(gallery: Gallery, text: str) -> None:
    with pytest.raises(InvalidOption, match="an empty text: write what to look for"):
        gallery.search(text=text)


@pytest.mark.parametrize(
    "text",
    [
        "x" * 10_000,
        "cat " * 2500,
        "cat-" * 2500,
        "bycicle-" * 1250,
        "flurbs " * 1400,
        "🐕" * 10_000,
    ],
)
def test_a_text_of_10_000_characters_takes_less_than_a_second(tmp_path: Path, text: str) -> None:
    rng = np.random.default_rng(0)
    letters = rng.integers(ord("a"), ord("z") + 1, (20_000, 7)).astype(np.uint8)
    others = (row.tobytes().decode() for row in letters)
    lexicon = make_lexicon([*((name,) for name in dict.fromkeys(others)), *ENTRIES])
    vocabulary = save_vocabulary(tmp_path / "v", lexicon)
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add({"one": make_image(0)})
        gallery.search(text="cat")  # reads the lexicon
        start = time.process_time()
        results = gallery.search(text=text)
        assert time.process_time() - start < 1
    assert results.understood or results.not_understood
    is_long = len(split_text(text)) > 500
    assert is_long == ("only the first 500 words of the text were read" in results.notes)


@example("-dog \ud800")
@example("2020-00 without june 2019 IMG_1466")
@given(st.text(max_size=60))
def test_no_text_is_refused_and_every_word_is_understood_or_reported(
    gallery: Gallery, text: str
) -> None:
    if not text.strip():
        return
    results = gallery.search(text=text)
    assert results.hits or results.no_match
    for hit in results:
        assert hit.score == pytest.approx(sum(part.value for part in hit.parts), abs=1e-5)
    for token in split_text(text) if not results.understood else ():
        is_small = not gallery.search(text=token.text).not_understood
        assert is_small or token.text in results.not_understood


# Scores


def expected_parts(
    gallery: Gallery, path: str, terms: Sequence[tuple[str, float]]
) -> list[tuple[float, float]]:
    """Return what each term adds to the score of an image, by the plain formula.

    A term is an entry and 1, or -1 if it is excluded; its parts are those by the vector and by
    visual words.
    """
    snapshot, tensors = gallery.local.snapshot(), make_lexicon().tensors
    row, rows = find_row(gallery, path), snapshot.rows.tolist()
    dense_e = snapshot.dense_ne[row].astype(np.float64)
    dense_e /= np.linalg.norm(dense_e)
    bags = [stored_full_bag(snapshot, other).bag for other in rows]
    sum_e, parts = np.zeros(len(dense_e)), []
    for name, sign in terms:
        n = [names[0] for names in ENTRIES].index(name)
        weight, (mean_of_vector, mean_of_words) = sign * tensors["weights"][n], tensors["means"][n]
        direction_e = weight * tensors["directions"][n] * tensors["direction_scales"][n]
        order = np.argsort(tensors["words"][n])
        weights = weight * tensors["word_weights"][n] * tensors["word_scales"][n].astype(float)
        words = tensors["words"][n][order].astype(np.int32)
        query = WeightedWords(words, weights[order], np.zeros(len(words)))
        bm25 = reference_scores(bags, query)[rows.index(row)] or 0.0
        sum_e += direction_e
        similarity = float(direction_e @ dense_e) - weight * mean_of_vector
        parts.append((similarity, bm25 - weight * mean_of_words))
    length = float(np.linalg.norm(sum_e))
    return [(similarity / length, words / length) for similarity, words in parts]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("cat", [("cat", 1)]),
        ("a cat on a chair", [("cat", 1), ("chair", 1)]),
        ("hot dog without a knife", [("hot dog", 1), ("knife", -1)]),
        ("no dog", [("dog", -1)]),
    ],
)
def test_a_hybrid_score_is_that_of_the_plain_formula(
    gallery: Gallery, text: str, terms: list[tuple[str, float]]
) -> None:
    results = gallery.search(text=text, k=12)
    assert len(results) == 12
    for hit in results:
        expected = expected_parts(gallery, hit.path, terms)
        parts = [(part.similarity, part.by_words) for part in hit.text]
        np.testing.assert_allclose(parts, expected, atol=1e-5)
        assert hit.score == pytest.approx(np.sum(expected), abs=1e-5)
        assert hit.rest == 0
    scores = [hit.score for hit in results]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.parametrize("text", ["cat", "cat chair knife dog", "bull terrier"])
def test_strength_compares_the_sum_with_the_bounds_of_the_lexicon(
    gallery: Gallery, text: str
) -> None:
    tensors, names = make_lexicon().tensors, [names[0] for names in ENTRIES]
    numbers = [names.index(name) for name in ([text] if text in names else text.split())]
    is_in_captions = not tensors["learned_from"][numbers].any()
    weights_n = tensors["weights"][numbers].astype(float)
    directions_ne = tensors["directions"][numbers] * tensors["direction_scales"][numbers][:, None]
    length = np.linalg.norm(weights_n @ directions_ne)
    weak, strong = tensors["bounds"].tolist()
    strengths = set()
    for hit in gallery.search(text=text, k=12):
        sum_, weight = hit.score * length, weights_n.sum()
        is_strong = is_in_captions and sum_ >= strong * weight
        is_weak = sum_ < weak * weight**0.5
        assert hit.strength == ("weak" if is_weak else "strong" if is_strong else "fair")
        strengths.add(hit.strength)
    assert len(strengths) > 1
    options: list[dict[str, Any]] = [
        {"text": f"{text} flurb"},  # it is not understood as a whole
        {"text": text, "must": [int(gallery.words()[0].word)]},
        {"text": text, "mode": "dense"},
        {"text": text, "images": make_image(3)},
    ]
    for query in options:
        results = gallery.search(query.pop("images", None), **query)
        assert results.hits
        assert {hit.strength for hit in results} == {None}


@pytest.mark.parametrize("mode", MODES)
def test_a_score_is_the_sum_of_what_the_words_of_the_text_add(
    own_gallery: Gallery, mode: Any
) -> None:
    word = int(np.argmax(own_gallery.local.snapshot().full_statistics.df_v))
    own_gallery.name_words({word: "stripes"})
    several: list[dict[str, Any]] = [{}, {"must": [word]}, {"k": 3}, {"boost": {3: 2.0, word: 1.5}}]
    n_hits = 0
    for text in ("cat", "cat on a chair without a dog", "cat with stripes"):
        for options in several:
            query = {"text": text, "mode": mode, "k": 12, **options}
            results = own_gallery.search(**query)
            assert results.mode == mode
            n_hits += len(results)
            for hit in results:
                assert len(hit.text) == len(results.understood)
                for part in hit.text:
                    assert part.value == part.similarity + part.by_words
                total = sum(part.value for part in hit.text) + hit.rest
                assert hit.score == pytest.approx(total, abs=1e-5)
                assert sum(part.value for part in hit.parts) == pytest.approx(total)
            for hit in results[:1]:
                explained = own_gallery.explain(None, hit.path, **query)
                assert explained.match.score == pytest.approx(hit.score, abs=1e-6)
                assert explained.match.text == hit.text
    assert n_hits > 20


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_text_beside_an_image_moves_the_order_and_adds_its_parts(
    gallery: Gallery, mode: Any
) -> None:
    def search(**options: Any) -> Results:
        return gallery.search(make_image(7), mode=mode, k=12, **options)

    alone = search()
    orders = set()
    for name, *_ in ENTRIES[:5]:
        both, against = search(text=name), search(text=f"no {name}")
        assert {hit.path for hit in both} == {hit.path for hit in alone}
        for hit in (*both, *against):
            total = sum(part.value for part in hit.text) + hit.rest
            assert (hit.score, len(hit.text)) == (pytest.approx(total, abs=1e-5), 1)
        by_text = {hit.path: hit.text[0].value for hit in both}
        shift = {h.path: h.score - by_path(against)[h.path].score for h in both}
        best, worst = (choose(by_text, key=by_text.__getitem__) for choose in (max, min))
        assert shift[best] > shift[worst]
        orders.add(tuple(hit.path for hit in both))
    assert len(orders) > 1
    unknown = search(text="flurb")
    assert unknown.not_understood == ("flurb",)
    assert [h.score for h in unknown] == [h.score for h in alone]


def by_path(results: Results) -> dict[str, Any]:
    return {hit.path: hit for hit in results}


def test_options_apply_to_a_text(gallery: Gallery) -> None:
    everything = [hit.path for hit in gallery.search(text="cat", k=12)]
    some = gallery.search(text="cat", folder="*7*.png", k=12)
    assert [hit.path for hit in some] == [p for p in everything if "7" in Path(p).name]
    assert [hit.path for hit in gallery.search(text="cat", k=4, offset=4)] == everything[4:8]
    assert folder_names(gallery.search(text="cat 2019", date="2020")) == {"photos"}
    liked = gallery.search(text="cat", like=everything[-1], unlike=everything[0], k=12)
    assert liked[0].rest != 0
    assert everything[0] not in {hit.path for hit in liked}


# Names that people gave


def paths_with_words(gallery: Gallery, *words: int) -> set[str]:
    """Return the paths of all images that have one of some words in their full bag."""
    snapshot = gallery.local.snapshot()
    rows = np.flatnonzero(snapshot.flag_rows(Filter(must=(words,))))
    return set(gallery.local.catalog.paths_of(rows.tolist(), snapshot.state.generation))


def test_a_name_finds_every_image_that_has_one_of_its_words(own_gallery: Gallery) -> None:
    snapshot = own_gallery.local.snapshot()
    in_full, in_index = snapshot.full_statistics.df_v, snapshot.statistics.df_v
    few = np.flatnonzero((in_full > 1) & (in_full < 8) & (in_index < in_full))
    first, second, other = few[:3].tolist()
    own_gallery.name_words({first: "Grandma", second: "grandma", other: "snow slope"})
    both = paths_with_words(own_gallery, first, second)
    assert max(in_index[first], in_index[second]) < len(both) < 12
    named = own_gallery.search(text="GRANDMA", k=12)
    assert by_path(named).keys() == both
    assert named.understood == ("grandma",)
    assert by_path(own_gallery.search(must="grandma", k=12)).keys() == both
    for text in ("snow", "slopes", "the snow slope", "snow-slope"):
        found = own_gallery.search(text=text, k=12)
        assert by_path(found).keys() == paths_with_words(own_gallery, other), text
    together = own_gallery.search(text="grandma, cat", k=12)
    assert by_path(together).keys() == both
    assert [part.label for part in together[0].text] == ["grandma", "cat"]
    excluded = own_gallery.search(text="cat without grandma", k=12)
    assert by_path(excluded).keys() == {image.path for image in own_gallery.images()} - both
    assert excluded.understood == ("cat", "without grandma")
    alone = own_gallery.search(text="-grandma", k=12)
    assert by_path(alone).keys() == by_path(excluded).keys()
    contradiction = own_gallery.search(text="grandma without grandma", k=12)
    assert by_path(contradiction).keys() == both
    assert "is both searched for and excluded" in contradiction.notes[0]
    own_gallery.name_words({other: "no parking"})
    assert own_gallery.search(text="cat, no dog").understood == ("cat", "without dog")


def test_a_name_can_be_excluded_from_those_that_share_a_word(own_gallery: Gallery) -> None:
    df_v = own_gallery.local.snapshot().full_statistics.df_v
    left, right = np.argsort(np.abs(df_v - 6), kind="stable")[:2].tolist()
    own_gallery.name_words({left: "left ear", right: "right ear"})
    with_left, with_right = (paths_with_words(own_gallery, word) for word in (left, right))
    assert with_right - with_left
    for text in ("ear without left", "an ear, cat, no left ear"):
        found = own_gallery.search(text=text, k=12)
        assert by_path(found).keys() == with_right - with_left


def test_a_word_of_the_lexicon_also_counts_for_names_that_contain_it(own_gallery: Gallery) -> None:
    word = int(np.argmax(own_gallery.local.snapshot().full_statistics.df_v))
    before = own_gallery.search(text="cat", k=12)
    own_gallery.name_words({word: "cat ear"})
    after = own_gallery.search(text="cat", k=12)
    assert after.understood == ("cat", "cat (named)")
    assert len(after) == len(before) == 12
    with_word = paths_with_words(own_gallery, word)
    for hit in after:
        entry, named = hit.text
        assert entry.value == pytest.approx(by_path(before)[hit.path].score, abs=1e-5)
        assert (named.value > 0) == (hit.path in with_word)
    assert by_path(own_gallery.search(text="cat ears", k=12)).keys() == with_word


# Dates and paths


@pytest.mark.parametrize(
    ("text", "folders", "understood"),
    [
        ("2019", {"Holiday"}, ("2019",)),
        ("June 2019", {"Holiday"}, ("2019-06",)),
        ("2020 jun", {"photos"}, ("2020-06",)),
        ("2019-06", {"Holiday"}, ("2019-06",)),
        ("2019-06-15", {"Holiday"}, ("2019-06-15",)),
        ("June", {"Holiday", "photos"}, ("june",)),
        ("march 2021", {"2017"}, ("2021-03",)),
        ("2019-06 15 cats", {"Holiday"}, ("cats", "2019-06")),
        ("cats in june", {"Holiday", "photos"}, ("cats", "june")),
        ("2017", {"2017"}, ("“2017” in the path",)),  # no image is of this year
        ("holiday", {"Holiday"}, ("“holiday” in the path",)),
        ("cat HOLIDAY", {"Holiday"}, ("cat", "“holiday” in the path")),
        ("photos", {"Holiday", "photos", "2017"}, ()),  # a small word
        ("cat without holiday", {"Holiday", "photos", "2017"}, ("cat", "without holiday")),
    ],
)
def test_dates_and_folders_of_a_text_limit_the_hits(
    gallery: Gallery, text: str, folders: set[str], understood: tuple[str, ...]
) -> None:
    results = gallery.search(text=text, k=12)
    assert results.understood == understood
    if understood:
        expected = {h.path for h in gallery.search(text="cat", k=12)}
        expected = {path for path in expected if Path(path).parent.name in folders}
        assert by_path(results).keys() == expected


@pytest.mark.parametrize("mode", [None, *MODES])
def test_a_text_of_names_in_paths_finds_these_images(gallery: Gallery, mode: Any) -> None:
    results = gallery.search(text="Holiday IMG_1461", mode=mode)
    assert file_names(results) == {"IMG_1461"}
    assert results.understood == ("“holiday” in the path", "“img_1461” in the path")
    assert file_names(gallery.search(text="img_1466.png", mode=mode)) == {"IMG_1466"}
    nothing = gallery.search(text="Holiday IMG_1471", mode=mode)
    assert nothing.no_match == "no image with “holiday” and “img_1471” in its path"
    pages = [gallery.search(text="holiday", k=2, offset=offset) for offset in (0, 2, 4)]
    whole = [hit.path for hit in gallery.search(text="holiday", k=5)]
    assert [hit.path for page in pages for hit in page] == whole


def test_names_in_paths_may_be_long_or_in_any_script(own_gallery: Gallery, tmp_path: Path) -> None:
    for name in (LONG_NAME, "Übung_Nr", "кошка", "100%_[a]", "DSC_2004"):
        make_image(len(name)).save(tmp_path / "photos" / f"{name}.png")
    own_gallery.add(tmp_path / "photos")
    for text, name in (
        (LONG_NAME.upper(), LONG_NAME),
        ("übung", "Übung_Nr"),
        ("КОШКА", "кошка"),
        ("nr", "Übung_Nr"),
        ("100%_[a].png", "100%_[a]"),
        ("DSC_2004.png", "DSC_2004"),  # this is no year
    ):
        assert file_names(own_gallery.search(text=text)) == {name}, text
    assert own_gallery.search(text="bung").not_understood == ("bung",), "whole words count"


def test_a_month_without_any_image_has_a_reason(gallery: Gallery) -> None:
    assert gallery.search(text="cat january").no_match == "no image dated january"
    assert gallery.search(text="1995").no_match == "no image dated 1995"
    assert gallery.search(text="may").not_understood == ("may",), "it is also another word"


# Over HTTP


def test_texts_over_http(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache") as client:
        unknown = client.post("/v1/search", json={"text": "flurb 🐕"})
        assert unknown.status_code == 200
        answer = unknown.json()
        assert answer["hits"] == []
        assert answer["not_understood"] == ["flurb", "🐕"]
        assert answer["no_match"] == "nothing is known about flurb, 🐕"
        answer = client.post("/v1/search", json={"text": "cat without a dog, 2019"}).json()
        expected = gallery.search(text="cat without a dog, 2019")
        assert answer["understood"] == list(expected.understood) != []
        assert len(answer["hits"]) == len(expected) == 5
        for hit, other in zip(answer["hits"], expected, strict=True):
            assert (hit["path"], hit["score"]) == (other.path, other.score)
            assert hit["text"] == [part._asdict() for part in other.text]
