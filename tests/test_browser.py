"""Pages in a real browser: with the mouse, with the keyboard, on a phone, in light and dark."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bm25v.explain import Explanation
from bm25v.explain.heatmaps import combine_maps, highlight
from bm25v.explain.portraits import make_portraits
from bm25v.gallery import Gallery
from bm25v.render.explanation_page import render_explanation
from bm25v.render.word_page import render_words
from tests.browser import CHROMIUM, Browser

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")

MASKS = """[...document.querySelectorAll(".stage .map")]
  .map((map) => map.style.getPropertyValue("--mask"))"""
EDGES = MASKS.replace("--mask", "--edge")
ROW_MASKS = """["--q0{layer}", "--hit{layer}"].map((side) =>
  document.querySelectorAll(".group")[{row}].style.getPropertyValue(side))"""
STATUS = 'document.querySelector(".status").textContent'
FOCUSED = '[...document.querySelectorAll(".group")].indexOf(document.activeElement)'
# The contrast of every text with the first opaque background around it, as WCAG computes it.
CONTRASTS = """(() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const colour = rgba(getComputedStyle(element).backgroundColor);
      if (colour[3] === 255) return colour;
    }
  };
  return [...document.querySelectorAll("body *:not(script)")]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()))
    .filter((e) => e.checkVisibility())
    .map((e) => {
      const [a, b] = [light(rgba(getComputedStyle(e).color)), light(background(e))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.textContent.trim().slice(0, 40)];
    });
})()"""
BOX = """(() => {{ const box = document.querySelectorAll("{selector}")[{n}].getBoundingClientRect();
  return [box.x, box.y, box.width, box.height]; }})()"""


@pytest.fixture
def explanation(gallery: Gallery, photos: Path) -> Explanation:
    return gallery.explain(photos / "3.png", photos / "4.png")


@pytest.fixture
def why(explanation: Explanation, tmp_path: Path) -> Path:
    assert len(explanation.groups) > 2
    file = tmp_path / "why.html"
    file.write_text(
        render_explanation(
            replace(
                explanation,
                query_paths=(f"/{'a_long_folder_' * 9}/{'a_long_name_' * 20}.png",),
                match=replace(explanation.match, strength="weak"),
            )
        )
    )
    return file


def centre(tab: Browser, selector: str, n: int) -> tuple[float, float]:
    x, y, width, height = tab.value(BOX.format(selector=selector, n=n))
    return x + width / 2, y + height / 2


def test_pointing_at_a_group_shows_it_alone_in_both_images(
    tab: Browser, why: Path, explanation: Explanation
) -> None:
    tab.open(why, height=2400)
    everything, status = tab.value(MASKS), tab.value(STATUS)
    for row in (1, 0):
        tab.point_at(*centre(tab, ".group h3", row))
        assert tab.value(MASKS) == tab.value(ROW_MASKS.format(row=row, layer="")) != everything
        assert tab.value(EDGES) == tab.value(ROW_MASKS.format(row=row, layer="-edge"))
        assert tab.value(STATUS) == f"Bright: only {explanation.groups[row].label}"
        assert tab.value('document.querySelectorAll(".on").length') == 1
    tab.point_at(1, 1)
    assert (tab.value(MASKS), tab.value(STATUS)) == (everything, status)
    assert tab.errors == []


def test_the_keyboard_is_enough(tab: Browser, why: Path, explanation: Explanation) -> None:
    tab.open(why)
    tab.press("Tab")
    tab.press(" ")
    mask = 'getComputedStyle(document.querySelector(".stage .matched")).maskImage'
    assert tab.value(mask) == "none", "the original photos"
    tab.press(" ")
    assert tab.value(mask) != "none"
    visited: list[int] = []
    lit = [n for n, group in enumerate(explanation.groups) if group.in_hit is not None]
    for _ in lit:
        tab.press("Tab")
        row = tab.value(FOCUSED)
        visited.append(row)
        assert tab.value(MASKS) == tab.value(ROW_MASKS.format(row=row, layer=""))
        label = tab.value('document.querySelector(".map[data-side=hit]").ariaLabel')
        assert label == f"Where {explanation.groups[row].label} is in the hit"
    assert visited == lit
    tab.press("Tab")
    tab.press(" ")
    assert tab.value('document.querySelector("details").open')


def test_touching_a_group_on_a_phone_shows_it_and_leaves_both_photos_in_view(
    tab: Browser, why: Path
) -> None:
    tab.open(why, width=390, height=844)
    to_the_middle = "scrollIntoView({block: 'center', behavior: 'instant'})"
    tab.value(f"document.querySelectorAll('.group')[1].{to_the_middle}")
    tab.touch(*centre(tab, ".group h3", 1))
    assert tab.value(MASKS) == tab.value(ROW_MASKS.format(row=1, layer=""))
    for n in range(2):
        _, y, _, height = tab.value(BOX.format(selector=".stage .map", n=n))
        assert y >= 0
        assert y + height <= 844 / 2


def test_a_command_is_copied(tab: Browser, gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    gallery.search(photos / "3.png", k=1).save(tmp_path / "hits.html")
    tab.open(tmp_path / "hits.html")
    tab.value("document.addEventListener('copy', () => window.copied = `${getSelection()}`)")
    tab.value("navigator.clipboard.writeText = (text) => Promise.reject(window.refused = text)")
    tab.value("document.querySelector('.card button').click()")
    tab.value("document.querySelector('.command button').click()")
    command = tab.value("document.querySelector('.command code').textContent")
    assert command.startswith("bm25v explain ")
    assert tab.value("window.refused") == command
    assert tab.value("getSelection().toString()") == command, "selected, to be copied by hand"
    assert tab.errors == []


def test_highlights_on_a_page_look_like_drawn_ones(
    tab: Browser, why: Path, explanation: Explanation
) -> None:
    tab.open(why)
    (in_query,), in_hit = combine_maps(explanation.fine)
    assert in_hit is not None
    assert explanation.hit_image is not None
    for n, (image, grid) in enumerate(
        ((explanation.query_images[0], in_query), (explanation.hit_image, in_hit))
    ):
        captured = tab.capture(tab.value(BOX.format(selector=".stage .map", n=n)))
        pixels = np.array(Image.fromarray(image).resize(captured.size))
        expected = highlight(pixels, grid, strength=0.4)  # of a weak match
        difference = np.abs(np.asarray(captured, dtype=float) - expected)
        assert difference[8:-8, 8:-8].mean() < 8


def test_the_first_screen_of_a_laptop_answers_every_question(
    tab: Browser, why: Path, explanation: Explanation
) -> None:
    tab.open(why, width=1366, height=768)
    shown = tab.value("""(() => {
      const all = (selector, n) => [...document.querySelectorAll(selector)].slice(0, n);
      const elements = {
        title: all("h1", 1), photos: all(".stage .map", 2), files: all(".stage .file", 2),
        sentence: all(".lead", 1), groups: all(".group h3", 3), details: all("summary", 1),
      };
      const isVisible = (element) => {
        const box = element.getBoundingClientRect();
        const isInside = box.top >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
        return isInside && box.width > 0;
      };
      return Object.fromEntries(Object.entries(elements).map(
        ([name, found]) => [name, found.filter(isVisible).length]));
    })()""")
    assert shown == {
        "title": 1,
        "photos": 2,
        "files": 2,
        "sentence": 1,
        "groups": 3,
        "details": 1,
    }
    assert tab.value('document.querySelector("h1").textContent').startswith("Weak match, rank ")
    lines = "[...document.querySelectorAll('.stage .file')].map((file) => file.clientHeight)"
    assert max(tab.value(lines)) < 60, "a long name is two lines at most"
    assert "a_long_name_a" in tab.value('document.querySelector(".stage .file").title')


@pytest.mark.parametrize(("width", "least"), [(1366, 180), (390, 150)])
def test_a_panel_in_place_of_a_photo_is_wide_enough_to_be_read(
    tab: Browser, explanation: Explanation, tmp_path: Path, width: int, least: int
) -> None:
    wide = np.zeros((90, 300, 3), dtype=np.uint8)
    pages = {
        "hit.html": replace(explanation, query_images=(wide,), hit_image=None),
        "query.html": replace(explanation, query_images=(), hit_image=wide, text="a cat"),
    }
    for name, unusual in pages.items():
        file = tmp_path / name
        file.write_text(render_explanation(unusual))
        tab.open(file, width=width)
        _, _, panel_width, _ = tab.value(BOX.format(selector=".stage .empty", n=0))
        assert panel_width >= least
        assert tab.value("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("dark", [False, True])
def test_every_text_of_the_explanation_page_has_enough_contrast(
    tab: Browser, why: Path, dark: bool
) -> None:
    tab.open(why, width=1366, height=768, dark=dark)
    tab.value("document.querySelectorAll('details').forEach((details) => (details.open = true))")
    contrasts = tab.value(CONTRASTS)
    assert len(contrasts) > 50
    assert [pair for pair in contrasts if pair[0] < 4.5] == []


@pytest.mark.parametrize("width", [320, 1200])
def test_pages_fit_narrow_and_wide_screens_and_load_nothing(
    tab: Browser, why: Path, gallery: Gallery, photos: Path, tmp_path: Path, width: int
) -> None:
    words = [facts.word for facts in gallery.words()[:2]]
    shown = tmp_path / "words.html"
    shown.write_text(render_words(list(make_portraits(gallery, words))))
    for file in (why, shown):
        backgrounds = []
        for dark in (False, True):
            tab.open(file, width=width, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= width, file.name
            assert [url for url in tab.addresses if not url.startswith("data:")] == [file.as_uri()]
            backgrounds.append(tab.value("getComputedStyle(document.body).backgroundColor"))
        assert backgrounds[0] != backgrounds[1]
