"""Names that people give to images: which texts have them, and what happens to the images."""

import os
import shutil
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bm25v import Gallery, InvalidOption
from bm25v.client import Client as LibraryClient
from bm25v.client import to_id
from bm25v.errors import GalleryError, ImageNotFound
from bm25v.search.text import take_names
from bm25v.store.filters import Called
from bm25v.store.local import names as gallery_names
from bm25v.store.local.names import IMAGES, ImageNames, check_image_name
from tests import test_cli
from tests.children import Report, die_at_step, finish, needs_fork, start
from tests.conftest import make_image, make_pixels
from tests.http_server import Client, serving
from tests.lexicons import save_vocabulary
from tests.test_server import failed

run, indexed = test_cli.run, test_cli.indexed

BIRTHDAY = "Anna's birthday"


def find(gallery: Any, text: str, **options: Any) -> list[str]:
    return [os.path.basename(hit.path) for hit in gallery.search(text=text, **options)]


@pytest.fixture
def named(gallery: Gallery, photos: Path) -> Gallery:
    """A gallery in which three of twelve images have a name."""
    assert gallery.name_images(BIRTHDAY, [photos / f"{n}.png" for n in (2, 5, 7)]) == 3
    return gallery


@pytest.mark.parametrize("mode", [None, "words", "sparse"])
@pytest.mark.parametrize(
    "text", [BIRTHDAY, "ANNAS BIRTHDAYS", "at Ánna’s-birthday!", "the Anna's, birthday"]
)
def test_a_name_lists_exactly_its_images(named: Gallery, text: str, mode: Any) -> None:
    results = named.search(text=text, mode=mode)
    assert [os.path.basename(hit.path) for hit in results] == ["2.png", "5.png", "7.png"]
    assert results.understood == (f"“{BIRTHDAY}” (a name that people gave)",)
    assert results.not_understood == ()


@pytest.mark.parametrize("text", ["Anna", "birthday", "no Anna's birthday", "-annas birthday"])
def test_parts_of_a_name_and_excluded_names_are_not_the_name(named: Gallery, text: str) -> None:
    assert not any("name" in label for label in named.search(text=text).understood)


def test_a_name_limits_what_the_rest_of_a_text_orders(tmp_path: Path) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab")
    with Gallery.create(tmp_path / "g", vocabulary=vocabulary) as gallery:
        gallery.add({str(seed): make_pixels(seed) for seed in range(9)})
        cats = find(gallery, "cat", k=9)
        party = cats[1::3]
        gallery.name_images("June 2023, the party", party)
        results = gallery.search(text="cat at the June 2023 the party")
        assert [hit.path for hit in results] == party, "in the order of the text"
        assert results.understood == ("“June 2023, the party” (a name that people gave)", "cat")
        gallery.name_images("Rome & Venice", party[:1])
        assert find(gallery, "rome & venice") == party[:1]
        assert find(gallery, "June 2023, the party; Rome & Venice") == party[:1], "both names"
        gallery.remove(party[:1])
        none = gallery.search(text="Rome & Venice")
        assert (len(none), none.no_match) == (0, "no image called “Rome & Venice”")


def test_a_moved_image_keeps_its_name_and_a_removed_one_drops_out(
    named: Gallery, photos: Path
) -> None:
    (photos / "2.png").rename(photos / "moved.png")
    (photos / "5.png").unlink()
    shutil.copy(photos / "7.png", photos / "copy.png")
    make_image(90).save(photos / "7.png")
    named.add(photos, remove_missing=True)
    assert sorted(find(named, BIRTHDAY)) == ["copy.png", "moved.png"], "7.png is another image now"
    assert named.image_names == {BIRTHDAY: 2}
    make_image(5).save(photos / "5.png")
    named.add(photos)
    assert named.image_names == {BIRTHDAY: 3}, "it is there again"
    named.compact()
    assert sorted(find(named, BIRTHDAY)) == ["5.png", "copy.png", "moved.png"]


def test_images_are_added_to_a_name_replaced_and_the_name_is_removed(
    named: Gallery, photos: Path
) -> None:
    assert named.name_images("ANNAS birthday", photos / "1.png", add=True) == 4
    assert named.image_names == {BIRTHDAY: 4}, "the first way of writing stays"
    assert named.name_images("Annas Birthday", photos / "1.png") == 1
    assert named.image_names == {"Annas Birthday": 1}
    with pytest.raises(ImageNotFound, match="index it first"):
        named.name_images(BIRTHDAY, [photos / "1.png", photos / "none.png"])
    with Gallery.open(named.path) as other:
        assert find(other, BIRTHDAY) == ["1.png"]
        assert other.name_images(BIRTHDAY, []) == 0
    assert named.image_names == {}
    assert "Anna's" in named.search(text=BIRTHDAY).not_understood


@pytest.mark.parametrize(
    ("name", "reason"),
    [("", "empty name"), ("2023", "add a letter"), ("the photos", "add one"), ("…", "add one")],
)
def test_names_that_no_text_could_have_are_refused(
    gallery: Gallery, name: str, reason: str
) -> None:
    with pytest.raises(InvalidOption, match=reason):
        gallery.name_images(name, [])


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "not a table of names"),
        (b"# bm25v image names, format 2\n", "format 1"),
        (b"# bm25v image names, format 1\ncontent\tname\n/a.jpg\tRome\n", "line 3: it does not"),
        (b"# bm25v image names, format 1\ncontent\tname\n" + b"0" * 32 + b"\t\n", "line 3: an"),
    ],
)
def test_a_damaged_table_is_reported(named: Gallery, content: bytes, problem: str) -> None:
    assert named.problems() == []
    (named.path / IMAGES).write_bytes(content)
    (reported,) = named.problems()
    assert problem in reported
    with pytest.raises(GalleryError, match="delete it to remove all names"):
        named.search(text="Rome")


@needs_fork
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_killed_writer_leaves_the_old_images_or_the_new_ones(named: Gallery) -> None:
    old, new = named.store.image_names["annas birthday"].contents, (bytes(16),)
    names = ImageNames(named.path)

    def rename(step: int, report: Report) -> None:
        die_at_step(step)
        names.update(BIRTHDAY, new, add=False)

    read = set()
    for step in count():
        code, _ = finish(*start(lambda report, step=step: rename(step, report)))  # type: ignore[misc]
        read.add(ImageNames(named.path).by_key["annas birthday"].contents)
        names.update(BIRTHDAY, old, add=False)  # the lock is free again
        if code == 0:
            break
    assert step > 2
    assert read == {old, new}


_WORDS = st.lists(st.text("abcdefgé", min_size=3, max_size=5), min_size=1, max_size=4)
_OTHERS = st.lists(st.text("uvwxyz", min_size=2, max_size=5), max_size=3)


@given(
    st.lists(_WORDS, min_size=1, max_size=4),
    st.sampled_from([" ", "-", ", ", " & "]),
    st.sampled_from([" ", "-", ", ", " / "]),
    _OTHERS,
    _OTHERS,
    st.booleans(),
)
def test_every_way_of_writing_a_name_is_the_name(
    all_words: list[list[str]],
    separator: str,
    other_separator: str,
    before: list[str],
    after: list[str],
    is_plural: bool,
) -> None:
    names = {}
    for words in all_words:
        key, name = check_image_name(separator.join(words))
        names[key] = Called(name, (name.encode(),))
    key, called = next(iter(names.items()))
    written = other_separator.join(key.split()).upper().replace("E", "É") + "s" * is_plural
    text = " ".join([*before, written, *after])
    assert take_names(text, names) == (" ".join([*before, *after]), (called,))
    for without in (" ".join([*before, *after]), f"no {written}", f"-{written}"):
        assert take_names(without, {key: called}) == (without, ())


def test_the_command_that_names_images(indexed: Any) -> None:
    run = indexed
    assert run("name").out == "no images have a name\n"
    named = run("name", BIRTHDAY, "photos/3.png", "photos/4.png")
    assert named.out == f"{BIRTHDAY}: 2 images\n"
    assert run("name", BIRTHDAY, "photos/5.png", "--json").json == {"names": {BIRTHDAY: 3}}
    assert run("name", "--json").json == {"names": {BIRTHDAY: 3}}
    hits = run("search", "--text", "annas birthday", "--json").json["hits"]
    assert [Path(hit["path"]).name for hit in hits] == ["3.png", "4.png", "5.png"]
    assert run("info", "--json").json["image_names"] == 1
    assert "names of images  1\n" in run("info").out
    for words in (("name", BIRTHDAY), ("name", BIRTHDAY, "photos/3.png", "--clear")):
        test_cli.failed(run(*words), 2, "--clear")
    test_cli.failed(run("name", "Rome", "--clear"), 2, "no images are named 'Rome'")
    test_cli.failed(run("name", "Rome", "photos/none.png"), 1, "index it first")
    assert run("name", "ANNAS birthday", "--clear").out == "ANNAS birthday: 0 images\n"
    assert run("name").out == "no images have a name\n"


def test_requests_name_images(client: Client, gallery: Gallery) -> None:
    ids = client.ids()
    body = {"name": f" {BIRTHDAY} ", "ids": [ids[1], ids[4], ids[4]]}
    answer = client.put("/v1/names", json=body)
    assert answer.json() == {"name": BIRTHDAY, "n_images": 2}
    results = client.post("/v1/search", json={"text": "anna's birthday"}).json()
    assert [hit["id"] for hit in results["hits"]] == [ids[1], ids[4]]
    assert results["understood"] == [f"“{BIRTHDAY}” (a name that people gave)"]
    more = {"name": BIRTHDAY, "ids": [ids[0]], "add": True}
    assert client.put("/v1/names", json=more).json()["n_images"] == 3
    assert client.get("/v1/names").json() == {"names": [{"name": BIRTHDAY, "n_images": 3}]}
    assert client.get("/v1/terms?prefix=anna").json() == {"terms": [BIRTHDAY]}
    assert client.get("/v1/stats").json()["image_names"] == 1
    unknown = to_id("none")
    failed(client.put("/v1/names", json={"name": "a", "ids": [unknown]}), 404, "unknown-image")
    failed(client.put("/v1/names", json={"name": "the", "ids": []}), 400, "invalid-option")
    failed(client.put("/v1/names", json={"name": "a", "ids": ids * 90}), 422, "wrong-value")
    assert client.put("/v1/names", json={"name": BIRTHDAY, "ids": []}).json()["n_images"] == 0
    assert gallery.image_names == {}


def test_a_server_that_only_reads_names_nothing(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache") as client:
        refused = client.put("/v1/names", json={"name": BIRTHDAY, "ids": []})
        failed(refused, 405, "read-only", "--writable")
        assert client.get("/v1/names").json() == {"names": []}


def test_the_client_names_images_as_a_gallery_does(client: Client, named: Gallery) -> None:
    with LibraryClient(str(client.base_url)) as library:
        assert library.image_names == named.image_names == {BIRTHDAY: 3}
        hit = library.search(text=BIRTHDAY)[0]
        assert library.name_images("Rome", [hit.path]) == 1
        assert named.image_names == {BIRTHDAY: 3, "Rome": 1}
        assert library.name_images("Rome", []) == 0


def test_no_name_makes_the_table_too_large_to_be_read(
    named: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find(named, BIRTHDAY)
    size = (named.path / IMAGES).stat().st_size
    monkeypatch.setattr(gallery_names, "_MAX_BYTES", size + 40)
    with pytest.raises(InvalidOption, match=r"would have .* bytes, at most .* are read"):
        named.name_images("holiday", [next(named.images()).path])
    assert find(named, BIRTHDAY) == before != []
    assert list(named.image_names) == [BIRTHDAY]
