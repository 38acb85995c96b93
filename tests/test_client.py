"""`bm25v.Client`: over real connections, it returns what `Gallery` returns."""

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bm25v import Client, Gallery, ImageError, ServerError, StoredImage, WrongUse
from bm25v.cli import main
from bm25v.server.run import bind
from tests.conftest import make_image, make_pixels
from tests.http_server import TOKEN, serving
from tests.test_images_from_memory import png


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator[Client]:
    """A client of a writable server with a token."""
    options: dict[str, Any] = {"access": {"token": TOKEN}, "writable": True}
    with serving(gallery, tmp_path / "cache", **options) as server:
        yield Client(str(server.base_url), token=TOKEN)


def same(results: Any, expected: Any) -> None:
    """Expect equal results, but for the time that they took."""
    ours, theirs = results.to_dict(), expected.to_dict()
    assert ours.pop("ms").keys() == theirs.pop("ms").keys()
    assert ours == theirs
    assert [hit.parts for hit in results] == [hit.parts for hit in expected]


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_a_search_returns_what_the_gallery_returns(
    client: Client, gallery: Gallery, photos: Path, mode: Any
) -> None:
    path = photos / "3.png"
    same(client.search(path, k=3, mode=mode), gallery.search(path, k=3, mode=mode))
    stored = StoredImage(str(path))
    same(client.search(stored, mode=mode), gallery.search(stored, mode=mode))


def test_every_form_of_image_and_option_is_sent(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    image = make_pixels(50)
    for form in (image, make_image(50), png(50), io.BytesIO(png(50))):
        assert [hit.path for hit in client.search(form, k=3)] == [
            hit.path for hit in gallery.search(image, k=3)
        ]
    word = gallery.search(image)[0].words[0].word
    cases: list[dict[str, Any]] = [
        {"must": word},
        {"without": [word]},
        {"boost": {word: 2.0}},
        {"negative": make_pixels(5)},
        {"like": str(photos / "5.png"), "unlike": [str(photos / "6.png")]},
        {"region": (0, 0, 0.5, 0.5)},
        {"folder": "1*.png", "date": ("2000", None), "min_size": 10, "max_size": (64, 64)},
        {"include_query": True, "offset": 1, "candidates": 5, "min_coverage": 0.1},
    ]
    for options in cases:
        same(client.search(image, **options), gallery.search(image, **options))
    same(client.search([image, png(4)]), gallery.search([image, png(4)]))
    same(client.search(must=word), gallery.search(must=word))


def test_explanations_images_words_and_facts(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    image = photos / "3.png"
    hit = client.search(image)[0]
    expected = gallery.explain(image.read_bytes(), hit).to_dict()
    answer = client.explain(image, hit)
    for word in answer["words"]:  # for the web page
        assert len(word.pop("example_ids")) == len(word["examples"])
        assert word.pop("points") >= 0
    assert {key: answer[key] for key in expected} == json.loads(json.dumps(expected))
    assert list(client.images()) == list(gallery.images())
    assert list(client.images(folder="1*.png", min_size=(10, 10))) == list(
        gallery.images(folder="1*.png")
    )
    assert client.words(best=2) == gallery.words(best=2)
    assert client.info() == gallery.info()
    assert len(client) == 12
    assert client.file(image) == image.read_bytes()
    assert client.thumbnail(hit, size=64).startswith(b"\xff\xd8")


def test_a_writable_server_is_changed_as_a_gallery(client: Client, gallery: Gallery) -> None:
    assert client.add({"cat": make_pixels(40), "dog": png(41)}) == 2
    assert "cat" in gallery
    assert client.remove(["cat", "dog"]) == 2
    assert len(gallery) == 12
    client.name_words({5: "red corner"})
    assert gallery.word_names[5] == "red corner"


def test_errors_are_those_of_the_library(client: Client, tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="an empty query"):
        client.search()
    with pytest.raises(WrongUse, match="no image with id"):
        client.search(StoredImage("/nowhere.png"))
    with pytest.raises(ImageError, match="supported format"):
        client.search(b"no image")
    with pytest.raises(ImageError, match=r"missing\.png: does not exist"):
        client.search(tmp_path / "missing.png")
    with pytest.raises(ServerError, match="give the token"):
        Client(client.url).info()
    with pytest.raises(WrongUse, match="is not an address"):
        Client("file:///etc/passwd")
    bound = bind("127.0.0.1", 0)
    bound.socket.close()
    with pytest.raises(ServerError, match="does not answer"):
        Client(bound.url).info()


def test_the_command_searches_on_a_server(
    client: Client,
    gallery: Gallery,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, encoding="ascii")
    server = ["--server", client.url, "--token-file", str(token)]
    command = ["bm25v", "search", str(photos / "3.png"), "-k", "3", "--json"]
    answers = []
    for options in (server, ["-g", str(gallery.path)]):
        monkeypatch.setattr(sys, "argv", [*command, *options])
        main()
        answers.append(json.loads(capsys.readouterr().out))
        answers[-1].pop("ms")
    assert answers[0] == answers[1]
    assert len(answers[0]["hits"]) == 3
    monkeypatch.setattr(sys, "argv", [*command, *server, "-o", "hits.html"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "--server" in capsys.readouterr().err
