"""The HTTP API: what each route returns, over real connections."""

import asyncio
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from bm25v import Gallery, StoredImage
from bm25v.backbones.toy import ToyBackbone
from bm25v.client import to_id
from bm25v.server import words as words_module
from bm25v.server.images import from_id
from bm25v.server.workers import Busy, Slots
from bm25v.store.local.snapshot import Snapshot
from bm25v.store.records import ImageRecord
from bm25v.threads import available_cpus
from tests.conftest import make_image, make_pixels
from tests.http_server import Client, serving, wait_until
from tests.lexicons import save_vocabulary
from tests.test_hostile_images import SIDE, png


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator[Client]:
    """A client of the gallery of twelve images, without fixed ports."""
    with serving(gallery, tmp_path / "cache") as client:
        yield client


def failed(response: httpx.Response, status: int, kind: str, *parts: str) -> None:
    """Expect a problem with all its keys."""
    problem = response.json()
    assert response.status_code == status, problem
    assert response.headers["content-type"] == "application/problem+json"
    assert problem["type"] == f"urn:bm25v:{kind}"
    assert problem["status"] == status
    assert problem["title"]
    assert problem["request_id"] == response.headers["x-request-id"]
    for part in parts:
        assert part in problem["detail"]


def test_ids_stand_for_paths_of_any_bytes() -> None:
    for path in ("/photos/cat.jpg", "/caf\udce9.jpg", "/two\nlines", "shop/cat-7", "/猫.png"):
        assert from_id(to_id(path)) == path
        assert set(to_id(path)) <= {*map(chr, range(48, 123)), "-", "_"}
    for wrong in ("", "=", "a", "L3Bob3Rvcy9jYXQuanBn=", "L3Bob3Rv cy9jYXQuanBn", "é", "..", "%2e"):
        assert from_id(wrong) in (None, "")


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_an_image_whose_name_is_not_text_is_served(
    client: Client, photos: Path, gallery: Gallery
) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    make_image(50).save(photos / name)
    gallery.add(photos)
    image = to_id(str(photos / name))
    assert client.get(f"/v1/images/{image}").json()["path"] == str(photos / name)
    assert len(client.get(f"/v1/images/{image}/similar").json()["hits"]) == 10
    paths = [
        hit["path"]
        for hit in client.get(f"/v1/images/{client.ids()[0]}/similar?k=20").json()["hits"]
    ]
    assert str(photos / name) in paths


def test_images_are_listed_page_by_page(client: Client, gallery: Gallery) -> None:
    first = client.get("/v1/images", params={"limit": 5}).json()
    assert (first["total"], first["offset"], first["limit"]) == (12, 0, 5)
    rest = client.get("/v1/images", params={"offset": 5, "limit": 100}).json()
    listed = first["images"] + rest["images"]
    expected = [{"id": to_id(image.path), **image.to_dict()} for image in gallery.images()]
    assert listed == expected
    assert client.get("/v1/images", params={"offset": 12}).json()["images"] == []


def test_images_are_filtered_as_in_a_search(client: Client, photos: Path, gallery: Gallery) -> None:
    make_image(50, side=200).save(photos / "large.png")
    gallery.add(photos)
    for parameters, n in (
        ({"folder": "1*.png"}, 3),
        ({"folder": ["1.png", "2.png"]}, 0),
        ({"folder": [str(photos / "1.png"), str(photos / "2.png")]}, 2),
        ({"min_size": "100"}, 1),
        ({"max_size": "100x100"}, 12),
        ({"min_size": "100", "max_size": "150x300"}, 0),
        ({"date": "1990"}, 0),
        ({"date": "2000.."}, 13),
    ):
        assert client.get("/v1/images", params=parameters).json()["total"] == n, parameters
    failed(client.get("/v1/images?date=soon"), 400, "invalid-option", "date 'soon'")
    failed(client.get("/v1/images?min_size=big"), 422, "wrong-value", "min_size")
    failed(client.get("/v1/images?limit=0"), 422, "wrong-value", "limit")


def test_an_image_is_described_by_its_id(client: Client, photos: Path) -> None:
    path = str(photos / "3.png")
    facts = client.get(f"/v1/images/{to_id(path)}").json()
    assert (facts["path"], facts["width"], facts["height"]) == (path, 64, 64)
    failed(client.get(f"/v1/images/{to_id('/nowhere')}"), 404, "unknown-image")


def test_a_thumbnail_is_small_upright_and_has_no_metadata(
    client: Client, photos: Path, gallery: Gallery, tmp_path: Path
) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned
    exif[0x010F] = "secret camera"
    make_image(60, side=600).crop((0, 0, 600, 300)).save(photos / "turned.jpg", exif=exif)
    gallery.add(photos)
    url = f"/v1/images/{to_id(str(photos / 'turned.jpg'))}/thumbnail"
    response = client.get(url, params={"size": 128})
    assert response.headers["content-type"] == "image/jpeg"
    assert b"secret" in (photos / "turned.jpg").read_bytes()
    assert b"secret" not in response.content
    with Image.open(io.BytesIO(response.content)) as thumbnail:
        assert thumbnail.size == (64, 128)
        assert not thumbnail.getexif()
    (photos / "turned.jpg").unlink()
    again = client.get(url, params={"size": 128})
    assert again.content == response.content, "it was made once"
    assert len(list((tmp_path / "cache").rglob("*.jpg"))) == 1
    failed(client.get(url, params={"size": 512}), 404, "no-file", "does not exist")
    failed(client.get(url, params={"size": 100}), 422, "wrong-value", "size")


def test_a_damaged_thumbnail_is_made_again(client: Client, tmp_path: Path) -> None:
    url = f"/v1/images/{client.ids()[0]}/thumbnail"
    first = client.get(url).content
    (cached,) = (tmp_path / "cache").rglob("*.jpg")
    cached.write_bytes(first[:100])
    assert client.get(url).content == first
    assert cached.read_bytes() == first


@pytest.mark.parametrize("kind", ["thumbnail", "file"])
def test_a_browser_asks_only_whether_an_image_has_changed(
    client: Client, photos: Path, gallery: Gallery, kind: str
) -> None:
    url = f"/v1/images/{to_id(str(photos / '3.png'))}/{kind}"
    first = client.get(url)
    tag = first.headers["etag"]
    assert first.headers["cache-control"].startswith("private, max-age=")
    for known in (tag, f"W/{tag}", f'"other", {tag}'):
        second = client.get(url, headers={"If-None-Match": known})
        assert (second.status_code, second.content) == (304, b"")
        assert second.headers["etag"] == tag
    make_image(70).save(photos / "3.png")
    gallery.add(photos)
    third = client.get(url, headers={"If-None-Match": tag})
    assert third.status_code == 200
    assert third.headers["etag"] != tag
    assert third.content != first.content


def test_a_file_is_sent_as_it_is(client: Client, photos: Path) -> None:
    response = client.get(f"/v1/images/{to_id(str(photos / '3.png'))}/file")
    assert response.content == (photos / "3.png").read_bytes()
    assert response.headers["content-type"] == "image/png"
    assert response.headers["x-content-type-options"] == "nosniff"


def test_an_image_from_memory_can_be_searched_but_has_no_file(
    client: Client, gallery: Gallery
) -> None:
    gallery.add({"shop/cat-7": make_pixels(7)})
    cat = to_id("shop/cat-7")
    assert client.get(f"/v1/images/{cat}").json()["path"] == "shop/cat-7"
    assert client.get(f"/v1/images/{cat}/similar").json()["hits"]
    failed(client.get(f"/v1/images/{cat}/file"), 404, "no-file", "from memory")
    failed(client.get(f"/v1/images/{cat}/thumbnail"), 404, "no-file", "from memory")


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_a_search_returns_what_the_library_returns(
    client: Client, gallery: Gallery, photos: Path, mode: Any
) -> None:
    path = str(photos / "3.png")
    expected = gallery.search(StoredImage(path), k=4, offset=1, mode=mode)
    body = {"images": [to_id(path)], "k": 4, "offset": 1, "mode": mode, "words": 3}
    results = client.post("/v1/search", json=body).json()
    similar = client.get(f"/v1/images/{to_id(path)}/similar", params=body).json()
    for answer in (results, similar):
        answer.pop("ms")
    assert results == similar
    assert len(results["hits"]) == 4
    for hit, original in zip(results["hits"], expected, strict=True):
        assert hit["id"] == to_id(original.path)
        assert hit["n_words"] == len(original.words)
        plain = original.to_dict() | {key: hit[key] for key in ("id", "n_words", "groups")}
        plain["words"] = plain["words"][:3]
        assert hit == json.loads(json.dumps(plain))


def test_every_option_of_a_query_has_its_effect(client: Client, gallery: Gallery) -> None:
    ids = client.ids()
    paths = [from_id(image) or "" for image in ids]
    word, other = (w.word for w in gallery.search(StoredImage(paths[0]))[0].words[:2])
    gallery.name_words({word: "red corner"})
    by_stored: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"must": [word]}, {"must": word}),
        ({"must": ["red corner"]}, {"must": word}),
        ({"without": [word]}, {"without": word}),
        ({"boost": {str(word): 3.0, str(other): -1}}, {"boost": {word: 3.0, other: -1.0}}),
        ({"negative": [ids[5]]}, {"negative": StoredImage(paths[5])}),
        ({"like": [ids[5]]}, {"like": paths[5]}),
        ({"unlike": [ids[5]]}, {"unlike": paths[5]}),
        ({"min_coverage": 0.3}, {"min_coverage": 0.3}),
        ({"folder": ["1*.png"]}, {"folder": "1*.png"}),
        ({"min_size": 64, "max_size": [64, 64]}, {"min_size": 64, "max_size": (64, 64)}),
        ({"date": "2000.."}, {"date": "2000.."}),
        ({"include_query": True}, {"include_query": True}),
        ({"candidates": 3, "k": 2}, {"candidates": 3, "k": 2}),
        ({"mode": "sparse"}, {"mode": "sparse"}),
        ({"text": "red corner", "mode": "words"}, {"text": "red corner", "mode": "words"}),
    ]
    by_file: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"region": [0, 0, 0.5, 0.5]}, {"region": (0, 0, 0.5, 0.5)}),
        ({"region": [0, 0, 32, 32]}, {"region": (0, 0, 32, 32)}),
        ({"query_words": 3}, {"query_words": 3}),
    ]
    for image, cases in ((StoredImage(paths[0]), by_stored), (paths[0], by_file)):
        for body, options in cases:
            results = client.post("/v1/search", json={"images": [ids[0]], **body}).json()
            pairs = [(hit["path"], hit["score"]) for hit in results["hits"]]
            expected = gallery.search(image, **options)
            assert pairs == [(hit.path, hit.score) for hit in expected], body


def test_an_uploaded_image_is_searched_as_its_file(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    content = (photos / "3.png").read_bytes()
    body = json.dumps({"k": 3, "include_query": True})
    results = client.upload(content, query=body).json()
    expected = gallery.search(content, k=3, include_query=True)
    assert [hit["path"] for hit in results["hits"]] == [hit.path for hit in expected]
    assert results["hits"][0]["path"] == str(photos / "3.png")
    both = client.upload(content, query=json.dumps({"images": client.ids()[:1]})).json()
    path = from_id(client.ids()[0]) or ""
    expected = gallery.search([content, StoredImage(path)])
    assert [hit["score"] for hit in both["hits"]] == [hit.score for hit in expected]


def test_an_explanation_sums_to_the_score_of_the_hit(client: Client, photos: Path) -> None:
    ids = client.ids()
    hit = client.get(f"/v1/images/{ids[3]}/similar").json()["hits"][0]
    explanation = client.get(
        "/v1/explain", params={"query": ids[3], "hit": hit["id"], "words": 2}
    ).json()
    assert explanation["id"] == hit["id"]
    assert sum(part["value"] for part in explanation["parts"]) == pytest.approx(
        explanation["score"], abs=1e-5
    )
    assert len(explanation["words"]) == 2
    assert explanation["n_words"] > 2
    assert np.array(explanation["words"][0]["in_hit"]).shape == (7, 7)
    body = {"images": [ids[3]], "hit": hit["id"], "words": 2}
    assert client.post("/v1/explain", json=body).json() == explanation
    content = Path(from_id(ids[3]) or "").read_bytes()
    uploaded = client.upload(
        content, query=json.dumps({"hit": hit["id"], "words": 2}), path="/v1/explain"
    ).json()
    assert uploaded.keys() == explanation.keys()
    assert uploaded["score"] == pytest.approx(explanation["score"], rel=0.05)  # tf is not rounded
    Path(from_id(hit["id"]) or "").unlink()
    without_file = client.post("/v1/explain", json=body).json()
    assert without_file["words"][0]["in_hit"] is None
    assert "does not exist" in without_file["notes"][0]


def test_explanations_have_the_ranks_and_scores_of_the_search(client: Client) -> None:
    for image in client.ids()[:4]:
        for hit in client.get(f"/v1/images/{image}/similar?words=256").json()["hits"]:
            parameters = {"query": image, "hit": hit["id"], "words": 256}
            explanation = client.get("/v1/explain", params=parameters).json()
            assert explanation["score"] == pytest.approx(hit["score"], abs=1e-9)
            assert explanation["ranking"]["rank"] == hit["rank"]
            words = [word["word"] for word in explanation["words"]]
            assert words == [word["word"] for word in hit["words"]]
            assert np.sum(explanation["words"][0]["in_query"]) > 0


def test_a_heat_map_shows_where_a_word_is(client: Client, gallery: Gallery, photos: Path) -> None:
    path = str(photos / "3.png")
    encoding = gallery.vocabulary.encode(path)
    word = int(encoding.bag.words[0])
    parameters: dict[str, Any] = {"image": to_id(path), "word": word}
    answer = client.get("/v1/heatmap", params={**parameters, "format": "json"}).json()
    assert (answer["rows"], answer["columns"]) == (7, 7)
    total = encoding.bag.frequencies[0]
    assert np.sum(answer["grid"]) == pytest.approx(total, abs=0.01)
    response = client.get("/v1/heatmap", params=parameters)
    with Image.open(io.BytesIO(response.content)) as heat:
        assert (heat.format, heat.mode) == ("PNG", "LA")
    failed(client.get("/v1/heatmap", params={**parameters, "word": 192}), 400, "invalid-option")


def test_words_are_listed_and_described(client: Client, gallery: Gallery) -> None:
    gallery.name_words({5: "red corner"})
    listed = client.get("/v1/words", params={"limit": 1000, "best": 2}).json()
    expected = gallery.words(best=2)
    assert (listed["total"], listed["n_images"]) == (len(expected), 12)
    for answer, word in zip(listed["words"], expected, strict=True):
        assert (answer["word"], answer["name"], answer["df"]) == (word.word, word.name, word.df)
        assert [image["id"] for image in answer["best"]] == [to_id(i.path) for i in word.best]
    by_df = client.get("/v1/words", params={"sort": "df", "offset": 2, "limit": 3}).json()
    counts = sorted((word.df for word in expected), reverse=True)
    assert [word["df"] for word in by_df["words"]] == counts[2:5]
    use = gallery.word(5)
    answer = client.get("/v1/words/5", params={"images": 1}).json()
    assert (answer["name"], answer["df"]) == ("red corner", use.facts.df)
    assert [image["path"] for image in answer["top"]] == [image.path for image in use.images[:1]]
    assert [w["word"] for w in answer["companions"]] == [w.word for w in use.companions]
    failed(client.get("/v1/words/192"), 404, "unknown-word", "0 to 191")
    failed(client.get("/v1/words/red"), 422, "wrong-value", "number")


def test_status_routes(client: Client, gallery: Gallery) -> None:
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "preparing": False}
    assert "<!doctype html>" in client.get("/").text
    stats = client.get("/v1/stats").json()
    assert stats.pop("version")
    assert stats.pop("writable") is False
    assert stats.pop("watch") == []
    assert stats == gallery.info().to_dict()
    with Gallery.open(gallery.path) as other:
        other.remove(next(iter(gallery)))  # so that the server reads the files again
    (gallery.path / "bags.rows").write_bytes(b"")
    failed(client.get("/readyz"), 503, "not-ready")
    assert str(gallery.path) not in client.get("/readyz").text
    assert client.get("/healthz").status_code == 200


@pytest.mark.parametrize(
    ("body", "status", "kind", "part"),
    [
        ({}, 400, "invalid-option", "an empty query"),
        ({"images": ["L25vd2hlcmU"]}, 404, "unknown-image", "L25vd2hlcmU"),
        ({"images": ["../x"]}, 422, "wrong-value", "images.0"),
        ({"must": [192]}, 400, "invalid-option", "no word 192"),
        ({"must": [True]}, 422, "wrong-value", "must.0"),
        ({"must": [1], "k": 0}, 422, "wrong-value", "k"),
        ({"must": [1], "k": 1001}, 422, "wrong-value", "k"),
        ({"must": [1], "mode": "best"}, 422, "wrong-value", "mode"),
        ({"must": [1], "mode": "dense"}, 400, "invalid-option", "mode 'dense'"),
        ({"must": [1], "kk": 3}, 422, "wrong-value", "kk"),
        ({"must": [1], "region": [0, 0, 1, 1]}, 400, "invalid-option", "a region with 0 images"),
        ({"boost": {"1": 1e300}}, 400, "invalid-option", "boost of word 1"),
        ({"text": ""}, 400, "invalid-option", "an empty text"),
        ({"must": [1], "folder": [""]}, 400, "invalid-option", "is not a path"),
        ([], 422, "wrong-value", "object"),
    ],
)
def test_wrong_queries_are_problems(
    client: Client, body: Any, status: int, kind: str, part: str
) -> None:
    failed(client.post("/v1/search", json=body), status, kind, part)


def test_other_wrong_requests_are_problems(client: Client) -> None:
    failed(client.get("/v1/nothing"), 404, "not-found")
    failed(client.get("/v1/search"), 405, "method-not-allowed")
    failed(client.post("/v1/search", content=b"{}"), 415, "wrong-type")
    headers = {"Content-Type": "application/json"}
    for content in (b"", b"{", b"\xff", b'{"k": NaN}', b"[" * 100_000):
        failed(client.post("/v1/search", content=content, headers=headers), 422, "wrong-value")
    large = b'{"text": "' + b"a" * 1_000_000 + b'"}'
    failed(client.post("/v1/search", content=large, headers=headers), 413, "too-large")
    form = {"Content-Type": "multipart/form-data; boundary=b"}
    failed(client.post("/v1/search", content=b"no form", headers=form), 400, "bad-request")
    failed(client.post("/v1/search", files={"other": b"x"}), 422, "wrong-value", "other")
    failed(client.post("/v1/explain", json={"must": [1]}), 422, "wrong-value", "hit")
    too_many = [("image", b"x")] * 17
    failed(client.post("/v1/search", files=too_many), 400, "bad-request")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"not an image", id="text"),
        pytest.param(b"\xff\xd8\xff\xe0 and no more", id="torn"),
        pytest.param(png(16, 6, SIDE, n_rows=1), id="too-large"),
        pytest.param(png(8, 2, 60_000, n_rows=1), id="too-many-pixels"),
        pytest.param(b"<svg xmlns='http://www.w3.org/2000/svg'/>", id="svg"),
    ],
)
def test_hostile_uploads_are_problems(client: Client, content: bytes) -> None:
    failed(client.upload(content), 422, "unreadable-image", "an image cannot be used: ")


def test_request_ids_are_those_of_the_client_if_they_are_plain(client: Client) -> None:
    given = client.get("/healthz", headers={"X-Request-ID": "abc-1"})
    assert given.headers["x-request-id"] == "abc-1"
    for wrong in ("two words", "a" * 65, "<b>"):
        response = client.get("/healthz", headers={"X-Request-ID": wrong})
        assert len(response.headers["x-request-id"]) == 32
    assert len({client.get("/healthz").headers["x-request-id"] for _ in range(3)}) == 3


def test_an_error_in_bm25v_is_a_problem_without_details(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(gallery, "info", fail)
    with serving(gallery, tmp_path / "cache") as client:
        response = client.get("/v1/stats")
    failed(response, 500, "internal-error")
    assert "secret" not in response.text
    assert response.headers["x-content-type-options"] == "nosniff"


class SlowBackbone:
    """Makes forward passes of the toy backbone wait for a sign."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n_begun, self.go_on = 0, threading.Event()
        forward = ToyBackbone.forward

        def wait(backbone: ToyBackbone, *args: Any) -> Any:
            self.n_begun += 1
            assert self.go_on.wait(30)
            return forward(backbone, *args)

        monkeypatch.setattr(ToyBackbone, "forward", wait)


def test_searches_by_id_do_not_wait_for_encodes_and_a_full_pool_says_when_to_come_back(
    gallery: Gallery, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (photos / "3.png").read_bytes()
    slow = SlowBackbone(monkeypatch)
    with (
        serving(gallery, tmp_path / "cache", encoders=1, waiting=0) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        try:
            upload = pool.submit(client.upload, content)
            wait_until(lambda: slow.n_begun == 1)
            busy = client.upload(content)
            failed(busy, 503, "busy")
            assert int(busy.headers["retry-after"]) >= 1
            image = client.ids()[0]
            assert client.get(f"/v1/images/{image}/similar").status_code == 200
            assert client.get(f"/v1/images/{image}/thumbnail").status_code == 200
        finally:
            slow.go_on.set()
        assert upload.result().status_code == 200
        assert client.upload(content).status_code == 200


def test_a_few_requests_wait_for_their_turn_and_not_for_ever() -> None:
    slots, go_on = Slots(1, waiting=1, seconds=0.1), threading.Event()

    def work() -> int:
        assert go_on.wait(30)
        return threading.get_ident()

    async def send() -> None:
        first = asyncio.create_task(slots.run(work))
        await asyncio.sleep(0)
        second = asyncio.create_task(slots.run(work))
        await asyncio.sleep(0)
        with pytest.raises(Busy):
            slots.check()  # one works, one waits
        with pytest.raises(Busy):
            await slots.run(work)
        with pytest.raises(Busy):
            await second  # it has waited for 0.1 seconds
        slots.check()
        go_on.set()
        assert await first == await slots.run(work), "there is one thread"

    asyncio.run(send())


def test_requests_that_fail_give_their_slots_back(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", encoders=1, waiting=0, writable=True) as client:
        image = client.ids()[0]
        for _ in range(available_cpus() + 1):
            failed(client.get("/v1/words/192"), 404, "unknown-word")
            failed(client.get("/v1/words/1?images=many"), 422, "wrong-value")
            failed(client.get(f"/v1/heatmap?image={image}&word=192"), 400, "invalid-option")
            failed(client.post("/v1/crops", json={"crops": [{"word": 192}]}), 404, "unknown-word")
            failed(client.put("/v1/words/192/name", json={"name": "ear"}), 404, "unknown-word")
        for url in ("words/1", f"heatmap?image={image}&word=1"):
            assert client.get(f"/v1/{url}").status_code == 200
        assert client.post("/v1/crops", json={"crops": [{"word": 1}]}).status_code == 200
        assert client.put("/v1/words/1/name", json={"name": "ear"}).status_code == 200


def test_all_ids_of_a_search_are_looked_up_together(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, good, bad = client.ids()[:4]
    find, lookups = Snapshot.find, []

    def count(view: Snapshot, paths: Sequence[str]) -> dict[str, ImageRecord]:
        lookups.append(len(paths))
        return find(view, paths)

    monkeypatch.setattr(Snapshot, "find", count)
    body = {"images": [one, other], "negative": [bad], "like": [good], "unlike": [bad]}
    assert client.post("/v1/search", json=body).json()["hits"]
    assert lookups == [4, 4], "by the server, for ids as they are written, and by the search"


def test_a_stopped_server_finishes_what_it_has_begun(
    gallery: Gallery, tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (photos / "3.png").read_bytes()
    slow = SlowBackbone(monkeypatch)
    with ThreadPoolExecutor(1) as pool, serving(gallery, tmp_path / "cache") as client:
        upload = pool.submit(client.upload, content)
        wait_until(lambda: slow.n_begun == 1)
        client.server.should_exit = True
        wait_until(lambda: not client.server.servers[0].is_serving())
        slow.go_on.set()
        assert upload.result().status_code == 200


def test_what_another_process_commits_is_visible_and_searches_go_on(
    client: Client, gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    more = tmp_path / "more"
    more.mkdir()
    for seed in range(100, 130):
        make_image(seed).save(more / f"{seed}.png")
    ids = client.ids()
    command = [sys.executable, "-m", "bm25v", "index", str(more), "-g", str(gallery.path)]
    writer = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def search(number: int) -> tuple[int, int]:
        response = client.get(f"/v1/images/{ids[number % 12]}/similar", params={"k": 50})
        return response.status_code, len(response.json()["hits"])

    with ThreadPoolExecutor(4) as pool:
        answers = set()
        while writer.poll() is None:
            answers |= set(pool.map(search, range(8)))
    assert writer.returncode == 0
    assert {status for status, _ in answers} <= {200}
    assert {n for _, n in answers} <= {11, 41}
    assert search(0) == (200, 41)
    assert client.get("/v1/images").json()["total"] == 42


def cut(client: Client, *crops: dict[str, Any], size: int = 64) -> list[Image.Image]:
    """Return the squares of a sheet of crops."""
    response = client.post("/v1/crops", json={"crops": crops, "size": size})
    assert response.headers["content-type"] == "image/webp"
    sheet = Image.open(io.BytesIO(response.content)).convert("RGBA")
    assert sheet.size == (min(8, len(crops)) * size, -(-len(crops) // 8) * size)
    corners = (divmod(i, 8) for i in range(len(crops)))
    return [sheet.crop((x * size, y * size, (x + 1) * size, (y + 1) * size)) for y, x in corners]


def difference(one: Image.Image, other: Image.Image) -> float:
    return float(np.abs(np.asarray(one, float) - np.asarray(other, float)).mean())


def test_words_are_cut_out_of_images_and_of_their_best_examples(
    client: Client, gallery: Gallery, photos: Path
) -> None:
    words = [word.word for word in gallery.words(best=0)][:10]
    path = str(photos / "3.png")
    strongest = gallery.search(StoredImage(path), k=1)[0].words[0].word
    here: dict[str, Any] = {"word": strongest, "image": to_id(path)}
    crops = [here, *({"word": word} for word in words), here]
    squares = cut(client, *crops)
    assert difference(squares[0], squares[-1]) < 6 < difference(squares[0], squares[1])
    for crop, square in zip(crops, squares, strict=True):
        (alone,) = cut(client, crop)
        assert difference(alone, square) < 6
    n_words = gallery.info().words
    for wrong, kind in (
        ({"word": n_words}, "unknown-word"),
        ({"word": 1, "image": "eA"}, "unknown-image"),
    ):
        failed(client.post("/v1/crops", json={"crops": [wrong]}), 404, kind)
    for file in photos.iterdir():
        file.unlink()
    kept, missing = cut(client, here)[0], cut(client, {"word": words[0]})[0]
    assert difference(kept, squares[0]) < 6
    assert kept.getchannel("A").getextrema() == (255, 255)
    assert missing.getchannel("A").getextrema() == (0, 0), "transparent"


def test_a_thumbnail_does_not_wait_for_crops(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(*args: Any) -> bytes:
        begun.set()
        go_on.wait(30)
        return b""

    monkeypatch.setattr(words_module, "make_sheet", wait)
    with (
        serving(gallery, tmp_path / "cache", encoders=1) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        crops = pool.submit(client.post, "/v1/crops", json={"crops": [{"word": 1}]})
        assert begun.wait(30)
        assert client.get(f"/v1/images/{client.ids()[0]}/thumbnail").status_code == 200
        assert not crops.done()
        go_on.set()


def test_words_are_located_in_an_uploaded_image(client: Client, photos: Path) -> None:
    content, image = (photos / "3.png").read_bytes(), to_id(str(photos / "3.png"))
    words = [word["word"] for word in client.get("/v1/words?limit=3").json()["words"]]
    groups = [words[:1], words]
    query = json.dumps({"groups": groups})
    grids = client.upload(content, query=query, path="/v1/heatmap").json()["grids"]
    for group, grid in zip(groups, grids, strict=True):
        parameters = {"image": image, "word": group, "format": "json"}
        assert grid == client.get("/v1/heatmap", params=parameters).json()["grid"]
    two = client.upload(content, content, query=query, path="/v1/heatmap")
    failed(two, 422, "wrong-value", "exactly one")
    failed(client.upload(b"", query=query, path="/v1/heatmap"), 422, "unreadable-image")
    wrong = client.upload(content, query='{"groups": [[999999]]}', path="/v1/heatmap")
    assert wrong.status_code == 400


def test_a_heat_map_of_another_word_needs_no_second_encoding(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = client.ids()[0]
    first = client.get(f"/v1/heatmap?image={image}&word=1&format=json").json()
    monkeypatch.setattr(ToyBackbone, "forward", None)
    second = client.get(f"/v1/heatmap?image={image}&word=2&format=json")
    assert second.status_code == 200
    assert client.get(f"/v1/heatmap?image={image}&word=1&format=json").json() == first


def test_folders_and_names_are_suggested(client: Client, gallery: Gallery, photos: Path) -> None:
    assert client.get("/v1/folders").json() == {"root": str(photos), "folders": []}
    (photos / "a" / "b").mkdir(parents=True)
    for n, folder in enumerate(("a", "a/b", "a/b")):
        make_image(80 + n).save(photos / folder / f"{n}.png")
    gallery.add(photos)
    gallery.add({"shop/cat-7": make_pixels(7)})
    folders = client.get("/v1/folders").json()["folders"]
    assert folders == [
        {"path": str(photos / "a"), "n_images": 3},
        {"path": str(photos / "a" / "b"), "n_images": 2},
    ]
    for folder in folders:
        listed = client.get("/v1/images", params={"folder": folder["path"]}).json()
        assert listed["total"] == folder["n_images"]
    gallery.name_words({1: "Crème", 2: "cream puff", 3: "ice cream"})
    assert client.get("/v1/terms?prefix=cre").json() == {"terms": ["Crème", "cream puff"]}
    assert client.get("/v1/terms?prefix=cre&limit=1").json() == {"terms": ["Crème"]}


def test_an_explanation_has_the_sum_that_people_read(client: Client) -> None:
    query, hit = client.ids()[:2]
    explained = client.get("/v1/explain", params={"query": query, "hit": hit, "words": 256}).json()
    *terms, score = explained["sum"]
    assert sum(float(term["value"]) for term in terms) == pytest.approx(float(score["value"]))
    assert score["label"] == "score"
    points = [word["points"] for word in explained["words"]]
    assert sum(points) == pytest.approx(round(explained["sparse"], 2))
    for group in explained["groups"]:
        assert group["percent"].endswith("%")
        for grid in (*group["in_queries"], group["in_hit"]):
            assert grid is None or (np.shape(grid), np.max(grid)) == ((14, 14), 1), "finer"
    assert np.shape(explained["in_hit"]) == (14, 14)


def test_a_text_is_answered_with_what_each_of_its_words_adds(photos: Path, tmp_path: Path) -> None:
    vocabulary = save_vocabulary(tmp_path / "mine.vocab")
    with Gallery.create(tmp_path / "texts", vocabulary=vocabulary) as gallery:
        gallery.add(photos)
        gallery.name_words({3: "caterpillar", 4: "ear"})
        with serving(gallery, tmp_path / "cache") as client:
            assert client.get("/v1/terms?prefix=ca").json() == {"terms": ["caterpillar", "cat"]}
            found = client.post("/v1/search", json={"text": "cat dog qwerty"}).json()
            assert (found["understood"], found["not_understood"]) == (["cat", "dog"], ["qwerty"])
            assert len(found["hits"]) == 10
            for hit in found["hits"]:
                assert [part["label"] for part in hit["text"]] == ["cat", "dog"]
                assert sum(part["value"] for part in hit["text"]) == pytest.approx(hit["score"])
            body = {"text": "cat dog", "hit": found["hits"][0]["id"]}
            explained = client.post("/v1/explain", json=body).json()
            for term, part in zip(explained["terms"], explained["text"], strict=True):
                assert {name: term[name] for name in part} == part
                assert np.array(term["in_hit"]).shape == (7, 7)
                assert 0 < len(term["words"]) <= 5
            unknown = client.post("/v1/search", json={"text": "qwerty"})
            assert unknown.status_code == 200
            assert unknown.json()["hits"] == []
            assert unknown.json()["not_understood"] == ["qwerty"]


def test_the_gallery_says_whether_it_can_be_changed(gallery: Gallery, tmp_path: Path) -> None:
    for writable in (True, False):
        with serving(gallery, tmp_path / "cache", writable=writable) as client:
            assert client.get("/v1/stats").json()["writable"] is writable
            word = client.get("/v1/words/1").json()
            assert word["name_command"].startswith("bm25v words name 1 'NEW NAME' -g ")
