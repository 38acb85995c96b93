"""The hits of a search as a page, a table and JSON; the page in the browser; copies of the hits."""

import csv
import json
import os
import pickle
import re
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bm25v.errors import InvalidOption
from bm25v.gallery import Gallery
from bm25v.render.results_page import EXPLAINED_HITS
from tests import test_cli
from tests.browser import Browser
from tests.conftest import make_image, make_pixels
from tests.html_page import HtmlPage
from tests.lexicons import save_vocabulary
from tests.test_cli import Run, failed

run, indexed = test_cli.run, test_cli.indexed


def read_page(path: Path) -> tuple[str, HtmlPage]:
    text = path.read_text(encoding="utf-8")
    return text, HtmlPage(text)


def panels(page: HtmlPage) -> list[str]:
    return [str(attrs["id"]) for tag, attrs in page.tags if tag == "aside"]


def test_the_page_shows_every_hit_and_why_and_is_self_contained(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    results = gallery.search(photos / "3.png", k=5)
    results.save(tmp_path / "hits.html")
    text, page = read_page(tmp_path / "hits.html")
    assert not re.search(r"https?://|@import|<link|url\((?!data:)", text)
    assert all(source.startswith("data:image/") for source in page.values("img", "src"))
    assert all(page.values("img", "alt"))
    assert len(results) == 5
    assert panels(page) == [f"hit-{n}" for n in range(1, 6)]
    targets = [target for target in page.values("button", "popovertarget") if target]
    assert sorted(targets) == sorted(2 * panels(page)), "one opens, one closes"
    for hit in results:
        assert hit.path in page.values("p", "title")
        explanation = hit.explain()
        assert explanation.sentence in page.text
        for group in explanation.groups:
            assert f"{group.label} {group.percent}" in page.text
        contributions = explanation.rounded_contributions()
        for word, contribution in list(zip(hit.words, contributions, strict=True))[:6]:
            assert f"<td>{word.label}</td><td>{contribution:.2f}</td>" in text
    outside = HtmlPage(re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL))
    assert not re.search(r"word \d|BM25 \d", outside.text), "no number of a word"
    assert "Query 3.png" in page.text
    assert "5 hits" in page.text


@pytest.mark.parametrize("mode", ["hybrid", "words", "two-stage", "sparse", "dense"])
def test_page_table_and_notebook_say_the_same_about_the_order(
    gallery: Gallery, indexed: Run, photos: Path, tmp_path: Path, mode: Any
) -> None:
    results = gallery.search(photos / "3.png", mode=mode)
    assert len(results) > 0
    which, by_what = results.order.split(", sorted by ")
    assert (which == "all images") == (results.candidates is None)
    results.save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    stated = results.order[0].upper() + results.order[1:]
    assert f"{stated}. " in page.text
    assert stated in HtmlPage(results._repr_html_()).text
    printed = indexed("search", photos / "3.png", "--mode", mode).out
    assert results.order in " ".join(printed.split())
    if mode != "hybrid":
        assert by_what in results[0].formula


def test_the_name_of_a_card_has_its_visible_text(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    gallery.search(photos / "3.png", k=3).save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    cards = [a for tag, a in page.tags if tag == "button" and "popovertargetaction" not in a]
    opening = [attrs for attrs in cards if "popovertarget" in attrs]
    assert len(opening) == 3
    assert not any("aria-label" in attrs for attrs in opening), "it would hide the text"


def test_a_page_of_many_hits_explains_the_first_with_images(
    photos: Path, make_gallery: Callable[[str], Gallery], tmp_path: Path
) -> None:
    for seed in range(100, 125):
        make_image(seed).save(photos / f"{seed}.png")
    gallery = make_gallery("many")
    gallery.add(photos)
    results = gallery.search(photos / "3.png", k=30)
    assert len(results) > EXPLAINED_HITS
    results.save(tmp_path / "hits.html")
    text, page = read_page(tmp_path / "hits.html")
    assert len(panels(page)) == len(results)
    assert text.count('<div class="explained">') == EXPLAINED_HITS


def test_searches_without_an_image_have_a_page(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    word = gallery.search(photos / "3.png").query[0].word
    gallery.name_words({word: "striped <ear>"})
    for options in ({"must": word}, {"text": "a striped <ear>"}):
        gallery.search(**options).save(tmp_path / "hits.html")
        _, page = read_page(tmp_path / "hits.html")
        assert "striped <ear>" in page.text
        assert "Query" not in page.text
        assert panels(page)
    gallery.search(like=photos / "4.png", unlike=photos / "5.png").save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    assert "More like 4.png" in page.text
    assert "Less like 5.png" in page.text


def test_a_text_has_a_page_with_the_shares_of_its_words(photos: Path, tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "texts", vocabulary=save_vocabulary(tmp_path / "mine"))
    gallery.add(photos)
    results = gallery.search(text="cat dog qwerty")
    results.save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    assert "Not understood: qwerty" in page.text
    assert "of the query" not in page.text
    for hit in results:
        whole = sum(max(0, part.value) for part in hit.text)
        shares = [f"{part.label} {max(0, part.value) / (whole or 1):.0%}" for part in hit.text]
        assert ", ".join(shares) in page.text
        score = f"score {hit.score:.3f}".replace("-", "−")
        assert score in " ".join(page.text.split())


def test_a_search_without_hits_has_a_page_with_the_reason(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    results = gallery.search(photos / "3.png", folder="/nowhere")
    results.save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    assert f"No match: {results.no_match}" in page.text
    assert "Query 3.png" in page.text


def test_weak_hits_look_weak_and_the_page_says_so_first(
    make_gallery: Callable[[str], Gallery], tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    gallery = make_gallery("alike")
    base = make_pixels(1).astype(int)
    gallery.add(
        {
            str(n): np.clip(base + rng.integers(-9, 10, base.shape), 0, 255).astype(np.uint8)
            for n in range(40)
        }
    )
    results = gallery.search(make_pixels(2), k=3, mode="hybrid")
    assert results.is_weak, "else this test shows nothing"
    results.save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    assert "No good match. The closest are:" in page.text
    cards = [attrs["class"] for tag, attrs in page.tags if tag == "li" and attrs.get("class")]
    assert cards.count("card weak") == 3
    assert "added from memory" in page.text or "does not exist" in page.text


def test_hostile_names_and_missing_files(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    hostile = photos / "<script>alert(1)&'.png"
    make_image(50).save(hostile)
    gallery.add(hostile)
    results = gallery.search(hostile, include_query=True, k=3)
    Path(results[1].path).unlink()
    results.save(tmp_path / "hits.html")
    _, page = read_page(tmp_path / "hits.html")
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert hostile.name in page.text
    assert "does not exist" in page.text


def test_results_without_an_open_gallery_are_not_explained(
    gallery: Gallery, photos: Path, tmp_path: Path
) -> None:
    results = gallery.search(photos / "3.png", k=2)
    copied = pickle.loads(pickle.dumps(results))
    assert copied == results
    copied.save(tmp_path / "hits.json")
    with pytest.raises(InvalidOption, match="no open gallery"):
        copied.save(tmp_path / "hits.html")


def test_the_command_writes_a_page_a_table_or_json(indexed: Run, photos: Path) -> None:
    query = ("search", photos / "3.png", "-k", 3)
    printed = indexed(*query, "--json").json
    for name in ("hits.html", "hits.csv", "hits.json"):
        outcome = indexed(*query, "-o", name)
        assert outcome.code == 0
        assert outcome.out.endswith(f"written: {name}\n")
    written = json.loads(Path("hits.json").read_text())
    assert written["hits"] == printed["hits"]
    with Path("hits.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["rank", "path", "score", "strength", "coverage", "words"]
    assert len(rows) == 3
    for row, hit in zip(rows, printed["hits"], strict=True):
        assert (int(row["rank"]), row["path"]) == (hit["rank"], hit["path"])
        assert float(row["score"]) == pytest.approx(hit["score"], abs=1e-6)
        assert float(row["coverage"]) == pytest.approx(hit["coverage"], abs=1e-6)
        first = hit["words"][0]
        assert row["words"].startswith(f"word {first['word']} ({first['contribution']:.2f})")


def test_the_command_of_a_panel_explains_that_hit(indexed: Run, photos: Path) -> None:
    word = indexed("search", photos / "3.png", "--json").json["query"][0]["word"]
    options = ("--boost", f"{word}=2.5", "--mode", "words", "--region", "0,0,1,0.8")
    outcome = indexed("search", photos / "3.png", "-k", 2, *options, "-o", "hits.html", "--json")
    hits = outcome.json["hits"]
    commands = re.findall(r"<code>(.*?)</code>", Path("hits.html").read_text(encoding="utf-8"))
    assert len(hits) == 2
    for command, hit in zip(commands, hits, strict=True):
        name, *words = shlex.split(command.replace("&#39;", "'").replace("&#34;", '"'))
        assert (name, words[0], words.pop()) == ("bm25v", "explain", "--open")
        why = indexed(*words, "--json")
        assert why.code == 0
        assert why.json["path"] == hit["path"]
        assert why.json["score"] == pytest.approx(hit["score"], abs=1e-5)


@pytest.mark.parametrize("name", ["hits.xlsx", "hits", "hits.png"])
def test_an_unknown_ending_is_one_clear_line(indexed: Run, photos: Path, name: str) -> None:
    outcome = indexed("search", photos / "3.png", "-o", name)
    failed(outcome, 2, name, ".html, .htm, .csv, .json")
    missing = indexed("search", photos / "3.png", "-o", "no/such/hits.html")
    failed(missing, 2, "the folder no/such does not exist")
    assert not Path(name).exists()


@pytest.mark.skipif(os.name == "nt", reason="the browser is a shell script")
def test_open_opens_the_page(
    indexed: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = tmp_path / "opened.txt"
    script = tmp_path / "browser.sh"
    script.write_text(f'#!/bin/sh\necho "$1" >> {shlex.quote(str(opened))}\n')
    script.chmod(script.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("BROWSER", f"{script} %s")
    monkeypatch.setattr("webbrowser._tryorder", None)  # so that the variable is read again
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    pair = (photos / "3.png", photos / "4.png")
    word, other = (w["word"] for w in indexed("words", "list", "--json").json["words"][:2])
    for words in (
        ("search", pair[0], "-o", "hits.html"),
        ("search", pair[0]),
        ("explain", *pair, "-o", "why.html"),
        ("explain", *pair),
        ("words", "show", word),
        ("words", "show", word, other),
    ):
        outcome = indexed(*words, "--open")
        assert outcome.code == 0
        page = Path(outcome.out.splitlines()[-1].removeprefix("written: "))
        assert page.absolute().as_uri() == opened.read_text().splitlines()[-1]
        assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    failed(indexed("search", pair[0], "-o", "hits.csv", "--open"), 2, "hits.csv", ".html")


OPEN = '[...document.querySelectorAll(".panel:popover-open")].map((panel) => panel.id)'


def test_panels_open_by_click_and_key(
    gallery: Gallery, photos: Path, tmp_path: Path, tab: Browser
) -> None:
    page = tmp_path / "hits.html"
    gallery.search(photos / "3.png", k=4).save(page)
    tab.open(page)
    assert tab.value(OPEN) == []
    tab.value('document.querySelectorAll(".card button")[1].click()')
    assert tab.value(OPEN) == ["hit-2"]
    for key, expected in (("ArrowRight", "hit-3"), ("ArrowLeft", "hit-2"), ("ArrowLeft", "hit-1")):
        tab.value(f"document.dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))")
        assert tab.value(OPEN) == [expected]
    tab.value('document.querySelector(".panel:popover-open button").click()')
    assert tab.value(OPEN) == []
    tab.press("Tab")
    tab.press(" ")
    assert tab.value(OPEN) == ["hit-1"]
    assert [address for address in tab.addresses if not address.startswith("data:")] == [
        page.as_uri()
    ]
    assert tab.errors == []


@pytest.mark.parametrize("width", [390, 1366])
def test_the_page_fits_the_window(
    gallery: Gallery, photos: Path, tmp_path: Path, tab: Browser, width: int
) -> None:
    page = tmp_path / "hits.html"
    long_name = photos / f"{'Urlaub_' * 20}.png"
    make_image(3).save(long_name)
    gallery.add(long_name)
    gallery.search(photos / "3.png", k=12, include_query=True).save(page)
    for dark in (False, True):
        tab.open(page, width=width, dark=dark)
        assert tab.value("document.documentElement.scrollWidth") == width
    tab.value('document.querySelector(".card button").click()')
    assert tab.value('document.querySelector(".panel:popover-open").scrollWidth') <= width
