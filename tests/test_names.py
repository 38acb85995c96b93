"""Names of words: tables of names, names in a gallery, names that a text tower suggests."""

import os
import shutil
import unicodedata
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from bm25v.backbones import text
from bm25v.errors import BackboneError, GalleryError, GalleryLocked, InvalidOption, VocabularyError
from bm25v.gallery import Gallery
from bm25v.store.local import names as gallery_names
from bm25v.vocabulary import Vocabulary, names
from bm25v.vocabulary.folder import NAMES
from tests import test_cli
from tests.children import Report, die_at_step, finish, needs_fork, start
from tests.histories import fill_gallery

run, indexed = test_cli.run, test_cli.indexed

TOY = Vocabulary.load("toy").fingerprint


def parse(table: str) -> dict[int, str]:
    return names.parse_names(table, n_words=192, vocabulary=TOY, source="mine.tsv")


def is_name(text: str) -> bool:
    try:
        return bool(names.check_name(text))
    except InvalidOption:
        return False


@given(st.dictionaries(st.integers(0, 191), st.text(max_size=20).filter(is_name)))
def test_parsing_a_formatted_table_returns_the_same_names(given_names: dict[int, str]) -> None:
    notes = dict.fromkeys(given_names, "margin 0.1")
    expected = {
        word: unicodedata.normalize("NFC", name).strip() for word, name in given_names.items()
    }
    for table in (
        names.format_names(given_names, vocabulary=TOY),
        names.format_names(given_names, vocabulary=TOY, notes=notes),
    ):
        assert parse(table) == expected
        assert parse("\ufeff" + table.replace("\n", "\r\n")) == expected


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "empty name"),
        ("  \t ", "empty name"),
        ("a\tb", "tab, line break"),
        ("a\nb", "tab, line break"),
        ("a\u2028b", "tab, line break"),
        ("a\x00b", "tab, line break"),
        ("\ud83d", "tab, line break"),
        ("4711", "looks like the number of a word"),
        ("x" * 101, "101 characters: give at most 100"),
    ],
)
def test_names_that_would_break_a_table_raise_wrong_use(name: str, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        names.check_name(name)
    with pytest.raises(InvalidOption, match=reason):
        names.format_names({3: name}, vocabulary=TOY)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ("3 ear\n", r"mine.tsv, line 1: '3 ear' is not the number"),
        ("3\tear\nx\ttail", r"line 2: 'x' is not the number of a word"),
        ("192\tear", r"line 1: no word 192: this vocabulary has words 0 to 191"),
        ("-1\tear", r"line 1: '-1' is not the number"),
        ("3\tear\n3\ttail", r"line 2: word 3 already has the name 'ear'"),
        ("3\t77", "looks like the number of a word"),
        ("# bm25v word names, format 2\n", r"line 1: names in format 2.*upgrade"),
        ("# bm25v word names, format 1, vocabulary 00ff\n", r"another vocabulary \(00ff, not"),
    ],
)
def test_the_error_for_an_invalid_table_names_the_line(table: str, reason: str) -> None:
    with pytest.raises(InvalidOption, match=reason):
        parse(table)


def test_tables_written_by_hand_are_read(tmp_path: Path) -> None:
    assert parse("") == {}
    assert parse("# mine\n\n7\tgrass\tseen in June\n9\t\n 11 \t eye \n") == {7: "grass", 11: "eye"}
    (tmp_path / "latin.tsv").write_bytes("7\tfür".encode("latin-1"))
    with pytest.raises(InvalidOption, match="not UTF-8 text"):
        names.read_names(tmp_path / "latin.tsv", n_words=9, vocabulary=TOY)


def test_a_word_may_be_given_by_its_number_or_its_name() -> None:
    word_names = {4: "striped ear", 5: "Grass", 6: "grass"}
    assert names.find_word(" 12 ", word_names, 192) == (12,)
    assert names.find_word("STRIPED EAR", word_names, 192) == (4,)
    assert names.find_word("grass", word_names, 192) == (5, 6), "all words of the name"
    for word, reason in (
        ("192", "no word 192"),
        ("-3", "no word -3"),
        ("tail", "no word is named 'tail'"),
    ):
        with pytest.raises(InvalidOption, match=reason):
            names.find_word(word, word_names, 192)


def label_of(gallery: Gallery, photos: Path, word: int) -> str:
    (label,) = (w.label for w in gallery.search(photos / "4.png")[0].words if w.word == word)
    return label


def test_names_are_shared_by_readers_and_survive_compaction(gallery: Gallery, photos: Path) -> None:
    word = gallery.search(photos / "4.png")[0].words[0].word
    reader = Gallery.open(gallery.path)
    assert reader.word_names == {}
    gallery.name_words({word: "striped ear", 3: "tail"})
    for opened in (gallery, reader, Gallery.open(gallery.path)):
        assert opened.word_names == {word: "striped ear", 3: "tail"}
        assert label_of(opened, photos, word) == "striped ear"
    gallery.remove(photos / "5.png")
    assert gallery.compact() > 0
    assert label_of(reader, photos, word) == "striped ear"
    assert Gallery.open(gallery.path).problems() == []
    gallery.name_words({word: None, 3: None, 7: None})
    assert reader.word_names == {}
    assert label_of(reader, photos, word) == f"word {word}"


def test_one_invalid_name_changes_nothing(gallery: Gallery) -> None:
    gallery.name_words({3: "tail"})
    for changes in ({4: "ear", 5: "a\tb"}, {4: "ear", 192: "x"}, {4: ""}):
        with pytest.raises(InvalidOption):
            gallery.name_words(changes)
    assert gallery.word_names == {3: "tail"}


def save_named_vocabulary(folder: Path) -> Path:
    replace(Vocabulary.load("toy"), word_names={3: "grass", 4: "sky"}).save(folder)
    return folder


def test_names_in_a_gallery_replace_those_of_the_vocabulary(tmp_path: Path) -> None:
    folder = save_named_vocabulary(tmp_path / "named.vocab")
    gallery = Gallery.create(tmp_path / "g", vocabulary=folder)
    gallery.name_words({4: "clouds", 5: "sea"})
    assert gallery.word_names == {3: "grass", 4: "clouds", 5: "sea"}
    gallery.name_words({4: None})
    assert gallery.word_names == {3: "grass", 4: "sky", 5: "sea"}


def test_the_names_of_a_vocabulary_are_a_table(tmp_path: Path) -> None:
    folder = save_named_vocabulary(tmp_path / "named.vocab")
    assert "3\tgrass\n4\tsky\n" in (folder / NAMES).read_text()
    vocabulary = Vocabulary.load(folder)
    assert vocabulary.word_names == {3: "grass", 4: "sky"}
    (folder / NAMES).write_text("9\tface\n")
    assert Vocabulary.load(folder).word_names == {9: "face"}
    assert Vocabulary.load(folder).fingerprint == vocabulary.fingerprint
    for table in ("9 face", "# bm25v word names, format 1, vocabulary 00ff\n"):
        (folder / NAMES).write_text(table)
        with pytest.raises(VocabularyError, match=r"words\.tsv, line 1: .*; correct the file"):
            Vocabulary.load(folder)
    replace(vocabulary, word_names={}).save(folder)
    assert Vocabulary.load(folder).word_names == {}


def test_the_error_for_a_damaged_table_names_the_remedy(gallery: Gallery, photos: Path) -> None:
    (gallery.path / gallery_names.WORDS).write_text("3\tear\nnonsense\n")
    with pytest.raises(
        GalleryError, match=r"names\.tsv, line 2: .*; correct .*names\.tsv, or delete"
    ):
        gallery.search(photos / "4.png")
    (gallery.path / gallery_names.WORDS).unlink()
    assert len(gallery.search(photos / "4.png")) > 0


def test_naming_words_waits_for_a_lock_and_then_raises_gallery_locked(
    gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gallery_names, "LOCK_SECONDS", 0.05)
    with (
        FileLock(gallery.path / gallery_names.LOCK_NAME),
        pytest.raises(GalleryLocked, match=r"another process is naming words of .*: try again"),
    ):
        gallery.name_words({3: "ear"})
    gallery.name_words({3: "ear"})
    shutil.rmtree(gallery.path)
    with pytest.raises(GalleryError):
        gallery.name_words({3: "tail"})
    assert not gallery.path.exists()


def open_names(folder: Path) -> gallery_names.WordNames:
    with Gallery.open(folder) as gallery:
        return gallery.local.names


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork")
def test_concurrent_writers_lose_no_name(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    table = open_names(tmp_path / "g")

    def name_ten_words(first: int) -> None:
        for word in range(first, first + 10):
            table.update({word: f"name {word}"})

    children = [
        start(lambda report, first=first: name_ten_words(first))  # type: ignore[misc]
        for first in range(0, 40, 10)
    ]
    assert [finish(*child) for child in children] == [(0, 0)] * 4
    assert table.own == {word: f"name {word}" for word in range(40)}


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_killed_writer_leaves_all_old_names_or_all_new_ones(tmp_path: Path) -> None:
    fill_gallery(tmp_path / "g")
    table = open_names(tmp_path / "g")
    before = dict.fromkeys(range(100), "an old name")
    table.update(dict(before))

    def rename(step: int, report: Report) -> None:
        die_at_step(step)
        table.update(dict.fromkeys(range(100), "a new name"))

    read_names = set()
    for step in count():
        code, _ = finish(*start(lambda report, step=step: rename(step, report)))  # type: ignore[misc]
        current = open_names(tmp_path / "g").own
        assert set(current) == set(before)
        (name,) = set(current.values())
        read_names.add(name)
        table.update(dict(before))  # the lock is free again
        if code == 0:
            break
    assert step > 2
    assert read_names == {"an old name", "a new name"}


def test_the_commands_that_name_words(indexed: Any) -> None:
    run = indexed
    word = run("words", "list", "--json").json["words"][0]["word"]
    assert run("words", "name", word, "striped ear").out == f"word {word}: striped ear\n"
    assert run("words", "name", word, " Stripy ", "--json").json == {"word": word, "name": "Stripy"}
    assert '"name": "Stripy"' in run("search", "photos/3.png", "--words", 500, "--json").out
    assert run("words", "name", "stripy", "ear").out == f"word {word}: ear\n"
    exported = run("words", "export").out
    assert exported == names.format_names({word: "ear"}, vocabulary=TOY)
    assert run("words", "name", word, "--clear").out == f"word {word} has no name now\n"
    Path("mine.tsv").write_text(exported + "7\tgrass\n")
    assert run("words", "import", "mine.tsv").out.startswith("2 names read, 0 of them")
    Path("mine.tsv").write_text(f"{word}\ttail\n")
    assert run("words", "import", "mine.tsv", "--json").json == {"names": 1, "replaced": 1}
    assert run("words", "export", "-o", "out.tsv").out == "out.tsv: 2 names\n"
    assert parse(Path("out.tsv").read_text()) == {word: "tail", 7: "grass"}


def test_errors_of_the_commands_that_name_words(indexed: Any) -> None:
    run = indexed
    Path("bad.tsv").write_text("7\tgrass\n400\tx\n")
    for command, message in (
        (("name", "7"), "give a NAME, or --clear to remove it"),
        (("name", "7", "x", "--clear"), "give a NAME, or --clear to remove it"),
        (("name", "192", "x"), "no word 192: this vocabulary has words 0 to 191"),
        (("name", "7", "a\tb"), "has a tab, line break"),
        (("import", "bad.tsv"), "bad.tsv, line 2: no word 400"),
        (("suggest", "--prompts", "none.txt"), "none.txt does not exist"),
    ):
        done = run("words", *command)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
    missing = run("words", "import", "none.tsv")
    assert (missing.code, missing.err.count("\n")) == (1, 1)
    assert run("words", "export").out.count("\n") == 2


# Suggested names: tiny random models with tiny tokenizers.

PROMPTS = ["cat", "dog", "grass", "striped ear"]


class TwoTowers(NamedTuple):
    """A model with an image and a text tower, its tokenizer, and the folder they are saved in."""

    family: str
    model: Any
    tokenizer: Any
    folder: Path

    def text_vector(self, prompt: str) -> Any:
        """Return the vector of a text by transformers alone."""
        import torch

        padding = False if self.family == "clip" else "max_length"
        tokens = self.tokenizer([prompt], padding=padding, max_length=64)["input_ids"]
        with torch.inference_mode():
            output = self.model.get_text_features(input_ids=torch.tensor(tokens))
        vector = getattr(output, "pooler_output", output)[0].numpy()
        return vector / np.linalg.norm(vector)


def make_tokenizer(family: str) -> Any:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    if family == "siglip2":  # it has its own class; here each letter is a token
        letters = [*special, "▁", *"abcdefghijklmnopqrstuvwxyz"]
        numbers = {token: number for number, token in enumerate(letters)}
        return transformers.Siglip2Tokenizer(vocab=numbers, merges=[], padding_side="right")
    numbers = {token: i for i, token in enumerate([*special, *" ".join(PROMPTS).split()])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(numbers, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture(params=["siglip", "siglip2", "clip"])
def two_towers(request: pytest.FixtureRequest, tmp_path: Path) -> TwoTowers:
    """A tiny random model with two towers, saved as on the hub."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.test_huggingface import make

    model, folder = make(request.param, tmp_path / "model")
    tokenizer = make_tokenizer(request.param)
    tokenizer.save_pretrained(folder)
    return TwoTowers(request.param, model, tokenizer, folder)


def test_text_vectors_equal_those_of_transformers(two_towers: TwoTowers) -> None:
    vectors = text.load_text_tower(str(two_towers.folder)).embed([*PROMPTS, "Cat"])
    expected = [two_towers.text_vector(prompt) for prompt in PROMPTS]
    np.testing.assert_allclose(vectors[:4], expected, atol=1e-5)
    np.testing.assert_allclose(vectors[4], vectors[0], atol=1e-6)
    assert np.abs(vectors[0] - vectors[1]).max() > 1e-3
    with_block = text.load_text_tower(f"{two_towers.folder}#1").embed(["dog"])
    np.testing.assert_allclose(with_block, vectors[1:2], atol=1e-6)


def make_tiny_gallery(folder: Path, photos: Path) -> Gallery:
    """Index photos with a random vocabulary over a tiny model."""
    from bm25v.backbones.huggingface import HuggingFaceBackbone
    from bm25v.sae.model import SparseAutoEncoder

    rng = np.random.default_rng(0)
    backbone = HuggingFaceBackbone(str(folder), device="cpu")
    w_dec_vd = rng.standard_normal((40, backbone.patch_dim)).astype(np.float32)
    zeros = np.zeros(40, dtype=np.float32)
    sae = SparseAutoEncoder(w_dec_vd.T.copy(), zeros, w_dec_vd, zeros[: backbone.patch_dim], k=4)
    Vocabulary.build("tiny", backbone=backbone, sae=sae).save(photos.parent / "tiny.vocab")
    gallery = Gallery.create(photos.parent / "tiny", vocabulary=photos.parent / "tiny.vocab")
    gallery.add(photos)
    return gallery


def test_suggested_names_are_the_most_similar_prompts(two_towers: TwoTowers, photos: Path) -> None:
    from bm25v.explain import heatmaps, suggest
    from bm25v.explain.portraits import find_strongest

    gallery = make_tiny_gallery(two_towers.folder, photos)
    words = [word.word for word in gallery.words()][:6]
    suggestions = suggest.suggest_names(gallery, words, PROMPTS)
    assert [suggestion.word for suggestion in suggestions] == words
    snapshot, backbone = gallery.local.snapshot(), gallery.vocabulary.backbone
    mean_e = snapshot.dense_ne.astype(np.float64).mean(axis=0)
    prompts_te = np.array([two_towers.text_vector(prompt) for prompt in PROMPTS])
    strongest = find_strongest(gallery, words, suggest.EXAMPLES)
    for suggestion, (_, images) in zip(suggestions, strongest, strict=True):
        vectors = []
        for image in images:
            assert image.grid is not None
            crop = heatmaps.crop_word(gallery.vocabulary.decode(image.path), image.grid)
            dense_e = backbone.forward(backbone.prepare_image(crop)).dense_e
            vectors.append(dense_e / np.linalg.norm(dense_e))
        word_e = np.mean(vectors, axis=0) - mean_e
        cosines_t = prompts_te @ word_e / np.linalg.norm(word_e)
        best, second = np.argsort(-cosines_t)[:2]
        assert (suggestion.name, suggestion.next) == (PROMPTS[best], PROMPTS[second])
        assert suggestion.cosine == pytest.approx(cosines_t[best], abs=1e-4)
        assert suggestion.margin == pytest.approx(cosines_t[best] - cosines_t[second], abs=1e-4)


def test_the_command_that_suggests_names(two_towers: TwoTowers, photos: Path, run: Any) -> None:
    gallery = make_tiny_gallery(two_towers.folder, photos)
    Path("prompts.txt").write_text("# a comment\n" + "\n".join(PROMPTS) + "\n\ncat\n")
    where = ("-g", gallery.path, "--prompts", "prompts.txt")
    suggestions = run("words", "suggest", *where, "--limit", 3, "--json").json["suggestions"]
    most_common = sorted(gallery.words(), key=lambda word: -word.df)[:3]
    assert [s["word"] for s in suggestions] == [word.word for word in most_common]
    assert list(suggestions[0]) == ["word", "name", "cosine", "margin", "next"]
    word = suggestions[0]["word"]
    printed = run("words", "suggest", word, *where, "-o", "out.tsv")
    assert printed.out.endswith("written: out.tsv\n")
    assert suggestions[0]["name"] in printed.out
    shutil.copy("out.tsv", Path(gallery.vocabulary.source) / NAMES)
    assert Gallery.open(gallery.path).word_names == {word: suggestions[0]["name"]}
    os.unlink(photos / "3.png")
    assert run("words", "suggest", word, *where).code == 0


def test_suggesting_names_needs_a_text_tower(indexed: Any, tmp_path: Path) -> None:
    Path("prompts.txt").write_text("cat\ndog\n")
    outcome = indexed("words", "suggest", "--prompts", "prompts.txt")
    assert (outcome.code, outcome.out) == (1, "")
    assert "the backbone toy has no text tower, so it cannot encode texts: use" in outcome.err
    Path("prompts.txt").write_text("cat\n")
    outcome = indexed("words", "suggest", "--prompts", "prompts.txt")
    assert "prompts.txt has 1 prompt: give at least two to choose from" in outcome.err


def test_a_model_without_text_tower_or_tokenizer_raises_backbone_error(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.test_huggingface import make

    _, folder = make("dinov2", tmp_path / "dino")
    with pytest.raises(BackboneError, match=f"{folder} has no text tower"):
        text.load_text_tower(str(folder))
    _, folder = make("siglip", tmp_path / "siglip")
    with pytest.raises(BackboneError, match=f"{folder} has no usable tokenizer"):
        text.load_text_tower(str(folder))
