"""Duplicates over HTTP, and the trash that their files are moved into."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bm25v import Gallery
from bm25v.client import to_id
from bm25v.duplicates import find_duplicates
from bm25v.server import changes, images
from bm25v.store.local.writer import Writer
from tests.http_server import Client, serving
from tests.test_duplicates import make_photo
from tests.test_server import failed

NAMES = ["photo.png", "copy.png", "large.png", "other.png"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four photos: two with one content, a larger version of these, and another one."""
    folder = tmp_path / "photos"
    folder.mkdir()
    make_photo(2).save(folder / "photo.png")
    shutil.copy(folder / "photo.png", folder / "copy.png")
    os.utime(folder / "copy.png", (2e9, 2e9))
    large = make_photo(2).resize((480, 360), Image.Resampling.BICUBIC)
    large.save(folder / "large.png")
    make_photo(5).save(folder / "other.png")
    return folder


@pytest.fixture
def gallery(folder: Path, tmp_path: Path) -> Iterator[Gallery]:
    with Gallery.create(tmp_path / "home" / "g", vocabulary="toy") as gallery:
        gallery.add(folder)
        yield gallery


@pytest.fixture
def trash(tmp_path: Path) -> Path:
    return tmp_path / "home" / ".bm25v-trash"


def throw(client: Client, *paths: Path | str) -> Any:
    return client.post("/v1/trash", json={"ids": [to_id(str(path)) for path in paths]})


def read_log(trash: Path) -> dict[str, str]:
    lines = (trash / "log.jsonl").read_text().splitlines()
    return {entry["file"]: entry["from"] for entry in map(json.loads, lines)}


def test_groups_are_listed_with_the_best_image_first(client: Client, folder: Path) -> None:
    page = client.get("/v1/duplicates").json()
    assert (page["total"], page["offset"], page["limit"], page["n_left_out"]) == (1, 0, 50, 0)
    (group,) = page["groups"]
    assert group["kind"] == "near"
    large, photo, copy = group["images"]
    assert [Path(image["path"]).name for image in group["images"]] == [
        "large.png",
        "photo.png",
        "copy.png",
    ]
    assert group["best"] == large["id"] == to_id(str(folder / "large.png"))
    assert (large["width"], large["height"]) == (480, 360)
    assert large["size"] == (folder / "large.png").stat().st_size
    assert photo["date"] < copy["date"]
    assert [image["copy"] for image in group["images"]] == [False, False, True]
    exact = client.get("/v1/duplicates", params={"near": False}).json()["groups"]
    assert [(group["kind"], len(group["images"])) for group in exact] == [("exact", 2)]
    assert client.get("/v1/duplicates?offset=1").json()["groups"] == []


def test_missing_files_are_counted_and_not_listed(client: Client, folder: Path) -> None:
    (folder / "large.png").unlink()
    (folder / "other.png").unlink()
    page = client.get("/v1/duplicates").json()
    assert page["n_left_out"] == 2
    assert [group["best"] for group in page["groups"]] == [to_id(str(folder / "photo.png"))]


def test_few_requests_for_duplicates_wait_for_their_turn(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go_on = threading.Event(), threading.Event()

    def find_slowly(*arguments: Any, **options: Any) -> Any:
        started.set()
        go_on.wait(30)
        return find_duplicates(*arguments, **options)

    monkeypatch.setattr(images, "find_duplicates", find_slowly)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(client.get, "/v1/duplicates") for _ in range(8)]
        assert started.wait(30)
        assert client.get("/v1/images").status_code == 200
        while sum(answer.done() for answer in answers) < 5:
            assert not go_on.wait(0.01)
        go_on.set()
    statuses = sorted(answer.result().status_code for answer in answers)
    assert statuses == [200] * 3 + [503] * 5


def test_a_file_is_moved_into_the_trash_and_never_deleted(
    client: Client, gallery: Gallery, folder: Path, trash: Path
) -> None:
    content = (folder / "copy.png").read_bytes()
    answer = throw(client, folder / "copy.png", folder / "copy.png")
    moved = {"id": to_id(str(folder / "copy.png")), "path": str(folder / "copy.png")}
    assert answer.json() == {"images": [{**moved, "file": str(trash / "copy.png")}]}
    assert (trash / "copy.png").read_bytes() == content
    assert not (folder / "copy.png").exists()
    assert str(folder / "copy.png") not in gallery
    assert len(gallery) == 3
    (trash / "copy.png").rename(folder / "copy.png")
    assert gallery.add(folder).n_indexed == 4, "it can be taken back"


def test_files_of_one_name_stay_apart(client: Client, folder: Path, trash: Path) -> None:
    contents = {}
    for path in (folder / "photo.png", folder / "other.png"):
        contents[path] = path.read_bytes()
    assert throw(client, folder / "photo.png").status_code == 200
    (folder / "sub").mkdir()
    again = folder / "sub" / "photo.png"
    (folder / "other.png").rename(again)
    with Gallery.open(trash.parent / "g") as gallery:
        gallery.add(again)
    (moved,) = throw(client, again).json()["images"]
    assert moved["file"] == str(trash / "photo-2.png")
    assert (trash / "photo.png").read_bytes() == contents[folder / "photo.png"]
    assert (trash / "photo-2.png").read_bytes() == contents[folder / "other.png"]
    assert read_log(trash) == {
        "photo.png": str(folder / "photo.png"),
        "photo-2.png": str(again),
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "cannot be read"),
        (lambda path: make_photo(9).save(path), "has changed since it was indexed"),
        (
            lambda path: (path.rename(path.with_name("z.png")), path.symlink_to("z.png")),
            "is a symbolic link",
        ),
    ],
    ids=["missing", "changed", "link"],
)
def test_if_one_file_is_not_as_it_was_indexed_none_is_moved(
    client: Client, gallery: Gallery, folder: Path, trash: Path, change: Any, reason: str
) -> None:
    change(folder / "copy.png")
    files = sorted(folder.iterdir())
    refused = throw(client, folder / "other.png", folder / "copy.png")
    failed(refused, 409, "not-trashed", "copy.png", reason, "nothing was moved")
    assert sorted(folder.iterdir()) == files
    assert not trash.exists()
    assert len(gallery) == 4


def test_a_changed_file_of_the_same_size_and_time_is_not_moved(
    client: Client, folder: Path
) -> None:
    path = folder / "copy.png"
    status, content = path.stat(), bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    failed(throw(client, path), 409, "not-trashed", "has changed")
    assert path.exists()


def test_images_that_are_no_files_of_the_gallery_are_not_moved(
    client: Client, gallery: Gallery, folder: Path
) -> None:
    gallery.add({"memory": make_photo(8)})
    failed(throw(client, "memory"), 409, "not-trashed", "from memory")
    secret = folder.parent / "secret.png"
    make_photo(3).save(secret)
    failed(throw(client, folder / "other.png", secret), 404, "unknown-image")
    failed(client.post("/v1/trash", json={"ids": []}), 422, "wrong-value", "ids")
    assert secret.exists()
    assert len(gallery) == 5


def test_nothing_is_moved_while_another_process_writes(
    client: Client, gallery: Gallery, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LOCK_SECONDS", 0.1)
    with Writer(gallery.path):
        failed(throw(client, folder / "copy.png"), 409, "gallery-locked")
    assert (folder / "copy.png").exists()


def test_from_another_disk_a_file_is_copied_first(
    client: Client, folder: Path, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    content = (folder / "copy.png").read_bytes()
    monkeypatch.setattr("bm25v.store.local.trash.os.replace", refuse)
    assert throw(client, folder / "copy.png").status_code == 200
    assert (trash / "copy.png").read_bytes() == content
    assert not (folder / "copy.png").exists()

    def copy_half(source: str, target: Path) -> None:
        target.write_bytes(Path(source).read_bytes()[:-9])

    monkeypatch.setattr("bm25v.store.local.trash.shutil.copy2", copy_half)
    failed(throw(client, folder / "other.png"), 409, "not-trashed", "other content")
    assert (folder / "other.png").exists()
    assert not (trash / "other.png").exists()


def test_files_that_were_moved_before_an_error_are_not_in_the_gallery(
    client: Client, gallery: Gallery, folder: Path, trash: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = os.replace

    def fail_once(source: str, target: Path) -> None:
        if any(trash.glob("*.png")) and len(list(folder.iterdir())) == 3:
            raise PermissionError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr("bm25v.store.local.trash.os.replace", fail_once)
    failed(throw(client, *map(folder.joinpath, NAMES)), 409, "not-trashed", "moved before it: 1")
    assert len(list(folder.iterdir())) == len(gallery) == 3
    assert len(list(trash.glob("*.png"))) == 1


def test_without_writable_no_file_is_moved(gallery: Gallery, folder: Path, tmp_path: Path) -> None:
    with serving(gallery, tmp_path / "cache") as client:
        failed(throw(client, folder / "copy.png"), 405, "read-only", "--writable")
        assert client.get("/v1/duplicates").json()["total"] == 1
    assert (folder / "copy.png").exists()
