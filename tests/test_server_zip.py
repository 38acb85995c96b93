"""Several files as one zip file: its content, what is left out, and what is refused."""

import io
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from PIL import Image

from bm25v import Gallery
from bm25v.client import to_id
from bm25v.server import service, zips
from tests.conftest import make_image, make_pixels
from tests.http_server import TOKEN, Client, serving, wait_until
from tests.test_server import failed


@pytest.fixture
def client(gallery: Gallery, tmp_path: Path) -> Iterator[Client]:
    with serving(gallery, tmp_path / "cache") as client:
        yield client


def request(client: Client, *ids: str) -> httpx.Response:
    return client.post("/v1/zip", json={"ids": ids})


def unpack(response: httpx.Response) -> dict[str, bytes]:
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/zip"
    assert 'filename="images.zip"' in response.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(response.content)) as archive:
        assert archive.testzip() is None
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        assert len(set(archive.namelist())) == len(archive.namelist())
        return {name: archive.read(name) for name in archive.namelist()}


def test_a_zip_file_has_the_files_as_they_are(client: Client, photos: Path) -> None:
    ids = client.ids()
    content = unpack(request(client, *ids, ids[0]))
    assert content == {path.name: path.read_bytes() for path in photos.iterdir()}
    assert len(content) == 12


def test_names_are_unique_on_any_system_and_lead_nowhere_else(
    gallery: Gallery, client: Client, tmp_path: Path
) -> None:
    names = ("a/x.png", "b/x.png", "c/X.PNG", "c/..\\..\\evil:x.png", "c/caf\udce9.png")
    expected = ["x.png", "x-2.png", "X-3.PNG", ".._.._evil_x.png", "caf\ufffd.png"]
    paths = [tmp_path / "same" / name for name in names]
    for seed, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(100 + seed).save(os.fsencode(path).decode("utf-8", "surrogateescape"))
    gallery.add(paths)
    content = unpack(request(client, *map(to_id, map(str, paths))))
    assert dict(zip(expected, (p.read_bytes() for p in paths), strict=True)) == content


def test_files_that_cannot_be_read_are_left_out_and_listed(
    gallery: Gallery, client: Client, photos: Path
) -> None:
    ids = client.ids()
    (photos / "1.png").unlink()
    make_image(50).save(photos / "2.png")
    gallery.add({"shop/cat-7": make_pixels(60)})
    gone = to_id("/photos/gone.png")
    chosen = [to_id(str(photos / f"{n}.png")) for n in (0, 1, 2)]
    assert {*chosen} < {*ids}
    content = unpack(request(client, *chosen, to_id("shop/cat-7"), gone))
    missing = content.pop("missing.txt").decode().splitlines()
    assert content == {"0.png": (photos / "0.png").read_bytes()}
    assert [line.partition(": ")[0] for line in missing] == [
        str(photos / "1.png"),
        str(photos / "2.png"),
        "shop/cat-7",
        "/photos/gone.png",
    ]
    for line, reason in zip(missing, ("read", "changed", "memory", "no such image"), strict=True):
        assert reason in line


def test_metadata_is_left_out_as_from_single_files(gallery: Gallery, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a secret"
    make_image(70, side=96).save(tmp_path / "photo.jpg", exif=exif)
    make_image(71, side=96).save(tmp_path / "photo.bmp")
    gallery.add([tmp_path / "photo.jpg", tmp_path / "photo.bmp"])
    photo, other = to_id(str(tmp_path / "photo.jpg")), to_id(str(tmp_path / "photo.bmp"))
    assert b"a secret" in (tmp_path / "photo.jpg").read_bytes()
    with serving(gallery, tmp_path / "cache", strip_metadata=True) as client:
        content = unpack(request(client, photo, other))
        assert content["photo.jpg"] == client.get(f"/v1/images/{photo}/file").content
        assert b"a secret" not in content["photo.jpg"]
        assert "use the thumbnail" in content["missing.txt"].decode()
        assert content.keys() == {"photo.jpg", "missing.txt"}


def test_too_many_images_and_bytes_are_refused(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = client.ids()
    failed(request(client), 422, "wrong-value")
    failed(request(client, *["a" * 4] * 1001), 422, "wrong-value", "1000")
    failed(request(client, "../etc"), 422, "wrong-value")
    monkeypatch.setattr(zips, "MAX_BYTES", 100)
    failed(request(client, *ids), 400, "too-many-bytes", "choose fewer")


def test_a_token_is_needed(gallery: Gallery, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache", access={"token": TOKEN}) as client:
        failed(request(client, "abcd"), 401, "no-token")
        in_address = client.post(f"/v1/zip?token={TOKEN}", json={"ids": ["abcd"]})
        failed(in_address, 401, "no-token")
        client.headers["Authorization"] = f"Bearer {TOKEN}"
        assert len(unpack(request(client, *client.ids()))) == 12


def test_a_reader_that_stops_delays_nothing_but_other_zip_files(
    gallery: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_ZIP_FILES", 1)
    monkeypatch.setattr(service, "_WAITING_ZIP_FILES", 0)
    paths = [tmp_path / f"large-{seed}.bmp" for seed in range(6)]
    for seed, path in enumerate(paths):
        make_image(200 + seed, side=1800).save(path)  # 10 MB, more than is sent ahead
    gallery.add(paths)
    large = {"ids": [to_id(str(path)) for path in paths]}
    with serving(gallery, tmp_path / "cache") as client:
        image = client.ids()[0]
        with client.stream("POST", "/v1/zip", json=large) as stream:
            pieces = stream.iter_raw()  # it ends the connection when it is deleted
            assert next(pieces)
            busy = request(client, image)
            failed(busy, 503, "busy")
            assert int(busy.headers["retry-after"]) >= 1
            assert client.get(f"/v1/images/{image}/similar").status_code == 200
            assert client.get(f"/v1/images/{image}/file").status_code == 200
        wait_until(lambda: request(client, image).status_code == 200)
        assert len(unpack(client.post("/v1/zip", json=large))) == 6
