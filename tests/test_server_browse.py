"""What the server says to people who browse: dates, files, words by name, and unknown addresses."""

import os
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from bm25v import Gallery
from bm25v.client import to_id
from tests.conftest import make_image
from tests.http_server import TOKEN, Client, serving
from tests.test_server import failed

TAKEN = 36867  # EXIF: when the photo was taken


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six images of four months; the date of one is in its metadata."""
    folder = tmp_path / "photos"
    for seed, (month, name) in enumerate(
        [("2021-05", "a"), ("2023-06", "b"), ("2019-12", "a"), ("2023-06", "a"), ("2021-05", "b")]
    ):
        path = folder / name / f"{seed}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        make_image(seed).save(path)
        moment = time.mktime(datetime.fromisoformat(f"{month}-1{seed}").timetuple())
        os.utime(path, (moment, moment))
    exif = Image.Exif()
    exif.get_ifd(0x8769)[TAKEN] = "2022:01:31 23:59:58"
    make_image(5).save(folder / "b" / "5.jpg", exif=exif)
    return folder


@pytest.fixture
def gallery(folder: Path, tmp_path: Path) -> Iterator[Gallery]:
    with Gallery.create(tmp_path / "g", vocabulary="toy") as gallery:
        gallery.add(folder)
        yield gallery


def list_names(client: Client, **parameters: Any) -> list[str]:
    page = client.get("/v1/images", params={"order": "date", **parameters}).json()
    return [Path(image["path"]).name for image in page["images"]]


def list_months(client: Client, **parameters: Any) -> list[tuple[str, int]]:
    months = client.get("/v1/months", params=parameters).json()["months"]
    return [(entry["month"], entry["n_images"]) for entry in months]


def test_images_are_listed_by_date_and_counted_by_month(client: Client, folder: Path) -> None:
    names = ["3.png", "1.png", "5.jpg", "4.png", "0.png", "2.png"]
    assert list_names(client) == names
    assert list_names(client, offset=1, limit=3) == names[1:4]
    assert list_months(client) == [("2023-06", 2), ("2022-01", 1), ("2021-05", 2), ("2019-12", 1)]
    in_a = {"folder": str(folder / "a")}
    assert list_names(client, **in_a) == ["3.png", "0.png", "2.png"]
    assert list_months(client, **in_a) == [("2023-06", 1), ("2021-05", 1), ("2019-12", 1)]
    assert list_months(client, date="2021") == [("2021-05", 2)]
    assert list_months(client, date="..2000") == []


def test_dates_follow_what_is_removed_and_added(
    client: Client, gallery: Gallery, folder: Path
) -> None:
    assert len(list_names(client)) == 6
    gallery.remove(folder / "b" / "1.png")
    make_image(7).save(folder / "a" / "7.png")
    os.utime(folder / "a" / "7.png", (2e9, 2e9))
    gallery.add(folder / "a" / "7.png")
    assert list_names(client) == ["7.png", "3.png", "5.jpg", "4.png", "0.png", "2.png"]
    gallery.compact()
    assert list_names(client, limit=2) == ["7.png", "3.png"]
    assert sum(n for _, n in list_months(client)) == 6


def test_an_image_says_whether_its_file_is_as_it_was(
    client: Client, gallery: Gallery, folder: Path
) -> None:
    def look(path: Path | str) -> Any:
        return client.get(f"/v1/images/{to_id(str(path))}").json()

    paths = [folder / "a" / "0.png", folder / "a" / "2.png", folder / "a" / "3.png"]
    os.utime(paths[0])
    paths[1].unlink()
    make_image(9).save(paths[2])
    assert [look(path)["file"] for path in paths] == ["current", "missing", "changed"]
    gallery.add({"shop/7": make_image(7)})
    assert look("shop/7")["file"] == "none"
    assert look(paths[1])["remove_command"] == f"bm25v remove {paths[1]} -g {gallery.location}"


def test_words_are_listed_by_name_with_their_neighbours(client: Client, gallery: Gallery) -> None:
    by_df = [word.word for word in gallery.words(sort="df")]
    first, second, third = by_df[3], by_df[5], by_df[9]
    gallery.name_words({third: "Striped ear", first: "ear", second: "ear"})

    def list_numbers(**parameters: Any) -> tuple[int, list[int]]:
        page = client.get("/v1/words", params={"sort": "name", **parameters}).json()
        return page["total"], [word["word"] for word in page["words"]]

    named = {word.word for word in gallery.words() if word.name}
    total, listed = list_numbers(limit=1000)
    assert total == len(by_df)
    assert listed == [w for w in by_df if w in named] + [w for w in by_df if w not in named]
    assert list_numbers(name="EAR", limit=2) == (3, [first, second])
    assert list_numbers(name="no such name") == (0, [])
    word = client.get(f"/v1/words/{second}", params={"sort": "name", "name": "ear"}).json()
    assert (word["before"], word["after"]) == (first, third)
    df = next(word.df for word in gallery.words() if word.word == first)
    assert word["same_name"] == [{"word": first, "name": "ear", "df": df}]
    ends = [client.get(f"/v1/words/{w}?sort=df").json() for w in (by_df[0], by_df[-1])]
    assert [ends[0]["before"], ends[1]["after"]] == [None, None]
    assert ends[0]["after"] == by_df[1]
    assert client.get(f"/v1/words/{by_df[0]}?name=ear").json()["after"] is None


PEOPLE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_an_unknown_address_is_a_page_for_people_and_a_problem_for_programs(
    client: Client, gallery: Gallery, tmp_path: Path
) -> None:
    page = client.get("/nothing", headers=PEOPLE)
    assert page.status_code == 404
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert 'href="/"' in page.text
    failed(client.get("/nothing"), 404, "not-found")
    for address in ("/v1/nothing", "/static/nothing.js", "/v1/images/AAAA"):
        response = client.get(address, headers=PEOPLE)
        assert response.status_code == 404
        assert response.headers["content-type"] == "application/problem+json"
    with serving(gallery, tmp_path / "cache", access={"token": TOKEN}) as guarded:
        failed(guarded.get("/nothing", headers=PEOPLE), 401, "no-token")
