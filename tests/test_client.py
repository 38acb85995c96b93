"""`bm25v.Client`: over real connections, it returns what `Gallery` returns."""

import io
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v import (
    Client,
    Gallery,
    ImageError,
    ImageNotFound,
    InvalidOption,
    InvalidQuery,
    Query,
    ServerError,
    StoredImage,
)
from bm25v.cli import main
from bm25v.server.run import bind, make_url
from tests.conftest import make_image, make_pixels
from tests.http_server import TOKEN, serving
from tests.lexicons import save_vocabulary
from tests.test_images_from_memory import png


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator[Client]:
    """A client of a writable server with a token."""
    options: dict[str, Any] = {"access": {"token": TOKEN}, "writable": True}
    with (
        serving(gallery, tmp_path / "cache", **options) as server,
        Client(str(server.base_url), token=TOKEN) as client,
    ):
        yield client


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


def test_a_text_returns_what_the_gallery_returns(photos: Path, tmp_path: Path) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab")
    with Gallery.create(tmp_path / "texts", vocabulary=vocabulary) as gallery:
        gallery.add(photos)
        with (
            serving(gallery, tmp_path / "cache") as server,
            Client(str(server.base_url)) as client,
        ):
            for text in ("a cat and a dog qwerty", "cat", "qwerty"):
                same(client.search(text=text), gallery.search(text=text))
            hit = gallery.search(text="cat dog")[0]
            assert client.match(None, hit, text="cat dog").text == hit.text
            explained = client.explain(None, hit, text="cat dog")
            assert explained["terms"] == hit.explain().to_dict()["terms"]


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


def test_a_query_and_many_queries_are_searched_as_in_a_gallery(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    word = gallery.search(photos / "3.png")[0].words[0].word
    queries = [
        Query.of(photos / "3.png", k=3, mode="words"),
        Query.of([make_pixels(50), png(4)], like=photos / "5.png", boost={word: 2.0}, offset=1),
        Query.of(StoredImage(str(photos / "4.png")), must=word, date=("2000", None)),
    ]
    for query in queries:
        assert len(client.search(query)) > 0
        same(client.search(query), gallery.search(query))
    hit = client.search(queries[0])[0]
    same(client.search(hit), gallery.search(StoredImage(hit.path)))
    for ours, theirs in zip(
        client.search_many([*queries, png(5)], k=2),
        gallery.search_many([*queries, png(5)], k=2),
        strict=True,
    ):
        same(ours, theirs)
    with pytest.raises(InvalidQuery, match="beside a Query"):
        client.search(queries[0], k=2)


def test_what_cannot_be_sent_is_refused(client: Client, gallery: Gallery, photos: Path) -> None:
    mask = np.zeros((2, 2), bool)
    mask[0, 0] = True
    gallery.search(photos / "3.png", region=mask)
    with pytest.raises(InvalidQuery, match="a mask as region cannot be sent"):
        client.search(photos / "3.png", region=mask)
    with pytest.raises(InvalidQuery, match="an encoding cannot be sent"):
        client.search(gallery.vocabulary.encode(photos / "3.png"))
    with pytest.raises(InvalidQuery, match=r"client\.explain\(query, hit\)"):
        client.search(photos / "3.png")[0].explain()


def test_matches_and_words_are_those_of_the_gallery(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    query = StoredImage(str(photos / "3.png"))
    hit = gallery.search(query, k=1)[0]
    assert client.match(query, hit) == gallery.match(query, hit)
    word = hit.words[0].word
    assert client.word(word) == gallery.word(word)
    assert client.words(best=1, sort="df", offset=2, limit=3) == gallery.words(
        best=1, sort="df", offset=2, limit=3
    )
    assert photos / "3.png" in client
    assert photos / "none.png" not in client
    assert list(client) == list(gallery)


def test_explanations_images_words_and_facts(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    image = photos / "3.png"
    hit = client.search(image)[0]
    expected = gallery.explain(image.read_bytes(), hit).fine.to_dict()
    answer = client.explain(image, hit)
    for word in answer["words"]:  # for the web page
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
    images: dict[str, Any] = {"cat": make_pixels(40), "dog": png(41), "text": b"no image"}
    report = client.add(images)
    assert (report.added, report.updated, report.n_indexed) == (2, 0, 2)
    assert [failure.path for failure in report.failed] == ["text"]
    assert client.add([("cat", png(42))]).updated == 1
    assert "cat" in gallery
    assert client.remove(["cat", "dog", "text"]) == 2
    assert len(gallery) == 12
    client.name_words({5: "red corner"})
    assert gallery.word_names[5] == "red corner"


def test_errors_are_those_of_the_library(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="an empty query"):
        client.search()
    with pytest.raises(ImageNotFound, match="no image with id"):
        client.search(StoredImage("/nowhere.png"))
    with pytest.raises(ImageError, match="supported format"):
        client.search(b"no image")
    with pytest.raises(ImageError, match=r"missing\.png: does not exist"):
        client.search(tmp_path / "missing.png")
    with pytest.raises(ServerError, match="give the token"), Client(client.url) as stranger:
        stranger.info()
    for url in ("file:///etc/passwd", "127.0.0.1:8025", "http://", "http://["):
        with pytest.raises(InvalidOption, match="is not an address"):
            Client(url)
    with bind("127.0.0.1", 0) as listener:
        url = make_url(listener)
    with pytest.raises(ServerError, match="does not answer"), Client(url) as nobody:
        nobody.info()


@contextmanager
def listening(
    redirect_to: str = "", status: int = 302
) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server that redirects every request; yield its address and the headers that it gets."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            received.append(dict(self.headers))
            self.send_response(status)
            self.send_header("Location", redirect_to)
            self.end_headers()

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_gets_neither_the_token_nor_the_image(status: int) -> None:
    refused = pytest.raises(ServerError, match=f"answers {status}")
    with listening() as (other, received), listening(f"{other}/v1/search", status) as (url, first):
        with Client(url, token=TOKEN) as client:
            with refused:
                client.info()
            with refused:
                client.search(png(3))
        assert [headers["Authorization"] for headers in first] == [f"Bearer {TOKEN}"] * 2
        assert received == []


def test_requests_to_this_machine_take_no_proxy(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as (proxy, received):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy)
        for url in (client.url, client.url.replace("127.0.0.1", "localhost")):
            with Client(url, token=TOKEN) as other:
                assert len(other) == 12
                assert len(other.search(png(3), k=2)) == 2
        assert received == []


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
    for options in (["-o", "hits.html"], ["-g", str(gallery.path)]):
        monkeypatch.setattr(sys, "argv", [*command, *server, *options])
        with pytest.raises(SystemExit) as stop:
            main()
        assert stop.value.code == 2
        assert "--server" in capsys.readouterr().err
