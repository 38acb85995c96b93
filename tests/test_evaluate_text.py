"""`bm25v evaluate text`: names of class folders, captions of photos and their words."""

import shutil
from pathlib import Path

import pytest

from bm25v.errors import EvaluationError
from bm25v.gallery import Gallery
from bm25v.research import tasks
from bm25v.research.tasks import list_caption_words, measure_captions, read_captions
from tests import test_cli
from tests.conftest import make_image
from tests.lexicons import save_vocabulary
from tests.test_cli import Run

run = test_cli.run
TEXTS = ("a dog on grass", "two cats", "a flurb", "the bike and a chair", "hot dogs", "knife, cat")


@pytest.fixture
def vocabulary(tmp_path: Path) -> Path:
    return save_vocabulary(tmp_path / "mine.vocab")


@pytest.fixture
def captions(photos: Path, tmp_path: Path) -> Path:
    """Two captions for each of the twelve photos, and one for a photo that does not exist."""
    lines = [f"{n}.png#{i}\t{TEXTS[(n + i) % 6]}" for n in range(12) for i in (0, 1)]
    path = tmp_path / "captions.txt"
    path.write_text("\n".join([*lines, "lost.png#0\ta dog", ""]))
    return path


def test_names_of_class_folders_are_searched_and_paths_do_not_help(
    vocabulary: Path, photos: Path, tmp_path: Path, run: Run
) -> None:
    names = ("cat", "hot_dog", "flurb", "holiday")  # a text finds the last two in paths
    for number in range(12):
        folder = tmp_path / "set" / names[number % 4]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / f"{number}.png", folder)
    command = ("evaluate", "text", "--data", "set", "--vocabulary", vocabulary)
    values = run(*command, "--json").json
    counts = (values["n_images"], values["known"]["classes"], values["unknown"]["classes"])
    assert counts == (12, 3, 1)
    entries = {entry["name"]: entry for entry in values["classes"]}
    assert entries["flurb"]["average_precision"] == 0 and not entries["flurb"]["understood"]
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add(photos)
        for number, name in enumerate(names):
            if name == "flurb":
                continue
            assert entries[name]["understood"] == [name.replace("_", " ")]
            hits = gallery.search(text=name.replace("_", " "), k=12)
            is_right = [int(Path(hit.path).stem) % 4 == number for hit in hits]
            ranks = [rank for rank, right in enumerate(is_right, start=1) if right]
            expected = sum(n / rank for n, rank in enumerate(ranks, start=1)) / 3
            assert entries[name]["average_precision"] == pytest.approx(expected)
            assert entries[name]["precision"]["P@10"] == pytest.approx(sum(is_right[:3]) / 3)
    assert "names understood: 3 classes, P@10 " in run(*command).out
    assert "has no class folders" in run("evaluate", "text", "--data", photos).err
    test_cli.failed(run(*command, "--strength"), 2, "give --captions")


def test_captions_find_their_photos_as_a_search_does(
    vocabulary: Path, photos: Path, captions: Path, tmp_path: Path, run: Run
) -> None:
    options = ("--data", photos, "--captions", captions, "--vocabulary", vocabulary)
    command = ("evaluate", "text", *options)
    values = run(*command, "--json").json
    ranks = []
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add(photos)
        for name, texts in read_captions(captions).items():
            for text in texts if name != "lost.png" else ():
                hits = [Path(hit.path).name for hit in gallery.search(text=text, k=12)]
                ranks.append(hits.index(name) + 1 if hits else 99)
    assert ranks.count(99) == 4, "nothing is known about a flurb"
    expected = {f"R@{k}": sum(rank <= k for rank in ranks) / 24 for k in (1, 5, 10)}
    counts = {"photos": 12, "n": 24, "not_understood": 4}
    assert values["sentences"] == pytest.approx(counts | expected)
    assert values["n_missing"] == 1
    strengths = values["strength"].values()
    assert sum(entry["n"] for entry in strengths) == 24
    n_right = sum(entry["n"] * entry["R@1"] for entry in strengths)
    assert n_right == pytest.approx(ranks.count(1))
    shown = run(*command, "--strength")
    assert f"sentences         12  24               4  {expected['R@1']:.3f}" in shown.out
    assert "best hit" in shown.out and "best hit" not in run(*command).out
    assert shown.err == "note: no file: 1 photo of those with captions\n"


def test_a_photo_comes_behind_others_with_its_score(
    vocabulary: Path, photos: Path, tmp_path: Path
) -> None:
    shutil.copy(photos / "3.png", photos / "same.png")
    (tmp_path / "captions.txt").write_text("3.png\ta dog\nsame.png\ta cat\n")
    result = measure_captions(photos, tmp_path / "captions.txt", vocabulary=str(vocabulary))
    assert [sentence.rank for sentence in result.sentences] == [2, 2]


def test_sentences_are_searched_among_the_first_photos_and_words_among_all(
    vocabulary: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "SENTENCE_PHOTOS", 4)
    for seed in range(12, 20):
        make_image(seed).save(photos / f"{seed}.png")
    lines = [f"{n}.png#{i}\t{'dogs' if n < 13 else 'cat'}" for n in range(20) for i in range(3)]
    (tmp_path / "captions.txt").write_text("\n".join(lines))
    (tmp_path / "list.txt").write_text("\n".join(f"{n}.png" for n in range(19, -1, -1)))
    result = measure_captions(
        photos,
        tmp_path / "captions.txt",
        photos=tmp_path / "list.txt",
        vocabulary=str(vocabulary),
    )
    assert (result.n_searched, len(result.sentences), result.n_images) == (4, 12, 20)
    assert all(sentence.rank in (1, 2, 3, 4) for sentence in result.sentences)
    assert [(word.name, word.n_images, word.is_known) for word in result.words] == [
        ("dogs", 13, True)
    ]
    assert 0.43 < result.words[0].average_precision <= 1, "all 13 photos are among the hits"
    assert result.to_dict()["words"]["mAP"] == result.words[0].average_precision


def test_words_of_captions_are_frequent_and_singular() -> None:
    captions = {
        str(n): ["Two dogs and 3 birds on the grass", "a dog!", "the DOG", "the bird's t-shirt"]
        for n in range(12)
    }
    captions |= {str(n): ["a cat", "a cat"] for n in range(12, 23)}
    words = list_caption_words(captions)
    assert list(words) == ["dog", "birds"], "birds: no caption has bird"
    assert words["dog"] == {str(n) for n in range(12)}


def test_captions_are_limited_to_a_list_in_its_order(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("a.jpg#0\tone\nb#1.jpg\ttwo\n\na.jpg#12\tthree\tfour\nc\tx\n")
    (tmp_path / "l.txt").write_text("b#1.jpg\na.jpg\nnone.jpg\n")
    assert read_captions(tmp_path / "c.txt", tmp_path / "l.txt") == {
        "b#1.jpg": ["two"],
        "a.jpg": ["one", "three\tfour"],
    }
    assert list(read_captions(tmp_path / "c.txt")) == ["a.jpg", "b#1.jpg", "c"]


def test_captions_that_cannot_be_used_end_in_one_line(
    photos: Path, captions: Path, tmp_path: Path, run: Run
) -> None:
    contents = {"binary": b"\xff\xd8", "csv": b"a.png,a dog\n", "other": b"a.png\ta dog\n"}
    problems = {
        "binary": "cannot be read: it is no text",
        "csv": "write a photo, a tab and its caption",
        "other": "has none of the photos",
        "missing": "cannot be read: No such file",
    }
    for name, problem in problems.items():
        if name in contents:
            (tmp_path / name).write_bytes(contents[name])
        test_cli.failed(run("evaluate", "text", "--data", photos, "--captions", name), 1, problem)
    with pytest.raises(EvaluationError, match="has none of the photos"):
        measure_captions(photos, captions, photos=tmp_path / "csv")
