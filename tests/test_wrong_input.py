"""Wrong values are one clear error, and no search prints what is not a number."""

import json
import math
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.display import format_json
from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
from bm25v.search.combine import MAX_BOOST
from bm25v.search.query import Query
from bm25v.search.regions import is_in_pixels
from tests import test_cli
from tests.conftest import make_image
from tests.test_cli import Run, failed

run, indexed = test_cli.run, test_cli.indexed


@pytest.mark.parametrize(
    "words",
    [
        ("index", ""),
        ("remove", ""),
        ("remove", "photos/1.png", ""),
        ("search", ""),
        ("search", "photos/1.png", "--like", ""),
        ("search", "photos/1.png", "--unlike", ""),
        ("search", "photos/1.png", "--not", ""),
        ("explain", "photos/1.png", ""),
        ("explain", "photos/1.png", "photos/2.png", "-o", ""),
        ("info", "-g", ""),
        ("words", "export", "-o", ""),
        ("train", "", "-o", "vocabulary"),
    ],
)
def test_an_empty_path_is_wrong_use_on_the_command_line(indexed: Run, words: Any) -> None:
    failed(indexed(*words), 2, "an empty path: for the current folder, give .")
    assert indexed("info", "--json").json["n_images"] == 12


def test_an_empty_path_is_wrong_use_in_the_library(gallery: Gallery, photos: Path) -> None:
    calls: dict[str, Callable[[], object]] = {
        "add": lambda: gallery.add(""),
        "add several": lambda: gallery.add([str(photos), ""]),
        "remove": lambda: gallery.remove(""),
        "contains": lambda: "" in gallery,
        "open": lambda: Gallery.open(""),
        "create": lambda: Gallery.create("", vocabulary="toy"),
        "open or create": lambda: Gallery.open_or_create("", vocabulary="toy"),
        "search": lambda: gallery.search(""),
        "several": lambda: Query(images=("", photos / "1.png")),
        "negative": lambda: Query.of(photos / "1.png", negative=""),
        "like": lambda: Query.of(photos / "1.png", like=[""]),
        "unlike": lambda: Query.of(photos / "1.png", unlike=""),
        "match": lambda: gallery.match(photos / "1.png", ""),
        "explain": lambda: gallery.explain(photos / "1.png", ""),
    }
    for name, call in calls.items():
        with pytest.raises(InvalidOption, match="'' is not a path"):
            pytest.fail(f"{name}: {call()}")
    assert len(gallery) == 12


@pytest.mark.parametrize("path", [5, None, b"photos"])
def test_what_is_not_a_path_is_wrong_use(gallery: Gallery, path: Any) -> None:
    with pytest.raises(InvalidOption, match="is not a path"):
        Gallery.open(path)
    with pytest.raises(InvalidOption, match="is not a path"):
        gallery.remove([path])


@pytest.mark.parametrize("value", [2.5, "x", True, None, -1, [3]])
@pytest.mark.parametrize("name", ["k", "candidates", "offset", "query_words"])
def test_a_count_of_a_wrong_type_is_named(name: str, value: Any) -> None:
    if value is None and name in ("query_words", "candidates"):
        return
    options: dict[str, Any] = {name: value}
    with pytest.raises(InvalidOption) as raised:
        Query.of("cat.jpg", **options)
    assert f"{name} = {value!r}: give a whole number" in str(raised.value)


@pytest.mark.parametrize(
    "options",
    [
        {"boost": {3: "x"}},
        {"boost": {3: None}},
        {"boost": {3: True}},
        {"boost": {3: math.nan}},
        {"boost": {3: math.inf}},
        {"boost": {3: 1e308}},
        {"boost": {3: -1.1e6}},
        {"boost": {3: 10**400}},
        {"boost": {2.5: 1.0}},
        {"boost": [3]},
        {"boost": 3},
        {"must": 2.5},
        {"must": [True]},
        {"without": [None]},
        {"min_coverage": "x"},
        {"min_coverage": math.nan},
        {"text": 5},
        {"like": 5},
    ],
    ids=str,
)
def test_an_option_of_a_wrong_type_is_named(
    gallery: Gallery, photos: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidOption) as raised:
        gallery.search(photos / "1.png", **options)
    (value,) = options.values()
    (value,) = value.items() if isinstance(value, dict) else (value,)
    named = [repr(part) for part in (value if isinstance(value, tuple | list) else (value,))]
    assert any(part in str(raised.value) for part in named)


def test_what_is_not_an_image_is_wrong_use() -> None:
    with pytest.raises(InvalidOption, match="a int is not an image"):
        Query.of(5)  # type: ignore[arg-type]


@pytest.mark.parametrize("factor", [MAX_BOOST, -MAX_BOOST, 5e-324])
def test_scores_are_finite_and_equal_by_scan_and_index_for_any_boost(
    gallery: Gallery, photos: Path, factor: float
) -> None:
    words = [word.word for word in gallery.words()]
    results = []
    for with_index in (False, True):
        if with_index:
            gallery.local.snapshot().searcher.build_index()
        hits = gallery.search(
            photos / "1.png", boost=dict.fromkeys(words[::2], factor), mode="sparse", k=12
        )
        results.append([(hit.path, hit.score) for hit in hits])
        assert all(math.isfinite(hit.score) for hit in hits)
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("region", "message"),
    [
        ("nan,0,1,1", "each number must be finite"),
        ("0,0,inf,1", "each number must be finite"),
        ("0.5,0.5,1e-20,1e-20", "is too small"),
        ("30,30,1e-20,1e-20", "is too small"),
        ("0.5,0.5,1e-320,0.5", "is too small"),
        ("0,0,-0.5,0.5", "has no area"),
        ("-0.1,0,0.5,0.5", "starts outside the image"),
        ("0.9,0.9,0.5,0.5", "reaches beyond the image"),
        ("1e300,0,1,1", "reaches beyond the image"),
        ("0,0,1e308,1e308", "reaches beyond the image"),
        ("0,0,0,0", "has no area"),
    ],
)
def test_a_region_that_selects_nothing_is_one_clear_line(
    indexed: Run, region: str, message: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        failed(indexed("search", "photos/1.png", f"--region={region}"), 2, message)


@pytest.mark.parametrize("side", [1e-6, 1e-5, 0.3])
@pytest.mark.parametrize("start", [0.0, 1 / 3, 0.5, 0.7])
def test_the_smallest_region_finds_something(
    gallery: Gallery, photos: Path, side: float, start: float
) -> None:
    assert gallery.search(photos / "1.png", region=(start, start, side, side))


def test_a_region_that_no_float_holds_is_wrong_use() -> None:
    with pytest.raises(InvalidOption, match="give x,y,width,height"):
        is_in_pixels((0, 0, 10**400, 1))


def test_a_file_of_the_far_future_is_indexed_and_unchanged_afterwards(
    run: Run, photos: Path
) -> None:
    seconds = 10_413_792_000  # the first day of 2300
    try:
        os.utime(photos / "3.png", (seconds, seconds))
        is_stored = (photos / "3.png").stat().st_mtime == seconds
    except OSError:
        is_stored = False
    if not is_stored:
        pytest.skip("this file system does not store such a time")
    assert run("index", photos, "--vocabulary", "toy", "--json").json["added"] == 12
    assert run("index", photos, "--json").json["unchanged"] == 12
    assert run("search", photos / "3.png", "--include-query").code == 0


def test_a_file_that_a_folder_replaced_is_removed(indexed: Run, photos: Path) -> None:
    (photos / "3.png").unlink()
    (photos / "3.png").mkdir()
    make_image(77).save(photos / "3.png" / "inside.png")
    report = indexed("index", photos, "--json").json
    assert (report["removed"], report["added"], report["failed"]) == (1, 1, [])
    paths = [hit["path"] for hit in indexed("search", photos / "1.png", "--json").json["hits"]]
    assert str(photos / "3.png") not in paths


def test_an_image_without_suffix_that_became_a_text_is_reported(run: Run, photos: Path) -> None:
    (photos / "0.png").rename(photos / "scan")
    assert run("index", photos, "--vocabulary", "toy", "--json").json["added"] == 12
    assert run("index", photos, "--json").json["unchanged"] == 12
    (photos / "scan").write_text("a text of some length now")
    for known in (False, True):
        report = run("index", photos, "--json").json
        (failure,) = report["failed"]
        assert failure["path"] == str(photos / "scan")
        assert failure["known"] is known
        assert "is not an image" in failure["error"]
    make_image(99).save(photos / "scan", "png")
    report = run("index", photos, "--json").json
    assert (report["updated"], report["failed"]) == (1, [])


def test_index_fails_if_every_file_did(run: Run, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.png").write_text("text")
    assert run("index", "photos", "--vocabulary", "toy").code == 1
    assert run("index", "photos", "--json").code == 1
    make_image(1).save(tmp_path / "photos" / "b.png")
    assert run("index", "photos").code == 0


@pytest.mark.parametrize("mode", ["two-stage", "hybrid", "dense"])
def test_a_damaged_vector_comes_last_and_prints_no_nan(
    indexed: Run, tmp_path: Path, mode: str
) -> None:
    with Gallery.open(tmp_path / "gallery.bm25v") as gallery:
        width = gallery.local.snapshot().dense_ne.shape[1]
    path = tmp_path / "gallery.bm25v" / "dense.rows"
    content = bytearray(path.read_bytes())
    content[-2 * width :] = np.full(width, np.nan, np.float16).tobytes()
    path.write_bytes(content)
    words = ("search", "photos/5.png", "--mode", mode, "-k", 12)
    printed = indexed(*words)
    assert (printed.code, printed.err) == (0, "")
    assert "nan" not in printed.out
    hits = json.loads(indexed(*words, "--json").out, parse_constant=pytest.fail)["hits"]
    assert all(math.isfinite(hit["score"]) for hit in hits)
    if mode == "dense":
        assert hits[-1]["dense"] == -1


def test_json_has_no_nan_and_no_infinity() -> None:
    value = {"a": [math.nan, (math.inf, -math.inf)], "b": {"c": 0.5, "d": None, "e": "NaN"}}
    text = format_json(value)
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"a": [None, [None, None]], "b": {"c": 0.5, "d": None, "e": "NaN"}}
