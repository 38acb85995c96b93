"""Filters by folder, date and size, pages of hits, and the query's own images."""

import os
import pickle
import re
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from bm25v import Gallery, Query
from bm25v.errors import GalleryError, InvalidOption, InvalidQuery
from bm25v.images import matches_pattern
from bm25v.store.filters import ImageFilter, parse_period
from bm25v.store.local import selection, snapshot
from bm25v.store.local.catalog import FILE_NAME, Catalog
from bm25v.store.local.selection import select_rows
from tests.conftest import make_image, make_pixels


def save_photo(path: Path, seed: int, *, taken: str | None = None, side: int = 64) -> None:
    """Save an image, with an EXIF date if there is one; the file's time is noon of 2001-02-03."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    if taken is not None:
        exif[0x010F] = "camera"
        exif.get_ifd(0x8769)[0x9003] = taken
    make_image(seed, side=side).save(path, exif=exif)
    noon = datetime(2001, 2, 3, 12).timestamp()
    os.utime(path, (noon, noon))


@pytest.fixture
def albums(tmp_path: Path, make_gallery: Callable[[str], Gallery]) -> Gallery:
    """A gallery of six photos in three folders."""
    save_photo(tmp_path / "rome" / "a.jpg", 0, taken="2023:06:01 09:30:00", side=64)
    save_photo(tmp_path / "rome" / "b.jpg", 1, taken="2023:06:30 23:59:59", side=100)
    save_photo(tmp_path / "rome" / "raw" / "c.png", 2, side=200)
    save_photo(tmp_path / "romeo" / "d.jpg", 3, taken="2023:07:01 00:00:00", side=300)
    save_photo(tmp_path / "oslo" / "e.png", 4, taken="2021:12:31 00:00:00", side=64)
    save_photo(tmp_path / "oslo" / "f.jpg", 5, taken="0000:00:00 00:00:00", side=400)
    gallery = make_gallery("g")
    assert gallery.add([tmp_path / name for name in ("rome", "romeo", "oslo")]).added == 6
    return gallery


def select(gallery: Gallery, **filters: Any) -> str:
    """Return the letters of the images that filters select; search and list must agree."""
    listed = sorted(Path(image.path).stem for image in gallery.images(**filters))
    hits = gallery.search(make_pixels(9), mode="dense", k=100, **filters)
    assert sorted(Path(hit.path).stem for hit in hits) == listed
    return "".join(listed)


def test_a_folder_selects_what_is_in_it(
    albums: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert select(albums, folder=tmp_path / "rome") == "abc"
    assert select(albums, folder=f"{tmp_path}/rome/") == "abc"
    assert select(albums, folder=tmp_path / "rome" / "raw") == "c"
    assert select(albums, folder=[tmp_path / "romeo", tmp_path / "oslo"]) == "def"
    assert select(albums, folder=tmp_path / "oslo" / "e.png") == "e"
    assert select(albums, folder=tmp_path / "paris") == ""
    monkeypatch.chdir(tmp_path)
    assert select(albums, folder="rome") == "abc"
    assert select(albums, folder=".") == "abcdef"
    monkeypatch.chdir(tmp_path / "oslo")
    assert select(albums, folder="../rome") == "abc"
    assert select(albums, folder="rome") == ""


def test_a_pattern_selects_by_path(
    albums: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert select(albums, folder="*.png") == "ce"
    assert select(albums, folder="**/raw/*") == "c"
    assert select(albums, folder="rome*") == "abcd"
    assert select(albums, folder=f"{tmp_path}/r*/?.jpg") == "abd"
    assert select(albums, folder=f"{tmp_path}/**/*.jpg") == "abdf"
    monkeypatch.chdir(tmp_path)
    assert select(albums, folder="rome/*.jpg") == "ab"
    assert select(albums, folder="rome/**") == "abc"
    monkeypatch.chdir(tmp_path / "oslo")
    assert select(albums, folder="rome/**") == ""


def test_several_patterns_select_what_each_of_them_selects(
    albums: Gallery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "_PATHS_AT_ONCE", 2)
    patterns = {
        "*.png": "ce",
        "rome*": "abcd",
        f"{tmp_path}/r*/?.jpg": "abd",
        f"{tmp_path}/rome/**": "abc",
        f"{tmp_path}/rome/raw/*": "c",
        f"{tmp_path}/oslo/f*": "f",
        f"{tmp_path}/oslo/": "ef",
        "**/paris/*": "",
    }
    for one, of_one in patterns.items():
        assert select(albums, folder=one) == of_one
        for other, of_other in patterns.items():
            assert select(albums, folder=[one, other]) == "".join(sorted({*of_one, *of_other}))
    assert select(albums, folder=list(patterns)) == "abcdef"
    many = [f"*{number}.png" for number in range(63)]
    assert select(albums, folder=many) == ""
    assert select(albums, folder=[*many, "c*"]) == "c"
    assert select(albums, folder=["x" * 4_000 + "*", "d*"]) == "d"


@pytest.mark.parametrize("folder", [["*"] * 65, "?" * 65, "*" + "x" * 4_096])
def test_the_wildcards_of_a_search_are_limited(albums: Gallery, folder: str | list[str]) -> None:
    with pytest.raises(InvalidQuery, match=r"wildcards in .* give at most 64 in 4,096"):
        albums.search(must=1, folder=folder)


def test_rows_are_selected_on_a_connection_of_their_own(albums: Gallery) -> None:
    """Whoever searches meanwhile does not wait."""
    rows: list[int] = []
    with albums.local.catalog.transaction():
        catalog = Catalog(albums.path / FILE_NAME)
        thread = threading.Thread(
            target=lambda: rows.extend(select_rows(catalog, ImageFilter.of(folder="*.png")))
        )
        thread.start()
        thread.join(timeout=30)
        assert not thread.is_alive()
    catalog.close()
    assert len(rows) == 2


@pytest.mark.parametrize(
    "name", ["ö [1]*?.png", "耳.png", "a\nb.png", "%_'\".png", b"\xff\xfe.png"], ids=ascii
)
def test_patterns_match_any_file_name(
    tmp_path: Path, make_gallery: Callable[[str], Gallery], name: str | bytes
) -> None:
    path = tmp_path / "photos" / os.fsdecode(name)
    try:
        save_photo(path, 1)
    except OSError:
        pytest.skip("this file system accepts only text")
    gallery = make_gallery("g")
    gallery.add(tmp_path / "photos")
    expected = [str(path)]
    start = os.fsdecode(name)[:1]
    patterns = ("*.png", "**/*", f"{start}*", f"{tmp_path}/photos/{start}*", f"{tmp_path}/p*/*png")
    for pattern in patterns:
        assert [image.path for image in gallery.images(folder=pattern)] == expected
    assert not list(gallery.images(folder="*.jpg"))


def test_a_date_is_that_of_the_camera_else_that_of_the_file(albums: Gallery) -> None:
    dates = {Path(image.path).stem: image.date for image in albums}
    assert dates["a"] == datetime(2023, 6, 1, 9, 30)
    assert dates["c"] == dates["f"] == datetime(2001, 2, 3, 12)
    assert {Path(image.path).stem for image in albums if image.taken is None} == {"c", "f"}


@pytest.mark.parametrize(
    ("period", "expected"),
    [
        ("2023", "abd"),
        (2023, "abd"),
        ("2023-06", "ab"),
        ("2023-6-1", "a"),
        ("2023-06-01T09:30", "a"),
        ("2023-06-01 09:31", ""),
        (date(2023, 6, 30), "b"),
        (datetime(2023, 6, 30, 23, 59, 59), "b"),
        ("2021..2023-06", "abe"),
        ("2023-06-30..", "bd"),
        ("..2021", "cef"),
        (("2023-06-02", None), "bd"),
        ((None, date(2023, 6, 30)), "abcef"),
        ("2001-02-03", "cf"),
        ("2001-02-03T12", "cf"),
        ("2001-02-04", ""),
        ("1000..3000", "abcdef"),
    ],
)
def test_a_date_may_be_a_year_a_month_a_day_a_time_or_a_range(
    albums: Gallery, period: Any, expected: str
) -> None:
    assert select(albums, date=period) == expected


def test_a_date_with_a_time_zone_is_taken_on_the_clock_of_this_computer() -> None:
    moment = datetime(2023, 6, 1, 12, tzinfo=timezone(timedelta(hours=5)))
    assert parse_period(moment).start == moment.astimezone().replace(tzinfo=None)


def test_a_size_selects_by_width_and_height(
    tmp_path: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery = make_gallery("g")
    wide, high = np.zeros((50, 200, 3), np.uint8), np.full((200, 50, 3), 9, np.uint8)
    gallery.add({"wide": wide, "high": high})
    filters: list[tuple[dict[str, Any], set[str]]] = [
        ({"min_size": 50}, {"wide", "high"}),
        ({"min_size": 51}, set()),
        ({"min_size": (200, 1)}, {"wide"}),
        ({"max_size": (50, 200)}, {"high"}),
        ({"min_size": (10, 100), "max_size": 1000}, {"high"}),
    ]
    for sizes, expected in filters:
        assert {image.path for image in gallery.images(**sizes)} == expected


def test_filters_combine_with_each_other_and_with_words(albums: Gallery, tmp_path: Path) -> None:
    assert select(albums, folder=tmp_path / "rome", date="2023", min_size=100) == "b"
    word = albums.search(make_pixels(3), mode="dense", k=1)[0].words[0].word
    hits = albums.search(must=word, folder="*.jpg", date="2023-07")
    assert [Path(hit.path).stem for hit in hits] == ["d"]


def test_filters_read_nothing_but_an_index_of_the_catalogue(albums: Gallery) -> None:
    """So one image out of a million costs no more than that."""
    statements: list[str] = []
    catalog = albums.local.catalog
    catalog.db.set_trace_callback(statements.append)
    for filters in ({"folder": "/rome"}, {"date": "2023"}, {"min_size": 9}, {"date": "..2023"}):
        select_rows(catalog, ImageFilter.of(**filters))
    catalog.db.set_trace_callback(None)
    selects = [s for s in statements if "WHERE live" in s and "path =" not in s]
    assert len(selects) >= 5
    for statement in selects:
        ((*_, plan),) = catalog.db.execute(f"EXPLAIN QUERY PLAN {statement}").fetchall()
        assert "USING COVERING INDEX" in plan
        assert ("SEARCH" in plan) == ("1 AND width" not in statement), "only sizes need all of it"


def test_the_rows_of_a_filter_follow_the_gallery(albums: Gallery, tmp_path: Path) -> None:
    assert select(albums, folder=tmp_path / "oslo") == "ef"
    (tmp_path / "oslo" / "e.png").rename(tmp_path / "rome" / "e.png")
    save_photo(tmp_path / "oslo" / "x.png", 11)
    albums.add([tmp_path / "rome", tmp_path / "oslo"], remove_missing=True)
    assert select(albums, folder=tmp_path / "oslo") == "fx"
    albums.remove(tmp_path / "oslo" / "f.jpg")
    albums.compact()
    assert select(albums, folder=tmp_path / "oslo") == "x"
    assert select(albums, date="2021") == "e"


# Wrong values


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"date": "yesterday"}, "date 'yesterday': give a year, a month"),
        ({"date": "2023-13"}, "date '2023-13': give a year"),
        ({"date": "2023-02-30"}, "date '2023-02-30'"),
        ({"date": "9999"}, "date '9999'"),
        ({"date": "0000"}, "date '0000'"),
        ({"date": ".."}, "give a start, an end or both"),
        ({"date": (None, None)}, "give a start, an end or both"),
        ({"date": (1, 2, 3)}, r"date \(1, 2, 3\): give a start, an end or both"),
        ({"date": ("2023",)}, "give a start, an end or both"),
        ({"date": "2023..2022"}, "date 2023..2022: it ends before it starts"),
        ({"min_size": 0}, r"min_size = 0: give a number of pixels, or \(width, height\)"),
        ({"max_size": (1, 2, 3)}, r"max_size = \(1, 2, 3\)"),
        ({"max_size": "large"}, "max_size = 'large'"),
        ({"min_size": (1.5, 2)}, "min_size = "),
        ({"folder": ""}, "'' is not a path: for the current folder, give '.'"),
        ({"folder": [" "]}, "an empty folder"),
        ({"offset": -1}, "offset = -1: give a whole number, 0 or more"),
    ],
)
def test_a_wrong_filter_is_named(filters: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        Query.of("cat.jpg", **filters)


def test_a_filter_that_selects_nothing_is_the_reason_for_no_match(
    albums: Gallery, tmp_path: Path
) -> None:
    def reason(**options: Any) -> str | None:
        return albums.search(make_pixels(9), **options).no_match

    assert reason(folder="/nowhere") == "no image in /nowhere"
    assert reason(date="1999", min_size=10) == "no image dated 1999, at least 10 × 10 pixels"
    assert reason(offset=100) == "there are no more hits after the first 100"
    word = albums.search(make_pixels(9))[0].words[0].word
    jpegs = albums.search(must=word, folder="*.gif").no_match
    assert jpegs == f"no image in *.gif that has word {word}"


# Pages


@pytest.mark.parametrize("mode", ["sparse", "dense", "two-stage", "words", "hybrid"])
def test_pages_are_parts_of_one_list(gallery: Gallery, mode: Any) -> None:
    whole = gallery.search(make_pixels(9), k=12, mode=mode).hits
    for k in (1, 3, 5):
        pages = [
            gallery.search(make_pixels(9), k=k, offset=offset, mode=mode).hits
            for offset in range(0, 12, k)
        ]
        assert tuple(hit for page in pages for hit in page) == whole


def test_pages_of_two_stages_end_with_the_candidates(gallery: Gallery) -> None:
    few = {"candidates": 4, "k": 3, "mode": "two-stage"}
    first, second, third = (
        gallery.search(make_pixels(9), offset=offset, **few)  # type: ignore[arg-type]
        for offset in (0, 3, 6)
    )
    assert [hit.rank for hit in (*first, *second)] == [1, 2, 3, 4]
    assert third.no_match == "there are no more hits after the first 6"


# The query's own images


def test_the_query_image_and_its_copies_are_left_out(gallery: Gallery, photos: Path) -> None:
    shutil.copy(photos / "3.png", photos / "copy.png")
    gallery.add(photos)
    own = {str(photos / "3.png"), str(photos / "copy.png")}
    elsewhere = photos.parent / "elsewhere.png"
    shutil.copy(photos / "3.png", elsewhere)
    hit = gallery.search(make_pixels(3))[0]
    assert hit.path in own
    content = elsewhere.read_bytes()
    opened = Image.open(photos / "3.png")
    for query in (photos / "3.png", elsewhere, content, hit):
        paths = {h.path for h in gallery.search(query, k=20)}
        assert len(paths) == 11
        assert not paths & own
        kept = {h.path for h in gallery.search(query, k=20, include_query=True)}
        assert kept == paths | own
    assert str(photos / "3.png") not in {h.path for h in gallery.search(opened, k=20)}
    assert own <= {h.path for h in gallery.search(make_pixels(3), k=20)}, "pixels have no file"
    (many,) = gallery.search_many([elsewhere], k=20)
    assert not {h.path for h in many} & own


def test_unliked_images_are_left_out_and_liked_ones_stay(gallery: Gallery, photos: Path) -> None:
    options = {"like": photos / "1.png", "unlike": [photos / "2.png"], "mode": "dense", "k": 20}
    paths = {hit.path for hit in gallery.search(make_pixels(9), **options)}  # type: ignore[arg-type]
    assert len(paths) == 11
    assert str(photos / "1.png") in paths
    assert str(photos / "2.png") not in paths
    negative = gallery.search(make_pixels(9), negative=photos / "4.png", mode="dense", k=20)
    assert str(photos / "4.png") not in {hit.path for hit in negative}


def test_a_changed_file_is_still_the_query_itself(gallery: Gallery, photos: Path) -> None:
    make_image(50).save(photos / "3.png")
    assert str(photos / "3.png") not in {hit.path for hit in gallery.search(photos / "3.png", k=20)}


def test_a_gallery_of_the_query_alone_has_no_match(
    photos: Path, make_gallery: Callable[[str], Gallery]
) -> None:
    gallery = make_gallery("g")
    gallery.add(photos / "3.png")
    results = gallery.search(photos / "3.png")
    assert results.no_match == "there is no other image than those of the query"


def test_a_hit_explains_itself_until_it_is_pickled(gallery: Gallery, photos: Path) -> None:
    options = {"region": (0, 0, 0.5, 1), "boost": {3: 2.0}}
    hit = gallery.search(photos / "3.png", **options)[0]  # type: ignore[arg-type]
    explanation = hit.explain()
    assert explanation.to_dict() == gallery.explain(photos / "3.png", hit, **options).to_dict()  # type: ignore[arg-type]
    assert explanation.sparse == hit.sparse
    (many,) = gallery.search_many([photos / "3.png"])
    assert many[0].explain().hit_path == many[0].path
    restored = pickle.loads(pickle.dumps(hit))
    assert restored == hit
    with pytest.raises(InvalidOption, match="has no open gallery"):
        restored.explain()
    gallery.close()
    with pytest.raises(GalleryError, match="is closed"):
        hit.explain()


NAMES = ("**", "a", "b", "*", "?", "a*", "*b", "a*b", "*a*", "?b", "*a*b*", "**b", "b?")


def match_plainly(path: str, pattern: str) -> bool:
    """Match with every wildcard as a group of its own, which can take time without end."""
    wildcards = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.findall(r"\*\*/|\*\*|\*|\?|[^*?]+", pattern.strip("/"))
    body = "".join(wildcards.get(part) or re.escape(part) for part in parts)
    start = "" if "/" in pattern.rstrip("/") else "(?:.*/)?"
    end = "/.*" if pattern.endswith("/") else "(?:/.*)?"
    return re.fullmatch(f"{start}{body}{end}", path) is not None


@given(
    names=st.lists(st.sampled_from(NAMES), min_size=1, max_size=4),
    path=st.from_regex("[ab]{1,3}(/[ab]{1,3}){0,4}/?", fullmatch=True),
    edges=st.tuples(st.sampled_from(["", "/"]), st.sampled_from(["", "/"])),
)
def test_patterns_match_as_they_are_written(
    names: list[str], path: str, edges: tuple[str, str]
) -> None:
    pattern = edges[0] + "/".join(names) + edges[1]
    assert matches_pattern(path, (pattern,)) == match_plainly(path, pattern)


def test_two_stars_beside_letters_stand_for_letters_and_folders() -> None:
    for path in ("raw/cat.png", "raw2/cat.png", "raw2/may/cat.png"):
        assert matches_pattern(path, ("raw**/cat.png",))
        assert matches_pattern(path, ("/raw**",))
        assert matches_pattern(path, ("/r**w*/**.png",))
    assert not matches_pattern("rawcat.png", ("raw**/cat.png",))


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*a" * 200 + "*b", "a" * 1000),
        ("*?" * 200 + "b", "a" * 1000),
        ("**/a/" * 40 + "b", "a/" * 500),
        ("**/*a*/" * 40 + "b", "aa/" * 500),
        ("**a" * 200 + "b", "a/" * 500),
    ],
)
def test_patterns_with_many_wildcards_take_little_time(pattern: str, path: str) -> None:
    """People who may search a server may send any pattern."""
    start = time.process_time()
    assert not matches_pattern(path, (pattern,))
    assert time.process_time() - start < 1


def test_a_search_looks_up_its_own_images_by_an_index(albums: Gallery) -> None:
    """So leaving them out costs no more in a gallery of a million images."""
    statements: list[str] = []
    database = albums.local.catalog.db
    database.set_trace_callback(statements.append)
    path = next(albums.images()).path
    for query in (path, make_pixels(3), Path(path).read_bytes()):
        assert albums.search(query).hits
    database.set_trace_callback(None)
    selects = [s for s in statements if "LEFT JOIN images" in s]
    assert len(selects) >= 7
    for statement in selects:
        plan = [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {statement}")]
        assert not [step for step in plan if step.startswith("SCAN")], statement


def test_other_searches_do_not_wait_for_a_slow_filter(
    albums: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_selecting, may_go_on = threading.Event(), threading.Event()

    def select_slowly(catalog: Catalog, image_filter: ImageFilter) -> Any:
        is_selecting.set()
        assert may_go_on.wait(30)
        return select_rows(catalog, image_filter)

    monkeypatch.setattr(snapshot, "select_rows", select_slowly)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(albums.search, make_pixels(3), folder="*.png")
        assert is_selecting.wait(30)
        assert albums.search(make_pixels(3)).hits
        assert not slow.done()
        may_go_on.set()
        assert slow.result(timeout=30).hits
