"""The command line: what it prints, its JSON, its exit codes, its one-line errors."""

import csv
import io
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from PIL import Image
from rich.console import Console

from bm25v import cli
from bm25v.cli import main, progress
from bm25v.gallery import Gallery
from bm25v.vocabulary import Vocabulary
from tests.children import run_python
from tests.conftest import make_image
from tests.lexicons import save_vocabulary


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command in an empty folder, as the shell would."""
    monkeypatch.chdir(tmp_path)
    for name in ("BM25V_GALLERY", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["bm25v", *map(str, words)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Outcome(code, *capsys.readouterr())

    return call


@pytest.fixture
def indexed(run: Run, photos: Path) -> Run:
    """The same, after `bm25v index photos`."""
    assert run("index", photos, "--vocabulary", "toy").code == 0
    return run


def failed(outcome: Outcome, code: int, *parts: str) -> None:
    """Expect one clear line, no traceback, the right exit code."""
    assert outcome.code == code
    assert outcome.out == ""
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line


def test_index_says_what_became_of_the_files(run: Run, photos: Path) -> None:
    (photos / "torn.jpg").write_bytes(b"\xff\xd8\xff\xe0 and no more")
    outcome = run("index", photos, "--vocabulary", "toy")
    assert outcome.code == 0
    assert re.fullmatch(r"12 added, 1 unreadable, 0 unchanged in \S+\n", outcome.out)
    assert "unreadable: photos/torn.jpg: " in outcome.err
    again = run("index", photos, "--json")
    assert again.code == 0
    assert set(again.json) == {
        "added",
        "updated",
        "moved",
        "unchanged",
        "removed",
        "failed",
        "skipped",
        "seconds",
    }
    assert (again.json["added"], again.json["unchanged"]) == (0, 12)
    assert [set(failure) for failure in again.json["failed"]] == [{"path", "error", "known"}]


def test_index_says_what_it_skips(run: Run, photos: Path) -> None:
    for name in ("1.nef", "2.NEF", "3.cr2", "1.xmp", "._1.png", ".trashed-1-2.png"):
        make_image(40).save(photos / name, "PNG")
    outcome = run("index", photos, photos, "--vocabulary", "toy")
    assert "12 added, 0 unreadable, 0 unchanged" in outcome.out
    assert outcome.err.splitlines() == [
        "note: 3 RAW files are not read (.nef 2, .cr2 1)",
        "note: 3 paths are skipped (sidecars 2, trash 1)",
    ]
    again = run("index", photos, "--json", "--exclude", "*.cr2")
    assert again.json["skipped"] == {".nef": 2, "sidecars": 2, "trash": 1}
    for path in photos.glob("[0-9]*.png"):
        path.unlink()
    failed(run("index", photos), 2, "no images in", "(3 RAW files are not read (.nef 2, .cr2 1))")
    named = run("index", photos / "3.cr2", photos / ".trashed-1-2.png", "--json")
    assert (named.json["added"], named.json["skipped"]) == (2, {})


def test_index_lists_a_failure_once(run: Run, photos: Path) -> None:
    torn, later = photos / "torn.jpg", photos / "later.jpg"
    torn.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    assert "unreadable: photos/torn.jpg: " in run("index", photos, "--vocabulary", "toy").err
    later.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    second = run("index", photos)
    assert second.err.startswith("unreadable: photos/later.jpg: ")
    assert len(second.err.splitlines()) == 1
    assert "0 added, 2 unreadable (1 as before: list with -v), 12 unchanged in" in second.out
    third = run("index", photos)
    assert third.err == ""
    assert "2 unreadable (2 as before: list with -v)" in third.out
    assert len(run("index", photos, "-v").err.splitlines()) == 2
    assert [failure["known"] for failure in run("index", photos, "--json").json["failed"]] == [
        True,
        True,
    ]
    torn.write_bytes(b"GIF89a and no more")
    assert run("index", photos).err.startswith("unreadable: photos/torn.jpg: "), "another reason"
    torn.unlink()
    later.unlink()
    assert "12 unchanged" in run("index", photos).out
    later.write_bytes(b"\xff\xd8\xff\xe0 and no more")
    assert run("index", photos).err.startswith("unreadable: photos/later.jpg: "), "it was gone"


def test_search_takes_filters_and_pages(indexed: Run, photos: Path) -> None:
    (photos / "rome").mkdir()
    for number in (1, 2):
        (photos / f"{number}.png").rename(photos / "rome" / f"{number}.png")
    noon = datetime(2023, 6, 1, 12).timestamp()
    os.utime(photos / "rome" / "1.png", (noon, noon))
    make_image(40, side=200).save(photos / "large.png")
    indexed("index", photos)

    def found(*options: object) -> set[str]:
        results = indexed("search", "photos/3.png", "--mode", "dense", "-k", 50, "--json", *options)
        return {os.path.relpath(hit["path"], photos) for hit in results.json["hits"]}

    assert found("--folder", "photos/rome") == {"rome/1.png", "rome/2.png"}
    assert found("--folder", "rome/*", "--folder", "**/large.*") == {"large.png"}
    assert found("--folder", "1*.png") == {"rome/1.png", "10.png", "11.png"}
    assert found("--date", "2023-06") == {"rome/1.png"}
    assert found("--date", "..2023", "--folder", "photos") == {"rome/1.png"}
    assert found("--min-size", "100") == found("--min-size", "200x100") == {"large.png"}
    assert len(found("--max-size", "64x64")) == 11
    assert "3.png" not in found()
    assert "3.png" in found("--include-query")
    pages = [found("-k", 5, "--offset", offset) for offset in (0, 5, 10)]
    assert [len(page) for page in pages] == [5, 5, 2]
    assert set.union(*pages) == found()
    second = indexed("search", "photos/3.png", "-k", 2, "--offset", 2, "--mode", "dense").out
    assert second.splitlines()[1].startswith("3  ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--date", "June"), "date 'June': give a year, a month, a day or a time"),
        (("--min-size", "large"), "--min-size large: give pixels, such as 1000 or 1920x1080"),
        (("--max-size", "10x0"), "max_size = (10, 0): give a number of pixels"),
        (("--folder", ""), "for the current folder, give"),
    ],
)
def test_a_wrong_filter_is_one_clear_line(
    indexed: Run, options: tuple[str, ...], message: str
) -> None:
    failed(indexed("search", "photos/3.png", *options), 2, message)


def test_a_filter_that_selects_nothing_says_so(indexed: Run) -> None:
    outcome = indexed("search", "photos/3.png", "--folder", "elsewhere", "--date", "1999")
    assert outcome.code == 0
    assert outcome.out == "no match: no image in elsewhere, dated 1999\n"


def test_index_follows_the_folder(indexed: Run, photos: Path) -> None:
    (photos / "0.png").unlink()
    (photos / "1.png").rename(photos / "one.png")
    make_image(77).save(photos / "2.png")
    report = indexed("index", photos, "--json").json
    assert {name: report[name] for name in ("added", "updated", "moved", "removed")} == {
        "added": 0,
        "updated": 1,
        "moved": 1,
        "removed": 1,
    }


def test_index_leaves_out_what_is_excluded(run: Run, photos: Path) -> None:
    (photos / "raw").mkdir()
    for number in (10, 11):
        (photos / f"{number}.png").rename(photos / "raw" / f"{number}.png")
    index = ("index", photos, "--vocabulary", "toy", "--json")
    assert run(*index, "--exclude", "raw", "--exclude", "/0.png").json["added"] == 9
    assert run(*index).json["added"] == 3
    report = run(*index, "--exclude", "photos/raw").json  # a path is one in the indexed folder
    assert (report["unchanged"], report["removed"]) == (12, 0)
    report = run(*index, "--exclude", "raw/10.png").json
    assert (report["unchanged"], report["removed"]) == (11, 1)
    report = run("index", photos, photos / "raw", "--exclude", "raw", "--json").json
    assert (report["added"], report["removed"]) == (1, 0)  # raw was given by name
    report = run("index", photos / "1.png", photos / "2.png", "--exclude", "1.*", "--json").json
    assert (report["unchanged"], report["removed"]) == (1, 1)


def test_an_exclude_that_leaves_no_image_is_one_clear_line(run: Run, photos: Path) -> None:
    index = ("index", photos, "--vocabulary", "toy")
    failed(run(*index, "--exclude", "*.png"), 2, "no images left in", "all match exclude *.png")
    assert not Path("gallery.bm25v").exists()
    failed(run(*index, "--exclude", ""), 2, "'' is an empty pattern")
    assert run(*index).code == 0
    failed(run(*index, "--exclude", "*"), 2, "no images left in", "all match exclude *")
    assert run("info", "--json").json["n_images"] == 12


def test_a_bare_command_prints_the_help_and_a_typo_names_the_closest_command(run: Run) -> None:
    bare = run()
    assert (bare.code, bare.err) == (0, "")
    assert bare.out == run("--help").out
    sections = re.findall(r"^(\S.*):$", bare.out, flags=re.MULTILINE)
    assert sections == ["Options", *cli.SECTIONS]
    assert sections[-2:] == ["Other engines and files", "Research"]
    failed(run("serch"), 2, "no command 'serch'", "Did you mean 'search'?")
    failed(run("xyz"), 2, "no command 'xyz'", "bm25v --help")


def test_the_nearest_gallery_above_is_used(
    indexed: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(photos.parent))
    (photos.parent / "below" / "here").mkdir(parents=True)
    monkeypatch.chdir(photos.parent / "below" / "here")
    assert indexed("info", "--json").json["n_images"] == 12
    monkeypatch.setenv("HOME", str(photos.parent / "below"))  # nothing above home is used
    failed(indexed("info"), 1, "no gallery at")


def test_search_prints_a_table(indexed: Run, photos: Path) -> None:
    outcome = indexed("search", photos / "3.png", "-k", "3", "--include-query")
    assert outcome.code == 0
    header, first, *rest = outcome.out.splitlines()
    assert " ".join(header.split()) == "# score coverage image"
    assert first.split()[0] == "1"
    assert first.split()[2] == "100%"
    assert "photos/3.png" in first
    assert len(rest) == 3
    assert re.match(r"all images, sorted by similarity \+ 0\.\d+ × BM25 \(", rest[-1])
    paper = indexed("search", photos / "3.png", "--mode", "two-stage", "--include-query").out
    header, first, *rest = paper.splitlines()
    assert " ".join(header.split()) == "# score coverage image"
    assert first.split()[:3] == ["1", "1.000", "100%"]
    assert "candidates of the index, sorted by similarity (" in rest[-1]


HIT = {"rank", "first_rank", "path", "score", "strength", "sparse", "dense", "coverage"}
HIT |= {"length", "average_length", "n_images", "words", "text", "rest", "copies"}
RESULTS = {"mode", "query", "hits", "no_match", "notes", "sparse_factor", "candidates", "ms"}
RESULTS |= {"understood", "not_understood"}
WORD = {"word", "name", "idf", "tf", "query_tf", "saturation", "contribution", "weight", "df"}


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_search_json_is_the_contract(indexed: Run, photos: Path, mode: str) -> None:
    options = ("-k", "4", "--mode", mode, "--include-query", "--words", 500, "--json")
    found = indexed("search", photos / "3.png", *options).json
    assert set(found) == RESULTS
    assert found["mode"] == mode
    assert (found["no_match"], found["notes"]) == (None, [])
    assert (found["sparse_factor"] is not None) == (mode == "hybrid")
    weights = {word["word"]: word for word in found["query"]}
    assert set(found["query"][0]) == {"word", "name", "weight", "query_tf", "idf", "df"}
    assert set(found["ms"]) == {"load", "encode", "sparse", "rerank"}
    assert [hit["rank"] for hit in found["hits"]] == [1, 2, 3, 4]
    assert found["hits"][0]["path"] == str(photos / "3.png")
    for hit in found["hits"]:
        assert set(hit) == HIT
        factor = found["sparse_factor"] or 0
        by_words = mode in ("words", "sparse")
        by_mode = hit["sparse"] if by_words else hit["dense"] + factor * hit["sparse"]
        assert hit["score"] == pytest.approx(by_mode)
        total = sum(word["contribution"] for word in hit["words"])
        assert total == pytest.approx(hit["sparse"], abs=1e-5)
        for word in hit["words"]:
            assert set(word) == WORD
            assert word["query_tf"] == weights[word["word"]]["query_tf"]


def hits(outcome: Outcome) -> list[str]:
    return [Path(hit["path"]).name for hit in outcome.json["hits"]]


def test_a_search_is_steered(indexed: Run, photos: Path) -> None:
    query = photos.parent / "query.png"
    shutil.move(photos / "3.png", query)
    indexed("index", photos)
    plain = indexed("search", query, "-k", "12", "--words", 500, "--json").json
    word = plain["query"][0]["word"]
    having = {h["path"] for h in plain["hits"] if word in [w["word"] for w in h["words"]]}
    with_word = indexed("search", query, "-k", "12", "--must", word, "--json").json
    assert {hit["path"] for hit in with_word["hits"]} == having
    without = indexed("search", query, "-k", "12", "--without", word, "--json").json
    assert {h["path"] for h in without["hits"]} == {h["path"] for h in plain["hits"]} - having
    boosted = indexed("search", query, "--boost", f"{word}=3", "--json").json
    assert boosted["mode"] == "hybrid"
    weights = {word["word"]: word["weight"] for word in plain["query"]}
    assert boosted["query"][0]["weight"] == pytest.approx(3 * weights[word])
    alone = indexed("search", "--must", word, "-k", "12", "--json").json
    assert {hit["path"] for hit in alone["hits"]} == having
    assert all(hit["dense"] is None for hit in alone["hits"])
    box = indexed("search", query, "--region", "0,0,32,32", "--json").json
    share = indexed("search", query, "--region", "0,0,.5,.5", "--json").json
    assert box["query"] == share["query"] != plain["query"]
    some = indexed("search", query, "-k", "12", "--min-coverage", "0.1", "--json").json["hits"]
    assert len(some) == sum(hit["coverage"] >= 0.1 for hit in plain["hits"]) > 0
    combined = (query, photos / "4.png", "--not", photos / "5.png", "--mode", "sparse")
    several = indexed("search", *combined, "--words", 500, "--json").json
    assert {word["weight"] for word in several["query"]} > {0.5, -0.5}
    liked = indexed("search", query, "--like", photos / "4.png", "--unlike", photos / "5.png")
    assert re.search(r"^query: word \d+ × [\d.]+, word", liked.out, flags=re.MULTILINE)
    assert "and " in liked.out


def test_an_explanation_of_a_steered_search_equals_it(indexed: Run, photos: Path) -> None:
    third, fourth = photos / "3.png", photos / "4.png"
    word = indexed("search", third, "--json").json["query"][0]["word"]
    searches: list[tuple[list[Path], list[object]]] = [
        ([third], ["--region", "0,0,40,40"]),
        ([third, fourth], ["--not", photos / "5.png", "--boost", f"{word}=2"]),
        ([third], ["--like", photos / "6.png", "--unlike", photos / "7.png"]),
        ([], ["--must", word]),
    ]
    for images, options in searches:
        found = indexed("search", *images, *options, "--words", 500, "--json").json["hits"]
        assert found
        for hit in found:
            why = indexed("explain", *images, hit["path"], *options, "--json").json
            assert why["sparse"] == pytest.approx(hit["sparse"], abs=1e-5)
            assert why["coverage"] == pytest.approx(hit["coverage"])
            assert [w["word"] for w in why["words"]] == [w["word"] for w in hit["words"]]


@pytest.fixture
def lexical(run: Run, photos: Path, tmp_path: Path) -> Run:
    """Commands in the folder of a gallery with a small lexicon."""
    assert run("index", photos, "--vocabulary", save_vocabulary(tmp_path / "mine.vocab")).code == 0
    return run


def test_hits_of_a_text_have_the_shares_of_its_words(
    lexical: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = ("--text", "a cat and a dog", "-k", 4)
    hits = lexical("search", *text, "--json").json["hits"]
    for width in (80, 120):
        monkeypatch.setenv("COLUMNS", str(width))
        header, *lines, _ = lexical("search", *text).out.splitlines()
        assert max(map(len, lines)) <= width
        assert " ".join(header.split()) == "# score cat dog image"
        for hit, line in zip(hits, lines, strict=True):
            whole = sum(max(0, part["value"]) for part in hit["text"])
            shares = [f"{max(0, part['value']) / whole:.0%}" for part in hit["text"]]
            assert line.split()[:4] == [str(hit["rank"]), f"{hit['score']:.3f}", *shares]
            assert sum(part["value"] for part in hit["text"]) == pytest.approx(hit["score"])
        header, *_ = lexical("search", "--text", "cat").out.splitlines()
        assert " ".join(header.split()) == "# score image"
    by_vector = lexical("search", *text, "--mode", "dense").out
    assert by_vector.splitlines()[0].split()[-1] == "image", "words did not order the hits"


def test_many_words_of_a_text_fit_into_the_line(
    lexical: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "knife grass creme brulee bull terrier bicycle chair"
    whole = lexical("search", "--text", text).out.splitlines()[0]
    assert all(word in whole for word in text.split()), "in a pipe"
    monkeypatch.setenv("COLUMNS", "80")
    header, *lines, _ = lexical("search", "--text", text).out.splitlines()
    assert " ".join(header.split()) == "# score knife grass creme brulee image"
    assert max(map(len, lines)) <= 80


def test_a_text_says_what_was_not_understood(lexical: Run) -> None:
    said = lexical("search", "--text", "cat qwerty xyzzy")
    assert said.out.splitlines()[0] == "not understood: qwerty, xyzzy"
    assert "1" in said.out.splitlines()[2]
    assert "best match" not in said.out
    paths = lexical("search", "--text", "cat qwerty", "--format", "paths")
    assert paths.err == "not understood: qwerty\n"
    assert "qwerty" not in paths.out
    nothing = lexical("search", "--text", "qwerty xyzzy")
    assert nothing.code == 1
    assert nothing.out.splitlines()[0] == "nothing known about qwerty, xyzzy"
    assert "“dog on a beach”" in nothing.out
    assert "bm25v" not in nothing.out, "no command"


def test_no_match_is_said_with_its_reason(indexed: Run, photos: Path) -> None:
    indexed("remove", photos / "3.png")
    said = indexed("search", photos / "3.png", "--min-coverage", 1)
    assert said.code == 0
    assert re.match(r"no match: no image .*coverage of 1 \(the best has 0\.\d\d: .*png\)", said.out)
    indexed("remove", *(photos / f"{n}.png" for n in range(12) if n not in (3, 5)))
    silent = next(
        word
        for word in range(192)
        if not indexed("search", "--boost", f"{word}=1", "--json").json["hits"]
    )
    none = indexed("search", photos / "3.png", "--must", silent)
    assert none.out == f"no match: no image has word {silent}\n"
    noted = indexed("search", photos / "3.png", "--without", silent)
    assert noted.err == f"note: no image has word {silent}: excluding it changes nothing\n"
    assert noted.code == 0


def test_wrong_steering_is_one_clear_line(indexed: Run, photos: Path) -> None:
    def search(*words: object) -> Outcome:
        return indexed("search", photos / "3.png", *words)

    failed(search("--region", "1,2,3"), 2, "--region 1,2,3: give x,y,width,height")
    failed(search("--region", "0,0,90,9"), 2, "the image of 64 × 64 pixels")
    failed(search("--region", "0,0,9,0"), 2, "has no area")
    failed(search(photos / "4.png", "--region", "0,0,9,9"), 2, "a region with 2 images")
    failed(search("--must", 5, "--without", 5), 2, "both required (must) and excluded")
    failed(search("--must", 192), 2, "no word 192", "0 to 191")
    failed(search("--must", "zebra"), 2, "no word is named 'zebra'")
    failed(search("--boost", "19"), 2, "--boost 19: give each word once, with a factor")
    failed(search("--boost", "19=much"), 2, "'much' is not a number")
    failed(search("--boost", "19=nan"), 2, "give a number from -1,000,000")
    failed(search("--not", "gone.png"), 1, "gone.png: does not exist")
    failed(search("--like", "gone.png"), 1, "is not in", "index it first")
    failed(search("--min-coverage", "7"), 2)
    failed(indexed("search", "--must", 5, "--mode", "dense"), 2, "words have no dense vector")
    failed(indexed("search"), 2, "an empty query: give an IMAGE")
    failed(indexed("search", "--without", 5), 2, "an empty query")


def test_remove_and_info_and_verify(indexed: Run, photos: Path) -> None:
    assert indexed("remove", photos / "3.png").out == "1 removed\n"
    paths = [h["path"] for h in indexed("search", photos / "3.png", "--json").json["hits"]]
    assert str(photos / "3.png") not in paths
    info = indexed("info", "--json").json
    assert (info["n_images"], info["removed_rows"], info["vocabulary"]) == (11, 1, "toy")
    assert 0 < info["words_in_use"] <= info["words"] == 192
    text = indexed("info").out
    assert "11 (1 removed)" in text
    assert re.search(r"words in use +\d+ of 192", text)
    assert indexed("verify").out == "11 images, no problems\n"
    assert indexed("verify", "--json").json == {"n_images": 11, "problems": []}
    failed(indexed("remove", photos / "3.png"), 1, "gallery.bm25v has no image at", "3.png")


def test_verify_names_what_is_damaged(indexed: Run) -> None:
    bags = Path("gallery.bm25v/bags.rows")
    content = bytearray(bags.read_bytes())
    content[100] ^= 1
    bags.write_bytes(bytes(content))
    outcome = indexed("verify")
    assert outcome.code == 1
    assert "its bytes have changed" in outcome.out


def test_explain_draws_and_adds_up(indexed: Run, photos: Path) -> None:
    outcome = indexed("explain", photos / "3.png", photos / "4.png", "-o", "why.png")
    assert outcome.code == 0
    assert "written: why.png" in outcome.out
    with Image.open("why.png") as sheet:
        assert min(sheet.size) > 200
    found = indexed("explain", photos / "3.png", photos / "4.png", "--json").json
    total = sum(word["contribution"] for word in found["words"])
    assert total == pytest.approx(found["sparse"], abs=1e-5)
    assert all(len(word["in_hit"]) == 7 for word in found["words"])
    assert indexed("explain", photos / "3.png", photos / "4.png", "-o", "why.html").code == 0
    page = Path("why.html").read_text()
    assert page.startswith("<!doctype html>")
    assert f"{found['sparse']:.2f}" in page


def test_explain_goes_on_without_the_hits_file(indexed: Run, photos: Path) -> None:
    pair = (photos / "3.png", photos / "4.png")
    before = indexed("explain", *pair, "--json").json
    pair[1].unlink()
    outcome = indexed("explain", *pair, "-o", "why.html")
    assert outcome.code == 0
    assert "4.png: does not exist; its words are known" in outcome.err
    after = indexed("explain", *pair, "--json").json
    assert [word["contribution"] for word in after["words"]] == [
        word["contribution"] for word in before["words"]
    ]
    assert all(word["in_hit"] is None for word in after["words"])
    assert len(after["notes"]) == 1
    assert "does not exist" in Path("why.html").read_text()
    assert indexed("explain", *pair, "-o", "why.png").code == 0


def test_explain_shows_images_where_there_are_colours(
    indexed: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = (photos / "3.png", photos / "4.png")
    plain = indexed("explain", *pair, "--show")
    assert "this terminal has no colours" in plain.err
    monkeypatch.setenv("COLUMNS", "80")
    for name, value in {"FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    shown = indexed("explain", *pair, "--show")
    assert shown.err == ""
    lines = [line for line in shown.out.splitlines() if "▀" in line]
    assert "\x1b[38;2;" in lines[0]
    assert len(lines) == 38 // 2
    assert "query" in shown.out


def test_a_removed_hit_is_not_explained(indexed: Run, photos: Path) -> None:
    indexed("remove", photos / "4.png")
    said = indexed("explain", photos / "3.png", photos / "4.png")
    failed(said, 1, "4.png is not in the gallery", "index it first")


def test_a_hit_from_elsewhere_is_not_explained(indexed: Run, photos: Path) -> None:
    failed(indexed("explain", photos / "3.png", "elsewhere.png"), 1, "is not in", "index it first")


def test_the_gallery_comes_from_option_environment_or_here(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("index", photos, "-g", "a.bm25v", "--vocabulary", "toy")
    failed(run("info"), 1, "no gallery at ", "gallery.bm25v", "bm25v index FOLDER")
    monkeypatch.setenv("BM25V_GALLERY", str(tmp_path / "a.bm25v"))
    assert run("info").code == 0
    assert run("info", "-g", "b.bm25v").code == 1


def test_bad_input_is_one_clear_line(indexed: Run, photos: Path) -> None:
    Path("empty").mkdir()
    Path("letter.txt").write_text("Dear Sir or Madam")
    failed(indexed("index", "nowhere"), 2, "nowhere does not exist")
    failed(indexed("index", "empty"), 2, "no images in", "empty")
    failed(indexed("search", "letter.txt"), 1, "letter.txt: is not an image")
    failed(indexed("search", "gone.jpg"), 1, "gone.jpg: does not exist")
    failed(indexed("search", photos / "0.png", "-g", "none"), 1, "no gallery at ", "none")
    failed(indexed("index", photos, "--vocabulary", "default"), 1, "was made with vocabulary toy")
    failed(indexed("index", photos, "--vocabulary", "birds"), 1, "no vocabulary 'birds'")
    failed(indexed("models", "get", "resnet"), 1, "no backbone 'resnet'", "tinyvit-5m")


def test_a_text_or_a_folder_in_place_of_an_image_names_the_remedy(
    indexed: Run, photos: Path
) -> None:
    hint = """no image 'a striped cat'; to search by text: --text "a striped cat\""""
    failed(indexed("search", "a striped cat"), 2, hint)
    failed(indexed("search", "a", "striped", photos / "0.png", "cat"), 2, hint)
    failed(indexed("explain", "a striped cat", photos / "0.png"), 2, hint)
    failed(indexed("search", "lamp"), 2, '--text "lamp"')
    failed(indexed("search", "x" * 5000), 2, "--text")
    failed(indexed("search", "my cat.JPG"), 1, "my cat.JPG: does not exist")
    failed(indexed("search", "photos"), 2, "photos is a folder", "`bm25v index photos`")


def test_places_that_cannot_be_written_are_one_clear_line(indexed: Run, photos: Path) -> None:
    pair = (photos / "0.png", photos / "1.png")
    missing = "no/such/why.png: the folder no/such does not exist: create it first"
    failed(indexed("explain", *pair, "-o", "no/such/why.png"), 2, missing)
    failed(
        indexed("index", photos, "-g", photos / "0.png" / "g", "--vocabulary", "toy"), 1, "0.png"
    )


def test_nothing_is_left_behind_by_a_wrong_first_index(run: Run) -> None:
    Path("empty").mkdir()
    assert run("index", "nowhere", "--vocabulary", "toy").code == 2
    assert run("index", "empty", "--vocabulary", "toy").code == 2
    assert not Path("gallery.bm25v").exists()


def test_a_newer_gallery_is_refused(indexed: Run) -> None:
    db = sqlite3.connect("gallery.bm25v/catalog.sqlite")
    with db:
        db.execute("UPDATE meta SET value = 99 WHERE key = 'format'")
    db.close()
    failed(indexed("info"), 1, "written by a newer bm25v", "upgrade")


def test_wrong_options_exit_with_2(run: Run) -> None:
    for words in (("search",), ("search", "a.jpg", "-k", "0"), ("fly",), ("search", "a", "--no")):
        failed(run(*words), 2)


def test_every_command_has_help(run: Run) -> None:
    listed = re.findall(r"^  ([a-z]+) ", run("--help").out, flags=re.MULTILINE)
    assert set(listed) == set(cli.COMMANDS)
    for name in listed:
        outcome = run(name, "--help")
        assert outcome.code == 0
        assert outcome.out.startswith(f"Usage: bm25v {name}")


def test_lists_of_commands_have_whole_sentences() -> None:
    groups: Any = (cli.load_command("words"), cli.load_command("bags"))
    commands = {name: cli.load_command(name) for name in cli.COMMANDS}
    for name, command in {**commands, **groups[0].commands, **groups[1].commands}.items():
        assert not command.get_short_help_str(limit=64).endswith("..."), name


def test_the_help_has_the_summary_of_each_command_and_imports_none() -> None:
    for name, entry in cli.COMMANDS.items():
        assert entry.summary == cli.load_command(name).get_short_help_str(limit=100)
    script = """
import sys
from bm25v.cli import main
sys.argv = ["bm25v", "--help"]
main()
print(*(name for name in sys.modules if name.startswith("bm25v.cli.")), "numpy" in sys.modules)
"""
    assert run_python(script).stdout.endswith("\nbm25v.cli.printing False\n")


def test_names_are_printed_as_they_are(run: Run) -> None:
    folder = Path("odd")
    for number, name in enumerate(("cat [edited].png", ":smile: x.png", "a[/b].png")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make_image(number).save(folder / name)
    assert run("index", "odd", "--vocabulary", "toy").code == 0
    printed = run("search", "odd/cat [edited].png", "--mode", "dense", "--include-query").out
    for name in ("odd/cat [edited].png", "odd/:smile: x.png", "odd/a[/b].png"):
        assert name in printed


def test_an_empty_folder_becomes_a_gallery_and_another_does_not(run: Run, photos: Path) -> None:
    Path("g").mkdir()
    assert run("index", photos, "-g", "g", "--vocabulary", "toy").code == 0
    failed(run("index", photos, "-g", photos, "--vocabulary", "toy"), 1, "already exists")
    assert run("remove", photos, "-g", "g").code == 0
    assert "g has no images" in run("search", photos / "0.png", "-g", "g").out


def test_a_folder_named_like_a_vocabulary_is_not_it(run: Run, photos: Path) -> None:
    Path("toy").mkdir()
    assert run("index", photos, "--vocabulary", "toy").code == 0
    assert run("search", photos / "0.png").code == 0


def test_a_vocabulary_that_moved_is_found_again(run: Run, photos: Path) -> None:
    Vocabulary.load("toy").save("old.vocab")
    assert run("index", photos, "--vocabulary", "old.vocab").code == 0
    Path("old.vocab").rename("new.vocab")
    failed(run("search", photos / "0.png"), 1, "if it has moved, give its new path: ")
    assert run("index", photos, "--vocabulary", "new.vocab").code == 0
    assert run("search", photos / "0.png").code == 0


TINY = ("--backbone", "toy", "--expansion", 4, "--k", 4, "--batch", 64)


def contents() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def without_start(outcome: Outcome) -> Outcome:
    """Leave out what training says before it fails."""
    return outcome._replace(err=outcome.err.removeprefix("12 images, 0.00 GB of patches\n"))


def test_bad_images_and_settings_for_training_are_one_clear_line(run: Run, photos: Path) -> None:
    pytest.importorskip("torch")
    Path("empty").mkdir()
    before = contents()

    def train(folder: object, *more: object) -> Outcome:
        return run("train", folder, "-o", "mine.vocab", *TINY, *more)

    failed(train("empty"), 2, "no images in empty")
    failed(train("nowhere"), 1, "nowhere: does not exist")
    failed(train(photos, "--expansion", 99), 2, "588 patches are too few to learn 1,188 words")
    failed(train(photos, "--device", "cuda:99"), 2, "no device 'cuda:99' on this machine")
    failed(train(photos, "--resume"), 2, "has no run to resume", "run without --resume")
    failed(train(photos, "-o", photos / "0.png"), 1, "0.png already exists")
    assert contents() == before


def test_training_that_breaks_down_is_one_clear_line(
    run: Run, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(progress, "LOG_SECONDS", 1e9)  # else a slow machine prints a line
    broken = run("train", photos, "-o", "mine.vocab", *TINY, "--learning-rate", 1e30)
    failed(without_start(broken), 2, "training diverged at step", "learning rate 1e+30 is too high")
    assert not Path("mine.vocab").exists()


def test_damaged_patches_are_one_clear_line(run: Run, photos: Path) -> None:
    pytest.importorskip("torch")
    options = (*TINY, "--activations", "kept")
    assert run("train", photos, "-o", "first.vocab", *options).code == 0
    for number in (0, 11):  # held out, learnt from
        shard = Path(f"kept/shard-{number:05d}.npz")
        content = shard.read_bytes()
        shard.write_bytes(content[:500] + bytes([content[500] ^ 1]) + content[501:])
        before = contents()
        outcome = run("train", photos, "-o", "mine.vocab", *options)
        failed(
            without_start(outcome), 1, f"{shard} is damaged or missing: delete kept and start again"
        )
        assert before.items() <= contents().items()
        assert not Path("mine.vocab").exists()
        shard.write_bytes(content)


def test_an_unfinished_run_of_other_settings_is_one_clear_line(run: Run, photos: Path) -> None:
    checkpoints = pytest.importorskip("bm25v.training.checkpoints")
    Path("mine.vocab.work").mkdir()
    checkpoints.save_checkpoint(Path("mine.vocab.work"), {}, key="another run's")
    before = contents()
    words = ("train", photos, "-o", "mine.vocab", *TINY)
    failed(run(*words), 2, "mine.vocab.work has an unfinished run", "--resume")
    failed(run(*words, "--resume"), 2, "checkpoint.safetensors belongs to a run with other images")
    assert contents() == before


def test_models_that_cannot_be_used_are_one_clear_line(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.test_huggingface import make

    constants = pytest.importorskip("huggingface_hub").constants
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    _, model = make("vit", tmp_path / "model")
    assert run("vocabulary", "export", "toy", "-o", "sae").code == 0
    before = contents()
    train = ("train", photos, "-o", "mine.vocab", "--backbone")
    bring_in = ("vocabulary", "import", "sae", "-o", "mine.vocab", "--backbone")
    absent = "google/siglip2-so400m-patch14-384"
    for words in (train, bring_in):
        failed(run(*words, absent), 1, f"{absent} is not on this machine", "set HF_HOME")
        failed(run(*words, "resnet"), 1, "no backbone 'resnet'")
    failed(run(*train, model, "--device", "cuda:99"), 2, "no device 'cuda:99' on this machine")
    for backbone, width in ((model, 16), ("tinyvit-5m", 320)):
        failed(run(*bring_in, backbone), 1, f"have {width} values, those of the SAE 12")
    assert contents() == before


def test_bad_auto_encoders_are_one_clear_line(run: Run) -> None:
    assert run("vocabulary", "export", "toy", "-o", "sae").code == 0
    Path("empty").mkdir()
    Path("torn").mkdir()
    (Path("torn") / "cfg.json").write_bytes((Path("sae") / "cfg.json").read_bytes())
    (Path("torn") / "sae_weights.safetensors").write_bytes(b"torn")
    Path("taken").write_text("mine")
    before = contents()
    end = ("-o", "mine.vocab", "--backbone", "toy")
    failed(run("vocabulary", "import", "empty", *end), 1, "the folder is empty")
    failed(run("vocabulary", "import", "torn", *end), 1, "sae_weights.safetensors is damaged")
    failed(run("vocabulary", "import", "sae", *end, "--k", 999), 2, "k = 999", "from 1 to 192")
    failed(run("vocabulary", "import", "sae", *end, "-o", "taken"), 1, "taken already exists")
    assert contents() == before


def spoken(line: str) -> float:
    found = re.search(r"([\d,.]+) (?:images|steps)/s", line)
    assert found is not None
    return float(found[1].replace(",", ""))


def test_speed_does_not_count_what_was_done_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "LOG_SECONDS", 0.0)
    file = io.StringIO()
    with progress.live_line(Console(file=file)) as show:
        for done in (5001, 5002, 5003):
            show("patches", done, 6000, "images")
            time.sleep(0.1)
        for done in (1, 2, 3):
            show("step", done, 6000, "steps")
            time.sleep(0.1)
    patches, steps = file.getvalue().splitlines()[:3], file.getvalue().splitlines()[3:]
    assert patches[0] == "patches"
    assert 0 < spoken(patches[2]) <= 10
    assert steps[0] == "step"
    assert 0 < spoken(steps[2]) <= 10


def test_on_a_terminal_the_line_fits_and_is_wiped() -> None:
    file = io.StringIO()
    label = "step 11,980 of 21,980  FVU 0.123  L0 16.0  dead 0.0%"
    with progress.live_line(Console(file=file, force_terminal=True, width=82)) as show:
        for done in (11_979, 11_980):
            show(label, done, 21_980, "steps")
            time.sleep(0.3)
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", file.getvalue())
    lines = re.split(r"[\r\n]+", shown)
    assert any(re.match(rf"{label} [\d,.]+ steps/s .*\d:\d\d$", line) for line in lines)
    assert all(len(line) <= 82 for line in lines)
    assert file.getvalue().rstrip().endswith("\x1b[2K")


def test_a_second_backbone_is_chosen_with_a_new_gallery(run: Run, photos: Path) -> None:
    dense = ("--dense", "mobilenet-v2")
    assert run("index", photos, "--vocabulary", "toy", *dense).code == 0
    assert run("index", photos, *dense).code == 0
    assert run("index", photos).code == 0
    assert re.search(r"backbone +toy\+mobilenet-v2", run("info").out)
    assert run("info", "--json").json["backbone"] == "toy+mobilenet-v2"
    failed(run("index", photos, "--dense", "toy"), 2, "chosen when a gallery is created")
    failed(run("index", photos, "-g", "new", "--dense", "resnet"), 1, "choose a built-in backbone")


def test_hits_are_printed_as_paths(run: Run, photos: Path) -> None:
    odd = photos / "two\nlines.png"
    make_image(3, side=80).save(odd)
    assert run("index", photos, "--vocabulary", "toy").code == 0
    search = ("search", photos / "3.png", "-k", 5)
    expected = [hit["path"] for hit in run(*search, "--json").json["hits"]]
    assert str(odd) in expected
    printed = run(*search, "--format", "paths")
    assert printed.out == "".join(f"{path}\n" for path in expected)
    assert run(*search, "--format", "paths", "-0").out.split("\0") == [*expected, ""]
    none = run(*search, "--format", "paths", "--date", "1999")
    assert (none.out, none.err) == ("", "no match: no image dated 1999\n")
    failed(run(*search, "-0"), 2, "give --format paths")
    failed(run(*search, "--json", "--format", "csv"), 2, "--json and --format csv")


def test_words_of_hits_are_limited(indexed: Run, photos: Path) -> None:
    search = ("search", photos / "3.png", "-k", 2)
    for options, n in (((), 10), (("--words", 3), 3), (("--words", 0), 0)):
        found = indexed(*search, "--format", "json", *options).json
        assert found == {**indexed(*search, "--json", *options).json, "ms": found["ms"]}
        assert [len(hit["words"]) for hit in found["hits"]] == [n, n]
        header, *rows = csv.reader(indexed(*search, "--format", "csv", *options).out.splitlines())
        assert header == ["rank", "path", "score", "strength", "coverage", "words"]
        assert [len(re.findall(r"word \d+", row[-1])) for row in rows] == [n, n]
        assert indexed(*search, *options, "-o", "hits.csv").code == 0
        assert list(csv.reader(Path("hits.csv").read_text().splitlines()))[1:] == rows


def test_the_help_of_a_search_shows_common_options_first(run: Run) -> None:
    for command, first in (("search", "--text"), ("explain", "--text")):
        options, more = re.split(r"^More:$", run(command, "--help").out, flags=re.MULTILINE)
        common = re.findall(r"^  (?:-\w, )?(-[\w-]+)", options, flags=re.MULTILINE)
        assert common[0] == first
        assert len(common) <= 12
        assert {"--folder", "--date", "--must", "--without", "--region", "--json"} < set(common)
        assert "--query-words" in more


def test_hits_whose_files_are_gone_are_marked(indexed: Run, photos: Path) -> None:
    search = ("search", photos / "3.png", "-k", 3)
    (first, *_) = indexed(*search, "--json").json["hits"]
    assert "(missing)" not in indexed(*search).out
    Path(first["path"]).unlink()
    _, line, *others = indexed(*search).out.splitlines()
    assert f"{Path(first['path']).name} (missing)" in line
    assert not any("(missing)" in other for other in others)


def test_a_table_names_what_the_query_and_a_hit_show(indexed: Run, photos: Path) -> None:
    for mode in ("hybrid", "words", "sparse", "dense", "two-stage"):
        search = ("search", photos / "3.png", "--mode", mode, "-k", 3)
        assert indexed(*search).out.splitlines()[0].endswith("image"), "no word has a name"
    word = indexed("search", photos / "3.png", "--json").json["hits"][0]["words"][0]["word"]
    indexed("words", "name", word, "green corner")
    for mode, is_shown in (("hybrid", True), ("words", True), ("two-stage", False)):
        header, first, *_ = indexed("search", photos / "3.png", "--mode", mode).out.splitlines()
        assert header.endswith("both show") == is_shown
        assert first.endswith("green corner") == is_shown


def test_a_url_is_not_read(indexed: Run, photos: Path) -> None:
    url = "https://example.org/cat.jpg"
    remedy = "URLs are not read; download it, and give the file"
    failed(indexed("search", url), 2, url, remedy)
    failed(indexed("explain", photos / "1.png", url), 2, url, remedy)
    failed(indexed("index", url), 2, url, remedy)


def test_a_folder_that_is_no_gallery_is_not_advised_as_one(run: Run, photos: Path) -> None:
    reason, advice = "photos is a folder of other files, not a gallery", "photos` creates it"
    failed(run("info", "-g", "photos"), 1, reason, advice)
    Path("empty").mkdir()
    failed(run("info", "-g", "empty"), 1, "create one with `bm25v index FOLDER -g ")


def test_a_folder_without_images_says_how_to_remove_on_purpose(indexed: Run, photos: Path) -> None:
    for path in photos.iterdir():
        path.unlink()
    failed(indexed("index", "photos"), 2, "nothing was changed", "`bm25v remove ", "photos`")
    assert indexed("info", "--json").json["n_images"] == 12
    assert indexed("remove", "photos").out == "12 removed\n"


def test_models_list_names_origin_and_licence(run: Run) -> None:
    models = {model["name"]: model for model in run("models", "list", "--json").json}
    assert set(models) == {"tinyvit-5m", "mobilenet-v2", "dinov2-s"}
    text = run("models", "list").out
    for model in models.values():
        assert model["licence"] in text
        assert model["about"] in text


def test_doctor_reports_and_warms_the_compiler(run: Run) -> None:
    facts = run("doctor", "--json").json
    assert facts["vocabularies"]["toy"]
    assert facts["compiler"].startswith("ready in ")
    assert "onnxruntime" in run("doctor").out
    declared = tomllib.loads(Path(cli.__file__).parents[3].joinpath("pyproject.toml").read_text())
    names = set(declared["project"]["optional-dependencies"]) - {"all", "dev", "docs"}
    assert set(facts["extras"]) == names
    assert facts["extras"]["ray"] == ("installed" if find_spec("ray") else "absent")


@contextmanager
def interrupted(*words: object, folder: Path) -> Iterator[list[str]]:
    """Start a command, and press Ctrl-C at the end; what it prints as errors is added to a list."""
    command = [sys.executable, "-m", "bm25v", *map(str, words)]
    # A job in the background ignores Ctrl-C, and so would its children.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    errors: list[str] = []
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as child:
        signal.signal(signal.SIGINT, before)
        yield errors
        child.send_signal(signal.SIGINT)
        errors += child.communicate(timeout=60)[1].strip().splitlines()
    assert child.returncode == 130


def test_ctrl_c_tells_how_many_images_were_saved(run: Run, photos: Path, tmp_path: Path) -> None:
    assert run("index", photos, "--vocabulary", "toy").code == 0
    large = io.BytesIO()
    make_image(1, side=2000).save(large, "png")
    for number in range(12, 200):  # more than are read before the signal comes
        (photos / f"{number}.png").write_bytes(large.getvalue() + bytes([number]))
    lock = tmp_path / "gallery.bm25v" / "writer.lock"
    lock.unlink(missing_ok=True)
    with interrupted("index", "photos", "--workers", 1, folder=tmp_path) as errors:
        deadline = time.monotonic() + 60
        while not lock.exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.5)
    saved = run("info", "--json").json["n_images"]
    assert 12 <= saved < 200
    remedy = "run the same command again to continue"
    assert errors == [f"interrupted: {saved} of 200 images were saved; {remedy}"]
    assert run("verify").code == 0


def test_ctrl_c_keeps_what_is_finished(
    make_gallery: Callable[[str], Gallery], photos: Path
) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    gallery = make_gallery("gallery.bm25v")
    with pytest.raises(KeyboardInterrupt):
        gallery.add(photos, progress=interrupt)
    n_done = len(gallery)
    assert n_done >= 5, "with those that were encoded and not yet counted"
    assert gallery.problems() == []
    assert gallery.add(photos).added == 12 - n_done


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends processes in another way")
def test_ctrl_c_while_modules_are_imported_prints_nothing(tmp_path: Path) -> None:
    early = "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(5)\n"
    (tmp_path / "click.py").write_text(early)
    done = subprocess.run(
        [sys.executable, "-m", "bm25v", "--help"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")


def test_ctrl_c_elsewhere_is_one_line(indexed: Run, tmp_path: Path) -> None:
    names = tmp_path / "names.tsv"
    os.mkfifo(names)
    with interrupted("words", "import", names, folder=tmp_path) as errors:
        end = os.open(names, os.O_WRONLY)  # waits until the command reads it
    os.close(end)
    assert errors == ["interrupted"]
