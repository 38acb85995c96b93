"""Requests that change a gallery, and the metrics of the server."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from bm25v import Gallery
from bm25v.client import to_id
from bm25v.server import changes
from bm25v.store.local.writer import Writer
from tests.http_server import Client, serving
from tests.test_images_from_memory import png
from tests.test_server import failed


def add(client: Client, name: str, content: bytes) -> httpx.Response:
    return client.post("/v1/images", data={"id": name}, files={"image": content})


def test_without_writable_no_request_changes_the_gallery(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache") as client:
        image = client.ids()[0]
        for refused, allowed in (
            (add(client, "cat", png(1)), "GET"),
            (client.delete(f"/v1/images/{image}"), "GET"),
            (client.put("/v1/words/1/name", json={"name": "ear"}), ""),
        ):
            failed(refused, 405, "read-only", "--writable")
            assert refused.headers["allow"] == allowed
        assert "delete" not in client.get("/v1/openapi.json").text
    assert len(gallery) == 12


def test_an_uploaded_image_is_added_replaced_and_removed(client: Client, gallery: Gallery) -> None:
    added = add(client, "shop/cat-7", png(40))
    assert added.status_code == 201
    cat = to_id("shop/cat-7")
    assert added.json() == {"id": cat, "path": "shop/cat-7", "added": 1, "updated": 0}
    hits = client.upload(png(40), query='{"include_query": true, "k": 1}').json()["hits"]
    assert [hit["id"] for hit in hits] == [cat]
    assert add(client, "shop/cat-7", png(41)).json()["updated"] == 1
    assert len(gallery) == 13
    assert client.delete(f"/v1/images/{cat}").json() == {"removed": 1}
    failed(client.delete(f"/v1/images/{cat}"), 404, "unknown-image")
    assert len(gallery) == 12


def test_one_image_is_removed_and_not_those_below_its_id(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    for name in ("shop", "shop/cat"):
        assert add(client, name, png(len(name))).status_code == 201
    assert client.delete(f"/v1/images/{to_id('shop')}").json() == {"removed": 1}
    assert "shop/cat" in gallery
    failed(client.delete(f"/v1/images/{to_id(str(photos))}"), 404, "unknown-image")
    assert client.delete(f"/v1/images/{to_id(str(photos / '3.png'))}").json() == {"removed": 1}
    assert (photos / "3.png").is_file(), "files are never deleted"


def test_a_wrong_method_is_told_all_that_there_are(client: Client) -> None:
    image = client.ids()[0]
    for url, allowed in (
        (f"/v1/images/{image}", "DELETE, GET"),
        ("/v1/images", "GET, POST"),
        ("/v1/explain", "GET, POST"),
        ("/v1/search", "POST"),
    ):
        response = client.patch(url)
        failed(response, 405, "method-not-allowed")
        assert response.headers["allow"] == allowed


def test_wrong_uploads_add_nothing(client: Client, gallery: Gallery) -> None:
    failed(add(client, "cat", b"no image"), 422, "unreadable-image", "supported format")
    failed(add(client, "/etc/cat.png", png(1)), 400, "invalid-option", "absolute path")
    failed(add(client, " ", png(1)), 400, "invalid-option", "is not an id")
    failed(add(client, "a" * 1001, png(1)), 422, "wrong-value", "1000")
    failed(client.post("/v1/images", files={"image": png(1)}), 422, "wrong-value", "id")
    failed(client.post("/v1/images", data={"id": "cat"}), 415, "wrong-type")
    failed(client.post("/v1/images", json={"id": "cat"}), 422, "wrong-value", "id")
    assert len(gallery) == 12


def test_words_are_named_and_names_removed(client: Client, gallery: Gallery) -> None:
    url = "/v1/words/5/name"
    assert client.put(url, json={"name": " red corner "}).json() == {
        "word": 5,
        "name": "red corner",
    }
    assert gallery.word_names[5] == "red corner"
    assert client.get("/v1/words/5").json()["name"] == "red corner"
    assert client.put(url, json={"name": None}).json()["name"] is None
    failed(client.put(url, json={"name": "12"}), 400, "invalid-option", "looks like the number")
    failed(client.put(url, json={}), 422, "wrong-value", "name")
    failed(client.put("/v1/words/192/name", json={"name": "ear"}), 404, "unknown-word")


def test_requests_write_one_after_the_other_and_wait_for_other_processes(
    client: Client, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda n: add(client, f"cat-{n}", png(n)), range(200, 208)))
    assert [answer.status_code for answer in answers] == [201] * 8
    assert len(gallery) == 20
    monkeypatch.setattr(changes, "LOCK_SECONDS", 0.1)
    with Writer(gallery.path):
        locked: Any = add(client, "dog", png(9))
        failed(locked, 409, "gallery-locked")
        assert locked.headers["retry-after"]
        assert client.get(f"/v1/images/{client.ids()[0]}/similar").status_code == 200
    assert add(client, "dog", png(9)).status_code == 201


def test_changes_that_wait_for_another_process_do_not_delay_other_requests(
    client: Client, gallery: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOCK_SECONDS", 1.0)
    urls = [f"/v1/images/{image}" for image in client.ids()] * 4
    with ThreadPoolExecutor(len(urls)) as pool:
        with Writer(gallery.path):
            removals = [pool.submit(client.delete, url) for url in urls]
            time.sleep(0.5)
            start = time.monotonic()
            for url in ("/readyz", "/v1/stats", "/metrics", urls[0], f"{urls[0]}/thumbnail"):
                assert client.get(url).status_code == 200
            assert time.monotonic() - start < 5
        statuses = {removal.result().status_code for removal in removals}
    assert statuses <= {200, 404, 409, 503}
    assert len(statuses) > 1


def test_metrics_count_requests_by_route_and_tell_nothing_about_queries(client: Client) -> None:
    image = client.ids()[0]
    for _ in range(3):
        client.get(f"/v1/images/{image}/similar")
    client.get(f"/v1/images/{image}x")
    client.get("/secret-path")
    response = client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = response.text.splitlines()
    similar = 'method="GET",route="/v1/images/{id}/similar",status="200"'
    assert f"bm25v_requests_total{{{similar}}} 3.0" in lines
    assert 'bm25v_request_seconds_count{route="/v1/images/{id}/similar"} 3.0' in lines
    assert 'bm25v_requests_total{method="GET",route="other",status="404"} 1.0' in lines
    assert "bm25v_images 12.0" in lines
    assert "secret" not in response.text
    assert image not in response.text
    pattern = re.compile(r'[a-z0-9_]+(\{[a-z]+="[^"\n]*"(,[a-z]+="[^"\n]*")*\})? [0-9.e+-]+')
    assert all(pattern.fullmatch(line) for line in lines if not line.startswith("# "))
    counts = [
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith("bm25v_request_seconds_bucket") and "/similar" in line
    ]
    assert counts == sorted(counts)
    assert counts[-1] == 3
