"""The HTTP API on a collection in Qdrant: the same JSON as on the gallery that it was loaded from.

The collection is in four shards of qdrant-edge, which answer over gRPC.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from bm25v import Gallery, InvalidOption
from bm25v.client import to_id
from bm25v.server import changes
from bm25v.store.qdrant import calls as calls_module
from bm25v.store.qdrant import open_calls, parse_address
from bm25v.store.qdrant.state import SUFFIX, read_state, write_state
from bm25v.store.qdrant.store import QdrantStore
from bm25v.store.qdrant.writer import QdrantWriter, load_gallery, reconcile
from tests import test_cli
from tests.browser import CHROMIUM, browser
from tests.conftest import make_image, make_pixels
from tests.edge_client import EdgeClient
from tests.edge_server import serve_edge
from tests.http_server import Client, serving, wait_until
from tests.test_engines import assert_close, make_edge
from tests.test_images_from_memory import png
from tests.test_server import failed
from tests.test_server_changes import add
from tests.test_server_page import FILLED, LOADED, check_health, open_page, text_of

run = test_cli.run


class Served(NamedTuple):
    """A collection, and the gallery that it was loaded from, each with its server."""

    here: Client  # of the gallery
    there: Client  # of the collection
    gallery: Gallery
    engine: Gallery
    photos: Path
    shards: EdgeClient
    qdrant: ExitStack  # the server of Qdrant ends when it is closed


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Both servers; the tests change nothing."""
    yield from serve_both(tmp_path_factory.mktemp("served"))


@pytest.fixture
def changeable(tmp_path: Path) -> Iterator[Served]:
    """The same, for one test that changes the collection."""
    yield from serve_both(tmp_path, writable=True)


def serve_both(folder: Path, **options: Any) -> Iterator[Served]:
    gallery = make_gallery(folder)
    with gallery, closing(make_edge()) as shards, ExitStack() as qdrant:
        address = f"qdrant://127.0.0.1:{qdrant.enter_context(serve_edge(shards))}/images"
        with closing(open_calls(parse_address(address))) as calls:
            load_gallery(calls, gallery.local)
        with (
            Gallery.open(address) as engine,
            serving(gallery, folder / "here", **options) as here,
            serving(engine, folder / "there", **options) as there,
        ):
            yield Served(here, there, gallery, engine, folder / "photos", shards, qdrant)


def make_gallery(folder: Path) -> Gallery:
    """Return a gallery of files in folders, two of them copies, and of an image from memory."""
    for n in range(18):
        path = folder / "photos" / ("cats", "dogs", "dogs/small")[n % 3] / f"{n:02}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(n % 17, side=64 + n).save(path)
    gallery = Gallery.create(folder / "gallery.bm25v", vocabulary="toy")
    gallery.add(folder / "photos")
    gallery.add({"shop/cat-7": make_pixels(90)})
    gallery.name_words({5: "red corner"})
    return gallery


def check_same(served: Served, path: str, *without: str, **options: Any) -> Any:
    """Send a request to both servers, expect the same JSON, and return it."""
    method = "POST" if "json" in options or "files" in options else "GET"
    answers = []
    for client in (served.here, served.there):
        response = client.request(method, path, **options)
        assert response.status_code == 200, response.text
        answer = response.json()
        answers.append({key: value for key, value in answer.items() if key not in without})
    here, there = answers
    assert_close(there, here)
    return there


def test_images_are_listed_in_another_order(served: Served) -> None:
    def list_images(client: Client, **options: Any) -> list[dict[str, Any]]:
        images: list[dict[str, Any]] = []
        while True:
            parameters = {**options, "limit": 4, "offset": len(images)}
            page = client.get("/v1/images", params=parameters).json()
            assert (page["offset"], page["limit"]) == (len(images), 4)
            images += page["images"]
            if len(images) == page["total"]:
                return sorted(images, key=lambda image: str(image["path"]))

    for options, n in (
        ({}, 19),
        ({"folder": str(served.photos / "dogs")}, 12),
        ({"folder": str(served.photos / "dogs" / "01.png")}, 1),
        ({"folder": "shop"}, 1),
        ({"folder": "*3.png"}, 2),
        ({"min_size": "70", "max_size": "75x80"}, 6),
    ):
        images = list_images(served.there, **options)
        assert images == list_images(served.here, **options)
        assert len(images) == n
        facts = served.there.get(f"/v1/images/{images[0]['id']}").json()
        is_file = images[0]["path"].startswith("/")
        assert facts.pop("file") == ("current" if is_file else "none")
        assert facts.pop("remove_command").startswith("bm25v remove ")
        assert facts == images[0]
    failed(served.there.get(f"/v1/images/{to_id('/nowhere')}"), 404, "unknown-image")


def test_searches_have_the_same_hits(served: Served) -> None:
    first, second = (to_id(str(served.photos / name)) for name in ("cats/03.png", "dogs/04.png"))
    bodies: list[dict[str, Any]] = [
        {"images": [first], "k": 5, "words": 3},
        {"images": [first], "offset": 4, "k": 3, "mode": "words"},
        {"images": [first, second], "negative": [to_id("shop/cat-7")], "mode": "sparse"},
        {"images": [first], "region": [0, 0, 0.5, 1]},
        {"must": [5], "folder": [str(served.photos / "dogs")]},
        {"must": ["red corner"], "boost": {"12": 2.0}},
        {"images": [first], "like": [second], "mode": "dense"},
    ]
    for body in bodies:
        assert check_same(served, "/v1/search", "ms", json=body)["hits"]
    check_same(served, "/v1/search", "ms", files={"image": png(40)})
    for mode in ("hybrid", "dense"):
        url = f"/v1/images/{to_id('shop/cat-7')}/similar"
        assert len(check_same(served, url, "ms", params={"mode": mode, "k": 4})["hits"]) == 4


def test_an_explanation_is_the_same(served: Served) -> None:
    query, hit = (to_id(str(served.photos / name)) for name in ("cats/03.png", "dogs/07.png"))
    explained = check_same(served, "/v1/explain", params={"query": query, "hit": hit})
    assert len(explained["groups"]) > 1
    check_same(served, "/v1/explain", json={"must": [5], "hit": hit})
    word = explained["words"][0]["word"]
    check_same(served, f"/v1/heatmap?image={hit}&word={word}&format=json")


def test_words_folders_and_facts_are_the_same(served: Served) -> None:
    for sort in ("word", "df", "idf"):
        for parameters in ({"limit": 1000, "best": 2}, {"offset": 7, "limit": 5}):
            page = check_same(served, "/v1/words", params={"sort": sort, **parameters})
            assert page["words"]
    for word in (5, 12):
        described = check_same(served, f"/v1/words/{word}", "name_command")
        assert {folder["name"] for folder in described["folders"]} <= {
            *("cats", "dogs", "small", "shop")
        }
        assert described["companions"]
    folders = check_same(served, "/v1/folders")
    assert folders["root"] == str(served.photos)
    assert [folder["n_images"] for folder in folders["folders"]] == [6, 12, 6]
    assert check_same(served, "/v1/terms?prefix=red") == {"terms": ["red corner"]}
    sizes = [f"{kind}_bytes_per_image" for kind in ("bag", "full_bag", "dense", "catalog")]
    check_same(served, "/v1/stats", "path", *sizes)
    stats = served.there.get("/v1/stats").json()
    assert stats["path"] == served.engine.location
    assert [stats[size] for size in sizes] == [None] * 4
    assert "bm25v_images 19.0\n" in served.there.get("/metrics").text
    assert served.there.get("/readyz").json() == {"status": "ready", "preparing": False}
    failed(served.there.get("/v1/words/192"), 404, "unknown-word", "0 to 191")
    command = served.there.get("/v1/words/5").json()["name_command"]
    assert command == f"bm25v words name 5 'NEW NAME' -g {stats['path']}"


def test_files_thumbnails_and_crops_are_the_same(served: Served) -> None:
    image = to_id(str(served.photos / "cats/03.png"))
    word = served.there.get(f"/v1/images/{image}/similar").json()["hits"][0]["words"][0]["word"]
    for url in (
        f"/v1/images/{image}/file",
        f"/v1/images/{image}/thumbnail?size=64",
    ):
        here, there = (client.get(url) for client in (served.here, served.there))
        assert there.status_code == 200, there.text
        assert there.content == here.content
    crops = {"crops": [{"word": word, "image": image}, {"word": word}, {"word": 191}]}
    here, there = (c.post("/v1/crops", json=crops) for c in (served.here, served.there))
    assert there.status_code == 200, there.text
    assert there.content == here.content
    memory = to_id("shop/cat-7")
    failed(served.there.get(f"/v1/images/{memory}/thumbnail"), 404, "no-file", "from memory")


def test_a_file_is_sent_only_if_it_is_the_indexed_one(changeable: Served) -> None:
    path = changeable.photos / "cats" / "03.png"
    url = f"/v1/images/{to_id(str(path))}/file"
    assert changeable.there.get(url).content == path.read_bytes()
    make_image(77).save(path)
    failed(changeable.there.get(url), 404, "changed-file")
    path.unlink()
    failed(changeable.there.get(url), 404, "no-file", "does not exist")
    here, missing = to_id(str(changeable.photos / "dogs/04.png")), to_id(str(path))
    assert changeable.there.get(f"/v1/images/{missing}/similar").json()["hits"]
    explained = changeable.there.get(f"/v1/explain?query={here}&hit={missing}").json()
    assert any("does not exist" in note for note in explained["notes"])
    failed(changeable.there.get(f"/v1/explain?query={missing}&hit={here}"), 404, "no-file")


def test_images_are_added_replaced_and_removed(changeable: Served) -> None:
    there, cat = changeable.there, to_id("shop/cat-8")
    added = add(there, "shop/cat-8", png(40))
    assert added.status_code == 201, added.text
    assert added.json() == {"id": cat, "path": "shop/cat-8", "added": 1, "updated": 0}
    again = add(there, "shop/cat-8", png(40)).json()
    assert (again["added"], again["updated"]) == (0, 0)
    hits = there.upload(png(40), query='{"include_query": true, "k": 1}').json()["hits"]
    assert [hit["id"] for hit in hits] == [cat]
    add(changeable.here, "shop/cat-8", png(40))
    check_same(changeable, f"/v1/images/{cat}/similar", "ms")
    assert add(there, "shop/cat-8", png(41)).json()["updated"] == 1
    assert len(changeable.engine) == 20
    assert there.get("/v1/images?folder=shop").json()["total"] == 2
    assert there.delete(f"/v1/images/{cat}").json() == {"removed": 1}
    failed(there.delete(f"/v1/images/{cat}"), 404, "unknown-image")
    failed(there.delete(f"/v1/images/{to_id('shop')}"), 404, "unknown-image")
    failed(add(there, "cat", b"no image"), 422, "unreadable-image", "supported format")
    failed(add(there, "/etc/cat.png", png(1)), 400, "invalid-option", "absolute path")
    assert len(changeable.engine) == 19


def test_words_are_named_in_the_collection(changeable: Served) -> None:
    there = changeable.there
    for word, name in ((5, "blue corner"), (6, "stripe")):
        answer = there.put(f"/v1/words/{word}/name", json={"name": f" {name} "})
        assert answer.json() == {"word": word, "name": name}
        assert there.get(f"/v1/words/{word}").json()["name"] == name
    assert there.post("/v1/search", json={"must": ["stripe"]}).json()["hits"]
    assert there.put("/v1/words/5/name", json={"name": None}).json()["name"] is None
    failed(there.put("/v1/words/6/name", json={"name": "12"}), 400, "invalid-option", "number")
    failed(there.put("/v1/words/192/name", json={"name": "ear"}), 404, "unknown-word")
    with closing(open_calls(parse_address(changeable.engine.location))) as calls:
        load_gallery(calls, changeable.gallery.local)
    names = there.get("/v1/words?limit=1000").json()["words"]
    assert {w["word"]: w["name"] for w in names if w["name"]} == {5: "red corner", 6: "stripe"}


def test_a_request_waits_for_another_writer_and_not_for_ever(
    changeable: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOCK_SECONDS", 0.1)
    with closing(open_calls(parse_address(changeable.engine.location))) as calls:
        with QdrantWriter(calls):
            locked = add(changeable.there, "dog", png(9))
            failed(locked, 409, "gallery-locked", "is written to by process")
            image = to_id(str(changeable.photos / "cats/03.png"))
            notes = changeable.there.get(f"/v1/images/{image}/similar").json()["notes"]
            assert "reconcile" in notes[0]
        monkeypatch.setattr(changes, "LOCK_SECONDS", 30)
        with ThreadPoolExecutor(1) as pool, QdrantWriter(calls):
            waiting = pool.submit(add, changeable.there, "dog", png(9))
            changeable.there.get("/v1/stats")
            assert not waiting.done()
        assert waiting.result().status_code == 201
        report = reconcile(calls)
        assert report.n_before == report.n_images == 20


ROUTES = ("/v1/images", "/v1/folders", "/v1/words", "/v1/words/5", "/v1/stats")


def test_an_engine_that_does_not_answer_is_a_problem(
    changeable: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "FIRST_PAUSE", 0.001)
    image = to_id(str(changeable.photos / "cats/03.png"))
    changeable.qdrant.close()
    there = changeable.there
    for url in (*ROUTES, f"/v1/images/{image}", f"/v1/images/{image}/similar"):
        response = there.get(url)
        failed(response, 503, "engine-unavailable", changeable.engine.location, "running")
    failed(add(there, "dog", png(9)), 503, "engine-unavailable")
    failed(there.get("/readyz"), 503, "not-ready")
    assert there.get("/healthz").status_code == 200
    metrics = there.get("/metrics")
    assert metrics.status_code == 200
    assert "bm25v_images" not in metrics.text
    assert 'status="503"' in metrics.text
    port = parse_address(changeable.engine.location).port
    with serve_edge(changeable.shards, port):
        wait_until(lambda: there.get("/readyz").status_code == 200)
        assert there.get(f"/v1/images/{image}/similar").json()["hits"]


def test_a_collection_that_disappears_or_is_replaced_is_a_problem(changeable: Served) -> None:
    there, shards = changeable.there, changeable.shards
    location = changeable.engine.location

    def load_again(gallery: Gallery) -> None:
        for name in ("images", "images" + SUFFIX):
            shards.delete_collection(name)
        with closing(open_calls(parse_address(location))) as calls:
            load_gallery(calls, gallery.local)

    changeable.gallery.remove(changeable.photos / "cats")
    load_again(changeable.gallery)
    assert there.get("/v1/stats").json()["n_images"] == 13
    assert there.get("/v1/words/5").json()["n_images"] == 13
    other = Gallery.create(changeable.photos.parent / "other", vocabulary="toy", k1=2)
    load_again(other)
    failed(there.get("/v1/images"), 503, "engine-unavailable", "replaced by another collection")
    for name in ("images", "images" + SUFFIX):
        shards.delete_collection(name)
    for url in ROUTES:
        failed(there.get(url), 503, "engine-unavailable", "doesn't exist")


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is a signal")
def test_the_command_prints_both_addresses_and_stops_on_ctrl_c(served: Served) -> None:
    address = served.engine.location
    command = [sys.executable, "-m", "bm25v", "serve", "-g", address, "--port", "0"]
    command += ["--workers", "2"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, encoding="utf-8") as server:
        watchdog = threading.Timer(60, server.kill)
        watchdog.start()
        assert server.stdout is not None
        line = server.stdout.readline()
        url = next(word for word in line.split() if word.startswith("http://127.0.0.1:"))
        assert line == f"serving {address} at {url} (Ctrl-C stops it)\n"
        assert httpx.get(f"{url}v1/stats").json()["n_images"] == 19
        assert httpx.get(f"{url}v1/stats").json()["writable"] is False
        similar = f"v1/images/{served.here.ids()[0]}/similar"  # found by another process
        hits = [
            httpx.get(f"{base}{similar}").json()["hits"] for base in (url, served.there.base_url)
        ]
        assert hits[0] == hits[1] != []
        server.send_signal(signal.SIGINT)
        out, err = server.communicate()
        watchdog.cancel()
    assert (server.returncode, out, err) == (0, "stopped\n", "")


def test_what_cannot_be_served_is_refused_in_one_line(
    run: Any, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "ATTEMPTS", 1)
    address = served.engine.location
    for engine, options, code, part in (
        (address, ("--watch", "photos"), 2, "only a gallery on this machine follows folders"),
        ("http://host/images", (), 2, "give an address such as qdrant://"),
        ("qdrant://127.0.0.1:1/images", (), 1, "is the server running at this port"),
        (address.replace("/images", "/others"), (), 1, "does not exist: `bm25v bags load"),
    ):
        wrong = run("serve", "-g", engine, "--port", 0, *options)
        assert (wrong.code, wrong.out, wrong.err.count("\n")) == (code, "", 1)
        assert part in wrong.err


def test_commands_show_facts_and_name_words(run: Any, changeable: Served) -> None:
    engine = ("-g", changeable.engine.location)
    facts = run("info", *engine).out
    assert f"gallery         {engine[1]}" in facts
    assert "bytes" not in facts
    assert json.loads(run("info", "--json", *engine).out)["n_images"] == 19
    assert run("words", "name", 7, "striped ear", *engine).out == "word 7: striped ear\n"
    assert run("words", "name", "striped ear", "--clear", *engine).out == "word 7 has no name now\n"
    assert run("words", "name", *engine).code == 2


def test_requests_at_the_same_time_lose_no_name(changeable: Served) -> None:
    def name(word: int) -> int:
        body = {"name": f"name {word}"}
        return changeable.there.put(f"/v1/words/{word}/name", json=body).status_code

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(name, range(8))) == {200}
    names = changeable.engine.store.names.own
    assert {word: names[word] for word in range(8)} == {w: f"name {w}" for w in range(8)}


def test_one_image_is_removed_and_none_that_is_called_like_it(
    changeable: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = Path(next(changeable.gallery.images()).path)
    monkeypatch.chdir(path.parent)
    for collection in (changeable.gallery, changeable.engine):
        collection.add({path.name: make_pixels(60)})
        n_images = len(collection)
        assert collection.remove(path.name, recursive=False) == 1
        assert len(collection) == n_images - 1
        assert path in collection


def test_words_are_described_while_somebody_writes(changeable: Served) -> None:
    engine = changeable.engine
    engine.add({f"new {n}": make_pixels(70 + n) for n in range(6)})  # in no folder
    assert isinstance(engine.store, QdrantStore)
    calls = engine.store.calls
    state = read_state(calls)
    statistics = replace(state.full_statistics, n=state.full_statistics.n - 6)
    fewer = replace(state.statistics, n=state.statistics.n - 6)  # as before these were counted
    write_state(calls, replace(state, statistics=fewer, full_statistics=statistics))
    for word in engine.words(limit=40):
        assert engine.word(word.word).facts.df == word.df


def test_images_are_added_from_python(changeable: Served) -> None:
    engine = changeable.engine
    images: dict[str, Any] = {"a": make_pixels(50), "b": png(51), "c": b"no image"}
    report = engine.add(images, workers=2)
    assert (report.added, report.updated, report.unchanged) == (2, 0, 0)
    assert [failure.path for failure in report.failed] == ["c"]
    pairs: list[tuple[str, Any]] = [("a", make_pixels(50)), ("b", png(52))]
    report = engine.add(pairs)
    assert (report.added, report.updated, report.unchanged) == (0, 1, 1)
    assert [hit.path for hit in engine.search(png(52), include_query=True, k=1)] == ["b"]
    with pytest.raises(InvalidOption, match="index files into a gallery"):
        engine.add(changeable.photos)
    with pytest.raises(InvalidOption, match="no word 192"):
        engine.name_words({5: "ear", 192: "eye"})
    assert engine.word_names[5] == "red corner"
    assert engine.remove(["a", "b"]) == 2


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
def test_the_page_of_a_collection(
    changeable: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = changeable.there
    monkeypatch.setattr(calls_module, "FIRST_PAUSE", 0.001)
    with browser(tmp_path / "profile") as tab:
        open_page(tab, client)
        assert "19 images" in tab.wait_for(text_of("main h1"))
        tab.wait_for(LOADED.format(selector=".cell img"))
        tab.open(f"{client.base_url}?image={to_id(str(changeable.photos / 'cats/03.png'))}")
        tab.wait_for(LOADED.format(selector=".hit img"))
        tab.wait_for(FILLED.format(selector=".chip .crop"))
        tab.click(".hit a")
        tab.wait_for('document.querySelectorAll("#why .map").length === 2')
        check_health(tab, client)
        changeable.qdrant.close()
        tab.open(str(client.base_url))
        problem = tab.wait_for(text_of("#problem"))
        assert problem.startswith(f"{changeable.engine.location} failed 5 times")
