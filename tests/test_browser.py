"""Pages in a real browser: with the mouse, with the keyboard, on a phone, in light and dark."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.api import Gallery
from bm25v.demo import search_and_explain
from bm25v.explanations import Explanation
from bm25v.explanations.explanation import combine_maps
from bm25v.explanations.heatmaps import overlay
from bm25v.explanations.word_portrait import make_portraits
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
BOX = """(() => {{ const box = document.querySelectorAll("{selector}")[{n}].getBoundingClientRect();
  return [box.x, box.y, box.width, box.height]; }})()"""


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def explanation(gallery: Gallery, photos: Path) -> Explanation:
    return gallery.explain(photos / "3.png", photos / "4.png")


@pytest.fixture
def why(explanation: Explanation, tmp_path: Path) -> Path:
    assert len(explanation.parts) > 2
    file = tmp_path / "why.html"
    file.write_text(
        render_explanation(
            replace(
                explanation, query_names=("a_name_that_is_long_enough_to_fill_a_line_or_two.png",)
            )
        )
    )
    return file


def centre(tab: Browser, selector: str, n: int) -> tuple[float, float]:
    x, y, width, height = tab.value(BOX.format(selector=selector, n=n))
    return x + width / 2, y + height / 2


def test_pointing_at_a_word_shows_it_alone_in_both_images(
    tab: Browser, why: Path, explanation: Explanation
) -> None:
    tab.open(why, height=2400)
    all_words, all_words_status = tab.value(HEATS), tab.value(STATUS)
    assert len(set(all_words)) == 2
    for row in (1, 0):
        tab.point_at(*centre(tab, ".word h3", row))
        assert tab.value(HEATS) == tab.value(ROW_HEATS.format(row=row)) != all_words
        assert tab.value(STATUS) == f"Only {explanation.parts[row].word.label}"
        assert tab.value('document.querySelectorAll(".on").length') == 2
    tab.point_at(*centre(tab, ".stack i", 2))
    assert tab.value(STATUS) == f"Only {explanation.parts[2].word.label}"
    tab.point_at(1, 1)
    assert (tab.value(HEATS), tab.value(STATUS)) == (all_words, all_words_status)
    assert tab.errors == []


def test_the_keyboard_is_enough(tab: Browser, why: Path, explanation: Explanation) -> None:
    tab.open(why)
    tab.press("Tab")
    tab.press(" ")
    display = 'getComputedStyle(document.querySelector(".stage .heat")).display'
    assert tab.value(display) == "none"
    tab.press(" ")
    assert tab.value(display) != "none"
    visited = []
    n_rows = min(24, len(explanation.parts))
    for _ in range(2 * n_rows):
        tab.press("Tab")
        row = tab.value(FOCUSED)
        if row >= 0:
            visited.append(row)
            assert tab.value(HEATS) == tab.value(ROW_HEATS.format(row=row))
            stage, word = (
                tab.value(BOX.format(selector=selector, n=n))
                for selector, n in ((".stage", 0), (".word", row))
            )
            assert word[1] >= stage[1] + stage[3] - 1, "the images cover the word"
    assert visited == list(range(n_rows))


def test_heat_maps_on_a_page_look_like_drawn_ones(
    tab: Browser, why: Path, explanation: Explanation
) -> None:
    tab.open(why)
    (in_query,), in_hit = combine_maps(explanation)
    assert in_hit is not None
    assert explanation.hit_image is not None
    for n, (image, grid) in enumerate(
        ((explanation.query_images[0], in_query), (explanation.hit_image, in_hit))
    ):
        captured = tab.capture(tab.value(BOX.format(selector=".images .map", n=n)))
        expected = overlay(np.array(Image.fromarray(image).resize(captured.size)), grid)
        difference = np.abs(np.asarray(captured, dtype=float) - expected)
        assert difference[8:-8, 8:-8].mean() < 8


@pytest.mark.parametrize("width", [320, 1200])
def test_pages_fit_narrow_and_wide_screens_and_load_nothing(
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
        backgrounds = []
        for dark in (False, True):
            tab.open(file, width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, file.name
            assert [url for url in tab.addresses if not url.startswith("data:")] == [file.as_uri()]
            backgrounds.append(tab.value("getComputedStyle(document.body).backgroundColor"))
        assert backgrounds[0] != backgrounds[1]
