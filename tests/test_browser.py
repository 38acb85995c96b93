"""Pages as people use them: in a real browser, with a mouse, with keys, on a phone, in the dark."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.api import Gallery
from bm25v.demo import search_and_explain
from bm25v.explain import Explanation
from bm25v.explain.explanation import combine_maps
from bm25v.explain.heatmaps import overlay
from bm25v.explain.word_portrait import make_portraits
from bm25v.pages.explanation_page import render_explanation
from bm25v.pages.searches_page import render_searches
from bm25v.pages.vocabulary_page import render_vocabulary
from bm25v.pages.word_page import render_word, render_words_overview
from bm25v.vocabulary import Vocabulary
from tests.browser import CHROMIUM, Browser, browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

HEATS = """[...document.querySelectorAll(".images .map")]
  .map((map) => map.style.getPropertyValue("--heat"))"""
ROW_HEATS = """[...document.querySelectorAll(".word")[{row}].querySelectorAll(".map")]
  .map((map) => map.style.getPropertyValue("--heat"))"""
STATUS = 'document.querySelector(".status").textContent'
FOCUSED = '[...document.querySelectorAll(".word")].indexOf(document.activeElement)'
BOX = """(() => {{ const box = document.querySelectorAll("{what}")[{n}].getBoundingClientRect();
  return [box.x, box.y, box.width, box.height]; }})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def found(gallery: Gallery, photos: Path) -> Explanation:
    return gallery.explain(photos / "3.png", photos / "4.png")


@pytest.fixture
def why(found: Explanation, tmp_path: Path) -> Path:
    assert len(found.parts) > 2
    file = tmp_path / "why.html"
    file.write_text(
        render_explanation(
            found, query_names=["a_name_that_is_long_enough_to_fill_a_line_or_two.png"]
        )
    )
    return file


def centre(tab: Browser, what: str, n: int) -> tuple[float, float]:
    x, y, width, height = tab.value(BOX.format(what=what, n=n))
    return x + width / 2, y + height / 2


def test_pointing_at_a_word_shows_it_alone_in_both_pictures(
    tab: Browser, why: Path, found: Explanation
) -> None:
    tab.open(why, height=2400)
    everything, nothing_said = tab.value(HEATS), tab.value(STATUS)
    assert len(set(everything)) == 2
    for row in (1, 0):
        tab.point_at(*centre(tab, ".word h3", row))
        assert tab.value(HEATS) == tab.value(ROW_HEATS.format(row=row)) != everything
        assert tab.value(STATUS) == f"Only {found.parts[row].word.label}"
        assert tab.value('document.querySelectorAll(".on").length') == 2
    tab.point_at(*centre(tab, ".stack i", 2))
    assert tab.value(STATUS) == f"Only {found.parts[2].word.label}"
    tab.point_at(1, 1)
    assert (tab.value(HEATS), tab.value(STATUS)) == (everything, nothing_said)
    assert tab.errors == []


def test_keys_are_enough(tab: Browser, why: Path, found: Explanation) -> None:
    tab.open(why)
    tab.press("Tab")
    tab.press(" ")
    lit = 'getComputedStyle(document.querySelector(".stage .heat")).display'
    assert tab.value(lit) == "none"
    tab.press(" ")
    assert tab.value(lit) != "none"
    visited = []
    for _ in range(2 * len(found.parts)):
        tab.press("Tab")
        row = tab.value(FOCUSED)
        if row >= 0:
            visited.append(row)
            assert tab.value(HEATS) == tab.value(ROW_HEATS.format(row=row))
            stage, word = (
                tab.value(BOX.format(what=w, n=n)) for w, n in ((".stage", 0), (".word", row))
            )
            assert word[1] >= stage[1] + stage[3] - 1, "the pictures cover the word"
    assert visited == list(range(len(found.parts)))


def test_a_page_glows_as_a_sheet_does(tab: Browser, why: Path, found: Explanation) -> None:
    tab.open(why)
    (in_query,), in_hit = combine_maps(found)
    assert in_hit is not None
    assert found.hit_image is not None
    for n, (image, grid) in enumerate(
        ((found.query_images[0], in_query), (found.hit_image, in_hit))
    ):
        shot = tab.capture(tab.value(BOX.format(what=".images .map", n=n)))
        expected = overlay(np.array(Image.fromarray(image).resize(shot.size)), grid)
        difference = np.abs(np.asarray(shot, dtype=float) - expected)
        assert difference[8:-8, 8:-8].mean() < 8


@pytest.mark.parametrize("width", [320, 1200])
def test_pages_fit_any_screen_and_load_nothing(
    tab: Browser, why: Path, gallery: Gallery, photos: Path, tmp_path: Path, width: int
) -> None:
    (portrait,) = make_portraits(gallery.store, [gallery.words()[0].word])
    searches = [search_and_explain(gallery, str(photos / f"{n}.png"), k=5) for n in (3, 6)]
    pages = {
        "word.html": render_word(portrait),
        "index.html": render_words_overview(
            "Twelve", [portrait], {portrait.uses.facts.word: "x.html"}
        ),
        "report.html": render_searches("Twelve images", searches),
        "words.html": render_vocabulary(Vocabulary.load("toy")),
    }
    for name, text in pages.items():
        (tmp_path / name).write_text(text)
    for file in (why, *(tmp_path / name for name in pages)):
        papers = []
        for dark in (False, True):
            tab.open(file, width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, file.name
            assert [one for one in tab.addresses if not one.startswith("data:")] == [file.as_uri()]
            papers.append(tab.value("getComputedStyle(document.body).backgroundColor"))
        assert papers[0] != papers[1]
